/* max.cu - the maximum over one axis and its index, with x as (outer, n, inner). Of equal values the first is taken,
 * and NaN is greater than all numbers, so the result does not depend on the order of comparisons. Bound by bytes. */
#include "device/cuda/map.h"

enum { THREADS = 256, WARP_MOST = 2048, LANES = THREADS / 32 }; /* elements of a row that one warp compares */

template <typename T> struct best {
    T       value;
    int32_t index;
};

template <typename T> static __device__ __forceinline__ best<T> nothing(void)
{
    return best<T>{-(T)INFINITY, INT32_MAX}; /* any element replaces it */
}

template <typename T> static __device__ __forceinline__ best<T> better(best<T> a, best<T> b)
{
    bool more = b.value > a.value || (b.value != b.value && a.value == a.value);
    bool same = b.value == a.value || (b.value != b.value && a.value != a.value);
    return more || (same && b.index < a.index) ? b : a;
}

template <typename T> static __device__ __forceinline__ best<T> warp_best(best<T> b)
{
    for (int offset = 16; offset > 0; offset /= 2) {
        best<T> other = {__shfl_xor_sync(0xffffffffu, b.value, offset), __shfl_xor_sync(0xffffffffu, b.index, offset)};
        b = better(b, other);
    }
    return b;
}

template <typename T> static __device__ __forceinline__ void put_best(best<T> b, T *y, int32_t *index, int64_t at)
{
    if (y) y[at] = b.value;
    if (index) index[at] = b.index;
}

/* Along contiguous elements: WARPS warps a row. */
template <typename T, int WARPS>
static __global__ void row_best_kernel(const T *x, T *y, int32_t *index, int64_t rows, int64_t n)
{
    __shared__ best<T> shared[LANES];
    int                lane = threadIdx.x % (32 * WARPS), warp = threadIdx.x / 32;
    int64_t            row = (int64_t)blockIdx.x * (LANES / WARPS) + threadIdx.x / (32 * WARPS);
    best<T>            b = nothing<T>();
    if (row < rows) {
#pragma unroll 4
        for (int64_t i = lane; i < n; i += 32 * WARPS) b = better(b, best<T>{x[row * n + i], (int32_t)i});
    }
    b = warp_best(b);
    if (WARPS > 1) {
        if (lane % 32 == 0) shared[warp] = b;
        __syncthreads();
        for (int w = 0; lane == 0 && w < WARPS; w++) b = better(b, shared[w]);
    }
    if (lane == 0 && row < rows) put_best(b, y, index, row);
}

/* Along columns: 32 of them a block, eight rows at a time. */
template <typename T>
static __global__ void column_best_kernel(const T *x, T *y, int32_t *index, int64_t n, int64_t inner, divider tiles)
{
    __shared__ best<T> shared[LANES][32];
    int64_t            tile = blockIdx.x, outer = divide_off(tile, tiles), column = tile * 32 + threadIdx.x % 32;
    best<T>            b = nothing<T>();
    if (column < inner) {
#pragma unroll 4
        for (int64_t k = threadIdx.x / 32; k < n; k += LANES)
            b = better(b, best<T>{x[(outer * n + k) * inner + column], (int32_t)k});
    }
    shared[threadIdx.x / 32][threadIdx.x % 32] = b;
    __syncthreads();
    if (threadIdx.x >= 32 || column >= inner) return;
    for (int l = 1; l < LANES; l++) b = better(b, shared[l][threadIdx.x]);
    put_best(b, y, index, outer * inner + column);
}

template <typename T> static void launch_max(const lk__kernel_call *call, T *y, int32_t *index)
{
    const lk__kernel_operand *in = &call->in[0];
    const T                  *x = (const T *)in->data;
    int                       axis = call->attrs->axis;
    int64_t      outer = cuda_product(in, 0, axis), n = in->dims[axis], inner = cuda_product(in, axis + 1, in->rank);
    cudaStream_t stream = cuda_stream(call);
    if (outer * n * inner == 0) return;
    if (inner > 1) {
        int64_t tiles = cuda_tiles(inner, 32);
        LAUNCH(column_best_kernel<T>, (unsigned)(outer * tiles), THREADS, 0, stream, x, y, index, n, inner,
               make_divider(tiles));
    } else if (n <= WARP_MOST) {
        LAUNCH((row_best_kernel<T, 1>), (unsigned)cuda_tiles(outer, LANES), THREADS, 0, stream, x, y, index, outer, n);
    } else {
        LAUNCH((row_best_kernel<T, LANES>), (unsigned)outer, THREADS, 0, stream, x, y, index, outer, n);
    }
}

extern "C" lk_status lk__cuda_max(const lk__kernel_call *call)
{
    BY_WIDE_ELEMENT(call->in[0].dtype, T, launch_max<T>(call, out_data<T>(call, 0), out_data<int32_t>(call, 1));)
    return lk__cuda_launched(call);
}

extern "C" lk_status lk__cuda_argmax(const lk__kernel_call *call)
{
    BY_WIDE_ELEMENT(call->in[0].dtype, T, launch_max<T>(call, (T *)NULL, out_data<int32_t>(call, 0));)
    return lk__cuda_launched(call);
}

/* ---- max_grad ---- */

template <typename T> struct max_grad_map {
    enum { PACKED = 1 };
    const T       *dy;
    const int32_t *index;
    T             *dx;
    divider        n, inner;
    template <int N> struct values {
        T x;
    };
    template <int N> __device__ __forceinline__ void read(int64_t at, values<N> &v) const
    {
        int64_t column = at, row = divide_off(column, inner), k = row, outer = divide_off(k, n);
        int64_t from = outer * inner.by + column;
        v.x = index[from] == k ? dy[from] : (T)0;
    }
    template <int N> __device__ __forceinline__ void write(int64_t at, values<N> &v) const { dx[at] = v.x; }
};

template <typename T> static void launch_max_grad(const lk__kernel_call *call)
{
    const lk__kernel_operand *dx = &call->out[0];
    int                       axis = call->attrs->axis;
    max_grad_map<T> f = {in_data<T>(call, 0), in_data<int32_t>(call, 1), (T *)dx->data, make_divider(dx->dims[axis]),
                         make_divider(cuda_product(dx, axis + 1, dx->rank))};
    launch_map(call, f, lk__operand_elements(dx), false);
}

extern "C" lk_status lk__cuda_max_grad(const lk__kernel_call *call)
{
    BY_WIDE_ELEMENT(call->out[0].dtype, T, launch_max_grad<T>(call);)
    return lk__cuda_launched(call);
}
