/* mixup.c - partner and weight of mixup. The weight must have the same bits on every machine, so logarithm and
 * exponential are computed here, from operations that IEEE 754 rounds exactly; CMake compiles this file without
 * contraction to fused ones. */
#include "data/augment/augment.h"

#include <math.h>

static const double ln2 = 0.693147180559945309417;

/* ln x for x > 0: x = m × 2^k with m near 1, ln m = 2 artanh((m - 1) / (m + 1)), by its series. */
static double portable_log(double x)
{
    int    k;
    double m = frexp(x, &k); /* exact */
    if (m < 0.70710678118654752440) m *= 2, k--;
    double z = (m - 1) / (m + 1), square = z * z, sum = 0; /* |z| < 0.172 */
    for (int i = 23; i >= 1; i -= 2) sum = sum * square + 1.0 / i;
    return 2 * z * sum + k * ln2;
}

/* e^x by the series of its remainder. */
static double portable_exp(double x)
{
    if (x > 700) x = 700;
    if (x < -700) x = -700;
    double k = floor(x / ln2 + 0.5), r = x - k * ln2, sum = 1; /* |r| < 0.35 */
    for (int i = 16; i >= 1; i--) sum = 1 + sum * r / i;
    return ldexp(sum, (int)k);
}

/* Uniform numbers of one sample, one after the other. */
typedef struct draws {
    lk__random random;
    uint64_t   item;
    uint32_t   next;
} draws;

static double draw_unit(draws *d) { return lk__random_unit(lk__random_u32(&d->random, d->item, d->next++)); }

/* Marsaglia's polar method. */
static double draw_normal(draws *d)
{
    for (;;) {
        double u = 2 * draw_unit(d) - 1, v = 2 * draw_unit(d) - 1, s = u * u + v * v;
        if (s > 0 && s < 1) return u * sqrt(-2 * portable_log(s) / s);
    }
}

/* ln of a Gamma(shape) number, shape >= 1: Marsaglia and Tsang, ACM TOMS 26 (2000). */
static double draw_log_gamma(draws *d, double shape)
{
    double a = shape - 1.0 / 3, c = 1 / sqrt(9 * a);
    for (;;) {
        double x = draw_normal(d), v = 1 + c * x;
        if (v <= 0) continue;
        double log_v = 3 * portable_log(v);
        v = v * v * v;
        if (portable_log(draw_unit(d)) < 0.5 * x * x + a - a * v + a * log_v) return portable_log(a) + log_v;
    }
}

/* A Gamma(alpha) number is a Gamma(alpha + 1) number times u^(1 / alpha): in logarithms, since it may be below the
 * smallest double. */
static double draw_beta(draws *d, double alpha)
{
    double x = draw_log_gamma(d, alpha + 1) + portable_log(draw_unit(d)) / alpha;
    double y = draw_log_gamma(d, alpha + 1) + portable_log(draw_unit(d)) / alpha;
    return 1 / (1 + portable_exp(y - x));
}

lk__augment_mixup lk__mixup_draw(uint64_t seed, int64_t epoch, int64_t index, int64_t count, double alpha)
{
    draws             d = {lk__random_make(seed, LK__FOR_MIXUP, (uint64_t)epoch), (uint64_t)index, 0};
    lk__augment_mixup m;
    m.partner = (int64_t)lk__random_below(&d.random, d.item, &d.next, (uint64_t)count);
    m.mix = draw_beta(&d, alpha);
    return m;
}
