/* staging.c - the memory of what is copied between the host and a device whose memory is not the host's (run/staging.c). */
#include "plan/plan.h"

size_t lk__plan_stage_inputs(const lk_plan *p, size_t *offsets)
{
    const lk_graph *g = p->graph;
    int64_t         samples = lk_plan_capacity(p);
    size_t          bytes = LK__STAGED_STEP;
    for (size_t i = 0; i < g->values_count; i++) {
        const lk__graph_shape *s = &g->values[i].shape;
        if (g->values[i].kind != LK__VALUE_INPUT) continue;
        if (offsets) offsets[i] = bytes;
        bytes += lk__round_up((size_t)lk__shape_elements(s) * lk_dtype_size(s->dtype), LK__ALIGN);
    }
    if (offsets) offsets[g->values_count] = bytes;
    return bytes + lk__round_up((size_t)lk__plan_staged_ids(samples) * sizeof(int64_t), LK__ALIGN);
}

/* Without a comm the plan cannot know what the ranks' backend reaches: none reaches another memory than the host's. */
size_t lk__plan_staging_bytes(const lk_plan *p)
{
    if (lk__device_is_host(p->device)) return 0;
    size_t bytes = lk__plan_stage_inputs(p, NULL) * (size_t)p->slots + LK__STAGED_REPORT;
    if (lk__plan_queues(p)) {
        lk__plan_queue_bytes queue = lk__plan_queue(p);
        bytes += 4 * queue.input + queue.numbers + queue.results;
    }
    return p->parallel.world > 1 ? bytes + p->memory[LK_MEMORY_GRADIENTS] + LK__STAGING_CHUNK : bytes;
}

bool lk__plan_queues(const lk_plan *p)
{
    return p->trains && p->device->backend->record_begin && p->parallel.world == 1 && !p->parallel.leaves &&
           p->slots == 1;
}

lk__plan_queue_bytes lk__plan_queue(const lk_plan *p)
{
    return (lk__plan_queue_bytes){.input = lk__plan_stage_inputs(p, NULL),
                                  .numbers = lk__round_up((LK__DEVICE_NUMBERS + 1) * sizeof(double), LK__ALIGN),
                                  .results = 2 * sizeof(lk__device_result)};
}
