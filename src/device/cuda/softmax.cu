/* softmax.cu - softmax and log-softmax along one axis, and their gradients, with x as (outer, n, inner). Sums are in
 * double. A row is read two or three times, from the caches after the first. Along the last axis a warp or a block
 * processes a row; otherwise a thread does, and neighbouring threads have neighbouring rows. */
#include "device/cuda/map.h"
#include "device/cuda/unary.h"

enum { THREADS = 256, WARP_MOST = 512 }; /* elements of a row that one warp has */

/* The threads that share one row: LANES of them, 1, 32 or THREADS. */
template <int LANES, typename T> static __device__ __forceinline__ T team_max(T x, T *shared)
{
    return LANES == 1 ? x : LANES == 32 ? warp_max(x) : block_max(x, shared);
}
template <int LANES> static __device__ __forceinline__ double team_sum(double x, double *shared)
{
    return LANES == 1 ? x : LANES == 32 ? warp_sum(x) : block_sum(x, shared);
}

typedef struct rows {
    int64_t outer, n, inner;
    divider over; /* inner */
} rows;

/* Where the thread's row begins; *n: its elements, 0 where there is no such row. */
template <int LANES> static __device__ __forceinline__ int64_t row_begin(const rows &r, int64_t *n)
{
    int64_t row = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / LANES;
    *n = 0;
    if (row >= r.outer * r.inner) return 0;
    *n = r.n;
    int64_t column = row, outer = divide_off(column, r.over);
    return outer * r.n * r.inner + column;
}

/* In place: an element is read for the last time by the thread that then writes it. */
template <typename T, int LANES, bool LOG> static __global__ void softmax_kernel(rows r, const T *x, T *y)
{
    __shared__ double sums[32];
    __shared__ T      maxima[32];
    int64_t           n, at = row_begin<LANES>(r, &n), first = threadIdx.x % LANES;
    T                 most = -(T)INFINITY;
    double            total = 0;
    x += at;
    y += at;
#pragma unroll 4
    for (int64_t k = first; k < n; k += LANES) {
        T value = x[k * r.inner];
        most = value > most ? value : most;
    }
    most = team_max<LANES>(most, maxima);
#pragma unroll 4
    for (int64_t k = first; k < n; k += LANES) total += (double)real_exp(x[k * r.inner] - most);
    total = team_sum<LANES>(total, sums);
    T by = (T)(LOG ? log(total) : 1 / total);
#pragma unroll 4
    for (int64_t k = first; k < n; k += LANES) {
        T value = x[k * r.inner] - most;
        y[k * r.inner] = LOG ? value - by : real_exp(value) * by;
    }
}

template <typename T, int LANES, bool LOG>
static __global__ void softmax_grad_kernel(rows r, const T *dy, const T *y, T *dx)
{
    __shared__ double sums[32];
    int64_t           n, at = row_begin<LANES>(r, &n), first = threadIdx.x % LANES;
    double            total = 0;
    dy += at;
    y += at;
    dx += at;
#pragma unroll 4
    for (int64_t k = first; k < n; k += LANES)
        total += (double)(LOG ? dy[k * r.inner] : dy[k * r.inner] * y[k * r.inner]);
    T sum = (T)team_sum<LANES>(total, sums);
#pragma unroll 4
    for (int64_t k = first; k < n; k += LANES) {
        T d = dy[k * r.inner], out = y[k * r.inner];
        dx[k * r.inner] = LOG ? d - real_exp(out) * sum : (d - sum) * out;
    }
}

template <typename T, int LANES, bool LOG>
static void launch_rows(const lk__kernel_call *call, const rows &r, bool grad)
{
    unsigned     blocks = (unsigned)cuda_tiles(r.outer * r.inner, THREADS / LANES);
    cudaStream_t stream = cuda_stream(call);
    T           *to = out_data<T>(call, 0);
    if (grad)
        LAUNCH((softmax_grad_kernel<T, LANES, LOG>), blocks, THREADS, 0, stream, r, in_data<T>(call, 0),
               in_data<T>(call, 1), to);
    else
        LAUNCH((softmax_kernel<T, LANES, LOG>), blocks, THREADS, 0, stream, r, in_data<T>(call, 0), to);
}

template <typename T, bool LOG> static void launch_softmax(const lk__kernel_call *call, bool grad)
{
    const lk__kernel_operand *x = &call->in[0];
    int                       axis = call->attrs->axis;
    rows r = {cuda_product(x, 0, axis), x->rank ? x->dims[axis] : 1, cuda_product(x, axis + 1, x->rank), {}};
    r.over = make_divider(r.inner);
    if (r.outer * r.n * r.inner == 0) return;
    if (r.inner > 1)
        launch_rows<T, 1, LOG>(call, r, grad);
    else if (r.n <= WARP_MOST)
        launch_rows<T, 32, LOG>(call, r, grad);
    else
        launch_rows<T, THREADS, LOG>(call, r, grad);
}

extern "C" lk_status lk__cuda_softmax(const lk__kernel_call *call)
{
    BY_WIDE_ELEMENT(call->out[0].dtype, T, (launch_softmax<T, false>(call, false));)
    return lk__cuda_launched(call);
}

extern "C" lk_status lk__cuda_log_softmax(const lk__kernel_call *call)
{
    BY_WIDE_ELEMENT(call->out[0].dtype, T, (launch_softmax<T, true>(call, false));)
    return lk__cuda_launched(call);
}

extern "C" lk_status lk__cuda_softmax_grad(const lk__kernel_call *call)
{
    BY_WIDE_ELEMENT(call->out[0].dtype, T, (launch_softmax<T, false>(call, true));)
    return lk__cuda_launched(call);
}

extern "C" lk_status lk__cuda_log_softmax_grad(const lk__kernel_call *call)
{
    BY_WIDE_ELEMENT(call->out[0].dtype, T, (launch_softmax<T, true>(call, true));)
    return lk__cuda_launched(call);
}
