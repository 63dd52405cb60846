/* device/cuda/sum.h - sums in double over all elements of an operand, in an order that depends on their number alone: a
 * block adds a fixed part of them, and the parts' sums are added by one block. */
#ifndef LK__CUDA_SUM_H
#define LK__CUDA_SUM_H

#include "device/cuda/cuda.h"

enum { SUM_THREADS = 256, SUM_PART = 16384 }; /* elements of a part */

static inline int64_t sum_parts(int64_t n) { return n > SUM_PART ? cuda_tiles(n, SUM_PART) : 1; }

/* Where the K sums go; NULL: not needed. */
template <int K> struct sums_out {
    double *to[K];
};

template <int K> static __device__ __forceinline__ void store_sums(const double (&sum)[K], const sums_out<K> &out)
{
    if (threadIdx.x) return;
#pragma unroll
    for (int k = 0; k < K; k++)
        if (out.to[k]) *out.to[k] = sum[k];
}

/* F::add<N>(at, sum): adds what elements at … at+N-1 give to the K sums. */
template <int N, bool ALIGNED, int K, typename F>
static __global__ void __launch_bounds__(SUM_THREADS) part_sums_kernel(F f, int64_t n, double *partial, sums_out<K> out)
{
    await_previous();
    __shared__ double shared[32];
    int64_t           begin = (int64_t)blockIdx.x * SUM_PART, end = begin + SUM_PART < n ? begin + SUM_PART : n;
    double            sum[K] = {};
    int64_t           whole = begin + (end - begin) / N * N;
#pragma unroll 4
    for (int64_t at = begin + threadIdx.x * N; at < whole; at += SUM_THREADS * N) {
        if (ALIGNED) f.template add<N>(at, sum);
#pragma unroll
        for (int i = 0; !ALIGNED && i < N; i++) f.template add<1>(at + i, sum);
    }
    if (N > 1)
        for (int64_t at = whole + threadIdx.x; at < end; at += SUM_THREADS) f.template add<1>(at, sum);
#pragma unroll
    for (int k = 0; k < K; k++) sum[k] = block_sum(sum[k], shared);
    if (gridDim.x == 1)
        store_sums(sum, out);
    else if (threadIdx.x == 0)
        for (int k = 0; k < K; k++) partial[(int64_t)blockIdx.x * K + k] = sum[k];
}

/* Of `parts` times K sums. One block. */
template <int K>
static __global__ void __launch_bounds__(SUM_THREADS)
    add_parts_kernel(const double *partial, int64_t parts, sums_out<K> out)
{
    await_previous();
    __shared__ double shared[32];
    double            sum[K] = {};
#pragma unroll 4
    for (int64_t part = threadIdx.x; part < parts; part += SUM_THREADS)
#pragma unroll
        for (int k = 0; k < K; k++) sum[k] += partial[part * K + k];
#pragma unroll
    for (int k = 0; k < K; k++) sum[k] = block_sum(sum[k], shared);
    store_sums(sum, out);
}

/* Bytes of workspace of launch_sums. */
static inline size_t sums_workspace(int64_t n, int k) { return (size_t)sum_parts(n) * (size_t)k * sizeof(double); }

/* aligned: F's operands are, to packs of N. The sums have the same bits where they are not. Sums of nothing are 0. */
template <int N, int K, typename F>
static inline void launch_sums(const lk__kernel_call *call, const F &f, int64_t n, const sums_out<K> &out, bool aligned)
{
    int64_t      parts = sum_parts(n);
    double      *partial = (double *)call->workspace;
    cudaStream_t stream = cuda_stream(call);
    if (aligned)
        LAUNCH_EARLY((part_sums_kernel<N, true, K, F>), (unsigned)parts, SUM_THREADS, 0, stream, f, n, partial, out);
    else
        LAUNCH_EARLY((part_sums_kernel<N, false, K, F>), (unsigned)parts, SUM_THREADS, 0, stream, f, n, partial, out);
    if (parts > 1) LAUNCH_EARLY(add_parts_kernel<K>, 1, SUM_THREADS, 0, stream, partial, parts, out);
}

#endif
