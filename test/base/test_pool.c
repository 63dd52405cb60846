/* test_pool.c - sections of the thread pool: every tile runs once, while the number of loader threads changes at any
 * time; a section leaves cores to them, and takes them when they are free. Helpers take tiles of their owner's
 * sections, and of no others.
 *
 * ctest: label threaded */
#include "check.h"

#include "base/base.h"
#include "base/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { TILES = 1000, THREADS = 8, MANY = 1000 }; /* MANY: more than any machine has cores */

static lk_context *context;

static void sleep_ms(long ms) { nanosleep(&(struct timespec){0, ms * 1000000L}, NULL); }

typedef struct section {
    atomic_int  runs[TILES];
    atomic_bool in_use[THREADS]; /* by worker */
    atomic_int  tiles_of[THREADS];
    atomic_int  shared; /* times that a worker's number was in use already */
} section;

static void count_tile(void *argument, int64_t tile, int worker)
{
    section *s = argument;
    if (atomic_exchange(&s->in_use[worker], true)) atomic_fetch_add(&s->shared, 1);
    atomic_fetch_add(&s->runs[tile], 1);
    atomic_fetch_add(&s->tiles_of[worker], 1);
    atomic_store(&s->in_use[worker], false);
}

/* ---- loader threads that begin and end at any time ---- */

static atomic_bool stop;

static void *change_reading(void *unused)
{
    for (unsigned i = 1; !atomic_load(&stop); i = i * 1103515245u + 12345u) {
        int readers = (int)(i >> 16) % 4;
        lk__context_add_reading(context, readers);
        if (i >> 30 == 0) sleep_ms(1);
        lk__context_add_reading(context, -readers);
        if (i >> 30 == 1) sleep_ms(1);
    }
    return unused;
}

static void every_tile_runs_once_whatever_the_loader_does(void)
{
    static const int     threads[] = {1, 2, 3, 5, THREADS};
    static const int64_t tiles[] = {0, 1, 2, 3, 7, 64, TILES};
    static section       s;
    pthread_t            loader;
    REQUIRE(pthread_create(&loader, NULL, change_reading, NULL) == 0);
    for (int t = 0; t < 5; t++) {
        lk__pool *pool;
        REQUIRE(lk__pool_create(context, threads[t], &pool) == LK_OK);
        for (int i = 0; i < (SANITIZED ? 300 : 2000); i++) {
            int64_t n = tiles[i % 7];
            memset(&s, 0, sizeof s);
            lk__pool_run(pool, n, count_tile, &s);
            for (int64_t k = 0; k < TILES; k++)
                CHECK(atomic_load(&s.runs[k]) == (k < n), "%d threads, tile %lld of %lld", threads[t], (long long)k,
                      (long long)n);
            CHECK(atomic_load(&s.shared) == 0);
            if (i % 100 == 0) sleep_ms(2); /* workers are asleep */
        }
        lk__pool_free(pool);
    }
    atomic_store(&stop, true);
    pthread_join(loader, NULL);
}

/* ---- cores ---- */

static void a_section_leaves_cores_to_the_loader(void)
{
    static section s;
    lk__pool      *pool;
    REQUIRE(lk__pool_create(context, 4, &pool) == LK_OK);
    lk__context_add_reading(context, MANY);
    lk__pool_run(pool, TILES, count_tile, &s);
    CHECK(atomic_load(&s.tiles_of[0]) == TILES);
    lk__context_add_reading(context, -MANY);
    lk__pool_free(pool);
}

typedef struct joined {
    atomic_int others;
} joined;

/* After tile 0 no loader thread is left; the caller then stays in one tile until another thread has run one. */
static void wait_for_others(void *argument, int64_t tile, int worker)
{
    joined *j = argument;
    if (tile == 0) lk__context_add_reading(context, -MANY);
    if (worker != 0) atomic_fetch_add(&j->others, 1);
    for (int i = 0; tile > 0 && worker == 0 && i < 10000 && atomic_load(&j->others) == 0; i++) sleep_ms(1);
}

static void threads_join_a_section_when_the_loader_is_done(void)
{
    for (int threads = 2; threads <= 4; threads++) {
        joined    j = {0};
        lk__pool *pool;
        REQUIRE(lk__pool_create(context, threads, &pool) == LK_OK);
        lk__context_add_reading(context, MANY);
        sleep_ms(2);
        lk__pool_run(pool, 20, wait_for_others, &j);
        CHECK(atomic_load(&j.others) > 0, "%d threads", threads);
        lk__pool_free(pool);
    }
}

/* ---- where sections begin ---- */

typedef struct order {
    int     count;
    int64_t tiles[TILES];
} order;

static void keep_order(void *argument, int64_t tile, int worker)
{
    order *o = argument;
    (void)worker;
    o->tiles[o->count++] = tile;
}

static void a_section_begins_at_its_part(void)
{
    static order   o;
    static section s;
    lk__pool      *pool;
    for (int threads = 1; threads <= 2; threads++) {
        REQUIRE(lk__pool_create(context, threads, &pool) == LK_OK);
        for (int64_t n = 0; n < 40; n++)
            for (int part = 0; part < 5; part++) {
                lk__pool_begin_at(pool, part, 5);
                memset(&s, 0, sizeof s);
                lk__pool_run(pool, n, count_tile, &s);
                for (int64_t k = 0; k < TILES; k++) CHECK(atomic_load(&s.runs[k]) == (k < n));
                if (threads > 1) continue;
                o.count = 0;
                lk__pool_run(pool, n, keep_order, &o);
                for (int64_t k = 0; k < n; k++) CHECK(o.tiles[k] == (k + n * part / 5) % n);
            }
        lk__pool_free(pool);
    }
}

/* ---- helpers ---- */

typedef struct helper {
    lk__pool   *pool;
    const void *owner;
    int         worker;
    int64_t     sections; /* in which it took a tile */
} helper;

static void *help_until_stopped(void *argument)
{
    helper *h = argument;
    while (!atomic_load(&stop)) h->sections += lk__pool_help(h->pool, h->owner, h->worker);
    return NULL;
}

/* Sections of the owner and others in turn, back to back, so that helpers come at any time, also when one has just
 * ended. */
static void check_helpers(int threads)
{
    static section s;
    static int     owner, other;
    enum { HELPERS = 3 };
    helper    helpers[HELPERS];
    pthread_t ids[HELPERS];
    lk__pool *pool;
    int64_t   helped = 0;
    REQUIRE(lk__pool_create(context, threads, &pool) == LK_OK);
    atomic_store(&stop, false);
    for (int i = 0; i < HELPERS; i++) {
        helpers[i] = (helper){.pool = pool, .owner = &owner, .worker = threads + i};
        REQUIRE(pthread_create(&ids[i], NULL, help_until_stopped, &helpers[i]) == 0);
    }
    double end = lk__now() + 60; /* on a busy machine helpers may not run for thousands of sections */
    for (int i = 0; i < (SANITIZED ? 600 : 6000) || (helped == 0 && lk__now() < end); i++) {
        int64_t n = 1 + i * 7 % TILES;
        memset(&s, 0, sizeof s);
        lk__pool_begin_at(pool, i % 4, 4);
        lk__pool_admit_helpers(pool, i % 3 == 0 ? &owner : i % 3 == 1 ? &other : NULL, HELPERS);
        CHECK(lk__pool_workers(pool) == threads + (i % 3 < 2 ? HELPERS : 0) && lk__pool_threads(pool) == threads);
        if (i % 6 == 3)
            lk__pool_run_own(pool, n, count_tile, &s);
        else
            lk__pool_run(pool, n, count_tile, &s);
        int64_t by_helpers = 0, runs = 0;
        for (int64_t k = 0; k < TILES; k++) runs += atomic_load(&s.runs[k]) == (k < n);
        for (int k = 0; k < HELPERS; k++) by_helpers += atomic_load(&s.tiles_of[threads + k]);
        CHECK(runs == TILES && atomic_load(&s.shared) == 0, "section %d", i);
        CHECK(i % 6 == 0 || by_helpers == 0, "section %d: %lld tiles by helpers of another owner", i,
              (long long)by_helpers);
        helped += by_helpers;
    }
    atomic_store(&stop, true);
    for (int i = 0; i < HELPERS; i++) pthread_join(ids[i], NULL);
    CHECK(helped > 0 && helpers[0].sections + helpers[1].sections + helpers[2].sections > 0);
    lk__pool_free(pool);
}

static void helpers_take_tiles_of_their_owner(void)
{
    for (int threads = 1; threads <= 3; threads += 2) check_helpers(threads);
}

int main(void)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    config.threads = 1;
    REQUIRE(lk_context_create(&config, &context) == LK_OK);
    RUN(every_tile_runs_once_whatever_the_loader_does);
    RUN(a_section_leaves_cores_to_the_loader);
    RUN(threads_join_a_section_when_the_loader_is_done);
    RUN(a_section_begins_at_its_part);
    RUN(helpers_take_tiles_of_their_owner);
    lk_context_free(context);
    return check_result();
}
