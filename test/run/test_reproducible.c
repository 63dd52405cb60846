/* test_reproducible.c - with leaves the weights are the same to the bit at one, two, three and four ranks and any
 * number of threads, also with batches of fewer samples than leaves.
 *
 * ctest: timeout 600, ranks 4, label slow */
#include "parallel.h"

static uint64_t hash_of(job j)
{
    j.out = new_report();
    run_job(&j);
    uint64_t hash = j.out->hashes[0];
    for (int i = 1; i < j.world; i++)
        CHECK(j.out->hashes[i] == hash, "%s, %d ranks: rank %d's weights differ from rank 0's", j.model, j.world, i);
    free_report(j.out);
    return hash;
}

static void check_any_size(job j, int most_threads)
{
    const char *device = getenv("LOCKSTEP_DEVICE");
    if (device && strcmp(device, "cuda") == 0) most_threads = 1; /* a GPU's kernels have no threads of the CPU */
    j.world = j.threads = 1;
    j.one_by_one = true;
    uint64_t one = hash_of(j);
    for (int world = 1; world <= 4; world++)
        for (int threads = world == 1 ? 2 : 1; threads <= most_threads; threads++) {
            j.world = world;
            j.threads = threads;
            uint64_t hash = hash_of(j);
            CHECK(hash == one, "%s, batch %d, %d leaves, %d ranks × %d threads: %016llx, one rank %016llx", j.model,
                  j.batch, j.leaves, world, threads, (unsigned long long)hash, (unsigned long long)one);
        }
    j.one_by_one = false; /* the same bits whether a rank's leaves run one by one or as one batch */
    for (int world = 1; world <= 4; world++) {
        j.world = world;
        j.threads = most_threads;
        uint64_t hash = hash_of(j);
        CHECK(hash == one, "%s, batch %d, %d leaves as one batch, %d ranks: %016llx, one by one %016llx", j.model,
              j.batch, j.leaves, world, (unsigned long long)hash, (unsigned long long)one);
    }
    j.leaves = 0;
    j.world = j.threads = 1;
    j.sync = false;
    if (j.real == LK_F32 && j.batch > 8)
        CHECK(hash_of(j) != one, "leaves change nothing, so the comparison may detect nothing");
}

static void simple_cnn_gives_the_same_bits_at_any_size(void)
{
    job j = {.model = "cnn", .real = LK_F32, .side = 16, .steps = 12, .batch = 40, .leaves = 8, .optimizer = LK_ADAM};
    check_any_size(j, 2);
}

static void uneven_batches_and_ranks_without_samples_too(void)
{
    job j = {.model = "cnn",
             .real = LK_F32,
             .side = 8,
             .steps = 9,
             .batch = 37,
             .odd = 2,
             .leaves = 8,
             .optimizer = LK_ADAM};
    check_any_size(j, 1); /* every third batch has 2 samples for 8 leaves */
    j.odd = 36;           /* the last of three ranks has 14 samples of 37 and of 36, but split into other leaves */
    check_any_size(j, 1);
    j.odd = 2;
    j.leaves = 5; /* the tree is not full */
    j.bucket_bytes = 5000;
    check_any_size(j, 1);
    j.leaves = 64;
    j.batch = 64;
    j.steps = 3;
    check_any_size(j, 1);
}

static void resnet20_with_synchronised_batch_norm_too(void)
{
    job j = {.model = "resnet20",
             .real = LK_F32,
             .side = 8,
             .steps = 9,
             .batch = 21,
             .odd = 2,
             .leaves = 8,
             .sync = true,
             .optimizer = LK_SGD};
    check_any_size(j, 2);
}

static void the_backend_changes_no_bits(void)
{
    job      j = {.model = "resnet20",
                  .real = LK_F32,
                  .side = 8,
                  .steps = 4,
                  .batch = 21,
                  .leaves = 8,
                  .one_by_one = true,
                  .sync = true,
                  .world = 1,
                  .optimizer = LK_ADAM,
                  .bucket_bytes = 8192};
    uint64_t one = hash_of(j);
    j.backend = "tcp";
    for (j.world = 2; j.world <= 4; j.world++) CHECK(hash_of(j) == one, "%d ranks over tcp: other bits", j.world);
}

/* Each leaf has its own statistics; the first leaf's are kept, on the rank that has it. */
static void resnet20_with_plain_batch_norm_too_except_statistics(void)
{
    job j = {.model = "resnet20", .real = LK_F32, .side = 8, .steps = 6, .batch = 16, .leaves = 4, .optimizer = LK_SGD};
    report *one = NULL;
    for (int world = 1; world <= 4; world++) {
        j.world = world;
        j.out = new_report();
        run_job(&j);
        if (!one) {
            one = j.out;
            continue;
        }
        CHECK(memcmp(one->losses, j.out->losses, sizeof one->losses) == 0, "%d ranks: other losses", world);
        CHECK(one->hashes[0] == j.out->hashes[0], "%d ranks: rank 0's weights or statistics differ", world);
        free_report(j.out);
    }
    free_report(one);
}

int main(void)
{
    RUN(simple_cnn_gives_the_same_bits_at_any_size);
    RUN(uneven_batches_and_ranks_without_samples_too);
    RUN(resnet20_with_synchronised_batch_norm_too);
    RUN(the_backend_changes_no_bits);
    RUN(resnet20_with_plain_batch_norm_too_except_statistics);
    return check_result();
}
