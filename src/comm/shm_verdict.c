/* shm_verdict.c - what every rank says it is doing, the group's one failure, and the table that explains it. */
#define _GNU_SOURCE
#include "comm/shm.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what this rank does ---- */

/* The index of a file's name in the seat; the end of a name that is too long says most. */
static int file_index(lk__shm *s, const char *file)
{
    if (!file) file = "?";
    int    index = (int)(((uintptr_t)file >> 3) * 0x9E3779B1u >> 16) & (LK__FILES - 1);
    char  *text = s->me->files[index];
    size_t length;
    if (s->file_of[index] == file && strncmp(text, file, LK__FILE_NAME - 1) == 0) return index;
    length = strlen(file);
    if (length > LK__FILE_NAME - 1)
        file += length - (LK__FILE_NAME - 1);
    else
        s->file_of[index] = file;
    snprintf(text, LK__FILE_NAME, "%s", file);
    return index;
}

void lk__shm_enter(lk__shm *s, const lk__operation *o, uint64_t number)
{
    uint64_t    entered = ++s->operations;
    lk__record *r = &s->me->records[entered & 1];
    *r = (lk__record){.number = number,
                      .kind = (int32_t)o->kind,
                      .type = (int32_t)o->type,
                      .reduce = (int32_t)o->reduce,
                      .root = o->root,
                      .tag = o->tag,
                      .line = o->site.line,
                      .file = file_index(s, o->site.file),
                      .count = o->count,
                      .bytes = o->bytes};
    atomic_store_explicit(&s->me->since, lk__tick(), memory_order_relaxed);
    atomic_store_explicit(&s->me->entered, entered, memory_order_relaxed);
}

lk_status lk__shm_leave(lk__shm *s, lk_status status)
{
    atomic_store_explicit(&s->me->since, lk__tick(), memory_order_relaxed);
    atomic_store_explicit(&s->me->left, s->operations, memory_order_relaxed);
    return status;
}

bool lk__shm_anyone_busy(const lk__shm *s)
{
    for (int i = 0; i < s->size; i++)
        if (i != s->rank && atomic_load(&s->seats[i].busy)) return true;
    return false;
}

/* ---- is a process still there ---- */

/* The state's letter and the start time, out of /proc/PID/stat: after the name, which may hold anything but ends with
 * the last ')'. */
static bool read_stat(int64_t pid, char *state, uint64_t *started)
{
    char path[48], text[1024];
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    FILE *file = fopen(path, "re");
    if (!file) return false;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    char *at = strrchr(text, ')');
    if (!at || sscanf(at + 1, " %c", state) != 1) return false;
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    *started = at ? strtoull(at + 1, NULL, 10) : 0;
    return true;
}

uint64_t lk__process_started(int64_t pid)
{
    char     state;
    uint64_t started;
    return read_stat(pid, &state, &started) ? started : 0;
}

bool lk__shm_dead(const lk__seat *seat, bool *stopped)
{
    char     state = 0;
    uint64_t started = 0;
    if (stopped) *stopped = false;
    if (seat->pid == getpid()) return false; /* a thread of ours */
    if (!read_stat(seat->pid, &state, &started)) return kill((pid_t)seat->pid, 0) != 0 && errno == ESRCH;
    if (stopped) *stopped = state == 'T' || state == 't';
    return state == 'Z' || state == 'X' || (seat->started && started != seat->started);
}

/* ---- the table ---- */

typedef struct page {
    char   text[LK__COMM_TEXT];
    size_t used;
} page;

__attribute__((format(printf, 2, 3))) static void add(page *p, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (p->used < sizeof p->text) {
        int n = vsnprintf(p->text + p->used, sizeof p->text - p->used, format, arguments);
        p->used += n > 0 ? (size_t)n : 0;
    }
    va_end(arguments);
}

static double seconds_since(const lk__shm *s, uint64_t then)
{
    uint64_t ticks = lk__tick() - s->tick_start;
    double   rate = (lk__now() - s->time_start) / (double)(ticks ? ticks : 1),
           seconds = (double)(int64_t)(s->tick_start + ticks - then) * rate;
    return seconds > 0 ? seconds : 0;
}

static void describe_record(const lk__seat *seat, const lk__record *r, char *out, size_t bytes)
{
    char          file[LK__FILE_NAME];
    lk__operation o = {.kind = (lk__kind)r->kind,
                       .type = (lk_dtype)r->type,
                       .reduce = (unsigned)r->reduce > LK_PROD ? LK_SUM : (lk_reduce_op)r->reduce,
                       .root = r->root,
                       .tag = r->tag,
                       .count = r->count,
                       .bytes = r->bytes,
                       .site = {file, r->line}};
    snprintf(file, sizeof file, "%.*s", LK__FILE_NAME - 1, seat->files[r->file & (LK__FILES - 1)]);
    lk__operation_describe(&o, r->number, out, bytes);
}

/* "in #17 all_reduce … for 12.0 s; last finished #16 barrier …" */
static void describe_seat(const lk__shm *s, int rank, page *p)
{
    const lk__seat *seat = &s->seats[rank];
    uint64_t        entered = atomic_load(&seat->entered), left = atomic_load(&seat->left);
    double          since = seconds_since(s, atomic_load(&seat->since));
    char            text[256];
    bool            stopped, dead = lk__shm_dead(seat, &stopped);
    if (dead)
        add(p, "dead; it was ");
    else if (atomic_load(&seat->gone))
        add(p, "left the group; it was ");
    else if (stopped)
        add(p, "stopped by a signal; ");
    if (atomic_load(&seat->busy)) add(p, "busy with %.*s; ", (int)sizeof seat->busy_with - 1, seat->busy_with);
    if (entered == 0) {
        add(p, "outside any operation; it has begun none");
        return;
    }
    describe_record(seat, &seat->records[entered & 1], text, sizeof text);
    if (entered != left) {
        add(p, "in %s for %.1f s", text, since);
        if (entered == 1) {
            add(p, "; it has finished none");
            return;
        }
        describe_record(seat, &seat->records[(entered - 1) & 1], text, sizeof text);
        add(p, "; last finished %s", text);
    } else {
        add(p, "outside any operation for %.1f s; last finished %s", since, text);
    }
}

/* One line a rank, the missing ones marked; of very many ranks those that matter. */
static void add_table(const lk__shm *s, const bool *missing, page *p)
{
    enum { LINES = 32 };
    int lines = 0;
    for (int i = 0; i < s->size; i++) {
        if (s->size > LINES && missing && !missing[i] && i != s->rank) continue;
        if (lines++ == LINES) {
            add(p, "\n  …");
            return;
        }
        add(p, "\n  rank %d  %.*s pid %lld  ", i, LK__HOST_NAME - 1, s->seats[i].host, (long long)s->seats[i].pid);
        describe_seat(s, i, p);
        if (missing && missing[i]) add(p, "  <- missing");
    }
}

static void find_missing(const lk__shm *s, int peer, _Atomic uint32_t *word, uint32_t target, bool *missing)
{
    for (int i = 0; i < s->size; i++) {
        missing[i] = i == peer;
        if (!word || i == s->rank) continue;
        _Atomic uint32_t *its = (_Atomic uint32_t *)((char *)word + (i - peer) * (ptrdiff_t)sizeof(lk__seat));
        missing[i] = (int32_t)(atomic_load(its) - target) < 0;
    }
}

/* "rank 1 (host, pid 12)" for the first missing one, and how many more. */
static void name_missing(const lk__shm *s, const bool *missing, page *p)
{
    int first = -1, more = 0;
    for (int i = 0; i < s->size; i++)
        if (missing[i]) first < 0 ? (void)(first = i) : (void)more++;
    if (first < 0) first = 0;
    add(p, "rank %d of %d (%.*s, pid %lld)", first, s->size, LK__HOST_NAME - 1, s->seats[first].host,
        (long long)s->seats[first].pid);
    if (more) add(p, " and %d more", more);
}

static void own_call(const lk__shm *s, char *out, size_t bytes)
{
    describe_record(s->me, &s->me->records[s->operations & 1], out, bytes);
}

static void late_page(lk__shm *s, int peer, _Atomic uint32_t *word, uint32_t target, double seconds, const char *verb,
                      page *p)
{
    bool *missing = lk__alloc(s->comm->context, LK_MEMORY_OTHER, (size_t)s->size);
    char  call[256];
    own_call(s, call, sizeof call);
    if (missing) {
        find_missing(s, peer, word, target, missing);
        name_missing(s, missing, p);
    }
    add(p, " %s %.1f s in %s, says rank %d", verb, seconds, call, s->rank);
    add_table(s, missing, p);
    lk__free(s->comm->context, LK_MEMORY_OTHER, missing, (size_t)s->size);
}

lk_status lk__shm_late(lk__shm *s, int peer, _Atomic uint32_t *word, uint32_t target, double seconds)
{
    page p = {.used = 0};
    late_page(s, peer, word, target, seconds, "did not do its part within", &p);
    return lk__shm_raise(s, LK_ETIMEOUT, p.text);
}

void lk__shm_stalled(lk__shm *s, int peer, _Atomic uint32_t *word, uint32_t target, double seconds)
{
    page p = {.used = 0};
    late_page(s, peer, word, target, seconds, "is waited for since", &p);
    lk__log(s->comm->context, LK_LOG_WARNING, "%s", p.text);
}

lk_status lk__shm_lost(lk__shm *s, int peer)
{
    page            p = {.used = 0};
    const lk__seat *seat = &s->seats[peer];
    char            call[256];
    bool           *missing = lk__alloc(s->comm->context, LK_MEMORY_OTHER, (size_t)s->size);
    if (missing) missing[peer] = true;
    own_call(s, call, sizeof call);
    add(&p, "rank %d of %d (%.*s, pid %lld) %s while rank %d waited for it in %s", peer, s->size, LK__HOST_NAME - 1,
        seat->host, (long long)seat->pid, atomic_load(&seat->gone) ? "left the group" : "died", s->rank, call);
    add_table(s, missing, &p);
    lk__free(s->comm->context, LK_MEMORY_OTHER, missing, (size_t)s->size);
    return lk__shm_raise(s, LK_EIO, p.text);
}

lk_status lk__shm_mismatch(lk__shm *s, int peer)
{
    page p = {.used = 0};
    add(&p, "the ranks do not agree: rank %d and rank %d came to operation #%llu with different calls", s->rank, peer,
        (unsigned long long)s->number);
    add_table(s, NULL, &p);
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
