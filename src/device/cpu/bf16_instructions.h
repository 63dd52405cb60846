/* device/cpu/bf16_instructions.h - BFMMLA, VDPBF16PS and TDPBF16PS in C, bit by bit. The emulated instruction sets use
 * them, so that all kernels of these sets run on any machine. test_bf16_instructions.c compares them with the
 * instructions, where the machine has them, and with exact integers.
 *
 * Operands are bf16, sums f32. All three instructions treat denormal operands, and replace denormal results, as zeros
 * of the same sign.
 *
 * BFMMLA (Arm's BFDotAdd without FEAT_EBF16, or with FPCR.EBF 0): two products are added, and their sum is added to the
 * accumulator. Each result is rounded to odd: towards zero, with the last bit set if it was inexact. A result beyond
 * the range of f32 is infinity, and every NaN is the default NaN.
 *
 * VDPBF16PS (Intel's SDM): two fused multiply-adds, rounded to nearest even, the pair's second product first. If
 * several operands are NaN, the result is the first NaN of: the first product's operands, the second product's
 * operands, the accumulator.
 *
 * TDPBF16PS (the same): fused multiply-adds from zero, with one sum for the first products of all pairs and another for
 * the second products. The two sums are added, and the result is added to the accumulator. It is not documented which
 * NaN a result is; here it is the default NaN. */
#ifndef LK__CPU_BF16_INSTRUCTIONS_H
#define LK__CPU_BF16_INSTRUCTIONS_H

#include "base/bf16.h"
#include "base/bits.h"

#include <stdbool.h>

enum {
    LK__ARM_NAN = 0x7fc00000,
    LK__F32_FRACTION = 29 /* bits of a double's fraction that an f32 does not have */
};
#define LK__INTEL_NAN 0xffc00000u /* "real indefinite" */

/* Zero of its sign where x is denormal. */
static inline float lk__without_denormal(float x)
{
    uint32_t bits = lk__bits_of_float(x);
    return lk__float_of_bits(bits & 0x7f800000 ? bits : bits & 0x80000000);
}
static inline float lk__operand_bf16(lk__bf16 x) { return lk__without_denormal(lk__from_bf16(x)); }

/* a + b rounded to odd, as the bits of a double: of one that is rounded again, to a number with at least two bits less,
 * the result is that of the exact sum. Neither a + b nor a or b exceeds the range of a double. */
static inline uint64_t lk__sum_to_odd(double a, double b)
{
    double   sum = a + b, of_b = sum - a, error = (a - (sum - of_b)) + (b - of_b);
    uint64_t bits = lk__bits_of_double(sum);
    if (!(error < 0 || error > 0)) return bits; /* exact, or not finite */
    return ((error > 0) == (sum > 0) ? bits : bits - 1) | 1;
}

/* The f32 of a double's bits, of which `kept` are left after rounding to f32's precision; denormal results are zero. */
static inline float lk__narrow_bits(uint64_t kept)
{
    uint32_t sign = (uint32_t)(kept >> 32) & 0x80000000;
    int      exponent = (int)(kept >> 52 & 0x7ff) - 1023;
    if (exponent < -126) return lk__float_of_bits(sign);
    if (exponent > 127) return lk__float_of_bits(sign | 0x7f800000);
    return lk__float_of_bits(sign | (uint32_t)(exponent + 127) << 23 |
                             ((uint32_t)(kept >> LK__F32_FRACTION) & 0x7fffff));
}
static inline float lk__narrow_to_odd(uint64_t bits)
{
    uint64_t lost = bits & ((1ull << LK__F32_FRACTION) - 1);
    return lk__narrow_bits(lost ? bits | 1ull << LK__F32_FRACTION : bits);
}
static inline float lk__narrow_to_even(uint64_t bits)
{
    uint64_t half = (1ull << (LK__F32_FRACTION - 1)) - 1;
    return lk__narrow_bits(bits + half + (bits >> LK__F32_FRACTION & 1));
}

/* ---- BFMMLA ---- */

/* a + b rounded to odd; both may be doubles with more than an f32's exponents: products. */
static inline float lk__add_to_odd(double a, double b)
{
    double sum = a + b;
    if (sum != sum) return lk__float_of_bits(LK__ARM_NAN);
    return lk__narrow_to_odd(lk__sum_to_odd(a, b));
}

/* A product of two bf16 has 16 bits: only its exponent may be beyond f32. */
static inline float lk__bf16_product(lk__bf16 a, lk__bf16 b)
{
    return lk__add_to_odd((double)lk__operand_bf16(a) * (double)lk__operand_bf16(b), -0.0);
}

static inline float lk__bf16_dot_arm(float sum, const lk__bf16 *a, const lk__bf16 *b)
{
    float pair = lk__add_to_odd((double)lk__bf16_product(a[0], b[0]), (double)lk__bf16_product(a[1], b[1]));
    return lk__add_to_odd((double)lk__without_denormal(sum), (double)pair);
}

/* sum (2 × 2) += A (2 × 4) B' (2 × 4), all by rows. */
static inline void lk__bfmmla(float *sum, const lk__bf16 *a, const lk__bf16 *b)
{
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            for (int k = 0; k < 4; k += 2)
                sum[2 * i + j] = lk__bf16_dot_arm(sum[2 * i + j], a + 4 * i + k, b + 4 * j + k);
}

/* ---- VDPBF16PS, TDPBF16PS ---- */

/* sum + a b, rounded once. */
static inline float lk__fused_without_denormals(float sum, float a, float b)
{
    double product = (double)lk__without_denormal(a) * (double)lk__without_denormal(b); /* exact for bf16 */
    double addend = (double)lk__without_denormal(sum), whole = product + addend;
    if (whole != whole) return lk__float_of_bits(LK__INTEL_NAN);
    return lk__narrow_to_even(lk__sum_to_odd(product, addend));
}

/* sum + a[0] b[0] + a[1] b[1]: one lane. */
static inline float lk__vdpbf16ps(float sum, const lk__bf16 *a, const lk__bf16 *b)
{
    float of[5] = {lk__from_bf16(a[0]), lk__from_bf16(b[0]), lk__from_bf16(a[1]), lk__from_bf16(b[1]), sum};
    for (int i = 0; i < 5; i++)
        if (of[i] != of[i]) return lk__float_of_bits(lk__bits_of_float(of[i]) | 0x400000);
    return lk__fused_without_denormals(lk__fused_without_denormals(sum, of[2], of[3]), of[0], of[1]);
}

/* sum (m × n) += A (m × 2 pairs) B, where row p of B has n pairs: B(2p, j), B(2p + 1, j). Rows of A and B are `a_row`
 * and `b_row` elements apart, rows of the sum `sum_row`. */
static inline void lk__tdpbf16ps(int m, int n, int pairs, float *sum, long sum_row, const lk__bf16 *a, long a_row,
                                 const lk__bf16 *b, long b_row)
{
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            float first = 0, second = 0, *to = sum + i * sum_row + j;
            for (int p = 0; p < pairs; p++) {
                const lk__bf16 *x = a + i * a_row + 2 * p, *y = b + p * b_row + 2 * j;
                first = lk__fused_without_denormals(first, lk__from_bf16(x[0]), lk__from_bf16(y[0]));
                second = lk__fused_without_denormals(second, lk__from_bf16(x[1]), lk__from_bf16(y[1]));
            }
            *to = lk__fused_without_denormals(*to, lk__fused_without_denormals(second, first, 1), 1);
        }
}

#endif
