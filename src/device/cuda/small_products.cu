/* small_products.cu - products with so little work that they spend most of their time waiting for memory: a block
 * computes a 16×16 tile of C and loads 128 values of k at once, so that it waits only once for the product of a small
 * layer. Sixteen groups of its threads each take every sixteenth k; their sums are added in order. How sums are divided
 * depends on k alone, so a row of C has the same bits for every number of rows.
 *
 * Both gradients of a linear layer read the same dy: they are one launch, with relu's gradient at the end of the
 * input's. */
#include "device/cuda/backend.h"
#include "device/cuda/product_epilogue.h"

enum { SIDE = 16, DEEP = 128, THREADS = 256, GROUPS = 16, ROW = SIDE + 4 }; /* rows of 16 bytes */

/* Tiles of A and B, k first; later the groups' sums. */
union small_memory {
    struct {
        float a[DEEP][ROW], b[DEEP][ROW];
    } tiles;
    struct {
        float groups[GROUPS][SIDE][SIDE], extras[GROUPS][SIDE];
    } sums;
};

/* One thread's share of loading a tile: N neighbours at once. (row, k) is at p[row*ld + k] or, not ALONG_K, at p[k*ld +
 * row]. */
template <typename T, bool ALONG_K, int N> struct small_loader {
    static constexpr int count = SIDE * DEEP / N / THREADS;
    lk__pack<T, N>       values[count];

    static __device__ __forceinline__ int row_of(int q)
    {
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        if (!ALONG_K) return threadIdx.x % (SIDE / N) * N;
        return N == 1 ? warp * 2 + q % 2 : warp % 2 * 8 + lane % 8; /* 8 rows side by side: few bank conflicts */
    }
    static __device__ __forceinline__ int deep_of(int q)
    {
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        if (!ALONG_K) return threadIdx.x / (SIDE / N) + q * (THREADS / (SIDE / N));
        return N == 1 ? lane + q / 2 * 32 : (warp / 2 * 4 + lane / 8 + q * 16) * N;
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

/* The tile's sums over a group's share of k, for this thread's 4×4 elements. */
static __device__ __forceinline__ void add_share(const small_memory &memory, int x, int y, int group, int end,
                                                 float (&sum)[4][4])
{
#pragma unroll 4
    for (int q = group; q < end; q += GROUPS) {
        lk__pack<float, 4> u = load_pack<4>(&memory.tiles.a[q][y * 4]), v = load_pack<4>(&memory.tiles.b[q][x * 4]);
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int c = 0; c < 4; c++) sum[r][c] += u.at[r] * v.at[c];
    }
}

template <typename T> struct small_job {
    const T            *a, *b;
    int64_t             m, n, k, a_ld, b_ld;
    float              *a_sums, *b_sums; /* of A's rows, of B's columns; NULL: not wanted */
    product_epilogue<T> to;
    const T            *mask; /* C is also stored at `masked`, 0 where this is at most 0; NULL: it is not */
    T                  *masked;
};

/* Tile number `block` of C. */
template <typename T, bool A_ALONG_K, bool B_ALONG_K, int N>
static __device__ __forceinline__ void multiply_tile(const small_job<T> &job, unsigned block, small_memory &memory)
{
    small_loader<T, A_ALONG_K, N> from_a;
    small_loader<T, B_ALONG_K, N> from_b;
    unsigned                      columns = (unsigned)((job.n + SIDE - 1) / SIDE);
    int64_t                       i = (int64_t)(block / columns) * SIDE, j = (int64_t)(block % columns) * SIDE;
    int     t = threadIdx.x, group = t / 16, x = t % 4, y = t % 16 / 4, row = t / SIDE, column = t % SIDE;
    bool    sum_a = job.a_sums && j == 0, sum_b = job.b_sums && i == 0;
    bool    inside = i + row < job.m && j + column < job.n;
    int64_t place = (i + row) * job.to.ld + j + column;
    float   sum[4][4] = {}, extra = 0;
    from_a.fetch(job.a, job.a_ld, i, job.m, 0, job.k);
    from_b.fetch(job.b, job.b_ld, j, job.n, 0, job.k);
    /* What the thread needs to finish its element is read now, too. */
    bool  early = job.to.bias && job.to.alpha == 1 && job.to.beta == 0;
    float bias = early && j + column < job.n ? load(job.to.bias + j + column) : 0;
    bool  kept = job.mask && inside ? !(load(job.mask + place) <= 0) : true;
    for (int64_t k = 0; k < job.k; k += DEEP) {
        int deep = job.k - k < DEEP ? (int)(job.k - k + 15) / 16 * 16 : (int)DEEP;
        if (k > 0) __syncthreads(); /* the tiles before were read */
        from_a.put(memory.tiles.a);
        from_b.put(memory.tiles.b);
        __syncthreads();
        if (k + DEEP < job.k) {
            from_a.fetch(job.a, job.a_ld, i, job.m, k + DEEP, job.k);
            from_b.fetch(job.b, job.b_ld, j, job.n, k + DEEP, job.k);
        }
        add_share(memory, x, y, group, deep, sum);
        for (int q = row; (sum_a || sum_b) && q < deep; q += GROUPS)
            extra += sum_a ? memory.tiles.a[q][column] : memory.tiles.b[q][column];
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 4; r++)
        store_pack<4>(&memory.sums.groups[group][y * 4 + r][x * 4],
                      lk__pack<float, 4>{sum[r][0], sum[r][1], sum[r][2], sum[r][3]});
    memory.sums.extras[row][column] = extra;
    __syncthreads();
    float total = memory.sums.groups[0][row][column];
#pragma unroll
    for (int g = 1; g < GROUPS; g++) total += memory.sums.groups[g][row][column];
    if (inside) {
        product_epilogue<T> to = job.to;
        if (early) to.bias = NULL;
        float c = to.finish(place, j + column, early ? total + bias : total);
        if (job.masked != to.c) to.write(to.c, place, c);
        if (job.masked) store(job.masked + place, kept ? c : 0);
    }
    if (t >= SIDE || (!sum_a && !sum_b)) return;
#pragma unroll
    for (int g = 1; g < GROUPS; g++) extra += memory.sums.extras[g][t];
    if (sum_a && i + t < job.m) job.a_sums[i + t] = extra;
    if (sum_b && j + t < job.n) job.b_sums[j + t] = extra;
}

template <typename T, bool A_ALONG_K, bool B_ALONG_K, int N>
static __global__ void __launch_bounds__(THREADS) multiply_small(const __grid_constant__ small_job<T> job)
{
    await_previous();
    __shared__ small_memory memory;
    multiply_tile<T, A_ALONG_K, B_ALONG_K, N>(job, blockIdx.x, memory);
}

/* dw = dyᵀ x or its transpose in the first blocks, dx = dy w behind them. */
template <typename T, bool W_ALONG_K, int N_DW, int N_DX>
static __global__ void __launch_bounds__(THREADS)
    multiply_gradients(const __grid_constant__ small_job<T> dw, const __grid_constant__ small_job<T> dx,
                       unsigned blocks)
{
    await_previous();
    __shared__ small_memory memory;
    if (blockIdx.x < blocks)
        multiply_tile<T, false, false, N_DW>(dw, blockIdx.x, memory);
    else
        multiply_tile<T, true, W_ALONG_K, N_DX>(dx, blockIdx.x - blocks, memory);
}

template <typename T> static small_job<T> describe_job(const lk__cuda_product *p)
{
    small_job<T> job = {};
    job.a = (const T *)p->a;
    job.b = (const T *)p->b;
    job.m = p->m;
    job.n = p->n;
    job.k = p->k;
    job.a_ld = p->a_ld;
    job.b_ld = p->b_ld;
    job.a_sums = (float *)p->a_sums;
    job.b_sums = (float *)p->b_sums;
    job.to = product_epilogue_of<T>(p);
    return job;
}
static unsigned count_tiles(const lk__cuda_product *p)
{
    return (unsigned)(cuda_tiles(p->m, SIDE) * cuda_tiles(p->n, SIDE));
}

template <typename T, bool A_ALONG_K, bool B_ALONG_K>
static void run_layout(cudaStream_t stream, const lk__cuda_product *p, bool packs)
{
    if (packs)
        LAUNCH_EARLY((multiply_small<T, A_ALONG_K, B_ALONG_K, 4>), count_tiles(p), THREADS, 0, stream,
                     describe_job<T>(p));
    else
        LAUNCH_EARLY((multiply_small<T, A_ALONG_K, B_ALONG_K, 1>), count_tiles(p), THREADS, 0, stream,
                     describe_job<T>(p));
}

/* Whether packs of 4 are whole and aligned; `across`: elements from one to the next of which lie side by side. */
static bool packs_align(const void *p, int64_t ld, int64_t across, size_t size)
{
    return (uintptr_t)p % (4 * size) == 0 && ld % 4 == 0 && across % 4 == 0;
}

template <typename T> static bool has_packs(const lk__cuda_product *p)
{
    return packs_align(p->a, p->a_ld, p->a_transposed ? p->m : p->k, sizeof(T)) &&
           packs_align(p->b, p->b_ld, p->b_transposed ? p->k : p->n, sizeof(T));
}

template <typename T> static void run_small(cudaStream_t stream, const lk__cuda_product *p)
{
    bool packs = has_packs<T>(p);
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

/* ---- both gradients of a layer ---- */

template <typename T, bool W_ALONG_K, int N_DW>
static void run_layout_gradients(cudaStream_t stream, const small_job<T> &dw, const small_job<T> &dx, unsigned first,
                                 unsigned all, bool packs)
{
    if (packs)
        LAUNCH_EARLY((multiply_gradients<T, W_ALONG_K, N_DW, 4>), all, THREADS, 0, stream, dw, dx, first);
    else
        LAUNCH_EARLY((multiply_gradients<T, W_ALONG_K, N_DW, 1>), all, THREADS, 0, stream, dw, dx, first);
}

template <typename T>
static void run_gradients(cudaStream_t stream, const lk__cuda_product *dw, const lk__cuda_product *dx, const void *mask,
                          void *masked)
{
    small_job<T> first = describe_job<T>(dw), second = describe_job<T>(dx);
    unsigned     blocks = count_tiles(dw), all = blocks + count_tiles(dx);
    bool         packs = has_packs<T>(dw), others = has_packs<T>(dx);
    second.mask = (const T *)mask;
    second.masked = (T *)masked;
    if (dx->b_transposed && packs)
        run_layout_gradients<T, true, 4>(stream, first, second, blocks, all, others);
    else if (dx->b_transposed)
        run_layout_gradients<T, true, 1>(stream, first, second, blocks, all, others);
    else if (packs)
        run_layout_gradients<T, false, 4>(stream, first, second, blocks, all, others);
    else
        run_layout_gradients<T, false, 1>(stream, first, second, blocks, all, others);
}

lk_status lk__cuda_small_gradients(const lk__kernel_call *call, const lk__cuda_product *dw, const lk__cuda_product *dx,
                                   const void *mask, void *masked)
{
    if (dw->type == LK_BF16)
        run_gradients<bf16>(cuda_stream(call), dw, dx, mask, masked);
    else
        run_gradients<float>(cuda_stream(call), dw, dx, mask, masked);
    return lk__cuda_launched(call);
}
