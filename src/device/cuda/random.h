/* device/cuda/random.h - Philox 4x32-10 for kernels: the numbers of base/random.c. */
#ifndef LK__CUDA_RANDOM_H
#define LK__CUDA_RANDOM_H

#include "device/cuda/cuda.h"

extern "C" {
#include "base/random.h"
}

/* lk__random_make: the key folds (stream, purpose) by FNV-1a, as in base/hash.c. */
static __device__ inline lk__random random_make(uint64_t seed, lk__random_purpose purpose, uint64_t stream)
{
    uint64_t key[2] = {stream, (uint64_t)purpose}, hash = 0xcbf29ce484222325u;
    for (int i = 0; i < 16; i++) hash = (hash ^ (key[i / 8] >> i % 8 * 8 & 0xff)) * 0x100000001b3u;
    uint64_t folded = hash ^ hash >> 29;
    return lk__random{{(uint32_t)seed, (uint32_t)(seed >> 32) ^ (uint32_t)(folded >> 32)}, (uint32_t)folded};
}

/* lk__random4 */
static __device__ __forceinline__ void random4(const lk__random &random, uint64_t item, uint32_t index, uint32_t out[4])
{
    uint32_t c0 = index, c1 = (uint32_t)item, c2 = (uint32_t)(item >> 32), c3 = random.high;
    uint32_t k0 = random.key[0], k1 = random.key[1];
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* The stream of a dropout in this step (device/cpu/dropout.c): by epoch where samples are known, else by step. */
static __device__ inline lk__random dropout_random(const lk__kernel_step *step, uint64_t stream)
{
    uint64_t turn = step->sample_ids ? (uint64_t)step->epoch : ~(uint64_t)step->step;
    return random_make(step->seed, LK__FOR_DROPOUT, stream ^ turn * 0x9E3779B97F4A7C15u);
}

#endif
