/* small_products.cu - products of so little work that waiting for memory is most of their time: a block has a 32×32 tile of C and loads
 * 128 of k at once, so that it waits once for products of a small layer. Four groups of its threads each take a part of k; their sums
 * are added in order. How sums are divided depends on k alone, so a row of C has the same bits for every number of rows. */
#include "device/cuda/product_epilogue.h"

enum { SIDE = 32, DEEP = 128, THREADS = 256, GROUPS = 4, WARPS = THREADS / 32, ROW = SIDE + 4 }; /* rows of 16 bytes */

/* Tiles of A and B, k first; later the groups' sums. */
union small_memory {
    struct {
        float a[DEEP][ROW], b[DEEP][ROW];
    } tiles;
    struct {
        float groups[GROUPS][SIDE][SIDE], extras[WARPS][SIDE];
    } sums;
};

/* One thread's share of loading a tile: N neighbours at once. (row, k) is at p[row*ld + k] or, not ALONG_K, at p[k*ld + row]. */
template <typename T, bool ALONG_K, int N> struct small_loader {
    static constexpr int count = SIDE * DEEP / N / THREADS;
    lk__pack<T, N>       values[count];

    static __device__ __forceinline__ int row_of(int q)
    {
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        if (!ALONG_K) return threadIdx.x % (SIDE / N) * N;
        return N == 1 ? warp * 4 + q % 4 : warp % 4 * 8 + lane % 8; /* 8 rows side by side: few bank conflicts */
    }
    static __device__ __forceinline__ int deep_of(int q)
    {
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        if (!ALONG_K) return threadIdx.x / (SIDE / N) + q * (THREADS / (SIDE / N));
        return N == 1 ? lane + q / 4 * 32 : (warp / 4 * 4 + lane / 8 + q * 8) * N;
    }
    __device__ __forceinline__ void fetch(const T *p, int64_t ld, int64_t first, int64_t rows, int64_t k, int64_t end)
    {
#pragma unroll
        for (int q = 0; q < count; q++) {
            int64_t row = first + row_of(q), at = k + deep_of(q);
            bool    inside = row < rows && at < end;
            values[q] = inside ? load_pack<N>(p + (ALONG_K ? row * ld + at : at * ld + row)) : lk__pack<T, N>{};
        }
    }
    __device__ __forceinline__ void put(float (*to)[ROW]) const
    {
#pragma unroll
        for (int q = 0; q < count; q++)
#pragma unroll
            for (int e = 0; e < N; e++)
                to[deep_of(q) + (ALONG_K ? e : 0)][row_of(q) + (ALONG_K ? 0 : e)] = load(&values[q].at[e]);
    }
};

/* The tile's sums over one part of k, for this thread's 4×4 elements. */
static __device__ __forceinline__ void add_part(const small_memory &memory, int x, int y, int first, int end,
                                                float (&sum)[4][4])
{
#pragma unroll 4
    for (int q = first; q < end; q++) {
        lk__pack<float, 4> u = load_pack<4>(&memory.tiles.a[q][y * 4]), v = load_pack<4>(&memory.tiles.b[q][x * 4]);
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int c = 0; c < 4; c++) sum[r][c] += u.at[r] * v.at[c];
    }
}

/* a_sums: of A's rows, b_sums: of B's columns; NULL: not wanted. */
struct small_job {
    int64_t m, n, k, a_ld, b_ld;
    float  *a_sums, *b_sums;
};

template <typename T, bool A_ALONG_K, bool B_ALONG_K, int N>
static __global__ void __launch_bounds__(THREADS)
    multiply_small(const T *a, const T *b, small_job job, product_epilogue<T> to)
{
    await_previous();
    __shared__ small_memory       memory;
    small_loader<T, A_ALONG_K, N> from_a;
    small_loader<T, B_ALONG_K, N> from_b;
    unsigned                      columns = (unsigned)((job.n + SIDE - 1) / SIDE);
    int64_t i = (int64_t)(blockIdx.x / columns) * SIDE, j = (int64_t)(blockIdx.x % columns) * SIDE;
    int     t = threadIdx.x, group = t / 64, x = t % 8, y = t % 64 / 8;
    bool    sum_a = job.a_sums && j == 0, sum_b = job.b_sums && i == 0;
    float   sum[4][4] = {}, extra = 0;
    from_a.fetch(a, job.a_ld, i, job.m, 0, job.k);
    from_b.fetch(b, job.b_ld, j, job.n, 0, job.k);
    bool  early = to.bias && to.alpha == 1 && to.beta == 0; /* the bias of the column that this thread finishes */
    float bias = early && j + t % SIDE < job.n ? load(to.bias + j + t % SIDE) : 0;
    if (early) to.bias = NULL;
    for (int64_t k = 0; k < job.k; k += DEEP) {
        int deep = job.k - k < DEEP ? (int)(job.k - k + 15) / 16 * 16 : (int)DEEP;
        if (k > 0) __syncthreads(); /* the tiles before were read */
        from_a.put(memory.tiles.a);
        from_b.put(memory.tiles.b);
        __syncthreads();
        if (k + DEEP < job.k) {
            from_a.fetch(a, job.a_ld, i, job.m, k + DEEP, job.k);
            from_b.fetch(b, job.b_ld, j, job.n, k + DEEP, job.k);
        }
        add_part(memory, x, y, group * deep / GROUPS, (group + 1) * deep / GROUPS, sum);
        for (int q = t / SIDE; (sum_a || sum_b) && q < deep; q += WARPS)
            extra += sum_a ? memory.tiles.a[q][t % SIDE] : memory.tiles.b[q][t % SIDE];
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < 4; c++) memory.sums.groups[group][y * 4 + r][x * 4 + c] = sum[r][c];
    memory.sums.extras[t / SIDE][t % SIDE] = extra;
    __syncthreads();
    for (int e = t; e < SIDE * SIDE; e += THREADS) {
        int   r = e / SIDE, c = e % SIDE;
        float total = memory.sums.groups[0][r][c];
        for (int g = 1; g < GROUPS; g++) total += memory.sums.groups[g][r][c];
        if (i + r < job.m && j + c < job.n) to.put_one(0, i + r, j + c, early ? total + bias : total);
    }
    if (t >= SIDE) return;
    for (int w = 1; w < WARPS; w++) extra += memory.sums.extras[w][t];
    if (sum_a && i + t < job.m) job.a_sums[i + t] = extra;
    if (sum_b && j + t < job.n) job.b_sums[j + t] = extra;
}

template <typename T, bool A_ALONG_K, bool B_ALONG_K>
static void run_layout(cudaStream_t stream, const lk__cuda_product *p, bool packs)
{
    small_job           job = {p->m, p->n, p->k, p->a_ld, p->b_ld, (float *)p->a_sums, (float *)p->b_sums};
    product_epilogue<T> to = product_epilogue_of<T>(p);
    const T            *a = (const T *)p->a, *b = (const T *)p->b;
    unsigned            blocks = (unsigned)(cuda_tiles(p->m, SIDE) * cuda_tiles(p->n, SIDE));
    if (packs)
        LAUNCH_EARLY((multiply_small<T, A_ALONG_K, B_ALONG_K, 4>), blocks, THREADS, 0, stream, a, b, job, to);
    else
        LAUNCH_EARLY((multiply_small<T, A_ALONG_K, B_ALONG_K, 1>), blocks, THREADS, 0, stream, a, b, job, to);
}

/* Whether packs of 4 are whole and aligned; `across`: elements from one to the next of which lie side by side. */
static bool packs_align(const void *p, int64_t ld, int64_t across, size_t size)
{
    return (uintptr_t)p % (4 * size) == 0 && ld % 4 == 0 && across % 4 == 0;
}

template <typename T> static void run_small(cudaStream_t stream, const lk__cuda_product *p)
{
    bool packs = packs_align(p->a, p->a_ld, p->a_transposed ? p->m : p->k, sizeof(T)) &&
                 packs_align(p->b, p->b_ld, p->b_transposed ? p->k : p->n, sizeof(T));
    if (p->a_transposed && p->b_transposed)
        run_layout<T, false, true>(stream, p, packs);
    else if (p->a_transposed)
        run_layout<T, false, false>(stream, p, packs);
    else if (p->b_transposed)
        run_layout<T, true, true>(stream, p, packs);
    else
        run_layout<T, true, false>(stream, p, packs);
}

lk_status lk__cuda_small_product(const lk__kernel_call *call, const lk__cuda_product *p)
{
    if (p->type == LK_BF16)
        run_small<bf16>(cuda_stream(call), p);
    else
        run_small<float>(cuda_stream(call), p);
    return lk__cuda_launched(call);
}
