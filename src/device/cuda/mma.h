/* device/cuda/mma.h - m16n8k16 products of bf16 tiles in shared memory on tensor cores, by warps (sm_80 and later). In
 * the tests' emulation the instructions are exchanges within the warp, with the same assignment of elements to lanes.
 *
 * A tile is rows of D elements (64 or 128) in shared memory. The 8 packs of 16 bytes of a row are permuted by its
 * number, so that 8 rows at one column, which ldmatrix reads at once, are in different banks.
 *
 * A product's result is in registers: c[n][i] of a lane is row lane / 4 + i / 2 × 8, column n × 8 + lane % 4 × 2 + i %
 * 2. */
#ifndef LK__CUDA_MMA_H
#define LK__CUDA_MMA_H

#include "device/cuda/async_copy.h"

template <int D> static __device__ __forceinline__ bf16 *tile_pack(bf16 *tile, int row, int pack)
{
    return tile + row * D + ((pack ^ (row & 7)) * 8);
}

/* ---- instructions ---- */

static __device__ __forceinline__ uint32_t pack_pair(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t       bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

#if defined(LK_CUDA_EMULATED)

static inline void load_matrices(uint32_t (&r)[4], const bf16 *row)
{
    int lane = threadIdx.x % 32;
    for (int m = 0; m < 4; m++) {
        uintptr_t at = __shfl_sync(0xffffffffu, (uintptr_t)row, m * 8 + lane / 4);
        memcpy(&r[m], (const bf16 *)at + lane % 4 * 2, 4);
    }
    __syncwarp();
}
static inline void load_transposed(uint32_t (&r)[4], const bf16 *row)
{
    int lane = threadIdx.x % 32;
    for (int m = 0; m < 4; m++)
        for (int i = 0; i < 2; i++) {
            uintptr_t at = __shfl_sync(0xffffffffu, (uintptr_t)row, m * 8 + lane % 4 * 2 + i);
            memcpy((char *)&r[m] + i * 2, (const bf16 *)at + lane / 4, 2);
        }
    __syncwarp();
}

static inline float half_of(uint32_t pair, int i) /* the element i of two */
{
    uint32_t bits = i ? pair & 0xffff0000u : pair << 16;
    float    x;
    memcpy(&x, &bits, 4);
    return x;
}
static inline void multiply_tiles(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    int lane = threadIdx.x % 32;
    for (int quad = 0; quad < 4; quad++) {
        uint32_t x[4], y[2][2];
        for (int r = 0; r < 4; r++) x[r] = __shfl_sync(0xffffffffu, a[r], lane / 4 * 4 + quad);
        for (int column = 0; column < 2; column++) {
            y[column][0] = __shfl_sync(0xffffffffu, b0, (lane % 4 * 2 + column) * 4 + quad);
            y[column][1] = __shfl_sync(0xffffffffu, b1, (lane % 4 * 2 + column) * 4 + quad);
        }
        for (int i = 0; i < 4; i++)
            for (int k = 0; k < 4; k++) /* rows: x[0] and x[2], or x[1] and x[3] */
                c[i] += half_of(x[i / 2 + k / 2 * 2], k % 2) * half_of(y[i % 2][k / 2], k % 2);
    }
}
static inline float power_of_two(float x) { return exp2f(x); }

#else

/* Four 8×8 matrices, whose rows are at the addresses of lanes 0 … 7, 8 … 15, …: of each the lane's two elements. */
static __device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const bf16 *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
static __device__ __forceinline__ void load_transposed(uint32_t (&r)[4], const bf16 *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* c += a b, 16 × 8 of it, over 16. */
static __device__ __forceinline__ void multiply_tiles(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
static __device__ __forceinline__ float power_of_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif

/* ---- tiles ---- */

/* Copies ROWS rows of D elements, of which `rows` exist, in the background. */
template <int ROWS, int D>
static __device__ __forceinline__ void copy_tile(bf16 *tile, const bf16 *from, int64_t row_stride, int64_t rows)
{
    enum { PACKS = D / 8 };
    for (int i = threadIdx.x; i < ROWS * PACKS; i += blockDim.x) {
        int  row = i / PACKS, pack = i % PACKS;
        bool present = row < rows;
        copy_pack(tile_pack<D>(tile, row, pack), from + (present ? row * row_stride : 0) + pack * 8, present);
    }
}

/* c (MT × 16 rows, NT × 8 columns) += the rows of `a` from a_row on times the rows of b. */
template <int D, int MT, int NT>
static __device__ __forceinline__ void multiply_rows(float (&c)[MT][NT][4], bf16 *a, int a_row, bf16 *b)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t x[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++)
            load_matrices(x[m], tile_pack<D>(a, a_row + m * 16 + lane % 16, k * 2 + lane / 16));
#pragma unroll
        for (int n = 0; n < NT / 2; n++) {
            uint32_t y[4];
            load_matrices(y, tile_pack<D>(b, n * 16 + lane % 8 + lane / 16 * 8, k * 2 + lane / 8 % 2));
#pragma unroll
            for (int m = 0; m < MT; m++) {
                multiply_tiles(c[m][n * 2], x[m], y[0], y[1]);
                multiply_tiles(c[m][n * 2 + 1], x[m], y[2], y[3]);
            }
        }
    }
}

/* out (MT × 16 rows, D columns) += x, rounded to bf16, times b, whose rows are x's columns. */
template <int D, int MT, int NT>
static __device__ __forceinline__ void add_product(float (&out)[MT][D / 8][4], const float (&x)[MT][NT][4], bf16 *b)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < NT / 2; k++) {
        uint32_t a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *pair = &x[m][k * 2 + i / 2][i % 2 * 2];
                a[m][i] = pack_pair(pair[0], pair[1]);
            }
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t y[4];
            load_transposed(y, tile_pack<D>(b, k * 16 + lane % 8 + lane / 8 % 2 * 8, n * 2 + lane / 16));
#pragma unroll
            for (int m = 0; m < MT; m++) {
                multiply_tiles(out[m][n * 2], a[m], y[0], y[1]);
                multiply_tiles(out[m][n * 2 + 1], a[m], y[2], y[3]);
            }
        }
    }
}

/* Row lane / 4 + half × 8 of 16: to[column] = out × factor. */
template <int D>
static __device__ __forceinline__ void store_row(bf16 *to, const float (&out)[D / 8][4], int half, float factor)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
        uint32_t pair = pack_pair(out[n][half * 2] * factor, out[n][half * 2 + 1] * factor);
        *(uint32_t *)(to + n * 8 + lane % 4 * 2) = pair;
    }
}

#endif
