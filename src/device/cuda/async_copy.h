/* device/cuda/async_copy.h - copies from global to shared memory that run in the background (sm_80 and later). In the
 * tests' emulation they are done immediately. */
#ifndef LK__CUDA_ASYNC_COPY_H
#define LK__CUDA_ASYNC_COPY_H

#include "device/cuda/cuda.h"

#if defined(LK_CUDA_EMULATED)

static inline void copy_pack(void *to, const void *from, bool present)
{
    if (present)
        memcpy(to, from, 16);
    else
        memset(to, 0, 16);
}
static inline void                  copy_one(float *to, const float *from) { *to = *from; }
static inline void                  copies_commit() {}
template <int N> static inline void copies_wait() {}

#else

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes; zeros where they are not present, and `from` must be readable then too. */
static __device__ __forceinline__ void copy_pack(void *to, const void *from, bool present)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(present ? 16 : 0)
                 : "memory");
}
static __device__ __forceinline__ void copy_one(float *to, const float *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
/* Copies since the last commit form a group; waits until at most the latest N groups are not complete. */
static __device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> static __device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#endif

#endif
