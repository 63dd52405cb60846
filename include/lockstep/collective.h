/* collective.h - collectives by name, for programs that list or measure them. */
#ifndef LOCKSTEP_COLLECTIVE_H
#define LOCKSTEP_COLLECTIVE_H

#include <lockstep/comm.h>

LK_BEGIN_DECLS

/* What a collective does. */
typedef struct lk_collective {
    size_t      size LK_ZERO;    /* sizeof this struct; set by LK_COLLECTIVE_INIT */
    const char *name LK_ZERO;    /* "all_reduce" */
    /* a sentence stating what N ranks with buffers of S bytes in shared memory must read and write; NULL: `lockstep
     * bench comm` does not measure this collective */
    const char *traffic LK_ZERO;
    int         root_sends LK_ZERO, root_receives LK_ZERO; /* 1: only the root does; 0: all ranks do */
    int         sends_parts LK_ZERO;                       /* 1: a part for each rank; 0: the same data to all */
    int         receives_parts LK_ZERO;                    /* 1: a part from each rank, in rank order; 0: one part */
    int         reduces LK_ZERO;                           /* 1: the data of all ranks is reduced to one part */
} lk_collective;
#define LK_COLLECTIVE_INIT {.size = sizeof(lk_collective)}

/* Returns the collective at `index` (from 0) among those that lk_comm_run can run; LK_END: there are no more. */
LK_API lk_status lk_collective_at(int index, lk_collective *collective);
/* Runs a collective by name, with the same effect as the function of that name. `op` and `root` are ignored by
 * collectives that do not take them. */
LK_API lk_status lk_comm_run_at(lk_site site, lk_comm *comm, const char *name, const void *send, void *recv,
                                size_t count, lk_dtype type, lk_reduce_op op, int root, lk_work **work);
#define lk_comm_run(...) lk_comm_run_at(LK_HERE, __VA_ARGS__)

/* The speed of a collective that the ranks' GPUs run without the host, as in a training step: its calls are queued and
 * recorded in a CUDA graph. Elements are f32, reductions are sums, and rank 0 is the root. */
typedef struct lk_collective_time {
    size_t  size LK_ZERO;      /* sizeof this struct; set by LK_COLLECTIVE_TIME_INIT */
    size_t  bytes LK_ZERO;     /* size of the larger buffer: what a gather receives or a scatter sends */
    int     symmetric LK_ZERO; /* 1: buffers in memory that all ranks map; 0: in each rank's own memory */
    int     in_place LK_ZERO;
    int     calls LK_ZERO;     /* result: number of calls in one graph */
    double  seconds LK_ZERO;   /* result: per call, the median over graphs */
    double  best LK_ZERO;      /* result: per call, in the fastest graph */
    int64_t wrong LK_ZERO;     /* result: number of elements that differ from lk_comm_run's results */
} lk_collective_time;
#define LK_COLLECTIVE_TIME_INIT {.size = sizeof(lk_collective_time)}

/* Collective, with the same arguments on all ranks. LK_EUNSUPPORTED: the group cannot queue calls on the context's
 * device. */
LK_API lk_status lk_comm_time_queued(lk_comm *comm, const char *name, lk_collective_time *time);

LK_END_DECLS
#endif
