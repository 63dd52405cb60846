/* parallel.h - shared by tests of data-parallel training: a job, which lk_spawn's ranks train on batches that every
 * rank can generate, and the report that its ranks write to shared memory. */
#ifndef PARALLEL_H
#define PARALLEL_H

#include "base/environment.h"
#include "plan/plan.h"
#include "training_batch.h"

#include <lockstep/comm.h>
#include <sys/mman.h>

enum { MOST_STEPS = 50, MOST_RANKS = 8 };

typedef struct report {
    double   losses[MOST_STEPS];
    uint64_t hashes[MOST_RANKS];
    double   gradient[1 << 22]; /* of the first step: all parameters, one after the other */
    int64_t  elements;
} report;

typedef struct job {
    const char       *model, *backend; /* backend: NULL chooses */
    lk_dtype          real;
    int               side, steps;
    int               batch; /* capacity of the global batch */
    int               odd;   /* above 0: every third step has so many samples instead */
    int               world, micro_batches, leaves, threads;
    int               each; /* above 0: so many ranks on each of several simulated hosts, over the backend mixed */
    bool              one_by_one;          /* leaves of a rank do not run as one batch */
    bool              layout;              /* the same bits in every layout: lk_parallel.reproducible_layout */
    bool              sync, plain_weights; /* plain_weights: the store's own, from a seed */
    size_t            bucket_bytes;
    lk_optimizer_kind optimizer;
    lk_state_mode     state;
    bool              keep_cores;
    double            clip;
    lk_policy         policy;
    lk_dtype          gradient_dtype;
    const char       *mesh;           /* NULL: data */
    int               stage;          /* of slices along shard */
    void (*use_group)(lk_comm *comm); /* before anything is done with it; NULL: nothing */
    report *out;
} job;

SHARED report *new_report(void)
{
    report *r = mmap(NULL, sizeof *r, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(r != MAP_FAILED);
    return r;
}

SHARED void free_report(report *r) { munmap(r, sizeof *r); }

/* Rows of a batch of `total` that rank `rank` has. */
SHARED int64_t first_row(const job *j, int64_t total, int rank)
{
    if (!j->leaves) return total * rank / j->world;
    return total * (j->leaves * rank / j->world) / j->leaves;
}

SHARED int64_t total_of(const job *j, int step) { return j->odd && step % 3 == 0 ? j->odd : j->batch; }

SHARED lk_comm *join_group(lk_context *context, const char *backend)
{
    lk_comm       *comm;
    lk_comm_config config = LK_COMM_CONFIG_INIT;
    config.join_ms = 60000; /* the machine may be busy */
    config.timeout_ms = 120000;
    config.backend = backend;
    REQUIRE(lk_comm_create(context, &config, &comm) == LK_OK, "%s", lk_context_error(context));
    return comm;
}

/* The same on a simulated host. */
SHARED lk_comm *join_hosts(lk_context *context, int host)
{
    char name[32];
    snprintf(name, sizeof name, "host-%d", host);
    setenv("LOCKSTEP_HOST_ID", name, 1);
    lk__context_read_environment(context);
    return join_group(context, "mixed");
}

typedef struct rank_program {
    rig      rig;
    lk_comm *comm; /* NULL: one rank */
    void    *images;
    int32_t *labels;
} rank_program;

SHARED rank_program enrol_rank(const job *j, int rank)
{
    rank_program p = {.rig = rig_open(j->real, j->threads ? j->threads : 1)};
    if (j->world > 1)
        p.comm = j->each ? join_hosts(p.rig.context, rank / j->each) : join_group(p.rig.context, j->backend);
    if (j->use_group) j->use_group(p.comm);
    lk_parallel    parallel = {.world = j->world,
                               .rank = rank,
                               .micro_batches = j->micro_batches,
                               .leaves = j->leaves,
                               .reproducible_layout = j->layout,
                               .bucket_bytes = j->bucket_bytes,
                               .state = j->state,
                               .hosts = j->each ? lk_comm_hosts(p.comm) : 0,
                               .keep_cores = j->keep_cores,
                               .shard_stage = j->stage};
    lk_mesh       *mesh = NULL;
    lk_mesh_config grid = {.size = sizeof grid, .axes = j->mesh, .world = j->world, .rank = rank};
    REQUIRE(!j->mesh || lk_mesh_create(p.rig.context, &grid, &mesh) == LK_OK, "%s", lk_context_error(p.rig.context));
    int64_t             capacity = lk_mesh_capacity(mesh, &parallel, j->batch);
    lk_tensor           x = lk_input(p.rig.graph, "x", j->real, 4, ((int64_t[]){capacity, 3, j->side, j->side}));
    lk_tensor           y = lk_input(p.rig.graph, "y", LK_I32, 1, ((int64_t[]){capacity}));
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    lk_tensor           logits = lk_model_find(j->model)(x, (lk_model_options){0});
    optimizer.kind = j->optimizer;
    optimizer.clip = j->clip;
    config.policy = j->policy;
    config.gradient_dtype = j->gradient_dtype;
    config.loss = lk_cross_entropy(logits, y);
    config.optimizer = &optimizer;
    config.sync_batch_norm = j->sync;
    config.parallel = parallel;
    config.mesh = mesh;
    REQUIRE(lk__plan_create(p.rig.graph, &config, j->one_by_one, &p.rig.plan) == LK_OK, "%s",
            lk_context_error(p.rig.context));
    bool shared = lk_plan_state(p.rig.plan) == LK_STATE_SHARED || p.rig.plan->splits;
    lk_mesh_free(mesh);
    REQUIRE((shared ? lk_store_create_shared(p.rig.plan, 1, p.comm, &p.rig.store)
                    : lk_store_create(p.rig.plan, 1, &p.rig.store)) == LK_OK,
            "%s", lk_context_error(p.rig.context));
    if (!j->plain_weights) initialise(p.rig.store);
    REQUIRE(lk_program_create(p.rig.plan, p.rig.store, p.comm, &p.rig.program) == LK_OK, "rank %d: %s", rank,
            lk_context_error(p.rig.context));
    p.images = malloc((size_t)(j->batch * 3 * j->side * j->side) * lk_dtype_size(j->real));
    p.labels = malloc((size_t)j->batch * sizeof *p.labels);
    REQUIRE(p.images && p.labels && lk_program_bind(p.rig.program, "x", p.images) == LK_OK &&
            lk_program_bind(p.rig.program, "y", p.labels) == LK_OK);
    return p;
}

SHARED void dismiss_rank(rank_program *p)
{
    lk_program_free(p->rig.program);
    lk_store_free(p->rig.store);
    lk_plan_free(p->rig.plan);
    lk_graph_free(p->rig.graph);
    lk_comm_free(p->comm);
    lk_context_free(p->rig.context);
    free(p->images);
    free(p->labels);
}

/* The plan states what a rank's program takes, to the byte. */
SHARED void check_planned_memory(const rank_program *p, const job *j)
{
    for (int kind = 0; kind < LK_MEMORY_COUNT; kind++) {
        size_t planned = lk_plan_memory(p->rig.plan, (lk_memory)kind);
        size_t used = lk_context_memory(p->rig.context, (lk_memory)kind);
        CHECK(kind == LK_MEMORY_OTHER || planned == used, "%s stage %d: %s: %zu bytes are planned, %zu used",
              j->mesh ? j->mesh : "data", j->stage, lk_memory_name((lk_memory)kind), planned, used);
    }
}

SHARED double train_rank(rank_program *p, const job *j, int rank, int step)
{
    int64_t total = total_of(j, step), first = first_row(j, total, rank), count = first_row(j, total, rank + 1) - first;
    fill_rows(p->images, j->real, p->labels, j->side, first, count, step);
    lk_step s = {.step = step, .count = count, .total = total, .rate = 1e-3};
    REQUIRE(lk_program_train(p->rig.program, &s) == LK_OK, "rank %d, step %d: %s", rank, step,
            lk_context_error(p->rig.context));
    return rig_metrics(&p->rig).loss;
}

/* The mean gradient of all parameters. */
SHARED void keep_gradient(const rank_program *p, const job *j, int64_t total, report *out)
{
    int64_t at = 0;
    for (size_t i = 0; i < lk_store_count(p->rig.store); i++) {
        lk_state    s = lk_store_at(p->rig.store, i);
        const void *gradient = s.buffer ? NULL : gradient_copy(p->rig.program, p->rig.store, s.name);
        for (int64_t k = 0; gradient && k < state_elements(&s); k++, at++) {
            REQUIRE(at < (int64_t)(sizeof out->gradient / sizeof *out->gradient));
            out->gradient[at] = real_at(gradient, j->real, k) / (double)total;
        }
    }
    out->elements = at;
}

SHARED int train_as(int rank, void *user)
{
    const job *j = user;
    check_failures = 0; /* failures of the parent do not count here */
    rank_program p = enrol_rank(j, rank);
    for (int step = 1; step <= j->steps; step++) {
        double loss = train_rank(&p, j, rank, step);
        if (rank == 0) j->out->losses[step - 1] = loss;
        if (rank == 0 && step == 1 && j->state != LK_STATE_SHARED && !j->mesh)
            keep_gradient(&p, j, total_of(j, 1), j->out);
    }
    j->out->hashes[rank] = lk_store_hash(p.rig.store);
    dismiss_rank(&p);
    return check_result();
}

SHARED void run_job(job *j)
{
    lk_spawn_result result;
    check_ranks_announced(j->world);
    lk_status status = lk_spawn(j->world, train_as, j, &result);
    CHECK(status == LK_OK, "%s at %d ranks: %s", j->model, j->world, result.text);
}

/* The largest relative difference of two runs' losses. */
SHARED double losses_apart(const report *a, const report *b, int steps)
{
    double worst = 0;
    for (int i = 0; i < steps; i++) {
        double off = fabs(a->losses[i] - b->losses[i]) / fabs(b->losses[i]);
        if (isnan(off) || off > worst) worst = isnan(off) ? INFINITY : off;
    }
    return worst;
}

/* ‖a - b‖ / ‖b‖ of the first gradients. */
SHARED double gradients_apart(const report *a, const report *b)
{
    double off = 0, all = 0;
    if (a->elements != b->elements || a->elements == 0) return INFINITY;
    for (int64_t i = 0; i < b->elements; i++) {
        off += pow(a->gradient[i] - b->gradient[i], 2);
        all += pow(b->gradient[i], 2);
    }
    return isnan(off) ? INFINITY : sqrt(off / all);
}

#endif
