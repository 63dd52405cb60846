/* staging.c - plans the buffers for copies between the host and a device that has its own memory (run/staging.c). */
#include "plan/plan.h"

#include "comm/queue.h"

/* Step block and ids. */
static size_t header_bytes(const lk_plan *p)
{
    return LK__STAGED_STEP +
           lk__round_up((size_t)lk__plan_staged_ids(lk_plan_capacity(p)) * sizeof(int64_t), LK__ALIGN);
}

size_t lk__plan_stage_inputs(const lk_plan *p, size_t *offsets)
{
    const lk_graph *g = p->graph;
    size_t          bytes = header_bytes(p);
    if (offsets) offsets[g->values_count] = LK__STAGED_STEP;
    for (size_t i = 0; i < g->values_count; i++) {
        const lk__graph_shape *s = &g->values[i].shape;
        if (g->values[i].kind != LK__VALUE_INPUT) continue;
        if (offsets) offsets[i] = bytes;
        bytes += lk__round_up((size_t)lk__shape_elements(s) * lk_dtype_size(s->dtype), LK__ALIGN);
    }
    return bytes;
}

/* Collectives whose operands and counts are all known before a step, of kernels alone. */
static bool may_queue(const lk_plan *p)
{
    return p->device->backend->recording.record_begin && lk__plan_ranks(p) > 1 && !p->shared && !p->parallel.leaves &&
           !p->pipeline && !p->expert_axes;
}

lk_status lk__plan_use_group(lk_plan *p, const lk_comm *comm)
{
    lk__comm_abilities group = {.canonical = true};
    if (comm) group = lk__comm_abilities_for(comm, p->device);
    if (p->parallel.leaves && !group.canonical)
        return lk__fail(p->context, LK_EUNSUPPORTED,
                        "the same bits with any number of ranks require sums in the canonical order, but backend %s "
                        "adds in a different order: choose another backend",
                        lk_comm_backend(comm));
    p->queued = group.queues && group.records && may_queue(p);
    p->memory[LK_MEMORY_STAGING] = lk__plan_staging_bytes(p);
    return LK_OK;
}

/* Before lk__plan_use_group the plan cannot know what the ranks' transport reaches: the host's memory, it assumes. */
size_t lk__plan_staging_bytes(const lk_plan *p)
{
    size_t exchange = lk__plan_exchange_bytes(p) + p->gathered + lk__plan_host_share(p);
    if (lk__device_is_host(p->device)) return exchange;
    size_t bytes =
        exchange + lk__plan_stage_inputs(p, NULL) * (size_t)p->slots + LK__STAGED_REPORT + lk__plan_sent_bytes(p);
    if (lk__plan_queues(p)) {
        lk__plan_queue_bytes queue = lk__plan_queue(p);
        bytes += (size_t)(queue.pinned + queue.device_staging) * queue.input + queue.numbers + queue.results;
    }
    return lk__plan_batch_parts(p) > 1 && !p->queued ? bytes + p->memory[LK_MEMORY_GRADIENTS] + LK__STAGING_CHUNK
                                                     : bytes;
}

bool lk__plan_queues(const lk_plan *p)
{
    bool ranks = lk__plan_ranks(p) == 1 || (p->queued && lk__plan_batch_parts(p) == lk__plan_ranks(p));
    return p->trains && p->device->backend->recording.record_begin && ranks && !p->parallel.leaves && p->slots == 1 &&
           p->losses_count == 0; /* of several losses the host computes the weights first */
}

size_t lk__plan_sent_offset(const lk_plan *p, int i)
{
    size_t offset = header_bytes(p);
    for (int k = 0; k < i && k < p->source.count; k++)
        offset += lk__round_up((size_t)lk_plan_capacity(p) * p->source.row_bytes[k], LK__ALIGN);
    return offset;
}

size_t lk__plan_sent_bytes(const lk_plan *p)
{
    bool waits = p->source.train == LK__INPUTS_BY_ROW && !lk__plan_queues(p);
    return waits || p->source.evaluate == LK__INPUTS_BY_ROW ? lk__plan_sent_offset(p, p->source.count) : 0;
}

/* A set in the device's memory: one buffer for each micro-batch of two steps, which the device reads over the bus. */
lk__plan_queue_bytes lk__plan_queue(const lk_plan *p)
{
    lk__plan_inputs from = p->source.train;
    bool            by_id = from == LK__INPUTS_BY_ID;
    size_t          ranks = lk__plan_ranks(p) > 1 ? LK__DEVICE_RANKS_NUMBERS + 1 : 0;
    return (lk__plan_queue_bytes){.input = from == LK__INPUTS_BOUND
                                               ? lk__plan_stage_inputs(p, NULL)
                                               : lk__plan_sent_offset(p, by_id ? 0 : p->source.count),
                                  .pinned = by_id ? 2 * p->parallel.micro_batches : 2,
                                  .device_staging = by_id ? 0 : 2,
                                  .numbers = lk__round_up((LK__DEVICE_NUMBERS + 2 + ranks) * sizeof(double), LK__ALIGN),
                                  .results = 2 * sizeof(lk__device_result)};
}

static lk__plan_inputs inputs_of(const lk__device_gather *g)
{
    return !g ? LK__INPUTS_BOUND : g->by_row ? LK__INPUTS_BY_ROW : LK__INPUTS_BY_ID;
}

void lk__plan_set_source(lk_plan *p, const lk__device_gather *train, const lk__device_gather *evaluate)
{
    const lk__device_gather *sent = train && train->by_row ? train : evaluate && evaluate->by_row ? evaluate : NULL;
    p->source = (lk__plan_source){.train = inputs_of(train), .evaluate = inputs_of(evaluate)};
    if (sent) p->source.count = sent->count; /* both sets have the same fields */
    for (int i = 0; i < p->source.count; i++)
        p->source.row_bytes[i] = (size_t)sent->fields[i].elements * lk_dtype_size(sent->fields[i].in);
    p->memory[LK_MEMORY_STAGING] = lk__plan_staging_bytes(p);
}
