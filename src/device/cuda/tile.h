/* device/cuda/tile.h - the product of two matrices whose elements are given by functions: the loop that our own
 * products and convolutions share.
 *
 * A block of threads computes a tile of C from tiles of A and B in shared memory, 16 of k at a time, and loads the next
 * ones while it multiplies. A thread has 4×4 elements of C. k is divided into chunks; each chunk is summed by itself,
 * one k after the other, and the chunks' sums are added in order. The result is thus the same whether one block
 * computes all chunks of its tile or each chunk has a block (`split`) and another kernel adds: only the length of a
 * chunk matters for the bits, never the tile or the number of blocks. */
#ifndef LK__CUDA_TILE_H
#define LK__CUDA_TILE_H

#include "device/cuda/cuda.h"

#include <type_traits>

enum { TILE_DEEP = 16 }; /* of k in shared memory at a time */

/* X × Y threads with 4×4 elements each. */
template <int X, int Y> struct tile_shape {
    static constexpr int x = X, y = Y, threads = X * Y, m = 4 * Y, n = 4 * X;
};
typedef tile_shape<8, 8>   small_tile;  /* 32×32: more blocks for small results */
typedef tile_shape<16, 16> medium_tile; /* 64×64: twice the arithmetic per byte of shared memory */

/* What a matrix is: its elements are at get(begin(i), locate(k)), where begin and locate do the divisions, once for
 * many elements. B is given by columns: begin(j). along_k: neighbours in k are neighbours in memory, so threads load
 * along k. pack: how many neighbours are loaded at once; sizes and addresses are multiples of it. shared_depth: locate
 * is costly, so each thread of a warp does one of a tile's and the others get it by shuffle(). */
template <typename W, int N> struct alignas(N * sizeof(W)) tile_values {
    W at[N];
};
template <int N, typename T>
static __device__ __forceinline__ tile_values<WIDE(T), N> load_values(const T *p) /* NULL: zeros */
{
    tile_values<WIDE(T), N> values;
    lk__pack<T, N>          x;
    if (p) x = load_pack<N>(p);
#pragma unroll
    for (int e = 0; e < N; e++) values.at[e] = p ? load(&x.at[e]) : (WIDE(T))0;
    return values;
}

template <typename T> struct row_place {
    const T *row; /* NULL: outside, where elements are 0 */
};

/* A matrix in memory: (i, k) at p[i*ld + k], or at p[k*ld + i]; or the matrices of a batch. */
template <typename T, bool ALONG_K, int N = 1> struct tile_matrix {
    static constexpr bool along_k = ALONG_K, shared_depth = false;
    static constexpr int  pack = N;
    const T              *p;
    int64_t               ld, batch_step, rows;
    int64_t each; /* not 0: k runs through a batch of matrices, whose k is this: their products are added */
    typedef row_place<T> place;
    typedef int64_t      depth;
    __device__ void      select(int64_t batch) { p += batch * batch_step; }
    __device__ place     begin(int64_t i) const { return place{i < rows ? p + (ALONG_K ? i * ld : i) : NULL}; }
    __device__ depth     locate(int64_t k) const
    {
        if (each == 0) return ALONG_K ? k : k * ld;
        int64_t batch = k / each, rest = k - batch * each;
        return batch * batch_step + (ALONG_K ? rest : rest * ld);
    }
    __device__ const T *find(const place &r, depth k) const { return r.row ? r.row + k : NULL; }
    __device__ tile_values<WIDE(T), N> get(const place &r, depth k) const { return load_values<N>(find(r, k)); }
};

/* One thread's share of loading a tile of SIZE × TILE_DEEP: packs, `step` rows of shared memory apart. */
template <typename W, typename L, int SIZE, int THREADS> struct tile_loader {
    static constexpr int      N = L::pack, across = (L::along_k ? TILE_DEEP : SIZE) / N; /* packs side by side */
    static constexpr int      count = SIZE * TILE_DEEP / N / THREADS, step = THREADS / across;
    typedef tile_values<W, N> packed;
    typename L::place         places[L::along_k ? count : 1];
    packed                    values[count];
    int                       row, deep;

    __device__ void begin(const L &from, int64_t first)
    {
        int side = threadIdx.x % across * N, line = threadIdx.x / across;
        row = L::along_k ? line : side;
        deep = L::along_k ? side : line;
#pragma unroll
        for (int q = 0; q < (L::along_k ? count : 1); q++) places[q] = from.begin(first + row + q * step);
    }
    __device__ void fetch(const L &from, int64_t k, int64_t end)
    {
        if (L::along_k) {
            bool              inside = k + deep < end;
            typename L::depth at = from.locate(inside ? k + deep : k);
#pragma unroll
            for (int q = 0; q < count; q++) values[q] = inside ? from.get(places[L::along_k ? q : 0], at) : packed{};
        } else {
            fetch_across(from, k, end);
        }
    }
    template <typename M>
    __device__ std::enable_if_t<!M::shared_depth> fetch_across(const M &from, int64_t k, int64_t end)
    {
#pragma unroll
        for (int q = 0; q < count; q++) {
            int64_t kq = k + deep + q * step;
            values[q] = kq < end ? from.get(places[0], from.locate(kq)) : packed{};
        }
    }
    template <typename M>
    __device__ std::enable_if_t<M::shared_depth> fetch_across(const M &from, int64_t k, int64_t end)
    {
        int64_t           mine = k + threadIdx.x % TILE_DEEP;
        typename M::depth found = from.locate(mine < end ? mine : k);
#pragma unroll
        for (int q = 0; q < count; q++) {
            typename M::depth at = M::shuffle(found, deep + q * step);
            values[q] = k + deep + q * step < end ? from.get(places[0], at) : packed{};
        }
    }
    __device__ void put(W (*to)[SIZE + 4]) const
    {
#pragma unroll
        for (int q = 0; q < count; q++) {
            if (L::along_k)
#pragma unroll
                for (int e = 0; e < N; e++) to[deep + e][row + q * step] = values[q].at[e];
            else
                *(packed *)&to[deep + q * step][row] = values[q];
        }
    }
};

template <typename W, typename S> struct tile_memory {
    alignas(32) W a[2][TILE_DEEP][S::m + 4]; /* + 4: fewer bank conflicts, rows still aligned for vectors of 4 */
    alignas(32) W b[2][TILE_DEEP][S::n + 4];
};

struct tile_job {
    int64_t m, n, k;
    int64_t chunk;    /* of k */
    int64_t chunks;   /* at least 1, also of k 0 */
    bool    split;    /* a block per chunk: sums go to `partials` */
    bool    in_lanes; /* where split: 8 threads add every 8th chunk each, then these are added: for many chunks */
    void   *partials; /* [chunk][m][n], then [chunk][m or n] of sums */
    void   *a_sums, *b_sums; /* sums over k of A's rows or B's columns */
};

/* sum = Σ over k … end of the tile at (i, j); `extra` for thread t: Σ of row t of A, or of column t of B, where
 * wanted. */
template <typename W, typename A, typename B, typename S>
static __device__ __forceinline__ void sum_chunk(const A &a, const B &b, int64_t i, int64_t j, int64_t k, int64_t end,
                                                 tile_memory<W, S> &memory, bool sum_a, bool sum_b, W (&sum)[4][4],
                                                 W &extra)
{
    tile_loader<W, A, S::m, S::threads> from_a;
    tile_loader<W, B, S::n, S::threads> from_b;
    int                                 x = threadIdx.x % S::x, y = threadIdx.x / S::x, now = 0;
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < 4; c++) sum[r][c] = 0;
    extra = 0;
    from_a.begin(a, i);
    from_b.begin(b, j);
    if (k < end) {
        from_a.fetch(a, k, end);
        from_b.fetch(b, k, end);
    }
    for (; k < end; k += TILE_DEEP, now ^= 1) {
        from_a.put(memory.a[now]);
        from_b.put(memory.b[now]);
        __syncthreads(); /* the other pair was read before the threads came here */
        if (k + TILE_DEEP < end) {
            from_a.fetch(a, k + TILE_DEEP, end);
            from_b.fetch(b, k + TILE_DEEP, end);
        }
#pragma unroll
        for (int q = 0; q < TILE_DEEP; q++) {
            lk__pack<W, 4> u = load_pack<4>(&memory.a[now][q][y * 4]), v = load_pack<4>(&memory.b[now][q][x * 4]);
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int c = 0; c < 4; c++) sum[r][c] += u.at[r] * v.at[c];
        }
        if (sum_a && threadIdx.x < S::m)
            for (int q = 0; q < TILE_DEEP; q++) extra += memory.a[now][q][threadIdx.x];
        if (sum_b && threadIdx.x < S::n)
            for (int q = 0; q < TILE_DEEP; q++) extra += memory.b[now][q][threadIdx.x];
    }
    __syncthreads(); /* before the next chunk writes */
}

/* E, the epilogue: put(i, j, sums) takes 4×4 elements of C at (i, j), of which some may be outside. Blocks: tiles of
 * the batch's results, columns fastest; y: the chunk, where split. */
template <typename W, typename A, typename B, typename E, typename S>
static __global__ void __launch_bounds__(S::threads) multiply_tiles(A a, B b, E epilogue, tile_job job)
{
    __shared__ tile_memory<W, S> memory;
    int64_t tiles_n = (job.n + S::n - 1) / S::n, tiles_m = (job.m + S::m - 1) / S::m, tile = blockIdx.x;
    int64_t j = tile % tiles_n * S::n, i = tile / tiles_n % tiles_m * S::m, batch = tile / tiles_n / tiles_m;
    bool    sum_a = job.a_sums && j == 0, sum_b = job.b_sums && i == 0;
    int     x = threadIdx.x % S::x, y = threadIdx.x / S::x, t = threadIdx.x;
    W       sum[4][4], total[4][4] = {}, extra, extras = 0;
    a.select(batch);
    b.select(batch);
    if (job.split) {
        int64_t chunk = blockIdx.y, first = chunk * job.chunk, last = min(job.k, first + job.chunk);
        sum_chunk<W, A, B, S>(a, b, i, j, first, last, memory, sum_a, sum_b, sum, extra);
        W      *to = (W *)job.partials + (batch * job.chunks + chunk) * job.m * job.n;
        int64_t sums = job.a_sums ? job.m : job.n;
        W      *extra_to = (W *)job.partials + job.chunks * job.m * job.n + chunk * sums;
        for (int r = 0; r < 4; r++)
            for (int c = 0; c < 4; c++) {
                int64_t row = i + y * 4 + r, column = j + x * 4 + c;
                if (row < job.m && column < job.n) to[row * job.n + column] = sum[r][c];
            }
        if (sum_a && t < S::m && i + t < job.m) extra_to[i + t] = extra;
        if (sum_b && t < S::n && j + t < job.n) extra_to[j + t] = extra;
        return;
    }
    for (int64_t chunk = 0; chunk < job.chunks; chunk++) {
        int64_t first = chunk * job.chunk, last = min(job.k, first + job.chunk);
        sum_chunk<W, A, B, S>(a, b, i, j, first, last, memory, sum_a, sum_b, sum, extra);
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int c = 0; c < 4; c++) total[r][c] = chunk ? total[r][c] + sum[r][c] : sum[r][c];
        extras = chunk ? extras + extra : extra;
    }
    epilogue.select(batch);
    epilogue.put(i + y * 4, j + x * 4, total);
    if (sum_a && t < S::m && i + t < job.m) ((W *)job.a_sums)[i + t] = extras;
    if (sum_b && t < S::n && j + t < job.n) ((W *)job.b_sums)[j + t] = extras;
}

/* Where the sums of a split product's chunks are: of result `index` of the batch, or of a sum of A or B after them. */
template <typename W> struct chunk_sums {
    const W   *first;
    int64_t    step, batch, at;
    bool       extra;
    __device__ chunk_sums(const tile_job &job, int64_t index, int64_t batches)
    {
        int64_t each = job.m * job.n, results = each * batches;
        extra = index >= results;
        at = extra ? index - results : index % each;
        batch = extra ? 0 : index / each;
        step = extra ? (job.a_sums ? job.m : job.n) : each;
        first = (const W *)job.partials + (extra ? job.chunks * each : batch * job.chunks * each) + at;
    }
    template <typename E> __device__ void put(const E &epilogue, const tile_job &job, W total) const
    {
        if (extra)
            ((W *)(job.a_sums ? job.a_sums : job.b_sums))[at] = total;
        else
            epilogue.put_one(batch, at / job.n, at % job.n, total);
    }
};

/* Adds the chunks of a split product in order, a result a thread. */
template <typename W, typename E>
static __global__ void add_chunks(E epilogue, tile_job job, int64_t batches, int64_t results)
{
    EACH_INDEX(index, results)
    {
        chunk_sums<W> sums(job, index, batches);
        W             total = sums.first[0];
#pragma unroll 8
        for (int64_t chunk = 1; chunk < job.chunks; chunk++) total += sums.first[chunk * sums.step];
        sums.put(epilogue, job, total);
    }
}

/* The same in 8 lanes: 32 results a block. */
template <typename W, typename E>
static __global__ void __launch_bounds__(256)
    add_chunks_in_lanes(E epilogue, tile_job job, int64_t batches, int64_t results)
{
    __shared__ W  shared[8][32];
    int           x = threadIdx.x % 32, y = threadIdx.x / 32;
    int64_t       index = (int64_t)blockIdx.x * 32 + x;
    chunk_sums<W> sums(job, index < results ? index : 0, batches);
    W             total = 0;
#pragma unroll 8
    for (int64_t chunk = y; chunk < job.chunks; chunk += 8) total += sums.first[chunk * sums.step];
    shared[y][x] = total;
    __syncthreads();
    if (y > 0 || index >= results) return;
    for (int r = 1; r < 8; r++) total += shared[r][x];
    sums.put(epilogue, job, total);
}

/* Chunks of k: at least one. */
static inline tile_job make_tile_job(int64_t m, int64_t n, int64_t k, int64_t chunk)
{
    tile_job job = {};
    job.m = m;
    job.n = n;
    job.k = k;
    job.chunk = chunk;
    job.chunks = k > chunk ? cuda_tiles(k, chunk) : 1;
    return job;
}

/* Whether 32×32 tiles are taken: where larger ones would leave most of a GPU idle, or would be mostly empty. */
static inline bool tile_is_small(int64_t m, int64_t n, int64_t blocks_more)
{
    int64_t medium = cuda_tiles(m, medium_tile::m) * cuda_tiles(n, medium_tile::n) * blocks_more;
    return medium < 256 || m <= small_tile::m || n <= small_tile::n;
}

template <typename W, typename S, typename A, typename B, typename E>
static void launch_tiles(cudaStream_t stream, const A &a, const B &b, const E &epilogue, const tile_job &job,
                         int64_t batch)
{
    int64_t tiles = cuda_tiles(job.m, S::m) * cuda_tiles(job.n, S::n) * batch;
    dim3    grid((unsigned)tiles, job.split ? (unsigned)job.chunks : 1u), block((unsigned)S::threads);
    LAUNCH((multiply_tiles<W, A, B, E, S>), grid, block, 0, stream, a, b, epilogue, job);
}

/* The whole product. A split one adds its chunks in a second kernel. */
template <typename W, typename A, typename B, typename E>
static void multiply(cudaStream_t stream, const A &a, const B &b, const E &epilogue, const tile_job &job, int64_t batch)
{
    if (job.m <= 0 || job.n <= 0 || batch <= 0) return;
    if (tile_is_small(job.m, job.n, batch * (job.split ? job.chunks : 1)))
        launch_tiles<W, small_tile>(stream, a, b, epilogue, job, batch);
    else
        launch_tiles<W, medium_tile>(stream, a, b, epilogue, job, batch);
    if (!job.split) return;
    int64_t n = job.m * job.n * batch + (job.a_sums ? job.m : job.b_sums ? job.n : 0);
    if (job.in_lanes)
        LAUNCH((add_chunks_in_lanes<W, E>), (unsigned)cuda_tiles(n, 32), 256, 0, stream, epilogue, job, batch, n);
    else
        LAUNCH((add_chunks<W, E>), cuda_blocks(n, 256), 256, 0, stream, epilogue, job, batch, n);
}

#endif
