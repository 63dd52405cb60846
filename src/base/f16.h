/* base/f16.h - IEEE half precision, a type of files and collectives. Values are converted to another type for
 * arithmetic. */
#ifndef LK__F16_H
#define LK__F16_H

#include <stdint.h>
#include <string.h>

#if defined(__aarch64__)
typedef __fp16       lk__f16_memory;
static inline float  lk__load_f16(__fp16 x) { return (float)x; }
static inline __fp16 lk__store_f16(float x) { return (__fp16)x; }
#else
typedef uint16_t lk__f16_memory;

static inline uint32_t lk__f16_bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float lk__f16_float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float lk__load_f16(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, rest = x & 0x7fff;
    float    normal = lk__f16_float_of((rest << 13) + 0x38000000u), small = (float)rest * 0x1p-24f;
    uint32_t special = 0x7f800000u | (rest & 0x3ff) << 13 | ((rest & 0x3ff) ? 0x400000u : 0);
    uint32_t bits = rest >= 0x7c00 ? special : rest < 0x400 ? lk__f16_bits_of(small) : lk__f16_bits_of(normal);
    return lk__f16_float_of(bits | sign);
}

/* To the nearest, ties to even. Subnormal results are rounded by adding 0.5, whose last place is 2^-24. */
static inline uint16_t lk__store_f16(float x)
{
    uint32_t bits = lk__f16_bits_of(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffffu;
    uint32_t normal = (rest + 0xfffu + (rest >> 13 & 1) - 0x38000000u) >> 13;
    uint32_t small = lk__f16_bits_of(lk__f16_float_of(rest) + 0.5f) - 0x3f000000u;
    uint32_t large = rest > 0x7f800000u ? 0x7e00 | (rest >> 13 & 0x1ff) : 0x7c00;
    uint32_t out = rest >= 0x47800000u ? large : rest < 0x38800000u ? small : normal;
    return (uint16_t)(out | sign);
}
#endif

#endif
