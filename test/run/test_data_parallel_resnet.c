/* test_data_parallel_resnet.c - ResNet-20 with synchronised batch norm and any split of the batch: the losses of one
 * process with plain batch norm on the whole batch. Without synchronisation they differ, so the comparison detects it.
 *
 * ctest: timeout 900, ranks 4, label slow */
#include "parallel.h"

/* Under a sanitizer, which looks for other errors, a few steps suffice. */
enum { STEPS = SANITIZED ? 8 : 50, FAR_STEPS = SANITIZED ? 8 : 12 };

static job job_of(int world, bool sync, int steps)
{
    return (job){.model = "resnet20",
                 .real = LK_F64,
                 .side = 8,
                 .steps = steps,
                 .batch = 64,
                 .world = world,
                 .sync = sync,
                 .threads = world == 1 ? 2 : 1,
                 .optimizer = LK_ADAM,
                 .out = new_report()};
}

static void sync_batch_norm_trains_like_the_whole_batch_f64(void)
{
    job whole = job_of(1, false, STEPS);
    run_job(&whole);
    CHECK(SANITIZED || whole.out->losses[STEPS - 1] < 0.95 * whole.out->losses[0], "nothing is learned: %g, then %g",
          whole.out->losses[0], whole.out->losses[STEPS - 1]);
    for (int world = 2; world <= 4; world++) {
        job split = job_of(world, true, STEPS);
        run_job(&split);
        double off = losses_apart(split.out, whole.out, STEPS), first = gradients_apart(split.out, whole.out);
        CHECK(off <= 1e-9, "%d ranks: losses differ by %g", world, off);
        CHECK(first <= 1e-11, "%d ranks: first gradients differ by %g", world, first);
        for (int i = 1; i < world; i++)
            CHECK(split.out->hashes[i] == split.out->hashes[0],
                  "%d ranks: rank %d's weights or statistics differ from rank 0's", world, i);
        printf("     %d ranks: losses within %.1e, first gradients within %.1e\n", world, off, first);
        free_report(split.out);
    }
    job far = job_of(3, true, FAR_STEPS);
    far.backend = "tcp"; /* sums of batch norm do not queue behind buckets in flight */
    far.bucket_bytes = 16384;
    run_job(&far);
    CHECK(losses_apart(far.out, whole.out, FAR_STEPS) <= 1e-9, "3 ranks over tcp: losses differ by %g",
          losses_apart(far.out, whole.out, FAR_STEPS));
    free_report(far.out);
    job apart = job_of(2, false, 2);
    run_job(&apart);
    CHECK(losses_apart(apart.out, whole.out, 1) > 1e-3,
          "batch norm of a rank's own samples gives the whole batch's loss");
    free_report(apart.out);
    free_report(whole.out);
}

/* Every third batch has 2 samples: some ranks have none, and do not change the statistics. */
static void ranks_without_samples_do_not_change_statistics_f64(void)
{
    job whole = job_of(1, false, 12);
    whole.odd = 2;
    run_job(&whole);
    for (int world = 3; world <= 4; world++) {
        job split = job_of(world, true, 12);
        split.odd = 2;
        run_job(&split);
        double off = losses_apart(split.out, whole.out, 12);
        CHECK(off <= 1e-9, "%d ranks: losses differ by %g", world, off);
        free_report(split.out);
    }
    free_report(whole.out);
}

static void f32_first_gradients_agree_to_1e_5(void)
{
    job exact = job_of(1, false, 1);
    run_job(&exact);
    for (int world = 1; world <= 4; world++) {
        job narrow = job_of(world, world > 1, 1);
        narrow.real = LK_F32;
        run_job(&narrow);
        double off = gradients_apart(narrow.out, exact.out);
        CHECK(off <= 1e-5, "%d ranks: the first gradient is off by %g of its norm", world, off);
        printf("     %d rank%s in f32: first gradient within %.1e of f64's\n", world, world > 1 ? "s" : "", off);
        free_report(narrow.out);
    }
    free_report(exact.out);
}

int main(void)
{
    RUN(sync_batch_norm_trains_like_the_whole_batch_f64);
    RUN(ranks_without_samples_do_not_change_statistics_f64);
    RUN(f32_first_gradients_agree_to_1e_5);
    return check_result();
}
