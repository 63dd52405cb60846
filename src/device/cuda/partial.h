/* device/cuda/partial.h - elements as they are stored, and the types in which they are added: f32 for bf16 and f16. */
#ifndef LK__CUDA_PARTIAL_H
#define LK__CUDA_PARTIAL_H

#include "device/cuda/cuda.h"

typedef struct half_bits {
    uint16_t bits;
} half_bits;

static __device__ __forceinline__ uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static __device__ __forceinline__ float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* f16, as in base/reduce.c. */
static __device__ __forceinline__ float load_half(half_bits x)
{
    uint32_t sign = (uint32_t)(x.bits & 0x8000) << 16, rest = x.bits & 0x7fff;
    float    normal = float_of((rest << 13) + 0x38000000u), small = (float)rest * 5.9604644775390625e-8f; /* 2^-24 */
    uint32_t special = 0x7f800000u | (rest & 0x3ff) << 13 | ((rest & 0x3ff) ? 0x400000u : 0);
    uint32_t bits = rest >= 0x7c00 ? special : rest < 0x400 ? bits_of(small) : bits_of(normal);
    return float_of(bits | sign);
}
/* To the nearest, ties to even. Subnormal results are rounded by adding 0.5, whose last place is 2^-24. */
static __device__ __forceinline__ half_bits store_half(float x)
{
    uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffffu;
    uint32_t normal = (rest + 0xfffu + (rest >> 13 & 1) - 0x38000000u) >> 13;
    uint32_t small = bits_of(float_of(rest) + 0.5f) - 0x3f000000u;
    uint32_t large = rest > 0x7f800000u ? 0x7e00 | (rest >> 13 & 0x1ff) : 0x7c00;
    uint32_t out = rest >= 0x47800000u ? large : rest < 0x38800000u ? small : normal;
    return half_bits{(uint16_t)(out | sign)};
}

template <typename T> struct partial_of {
    typedef T                              type;
    static __device__ __forceinline__ type load(T x) { return x; }
    static __device__ __forceinline__ T    store(type x) { return x; }
};
template <> struct partial_of<bf16> {
    typedef float                          type;
    static __device__ __forceinline__ type load(bf16 x) { return __bfloat162float(x); }
    static __device__ __forceinline__ bf16 store(type x) { return __float2bfloat16_rn(x); }
};
template <> struct partial_of<half_bits> {
    typedef float                               type;
    static __device__ __forceinline__ type      load(half_bits x) { return load_half(x); }
    static __device__ __forceinline__ half_bits store(type x) { return store_half(x); }
};

#endif
