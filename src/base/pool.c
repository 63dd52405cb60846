/* pool.c - the thread pool. Workers spin briefly, then sleep on a condition variable: a step is a sequence of short
 * parallel sections, and waking a thread takes longer than most of them. While threads of the loader compute samples, a
 * section has only as many workers as there are cores left, and the others sleep: one more worker would take a core
 * from the loader, or would delay the section. When the loader finishes in the middle of a section, the caller lets
 * them join it. */
#define _GNU_SOURCE
#include "base/pool.h"

#include "base/base.h"
#include "base/environment.h"
#include "base/limits.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SPINS = 20000, CROWDED_SPINS = 100 }; /* 0.2 ms to 0.3 ms on arm64; where there are more threads than cores */

typedef struct worker {
    lk__pool      *pool;
    pthread_t      thread;
    pthread_cond_t wake;
    atomic_bool    sleeping;
    int            index;
} worker;

struct lk__pool {
    lk_context *context;
    int         threads;
    int         cores; /* that this process may use */
    int         spins;
    const void *helpers_owner; /* who may help in the sections to come; NULL: nobody */
    int         helpers;
    int         part, parts; /* where sections begin */

    /* One section. Written by the caller before it changes `section`; read by workers that it admits. */
    lk__tile    function;
    void       *argument;
    int64_t     tiles, first; /* the first that is run; the one before it is the last */
    atomic_bool stop;
    /* Each in a cache line of its own: waiting workers read the last one all the time. */
    _Alignas(LK__ALIGN) atomic_int_fast64_t next;
    _Alignas(LK__ALIGN) atomic_int busy; /* admitted workers that have not finished, and helpers */
    /* whose helpers may join this section; NULL: nobody's, or there is none */
    _Alignas(LK__ALIGN) _Atomic(const void *) open;
    /* its number × ADMITTED + the threads that take part: those with a lower index */
    _Alignas(LK__ALIGN) atomic_ullong section;

    /* of the workers' condition variables; no other lock is taken while it is held */
    _Alignas(LK__ALIGN) pthread_mutex_t lock;
    atomic_int sleeping;      /* workers */
    worker     workers[];
};

enum { ADMITTED = 1 << 16 };
_Static_assert(LK__MAX_THREADS < ADMITTED, "a section's word");

/* The most threads that a section should have now. */
static int most_threads(const lk__pool *p)
{
    int reading = lk__context_reading(p->context), left = p->cores - reading;
    if (reading == 0) return LK__MAX_THREADS;
    return left > 1 ? left : 1;
}

static int wanted_threads(const lk__pool *p)
{
    int most = most_threads(p);
    return p->threads < most ? p->threads : most;
}

static bool run_tile(lk__pool *p, int index)
{
    int64_t tile = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
    if (tile >= p->tiles) return false;
    tile += p->first;
    p->function(p->argument, tile < p->tiles ? tile : tile - p->tiles, index);
    return true;
}

/* Whether the worker takes part in this section, and has not done so: a section that it is not admitted to may end
 * without it. */
static bool is_admitted(const worker *w, unsigned long long section, unsigned long long done)
{
    return section / ADMITTED != done && (unsigned long long)w->index < section % ADMITTED;
}

/* Returns the number of the section that it is admitted to, after section `done`. */
static unsigned long long wait_for_work(worker *w, unsigned long long done)
{
    lk__pool          *p = w->pool;
    unsigned long long now;
    for (int i = 0; i < p->spins; i++) {
        now = atomic_load_explicit(&p->section, memory_order_acquire);
        if (is_admitted(w, now, done)) return now / ADMITTED;
        if (i % 64 == 0 && w->index >= most_threads(p)) break;
        lk__cpu_relax();
    }
    pthread_mutex_lock(&p->lock);
    atomic_store(&w->sleeping, true);
    atomic_fetch_add(&p->sleeping, 1);
    while (!is_admitted(w, now = atomic_load(&p->section), done)) pthread_cond_wait(&w->wake, &p->lock);
    atomic_fetch_sub(&p->sleeping, 1);
    atomic_store(&w->sleeping, false);
    pthread_mutex_unlock(&p->lock);
    return now / ADMITTED;
}

static void *worker_main(void *argument)
{
    worker            *self = argument;
    lk__pool          *p = self->pool;
    unsigned long long done = 0;
    for (;;) {
        done = wait_for_work(self, done);
        if (atomic_load(&p->stop)) return NULL;
        while (run_tile(p, self->index)) {}
        atomic_fetch_sub_explicit(&p->busy, 1, memory_order_release);
    }
}

/* Lets the threads with indices from `first` to `end` (exclusive) take part in section `number`. */
static void admit_workers(lk__pool *p, unsigned long long number, int first, int end)
{
    atomic_fetch_add_explicit(&p->busy, end - first, memory_order_relaxed);
    atomic_store(&p->section, number * ADMITTED + (unsigned long long)end);
    if (end == first || atomic_load(&p->sleeping) == 0) return;
    pthread_mutex_lock(&p->lock);
    for (int i = first; i < end; i++)
        if (atomic_load(&p->workers[i].sleeping)) pthread_cond_signal(&p->workers[i].wake);
    pthread_mutex_unlock(&p->lock);
}

static void wait_for_workers(lk__pool *p, int spins)
{
    for (int spin = 0; atomic_load(&p->busy) > 0; spin++) { /* in one order with `open`: see lk__pool_help */
        if (spin < spins)
            lk__cpu_relax();
        else
            sched_yield(); /* more threads than cores: let the other thread run */
    }
}

static void run_section(lk__pool *p, int64_t tiles, lk__tile function, void *argument, const void *helpers)
{
    int64_t first = p ? tiles * p->part / p->parts : 0;
    if (!p || (p->threads == 1 && !helpers) || tiles <= 1) {
        for (int64_t tile = first; tile < tiles; tile++) function(argument, tile, 0);
        for (int64_t tile = 0; tile < first; tile++) function(argument, tile, 0);
        return;
    }
    p->first = first;
    p->function = function;
    p->argument = argument;
    p->tiles = tiles;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    unsigned long long number = atomic_load_explicit(&p->section, memory_order_relaxed) / ADMITTED + 1;
    int                admitted = wanted_threads(p);
    admit_workers(p, number, 1, admitted);
    if (helpers) atomic_store(&p->open, helpers);
    while (run_tile(p, 0)) {
        int wanted = admitted < p->threads ? wanted_threads(p) : admitted;
        if (wanted <= admitted || atomic_load_explicit(&p->next, memory_order_relaxed) >= tiles) continue;
        admit_workers(p, number, admitted, wanted);
        admitted = wanted;
    }
    if (helpers) atomic_store(&p->open, NULL);
    wait_for_workers(p, lk__context_reading(p->context) ? CROWDED_SPINS : p->spins);
}

void lk__pool_run(lk__pool *p, int64_t tiles, lk__tile function, void *argument)
{
    run_section(p, tiles, function, argument, p ? p->helpers_owner : NULL);
}

void lk__pool_run_own(lk__pool *p, int64_t tiles, lk__tile function, void *argument)
{
    run_section(p, tiles, function, argument, NULL);
}

void lk__pool_begin_at(lk__pool *p, int part, int parts)
{
    p->part = part;
    p->parts = parts;
}

void lk__pool_admit_helpers(lk__pool *p, const void *owner, int count)
{
    p->helpers_owner = count > 0 ? owner : NULL;
    p->helpers = owner ? count : 0;
}

/* The section may end between the two looks at `open`: either the caller then sees this helper in `busy` and waits for
 * it, or the helper sees that the section has ended. */
bool lk__pool_help(lk__pool *p, const void *owner, int worker)
{
    bool took = false;
    if (atomic_load_explicit(&p->open, memory_order_relaxed) != owner) return false;
    atomic_fetch_add(&p->busy, 1);
    if (atomic_load(&p->open) == owner)
        while (run_tile(p, worker)) took = true;
    atomic_fetch_sub_explicit(&p->busy, 1, memory_order_release);
    return took;
}

/* The cores that this process may use, divided among the ranks of the host unless their launcher has bound each of them
 * to its own. */
static int usable_cores(void)
{
    const char *local = lk__environment(NULL, LK__ENV_LOCAL_WORLD_SIZE);
    int         ranks = local ? atoi(local) : 1;
    bool        own;
    int         cores = lk__cgroup_cores(lk__cores(&own));
    if (ranks > 1 && !own) cores /= ranks;
    return cores > 1 ? cores : 1;
}

lk_status lk__pool_create(lk_context *context, int threads, lk__pool **pool)
{
    size_t    bytes = sizeof(lk__pool) + (size_t)threads * sizeof(worker);
    lk__pool *p = lk__alloc(context, LK_MEMORY_OTHER, bytes);
    *pool = NULL;
    if (!p) return LK_ENOMEM;
    p->context = context;
    p->threads = p->parts = 1;
    p->cores = usable_cores();
    p->spins = threads <= lk_default_threads() ? SPINS : CROWDED_SPINS;
    pthread_mutex_init(&p->lock, NULL);
    for (int i = 1; i < threads; i++) {
        worker *w = &p->workers[i];
        *w = (worker){.pool = p, .index = i};
        pthread_cond_init(&w->wake, NULL);
        int error = pthread_create(&w->thread, NULL, worker_main, w);
        if (error) {
            p->workers[0].index = threads; /* the number allocated, for lk__pool_free */
            lk__pool_free(p);
            return lk__fail(context, LK_ENOMEM, "cannot start thread %d of %d: %s", i + 1, threads, strerror(error));
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
    admit_workers(p, atomic_load(&p->section) / ADMITTED + 1, 1, p->threads);
    for (int i = 1; i < p->threads; i++) {
        pthread_join(p->workers[i].thread, NULL);
        pthread_cond_destroy(&p->workers[i].wake);
    }
    pthread_mutex_destroy(&p->lock);
    lk__free(p->context, LK_MEMORY_OTHER, p, sizeof *p + (size_t)p->workers[0].index * sizeof(worker));
}

int lk__pool_threads(const lk__pool *p) { return p->threads; }
int lk__pool_workers(const lk__pool *p) { return p ? p->threads + p->helpers : 1; }

int lk__cgroup_cores(int cores)
{
    double quota = lk__limits_cores("");
    return quota > 0 && quota < cores ? (int)ceil(quota) : cores;
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

/* `lockstep run` sets LOCKSTEP_THREADS for each rank. */
int lk_default_threads(void)
{
    const char *value = lk__environment_text(NULL, LK__ENV_LOCKSTEP_THREADS);
    int         threads = 0;
    if (!value)
        threads = usable_cores();
    else if (!lk__threads_parse(value, &threads))
        return 0;
    return threads < LK__MAX_THREADS ? threads : LK__MAX_THREADS;
}
