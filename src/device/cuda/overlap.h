/* device/cuda/overlap.h - kernels that begin before the previous one has ended (programmatic dependent launch, from
 * sm_90 on), which saves about 1 µs for each small kernel of a small model. Part of cuda.h.
 *
 * LAUNCH_EARLY(kernel, grid, block, shared_bytes, stream, arguments…): the kernel's blocks start as soon as the blocks
 * of the kernel queued before it have all called begin_next() or ended. Before they read or write anything that a
 * kernel of the step writes, they call wait_for_earlier(), which returns when all earlier kernels have ended; every
 * thread does, so that no kernel ends before one that was queued before it. Most kernels call await_previous(), which
 * does both, as their first statement. LAUNCH_EARLY_IF(condition, kernel, …) is the same as LAUNCH where the condition
 * does not hold. */
#ifndef LK__CUDA_OVERLAP_H
#define LK__CUDA_OVERLAP_H

/* cuda.cu: the GPU can, its code was compiled for it, and LOCKSTEP_CUDA_OVERLAP is not 0. */
extern bool lk__cuda_early;

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

static __device__ __forceinline__ void await_previous()
{
    begin_next();
    wait_for_earlier();
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

/* Kernels that are to run side by side on a multiprocessor must have divided its memory between cache and shared memory
 * in the same way. */
template <typename K> static inline void lk__prefer_shared(K kernel)
{
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100 /* percent */);
}

#if defined(LK_CUDA_EMULATED)
#define LAUNCH_EARLY_IF(condition, ...) ((void)(condition), LAUNCH(__VA_ARGS__))
#else
template <typename... PARAMETERS, typename... ARGUMENTS>
static inline void lk__launch_early(bool early, void (*kernel)(PARAMETERS...), dim3 grid, dim3 block, size_t shared,
                                    cudaStream_t stream, ARGUMENTS... arguments)
{
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = early && lk__cuda_early;
    (void)cudaLaunchKernelEx(&config, kernel, (PARAMETERS)arguments...); /* lk__cuda_launched sees a failure */
}
#define LAUNCH_EARLY_IF(condition, kernel, grid, block, shared, stream, ...) \
    lk__launch_early((condition), kernel, dim3(grid), dim3(block), (shared), (stream), ##__VA_ARGS__)
#endif
#define LAUNCH_EARLY(...) LAUNCH_EARLY_IF(true, __VA_ARGS__)

#endif
