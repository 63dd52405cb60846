/* normal_f32.c - approximates the normal numbers of base/normal.c in f64 with fewer terms and fused multiply-adds.
 * Rounded to f32 they have the same bits, except where a value is so close to the midpoint of two f32 numbers that the
 * error may decide: a batch with such a value, one in 500, is drawn by lk__normal_batch. So the bits depend neither on
 * the processor nor on how a compiler contracts or orders this arithmetic. Divisions, roots and multiply-adds bound it.
 * It takes most of the start-up time of a transformer. */
#include "base/normal_f32.h"

#include "base/bits.h"
#include "base/normal.h"

#include <math.h>
#include <stdbool.h>

#define INLINE static inline __attribute__((always_inline))

/* f64 has 29 more bits of mantissa than f32. A value is decided if they differ from 2^28, the middle, by more than the
 * error. Over all 2^32 radii and all 2^32 turns it is at most 2^-43.3 of the value, less than 2^10 units of the last
 * bit; here 2^12. They are compared in the high bits of 32. */
enum { SPARE = 32 - 29 };
static const uint32_t margin = 1u << (12 + SPARE), middle = 1u << (28 + SPARE);

/* 2^52 + n: its mantissa is n. */
INLINE double above_2_52(uint64_t n) { return lk__double_of_bits(0x4330000000000000u | n); }

/* Six terms in z. The pairs can be computed at the same time. */
#define SERIES(z, c0, c1, c2, c3, c4, c5) \
    (((c0) + (c1) * (z)) + (z) * (z) * (((c2) + (c3) * (z)) + (z) * (z) * ((c4) + (c5) * (z))))

/* -2 log u, u = (radius + 1/2) / 2^32. u = 2^k m, m in [sqrt(1/2), sqrt(2)): with s = (m-1)/(m+1), log m = s P(s^2). -2
 * P is the minimax polynomial for s^2 up to 0.0295, with a relative error of 2^-45. */
INLINE double squared_radius(uint32_t radius)
{
    const uint64_t half = 0x3fe6a09e667f3bcdu /* sqrt(1/2) */, one = (uint64_t)1 << 52 /* of the exponent */;
    uint64_t       bits = lk__bits_of_double(above_2_52(radius) - 4503599627370495.5) - half + one; /* of u 2^32 */
    double         k = above_2_52(bits >> 52) - (4503599627370496.0 + 33);
    double         m = lk__double_of_bits((bits & (one - 1)) + half);
    double         s = (m - 1) / (m + 1), z = s * s;
    return k * -1.3862943611198906 + s * SERIES(z, -3.999999999999893, -1.333333333593934, -0.7999998971973128,
                                                -0.571443383791061, -0.4434826331073335, -0.39219406896622294);
}

/* Whether the error may decide how a value is rounded. */
INLINE uint32_t is_undecided(double value)
{
    return ((uint32_t)lk__bits_of_double(value) << SPARE) - (middle - margin) <= 2 * margin;
}

/* A pair of normal numbers. Returns whether one of them is undecided. */
INLINE uint32_t draw_pair(uint32_t radius, uint32_t turn, double deviation, float *cosine, float *sine)
{
    double r = deviation * sqrt(squared_radius(radius));
    /* The nearest quarter of a turn, and what is left of it, in [-pi/4, pi/4]: the other 30 bits, signed, and 1/2. */
    uint32_t quarter = (turn + (1u << 29)) >> 30;
    double   rest = above_2_52((turn << 2) ^ 0x80000000u) - (4503599627370496.0 + 2147483648.0 - 2);
    double   x = rest * (1.5707963267948966 / 4294967296.0), z = x * x;
    /* Minimax polynomials, with errors of 2^-47 and 2^-44. */
    double s = r * x *
               SERIES(z, 0.9999999999999957, -0.16666666666616736, 0.008333333323884758, -0.00019841263301393058,
                      2.7555272450121687e-06, -2.475659489578182e-08);
    double c = r * SERIES(z, 0.9999999999999445, -0.4999999999935188, 0.04166666654401024, -0.00138888803982758,
                          2.4798929589492214e-05, -2.717348396115746e-07);
    /* Rounding is the same for both signs, so quarters are turned in f32, which has more lanes. */
    uint32_t rounded_s = lk__bits_of_float((float)s), rounded_c = lk__bits_of_float((float)c), swap = 0 - (quarter & 1);
    uint32_t along = (rounded_s & swap) | (rounded_c & ~swap), across = rounded_s ^ rounded_c ^ along;
    *cosine = lk__float_of_bits(along ^ ((quarter + 1) << 30 & 0x80000000u));
    *sine = lk__float_of_bits(across ^ (quarter << 30 & 0x80000000u));
    return is_undecided(s) | is_undecided(c);
}

/* Whether every number is decided. */
INLINE bool approximate(const uint32_t bits[4][LK__RANDOM_BATCH], double deviation,
                        float out[restrict 4 * LK__RANDOM_BATCH])
{
    uint32_t undecided = 0;
    for (int j = 0; j < LK__RANDOM_BATCH; j++) {
        undecided |= draw_pair(bits[0][j], bits[1][j], deviation, &out[4 * j], &out[4 * j + 1]);
        undecided |= draw_pair(bits[2][j], bits[3][j], deviation, &out[4 * j + 2], &out[4 * j + 3]);
    }
    return undecided == 0;
}

static void draw_exactly(const uint32_t bits[4][LK__RANDOM_BATCH], double deviation, float out[4 * LK__RANDOM_BATCH])
{
    double cosine[LK__RANDOM_BATCH], sine[LK__RANDOM_BATCH];
    for (int k = 0; k < 4; k += 2) {
        lk__normal_batch(bits[k], bits[k + 1], cosine, sine);
        for (int j = 0; j < LK__RANDOM_BATCH; j++) {
            out[4 * j + k] = (float)(deviation * cosine[j]);
            out[4 * j + k + 1] = (float)(deviation * sine[j]);
        }
    }
}

typedef bool (*approximation)(const uint32_t bits[4][LK__RANDOM_BATCH], double deviation,
                              float out[restrict 4 * LK__RANDOM_BATCH]);

#define DEFINE(name, TARGET)                                                                          \
    TARGET static bool approximate_##name(const uint32_t bits[4][LK__RANDOM_BATCH], double deviation, \
                                          float out[restrict 4 * LK__RANDOM_BATCH])                   \
    {                                                                                                 \
        return approximate(bits, deviation, out);                                                     \
    }

DEFINE(plain, )
#if defined(__x86_64__)
DEFINE(avx2, __attribute__((target("avx2,fma"))))
#endif

static approximation choose_approximation(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return approximate_avx2;
#endif
    return approximate_plain;
}

/* Numbers are between 2^-48 and 7, times the deviation: here they are normal numbers of f32 and not infinite. */
static bool is_usual(double deviation) { return fabs(deviation) > 0x1p-78 && fabs(deviation) < 0x1p124; }

void lk__normal_f32(const uint32_t bits[4][LK__RANDOM_BATCH], double deviation, float out[4 * LK__RANDOM_BATCH])
{
    if (!is_usual(deviation) || !choose_approximation()(bits, deviation, out)) draw_exactly(bits, deviation, out);
}
