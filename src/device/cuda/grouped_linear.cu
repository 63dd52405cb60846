/* grouped_linear.cu - one product for each expert, of its rows with its weight, and the gradient of the weights, on the
 * tiles of tile.h; bf16 uses grouped_tensor.cu where that supports it. The rows of each expert are known only in the
 * device's memory, so the grid has a block for each tile that there could be; each block finds its expert by the
 * offsets, and blocks without a tile end. */
#include "device/cuda/grouped.h"
#include "device/cuda/tile.h"

enum { CHUNK = 256 }; /* of k: part of the bits, as in products.cu */

/* The sum over k … end in chunks. */
template <typename W, typename A, typename B, typename S>
static __device__ __forceinline__ void sum_chunks(const A &a, const B &b, int64_t i, int64_t j, int64_t k, int64_t end,
                                                  tile_memory<W, S> &memory, W (&total)[4][4])
{
    W    sum[4][4], extra;
    bool first = true;
    for (; k < end; k += CHUNK, first = false) {
        sum_chunk<W, A, B, S>(a, b, i, j, k, min(end, k + CHUNK), memory, false, false, sum, extra);
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int c = 0; c < 4; c++) total[r][c] = first ? sum[r][c] : total[r][c] + sum[r][c];
    }
}

/* Elements (i, j) of a tile to rows of `columns`, as far as they exist. */
template <typename W, typename C, typename S>
static __device__ __forceinline__ void store_tile(C *to, int64_t i, int64_t j, int64_t rows, int64_t columns,
                                                  const W (&total)[4][4])
{
    int x = threadIdx.x % S::x * 4, y = threadIdx.x / S::x * 4;
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (i + y + r < rows && j + x + c < columns) store(to + (i + y + r) * columns + j + x + c, total[r][c]);
}

template <typename T, typename C, typename A, typename B, typename S>
static __global__ void __launch_bounds__(S::threads) grouped_tiles(A a, B b, C *y, grouped_job job)
{
    typedef WIDE(T) W;
    __shared__ tile_memory<W, S> memory;
    int64_t tiles_n = (job.n + S::n - 1) / S::n, j = blockIdx.x % tiles_n * S::n, tile = blockIdx.x / tiles_n;
    int64_t begin = 0, end = 0, e = 0;
    W       total[4][4] = {};
    for (; e < job.experts; e++, begin = end) {
        end = end_of_expert(job.offsets, e, begin, job.rows);
        int64_t tiles = (end - begin + S::m - 1) / S::m;
        if (tile < tiles) break;
        tile -= tiles;
    }
    if (e == job.experts) { /* what is past the last expert is 0 */
        store_tile<W, C, S>(y + begin * job.n, tile * S::m, j, job.rows - begin, job.n, total);
        return;
    }
    a.p += begin * job.k;
    a.rows = end - begin;
    b.select(e);
    sum_chunks<W, A, B, S>(a, b, tile * S::m, j, 0, job.k, memory, total);
    store_tile<W, C, S>(y + begin * job.n, tile * S::m, j, end - begin, job.n, total);
}

template <typename T, typename C, typename S, typename B>
static void launch_grouped(const lk__kernel_call *call, const B &b, const grouped_job &job)
{
    tile_matrix<T, true> a = {in_data<T>(call, 0), job.k, 0, 0, 0};
    int64_t              tiles = job.rows / S::m + job.experts + 1; /* each group may end with a part of a tile */
    LAUNCH((grouped_tiles<T, C, tile_matrix<T, true>, B, S>), (unsigned)(tiles * cuda_tiles(job.n, S::n)), S::threads,
           0, cuda_stream(call), a, b, out_data<C>(call, 0), job);
}

template <typename T, typename C, bool ALONG_K>
static void run_grouped_to(const lk__kernel_call *call, const grouped_job &job)
{
    tile_matrix<T, ALONG_K> b = {in_data<T>(call, 1), ALONG_K ? job.k : job.n, job.n * job.k, job.n, 0};
    if (tile_is_small(job.rows / (job.experts ? job.experts : 1), job.n, job.experts))
        launch_grouped<T, C, small_tile>(call, b, job);
    else
        launch_grouped<T, C, medium_tile>(call, b, job);
}

/* The result has the element type, or that of sums. */
template <typename T, bool ALONG_K> static void run_grouped(const lk__kernel_call *call, const grouped_job &job)
{
    if (call->out[0].dtype == call->in[0].dtype)
        run_grouped_to<T, T, ALONG_K>(call, job);
    else
        run_grouped_to<T, WIDE(T), ALONG_K>(call, job);
}

extern "C" lk_status lk__cuda_grouped_linear(const lk__kernel_call *call)
{
    const lk__kernel_operand *x = &call->in[0], *w = &call->in[1];
    bool                      in_first = call->attrs->transposed;
    grouped_job               job = {in_data<int32_t>(call, 2), w->dims[0], x->dims[0], 0, w->dims[in_first ? 2 : 1],
                                     w->dims[in_first ? 1 : 2]};
    lk_status                 status;
    if (job.rows == 0 || job.n == 0) return LK_OK;
    if (lk__cuda_grouped_tensor(call, job, &status)) return status;
    if (in_first) {
        BY_ELEMENT(x->dtype, T, (run_grouped<T, false>(call, job));)
    } else {
        BY_ELEMENT(x->dtype, T, (run_grouped<T, true>(call, job));)
    }
    return lk__cuda_launched(call);
}

/* A tile of one expert's gradient; k runs over its rows. */
template <typename T, typename M, typename S>
static __global__ void __launch_bounds__(S::threads) grouped_weight_tiles(M a, M b, WIDE(T) * dw, grouped_job job)
{
    typedef WIDE(T) W;
    __shared__ tile_memory<W, S> memory;
    int64_t tiles_n = (b.rows + S::n - 1) / S::n, tiles_m = (a.rows + S::m - 1) / S::m, tile = blockIdx.x;
    int64_t j = tile % tiles_n * S::n, i = tile / tiles_n % tiles_m * S::m, expert = tile / tiles_n / tiles_m;
    int64_t begin = 0, end = 0;
    W       total[4][4] = {};
    for (int64_t e = 0; e <= expert; e++) {
        begin = end;
        end = end_of_expert(job.offsets, e, begin, job.rows);
    }
    sum_chunks<W, M, M, S>(a, b, i, j, begin, end, memory, total);
    store_tile<W, W, S>(dw + expert * a.rows * b.rows, i, j, a.rows, b.rows, total);
}

template <typename T, typename S>
static void launch_grouped_weight(const lk__kernel_call *call, const tile_matrix<T, false> &a,
                                  const tile_matrix<T, false> &b, const grouped_job &job)
{
    int64_t tiles = cuda_tiles(a.rows, S::m) * cuda_tiles(b.rows, S::n) * job.experts;
    LAUNCH((grouped_weight_tiles<T, tile_matrix<T, false>, S>), (unsigned)tiles, S::threads, 0, cuda_stream(call), a, b,
           out_data<WIDE(T)>(call, 0), job);
}

template <typename T> static void run_grouped_weight(const lk__kernel_call *call, const grouped_job &job)
{
    int                   row = call->attrs->transposed ? 0 : 1;
    int64_t               m = call->in[row].dims[1], n = call->in[1 - row].dims[1];
    tile_matrix<T, false> a = {in_data<T>(call, row), m, 0, m, 0}, b = {in_data<T>(call, 1 - row), n, 0, n, 0};
    if (m == 0 || n == 0) return;
    if (tile_is_small(m, n, job.experts))
        launch_grouped_weight<T, small_tile>(call, a, b, job);
    else
        launch_grouped_weight<T, medium_tile>(call, a, b, job);
}

extern "C" lk_status lk__cuda_grouped_linear_grad_weight(const lk__kernel_call *call)
{
    const lk__kernel_operand *dw = &call->out[0];
    grouped_job job = {in_data<int32_t>(call, 2), dw->dims[0], call->in[0].dims[0], dw->dims[1], dw->dims[2], 0};
    lk_status   status;
    if (job.m == 0 || job.n == 0) return LK_OK;
    if (lk__cuda_grouped_tensor_grad_weight(call, job, &status)) return status;
    BY_ELEMENT(call->in[0].dtype, T, run_grouped_weight<T>(call, job);)
    return lk__cuda_launched(call);
}
