/* pool.c - the thread pool. Workers spin briefly, then sleep on a condition variable: a step is a sequence of short
 * parallel sections, and waking a thread takes longer than most of them. */
#define _GNU_SOURCE
#include "base/pool.h"

#include "base/base.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SPINS = 20000 }; /* about 20 µs to 60 µs */

typedef struct worker {
    lk__pool *pool;
    pthread_t thread;
    int       index;
} worker;

struct lk__pool {
    lk_context *context;
    int         threads;
    int         spins;

    /* One section. Written by the caller before it increments `generation`; read by workers after they see the change. */
    lk__tile            function;
    void               *argument;
    int64_t             tiles;
    atomic_int_fast64_t next;
    atomic_int          busy;       /* workers that have not finished this generation */
    atomic_uint         generation; /* incremented for each section */
    atomic_bool         stop;

    pthread_mutex_t lock; /* guards sleeping; no other lock is taken while it is held */
    pthread_cond_t  wake;
    atomic_int      sleeping;
    worker          workers[];
};

static void run_tiles(lk__pool *p, int index)
{
    for (;;) {
        int64_t tile = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (tile >= p->tiles) return;
        p->function(p->argument, tile, index);
    }
}

/* Returns when the generation differs from `seen`. */
static unsigned wait_for_work(lk__pool *p, unsigned seen)
{
    for (int i = 0; i < p->spins; i++) {
        unsigned now = atomic_load_explicit(&p->generation, memory_order_acquire);
        if (now != seen) return now;
        lk__cpu_relax();
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->sleeping, 1);
    unsigned now;
    while ((now = atomic_load(&p->generation)) == seen) pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->sleeping, 1);
    pthread_mutex_unlock(&p->lock);
    return now;
}

static void *worker_main(void *argument)
{
    worker   *self = argument;
    lk__pool *p = self->pool;
    unsigned  seen = 0;
    for (;;) {
        seen = wait_for_work(p, seen);
        if (atomic_load(&p->stop)) return NULL;
        run_tiles(p, self->index);
        atomic_fetch_sub_explicit(&p->busy, 1, memory_order_release);
    }
}

static void wake_workers(lk__pool *p)
{
    atomic_fetch_add(&p->generation, 1);
    if (atomic_load(&p->sleeping) > 0) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
    }
}

void lk__pool_run(lk__pool *p, int64_t tiles, lk__tile function, void *argument)
{
    if (!p || p->threads == 1 || tiles <= 1) {
        for (int64_t tile = 0; tile < tiles; tile++) function(argument, tile, 0);
        return;
    }
    p->function = function;
    p->argument = argument;
    p->tiles = tiles;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store_explicit(&p->busy, p->threads - 1, memory_order_relaxed);
    wake_workers(p);
    run_tiles(p, 0);
    for (int spin = 0; atomic_load_explicit(&p->busy, memory_order_acquire) > 0; spin++) {
        if (spin < p->spins)
            lk__cpu_relax();
        else
            sched_yield(); /* more threads than cores: let the other thread run */
    }
}

lk_status lk__pool_create(lk_context *context, int threads, lk__pool **pool)
{
    size_t    bytes = sizeof(lk__pool) + (size_t)threads * sizeof(worker);
    lk__pool *p = lk__alloc(context, LK_MEMORY_OTHER, bytes);
    *pool = NULL;
    if (!p) return LK_ENOMEM;
    p->context = context;
    p->threads = 1;
    p->spins = threads <= lk_default_threads() ? SPINS : 100;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    for (int i = 1; i < threads; i++) {
        worker *w = &p->workers[i];
        *w = (worker){.pool = p, .index = i};
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0) {
            p->workers[0].index = threads; /* the number allocated, for lk__pool_free */
            lk__pool_free(p);
            return lk__fail(context, LK_ENOMEM, "cannot start thread %d of %d", i + 1, threads);
        }
        p->threads = i + 1;
    }
    p->workers[0].index = threads;
    *pool = p;
    return LK_OK;
}

void lk__pool_free(lk__pool *p)
{
    if (!p) return;
    atomic_store(&p->stop, true);
    wake_workers(p);
    for (int i = 1; i < p->threads; i++) pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    lk__free(p->context, LK_MEMORY_OTHER, p, sizeof *p + (size_t)p->workers[0].index * sizeof(worker));
}

int lk__pool_threads(const lk__pool *p) { return p->threads; }

/* Reads cgroup version 2, then version 1, at the usual mount points. */
int lk__cgroup_cores(int cores)
{
    long long quota = -1, period = 100000;
    char      text[32];
    FILE     *file = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (file) {
        if (fscanf(file, "%31s %lld", text, &period) == 2 && strcmp(text, "max") != 0) quota = atoll(text);
        fclose(file);
    } else if ((file = fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "re"))) {
        if (fscanf(file, "%lld", &quota) != 1) quota = -1;
        fclose(file);
        if ((file = fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "re"))) {
            if (fscanf(file, "%lld", &period) != 1) period = 100000;
            fclose(file);
        }
    }
    if (quota <= 0 || period <= 0) return cores;
    long long granted = (quota + period - 1) / period;
    return granted < cores ? (int)granted : cores;
}

int lk__cores(bool *own)
{
    cpu_set_t mine, parents;
    *own = false;
    if (sched_getaffinity(0, sizeof mine, &mine) != 0) return 1;
    *own = sched_getaffinity(getppid(), sizeof parents, &parents) == 0 && !CPU_EQUAL(&mine, &parents);
    return CPU_COUNT(&mine);
}

bool lk__threads_parse(const char *text, int *threads)
{
    char *end;
    long  value = strtol(text, &end, 10);
    *threads = value >= 1 && value <= LK__MAX_THREADS ? (int)value : 0;
    return *text >= '0' && *text <= '9' && !*end && *threads;
}

/* `lockstep run` sets LOCKSTEP_THREADS for each rank. Otherwise: the cores that this process may use, divided among the ranks of
 * the host unless their launcher has bound each of them to its own cores. */
int lk_default_threads(void)
{
    const char *value = getenv("LOCKSTEP_THREADS"), *local = getenv("LOCAL_WORLD_SIZE");
    int         threads = 0, ranks = local ? atoi(local) : 1;
    if (value && *value) {
        if (!lk__threads_parse(value, &threads)) return 0;
    } else {
        bool own;
        threads = lk__cgroup_cores(lk__cores(&own));
        if (ranks > 1 && !own) threads /= ranks;
    }
    if (threads < 1) threads = 1;
    return threads < LK__MAX_THREADS ? threads : LK__MAX_THREADS;
}
