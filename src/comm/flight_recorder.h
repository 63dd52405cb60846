/* comm/diary.h - what a rank did last, in a file that outlives it: whoever started the rank can read it there after any death. */
#ifndef LK__FLIGHT_RECORDER_H
#define LK__FLIGHT_RECORDER_H

#include "comm/comm.h"

typedef struct lk__comm_flight_recorder {
    uint64_t              magic;
    _Atomic uint64_t      begun, ended; /* operations of any group of the process */
    _Atomic uint64_t      failed;       /* the latest that ended with a failure; 0: none */
    _Atomic uint64_t      cause;        /* kind << 32 | rank: of the first failure of a group; 0: none */
    int64_t               pid;          /* of the rank, which the launcher may have started through others */
    uint64_t              started;      /* when that process did, as the kernel counts it */
    _Atomic int32_t       kind, type, reduce, root, tag, line;
    _Atomic uint64_t      count, bytes;
    _Atomic(const char *) site; /* of `file`: only the rank itself looks at it */
    char                  file[112];
} lk__comm_flight_recorder;

/* In the file that LOCKSTEP_FLIGHT_RECORDER names; NULL: nobody asked for one, or it cannot be had. Every group of a process opens the same one. */
lk__comm_flight_recorder *lk__flight_recorder_open(void);
void lk__flight_recorder_close(lk__comm_flight_recorder *diary); /* what is written stays; NULL is fine */
void lk__flight_recorder_name(lk__comm_flight_recorder *diary, const char *file);

/* From any thread; what two write at once is a mixture of both, which does no harm. */
static inline void lk__flight_recorder_begin(lk__comm_flight_recorder *d, const lk__comm_call *o)
{
    if (!d) return;
#define LK__RECORDER_SET(field, value) atomic_store_explicit(&d->field, value, memory_order_relaxed)
    if (atomic_load_explicit(&d->site, memory_order_relaxed) != o->site.file) lk__flight_recorder_name(d, o->site.file);
    LK__RECORDER_SET(kind, (int32_t)o->kind);
    LK__RECORDER_SET(type, (int32_t)o->type);
    LK__RECORDER_SET(reduce, (int32_t)o->reduce);
    LK__RECORDER_SET(root, o->root);
    LK__RECORDER_SET(tag, o->tag);
    LK__RECORDER_SET(line, o->site.line);
    LK__RECORDER_SET(count, o->count);
    LK__RECORDER_SET(bytes, o->bytes);
#undef LK__RECORDER_SET
    atomic_store_explicit(&d->begun, atomic_load_explicit(&d->begun, memory_order_relaxed) + 1, memory_order_relaxed);
}

static inline void lk__flight_recorder_end(lk__comm_flight_recorder *d, lk_status status)
{
    if (!d) return;
    uint64_t begun = atomic_load_explicit(&d->begun, memory_order_relaxed);
    if (status < 0) atomic_store_explicit(&d->failed, begun, memory_order_relaxed);
    atomic_store_explicit(&d->ended, begun, memory_order_relaxed);
}

/* Whom a group's failure is due to; the first counts, until a group is joined after it. */
void lk__flight_recorder_cause(lk__comm_flight_recorder *diary, lk__comm_cause cause);
/* This rank cannot go on for a reason of its own: that counts, even if the group failed for another rank's before. */
void lk__flight_recorder_own_cause(lk__comm_flight_recorder *diary, lk__comm_cause cause);
void lk__flight_recorder_joined(lk__comm_flight_recorder *diary);

/* What it says about the rank: whom its failure is due to, and its process. False: there is none. */
bool lk__flight_recorder_look(const char *path, lk__comm_cause *cause, int64_t *pid, uint64_t *started);
/* "in all_reduce f32 × 1000 sum at train.c:55, its 17th" or "none since …"; false: the file says nothing. */
bool lk__flight_recorder_read(const char *path, char *out, size_t size);

#endif
