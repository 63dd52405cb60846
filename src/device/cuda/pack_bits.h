/* device/cuda/pack_bits.h - packs that are kept as they were read, 16 bytes in four registers whatever the element
 * type, until the elements are needed. Where many are read ahead, arrays of bf16 would take twice as many registers. */
#ifndef LK__CUDA_PACK_BITS_H
#define LK__CUDA_PACK_BITS_H

#include "device/cuda/cuda.h"

static __device__ __forceinline__ uint4 load_bits(const void *p) { return *(const uint4 *)p; }

static __device__ __forceinline__ float real_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static __device__ __forceinline__ void unpack(const uint4 &p, float (&to)[8]) /* bf16: the upper half of an f32 */
{
    uint32_t words[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to[2 * i] = real_of(words[i] << 16);
        to[2 * i + 1] = real_of(words[i] & 0xffff0000u);
    }
}
static __device__ __forceinline__ void unpack(const uint4 &p, float (&to)[4])
{
    to[0] = real_of(p.x), to[1] = real_of(p.y), to[2] = real_of(p.z), to[3] = real_of(p.w);
}

#endif
