/* exact_sum.c - sums of squares without rounding. A mantissa is an integer, and so is its square: squares of numbers
 * with the same exponent are added as integers, and these sums are converted to digits once for many elements. Bound by
 * loads and stores of the sums by exponent: about a nanosecond per element. */
#include "base/exact_sum.h"

#include <math.h>
#include <string.h>

typedef unsigned __int128 wide;

enum {
    CHUNK = 1 << 15, /* squares of 2^48 that 64 bits hold; of 2^106 in 128 bits there could be more */
    LANES = 4,       /* of f32: sums by exponent, so that an element rarely waits for the one before it */
    DIGIT_MASK = (1 << LK__EXACT_DIGIT) - 1
};

/* value · 2^shift units. */
static void add_digits(uint64_t *digits, int shift, wide value)
{
    int at = shift / LK__EXACT_DIGIT, bit = shift % LK__EXACT_DIGIT, room = LK__EXACT_DIGIT - bit;
    if (value == 0) return;
    digits[at++] += (uint64_t)(value & (((wide)1 << room) - 1)) << bit;
    for (value >>= room; value; value >>= LK__EXACT_DIGIT) digits[at++] += (uint64_t)value & DIGIT_MASK;
}

static void carry_digits(uint64_t *digits, int count)
{
    for (int i = 0; i + 1 < count; i++) {
        digits[i + 1] += digits[i] >> LK__EXACT_DIGIT;
        digits[i] &= DIGIT_MASK;
    }
}

/* Of numbers that are infinite or NaN: those of the chunk decide. */
static void store_sum(const uint64_t *digits, int count, bool infinite, bool nan, double *sum)
{
    for (int i = 0; i < count; i++) sum[i] = (double)digits[i];
    sum[count] = infinite;
    sum[count + 1] = nan;
}

/* Numbers with exponent 0 are denormal: they have the exponent 1, and no leading bit. */
static int exponent_shift(int exponent) { return exponent ? 2 * (exponent - 1) : 0; }

void lk__exact_squares_f32(const float *x, int64_t n, double *sum)
{
    enum { EXPONENTS = 256, FRACTION = 23 };
    uint64_t digits[LK__EXACT_DIGITS_F32 + 4] = {0}, sums[EXPONENTS][LANES];
    bool     infinite = false, nan = false;
    for (int64_t at = 0; at < n; at += CHUNK) {
        int64_t count = n - at < CHUNK ? n - at : CHUNK;
        memset(sums, 0, sizeof sums);
        for (int64_t i = 0; i < count; i++) {
            uint32_t bits;
            memcpy(&bits, x + at + i, sizeof bits);
            uint32_t exponent = bits >> FRACTION & (EXPONENTS - 1);
            uint64_t mantissa = (bits & ((1u << FRACTION) - 1)) | (uint32_t)(exponent != 0) << FRACTION;
            sums[exponent][i % LANES] += mantissa * mantissa;
        }
        for (int e = 0; e < EXPONENTS - 1; e++)
            for (int k = 0; k < LANES; k++) add_digits(digits, exponent_shift(e), sums[e][k]);
        carry_digits(digits, LK__EXACT_DIGITS_F32);
        const uint64_t *special = sums[EXPONENTS - 1];
        bool            met = special[0] | special[1] | special[2] | special[3];
        for (int64_t i = 0; met && i < count; i++) {
            infinite |= isinf(x[at + i]) != 0;
            nan |= isnan(x[at + i]) != 0;
        }
    }
    store_sum(digits, LK__EXACT_DIGITS_F32, infinite, nan, sum);
}

void lk__exact_squares_f64(const double *x, int64_t n, double *sum)
{
    enum { EXPONENTS = 2048, FRACTION = 52 };
    uint64_t digits[LK__EXACT_DIGITS_F64 + 6] = {0};
    wide     sums[EXPONENTS];
    bool     infinite = false, nan = false;
    for (int64_t at = 0; at < n; at += CHUNK) {
        int64_t count = n - at < CHUNK ? n - at : CHUNK;
        memset(sums, 0, sizeof sums);
        for (int64_t i = 0; i < count; i++) {
            uint64_t bits;
            memcpy(&bits, x + at + i, sizeof bits);
            uint32_t exponent = bits >> FRACTION & (EXPONENTS - 1);
            uint64_t mantissa = (bits & ((UINT64_C(1) << FRACTION) - 1)) | (uint64_t)(exponent != 0) << FRACTION;
            sums[exponent] += (wide)mantissa * mantissa;
        }
        for (int e = 0; e < EXPONENTS - 1; e++) add_digits(digits, exponent_shift(e), sums[e]);
        carry_digits(digits, LK__EXACT_DIGITS_F64);
        for (int64_t i = 0; sums[EXPONENTS - 1] && i < count; i++) {
            infinite |= isinf(x[at + i]) != 0;
            nan |= isnan(x[at + i]) != 0;
        }
    }
    store_sum(digits, LK__EXACT_DIGITS_F64, infinite, nan, sum);
}

/* ---- rounding ---- */

static bool bit_at(const uint64_t *digits, int bit)
{
    return bit >= 0 && (digits[bit / LK__EXACT_DIGIT] >> bit % LK__EXACT_DIGIT & 1);
}

/* Whether some bit below this one is set. */
static bool any_below(const uint64_t *digits, int bit)
{
    for (int i = 0; i < bit; i++)
        if (bit_at(digits, i)) return true;
    return false;
}

double lk__exact_round(const double *sum, int count)
{
    /* 2^29 sums of digits below 2^24, and their carries: two more digits are enough for any of them. */
    uint64_t digits[LK__EXACT_DIGITS_F64 + 2] = {0}, mantissa = 0;
    int      used = count - 2, unit = count == LK__EXACT_F64 ? LK__EXACT_UNIT_F64 : LK__EXACT_UNIT_F32;
    if (sum[used + 1] != 0) return NAN;
    if (sum[used] != 0) return INFINITY;
    for (int i = 0; i < used; i++) digits[i] = (uint64_t)sum[i];
    carry_digits(digits, used + 2);
    int top = (used + 2) * LK__EXACT_DIGIT - 1;
    while (top >= 0 && !bit_at(digits, top)) top--;
    if (top < 0) return 0;
    /* The lowest bit that the result has: 53 from the top, unless that is below the smallest double. */
    int lowest = top - 52 > -1074 - unit ? top - 52 : -1074 - unit;
    for (int bit = top; bit >= lowest; bit--) mantissa = mantissa << 1 | bit_at(digits, bit);
    if (bit_at(digits, lowest - 1) && ((mantissa & 1) || any_below(digits, lowest - 1))) mantissa++;
    return ldexp((double)mantissa, lowest + unit);
}
