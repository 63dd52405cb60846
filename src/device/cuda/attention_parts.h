/* device/cuda/attention_parts.h - attention of one query to keys that are divided into parts over blocks: the result of
 * a part, and how these results are combined. */
#ifndef LK__CUDA_ATTENTION_PARTS_H
#define LK__CUDA_ATTENTION_PARTS_H

#include "device/cuda/attention.h"

/* Keys of a part, which depends only on the number of keys: many blocks read at once, and a combination adds at most
 * 128 parts. */
static inline int64_t part_keys(int64_t s)
{
    int64_t keys = cuda_tiles(cuda_tiles(s, 128), 64) * 64;
    return keys < 64 ? 64 : keys;
}

/* What a part of the keys gives for a head: sums of values, not yet divided by the sum of their probabilities. */
template <typename W> struct part_softmax {
    W most, total;
};

enum { MOST_PARTS = 128 };

/* A block a (sample, head): the parts' results, in their order. */
template <typename T>
static __global__ void combine_parts(int parts, int64_t d, const WIDE(T) * sums, const part_softmax<WIDE(T)> *softmax,
                                     T *y, WIDE(T) * lse)
{
    typedef WIDE(T) W;
    __shared__ part_softmax<W> seen[MOST_PARTS];
    __shared__ W               factors[MOST_PARTS];
    await_previous();
    sums += (int64_t)blockIdx.x * parts * d;
    for (int p = threadIdx.x; p < parts; p += blockDim.x) seen[p] = softmax[(int64_t)blockIdx.x * parts + p];
    __syncthreads();
    W      most = (W)-INFINITY;
    double total = 0;
    for (int p = 0; p < parts; p++) most = seen[p].most > most ? seen[p].most : most;
    for (int p = threadIdx.x; p < parts; p += blockDim.x)
        factors[p] = seen[p].total == 0 ? (W)0 : attention_exp(seen[p].most - most);
    __syncthreads();
    for (int p = 0; p < parts; p++)
        if (seen[p].total != 0) total += (double)seen[p].total * (double)factors[p];
    bool none = !(total > 0) && total == total;
    W    factor = none ? (W)0 : (W)(1 / total);
    for (int64_t i = threadIdx.x; i < d; i += blockDim.x) {
        W sum = 0;
#pragma unroll 8
        for (int p = 0; p < parts; p++) /* a part without keys has written no sums */
            sum += seen[p].total != 0 ? sums[p * d + i] * factors[p] : (W)0;
        store(y + blockIdx.x * d + i, sum * factor);
    }
    if (lse && threadIdx.x == 0) lse[blockIdx.x] = none ? (W)0 : most + (W)log(total);
}

#endif
