/* normal.c - compiled without contraction of multiplications and additions, so that all processors round alike. */
#include "base/normal.h"

#include "base/bits.h"

#include <math.h>

/* log x for normal x > 0. x = 2^k m, m in [sqrt(1/2), sqrt(2)): with s = (m-1)/(m+1), log m = 2 (s + s^3/3 + s^5/5 +
 * …), where s^2 is at most 0.0295, so that eleven terms leave 2e-18. */
static inline double log_of(double x)
{
    const uint64_t half = 0x3fe6a09e667f3bcdu; /* sqrt(1/2) */
    uint64_t       bits = lk__bits_of_double(x) - half, exponent = bits >> 52;
    double         m = lk__double_of_bits((bits & 0xfffffffffffffu) + half);
    /* The exponent as a number, by the mantissa of 2^52; 2^12 is added where it is negative. */
    double k = lk__double_of_bits(0x4330000000000000u | ((exponent + 2048) & 4095)) - 4503599627370496.0 - 2048;
    double s = (m - 1) / (m + 1), z = s * s;
    double tail = 1.0 / 21;
    tail = tail * z + 1.0 / 19;
    tail = tail * z + 1.0 / 17;
    tail = tail * z + 1.0 / 15;
    tail = tail * z + 1.0 / 13;
    tail = tail * z + 1.0 / 11;
    tail = tail * z + 1.0 / 9;
    tail = tail * z + 1.0 / 7;
    tail = tail * z + 1.0 / 5;
    tail = tail * z + 1.0 / 3;
    return k * 0.6931471805599453 + 2 * (s + s * z * tail);
}

/* Taylor's series for |x| at most pi/4: the terms left out are below 1e-18. */
static inline double sin_of(double x)
{
    double z = x * x, p = -1.0 / 1307674368000;
    p = p * z + 1.0 / 6227020800;
    p = p * z - 1.0 / 39916800;
    p = p * z + 1.0 / 362880;
    p = p * z - 1.0 / 5040;
    p = p * z + 1.0 / 120;
    p = p * z - 1.0 / 6;
    return x + x * z * p;
}

static inline double cos_of(double x)
{
    double z = x * x, p = 1.0 / 20922789888000;
    p = p * z - 1.0 / 87178291200;
    p = p * z + 1.0 / 479001600;
    p = p * z - 1.0 / 3628800;
    p = p * z + 1.0 / 40320;
    p = p * z - 1.0 / 720;
    p = p * z + 1.0 / 24;
    return 1 + z * (p * z - 0.5);
}

void lk__normal_batch(const uint32_t radius[LK__RANDOM_BATCH], const uint32_t turn[LK__RANDOM_BATCH],
                      double cosine[LK__RANDOM_BATCH], double sine[LK__RANDOM_BATCH])
{
    double r[LK__RANDOM_BATCH];
    for (int j = 0; j < LK__RANDOM_BATCH; j++) r[j] = -2 * log_of(lk__random_unit(radius[j]));
    for (int j = 0; j < LK__RANDOM_BATCH; j++) r[j] = sqrt(r[j]);
    for (int j = 0; j < LK__RANDOM_BATCH; j++) {
        /* The nearest quarter of a turn, by rounding at 2^52, and what is left of it, in which sine and cosine are
         * series. */
        double   quarters = 4 * lk__random_unit(turn[j]), shifted = quarters + 4503599627370496.0;
        double   x = (quarters - (shifted - 4503599627370496.0)) * 1.5707963267948966;
        uint64_t q = lk__bits_of_double(shifted), swap = 0 - (q & 1), high = (uint64_t)1 << 63;
        uint64_t s = lk__bits_of_double(sin_of(x)), c = lk__bits_of_double(cos_of(x));
        uint64_t along = (s & swap) | (c & ~swap), across = (c & swap) | (s & ~swap);
        cosine[j] = r[j] * lk__double_of_bits(along ^ (((q + 1) << 62) & high));
        sine[j] = r[j] * lk__double_of_bits(across ^ ((q << 62) & high));
    }
}
