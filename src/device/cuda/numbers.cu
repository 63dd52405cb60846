/* numbers.cu - a step's numbers: added over micro-batches, judged, and written where the host reads them one step
 * later. One warp each: latency bounds them. */
#include "device/cuda/backend.h"

static __global__ void add_numbers(const lk__device_numbers n)
{
    await_previous();
    for (int i = (int)threadIdx.x; i < n.count; i += 32) {
        double value = !n.value[i]   ? n.otherwise[i]
                       : n.narrow[i] ? (double)*(const float *)n.value[i]
                                     : *(const double *)n.value[i];
        n.sums[i] = n.first ? value : n.sums[i] + value;
        if (i == 1 && n.weight) *n.weight = n.sums[i];
        if (i == 0 && n.ring_slot) ++*n.ring_slot;
        if (i == 0 && *n.halted == 0 && (!isfinite(n.sums[0]) || n.report->found)) *n.halted = 1 + n.step->micro_batch;
    }
}

static __global__ void publish(const lk__device_numbers n, const double *norm, lk__device_result *results)
{
    await_previous();
    lk__device_result *to = results + n.step->ring_slot;
    for (int i = (int)threadIdx.x; i < n.count; i += 32) to->sums[i] = n.sums[i];
    __syncwarp();
    if (threadIdx.x != 0) return;
    to->norm = norm ? *norm : 0;
    to->invalid = *n.report;
    to->halted = *n.halted;
    __threadfence_system(); /* the host polls the number of the step */
    *(volatile int64_t *)&to->step = n.step->step;
}

lk_status lk__cuda_add_numbers(lk__device *d, lk__device_stream *stream, const lk__device_numbers *numbers)
{
    LAUNCH_EARLY(add_numbers, 1, 32, 0, stream->stream, *numbers);
    return lk__cuda_check(d, cudaPeekAtLastError(), "starting a kernel");
}

lk_status lk__cuda_publish(lk__device *d, lk__device_stream *stream, const lk__device_numbers *numbers,
                           const double *norm, lk__device_result *results)
{
    LAUNCH_EARLY(publish, 1, 32, 0, stream->stream, *numbers, norm, results);
    return lk__cuda_check(d, cudaPeekAtLastError(), "starting a kernel");
}
