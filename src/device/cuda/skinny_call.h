/* device/cuda/skinny_call.h - what the kernels of skinny.cu and skinny_transposed.cu share: their parameters, packs of
 * weights, and the norm that computes the rows of A. */
#ifndef LK__CUDA_FEW_CALL_H
#define LK__CUDA_FEW_CALL_H

#include "device/cuda/async_copy.h"
#include "device/cuda/pack_bits.h"
#include "device/cuda/product_epilogue.h"
#include "device/cuda/skinny.h"

template <typename T> struct skinny_call {
    typedef WIDE(T) W;
    struct part {
        const T            *b;
        int64_t             b_ld, n;
        product_epilogue<T> to;
    };
    const T *a;
    int64_t  a_ld;
    int      k, m, count;
    part     of[LK__FEW_PRODUCTS];
    T       *gated;
    bool     early;
    /* the norm; x NULL: none */
    const T *x, *residual;
    const W *weight, *bias;
    T       *y, *sum;
    W       *mean, *rstd;
    W        epsilon;
    bool     rms;
};

/* ---- the norm, by all threads of a block ----
 *
 * A thread has the packs at THREADS N i of each row, whatever the number of rows: their bits do not depend on it. */

/* The sums of R numbers over the block; all threads get them. `shared` is not used again before the next
 * __syncthreads. */
template <int THREADS, int R, typename W>
static __device__ __forceinline__ void add_over_block(W (&x)[R], W (*shared)[R])
{
    constexpr int WARPS = THREADS / 32;
#pragma unroll
    for (int r = 0; r < R; r++) {
        W sum = warp_sum(x[r]);
        if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32][r] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < R; r++) {
        x[r] = shared[0][r];
#pragma unroll
        for (int w = 1; w < WARPS; w++) x[r] += shared[w][r];
    }
}

template <typename T, int N> static __device__ __forceinline__ void add_pack(lk__pack<T, N> *x, const lk__pack<T, N> &y)
{
#pragma unroll
    for (int e = 0; e < N; e++) store(&x->at[e], load(&x->at[e]) + load(&y.at[e]));
}

/* N numbers from `at` on, in packs of 16 bytes; without p all are `otherwise`. */
template <int N, typename W>
static __device__ __forceinline__ void load_wide(const W *p, int64_t at, W otherwise, W (&to)[N])
{
    constexpr int PACKED = PACK(W);
#pragma unroll
    for (int i = 0; i < N; i += PACKED) {
        lk__pack<W, PACKED> x;
        if (p) x = load_pack<PACKED>(p + at + i);
#pragma unroll
        for (int e = 0; e < PACKED; e++) to[i + e] = p ? x.at[e] : otherwise;
    }
}

/* A block's memory: rows (m, k), then, where that fits, copies of weight and bias, k of each. */
enum { STAGED_BYTES = 28 << 10 };
template <typename T> static inline __host__ __device__ bool stages_norm(const skinny_call<T> &f)
{
    return f.m * f.k * (int)sizeof(T) + f.k * ((f.weight ? 1 : 0) + (f.bias ? 1 : 0)) * (int)sizeof(WIDE(T)) <=
           STAGED_BYTES;
}
template <typename T> static inline size_t norm_bytes(const skinny_call<T> &f)
{
    int numbers = stages_norm(f) ? f.k * ((f.weight ? 1 : 0) + (f.bias ? 1 : 0)) : 0;
    return (size_t)(f.m * f.k) * sizeof(T) + (size_t)numbers * sizeof(WIDE(T));
}

/* What the norm reads besides its rows, while the kernel before still runs: no kernel writes it. A thread copies what
 * it needs itself. */
template <typename T, int THREADS> static __device__ __forceinline__ void stage_norm(const skinny_call<T> &f, T *rows)
{
    typedef WIDE(T) W;
    constexpr int N = PACK(T), PACKED = PACK(W);
    W            *to = (W *)(rows + f.m * f.k);
    if (!stages_norm(f)) return;
#pragma unroll 1
    for (int i = (int)threadIdx.x * N; i < f.k; i += THREADS * N)
#pragma unroll
        for (int e = 0; e < N; e += PACKED) {
            if (f.weight) copy_pack(to + i + e, f.weight + i + e, true);
            if (f.bias) copy_pack(to + (f.weight ? f.k : 0) + i + e, f.bias + i + e, true);
        }
    copies_commit();
}

/* to: (m, k), then what stage_norm copied, which the thread has waited for. */
template <typename T, int R, int THREADS>
static __device__ __forceinline__ void normalise_rows(const skinny_call<T> &f, T *to)
{
    typedef WIDE(T) W;
    constexpr int N = PACK(T);
    __shared__ W  shared[2][THREADS / 32][R];
    bool          writes = blockIdx.x == 0;
    int           first = (int)threadIdx.x * N;
    W             mean[R] = {}, squares[R] = {};
    const W      *weight = f.weight, *bias = f.bias;
    if (stages_norm(f)) {
        weight = f.weight ? (const W *)(to + f.m * f.k) : NULL;
        bias = f.bias ? (const W *)(to + f.m * f.k) + (f.weight ? f.k : 0) : NULL;
    }
#pragma unroll 1
    for (int i = first; i < f.k; i += THREADS * N)
#pragma unroll
        for (int r = 0; r < R; r++) {
            if (r >= f.m) continue;
            int            at = r * f.k + i;
            lk__pack<T, N> x = load_pack<N>(f.x + at), y = load_pack<N>((f.residual ? f.residual : f.x) + at);
            if (f.residual) add_pack<T, N>(&x, y);
            if (writes && f.sum) store_pack<N>(f.sum + at, x);
            store_pack<N>(to + at, x);
#pragma unroll
            for (int e = 0; e < N; e++) mean[r] += load(&x.at[e]);
        }
    if (!f.rms) add_over_block<THREADS>(mean, shared[0]);
#pragma unroll
    for (int r = 0; r < R; r++) mean[r] = f.rms ? (W)0 : mean[r] / (W)f.k;
#pragma unroll 1
    for (int i = first; i < f.k; i += THREADS * N)
#pragma unroll
        for (int r = 0; r < R; r++) {
            if (r >= f.m) continue;
            lk__pack<T, N> x = load_pack<N>(to + r * f.k + i);
#pragma unroll
            for (int e = 0; e < N; e++) squares[r] += (load(&x.at[e]) - mean[r]) * (load(&x.at[e]) - mean[r]);
        }
    add_over_block<THREADS>(squares, shared[1]);
#pragma unroll
    for (int r = 0; r < R; r++) squares[r] = (W)1 / (W)sqrt(squares[r] / (W)f.k + f.epsilon); /* now 1 / deviation */
#pragma unroll 1
    for (int i = first; i < f.k; i += THREADS * N) {
        W w[N], b[N];
        load_wide<N>(weight, i, (W)1, w);
        load_wide<N>(bias, i, (W)0, b);
#pragma unroll
        for (int r = 0; r < R; r++) {
            if (r >= f.m) continue;
            int            at = r * f.k + i;
            lk__pack<T, N> x = load_pack<N>(to + at), y;
#pragma unroll
            for (int e = 0; e < N; e++) store(&y.at[e], (load(&x.at[e]) - mean[r]) * squares[r] * w[e] + b[e]);
            store_pack<N>(to + at, y);
            if (writes && f.y) store_pack<N>(f.y + at, y);
        }
    }
    if (!writes || threadIdx.x >= R || (int)threadIdx.x >= f.m) return;
#pragma unroll
    for (int r = 0; r < R; r++) {
        if ((int)threadIdx.x != r) continue;
        if (f.mean) f.mean[r] = mean[r];
        if (f.rstd) f.rstd[r] = squares[r];
    }
}

/* skinny_transposed.cu: B transposed. */
void lk__skinny_transposed(const lk__kernel_call *call, const skinny_call<bf16> &f);
void lk__skinny_transposed(const lk__kernel_call *call, const skinny_call<float> &f);

#endif
