/* shm_verdict.c - what every rank says it is doing, the group's one failure, and the table that explains it. */
#define _GNU_SOURCE
#include "comm/process.h"
#include "comm/shm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what this rank does ---- */

/* The index of a file's name in the seat. */
static int file_index(lk__shm *s, const char *file)
{
    if (!file) file = "?";
    int   index = (int)(((uintptr_t)file >> 3) * 0x9E3779B1u >> 16) & (LK__FILES - 1);
    char *text = s->me->files[index];
    if (s->file_of[index] == file && strncmp(text, file, LK__FILE_NAME - 1) == 0) return index;
    const char *tail = lk__file_tail(file);
    if (tail == file) s->file_of[index] = file;
    snprintf(text, LK__FILE_NAME, "%s", tail);
    return index;
}

void lk__shm_note(lk__shm *s, const lk__operation *o, uint64_t number)
{
    lk__record *r = &s->me->records[s->operations & 1];
    lk__record_make(r, o, number);
    r->file = file_index(s, o->site.file);
    s->noted[s->operations & 1] = *o;
}

/* ---- is a process still there ---- */

bool lk__shm_dead(const lk__seat *seat, bool *stopped)
{
    char     state = 0;
    uint64_t started = 0;
    if (stopped) *stopped = false;
    if (seat->pid == getpid()) return false; /* a thread of ours */
    if (!lk__process_look(seat->pid, &state, &started)) return lk__process_gone(seat->pid);
    if (stopped) *stopped = state == 'T' || state == 't';
    return state == 'Z' || state == 'X' || (seat->started && started != seat->started);
}

/* ---- the table ---- */

static double seconds_since(const lk__shm *s, uint64_t then)
{
    uint64_t ticks = lk__tick() - s->tick_start;
    double   rate = (lk__now() - s->time_start) / (double)(ticks ? ticks : 1),
           seconds = (double)(int64_t)(s->tick_start + ticks - then) * rate;
    return seconds > 0 ? seconds : 0;
}

static void view_seat(void *state, int rank, lk__view *v)
{
    lk__shm        *s = state;
    const lk__seat *seat = &s->seats[rank];
    v->entered = atomic_load(&seat->entered);
    v->left = atomic_load(&seat->left);
    v->since = seconds_since(s, atomic_load(&seat->since));
    v->pid = seat->pid;
    v->dead = lk__shm_dead(seat, &v->stopped);
    v->gone = atomic_load(&seat->gone);
    snprintf(v->host, sizeof v->host, "%.*s", LK__HOST_NAME - 1, seat->host);
    if (atomic_load(&seat->busy))
        snprintf(v->busy, sizeof v->busy, "%.*s", (int)sizeof seat->busy_with - 1, seat->busy_with);
    for (int i = 0; i < 2; i++) {
        v->records[i] = seat->records[i];
        snprintf(v->files[i], sizeof v->files[i], "%.*s", LK__FILE_NAME - 1,
                 seat->files[seat->records[i].file & (LK__FILES - 1)]);
    }
}

static lk__table table_of(lk__shm *s)
{
    return (lk__table){.context = s->comm->context, .rank = s->rank, .size = s->size, .state = s, .view = view_seat};
}

/* Of the ranks but this one. */
static bool is_missing(int rank, int peer, _Atomic uint32_t *word, uint32_t target)
{
    if (!word) return rank == peer;
    _Atomic uint32_t *its = (_Atomic uint32_t *)((char *)word + (rank - peer) * (ptrdiff_t)sizeof(lk__seat));
    return (int32_t)(atomic_load(its) - target) < 0;
}

static bool is_busy(const lk__seat *seat)
{
    bool stopped; /* nobody waits for what was stopped amid it */
    return atomic_load(&seat->busy) && !lk__shm_dead(seat, &stopped) && !stopped;
}

bool lk__shm_excused(const lk__shm *s, int peer, _Atomic uint32_t *word, uint32_t target)
{
    bool any = false;
    for (int i = 0; i < s->size; i++) {
        const lk__seat *seat = &s->seats[i];
        if (i == s->rank) continue;
        if (is_busy(seat))
            any = true;
        else if (is_missing(i, peer, word, target) && atomic_load(&seat->entered) == atomic_load(&seat->left))
            return false;
    }
    return any;
}

static void late_page(lk__shm *s, int peer, _Atomic uint32_t *word, uint32_t target, double seconds, const char *verb,
                      lk__page *p)
{
    lk__table table = table_of(s);
    bool     *missing = lk__alloc(s->comm->context, LK_MEMORY_OTHER, (size_t)s->size);
    if (!missing) return;
    for (int i = 0; i < s->size; i++) missing[i] = i != s->rank && is_missing(i, peer, word, target);
    lk__verdict_late(&table, missing, seconds, verb, p);
    lk__free(s->comm->context, LK_MEMORY_OTHER, missing, (size_t)s->size);
}

lk_status lk__shm_late(lk__shm *s, int peer, _Atomic uint32_t *word, uint32_t target, double seconds)
{
    lk__page p = {.used = 0};
    late_page(s, peer, word, target, seconds, "did not do its part within", &p);
    return lk__shm_raise(s, LK_ETIMEOUT, p.text);
}

void lk__shm_stalled(lk__shm *s, int peer, _Atomic uint32_t *word, uint32_t target, double seconds)
{
    lk__page p = {.used = 0};
    late_page(s, peer, word, target, seconds, "is waited for since", &p);
    lk__log(s->comm->context, LK_LOG_WARNING, "%s", p.text);
}

lk_status lk__shm_lost(lk__shm *s, int peer)
{
    lk__page  p = {.used = 0};
    lk__table table = table_of(s);
    lk__verdict_lost(&table, peer, &p);
    return lk__shm_raise(s, LK_EIO, p.text);
}

/* A rank notes its call just after it has told that it came to it. */
static void await_notes(const lk__shm *s)
{
    double end = lk__now() + 0.1;
    for (int i = 0; i < s->size; i++) {
        const lk__seat *seat = &s->seats[i];
        uint32_t        number = (uint32_t)s->number;
        if (atomic_load(&seat->slots[number & 1].arrive) != number) continue;
        while ((uint32_t)seat->records[atomic_load(&seat->entered) & 1].number != number && lk__now() < end)
            usleep(100);
    }
}

lk_status lk__shm_crossed(lk__shm *s, const lk__operation *transfer)
{
    lk__page  p = {.used = 0};
    lk__table table = table_of(s);
    lk__verdict_crossed(&table, transfer->root, transfer, &p);
    return lk__shm_raise(s, LK_EMISMATCH, p.text);
}

lk_status lk__shm_mismatch(lk__shm *s, int peer)
{
    lk__page  p = {.used = 0};
    lk__table table = table_of(s);
    await_notes(s);
    lk__verdict_mismatch(&table, peer, s->number, &p);
    return lk__shm_raise(s, LK_EMISMATCH, p.text);
}

/* ---- the failure ---- */

lk_status lk__shm_failure(lk__shm *s)
{
    int state = atomic_load_explicit(&s->hall->failure, memory_order_acquire);
    if (state == 0) return LK_OK;
    for (int i = 0; state == 1 && i < 200; i++) { /* whoever writes it may have been stopped in between */
        usleep(1000);
        state = atomic_load(&s->hall->failure);
    }
    char text[LK__COMM_TEXT];
    snprintf(text, sizeof text, "%.*s", LK__COMM_TEXT - 1,
             state == 2 ? s->hall->text : "the group failed on another rank, which did not come to say why");
    return lk__comm_note(s->comm, state == 2 && s->hall->status < 0 ? (lk_status)s->hall->status : LK_EIO, text);
}

lk_status lk__shm_raise(lk__shm *s, lk_status status, const char *text)
{
    int none = 0;
    if (atomic_compare_exchange_strong(&s->hall->failure, &none, 1)) {
        s->hall->status = status;
        snprintf(s->hall->text, sizeof s->hall->text, "%s", text);
        atomic_store(&s->hall->failure, 2);
        for (int i = 0; i < s->size; i++) {
            lk__seat *seat = &s->seats[i];
            atomic_fetch_add(&seat->bell, 1);
            _Atomic uint32_t *words[] = {&seat->slots[0].arrive, &seat->slots[1].arrive, &seat->progress, &seat->bell};
            for (int w = 0; w < 4; w++) lk__shm_wake(words[w]);
        }
    }
    return lk__shm_failure(s);
}
