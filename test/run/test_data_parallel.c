/* test_data_parallel.c - SimpleCNN with any split of the batch: one rank with the whole batch, two, three (uneven) or
 * four with a part each, and accumulation, give the same losses and gradients.
 *
 * ctest: timeout 600, ranks 4, label slow */
#include "parallel.h"

/* Under a sanitizer, which looks for other errors, a few steps suffice. */
enum { STEPS = SANITIZED ? 8 : 50 };

static job job_of(int world, report *out)
{
    return (job){.model = "cnn",
                 .real = LK_F64,
                 .side = 16,
                 .steps = STEPS,
                 .batch = 64,
                 .world = world,
                 .optimizer = LK_ADAM,
                 .out = out};
}

/* Every case against one process on the whole batch. */
static void compare(job j, const report *whole, double tolerance, const char *what)
{
    report *r = j.out = new_report();
    run_job(&j);
    double off = losses_apart(r, whole, j.steps);
    CHECK(off <= tolerance, "%s: losses differ by %g", what, off);
    for (int i = 1; i < j.world; i++)
        CHECK(r->hashes[i] == r->hashes[0], "%s: rank %d's weights are not rank 0's", what, i);
    printf("     %s: losses within %.1e\n", what, off);
    free_report(r);
}

static void any_split_trains_like_the_whole_batch_f64(void)
{
    static const int micro[] = {2, 4, 3};
    report          *whole = new_report();
    job              j = job_of(1, whole);
    char             what[96];
    run_job(&j);
    CHECK(whole->losses[0] > 1 && (SANITIZED || whole->losses[STEPS - 1] < 0.95 * whole->losses[0]),
          "nothing is learned: %g, then %g", whole->losses[0], whole->losses[STEPS - 1]);
    for (int world = 2; world <= 4; world++) {
        snprintf(what, sizeof what, "%d ranks", world);
        compare(job_of(world, NULL), whole, 1e-9, what);
    }
    for (int i = 0; i < 3; i++) { /* 64 in 3 parts is uneven; 2 ranks in turn take 32 in 3 */
        for (int world = 1; world <= 2; world++) {
            j = job_of(world, NULL);
            j.micro_batches = micro[i];
            snprintf(what, sizeof what, "%d rank%s × %d micro-batches", world, world > 1 ? "s" : "", micro[i]);
            compare(j, whole, 1e-9, what);
        }
    }
    j = job_of(2, NULL);
    j.bucket_bytes = 4096; /* nearly every gradient is a separate bucket */
    compare(j, whole, 1e-9, "2 ranks, small buckets");
    j.world = 3;
    j.micro_batches = 2;
    j.backend = "tcp"; /* buckets are reduced while backward continues */
    compare(j, whole, 1e-9, "3 ranks × 2 micro-batches over tcp, small buckets");
    free_report(whole);
}

/* Every third batch has 2 samples: with three and four ranks some have none, with micro-batches too. */
static void batches_with_fewer_samples_than_ranks_train_alike_f64(void)
{
    report *whole = new_report();
    job     j = job_of(1, whole);
    j.odd = 2;
    j.steps = 20;
    run_job(&j);
    for (int world = 2; world <= 4; world++) {
        job  k = j;
        char what[64];
        k.world = world;
        k.micro_batches = world == 2 ? 2 : 0;
        snprintf(what, sizeof what, "%d ranks, every third batch of 2 samples", world);
        compare(k, whole, 1e-9, what);
    }
    free_report(whole);
}

/* At 32 × 32 no input of a relu or a max pool comes so close to its kink within 20 steps that rounding changes the
 * side. */
static void f32_agrees_to_its_rounding(void)
{
    report *exact = new_report(), *whole = new_report(), *split = new_report();
    job     j = job_of(1, exact);
    j.side = 32;
    j.steps = 1;
    run_job(&j);
    j.steps = 20;
    j.real = LK_F32;
    j.out = whole;
    run_job(&j);
    for (int world = 2; world <= 4; world++) {
        job k = j;
        k.world = world;
        k.out = split;
        run_job(&k);
        double to_one = gradients_apart(split, whole), to_f64 = gradients_apart(split, exact);
        double losses = losses_apart(split, whole, 20);
        CHECK(to_one <= 1e-5 && to_f64 <= 1e-5, "%d ranks: first gradients differ by %g, from f64's by %g", world,
              to_one, to_f64);
        CHECK(losses <= 1e-4, "%d ranks: losses differ by %g", world, losses);
        printf(
            "     %d ranks in f32: first gradients within %.1e of one rank's, %.1e of f64's; 20 losses within %.1e\n",
            world, to_one, to_f64, losses);
    }
    free_report(exact);
    free_report(whole);
    free_report(split);
}

/* ---- a hand-written loop ---- */

/* Three micro-batches per step, of 9, 4 and 3 samples of each rank, with sections called one by one. */
static int loop_by_hand(int rank, void *user)
{
    static const int64_t parts[] = {9, 4, 3};
    const job           *j = user;
    check_failures = 0;
    rank_program p = enrol_rank(j, rank);
    int64_t      row = 3 * j->side * j->side * (int64_t)lk_dtype_size(j->real);
    for (int step = 1; step <= j->steps; step++) {
        fill_rows(p.images, j->real, p.labels, j->side, 16 * rank, 16, step);
        for (int64_t i = 0, at = 0; i < 3; at += parts[i++]) {
            lk_step s = {.step = step, .count = parts[i], .rate = 1e-3};
            lk_program_no_sync(p.rig.program, i < 2);
            REQUIRE(lk_program_bind(p.rig.program, "x", (char *)p.images + at * row) == LK_OK &&
                    lk_program_bind(p.rig.program, "y", p.labels + at) == LK_OK);
            REQUIRE(lk_program_step(p.rig.program, &s) == LK_OK && lk_program_run(p.rig.program, LK_FORWARD) == LK_OK &&
                        lk_program_run(p.rig.program, LK_BACKWARD) == LK_OK,
                    "%s", lk_context_error(p.rig.context));
        }
        REQUIRE(lk_program_run(p.rig.program, LK_SYNC) == LK_OK, "%s", lk_context_error(p.rig.context));
        if (rank == 0) j->out->losses[step - 1] = rig_metrics(&p.rig).loss;
        if (rank == 0 && step == 1) keep_gradient(&p, j, 32, j->out);
        REQUIRE(lk_program_run(p.rig.program, LK_UPDATE) == LK_OK, "%s", lk_context_error(p.rig.context));
    }
    dismiss_rank(&p);
    return check_result();
}

static void no_sync_in_a_hand_written_loop_equals_one_large_batch(void)
{
    report         *whole = new_report(), *split = new_report();
    job             one = job_of(1, whole);
    job             two = job_of(2, split);
    lk_spawn_result result;
    one.batch = 32;
    one.steps = two.steps = 15;
    two.micro_batches = 3;
    two.batch = 54; /* so that a micro-batch has room for 9 */
    run_job(&one);
    CHECK(lk_spawn(2, loop_by_hand, &two, &result) == LK_OK, "%s", result.text);
    CHECK(losses_apart(split, whole, 15) <= 1e-9, "losses differ by %g", losses_apart(split, whole, 15));
    CHECK(gradients_apart(split, whole) <= 1e-12, "gradients differ by %g", gradients_apart(split, whole));
    free_report(whole);
    free_report(split);
}

int main(void)
{
    RUN(any_split_trains_like_the_whole_batch_f64);
    RUN(batches_with_fewer_samples_than_ranks_train_alike_f64);
    RUN(f32_agrees_to_its_rounding);
    RUN(no_sync_in_a_hand_written_loop_equals_one_large_batch);
    return check_result();
}
