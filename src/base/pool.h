/* base/pool.h - the thread pool: runs numbered tiles. Tiles depend on shapes alone, so the number of threads changes no
 * bits. */
#ifndef LK__POOL_H
#define LK__POOL_H

#include <lockstep/context.h>

typedef struct lk__pool lk__pool; /* used by one thread at a time, the one that calls lk__pool_run */

/* worker is 0 … lk__pool_workers-1, unique among the tiles that run concurrently: it selects scratch memory and must
 * not affect results. */
typedef void (*lk__tile)(void *argument, int64_t tile, int worker);

lk_status lk__pool_create(lk_context *context, int threads, lk__pool **pool);
void      lk__pool_free(lk__pool *pool);
int       lk__pool_threads(const lk__pool *pool);
int       lk__pool_workers(const lk__pool *pool); /* its threads, and the helpers that it has now; NULL: 1 */

/* Runs tile 0 … tiles-1, each once, in any order, and returns when all are done. Allocates nothing. pool NULL: on the
 * calling thread. */
void lk__pool_run(lk__pool *pool, int64_t tiles, lk__tile function, void *argument);
/* The same without helpers. */
void lk__pool_run_own(lk__pool *pool, int64_t tiles, lk__tile function, void *argument);

/* From now on sections begin at tile tiles * part / parts, and continue with tile 0 after the last: so that processes
 * which run the same section at once, on memory that they share, do not all read the same part of it first. 0 of 1:
 * with tile 0. */
void lk__pool_begin_at(lk__pool *pool, int part, int parts);

/* Helpers: up to `count` threads of others, which may take tiles of the sections that lk__pool_run begins from now on.
 * owner: any address that only they use; NULL: no helpers. Called by the thread that calls lk__pool_run. */
void lk__pool_admit_helpers(lk__pool *pool, const void *owner, int count);
/* On a helper's thread, one of `owner`: takes tiles of the section that is running, until none is left; worker:
 * lk__pool_threads + 0 … count-1. Returns whether it took one. */
bool lk__pool_help(lk__pool *pool, const void *owner, int worker);

/* In a loop that waits for another thread or for a device. */
static inline void lk__cpu_relax(void)
{
#if defined(__x86_64__) && !defined(__CUDACC__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* about 10 ns; `yield` takes no time */
#endif
}

#endif
