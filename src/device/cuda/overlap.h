/* device/cuda/overlap.h - kernels that begin before the one before has ended.
 *
 * LAUNCH_AFTER(device, kernel, grid, block, shared_bytes, stream, arguments…): where the GPU can (9.0), the kernel's blocks start as soon as
 * those of the kernel queued before it have all called begin_next(), and read what no kernel of the step writes: weights. Before they
 * read or write anything else, they call wait_for_earlier(), which returns when all earlier kernels have ended. For kernels of a few
 * microseconds, whose start and first reads would otherwise be most of their time. */
#ifndef LK__CUDA_OVERLAP_H
#define LK__CUDA_OVERLAP_H

#include "device/cuda/cuda.h"

static __device__ __forceinline__ void begin_next()
{
#if !defined(LK_CUDA_EMULATED) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

static __device__ __forceinline__ void wait_for_earlier()
{
#if !defined(LK_CUDA_EMULATED) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Brings a line into the second-level cache. */
static __device__ __forceinline__ void prefetch_line(const void *at)
{
#if !defined(LK_CUDA_EMULATED)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#else
    (void)at;
#endif
}

/* Whether LAUNCH_AFTER does so: not with LOCKSTEP_CUDA_OVERLAP=0, nor for a device NULL. */
bool lk__cuda_overlaps(const lk__device *device);

#if defined(LK_CUDA_EMULATED)
#define LAUNCH_AFTER(device, ...) LAUNCH(__VA_ARGS__)
#else
template <typename... P, typename... A>
static inline void launch_after(const lk__device *device, void (*kernel)(P...), unsigned grid, unsigned block,
                                size_t shared, cudaStream_t stream, A... arguments)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3(grid);
    config.blockDim = dim3(block);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = lk__cuda_overlaps(device) ? 1 : 0;
    (void)cudaLaunchKernelEx(&config, kernel, (P)arguments...); /* lk__cuda_launched sees its error */
}
#define LAUNCH_AFTER(device, kernel, ...) launch_after((device), kernel, __VA_ARGS__)
#endif

#endif
