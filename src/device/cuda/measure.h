/* device/cuda/measure.h - measures work on a stream, to choose the fastest of several implementations. */
#ifndef LK__CUDA_MEASURE_H
#define LK__CUDA_MEASURE_H

#include "device/cuda/cuda.h"

typedef struct lk__cuda_clock {
    lk__device_stream stream; /* of its own, and not ordered with others, which threads may be recording */
    cudaEvent_t       begin, end;
} lk__cuda_clock;

static inline bool clock_open(lk__cuda_clock *clock)
{
    *clock = lk__cuda_clock{};
    return cudaEventCreate(&clock->begin) == cudaSuccess && cudaEventCreate(&clock->end) == cudaSuccess &&
           cudaStreamCreateWithFlags(&clock->stream.stream, cudaStreamNonBlocking) == cudaSuccess;
}

static inline void clock_close(lk__cuda_clock *clock)
{
    if (clock->stream.stream) (void)cudaStreamDestroy(clock->stream.stream);
    if (clock->begin) (void)cudaEventDestroy(clock->begin);
    if (clock->end) (void)cudaEventDestroy(clock->end);
    (void)cudaGetLastError();
}

/* Memory for operands of any contents, freed with cudaFree: bytes that are small numbers in every type, as products of
 * zeros take less power. NULL: there is not enough. */
static inline void *clock_memory(lk__cuda_clock *clock, size_t bytes)
{
    void *memory = NULL;
    if (cudaMalloc(&memory, bytes) == cudaSuccess &&
        cudaMemsetAsync(memory, 0x3c, bytes, clock->stream.stream) == cudaSuccess)
        return memory;
    (void)cudaGetLastError();
    if (memory) (void)cudaFree(memory);
    return NULL;
}

/* Milliseconds of one of several runs, after one that loads the kernels; negative: it failed. */
template <typename Run> static float clock_run(lk__cuda_clock *clock, Run run)
{
    enum { RUNS = 4 };
    float milliseconds = -1;
    for (int i = 0; i <= RUNS; i++) {
        if (i == 1 && cudaEventRecord(clock->begin, clock->stream.stream) != cudaSuccess) return -1;
        if (run() < 0) return -1;
    }
    if (cudaEventRecord(clock->end, clock->stream.stream) != cudaSuccess ||
        cudaEventSynchronize(clock->end) != cudaSuccess ||
        cudaEventElapsedTime(&milliseconds, clock->begin, clock->end) != cudaSuccess)
        return -1;
    return milliseconds / RUNS;
}

#endif
