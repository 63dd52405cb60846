/* test_normal_f32.c - Normal numbers that are drawn as f32 have the bits of those that are drawn in f64 and rounded,
 * which test_random.c compares with the mathematics library: at the ends of their ranges, where rounding is nearly a
 * tie, and at every size of their deviation. */
#define _GNU_SOURCE
#include "check.h"

#include "base/normal.h"
#include "base/normal_f32.h"
#include "base/random_batch.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>

enum { DRAW = 4 * LK__RANDOM_BATCH, BATCHES = 200000 };

/* deviation · x in f64: what is rounded. */
static void draw_f64(uint32_t bits[4][LK__RANDOM_BATCH], double deviation, double out[DRAW])
{
    double cosine[LK__RANDOM_BATCH], sine[LK__RANDOM_BATCH];
    for (int k = 0; k < 4; k += 2) {
        lk__normal_batch(bits[k], bits[k + 1], cosine, sine);
        for (int j = 0; j < LK__RANDOM_BATCH; j++) {
            out[4 * j + k] = deviation * cosine[j];
            out[4 * j + k + 1] = deviation * sine[j];
        }
    }
}

/* How many of the numbers differ in a bit from `want`, rounded. */
static int count_different(uint32_t bits[4][LK__RANDOM_BATCH], double deviation, double want[DRAW])
{
    float got[DRAW];
    int   different = 0;
    draw_f64(bits, deviation, want);
    lk__normal_f32((const uint32_t(*)[LK__RANDOM_BATCH])bits, deviation, got);
    for (int i = 0; i < DRAW; i++) {
        float rounded = (float)want[i];
        different += memcmp(&rounded, &got[i], sizeof rounded) != 0;
    }
    return different;
}

/* Whether a number is within 2^-40 of the middle between two numbers of f32. */
static bool is_nearly_a_tie(double value)
{
    float  below = (float)value, above = nextafterf(below, value > below ? INFINITY : -INFINITY);
    double middle = ((double)below + (double)above) / 2;
    return fabs(value - middle) < 0x1p-40 * fabs(value);
}

/* So many that some would differ if numbers near a tie were not drawn in f64. */
static void random_draws_round_as_in_f64(void)
{
    lk__random random = lk__random_make(5, LK__FOR_INIT, 9);
    int        different = 0, ties = 0;
    for (uint32_t i = 0; i < BATCHES; i++) {
        uint32_t bits[4][LK__RANDOM_BATCH];
        double   value[DRAW];
        lk__random4_batch(&random, 0, i * LK__RANDOM_BATCH, bits);
        different += count_different(bits, 0.02, value);
        for (int j = 0; j < DRAW; j++) ties += is_nearly_a_tie(value[j]);
    }
    CHECK(different == 0, "%d numbers differ", different);
    CHECK(ties > 400, "only %d numbers are near the middle between two of f32", ties);
}

/* The ends of both ranges, where the exponent of a radius changes, and the quarters and eighths of a turn. */
static void the_ends_of_ranges_round_as_in_f64(void)
{
    for (uint32_t i = 0; i < 32; i++)
        for (uint32_t beside = 0; beside < 64; beside++) {
            uint32_t bits[4][LK__RANDOM_BATCH];
            double   value[DRAW];
            for (uint32_t j = 0; j < LK__RANDOM_BATCH; j++) {
                bits[0][j] = (1u << i) + beside - 32;
                bits[1][j] = (j << 27) + beside - 32;
                bits[2][j] = (0xb504f333u >> i) + beside - 32; /* where the mantissa is sqrt(1/2) */
                bits[3][j] = (j << 27) + j - 16;
            }
            CHECK(count_different(bits, 1, value) == 0, "beside 2^%u and eighths of a turn: %u", i, beside);
        }
}

static void every_deviation_rounds_as_in_f64(void)
{
    static const double some[] = {0, -0.0, -0.02, 1 / 3.0, DBL_MIN, DBL_MAX, INFINITY};
    lk__random          random = lk__random_make(6, LK__FOR_INIT, 1);
    uint32_t            bits[4][LK__RANDOM_BATCH];
    double              value[DRAW];
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        lk__random4_batch(&random, 1, (uint32_t)i * LK__RANDOM_BATCH, bits);
        CHECK(count_different(bits, some[i], value) == 0, "deviation %g", some[i]);
    }
    for (int exponent = -160; exponent <= 140; exponent++) { /* from zeros and subnormal numbers to infinity */
        lk__random4_batch(&random, 2, (uint32_t)(exponent + 160) * LK__RANDOM_BATCH, bits);
        bits[0][0] = ~0u; /* the smallest radius, at the smallest angle */
        bits[1][0] = 0;
        bits[0][1] = 0; /* the largest */
        CHECK(count_different(bits, ldexp(1.3, exponent), value) == 0, "deviation 1.3 2^%d", exponent);
    }
}

int main(void)
{
    RUN(random_draws_round_as_in_f64);
    RUN(the_ends_of_ranges_round_as_in_f64);
    RUN(every_deviation_rounds_as_in_f64);
    return check_result();
}
