/* device/cpu/vmath.h - exp, log, tanh, erf and similar functions of a vector. In f32 polynomials (coefficients:
 * weighted minimax fits in double, to 2 ulp; test_kernels.c measures them), in f64 the C library lane by lane, for
 * comparisons with PyTorch. */
#ifndef LK__VMATH_H
#define LK__VMATH_H

#include "device/cpu/lanes.h"

INLINE ivec sign_bits(void) { return (ivec){0} + (INTEGER)(UINT64_C(1) << (LK_REAL_BITS - 1)); }
INLINE vec  vabs(vec x) { return (vec)((ivec)x & ~sign_bits()); }
INLINE vec  with_sign_of(vec magnitude, vec x) { return (vec)((ivec)magnitude | ((ivec)x & sign_bits())); }

INLINE vec vsqrt(vec x)
{
    vec y;
#if LK_REAL_BITS == 32
    for (int l = 0; l < VL; l++) y[l] = sqrtf(x[l]);
#else
    for (int l = 0; l < VL; l++) y[l] = sqrt(x[l]);
#endif
    return y;
}

#if LK_REAL_BITS == 32

/* x, or the bound that it is beyond; NaN stays. */
INLINE vec vbound(vec x, REAL low, REAL high)
{
#if defined(__aarch64__) /* one instruction a bound, where gcc has two for a choice */
    return (vec)vmaxq_f32(vminq_f32((float32x4_t)x, vdupq_n_f32(high)), vdupq_n_f32(low));
#else
    x = choose(x > high, splat(high), x);
    return choose(x < low, splat(low), x);
#endif
}

/* 2^k e^r with |r| <= ln 2 / 2. Gives 0 and infinity outside the range; NaN stays NaN. */
INLINE vec vexp(vec x)
{
    const vec magic = splat(0x1.8p23f); /* adding it rounds to an integer and leaves that in the low bits */
    x = vbound(x, -104.0f, 89.0f);
    vec  shifted = x * 0x1.715476p+0f + magic;
    vec  k = shifted - magic;
    ivec power = (ivec)shifted - (ivec)magic;
    vec  r = x - k * 0x1.63p-1f; /* ln 2 in two parts; k times the first is exact */
    r = r - k * -0x1.bd0106p-13f;
    vec p = splat(0.001381453825160861f);
    p = p * r + 0.00836874544620514f;
    p = p * r + 0.04166838899254799f;
    p = p * r + 0.1666652113199234f;
    p = p * r + 0.4999999403953552f;
    p = p * (r * r) + r + 1.0f;
    ivec half = power >> 1; /* two factors: 2^k alone may be outside the range of exponents */
    return p * (vec)((half + 127) << 23) * (vec)((power - half + 127) << 23);
}

/* The same with a single factor, for sigmoids and softmaxes: e^-87 below -87, infinity above 88.4. */
INLINE vec vexp_bounded(vec x)
{
    const vec magic = splat(0x1.8p23f);
    x = vbound(x, -87.0f, 89.0f);
    vec shifted = x * 0x1.715476p+0f + magic;
    vec k = shifted - magic;
    vec r = x - k * 0x1.63p-1f;
    r = r - k * -0x1.bd0106p-13f;
    vec p = splat(0.001381453825160861f);
    p = p * r + 0.00836874544620514f;
    p = p * r + 0.04166838899254799f;
    p = p * r + 0.1666652113199234f;
    p = p * r + 0.4999999403953552f;
    p = p * (r * r) + r + 1.0f;
    return p * (vec)(((ivec)shifted - (ivec)magic + 127) << 23);
}

INLINE vec vtanh(vec x)
{
    vec a = vabs(x);
    vec z = x * x;
    vec q = splat(-0.005666968181930426f);
    q = q * z + 0.020606167682654858f;
    q = q * z - 0.05373000399864799f;
    q = q * z + 0.1333133095765637f;
    q = q * z - 0.333332780565261f;
    vec small = x + x * z * q;
    vec large = 1.0f - 2.0f / (vexp(a + a) + 1.0f);
    return choose(a < 0.625f, small, with_sign_of(large, x));
}

/* Up to 0.92 an odd polynomial; beyond, 1 - e^-p(|x|) with p fitted to -log erfc. */
INLINE vec verf(vec x)
{
    vec a = vabs(x);
    vec z = x * x;
    vec q = splat(-0.0005953739238006671f);
    q = q * z + 0.004985940065357834f;
    q = q * z - 0.026761719462688353f;
    q = q * z + 0.11281682528398516f;
    q = q * z - 0.3761248109864964f;
    q = q * z + 0.1283791476906021f;
    vec small = x + x * q;
    a = choose(a > 4.0f, splat(4.0f), a);
    vec p = splat(-0.00019822070601146504f);
    p = p * a + 0.0030654998117625397f;
    p = p * a - 0.022315248002581913f;
    p = p * a + 0.10411374547003574f;
    p = p * a + 0.6369760132403829f;
    p = p * a + 1.1277972808566008f;
    p = p * a + 0.00016643908517632866f;
    vec large = 1.0f - vexp(-p);
    return choose(a < 0.92f, small, with_sign_of(large, x));
}

/* m · 2^k with m from sqrt(1/2) to sqrt 2: log m by a polynomial in m - 1 (coefficients: Cephes' logf), and k ln 2 in
 * two parts. Subnormal numbers are scaled first. */
INLINE vec vlog(vec x)
{
    vec  positive = choose(x > 0, x, splat(1.0f)); /* the others are put right at the end */
    ivec small = positive < 0x1p-126f;
    vec  scaled = choose(small, positive * 0x1p23f, positive);
    ivec offset = (ivec)scaled - 0x3f3504f3; /* the bits of sqrt(1/2) */
    ivec power = offset >> 23;
    vec  m = (vec)((ivec)scaled - power * (1 << 23)) - 1.0f;
    /* An integer is added to the bits of 1.5 · 2^23 and read as a float, which is cheaper than a conversion. */
    vec k = (vec)((power - (small & 23)) + 0x4b400000) - 0x1.8p23f;
    vec z = m * m;
    vec p = splat(7.0376836292e-2f);
    p = p * m - 1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m - 1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m - 2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    vec y = p * m * z + k * -2.12194440e-4f - 0.5f * z;
    y = m + y + k * 0.693359375f;
    y = choose(x < INFINITY, y, x); /* infinity and NaN are kept */
    y = choose(x == 0, splat(-INFINITY), y);
    return choose(x < 0, splat(NAN), y);
}

typedef int64_t iwide __attribute__((vector_size(VECTOR_BYTES)));

/* x^p for x above 0 and finite, in double: p log2 x needs more digits than a float has. Taylor series of atanh and exp,
 * whose remainder is below 1e-11. */
INLINE wide wide_pow(wide x, double p)
{
    const wide  magic = (wide){0} + 0x1.8p52; /* as in vexp and vlog */
    const iwide magic_bits = (iwide)magic;
    iwide       power = ((iwide)x - INT64_C(0x3fe6a09e667f3bcd)) >> 52; /* the bits of sqrt(1/2) */
    wide        m = (wide)((iwide)x - (power << 52));
    wide        s = (m - 1.0) / (m + 1.0), z = s * s; /* |s| <= 0.172 */
    wide        q = (wide){0} + 1.0 / 13;
    q = q * z + 1.0 / 11;
    q = q * z + 1.0 / 9;
    q = q * z + 1.0 / 7;
    q = q * z + 1.0 / 5;
    q = q * z + 1.0 / 3;
    q = q * z + 1.0;
    wide  e = p * ((wide)(power + magic_bits) - magic + s * q * 2.8853900817779268); /* 2 / ln 2 */
    iwide high = e > 1000.0, low = e < -1000.0;                                      /* outside the range of a float */
    e = (wide)((~(high | low) & (iwide)e) | (high & (iwide)((wide){0} + 1000.0)) | (low & (iwide)((wide){0} - 1000.0)));
    wide  shifted = e + magic;
    iwide whole = (iwide)shifted - magic_bits;
    wide  r = (e - (shifted - magic)) * 0.6931471805599453; /* |r| <= 0.347 */
    wide  f = (wide){0} + 1.0 / 362880;
    f = f * r + 1.0 / 40320;
    f = f * r + 1.0 / 5040;
    f = f * r + 1.0 / 720;
    f = f * r + 1.0 / 120;
    f = f * r + 1.0 / 24;
    f = f * r + 1.0 / 6;
    f = f * r + 0.5;
    f = f * r + 1.0;
    f = f * r + 1.0;
    return f * (wide)((whole + 1023) << 52);
}

/* x^p as C's pow, for a finite p. */
INLINE vec vpow(vec x, double p)
{
    if (p == 0) return splat(1.0f);
    if (p == 1) return x;
    if (p == 2) return x * x;
    bool whole = floor(p) == p, odd = whole && fmod(p, 2) != 0;
    vec  a = vabs(x);
    dvec d = to_double(a);
    for (int i = 0; i < WIDES; i++) d.part[i] = wide_pow(d.part[i], p);
    vec y = to_real(d);
    y = choose(a == 0, splat(p > 0 ? 0 : INFINITY), y);
    y = choose(a == INFINITY, splat(p > 0 ? INFINITY : 0), y);
    if (odd) y = with_sign_of(y, x);
    if (!whole) y = choose((x < 0) & (a < INFINITY), splat(NAN), y);
    return choose(x == x, y, x);
}

#else

INLINE vec vlog(vec x)
{
    for (int l = 0; l < VL; l++) x[l] = log(x[l]);
    return x;
}

INLINE vec vpow(vec x, double p)
{
    for (int l = 0; l < VL; l++) x[l] = pow(x[l], p);
    return x;
}

INLINE vec vexp(vec x)
{
    for (int l = 0; l < VL; l++) x[l] = exp(x[l]);
    return x;
}

INLINE vec vexp_bounded(vec x) { return vexp(x); }

INLINE vec vtanh(vec x)
{
    for (int l = 0; l < VL; l++) x[l] = tanh(x[l]);
    return x;
}

INLINE vec verf(vec x)
{
    for (int l = 0; l < VL; l++) x[l] = erf(x[l]);
    return x;
}

#endif

/* log(1 + x) for x from 0 to 1: the rounding error of 1 + x is added back. */
INLINE vec vlog1p(vec x)
{
    vec u = R(1.0) + x;
    return vlog(u) + (x - (u - R(1.0))) / u;
}

INLINE vec vsigmoid(vec x) { return R(1.0) / (R(1.0) + vexp(-x)); }

#endif
