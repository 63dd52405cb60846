/* test_sampler.c - assignment of samples to ranks: each exactly once, and in compatible mode the lists of PyTorch's
 * DistributedSampler (golden/make_sampler.py). `test_sampler FILE` only compares with the lists of another file. */
#define _GNU_SOURCE
#include "test_data.h"

#include <lockstep/sampler.h>

#include "base/hash.h"
#include "data/mersenne.h"

#include <inttypes.h>

static lk_context *context;
static const char *golden_file = LK_SOURCE_DIR "/test/golden/sampler.txt";

static lk_sampler *make_sampler(const lk_sampler_config *config)
{
    lk_sampler *sampler;
    CHECK_OK(context, lk_sampler_create(context, config, &sampler));
    return sampler;
}

/* The 10,000th number of the default seed is specified by C++11 for std::mt19937 (26.5.5 [rand.predef]). */
static void the_generator_is_mt19937(void)
{
    lk__data_mersenne m;
    uint32_t          number = 0;
    lk__mersenne_seed(&m, 5489);
    for (int i = 0; i < 10000; i++) number = lk__mersenne_next(&m);
    CHECK(number == 4123659995u);
}

/* One line of the file: every rank's list is hashed, and compared by number if the line has the numbers. */
static void compare(char *line, int number)
{
    lk_sampler_config c = LK_SAMPLER_CONFIG_INIT;
    int64_t           epoch, length;
    int               shuffle, drop_last, at = 0;
    char              wanted[65], got[65];
    unsigned char     digest[32];
    lk__sha256        sha;
    CHECK(sscanf(line, "%" SCNd64 " %d %d %d %" SCNu64 " %" SCNd64 " %" SCNd64 " %64s%n", &c.count, &c.world, &shuffle,
                 &drop_last, &c.seed, &epoch, &length, wanted, &at) == 8);
    c.shuffle = shuffle, c.drop_last = drop_last, c.compatible = true;
    lk__sha256_init(&sha);
    char *rest = line + at;
    for (c.rank = 0; c.rank < c.world; c.rank++) {
        lk_sampler    *sampler = make_sampler(&c);
        const int64_t *indices;
        int64_t        count;
        if (c.count < 1000) /* has no effect on later epochs */
            CHECK_OK(context, lk_sampler_epoch(sampler, epoch + 1, &indices, &count));
        CHECK_OK(context, lk_sampler_epoch(sampler, epoch, &indices, &count));
        CHECK(count == length);
        lk__sha256_update(&sha, indices, (size_t)count * sizeof *indices);
        for (int64_t i = 0; i < count && *rest == ' '; i++) {
            int64_t index = strtoll(rest, &rest, 10);
            if (indices[i] == index) continue;
            fprintf(stderr, "line %d, rank %d, index %lld: %lld, PyTorch has %lld\n", number, c.rank, (long long)i,
                    (long long)indices[i], (long long)index);
            exit(1);
        }
        lk_sampler_free(sampler);
    }
    lk__sha256_final(&sha, digest);
    lk__sha256_hex(digest, got);
    if (strcmp(got, wanted)) fprintf(stderr, "line %d: %.60s…\n", number, line);
    CHECK(!strcmp(got, wanted));
}

static void compatible_lists_equal_pytorchs(void)
{
    FILE *file = fopen(golden_file, "r");
    char  line[1024];
    int   number = 0, cases = 0;
    CHECK(file);
    while (fgets(line, sizeof line, file)) {
        number++;
        line[strcspn(line, "\n")] = 0;
        if (line[0] == '#') continue;
        compare(line, number);
        cases++;
    }
    fclose(file);
    printf("  %d cases\n", cases);
    CHECK(cases > 0);
}

static void every_sample_goes_to_one_rank(void)
{
    static const int64_t counts[] = {0, 1, 2, 3, 7, 8, 9, 100, 1009};
    static const int     worlds[] = {1, 2, 3, 8, 11};
    for (int n = 0; n < 9; n++)
        for (int w = 0; w < 5; w++)
            for (int way = 0; way < 4; way++) {
                lk_sampler_config c = LK_SAMPLER_CONFIG_INIT;
                int               seen[1009] = {0}, twice = 0, moved = 0;
                int64_t           all = 0, least = INT64_MAX, most = 0;
                c.count = counts[n], c.world = worlds[w], c.shuffle = way & 1, c.drop_last = way & 2, c.seed = 9;
                for (c.rank = 0; c.rank < c.world; c.rank++) {
                    lk_sampler    *sampler = make_sampler(&c);
                    const int64_t *indices;
                    int64_t        count;
                    CHECK_OK(context, lk_sampler_epoch(sampler, 4, &indices, &count));
                    for (int64_t i = 0; i < count; i++) {
                        CHECK(indices[i] >= 0 && indices[i] < c.count);
                        twice += seen[indices[i]]++ > 0;
                        moved += indices[i] != c.rank + i * c.world;
                    }
                    all += count;
                    least = count < least ? count : least, most = count > most ? count : most;
                    lk_sampler_free(sampler);
                }
                CHECK(twice == 0 && all == (c.drop_last ? c.count - c.count % c.world : c.count));
                CHECK(most - least <= (c.drop_last ? 0 : 1));
                CHECK(c.shuffle ? c.count < 100 || moved > 80 : moved == 0);
            }
}

/* A loader of the same data, seed and epoch has the order that interleaving the ranks' lists gives. */
static void each_epoch_has_a_new_order_equal_to_the_loaders(void)
{
    enum { COUNT = 101, WORLD = 3 };
    lk_dataset_synthetic_config data = LK_DATASET_SYNTHETIC_CONFIG_INIT;
    lk_loader_config            loading = LK_LOADER_CONFIG_INIT;
    lk_dataset                 *dataset;
    lk_loader                  *loader;
    lk_batch                    batch;
    data.count = COUNT;
    CHECK_OK(context, lk_dataset_synthetic(context, &data, &dataset));
    loading.dataset = dataset, loading.batch = COUNT, loading.shuffle = true, loading.seed = 77;
    CHECK_OK(context, lk_loader_create(context, &loading, &loader));
    int64_t order[3][COUNT];
    for (int epoch = 0; epoch < 3; epoch++) {
        CHECK_OK(context, lk_loader_next(loader, &batch));
        memcpy(order[epoch], batch.indices, sizeof order[epoch]);
        CHECK(lk_loader_next(loader, &batch) == LK_END);
        CHECK(epoch == 0 || memcmp(order[epoch], order[epoch - 1], sizeof order[epoch]) != 0);
    }
    lk_sampler_config c = LK_SAMPLER_CONFIG_INIT;
    c.count = COUNT, c.world = WORLD, c.shuffle = true, c.seed = 77;
    for (c.rank = 0; c.rank < WORLD; c.rank++) {
        lk_sampler *sampler = make_sampler(&c);
        for (int visit = 0; visit < 6; visit++) { /* forward and back: epochs do not depend on each other */
            int            epoch = visit < 3 ? visit : 5 - visit;
            const int64_t *indices;
            int64_t        count;
            CHECK_OK(context, lk_sampler_epoch(sampler, epoch, &indices, &count));
            for (int64_t i = 0; i < count; i++) CHECK(indices[i] == order[epoch][c.rank + i * WORLD]);
        }
        lk_sampler_free(sampler);
    }
    lk_loader_free(loader);
    lk_dataset_free(dataset);
}

static void memory_is_allocated_only_at_creation(void)
{
    for (int way = 0; way < 4; way++) {
        lk_sampler_config c = LK_SAMPLER_CONFIG_INIT;
        const int64_t    *indices;
        int64_t           count;
        c.count = 1000, c.world = 3, c.rank = 2, c.shuffle = way & 1, c.compatible = way & 2;
        lk_sampler *sampler = make_sampler(&c);
        size_t      own = c.compatible ? 334 : 333;
        CHECK(lk_context_memory(context, LK_MEMORY_LOADER) == (own + (c.shuffle ? 1000 : 0)) * 8);
        uint64_t before = lk_context_allocations(context);
        for (int epoch = 0; epoch < 5; epoch++) CHECK_OK(context, lk_sampler_epoch(sampler, epoch, &indices, &count));
        CHECK(lk_context_allocations(context) == before && count == (int64_t)own);
        lk_sampler_free(sampler);
        CHECK(lk_context_memory(context, LK_MEMORY_LOADER) == 0);
    }
}

static lk_status attempt(lk_context *failing)
{
    lk_sampler_config c = LK_SAMPLER_CONFIG_INIT;
    lk_sampler       *sampler;
    c.count = 100, c.world = 3, c.shuffle = true;
    lk_status status = lk_sampler_create(failing, &c, &sampler);
    CHECK((status == LK_OK) == (sampler != NULL));
    lk_sampler_free(sampler);
    return status;
}

static void any_allocation_can_fail(void) { CHECK(fail_each_allocation(attempt) == 2); }

static void invalid_configs_are_refused(void)
{
    lk_sampler       *sampler;
    lk_sampler_config good = LK_SAMPLER_CONFIG_INIT, c;
    good.count = 10;
#define REFUSED(change, ...)                                                                    \
    do {                                                                                        \
        c = good;                                                                               \
        change;                                                                                 \
        CHECK_FAILS(context, lk_sampler_create(context, &c, &sampler), LK_EINVAL, __VA_ARGS__); \
        CHECK(!sampler);                                                                        \
    } while (0)
    REFUSED(c.size = 0, "LK_SAMPLER_CONFIG_INIT");
    REFUSED(c.count = -1, "count is -1");
    REFUSED(c.count = INT64_MAX, "count is 9223372036854775807");
    REFUSED(c.world = 0, "world size is 0");
    REFUSED(c.rank = 1, "rank is 1; expected 0 to 0");
    REFUSED(c.rank = -1, "rank is -1");
    const int64_t *indices = &good.count;
    int64_t        count = 5;
    sampler = make_sampler(&good);
    CHECK_FAILS(context, lk_sampler_epoch(sampler, -1, &indices, &count), LK_EINVAL, "epoch is -1");
    CHECK(!indices && count == 0);
    lk_sampler_free(sampler);
    lk_sampler_free(NULL);
}

int main(int words, char **arguments)
{
    context = make_context();
    if (words > 1) {
        golden_file = arguments[1];
        RUN(compatible_lists_equal_pytorchs);
    } else {
        RUN(the_generator_is_mt19937);
        RUN(compatible_lists_equal_pytorchs);
        RUN(every_sample_goes_to_one_rank);
        RUN(each_epoch_has_a_new_order_equal_to_the_loaders);
        RUN(memory_is_allocated_only_at_creation);
        RUN(any_allocation_can_fail);
        RUN(invalid_configs_are_refused);
    }
    free_context(context);
    return 0;
}
