/* base/bf16.h - bfloat16: the upper half of an f32. A storage type: values are converted to f32 for arithmetic. */
#ifndef LK__BF16_H
#define LK__BF16_H

#include <stdint.h>
#include <string.h>

typedef struct lk__bf16 {
    uint16_t bits;
} lk__bf16;

static inline float lk__from_bf16(lk__bf16 x)
{
    uint32_t bits = (uint32_t)x.bits << 16;
    float    y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

/* To nearest, ties to even, as in PyTorch; a NaN stays a NaN, quiet. */
static inline lk__bf16 lk__to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
    return (lk__bf16){
        (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded)}; /* no branch: loops are vectorised */
}

/* From its bits. */
static inline float    lk__load_bf16(uint16_t bits) { return lk__from_bf16((lk__bf16){bits}); }
static inline uint16_t lk__store_bf16(float x) { return lk__to_bf16(x).bits; }

#endif
