/* device/cuda/peer_move.h - what the kernels of queued collectives do with data: copies between this rank's buffers,
 * scratch memory and peers' buffers, and reductions over ranks with the bits of lk__reduce (base/reduce.c). */
#ifndef LK__CUDA_PEER_MOVE_H
#define LK__CUDA_PEER_MOVE_H

#include "device/cuda/partial.h"
#include "device/cuda/peer_gate.h"

/* Where bytes are: at an address, or in a rank's scratch memory, in the half that the next gate round publishes or the
 * one that the last round published. A half is free again when the round after is complete: a rank that arrives there
 * has read it. */
typedef enum peer_space { AT_ADDRESS, IN_NEXT_HALF, IN_LAST_HALF } peer_space;

/* Bytes in order. With rows, byte e is at (first + e) / row * pitch + (first + e) % row from the base on. */
typedef struct peer_run {
    char      *base; /* in scratch memory: the offset from the beginning of half 0 */
    peer_space space;
    int32_t    rank;
    int64_t    row, pitch, first; /* row 0: contiguous */
} peer_run;

typedef struct peer_copies {
    int32_t  n;
    peer_run from[LK__PEERS_MOST], to[LK__PEERS_MOST];
    int64_t  bytes[LK__PEERS_MOST];
} peer_copies;

typedef struct peer_reduction {
    int32_t      n, results; /* inputs, of all ranks in order; places that get the result */
    lk_reduce_op op;
    int64_t      count;
    peer_run     from[LK__PEERS_MOST], to[LK__PEERS_MOST]; /* inputs have the same rows, results none */
} peer_reduction;

/* passed: gate rounds so far. */
static __device__ __forceinline__ char *run_base(const peer_call &c, const peer_run &run, uint64_t passed)
{
    if (run.space == AT_ADDRESS) return run.base;
    uint64_t half = (passed + (run.space == IN_LAST_HALF)) & 1;
    return c.group->scratch[run.rank] + (int64_t)run.base + (int64_t)half * c.half_bytes;
}

static __device__ __forceinline__ int64_t run_offset(const peer_run &run, int64_t e)
{
    return run.row ? (run.first + e) / run.row * run.pitch + (run.first + e) % run.row : e;
}

/* Bits of addresses and distances: their lowest one is the largest power of two that divides all of them. */
static __device__ __forceinline__ uint64_t run_alignment(const peer_run &run, const char *base)
{
    return (uint64_t)(uintptr_t)base | (uint64_t)run.row | (uint64_t)run.pitch | (uint64_t)run.first;
}

/* ---- copies ---- */

template <typename U>
static __device__ inline void copy_units(const peer_run &from, const char *source, const peer_run &to, char *target,
                                         int64_t bytes)
{
    enum { UNROLL = 4 };
    int64_t units = bytes / (int64_t)sizeof(U), threads = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < units; i += UNROLL * threads) {
        U x[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u * threads < units)
                x[u] = *(const U *)(source + run_offset(from, (i + u * threads) * (int64_t)sizeof(U)));
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u * threads < units) *(U *)(target + run_offset(to, (i + u * threads) * (int64_t)sizeof(U))) = x[u];
    }
    for (int64_t e = units * (int64_t)sizeof(U) + threadIdx.x; e < bytes && blockIdx.x == 0; e += blockDim.x)
        target[run_offset(to, e)] = source[run_offset(from, e)];
}

static __device__ inline void run_copies(const peer_call &c, const peer_copies &copies, uint64_t passed)
{
    for (int i = 0; i < copies.n; i++) {
        const char *source = run_base(c, copies.from[i], passed);
        char       *target = run_base(c, copies.to[i], passed);
        uint64_t    bits = run_alignment(copies.from[i], source) | run_alignment(copies.to[i], target);
        if (bits % 16 == 0)
            copy_units<uint4>(copies.from[i], source, copies.to[i], target, copies.bytes[i]);
        else if (bits % 4 == 0)
            copy_units<uint32_t>(copies.from[i], source, copies.to[i], target, copies.bytes[i]);
        else if (bits % 2 == 0)
            copy_units<uint16_t>(copies.from[i], source, copies.to[i], target, copies.bytes[i]);
        else
            copy_units<uint8_t>(copies.from[i], source, copies.to[i], target, copies.bytes[i]);
    }
}

/* ---- reductions ---- */

/* Integers are computed in 64 bits, which wrap: stored, they are what their own type gives. */
template <typename T> struct peer_number : partial_of<T> {
};
/* lk__to_bf16 (base/bf16.h): the GPU's own conversion turns every NaN into the same one. */
template <> struct peer_number<bf16> : partial_of<bf16> {
    static __device__ __forceinline__ bf16 store(float x)
    {
        uint32_t bits = bits_of(x), rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
        return __ushort_as_bfloat16((unsigned short)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded));
    }
};
template <typename T> struct peer_integer {
    typedef int64_t                        type;
    static __device__ __forceinline__ type load(T x) { return x; }
    static __device__ __forceinline__ T    store(type x) { return (T)x; }
};
template <> struct peer_number<int8_t> : peer_integer<int8_t> {
};
template <> struct peer_number<uint8_t> : peer_integer<uint8_t> {
};
template <> struct peer_number<int32_t> : peer_integer<int32_t> {
};
template <> struct peer_number<int64_t> : peer_integer<int64_t> {
};

template <typename A> static __device__ __forceinline__ A peer_sum(A x, A y) { return x + y; }
template <typename A> static __device__ __forceinline__ A peer_product(A x, A y) { return x * y; }
static __device__ __forceinline__ int64_t                 peer_sum(int64_t x, int64_t y)
{
    return (int64_t)((uint64_t)x + (uint64_t)y);
}
static __device__ __forceinline__ int64_t peer_product(int64_t x, int64_t y)
{
    return (int64_t)((uint64_t)x * (uint64_t)y);
}

/* SUMS: the reduction is a sum or an average. NaN if one of the two is; the left one if both are. */
template <bool SUMS, typename A> static __device__ __forceinline__ A combine(lk_reduce_op op, A x, A y)
{
    if (SUMS || op == LK_SUM || op == LK_AVG) return peer_sum(x, y);
    if (op == LK_PROD) return peer_product(x, y);
    if (op == LK_MIN) return x < y || x != x ? x : y;
    return x > y || x != x ? x : y;
}

/* An average by multiplication where that is the same. */
template <typename A> static __device__ __forceinline__ A average(A x, int n)
{
    return (n & (n - 1)) == 0 ? x * ((A)1 / (A)n) : x / (A)n;
}
static __device__ __forceinline__ int64_t average(int64_t x, int n) { return x / n; }

/* The addresses of one reduction. */
template <int N, typename T> struct peer_operands {
    const T *from[N];
    T       *to[LK__PEERS_MOST];
    bool     aligned; /* to 16 bytes */
};

template <int N, typename T>
static __device__ __forceinline__ void find_operands(const peer_call &c, const peer_reduction &r, uint64_t passed,
                                                     peer_operands<N, T> &x)
{
    uint64_t bits = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (i >= r.n) continue;
        x.from[i] = (const T *)run_base(c, r.from[i], passed);
        bits |= run_alignment(r.from[i], (const char *)x.from[i]);
    }
#pragma unroll
    for (int i = 0; i < LK__PEERS_MOST; i++) {
        if (i >= r.results) continue;
        x.to[i] = (T *)run_base(c, r.to[i], passed);
        bits |= (uintptr_t)x.to[i];
    }
    x.aligned = bits % 16 == 0;
}

/* The tree of base/tree.h over n inputs of N at most, leaf after leaf as a binary counter: level l has a whole subtree
 * of 2^l leaves where bit l of the number of leaves so far is set; in the end the subtrees are combined from the
 * smallest on. */
template <int N, int M, bool SUMS, typename T>
static __device__ __forceinline__ lk__pack<T, M> reduce_pack(const peer_reduction &r, const lk__pack<T, M> *raw)
{
    typedef peer_number<T>        number;
    typedef typename number::type A;
    enum { LEVELS = N == 2 ? 2 : N == 4 ? 3 : 4 };
    lk__pack<T, M> out;
#pragma unroll
    for (int i = 0; i < M; i++) {
        A level[LEVELS] = {}, x = 0;
#pragma unroll
        for (int leaf = 0; leaf < N; leaf++) {
            if (leaf >= r.n) continue;
            x = number::load(raw[leaf].at[i]);
            int l = 0;
#pragma unroll
            for (; l < LEVELS - 1 && (leaf >> l & 1); l++) x = combine<SUMS>(r.op, level[l], x);
            level[l] = x;
        }
        bool first = true;
#pragma unroll
        for (int l = 0; l < LEVELS; l++) {
            if (!(r.n >> l & 1)) continue;
            x = first ? level[l] : combine<SUMS>(r.op, level[l], x);
            first = false;
        }
        out.at[i] = number::store(r.op == LK_AVG ? average(x, r.n) : x);
    }
    return out;
}

template <int N, int M, int UNROLL, bool SUMS, typename T>
static __device__ inline void reduce_packs(const peer_reduction &r, const peer_operands<N, T> &x, int64_t begin,
                                           int64_t packs)
{
    int64_t threads = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < packs; i += UNROLL * threads) {
        lk__pack<T, M> raw[UNROLL][N];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int64_t at = begin + (i + u * threads) * M;
            if (i + u * threads >= packs) continue;
            if (r.from[0].row) at = run_offset(r.from[0], at * (int64_t)sizeof(T)) / (int64_t)sizeof(T);
#pragma unroll
            for (int leaf = 0; leaf < N; leaf++)
                if (leaf < r.n) raw[u][leaf] = load_pack<M>(x.from[leaf] + at);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (i + u * threads >= packs) continue;
            lk__pack<T, M> out = reduce_pack<N, M, SUMS, T>(r, raw[u]);
#pragma unroll
            for (int k = 0; k < LK__PEERS_MOST; k++)
                if (k < r.results) store_pack<M>(x.to[k] + begin + (i + u * threads) * M, out);
        }
    }
}

/* N: 2, 4 or 8, and not below the number of ranks. */
template <int N, bool SUMS, typename T>
static __device__ inline void run_reduction(const peer_call &c, const peer_reduction &r, uint64_t passed)
{
    enum {
        PACKED = 16 / (int)sizeof(T),
        M = SUMS || PACKED < 4 ? PACKED : 4, /* more only takes the compiler long */
        UNROLL = N == 2   ? 4
                 : N == 4 ? 2
                          : 1
    };
    peer_operands<N, T> x;
    find_operands<N, T>(c, r, passed, x);
    int64_t packs = x.aligned ? r.count / M : 0;
    reduce_packs<N, M, UNROLL, SUMS, T>(r, x, 0, packs);
    reduce_packs<N, 1, UNROLL, SUMS, T>(r, x, packs * M, r.count - packs * M);
}

/* ---- kernels ----
 *
 * One that waits has one block: it publishes, waits, and takes what others published. The others have as many as the
 * data is worth, before and after a wait. */
enum { PEER_THREADS = 512 };

static __global__ void __launch_bounds__(32) gate_kernel(peer_call c)
{
    wait_for_earlier();
    if (has_stopped(c)) {
        if (threadIdx.x == 0) leave_group(c);
        return;
    }
    if (threadIdx.x == 0 && c.first) begin_call(c);
    if (!pass_gate(c)) return;
    begin_next();
    end_kernel(c);
}

static __global__ void __launch_bounds__(PEER_THREADS) copy_kernel(peer_call c, peer_copies copies)
{
    await_previous();
    if (has_stopped(c)) return;
    if (threadIdx.x == 0 && blockIdx.x == 0 && c.first) begin_call(c);
    run_copies(c, copies, c.group->passed[c.other]);
    end_kernel(c);
}

template <int N, bool SUMS, typename T>
static __global__ void __launch_bounds__(PEER_THREADS) reduce_kernel(peer_call c, peer_reduction r)
{
    await_previous();
    if (has_stopped(c)) return;
    bool late = c.pushes && threadIdx.x == 0 && !may_push(c);
    if (c.pushes && __syncthreads_or(late)) return;
    run_reduction<N, SUMS, T>(c, r, c.group->passed[c.other]);
    end_kernel(c);
}

/* Publishes and waits; returns whether all have arrived. `passed`: gate rounds before. */
static __device__ inline bool publish_and_wait(const peer_call &c, const peer_copies &publish, uint64_t *passed)
{
    wait_for_earlier();
    *passed = c.group->passed[c.other];
    if (has_stopped(c)) {
        if (threadIdx.x == 0) leave_group(c);
        return false;
    }
    if (threadIdx.x == 0) begin_call(c);
    run_copies(c, publish, *passed);
    bool all = pass_gate(c);
    if (all) begin_next();
    return all;
}

static __global__ void __launch_bounds__(PEER_THREADS)
    small_copy_kernel(peer_call c, peer_copies publish, peer_copies copies)
{
    uint64_t passed;
    if (!publish_and_wait(c, publish, &passed)) return;
    run_copies(c, copies, passed + 1);
    end_kernel(c);
}

template <int N, bool SUMS, typename T>
static __global__ void __launch_bounds__(PEER_THREADS)
    small_reduce_kernel(peer_call c, peer_copies publish, peer_reduction r)
{
    uint64_t passed;
    if (!publish_and_wait(c, publish, &passed)) return;
    run_reduction<N, SUMS, T>(c, r, passed + 1);
    end_kernel(c);
}

/* ---- patterns ---- */

static __device__ __forceinline__ uint32_t pattern_word(uint32_t seed, int64_t i)
{
    uint32_t x = (seed ^ (uint32_t)i) * 0x9E3779B1u;
    return (x ^ x >> 15) * 0x85EBCA77u;
}

static __global__ void __launch_bounds__(PEER_THREADS)
    write_pattern_kernel(uint32_t *memory, int64_t words, uint32_t seed)
{
    EACH_INDEX(i, words) memory[i] = pattern_word(seed, i);
    __threadfence_system();
}

static __global__ void __launch_bounds__(PEER_THREADS)
    check_pattern_kernel(const uint32_t *memory, int64_t words, uint32_t seed, int32_t *differs)
{
    bool other = false;
    EACH_INDEX(i, words) other |= __ldcv(memory + i) != pattern_word(seed, i);
    if (other) *differs = 1; /* all that write, write the same */
}

#endif
