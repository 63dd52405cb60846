/* kernel/cpu/vmath.h - exp, tanh, erf and their like for a vector. In f32 polynomials (coefficients: weighted minimax fits
 * in double, to 2 ulp; test_kernels.c measures them), in f64 the C library lane by lane, which proofs against PyTorch need. */
#ifndef LK__VMATH_H
#define LK__VMATH_H

#include "kernel/cpu/lanes.h"

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

/* 2^k e^r with |r| <= ln 2 / 2. Beyond the ends it gives 0 and infinity as it should; NaN stays NaN. */
INLINE vec vexp(vec x)
{
    const vec magic = splat(0x1.8p23f); /* adding it rounds to an integer and leaves that in the low bits */
    x = choose(x > 89.0f, splat(89.0f), x);
    x = choose(x < -104.0f, splat(-104.0f), x);
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
    ivec half = power >> 1; /* two factors: 2^k alone leaves the range of exponents at both ends */
    return p * (vec)((half + 127) << 23) * (vec)((power - half + 127) << 23);
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

#else

INLINE vec vexp(vec x)
{
    for (int l = 0; l < VL; l++) x[l] = exp(x[l]);
    return x;
}

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

INLINE vec vsigmoid(vec x) { return R(1.0) / (R(1.0) + vexp(-x)); }

#endif
