/* exact.h - sums of products of bf16 and f32 as long integers, rounded as an instruction does: nothing is rounded
 * before the end. */
#ifndef EXACT_H
#define EXACT_H

#include "base/bits.h"

#include <math.h>
#include <stdbool.h>

/* In units of 2^-266, of which every product of two bf16 that are not denormal is a multiple; less than 2^258. */
enum { EXACT_UNIT = 266, EXACT_WORDS = 9 };
typedef struct exact {
    bool     negative;
    uint64_t word[EXACT_WORDS];
} exact;

typedef enum exact_rounding { TO_ODD, TO_EVEN } exact_rounding;

/* significand × 2^exponent */
static exact exact_of(bool negative, uint64_t significand, int exponent)
{
    exact    x = {.negative = negative};
    unsigned at = (unsigned)(exponent + EXACT_UNIT);
    x.word[at / 64] = significand << at % 64;
    if (at % 64 && at / 64 + 1 < EXACT_WORDS) x.word[at / 64 + 1] = significand >> (64 - at % 64);
    return x;
}

static int exact_compare(const exact *a, const exact *b)
{
    for (int i = EXACT_WORDS; i-- > 0;)
        if (a->word[i] != b->word[i]) return a->word[i] > b->word[i] ? 1 : -1;
    return 0;
}

static exact exact_add(exact a, exact b)
{
    bool subtract = a.negative != b.negative;
    if (subtract && exact_compare(&a, &b) < 0) {
        exact swap = a;
        a = b, b = swap;
    }
    unsigned char carry = 0;
    for (int i = 0; i < EXACT_WORDS; i++) {
        uint64_t x = a.word[i], y = b.word[i];
        a.word[i] = subtract ? x - y - carry : x + y + carry;
        carry = subtract ? x < y || (carry && x == y) : a.word[i] < x || (carry && a.word[i] == x);
    }
    return a;
}

static bool exact_bit(const exact *x, int at) { return at >= 0 && x->word[at / 64] >> at % 64 & 1; }
static bool exact_below(const exact *x, int at) /* whether a bit below `at` is set */
{
    for (int i = 0; i < at; i++)
        if (exact_bit(x, i)) return true;
    return false;
}

/* The f32 of x != 0. Arm's instruction decides before rounding whether a number is denormal, Intel's after it. */
static float exact_round(const exact *x, exact_rounding rounding)
{
    int      top = EXACT_WORDS * 64 - 1;
    uint32_t kept = 0, sign = x->negative ? 0x80000000 : 0;
    while (!exact_bit(x, top)) top--;
    for (int i = 0; i < 24; i++) kept = kept << 1 | exact_bit(x, top - i);
    bool half = exact_bit(x, top - 24), rest = exact_below(x, top - 24);
    if (rounding == TO_ODD) kept |= half || rest;
    if (rounding == TO_EVEN && half && (rest || kept & 1) && ++kept == 1 << 24) kept >>= 1, top++;
    int exponent = top - EXACT_UNIT;
    if (exponent < -126) return lk__float_of_bits(sign);
    if (exponent > 127) return lk__float_of_bits(sign | 0x7f800000);
    return lk__float_of_bits(sign | (uint32_t)(exponent + 127) << 23 | (kept & 0x7fffff));
}

static exact exact_product(float a, float b) /* of normal numbers; of b a bf16 or 1 */
{
    uint32_t x = lk__bits_of_float(a), y = lk__bits_of_float(b);
    int      exponent = (int)(x >> 23 & 255) + (int)(y >> 23 & 255) - 2 * 127 - 23 - 7;
    uint64_t significand = (uint64_t)((x & 0x7fffff) | 1 << 23) * (((y & 0x7fffff) | 1 << 23) >> 16);
    while (exponent < -EXACT_UNIT) significand >>= 1, exponent++; /* a bf16's last bits are 0 */
    return exact_of((x ^ y) >> 31, significand, exponent);
}

/* sum + a b, rounded once. Denormal operands are 0. What needs no rounding, 0 and what is not finite, is IEEE 754's. */
static float exact_fused(float sum, float a, float b, exact_rounding rounding)
{
    if (fpclassify(sum) == FP_SUBNORMAL) sum = copysignf(0, sum);
    if (fpclassify(a) == FP_SUBNORMAL) a = copysignf(0, a);
    if (fpclassify(b) == FP_SUBNORMAL) b = copysignf(0, b);
    if (!isfinite(sum) || !isfinite(a) || !isfinite(b)) return (float)((double)a * (double)b + (double)sum);
    bool  no_product = a == 0 || b == 0;
    exact zero = {0}, x = no_product ? zero : exact_product(a, b), y = sum == 0 ? zero : exact_product(sum, 1);
    exact total = exact_add(x, y);
    if (exact_compare(&total, &zero) == 0) return a * b + sum;
    return exact_round(&total, rounding);
}

#endif
