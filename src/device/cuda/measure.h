/* device/cuda/measure.h - the time of work on a stream, for choosing the fastest of several ways. */
#ifndef LK__CUDA_MEASURE_H
#define LK__CUDA_MEASURE_H

#include "device/cuda/cuda.h"

typedef struct lk__cuda_clock {
    lk__device_stream stream; /* of its own, so that nothing else is on it */
    cudaEvent_t       begin, end;
} lk__cuda_clock;

static inline bool clock_open(lk__cuda_clock *clock)
{
    *clock = lk__cuda_clock{};
    return cudaEventCreate(&clock->begin) == cudaSuccess && cudaEventCreate(&clock->end) == cudaSuccess &&
           cudaStreamCreateWithFlags(&clock->stream.stream, cudaStreamNonBlocking) == cudaSuccess &&
           cudaDeviceSynchronize() == cudaSuccess;
}

static inline void clock_close(lk__cuda_clock *clock)
{
    if (clock->stream.stream) (void)cudaStreamDestroy(clock->stream.stream);
    if (clock->begin) (void)cudaEventDestroy(clock->begin);
    if (clock->end) (void)cudaEventDestroy(clock->end);
    (void)cudaGetLastError();
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
