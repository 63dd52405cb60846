/* test_order.c - the order of an epoch that is computed instead of listed: a permutation at awkward counts, different
 * in each epoch and for each seed, without a pattern; loader and sampler agree on it. That a listed order has not
 * changed is in bits.sh. */
#define _GNU_SOURCE
#include "test_data.h"

#include <lockstep/sampler.h>

#include "data/order.h"

#include <math.h>

static lk_context *context;

static void fill(int64_t count, uint64_t seed, int64_t epoch, int64_t *out)
{
    lk__data_order o;
    lk__order_init(&o, count, seed, LK__ORDER_COMPUTED, NULL);
    lk__order_epoch(&o, epoch);
    for (int64_t i = 0; i < count; i++) out[i] = lk__order_index(&o, i);
}

static void a_computed_order_is_a_permutation(void)
{
    static const int64_t counts[] = {1,     2,     3,     4,      5,      6,      7,       15,     16,
                                     17,    63,    64,    65,     255,    1021,   4095,    65535,  65536,
                                     65537, 65539, 99991, 262144, 262145, 999983, 1048577, 3000000};
    int64_t             *order = malloc(3000000 * sizeof *order);
    char                *seen = malloc(3000000);
    for (size_t n = 0; n < sizeof counts / sizeof *counts; n++)
        for (int64_t epoch = 0; epoch < 2; epoch++) {
            memset(seen, 0, (size_t)counts[n]);
            fill(counts[n], 7, epoch, order);
            for (int64_t i = 0; i < counts[n]; i++) {
                CHECK(order[i] >= 0 && order[i] < counts[n] && !seen[order[i]]);
                seen[order[i]] = 1;
            }
        }
    free(order), free(seen);
}

/* A function of (seed, epoch): positions may be asked for in any order, after any other epoch. */
static void it_is_a_function_of_seed_and_epoch(void)
{
    enum { N = 100003 };
    int64_t       *first = malloc(N * sizeof *first), *other = malloc(N * sizeof *other), same;
    lk__data_order o;
    fill(N, 5, 3, first);
    lk__order_init(&o, N, 5, LK__ORDER_COMPUTED, NULL);
    lk__order_epoch(&o, 9);
    lk__order_epoch(&o, 3);
    for (int64_t i = N; i-- > 0;) CHECK(lk__order_index(&o, i) == first[i]);
    for (int k = 0; k < 3; k++) {
        fill(N, k == 0 ? 5 : k == 1 ? 6 : 5 + (UINT64_C(1) << 40), k == 0 ? 4 : 3, other);
        same = 0;
        for (int64_t i = 0; i < N; i++) same += first[i] == other[i];
        CHECK(same < 12); /* of two random permutations one place is the same on average: 12 are a chance of 1e-9 */
    }
    free(first), free(other);
}

/* Counts of (position, index) in a 16 x 16 grid, and of the distance between neighbours in 64 classes: chi-squared
 * within 5 standard deviations of its mean. And every index is equally likely at the first position over many
 * epochs. */
static void it_has_no_pattern(void)
{
    enum { GRID = 16, STEPS = 64, EPOCHS = 40000 };
    static const int64_t counts[] = {65537, 262144, 300000};
    for (size_t n = 0; n < 3; n++)
        for (uint64_t seed = 0; seed < 4; seed++) {
            int64_t *order = malloc((size_t)counts[n] * sizeof *order), N = counts[n];
            int64_t  grid[GRID][GRID] = {0}, steps[STEPS] = {0};
            double   chi = 0, expected = (double)N / (GRID * GRID), step_chi = 0;
            fill(N, seed, 1, order);
            for (int64_t i = 0; i < N; i++) grid[i * GRID / N][order[i] * GRID / N]++;
            for (int64_t i = 0; i + 1 < N; i++) steps[((order[i + 1] - order[i] + N) % N) * STEPS / N]++;
            for (int a = 0; a < GRID * GRID; a++) chi += pow((double)grid[a / GRID][a % GRID] - expected, 2) / expected;
            for (int a = 0; a < STEPS; a++)
                step_chi += pow((double)steps[a] - (double)N / STEPS, 2) / ((double)N / STEPS);
            double freedom = (GRID - 1) * (GRID - 1); /* rows and columns are full */
            CHECK(fabs(chi - freedom) < 5 * sqrt(2 * freedom));
            CHECK(fabs(step_chi - (STEPS - 1)) < 5 * sqrt(2.0 * (STEPS - 1)));
            free(order);
        }
    int64_t        first[STEPS] = {0};
    double         chi = 0;
    lk__data_order o;
    lk__order_init(&o, 1 << 20, 11, LK__ORDER_COMPUTED, NULL);
    for (int64_t epoch = 0; epoch < EPOCHS; epoch++) {
        lk__order_epoch(&o, epoch);
        first[lk__order_index(&o, 0) * STEPS >> 20]++;
    }
    for (int a = 0; a < STEPS; a++) chi += pow((double)first[a] - (double)EPOCHS / STEPS, 2) / ((double)EPOCHS / STEPS);
    CHECK(fabs(chi - (STEPS - 1)) < 5 * sqrt(2.0 * (STEPS - 1)));
}

static void large_counts_need_no_memory(void)
{
    CHECK(lk__order_choose(65536, true, true) == LK__ORDER_LISTED &&
          lk__order_choose(65537, true, true) == LK__ORDER_COMPUTED);
    CHECK(lk__order_choose(1 << 28, true, false) == LK__ORDER_LISTED &&
          lk__order_choose((1 << 28) + 1, true, false) == LK__ORDER_COMPUTED);
    CHECK(lk__order_choose(INT64_MAX / 32, false, true) == LK__ORDER_SEQUENTIAL);
    CHECK(lk__order_bytes(INT64_C(1) << 50, LK__ORDER_COMPUTED) == 0);
    lk__data_order o;
    int64_t        count = INT64_MAX / 32, a, b;
    lk__order_init(&o, count, 1, lk__order_choose(count, true, false), NULL);
    lk__order_epoch(&o, 0);
    a = lk__order_index(&o, 0), b = lk__order_index(&o, count - 1);
    CHECK(a >= 0 && a < count && b >= 0 && b < count && a != b);
}

/* A sampler for text gives each rank its share of the loader's order; other samplers keep the listed one. */
static void samplers_have_the_same_order(void)
{
    enum { N = 70001, WORLD = 3 };
    int64_t *order = malloc(N * sizeof *order), count, differ = 0;
    fill(N, 4, 2, order);
    for (int rank = 0; rank < WORLD; rank++) {
        lk_sampler_config c = LK_SAMPLER_CONFIG_INIT;
        lk_sampler       *s;
        const int64_t    *indices;
        c.count = N, c.world = WORLD, c.rank = rank, c.seed = 4, c.shuffle = true, c.text = true;
        CHECK_OK(context, lk_sampler_create(context, &c, &s));
        CHECK_OK(context, lk_sampler_epoch(s, 2, &indices, &count));
        CHECK(count == (N - rank + WORLD - 1) / WORLD);
        for (int64_t i = 0; i < count; i++) CHECK(indices[i] == order[rank + i * WORLD]);
        CHECK(lk_context_memory(context, LK_MEMORY_LOADER) == (size_t)count * sizeof *indices);
        lk_sampler_free(s);
        c.text = false;
        CHECK_OK(context, lk_sampler_create(context, &c, &s));
        CHECK_OK(context, lk_sampler_epoch(s, 2, &indices, &count));
        for (int64_t i = 0; i < count; i++) differ += indices[i] != order[rank + i * WORLD];
        lk_sampler_free(s);
    }
    CHECK(differ > N / 2);
    free(order);
}

/* However little of it was made before its epoch began, and after jumps to other epochs. */
static void a_listed_order_that_is_made_ahead_is_the_same(void)
{
    static const int64_t counts[] = {1, 2, 7, 64, 1021}, parts[] = {0, 1, 5, 64, 5000};
    static const int64_t epochs[] = {0, 1, 2, 3, 7, 8, 8, 9, 4, 5, 6};
    int64_t              lists[3][1021];
    for (size_t n = 0; n < sizeof counts / sizeof *counts; n++)
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
            lk__data_order ahead, plain;
            lk__order_init(&ahead, counts[n], 11, LK__ORDER_LISTED, lists[0]);
            lk__order_init(&plain, counts[n], 11, LK__ORDER_LISTED, lists[2]);
            lk__order_make_ahead(&ahead, lists[1]);
            for (size_t e = 0; e < sizeof epochs / sizeof *epochs; e++) {
                lk__order_epoch(&ahead, epochs[e]);
                lk__order_epoch(&plain, epochs[e]);
                for (int64_t i = 0; i < counts[n]; i++) {
                    CHECK(lk__order_index(&ahead, i) == lk__order_index(&plain, i));
                    if (i % 13 == 0) lk__order_advance(&ahead, parts[k]);
                }
            }
        }
}

int main(void)
{
    context = make_context();
    RUN(a_computed_order_is_a_permutation);
    RUN(it_is_a_function_of_seed_and_epoch);
    RUN(it_has_no_pattern);
    RUN(large_counts_need_no_memory);
    RUN(samplers_have_the_same_order);
    RUN(a_listed_order_that_is_made_ahead_is_the_same);
    free_context(context);
    return 0;
}
