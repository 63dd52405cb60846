/* test_random.c - Random numbers: Philox against its published vectors, batches against single draws, normal numbers
 * against the mathematics library's functions in long double, and their moments. */
#define _GNU_SOURCE
#include "check.h"

#include "base/normal.h"
#include "base/random_batch.h"

#include <math.h>

static void philox_gives_its_published_vectors(void)
{
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } vectors[] = {
        /* philox4x32, 10 rounds: kat_vectors of Random123 */
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        const uint32_t *c = vectors[i].counter;
        lk__random      random = {.key = {vectors[i].key[0], vectors[i].key[1]}, .high = c[3]};
        uint32_t        out[4];
        lk__random4(&random, (uint64_t)c[2] << 32 | c[1], c[0], out);
        CHECK(memcmp(out, vectors[i].want, sizeof out) == 0, "vector %zu", i);
    }
}

static void a_batch_is_its_draws(void)
{
    lk__random random = lk__random_make(3, LK__FOR_INIT, 7);
    uint32_t   batch[4][LK__RANDOM_BATCH], one[4];
    lk__random4_batch(&random, 5, 64, batch);
    for (uint32_t j = 0; j < LK__RANDOM_BATCH; j++) {
        lk__random4(&random, 5, 64 + j, one);
        for (int k = 0; k < 4; k++) CHECK(batch[k][j] == one[k], "number %d of %u", k, j);
    }
}

/* The ends of both ranges, the quarters of a turn and what is beside them. */
static void set_edges(uint32_t radius[LK__RANDOM_BATCH], uint32_t turn[LK__RANDOM_BATCH])
{
    static const uint32_t radii[] = {0, 1, ~0u, ~0u - 1, 1u << 31, 0xb504f333, 0xb504f334};
    for (uint32_t i = 0; i < LK__RANDOM_BATCH; i++) {
        radius[i] = radii[i % 7];
        turn[i] = (i / 4 << 29) + i % 4 - 2;
    }
}

static void normal_numbers_are_those_of_the_formula(void)
{
    const long double unit = 1 / 4294967296.0L, whole = 2 * acosl(-1);
    lk__random        random = lk__random_make(1, LK__FOR_INIT, 2);
    double            worst = 0, sums[4] = {0, 0, 0, 0}, cosine[LK__RANDOM_BATCH], sine[LK__RANDOM_BATCH];
    int               batches = 4000;
    for (int i = 0; i < batches; i++) {
        uint32_t bits[4][LK__RANDOM_BATCH];
        lk__random4_batch(&random, 0, (uint32_t)(i * LK__RANDOM_BATCH), bits);
        if (i == 0) set_edges(bits[0], bits[1]);
        lk__normal_batch(bits[0], bits[1], cosine, sine);
        for (int j = 0; j < LK__RANDOM_BATCH; j++) {
            long double r = sqrtl(-2 * logl((bits[0][j] + 0.5L) * unit)), angle = whole * ((bits[1][j] + 0.5L) * unit);
            worst = fmax(worst, (double)(fabsl(r * cosl(angle) - cosine[j]) / r));
            worst = fmax(worst, (double)(fabsl(r * sinl(angle) - sine[j]) / r));
            for (int power = 1; power <= 4; power++) sums[power - 1] += pow(cosine[j], power) + pow(sine[j], power);
        }
    }
    CHECK(worst < 6e-16, "off by %g of the radius", worst);
    static const double moments[] = {0, 1, 0, 3};
    double              count = 2.0 * LK__RANDOM_BATCH * batches;
    for (int i = 0; i < 4; i++) /* 8 standard errors; the largest is that of the fourth moment, sqrt(96 / count) */
        CHECK(fabs(sums[i] / count - moments[i]) < 8 * sqrt(96 / count), "moment %d is %g", i + 1, sums[i] / count);
}

int main(void)
{
    RUN(philox_gives_its_published_vectors);
    RUN(a_batch_is_its_draws);
    RUN(normal_numbers_are_those_of_the_formula);
    return check_result();
}
