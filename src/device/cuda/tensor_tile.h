/* device/cuda/tensor_tile.h - the product of tile.h by tensor cores: bf16 operands, sums in f32.
 *
 * A block of 8 warps has a tile of C; tiles of A and B, with 32 values of k, are loaded into shared memory by
 * asynchronous copies of 16 bytes, two or three stages ahead. Matrices are those of tile.h, read 8 neighbouring
 * elements at a time: along k for A (or along its rows, where A is stored transposed), along its columns for B. Packs
 * of 16 bytes are permuted within a row so that the 8 rows that ldmatrix reads are in different banks. The order of
 * additions depends on the shape alone. */
#ifndef LK__CUDA_TENSOR_TILE_H
#define LK__CUDA_TENSOR_TILE_H

#include "device/cuda/async_copy.h"
#include "device/cuda/tile.h"

#include <string.h>

enum { TENSOR_DEEP = 32, TENSOR_THREADS = 256 };

#if !defined(LK_CUDA_EMULATED)

/* Four 8×8 matrices; lane l gives the address of row l%8 of matrix l/8. */
template <bool TRANSPOSED> static __device__ __forceinline__ void load_matrices(unsigned (&r)[4], const bf16 *row)
{
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(shared_address(row))
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(shared_address(row))
                     : "memory");
}

/* c += a b: 16×16 times 16×8. */
static __device__ __forceinline__ void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#else

/* The same instructions, for the emulation: warps exchange registers through shared memory. */

/* Lane l holds (l/4, 2 (l%4)) and the element right of it; transposed: the element below it. */
template <bool TRANSPOSED> static __device__ inline void load_matrices(unsigned (&r)[4], const bf16 *row)
{
    __shared__ const bf16 *rows[TENSOR_THREADS];
    int                    lane = threadIdx.x % 32, warp = threadIdx.x / 32 * 32;
    rows[threadIdx.x] = row;
    __syncwarp();
    for (int q = 0; q < 4; q++) {
        lk__pack<bf16, 2> pair;
        for (int e = 0; e < 2; e++)
            pair.at[e] = TRANSPOSED ? rows[warp + q * 8 + lane % 4 * 2 + e][lane / 4]
                                    : rows[warp + q * 8 + lane / 4][lane % 4 * 2 + e];
        memcpy(&r[q], &pair, sizeof pair);
    }
    __syncwarp();
}

static __device__ inline void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    __shared__ unsigned all[TENSOR_THREADS][6];
    int                 lane = threadIdx.x % 32, warp = threadIdx.x / 32 * 32;
    unsigned            mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    for (int q = 0; q < 6; q++) all[threadIdx.x][q] = mine[q];
    __syncwarp();
    for (int e = 0; e < 4; e++) {
        int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
        for (int k = 0; k < 16; k++) {
            const unsigned *u = &all[warp + row % 8 * 4 + k % 8 / 2][k / 8 * 2 + row / 8];
            const unsigned *v = &all[warp + column * 4 + k % 8 / 2][4 + k / 8];
            c[e] += load((const bf16 *)(const void *)u + k % 2) * load((const bf16 *)(const void *)v + k % 2);
        }
    }
    __syncwarp();
}

#endif

/* Where 8 elements are in a tile of shared memory. Along k: rows of 32 elements, which are 4 packs; two rows fill all
 * banks. */
static __device__ __forceinline__ bf16 *pack_along_k(bf16 *tile, int row, int pack)
{
    return tile + row * TENSOR_DEEP + (pack ^ (row >> 1 & 3)) * 8;
}
/* Across k: a row is one k with SIZE elements. */
template <int SIZE> static __device__ __forceinline__ bf16 *pack_across_k(bf16 *tile, int k, int pack)
{
    return tile + k * SIZE + (pack ^ (k & 7)) * 8;
}

/* One thread's share of the copies of a tile of SIZE × TENSOR_DEEP. */
template <typename L, int SIZE> struct tensor_loader {
    static constexpr int count = SIZE * TENSOR_DEEP / 8 / TENSOR_THREADS;
    static constexpr int across = L::along_k ? TENSOR_DEEP / 8 : SIZE / 8; /* packs of a row of shared memory */
    static constexpr int step = TENSOR_THREADS / across;
    typename L::place    places[L::along_k ? count : 1];
    int                  row, pack;

    __device__ void begin(const L &from, int64_t first)
    {
        row = threadIdx.x / across;
        pack = threadIdx.x % across;
#pragma unroll
        for (int q = 0; q < (L::along_k ? count : 1); q++)
            places[q] = from.begin(first + (L::along_k ? row + q * step : pack * 8));
    }
    __device__ void copy(const L &from, const void *any, int64_t k, int64_t end, bf16 *tile) const
    {
        if (L::along_k) {
            bool              inside = k + pack * 8 < end;
            typename L::depth at = from.locate(inside ? k + pack * 8 : k);
#pragma unroll
            for (int q = 0; q < count; q++) {
                const bf16 *found = inside ? from.find(places[L::along_k ? q : 0], at) : NULL;
                copy_pack(pack_along_k(tile, row + q * step, pack), found ? found : any, found != NULL);
            }
        } else {
#pragma unroll
            for (int q = 0; q < count; q++) {
                int64_t     kq = k + row + q * step;
                const bf16 *found = kq < end ? from.find(places[0], from.locate(kq)) : NULL;
                copy_pack(pack_across_k<SIZE>(tile, row + q * step, pack), found ? found : any, found != NULL);
            }
        }
    }
};

/* M × N tiles; a warp has 32 × N / (8 / (M / 32)). */
template <int M, int N> struct tensor_shape {
    static constexpr int m = M, n = N;
    static constexpr int warps_m = M / 32, warps_n = 8 / warps_m, warp_n = N / warps_n;
    static constexpr int stage = (M + N) * TENSOR_DEEP;                         /* elements */
    static constexpr int stages = stage * sizeof(bf16) * 4 <= 48 << 10 ? 4 : 3; /* what static shared memory holds */
};

template <typename S> struct alignas(128) tensor_memory {
    bf16 stages[S::stages][S::stage];
};

/* A.along_k: stored along k; else across. E: put_pair(i, j, x, y) takes the elements (i, j) and (i, j + 1); n is even.
 * `any`: an address that can be read. */
template <typename A, typename B, typename E, typename S>
static __global__ void __launch_bounds__(TENSOR_THREADS)
    multiply_on_tensor_cores(A a, B b, E epilogue, tile_job job, const void *any)
{
    constexpr int DEEP = TENSOR_DEEP, TILES = S::warp_n / 8, AHEAD = S::stages - 1;
    __shared__ tensor_memory<S> shared;
    bf16(*memory)[S::stage] = shared.stages;
    int64_t tiles_n = (job.n + S::n - 1) / S::n, tiles_m = (job.m + S::m - 1) / S::m, tile = blockIdx.x;
    int64_t j = tile % tiles_n * S::n, i = tile / tiles_n % tiles_m * S::m, batch = tile / tiles_n / tiles_m;
    int64_t k = job.split ? blockIdx.y * job.chunk : 0, end = job.split ? min(job.k, k + job.chunk) : job.k;
    int     lane = threadIdx.x % 32, warp = threadIdx.x / 32, wm = warp % S::warps_m * 32,
        wn = warp / S::warps_m * S::warp_n;
    float                  sums[2][TILES][4] = {};
    tensor_loader<A, S::m> from_a;
    tensor_loader<B, S::n> from_b;
    a.select(batch);
    b.select(batch);
    from_a.begin(a, i);
    from_b.begin(b, j);
    int steps = (int)((end - k + DEEP - 1) / DEEP);
    for (int s = 0; s < AHEAD; s++) {
        if (s < steps) {
            from_a.copy(a, any, k + s * DEEP, end, memory[s]);
            from_b.copy(b, any, k + s * DEEP, end, memory[s] + S::m * DEEP);
        }
        copies_commit();
    }
    for (int s = 0; s < steps; s++) {
        copies_wait<AHEAD - 1>();
        __syncthreads(); /* the stage is there for all, and all have left the one that is filled next */
        int next = s + AHEAD;
        if (next < steps) {
            from_a.copy(a, any, k + (int64_t)next * DEEP, end, memory[next % S::stages]);
            from_b.copy(b, any, k + (int64_t)next * DEEP, end, memory[next % S::stages] + S::m * DEEP);
        }
        copies_commit();
        bf16 *tile_a = memory[s % S::stages], *tile_b = tile_a + S::m * DEEP;
#pragma unroll
        for (int q = 0; q < DEEP; q += 16) {
            unsigned u[2][4];
#pragma unroll
            for (int r = 0; r < 2; r++)
                if (A::along_k)
                    load_matrices<false>(u[r], pack_along_k(tile_a, wm + r * 16 + lane % 16, q / 8 + lane / 16));
                else
                    load_matrices<true>(u[r], pack_across_k<S::m>(tile_a, q + lane % 8 + lane / 16 * 8,
                                                                  (wm + r * 16) / 8 + lane / 8 % 2));
#pragma unroll
            for (int c = 0; c < TILES; c += 2) {
                unsigned v[4];
                load_matrices<true>(v, pack_across_k<S::n>(tile_b, q + lane % 16, (wn + c * 8) / 8 + lane / 16));
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    multiply_add(sums[r][c], u[r], v[0], v[1]);
                    multiply_add(sums[r][c + 1], u[r], v[2], v[3]);
                }
            }
        }
    }
    copies_wait<0>();
    epilogue.select(batch);
    float *partial = (float *)job.partials + (batch * job.chunks + (job.split ? blockIdx.y : 0)) * job.m * job.n;
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < TILES; c++) {
            int64_t row = i + wm + r * 8 + lane / 4, column = j + wn + c * 8 + lane % 4 * 2;
            float   x = sums[r / 2][c][r % 2 * 2], y = sums[r / 2][c][r % 2 * 2 + 1];
            if (row >= job.m || column >= job.n) continue;
            if (job.split)
                store_pack(partial + row * job.n + column, lk__pack<float, 2>{{x, y}});
            else
                epilogue.put_pair(row, column, x, y);
        }
}

template <typename S, typename A, typename B, typename E>
static void launch_tensor_tiles(cudaStream_t stream, const A &a, const B &b, const E &epilogue, const tile_job &job,
                                int64_t batch, const void *any)
{
    int64_t tiles = cuda_tiles(job.m, S::m) * cuda_tiles(job.n, S::n) * batch;
    dim3    grid((unsigned)tiles, job.split ? (unsigned)job.chunks : 1u);
    LAUNCH((multiply_on_tensor_cores<A, B, E, S>), grid, TENSOR_THREADS, 0, stream, a, b, epilogue, job, any);
}

#endif
