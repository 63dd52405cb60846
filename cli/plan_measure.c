/* plan_measure.c - `lockstep plan --measure`: some steps of one rank with the whole model, timed instruction by
 * instruction. Ranks of a host share its memory and its caches, so others run the same steps meanwhile, each in a
 * thread with its own context, as far as there are cores and memory for them. */
#define _GNU_SOURCE
#include "plan_measure.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

enum { WARM_UP = 4, STEPS = 12, MOST_OTHERS = 63 };

/* One rank: its program, and what it computes with. */
typedef struct worker {
    lk_context              *context;
    const lk_trainer_config *config;
    int64_t                  capacity;
    void                    *zeros; /* of a batch */
    lk_graph                *graph;
    lk_plan                 *plan;
    lk_store                *store;
    lk_program              *program;
    size_t                   memory[LK_MEMORY_COUNT];
} worker;

typedef struct other {
    worker       of;
    pthread_t    thread;
    atomic_int  *ready; /* how many have their program, or could not create it */
    atomic_bool *stop;
} other;

/* Bytes of one sample of the largest field of a batch, whose numbers have at most 8 bytes. */
static size_t largest_field(const lk_dataset *data)
{
    int64_t most = 1;
    for (int i = 0; i < lk_dataset_fields(data); i++)
        if (lk_field_elements(lk_dataset_field(data, i)) > most) most = lk_field_elements(lk_dataset_field(data, i));
    return (size_t)most * sizeof(double);
}

static lk_status open_worker(worker *w)
{
    if (!(w->zeros = calloc((size_t)w->capacity, largest_field(w->config->train)))) return LK_ENOMEM;
    lk_status status = lk_trainer_plan(w->context, w->config, &w->graph, &w->plan, w->memory);
    if (status >= 0) status = lk_store_create(w->plan, w->config->seed, &w->store);
    return status < 0 ? status : lk_program_create(w->plan, w->store, NULL, &w->program);
}

static void close_worker(worker *w)
{
    lk_program_free(w->program);
    lk_store_free(w->store);
    lk_plan_free(w->plan);
    lk_graph_free(w->graph);
    free(w->zeros);
}

static lk_status run_step(const worker *w, int64_t step)
{
    const lk_dataset *data = w->config->train;
    lk_step           block = {.step = step, .count = w->capacity, .rate = 1e-4};
    for (int k = 0; k < lk_dataset_fields(data); k++)
        lk_program_bind(w->program, lk_dataset_field(data, k)->name, w->zeros);
    return lk_program_train(w->program, &block);
}

/* ---- the others ---- */

static void *run_other(void *argument)
{
    other    *o = argument;
    lk_status status = open_worker(&o->of);
    atomic_fetch_add(o->ready, 1);
    for (int64_t step = 1; status >= 0 && !atomic_load(o->stop); step++) status = run_step(&o->of, step);
    close_worker(&o->of);
    return NULL;
}

/* How many compute beside the one that is measured. */
static int count_others(const setup *s, const worker *w)
{
    int       hosts = s->config.plan_hosts > 1 ? s->config.plan_hosts : 1;
    int       ranks = (s->config.plan_world + hosts - 1) / hosts, cores = 1, threads = lk_context_threads(s->context);
    cpu_set_t set;
    size_t    bytes = 0;
    if (!lk_context_on_host(s->context)) return 0;
    if (sched_getaffinity(0, sizeof set, &set) == 0) cores = CPU_COUNT(&set);
    for (int kind = 0; kind < LK_MEMORY_COUNT; kind++) bytes += w->memory[kind];
    int others = (ranks < cores / threads ? ranks : cores / threads) - 1;
    if (others > MOST_OTHERS) others = MOST_OTHERS;
    while (others > 0 && lk_context_check_memory(s->context, NULL, (size_t)others * bytes) < 0) others--;
    return others > 0 ? others : 0;
}

/* Starts as many as it can; returns how many. */
static int start_others(const setup *s, const worker *like, other *all, int count)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    int               started = 0;
    config.threads = lk_context_threads(s->context);
    config.device = lk_context_device(s->context);
    for (; started < count; started++) {
        other *o = &all[started];
        o->of = (worker){.config = like->config, .capacity = like->capacity};
        if (lk_context_create(&config, &o->of.context) < 0) break;
        if (pthread_create(&o->thread, NULL, run_other, o) == 0) continue;
        lk_context_free(o->of.context);
        break;
    }
    return started;
}

static void end_others(other *all, int count)
{
    for (int i = 0; i < count; i++) {
        pthread_join(all[i].thread, NULL);
        lk_context_free(all[i].of.context);
    }
}

/* ---- the one that is measured ---- */

static lk_status profile_steps(const worker *w)
{
    lk_status status = LK_OK;
    for (int64_t i = 0; i < STEPS && status >= 0; i++) {
        if (i == WARM_UP) lk_program_profile(w->program, true);
        status = run_step(w, i + 1);
    }
    return status;
}

static lk_status profile_beside(const setup *s, const worker *w)
{
    int         count = count_others(s, w);
    other      *all = calloc((size_t)count + 1, sizeof *all);
    atomic_int  ready = 0;
    atomic_bool stop = false;
    if (!all) return LK_ENOMEM;
    for (int i = 0; i < count; i++) all[i].ready = &ready, all[i].stop = &stop;
    count = start_others(s, w, all, count);
    while (atomic_load(&ready) < count) usleep(1000);
    lk_status status = profile_steps(w);
    atomic_store(&stop, true);
    end_others(all, count);
    free(all);
    return status;
}

lk_status plan_measure(const setup *s, lk_plan *plan)
{
    lk_trainer_config config = s->config;
    worker            alone = {.context = s->context, .config = &config, .capacity = lk_plan_capacity(plan)};
    double           *seconds = NULL;
    config.batch = alone.capacity;
    config.plan_world = config.plan_hosts = config.accumulate = config.leaves = 0;
    config.mesh = NULL;
    config.stages = config.tactics = NULL;
    lk_status status = open_worker(&alone);
    if (status >= 0) status = profile_beside(s, &alone);
    size_t count = status >= 0 ? lk_plan_instructions(alone.plan) : 0;
    if (status >= 0 && !(seconds = calloc(count + 1, sizeof *seconds))) status = LK_ENOMEM;
    if (status >= 0) lk_program_profile_seconds(alone.program, seconds, count);
    if (status >= 0) status = lk_plan_calibrate(plan, alone.plan, seconds, count);
    free(seconds);
    close_worker(&alone);
    return status;
}
