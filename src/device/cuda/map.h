/* device/cuda/map.h - kernels that compute each element of a result by itself: what one thread reads and writes,
 * divisions by numbers that are known on the host, and operands of broadcast shapes. All are bound by bytes. */
#ifndef LK__CUDA_MAP_H
#define LK__CUDA_MAP_H

#include "device/cuda/cuda.h"

/* ---- division ----
 *
 * By a number that the launch knows: a multiplication and a shift where both are below 2^31 (Granlund and Montgomery
 * 1994), which nearly all are; a division otherwise. */
typedef struct divider {
    int64_t  by;
    uint32_t magic, shift;
} divider;

static inline divider make_divider(int64_t by)
{
    divider d = {by, 0, 31}; /* of a larger number: the quotient of what is below 2^31 is 0 */
    if (by < 1 || by > INT32_MAX) return d;
    d.shift = 0;
    while (((int64_t)1 << d.shift) < by) d.shift++;
    d.magic = (uint32_t)((((uint64_t)1 << 32) * (((uint64_t)1 << d.shift) - (uint64_t)by)) / (uint64_t)by + 1);
    return d;
}

static __device__ __forceinline__ int64_t divide(int64_t n, const divider &d)
{
    if (n > INT32_MAX) return n / d.by;
    uint32_t small = (uint32_t)n;
    return ((uint32_t)((uint64_t)small * d.magic >> 32) + small) >> d.shift;
}

/* The quotient; n becomes the remainder. */
static __device__ __forceinline__ int64_t divide_off(int64_t &n, const divider &d)
{
    int64_t quotient = divide(n, d);
    n -= quotient * d.by;
    return quotient;
}

/* ---- one thread, a few packs ----
 *
 * F has PACKED, the elements of its widest pack; values<N>, what is read for N elements; read<N>(at, values) and
 * write<N>(at, values) for elements at … at+N-1. All reads come before the first write, so several are in flight;
 * operands may be the output's memory. */
enum { MAP_THREADS = 256 };

template <int N, int UNROLL, typename F>
static __global__ void __launch_bounds__(MAP_THREADS) map_kernel(F f, int64_t n)
{
    await_previous();
    int64_t                        packs = n / N, first = (int64_t)blockIdx.x * MAP_THREADS * UNROLL + threadIdx.x;
    typename F::template values<N> v[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        if (first + u * MAP_THREADS < packs) f.template read<N>((first + u * MAP_THREADS) * N, v[u]);
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        if (first + u * MAP_THREADS < packs) f.template write<N>((first + u * MAP_THREADS) * N, v[u]);
    if (N > 1 && blockIdx.x == gridDim.x - 1) {
        int64_t                        at = packs * N + threadIdx.x;
        typename F::template values<1> one;
        if (at >= n) return;
        f.template read<1>(at, one);
        f.template write<1>(at, one);
    }
}

/* packed: addresses are multiples of a pack, and no pack crosses the end of a row that F knows. */
template <typename F> static inline void launch_map(const lk__kernel_call *call, const F &f, int64_t n, bool packed)
{
    if (n <= 0) return;
    if (packed && F::PACKED > 1) {
        unsigned blocks = (unsigned)cuda_tiles(n / F::PACKED + 1, 2 * MAP_THREADS);
        LAUNCH_EARLY((map_kernel<F::PACKED, 2, F>), blocks, MAP_THREADS, 0, cuda_stream(call), f, n);
    } else {
        unsigned blocks = (unsigned)cuda_tiles(n, 4 * MAP_THREADS);
        LAUNCH_EARLY((map_kernel<1, 4, F>), blocks, MAP_THREADS, 0, cuda_stream(call), f, n);
    }
}

static inline bool is_aligned(const void *p, size_t bytes) { return (uintptr_t)p % bytes == 0; } /* NULL is */

/* ---- broadcasting ----
 *
 * Axes that all operands traverse alike are merged, so equal shapes are one long axis. */
enum { BROADCAST_MOST = 3 };

typedef struct broadcast {
    int     operands;
    int     rank; /* at least 1 */
    int64_t dims[LK_MAX_RANK];
    int64_t step[BROADCAST_MOST][LK_MAX_RANK]; /* in elements; a step of 0 repeats */
    divider over[LK_MAX_RANK];
    int64_t n;
} broadcast;

/* x's dim that corresponds to y's axis, aligned from the right. */
static inline int64_t dim_under(const lk__kernel_operand *x, const lk__kernel_operand *y, int axis)
{
    int own = axis - (y->rank - x->rank);
    return own < 0 ? 1 : x->dims[own];
}

/* One more axis, from the last to the first. */
static inline void broadcast_axis(broadcast *p, int64_t dim, const int64_t *step)
{
    bool merged = p->rank > 0;
    if (dim == 1) return;
    for (int k = 0; merged && k < p->operands; k++) merged = step[k] == p->step[k][p->rank - 1] * p->dims[p->rank - 1];
    if (merged) {
        p->dims[p->rank - 1] *= dim;
        return;
    }
    for (int k = 0; k < p->operands; k++) p->step[k][p->rank] = step[k];
    p->dims[p->rank++] = dim;
}

/* After the last axis: the axes are put in order. */
static inline void broadcast_finish(broadcast *p, int64_t n)
{
    broadcast back = *p;
    p->n = n;
    if (back.rank == 0) {
        p->dims[p->rank++] = 1;
        for (int k = 0; k < p->operands; k++) p->step[k][0] = 1;
    }
    for (int i = 0; i < back.rank; i++) {
        p->dims[i] = back.dims[back.rank - 1 - i];
        for (int k = 0; k < p->operands; k++) p->step[k][i] = back.step[k][back.rank - 1 - i];
    }
    for (int i = 0; i < p->rank; i++) p->over[i] = make_divider(p->dims[i]);
}

/* The first inputs of a call over its first output. */
static inline broadcast broadcast_inputs(const lk__kernel_call *call, int operands)
{
    const lk__kernel_operand *y = &call->out[0];
    broadcast                 p = {};
    int64_t                   next[BROADCAST_MOST] = {1, 1, 1}, step[BROADCAST_MOST];
    p.operands = operands;
    for (int axis = y->rank - 1; axis >= 0; axis--) {
        for (int k = 0; k < operands; k++) {
            int64_t own = dim_under(&call->in[k], y, axis);
            step[k] = own == 1 ? 0 : next[k];
            next[k] *= own;
        }
        broadcast_axis(&p, y->dims[axis], step);
    }
    broadcast_finish(&p, lk__operand_elements(y));
    return p;
}

/* Whether packs of N elements are in one row, and in one pack of every operand that advances along the row. */
static inline bool broadcast_packs(const broadcast *p, int n)
{
    int last = p->rank - 1;
    if (last > 0 && p->dims[last] % n != 0) return false;
    for (int k = 0; k < p->operands; k++)
        for (int i = 0; p->step[k][last] && i < last; i++)
            if (p->step[k][i] % n != 0) return false;
    return true;
}

/* Where element `at` of the output is in each operand. */
template <int OPERANDS>
static __device__ __forceinline__ void broadcast_offsets(const broadcast &p, int64_t at, int64_t (&offset)[OPERANDS])
{
    for (int k = 0; k < OPERANDS; k++) offset[k] = 0;
    for (int i = p.rank - 1; i > 0; i--) {
        int64_t index = at, outer = divide_off(index, p.over[i]);
        for (int k = 0; k < OPERANDS; k++) offset[k] += index * p.step[k][i];
        at = outer;
    }
    for (int k = 0; k < OPERANDS; k++) offset[k] += at * p.step[k][0];
}

/* N elements, or one of them N times. */
template <int N, typename T> static __device__ __forceinline__ lk__pack<T, N> load_stepped(const T *p, int64_t step)
{
    if (N == 1 || step) return load_pack<N>(p);
    lk__pack<T, N> x;
    T              one = *p;
#pragma unroll
    for (int i = 0; i < N; i++) x.at[i] = one;
    return x;
}

#endif
