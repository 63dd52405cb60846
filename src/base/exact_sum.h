/* base/exact_sum.h - sums of squares without rounding, whose bits therefore do not depend on the order of additions or
 * on how elements are divided among kernels and ranks. Such a sum is an integer, a multiple of the square of the type's
 * smallest number, in digits of 24 bits that are stored as doubles: adding sums is adding doubles, by any operation and
 * collective that adds f64. A digit is below 2^24 when it is made, so 2^29 sums are added without rounding (of parts of
 * tensors and of ranks together), and the digits hold the sum of 2^40 squares of the largest number. */
#ifndef LK__EXACT_SUM_H
#define LK__EXACT_SUM_H

#include <lockstep/base.h>

enum {
    LK__EXACT_DIGIT = 24, /* bits */
    /* The exponents of the unit: of squares of 2^-149 and 2^-1074, the smallest numbers of the types. */
    LK__EXACT_UNIT_F32 = -298,
    LK__EXACT_UNIT_F64 = -2148,
    /* Squares are below 2^256 and 2^2048, 2^40 of them below 2^296 and 2^2088: 594 and 4,236 bits from the unit on. */
    LK__EXACT_DIGITS_F32 = 25,
    LK__EXACT_DIGITS_F64 = 177,
    /* After the digits: how many sums met an infinity, and how many a NaN. */
    LK__EXACT_F32 = LK__EXACT_DIGITS_F32 + 2,
    LK__EXACT_F64 = LK__EXACT_DIGITS_F64 + 2,
    LK__EXACT_MOST = LK__EXACT_F64
};

/* The number of doubles in the sum of squares of numbers of this type, LK_F32 or LK_F64. */
static inline int lk__exact_count(lk_dtype type) { return type == LK_F64 ? LK__EXACT_F64 : LK__EXACT_F32; }

/* The sum of n squares, into lk__exact_count doubles. */
void               lk__exact_squares_f32(const float *x, int64_t n, double *sum);
void               lk__exact_squares_f64(const double *x, int64_t n, double *sum);
static inline void lk__exact_add(double *sum, const double *other, int count)
{
    for (int i = 0; i < count; i++) sum[i] += other[i];
}
/* The double nearest to a sum of `count` doubles, or the even one of two equally near; NaN or infinity if it met
 * one. */
double lk__exact_round(const double *sum, int count);

#endif
