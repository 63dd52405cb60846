/* test_shard.c - ranks along the shard axis, which have slices of the state: with any stage, number of ranks and
 * transport they train as one rank does, with the same bits as data parallel ranks where sums have the same order, and
 * with the memory that the plan says.
 *
 * ctest: timeout 600, ranks 4 */
#include "gpu_cases.h"
#include "parallel.h"

#include "comm/comm.h"
#include "run/collective.h"

enum { STEPS = SANITIZED ? 2 : 5 };

static job job_of(const char *mesh, int world, int stage)
{
    return (job){.model = "cnn",
                 .real = LK_F64,
                 .side = runs_on_gpu() ? 8 : 16,
                 .steps = runs_on_gpu() ? 3 : STEPS,
                 .batch = runs_on_gpu() ? 12 : 24,
                 .world = world,
                 .mesh = mesh,
                 .stage = stage,
                 .state = LK_STATE_REPLICATED,
                 .optimizer = LK_ADAM};
}

static report *run_of(job *j)
{
    j->out = new_report();
    run_job(j);
    for (int i = 1; i < j->world; i++)
        CHECK(j->out->hashes[i] == j->out->hashes[0], "%s stage %d: rank %d's weights are not rank 0's", j->mesh,
              j->stage, i);
    return j->out;
}

static void compare(job j, const report *whole, const char *what)
{
    report *r = run_of(&j);
    double  off = losses_apart(r, whole, j.steps);
    CHECK(off <= 1e-12, "%s stage %d, %s: losses differ by %g", j.mesh, j.stage, what, off);
    free_report(r);
}

static const char *const meshes[] = {"", "", "shard=2", "shard=3", "shard=4"};

static void every_stage_and_number_of_ranks_trains_like_one_rank_f64(void)
{
    job     one = job_of(NULL, 1, 0);
    report *whole = run_of(&one);
    for (int stage = 1; stage <= 3; stage++)
        for (int world = 2; world <= 4; world++)
            if (!gpu_leaves_out(stage, world, 3)) compare(job_of(meshes[world], world, stage), whole, "shm");
    for (int stage = 1; stage <= 3; stage++) {
        if (gpu_leaves_out(stage, 0, 3)) continue;
        job j = job_of("shard=3", 3, stage);
        j.backend = "tcp";
        compare(j, whole, "tcp");
        j.bucket_bytes = 4096;
        compare(j, whole, "tcp, small units");
    }
    free_report(whole);
}

static void replicas_of_slices_train_like_one_rank_f64(void)
{
    job     one = job_of(NULL, 1, 0);
    report *whole = run_of(&one);
    for (int stage = 1; stage <= 3; stage++) {
        if (!gpu_leaves_out(stage, 0, 3)) compare(job_of("data=2,shard=2", 4, stage), whole, "shm");
        if (!gpu_leaves_out(stage, 1, 3)) compare(job_of("shard=2,data=2", 4, stage), whole, "shm");
    }
    free_report(whole);
}

static void micro_batches_clipping_and_uneven_batches_train_like_one_rank_f64(void)
{
    job one = job_of(NULL, 1, 0);
    one.clip = 0.1;
    one.odd = 2;
    report *whole = run_of(&one);
    for (int stage = 1; stage <= 3; stage++)
        for (int micro = 1; micro <= 3; micro++) {
            if (gpu_leaves_out(stage, micro, 3)) continue;
            job j = job_of("shard=3", 3, stage);
            j.clip = one.clip;
            j.odd = one.odd;
            j.micro_batches = micro;
            compare(j, whole, "clipped, in micro-batches");
        }
    free_report(whole);
}

/* One reduce_scatter adds what an all_reduce adds, in the same order. */
static void slices_have_the_bits_of_data_parallel(void)
{
    for (int world = 2; world <= 4; world++)
        for (int stage = 1; stage <= 3; stage++) {
            if (gpu_leaves_out(stage, world, 3)) continue;
            job data = job_of(NULL, world, 0), shard = job_of(meshes[world], world, stage);
            data.real = shard.real = LK_F32;
            report *a = run_of(&data), *b = run_of(&shard);
            CHECK(a->hashes[0] == b->hashes[0] && memcmp(a->losses, b->losses, sizeof(double) * STEPS) == 0,
                  "%d ranks, stage %d: other bits than data parallel", world, stage);
            free_report(a);
            free_report(b);
        }
}

static void bf16_has_the_bits_of_data_parallel(void)
{
    for (int stage = 1; stage <= 3; stage++) {
        if (gpu_leaves_out(stage, 0, 3)) continue;
        job data = job_of(NULL, 2, 0), shard = job_of("shard=2", 2, stage);
        data.real = shard.real = LK_F32;
        data.policy = shard.policy = LK_POLICY_BF16;
        data.gradient_dtype = shard.gradient_dtype = LK_BF16;
        report *a = run_of(&data), *b = run_of(&shard);
        CHECK(a->hashes[0] == b->hashes[0], "bf16, stage %d: other bits than data parallel", stage);
        free_report(a);
        free_report(b);
    }
}

/* ---- memory ---- */

static const lk_memory kinds_of_state[] = {LK_MEMORY_PARAMETERS, LK_MEMORY_MASTER, LK_MEMORY_OPTIMIZER,
                                           LK_MEMORY_GRADIENTS};

static int measure_as(int rank, void *user)
{
    const job *j = user;
    check_failures = 0;
    rank_program p = enrol_rank(j, rank);
    check_planned_memory(&p, j);
    size_t before = lk_context_memory(p.rig.context, LK_MEMORY_OTHER);
    for (int step = 1; step <= 2; step++) train_rank(&p, j, rank, step);
    CHECK(lk_context_memory(p.rig.context, LK_MEMORY_OTHER) == before, "stage %d: steps allocate", j->stage);
    for (size_t i = 0; i < sizeof kinds_of_state / sizeof *kinds_of_state && rank == 0; i++)
        j->out->gradient[i] = (double)lk_plan_memory(p.rig.plan, kinds_of_state[i]);
    dismiss_rank(&p);
    return check_result();
}

static void measure(job *j)
{
    lk_spawn_result result;
    check_ranks_announced(j->world);
    j->out = new_report();
    CHECK(lk_spawn(j->world, measure_as, j, &result) == LK_OK, "%s", result.text);
}

/* A rank has its part of what the stage cuts, and what is between states. */
static void a_rank_has_what_the_plan_says(void)
{
    static const int cut_from[] = {3, 1, 1, 2}; /* by kind */
    job              one = job_of(NULL, 1, 0);
    one.real = LK_F32;
    one.policy = LK_POLICY_BF16;
    measure(&one);
    for (int stage = 1; stage <= 3; stage++) {
        if (gpu_leaves_out(stage, 0, 3)) continue;
        job j = one;
        j.mesh = "shard=3";
        j.world = 3;
        j.stage = stage;
        measure(&j);
        for (int i = 0; i < 4; i++) {
            double whole = one.out->gradient[i], part = j.out->gradient[i], cut = stage >= cut_from[i] ? 3 : 1;
            CHECK(whole > 0 && part >= whole / cut && part <= 1.05 * whole / cut + 4096,
                  "stage %d, kind %d: %g bytes, of %g on one rank", stage, kinds_of_state[i], part, whole);
        }
        free_report(j.out);
    }
    free_report(one.out);
}

/* ---- evaluation ---- */

static int evaluate_as(int rank, void *user)
{
    const job *j = user;
    check_failures = 0;
    rank_program p = enrol_rank(j, rank);
    int          ahead = 0;
    for (int step = 1; step <= 2; step++) { /* of which the second has other parameters */
        int64_t first = first_row(j, j->batch, rank), count = first_row(j, j->batch, rank + 1) - first;
        fill_rows(p.images, j->real, p.labels, j->side, first, count, 7);
        lk_step s = {.step = step, .count = count, .total = j->batch, .rate = 1e-3};
        REQUIRE(lk_program_step(p.rig.program, &s) == LK_OK && lk_program_run(p.rig.program, LK_EVALUATE) == LK_OK,
                "%s", lk_context_error(p.rig.context));
        j->out->gradient[2 * rank + step - 1] = rig_metrics(&p.rig).loss;
        train_rank(&p, j, rank, step);
    }
    const lk__run_collectives *x = p.rig.program->collectives;
    for (size_t i = x->evaluate; i < x->count; i++) {
        ahead += !x->all[i].at_once;
        CHECK(!x->all[i].work, "a gather is in flight behind the evaluation");
    }
    j->out->elements = ahead;
    dismiss_rank(&p);
    return check_result();
}

static report *evaluate(job *j)
{
    lk_spawn_result result;
    check_ranks_announced(j->world);
    j->out = new_report();
    CHECK(lk_spawn(j->world, evaluate_as, j, &result) == LK_OK, "stage %d: %s", j->stage, result.text);
    return j->out;
}

/* Parameters are gathered while the kernels before their use run, as in training. */
static void an_evaluation_gathers_ahead(void)
{
    const char *device = getenv("LOCKSTEP_DEVICE");
    job         whole = job_of("shard=3", 3, 1), cut = job_of("shard=3", 3, 3);
    whole.backend = cut.backend = "tcp";
    report *a = evaluate(&whole), *b = evaluate(&cut);
    CHECK(memcmp(a->gradient, b->gradient, 6 * sizeof(double)) == 0, "other losses: %g and %g, %g and %g",
          a->gradient[0], b->gradient[0], a->gradient[1], b->gradient[1]);
    CHECK(a->elements == 0 && (b->elements > 0 || device), "%d and %d gathers", (int)a->elements, (int)b->elements);
    free_report(a);
    free_report(b);
}

/* ---- shared memory ---- */

static int send_as(int rank, void *user)
{
    const job *j = user;
    check_failures = 0;
    rank_program p = enrol_rank(j, rank);
    lk_comm     *shard = p.rig.program->shard;
    uint64_t     before = shard->backend->sent(shard);
    train_rank(&p, j, rank, 1);
    CHECK(shard->backend->sent(shard) == before, "%s stage %d: slices are copied to be sent", j->mesh, j->stage);
    dismiss_rank(&p);
    return check_result();
}

/* Ranks read each other's slices where they are, also where those along shard are not all. */
static void slices_are_read_where_they_are(void)
{
    const char     *device = getenv("LOCKSTEP_DEVICE");
    lk_spawn_result result;
    if (device && strcmp(device, "cpu") != 0) return; /* the group does not reach its memory */
    for (int stage = 1; stage <= 3; stage++) {
        job j = job_of("data=2,shard=2", 4, stage);
        j.backend = "shm";
        check_ranks_announced(j.world);
        CHECK(lk_spawn(j.world, send_as, &j, &result) == LK_OK, "%s", result.text);
    }
}

/* Over data they are added in f32, whatever the stage is. */
static void replicas_of_rounded_slices_have_the_same_bits_in_every_stage(void)
{
    report *first = NULL;
    for (int stage = 1; stage <= 3; stage += runs_on_gpu() ? 2 : 1) {
        job j = job_of("data=2,shard=2", 4, stage);
        j.real = LK_F32;
        j.gradient_dtype = LK_BF16;
        report *r = run_of(&j);
        CHECK(!first || first->hashes[0] == r->hashes[0], "stage %d: other bits than stage 1", stage);
        if (first) free_report(r);
        first = first ? first : r;
    }
    free_report(first);
}

static void every_optimizer_trains_like_one_rank_f64(void)
{
    static const lk_optimizer_kind kinds[] = {LK_SGD, LK_ADAMW, LK_LION, LK_RMSPROP, LK_ADAGRAD};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (gpu_leaves_out((int)i, 1, 3)) continue; /* Lion stays */
        job one = job_of(NULL, 1, 0), j = job_of("shard=2", 2, 1 + (int)(i % 3));
        one.optimizer = j.optimizer = kinds[i];
        report *whole = run_of(&one);
        compare(j, whole, "another optimizer");
        free_report(whole);
    }
}

int main(void)
{
    RUN(every_stage_and_number_of_ranks_trains_like_one_rank_f64);
    RUN(replicas_of_slices_train_like_one_rank_f64);
    RUN(micro_batches_clipping_and_uneven_batches_train_like_one_rank_f64);
    RUN(slices_have_the_bits_of_data_parallel);
    RUN(bf16_has_the_bits_of_data_parallel);
    RUN(replicas_of_rounded_slices_have_the_same_bits_in_every_stage);
    RUN(a_rank_has_what_the_plan_says);
    RUN(slices_are_read_where_they_are);
    RUN(an_evaluation_gathers_ahead);
    RUN(every_optimizer_trains_like_one_rank_f64);
    return check_result();
}
