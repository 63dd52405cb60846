/* comm/flight_recorder.h - the latest operation of a rank, in a file that outlives its process: the launcher reads it
 * after the rank ended. */
#ifndef LK__FLIGHT_RECORDER_H
#define LK__FLIGHT_RECORDER_H

#include "comm/comm.h"

typedef struct lk__comm_flight_recorder {
    uint64_t              magic;
    _Atomic uint64_t      begun, ended; /* operations of any group of the process */
    _Atomic uint64_t      failed;       /* the latest that failed; 0: none */
    _Atomic uint64_t      cause;        /* kind << 32 | rank: of the first failure of a group; 0: none */
    int64_t               pid;          /* of the rank, which may be a descendant of the launcher's child */
    uint64_t              started;      /* when that process started, in ticks since boot */
    _Atomic int32_t       kind, type, reduce, root, tag, line;
    _Atomic uint64_t      count, bytes;
    _Atomic(const char *) site; /* of `file`: used by the rank itself only */
    char                  file[112];
    /* of the operation in its group, as the table of a failure has it; 0: a transfer, or not entered yet */
    _Atomic uint64_t number;
} lk__comm_flight_recorder;

/* Maps the file that LOCKSTEP_FLIGHT_RECORDER names; NULL: it is not set, or the file cannot be mapped. All groups of a
 * process share it. */
lk__comm_flight_recorder *lk__flight_recorder_open(const lk_context *context);
void lk__flight_recorder_close(lk__comm_flight_recorder *recorder); /* the file stays; NULL is fine */
void lk__flight_recorder_name(lk__comm_flight_recorder *recorder, const char *file);

/* From any thread. Two threads at once may record a mixture of both calls, which is harmless. */
static inline void lk__flight_recorder_begin(lk__comm_flight_recorder *recorder, const lk__comm_call *o)
{
    if (!recorder) return;
#define LK__RECORDER_SET(field, value) atomic_store_explicit(&recorder->field, value, memory_order_relaxed)
    if (atomic_load_explicit(&recorder->site, memory_order_relaxed) != o->site.file)
        lk__flight_recorder_name(recorder, o->site.file);
    LK__RECORDER_SET(kind, (int32_t)o->kind);
    LK__RECORDER_SET(type, (int32_t)o->type);
    LK__RECORDER_SET(reduce, (int32_t)o->reduce);
    LK__RECORDER_SET(root, o->root);
    LK__RECORDER_SET(tag, o->tag);
    LK__RECORDER_SET(line, o->site.line);
    LK__RECORDER_SET(count, o->count);
    LK__RECORDER_SET(bytes, o->bytes);
    LK__RECORDER_SET(number, 0);
#undef LK__RECORDER_SET
    atomic_store_explicit(&recorder->begun, atomic_load_explicit(&recorder->begun, memory_order_relaxed) + 1,
                          memory_order_relaxed);
}

/* Once the operation has its number in the group. */
static inline void lk__flight_recorder_number(lk__comm_flight_recorder *recorder, uint64_t number)
{
    if (recorder) atomic_store_explicit(&recorder->number, number, memory_order_relaxed);
}

static inline void lk__flight_recorder_end(lk__comm_flight_recorder *recorder, lk_status status)
{
    if (!recorder) return;
    uint64_t begun = atomic_load_explicit(&recorder->begun, memory_order_relaxed);
    if (status < 0) atomic_store_explicit(&recorder->failed, begun, memory_order_relaxed);
    atomic_store_explicit(&recorder->ended, begun, memory_order_relaxed);
}

/* The cause of a group's failure; the first is kept until a group is joined after it. */
void lk__flight_recorder_cause(lk__comm_flight_recorder *recorder, lk__comm_cause cause);
/* This rank failed by itself: replaces an earlier cause. Not the loss of another rank: that failure, of a group of some
 * of the ranks, is why this rank aborts the other groups. */
void lk__flight_recorder_own_cause(lk__comm_flight_recorder *recorder, lk__comm_cause cause);
void lk__flight_recorder_joined(lk__comm_flight_recorder *recorder);

/* The cause of the rank's failure, and its process. False: there is no such file. */
bool lk__flight_recorder_look(const char *path, lk__comm_cause *cause, int64_t *pid, uint64_t *started);
/* "it was in #17 all_reduce f32 × 1000 sum at train.c:55" or "it was outside any; it had finished …"; false: no
 * operation is recorded. */
bool lk__flight_recorder_read(const char *path, char *out, size_t size);

#endif
