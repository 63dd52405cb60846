/* numbers.cu - a step's numbers: adds them over micro-batches, checks them, and writes them where the host reads them
 * one step later. One warp each: latency bounds them. */
#include "device/cuda/backend.h"

/* What this rank adds to those of the others, and its first micro-batch that fails. */
static __device__ void note_for_ranks(const lk__device_numbers &n)
{
    int32_t own = n.first ? 0 : *n.own;
    if (own == 0 && (!isfinite(n.sums[0]) || n.report->found)) own = 1 + n.step->micro_batch;
    *n.own = own;
    n.ranks[0] = n.sums[0];
    n.ranks[2] = own != 0;
}

static __global__ void add_numbers(const lk__device_numbers n)
{
    await_previous();
    for (int i = (int)threadIdx.x; i < n.count; i += 32) {
        double value = !n.value[i]   ? n.otherwise[i]
                       : n.narrow[i] ? (double)*(const float *)n.value[i]
                                     : *(const double *)n.value[i];
        n.sums[i] = n.first ? value : n.sums[i] + value;
        if (i == 0 && n.ring_slot) ++*n.ring_slot;
        if (n.ranks) {
            if (i == 0) note_for_ranks(n);
            if (i == 1) n.ranks[1] = n.sums[1];
            continue;
        }
        if (i == 1 && n.weight) *n.weight = n.sums[i];
        if (i == 0 && *n.halted == 0 && (!isfinite(n.sums[0]) || n.report->found)) *n.halted = 1 + n.step->micro_batch;
    }
}

static __global__ void judge_numbers(const lk__device_numbers n)
{
    await_previous();
    if (n.weight) *n.weight = n.ranks[1];
    if (*n.halted == 0 && (!isfinite(n.ranks[0]) || n.ranks[2] != 0)) *n.halted = *n.own ? *n.own : 1;
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
    return lk__cuda_check(d, cudaPeekAtLastError(), "launching a kernel");
}

lk_status lk__cuda_judge_numbers(lk__device *d, lk__device_stream *stream, const lk__device_numbers *numbers)
{
    LAUNCH(judge_numbers, 1, 1, 0, stream->stream, *numbers);
    return lk__cuda_check(d, cudaPeekAtLastError(), "launching a kernel");
}

lk_status lk__cuda_publish(lk__device *d, lk__device_stream *stream, const lk__device_numbers *numbers,
                           const double *norm, lk__device_result *results)
{
    LAUNCH_EARLY(publish, 1, 32, 0, stream->stream, *numbers, norm, results);
    return lk__cuda_check(d, cudaPeekAtLastError(), "launching a kernel");
}
