/* queued_training.h - trainings of a small model over one exchange of gradients and another, whose bits are compared:
 * what test_queued.c and test_p2p_training.c have in common. */
#ifndef QUEUED_TRAINING_H
#define QUEUED_TRAINING_H

#include "parallel.h"

#include <string.h>

static inline job make_job(const char *backend, int steps, int world)
{
    return (job){.model = "mlp",
                 .backend = backend,
                 .real = LK_F32,
                 .side = 8,
                 .steps = steps,
                 .batch = 12,
                 .odd = 5,
                 .world = world,
                 .micro_batches = 1,
                 .bucket_bytes = 8192,
                 .optimizer = LK_ADAM};
}

/* Of the given steps; ranks along tensor, where there is one, have the same samples. */
static inline lk_step make_step(rank_program *p, const job *j, int rank, int step)
{
    int together = j->mesh && strstr(j->mesh, "tensor=2") ? 2 : 1, parts = j->world / together, part = rank / together;
    int64_t total = total_of(j, step), first = total * part / parts, count = total * (part + 1) / parts - first;
    fill_rows(p->images, j->real, p->labels, j->side, first, count, step);
    return (lk_step){.step = step, .count = count, .total = total, .rate = 1e-3};
}

static inline double train_step(rank_program *p, const job *j, int rank, int step)
{
    lk_step s = make_step(p, j, rank, step);
    REQUIRE(lk_program_train(p->rig.program, &s) == LK_OK, "rank %d, step %d: %s", rank, step,
            lk_context_error(p->rig.context));
    return rig_metrics(&p->rig).loss;
}

/* All steps, and what a report has of them. */
static inline void train_steps(rank_program *p, const job *j, int rank)
{
    for (int step = 1; step <= j->steps; step++) {
        double loss = train_step(p, j, rank, step);
        if (rank == 0) j->out->losses[step - 1] = loss;
    }
    j->out->hashes[rank] = lk_store_hash(p->rig.store);
}

static inline void compare_reports(const job *j, const report *x, const report *y)
{
    for (int i = 0; i < j->steps; i++)
        CHECK(x->losses[i] == y->losses[i] && x->losses[i] > 0, "step %d: %.17g, %.17g", i + 1, x->losses[i],
              y->losses[i]);
    for (int i = 0; i < j->world; i++) CHECK(x->hashes[i] == y->hashes[i] && x->hashes[i] != 0, "rank %d", i);
}

/* Calls compare(job) for the kinds of steps that every queued exchange has. */
static inline void compare_plain_steps(void (*compare)(job), const char *backend, int steps)
{
    compare(make_job(backend, steps, 2));
    compare(make_job(backend, steps, 3));
}

static inline void compare_narrow_gradients(void (*compare)(job), const char *backend, int steps)
{
    job j = make_job(backend, steps, 2);
    j.micro_batches = 3;
    j.clip = 0.5;
    j.gradient_dtype = LK_BF16;
    compare(j);
}

static inline void compare_along_tensor(void (*compare)(job), const char *backend, int steps)
{
    job j = make_job(backend, steps, 4);
    j.mesh = "data=2,tensor=2";
    compare(j);
}

/* Ranks that have slices of the state, in all stages; clipped, in micro-batches, and beside replicas of the slices. */
static inline void compare_slices(void (*compare)(job), const char *backend, int steps)
{
    for (int stage = 1; stage <= 3; stage++) {
        job j = make_job(backend, steps, 3);
        j.mesh = "shard=3";
        j.stage = stage;
        compare(j);
        j = make_job(backend, steps, 4);
        j.mesh = "data=2,shard=2";
        j.stage = stage;
        j.clip = 0.5;
        j.micro_batches = 2;
        compare(j);
    }
    job j = make_job(backend, steps, 2);
    j.mesh = "shard=2";
    j.stage = 2;
    j.policy = LK_POLICY_BF16;
    j.gradient_dtype = LK_BF16;
    j.micro_batches = 2;
    compare(j);
    j = make_job(backend, steps, 4);
    j.mesh = "shard=2,tensor=2";
    j.stage = 3;
    compare(j);
    j = make_job(backend, 2, 2); /* several units: gathers in backward, beside reduce_scatters */
    j.model = "resnet20";
    j.batch = 4;
    j.odd = 3;
    j.mesh = "shard=2";
    j.stage = 3;
    compare(j);
}

#endif
