/* few_rows.cu - products whose A has up to 8 rows: every element of B is read once, 16 bytes at a time, and multiplied with all rows. The
 * bytes of B bound it: generation reads all weights for each token. Sums are divided over lanes by the shape alone. */
#include "device/cuda/product_epilogue.h"

enum { MOST = 8, THREADS = 256, WARPS = THREADS / 32 };

/* B transposed, (n, k): a warp has a column of C, and its lanes every 32nd pack of k. */
template <typename T, int R>
static __global__ void __launch_bounds__(THREADS) multiply_columns(const T *a, int64_t a_ld, const T *b, int64_t b_ld,
                                                                   int m, int64_t n, int64_t k, product_epilogue<T> to)
{
    typedef WIDE(T) W;
    constexpr int N = PACK(T);
    int           lane = threadIdx.x % 32;
    int64_t       column = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    W             sums[R] = {};
    if (column >= n) return; /* all of a warp */
    b += column * b_ld;
#pragma unroll 4
    for (int64_t p = lane * N; p < k; p += 32 * N) {
        lk__pack<T, N> w = load_pack<N>(b + p);
#pragma unroll
        for (int r = 0; r < R; r++) {
            lk__pack<T, N> x = load_pack<N>(a + (r < m ? r : 0) * a_ld + p);
#pragma unroll
            for (int e = 0; e < N; e++) sums[r] += load(&x.at[e]) * load(&w.at[e]);
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        W total = warp_sum(sums[r]);
        if (lane == 0 && r < m) to.put_one(0, r, column, total);
    }
}

/* B (k, n): C lanes side by side have a pack of columns each, the others of a block every 256/C-th k. */
template <typename T, int R, int C>
static __global__ void __launch_bounds__(THREADS) multiply_rows(const T *a, int64_t a_ld, const T *b, int64_t b_ld,
                                                                int m, int64_t n, int64_t k, product_epilogue<T> to)
{
    typedef WIDE(T) W;
    constexpr int N = PACK(T), DEEP = THREADS / C;
    __shared__ W  shared[WARPS][R][C * N];
    int           side = threadIdx.x % C, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t       first = (int64_t)blockIdx.x * C * N, column = first + side * N;
    W             sums[R][N] = {};
    if (column < n)
#pragma unroll 4
        for (int64_t q = threadIdx.x / C; q < k; q += DEEP) {
            lk__pack<T, N> w = load_pack<N>(b + q * b_ld + column);
#pragma unroll
            for (int r = 0; r < R; r++) {
                W x = load(a + (r < m ? r : 0) * a_ld + q);
#pragma unroll
                for (int e = 0; e < N; e++) sums[r][e] += x * load(&w.at[e]);
            }
        }
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int e = 0; e < N; e++) {
            W x = sums[r][e];
            for (int offset = 16; offset >= C; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
            if (lane < C) shared[warp][r][lane * N + e] = x;
        }
    __syncthreads();
    for (int i = threadIdx.x; i < R * C * N; i += THREADS) {
        int r = i / (C * N), at = i % (C * N);
        W   total = 0;
        for (int w = 0; w < WARPS; w++) total += shared[w][r][at];
        if (r < m && first + at < n) to.put_one(0, r, first + at, total);
    }
}

template <typename T, int R> static void run_rows(cudaStream_t stream, const lk__cuda_product *p)
{
    constexpr int       N = PACK(T);
    const T            *a = (const T *)p->a, *b = (const T *)p->b;
    product_epilogue<T> to = product_epilogue_of<T>(p);
    int                 m = (int)p->m;
    if (p->b_transposed)
        LAUNCH((multiply_columns<T, R>), (unsigned)cuda_tiles(p->n, WARPS), THREADS, 0, stream, a, p->a_ld, b, p->b_ld,
               m, p->n, p->k, to);
    else if (p->n >= 1536) /* enough blocks with 64 bytes of a row each */
        LAUNCH((multiply_rows<T, R, 4>), (unsigned)cuda_tiles(p->n, 4 * N), THREADS, 0, stream, a, p->a_ld, b, p->b_ld,
               m, p->n, p->k, to);
    else
        LAUNCH((multiply_rows<T, R, 2>), (unsigned)cuda_tiles(p->n, 2 * N), THREADS, 0, stream, a, p->a_ld, b, p->b_ld,
               m, p->n, p->k, to);
}

template <typename T> static void run_few(cudaStream_t stream, const lk__cuda_product *p)
{
    if (p->m == 1)
        run_rows<T, 1>(stream, p);
    else if (p->m == 2)
        run_rows<T, 2>(stream, p);
    else if (p->m <= 4)
        run_rows<T, 4>(stream, p);
    else
        run_rows<T, 8>(stream, p);
}

static bool packs_align(const void *p, int64_t ld, int64_t pack) { return (uintptr_t)p % 16 == 0 && ld % pack == 0; }

bool lk__cuda_few_rows_suit(const lk__cuda_device *device, const lk__cuda_product *p)
{
    int64_t pack = p->type == LK_BF16 ? PACK(bf16) : PACK(float);
    if (device->base.by_heuristic || p->m < 1 || p->m > MOST || p->batch != 1 || p->a_transposed || p->a_sums ||
        p->b_sums)
        return false;
    if ((p->type != LK_BF16 && p->type != LK_F32) || p->n * p->k < 1 << 14) return false;
    if (!packs_align(p->b, p->b_ld, pack)) return false;
    return p->b_transposed ? p->k % pack == 0 && packs_align(p->a, p->a_ld, pack) : p->n % pack == 0;
}

lk_status lk__cuda_few_rows(const lk__kernel_call *call, const lk__cuda_product *p)
{
    if (p->type == LK_BF16)
        run_few<bf16>(cuda_stream(call), p);
    else
        run_few<float>(cuda_stream(call), p);
    return lk__cuda_launched(call);
}
