/* device/cuda/wgmma.h - products of bf16 tiles in shared memory by groups of four warps, and the copies of tiles that
 * feed them: the instructions of sm_90a. Files that include it compile to nothing elsewhere.
 *
 * A tile has 64 values of k and a multiple of 64 rows. If it is contiguous along k, it consists of rows of 128 bytes.
 * If it is contiguous along its rows, each block of 64 rows is 64 lines of 128 bytes, one for each k. The 8 packs of 16
 * bytes of a line are permuted by its number, as the copies write them (CU_TENSOR_MAP_SWIZZLE_128B). Tiles begin at
 * multiples of 1024 bytes. */
#ifndef LK__CUDA_WGMMA_H
#define LK__CUDA_WGMMA_H

#include "device/cuda/async_copy.h"

#include <cuda.h>

enum { WGMMA_DEEP = 64, WGMMA_LINE = 128, WGMMA_BLOCK = 64 * WGMMA_LINE }; /* of k; bytes */

/* ---- barriers in shared memory: of copies and of those who read what was copied ---- */

static __device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
static __device__ __forceinline__ void barriers_are_visible()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/* Arrives; the phase ends once this many bytes have been copied, too. */
static __device__ __forceinline__ void barrier_expect(uint32_t barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* Waits until the phase with this parity has ended. */
static __device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity)
{
    uint32_t ended = 0;
    while (!ended)
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n"
                     "}\n"
                     : "=r"(ended)
                     : "r"(barrier), "r"(parity)
                     : "memory");
}

/* ---- copies of tiles; what is outside of the tensor is 0 ---- */

static __device__ __forceinline__ void copy_tile(uint32_t to, const CUtensorMap *from, uint32_t barrier, int x, int y)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4}], [%2];" ::"r"(to),
                 "l"(from), "r"(barrier), "r"(x), "r"(y)
                 : "memory");
}
static __device__ __forceinline__ void copy_tile(uint32_t to, const CUtensorMap *from, uint32_t barrier, int x, int y,
                                                 int z)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4, %5}], [%2];" ::"r"(to),
                 "l"(from), "r"(barrier), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

/* ---- products ---- */

/* Stores to shared memory before it are seen by products after it. */
static __device__ __forceinline__ void products_see_stores()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* Before the first product: of registers that were written otherwise. */
static __device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/* Products since the last commit form a group; waits until at most the latest N groups are not complete. */
static __device__ __forceinline__ void products_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> static __device__ __forceinline__ void products_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Where a tile is and how it is stored. The next 16 of its k: + WGMMA_STEP(ALONG_K). */
template <bool ALONG_K> static __device__ __forceinline__ uint64_t describe_tile(uint32_t address)
{
    uint64_t to_next_block = ALONG_K ? 1 : WGMMA_BLOCK >> 4, to_next_lines = 8 * WGMMA_LINE >> 4, permuted = 1;
    return (uint64_t)((address & 0x3ffff) >> 4) | to_next_block << 16 | to_next_lines << 32 | permuted << 62;
}
#define WGMMA_STEP(ALONG_K) ((ALONG_K) ? 32 >> 4 : 16 * WGMMA_LINE >> 4)

#define SUMS_4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define SUMS_16(i) SUMS_4(i), SUMS_4(i + 4), SUMS_4(i + 8), SUMS_4(i + 12)
#define SUMS_64(i) SUMS_16(i), SUMS_16(i + 16), SUMS_16(i + 32), SUMS_16(i + 48)

/* c (64 × 256) += a b': 16 of k. c[n * 4 + i] of a lane is row warp % 4 * 16 + lane / 4 + i / 2 * 8, column
 * n * 8 + lane % 4 * 2 + i % 2. */
template <bool A_ALONG_K, bool B_ALONG_K>
static __device__ __forceinline__ void multiply_tiles(float (&c)[128], uint64_t a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
                 "%128, %129, 1, 1, 1, %130, %131;"
                 : SUMS_64(0), SUMS_64(64)
                 : "l"(a), "l"(b), "n"(A_ALONG_K ? 0 : 1), "n"(B_ALONG_K ? 0 : 1));
}

/* The registers of a warp, for roles that need few or many; all warps of a group of four. */
template <int N> static __device__ __forceinline__ void registers_release()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> static __device__ __forceinline__ void registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

#endif
