/* verdict.c - the state of every rank, the group's one failure, and the table that explains it. */
#define _GNU_SOURCE
#include "comm/process.h"
#include "comm/shm/shm.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- what this rank does ---- */

/* A record and its file name are written together, and `notes` is odd meanwhile: readers then retry. */
void lk__shm_record(lk__shm *s, const lk__comm_call *o, uint64_t number)
{
    int         which = (int)(s->operations & 1);
    char       *name = s->me->files[which];
    const char *file = lk__file_tail(o->site.file);
    atomic_fetch_add(&s->me->notes, 1);
    lk__comm_record_make(&s->me->records[which], o, number);
    if (strcmp(name, file) != 0) memcpy(name, file, strlen(file) + 1);
    atomic_fetch_add(&s->me->notes, 1);
    s->recorded[which] = *o;
}

/* A rank that was stopped or died while it wrote leaves `notes` odd: its file name is then unknown. */
static void read_records(lk__shm_rank_slot *rank_slot, lk__comm_rank_view *v)
{
    for (int tries = 0; tries < 1000; tries++) {
        uint32_t before = atomic_load(&rank_slot->notes);
        for (int i = 0; i < 2; i++) {
            v->records[i] = rank_slot->records[i];
            snprintf(v->files[i], sizeof v->files[i], "%.*s", LK__FILE_NAME - 1, rank_slot->files[i]);
        }
        /* Adds 0: a read-modify-write is ordered after the reads above. */
        if (before % 2 == 0 && atomic_fetch_add(&rank_slot->notes, 0) == before) return;
    }
    for (int i = 0; i < 2; i++) snprintf(v->files[i], sizeof v->files[i], "?");
}

/* ---- is a process alive ---- */

bool lk__shm_dead(const lk__shm_rank_slot *rank_slot, bool *stopped)
{
    lk__process process;
    if (stopped) *stopped = false;
    if (rank_slot->pid == getpid()) return false;                               /* a thread of this process */
    if (rank_slot->pid_namespace != lk__process_namespace("pid")) return false; /* that pid is another process here */
    if (!lk__process_look(rank_slot->pid, &process)) return lk__process_gone(rank_slot->pid);
    if (stopped) *stopped = lk__process_stopped(&process);
    return lk__process_over(&process) || (rank_slot->started && process.started != rank_slot->started);
}

/* ---- the table ---- */

static double seconds_since(const lk__shm *s, uint64_t then)
{
    uint64_t ticks = lk__tick() - s->tick_start;
    double   rate = (lk__now() - s->time_start) / (double)(ticks ? ticks : 1),
           seconds = (double)(int64_t)(s->tick_start + ticks - then) * rate;
    return seconds > 0 ? seconds : 0;
}

void lk__shm_view(void *state, int rank, lk__comm_rank_view *v)
{
    lk__shm           *s = state;
    lk__shm_rank_slot *rank_slot = &s->rank_slots[rank];
    v->entered = atomic_load(&rank_slot->entered);
    v->left = atomic_load(&rank_slot->left);
    v->since = seconds_since(s, atomic_load(&rank_slot->since));
    v->pid = rank_slot->pid;
    v->dead = lk__shm_dead(rank_slot, &v->stopped);
    v->gone = atomic_load(&rank_slot->gone);
    v->elsewhere = rank != s->rank && lk__shm_elsewhere(s, rank);
    snprintf(v->host, sizeof v->host, "%.*s", LK__HOST_NAME - 1, rank_slot->host);
    if (atomic_load(&rank_slot->busy))
        snprintf(v->busy, sizeof v->busy, "%.*s", (int)sizeof rank_slot->busy_with - 1, rank_slot->busy_with);
    v->failed = atomic_load(&rank_slot->failed);
    read_records(rank_slot, v);
}

static lk__comm_table table_of(lk__shm *s)
{
    return (lk__comm_table){.comm = s->comm, .rank = s->rank, .size = s->size, .state = s, .view = lk__shm_view};
}

/* For ranks other than this one. */
static bool is_missing(int rank, int peer, _Atomic uint32_t *word, uint32_t target)
{
    if (!word) return rank == peer;
    _Atomic uint32_t *its = (_Atomic uint32_t *)((char *)word + (rank - peer) * (ptrdiff_t)sizeof(lk__shm_rank_slot));
    return (int32_t)(atomic_load(its) - target) < 0;
}

static bool is_busy(const lk__shm_rank_slot *rank_slot)
{
    bool stopped; /* one that was stopped meanwhile is not excused */
    return atomic_load(&rank_slot->busy) && !lk__shm_dead(rank_slot, &stopped) && !stopped;
}

bool lk__shm_excused(const lk__shm *s, int peer, _Atomic uint32_t *word, uint32_t target)
{
    bool any = false;
    for (int i = 0; i < s->size; i++) {
        const lk__shm_rank_slot *rank_slot = &s->rank_slots[i];
        if (i == s->rank) continue;
        if (is_busy(rank_slot))
            any = true;
        else if (is_missing(i, peer, word, target) && atomic_load(&rank_slot->entered) == atomic_load(&rank_slot->left))
            return false;
    }
    return any;
}

/* Its slot in the group that was created, whose parts lie as in any group. */
static lk__shm_rank_slot *home_of(const lk__shm *s, int rank)
{
    return s->home + (s->rank_slots[rank].home - s->me->home);
}

bool lk__shm_elsewhere(const lk__shm *s, int rank)
{
    const lk__shm_rank_slot *rank_slot = &s->rank_slots[rank];
    bool                     stopped;
    return atomic_load(&rank_slot->entered) == atomic_load(&rank_slot->left) &&
           atomic_load(&home_of(s, rank)->waiting) > 0 && !lk__shm_dead(rank_slot, &stopped) && !stopped;
}

bool lk__shm_all_elsewhere(const lk__shm *s, int peer, _Atomic uint32_t *word, uint32_t target)
{
    bool any = false;
    for (int i = 0; i < s->size; i++) {
        if (i == s->rank || !is_missing(i, peer, word, target)) continue;
        if (!lk__shm_elsewhere(s, i)) return false;
        any = true;
    }
    return any;
}

static void describe_late(lk__shm *s, int peer, _Atomic uint32_t *word, uint32_t target, double seconds, bool ended,
                          lk__comm_report *report)
{
    lk__comm_table table = table_of(s);
    bool          *missing = lk__alloc(s->comm->context, LK_MEMORY_OTHER, (size_t)s->size);
    if (!missing) return;
    for (int i = 0; i < s->size; i++) missing[i] = i != s->rank && is_missing(i, peer, word, target);
    lk__verdict_late(&table, missing, seconds, ended, report);
    lk__free(s->comm->context, LK_MEMORY_OTHER, missing, (size_t)s->size);
}

lk_status lk__shm_late(lk__shm *s, int peer, _Atomic uint32_t *word, uint32_t target, double seconds)
{
    lk__comm_report report = {.used = 0};
    describe_late(s, peer, word, target, seconds, true, &report);
    return lk__shm_raise_because(s, LK_ETIMEOUT, report.text, report.cause);
}

void lk__shm_stalled(lk__shm *s, int peer, _Atomic uint32_t *word, uint32_t target, double seconds)
{
    lk__comm_report report = {.used = 0};
    describe_late(s, peer, word, target, seconds, false, &report);
    lk__log(s->comm->context, LK_LOG_WARNING, "%s", report.text);
}

lk_status lk__shm_lost(lk__shm *s, int peer)
{
    lk__comm_report report = {.used = 0};
    lk__comm_table  table = table_of(s);
    lk__verdict_lost(&table, peer, &report);
    return lk__shm_raise_because(s, LK_EIO, report.text, report.cause);
}

/* A rank records its call just after it has published its arrival. */
static void await_records(const lk__shm *s)
{
    double end = lk__now() + 0.1;
    for (int i = 0; i < s->size; i++) {
        const lk__shm_rank_slot *rank_slot = &s->rank_slots[i];
        uint32_t                 number = (uint32_t)s->number;
        if (atomic_load(&rank_slot->arrivals[number & 1].number) != number) continue;
        while ((uint32_t)rank_slot->records[atomic_load(&rank_slot->entered) & 1].number != number && lk__now() < end)
            usleep(100);
    }
}

lk_status lk__shm_crossed(lk__shm *s, const lk__comm_call *transfer)
{
    lk__comm_report report = {.used = 0};
    lk__comm_table  table = table_of(s);
    lk__verdict_crossed(&table, transfer->root, transfer, &report);
    return lk__shm_raise(s, LK_EMISMATCH, report.text);
}

lk_status lk__shm_mismatch(lk__shm *s, int peer)
{
    lk__comm_report report = {.used = 0};
    lk__comm_table  table = table_of(s);
    await_records(s);
    lk__verdict_mismatch(&table, peer, s->number, &report);
    return lk__shm_raise(s, LK_EMISMATCH, report.text);
}

/* ---- the failure ---- */

lk_status lk__shm_failure(lk__shm *s)
{
    int state = atomic_load_explicit(&s->header->failure, memory_order_acquire);
    if (state == 0) return LK_OK;
    for (int i = 0; state == 1 && i < 200; i++) { /* the rank that writes it may have been stopped meanwhile */
        usleep(1000);
        state = atomic_load(&s->header->failure);
    }
    char text[LK__COMM_TEXT];
    snprintf(text, sizeof text, "%.*s", LK__COMM_TEXT - 1,
             state == 2 ? s->header->text : "the group failed on another rank, which did not report why");
    return lk__comm_record_failure(s->comm, state == 2 && s->header->status < 0 ? (lk_status)s->header->status : LK_EIO,
                                   text, state == 2 ? s->header->cause : (lk__comm_cause){LK__CAUSE_UNKNOWN, 0});
}

lk_status lk__shm_raise(lk__shm *s, lk_status status, const char *text)
{
    return lk__shm_raise_because(s, status, text, lk__comm_cause_for(s->comm, status));
}

lk_status lk__shm_raise_because(lk__shm *s, lk_status status, const char *text, lk__comm_cause cause)
{
    int none = 0;
    if (atomic_compare_exchange_strong(&s->header->failure, &none, 1)) {
        s->header->status = status;
        s->header->cause = cause;
        snprintf(s->header->text, sizeof s->header->text, "%s", text);
        atomic_store(&s->header->failure, 2);
        for (int i = 0; i < s->size; i++) {
            lk__shm_rank_slot *rank_slot = &s->rank_slots[i];
            atomic_fetch_add(&rank_slot->doorbell, 1);
            _Atomic uint32_t *words[] = {&rank_slot->arrivals[0].number, &rank_slot->arrivals[1].number,
                                         &rank_slot->progress, &rank_slot->doorbell};
            for (int w = 0; w < 4; w++) lk__futex_wake(words[w]);
        }
    }
    return lk__shm_failure(s);
}
