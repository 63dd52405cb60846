/* staging.c - copies between the host and a device that has its own memory: inputs and the samples' ids before a
 * section runs, the report of ids out of range after it, and gradients that ranks exchange over a backend that does not
 * reach the device. On the CPU nothing is copied: kernels read the caller's inputs in place, and collectives the
 * gradients. */
#include "run/interpreter.h"
#include "run/timeline.h"

#include <string.h>

/* ---- inputs and ids ---- */

const lk__kernel_step *lk__step_memory(const lk__run_slot *slot)
{
    return slot->staged ? (const lk__kernel_step *)slot->staged : &slot->step;
}

const void *lk__input_memory(const lk_program *p, const lk__run_slot *slot, size_t input)
{
    if (!slot->staged || !slot->inputs[input]) return slot->inputs[input];
    return slot->staged + p->memory.input_offsets[input];
}

const int64_t *lk__ids_memory(const lk_program *p, const lk__run_slot *slot)
{
    return slot->staged && slot->ids ? (const int64_t *)(slot->staged + p->memory.input_offsets[p->values]) : slot->ids;
}

static lk_status end_copy(lk_program *p, lk_status status, const char *name, size_t bytes)
{
    lk__run_unit unit = {.name = name, .work = LK__WORK_COPY, .bytes = bytes};
    return status < 0 ? status : lk__timeline_after(p, p->stream, &unit);
}

static lk_status copy_in(lk_program *p, const void *to, const void *host, size_t bytes)
{
    lk_status status = bytes ? lk__timeline_before(p, p->stream) : LK_OK;
    if (status < 0 || bytes == 0) return status;
    status = p->device->backend->memory.copy_in(p->device, p->stream, (void *)to, host, bytes);
    return end_copy(p, status, "copy to the device", bytes);
}

static bool is_same_step(const lk__kernel_step *a, const lk__kernel_step *b)
{
    return a->step == b->step && a->epoch == b->epoch && a->count == b->count && a->seed == b->seed &&
           a->sample_ids == b->sample_ids && a->updates_buffers == b->updates_buffers && a->part == b->part &&
           a->micro_batch == b->micro_batch && a->ring_slot == b->ring_slot && a->rate == b->rate;
}

lk_status lk__stage_step(lk_program *p, lk__run_slot *slot)
{
    if (!slot->staged || is_same_step(&slot->step_staged, &slot->step)) return LK_OK;
    slot->step_staged = slot->step;
    return copy_in(p, slot->staged, &slot->step_staged, sizeof slot->step_staged);
}

/* Inputs that the device makes: of samples in its memory, or of those that are copied there first. */
static lk_status make_inputs(lk_program *p, lk__run_slot *slot)
{
    const lk__plan_source *source = &p->plan->source;
    bool                   sends = lk__source_sends(p);
    lk_status              status = LK_OK;
    for (int i = 0; i < source->count && sends && status >= 0; i++)
        status = copy_in(p, p->memory.rows_sent + lk__plan_sent_offset(p->plan, i), lk__source_samples(p, slot, i),
                         (size_t)slot->step.count * source->row_bytes[i]);
    return status < 0 ? status
                      : lk__source_gather(p, slot, &(lk__run_headers){.headers = slot->staged},
                                          sends ? p->memory.rows_sent : NULL);
}

lk_status lk__stage_inputs(lk_program *p, lk__run_slot *slot)
{
    const lk_graph *g = p->plan->graph;
    lk_status       status = LK_OK;
    if (!slot->staged) return LK_OK;
    if ((status = lk__stage_step(p, slot)) < 0) return status;
    for (size_t i = 0; i < p->values && status >= 0; i++)
        if (g->values[i].kind == LK__VALUE_INPUT && slot->inputs[i] && !lk__source_makes(p, i))
            status = copy_in(p, lk__input_memory(p, slot, i), slot->inputs[i],
                             lk__bytes_at_count(&g->values[i].shape, slot->step.count));
    if (slot->ids && slot->step.count > lk__plan_staged_ids(p->capacity))
        return lk__fail(p->context, LK_EINVAL,
                        "too many sample ids (%lld): no input has a batch dimension, so at most %lld ids can be copied",
                        (long long)slot->step.count, (long long)lk__plan_staged_ids(p->capacity));
    if (status >= 0 && slot->ids)
        status = copy_in(p, lk__ids_memory(p, slot), slot->ids, (size_t)slot->step.count * sizeof *slot->ids);
    if (status >= 0 && p->source) status = make_inputs(p, slot);
    if (status >= 0)
        status = p->device->backend->memory.fill(p->device, p->stream, p->memory.report, 0, sizeof *p->memory.report);
    /* The caller may change its arrays as soon as the section has returned, and it waits for the metrics. */
    return status;
}

lk_status lk__run_inputs(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk_status status = LK_OK;
    (void)at, (void)next;
    for (int i = 0; i < run->slots && status >= 0; i++) status = lk__stage_inputs(p, lk__run_slot_at(p, run, i));
    return status;
}

/* Kernels read the caller's arrays where they are; addresses were set with the operands. */
lk_status lk__run_bound(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    (void)p, (void)run, (void)at, (void)next;
    return LK_OK;
}

lk_status lk__run_step_block(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk_status status = LK_OK;
    (void)at, (void)next;
    for (int i = 0; i < run->slots && status >= 0; i++) status = lk__stage_step(p, lk__run_slot_at(p, run, i));
    return status;
}

lk_status lk__run_read_ids(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    (void)run, (void)at, (void)next;
    return lk__device_read(p->device, p->stream, &p->ids.invalid, p->memory.report, sizeof p->ids.invalid);
}

/* ---- gradients ---- */

lk_status lk__stage_out(lk_program *p, const char *gradient, size_t bytes)
{
    lk_status status = lk__timeline_before(p, p->stream);
    if (status >= 0) status = lk__device_read(p->device, p->stream, lk__exchanged(p, gradient), gradient, bytes);
    return end_copy(p, status, "copy from the device", bytes);
}

lk_status lk__stage_in(lk_program *p, char *gradient, size_t bytes)
{
    return copy_in(p, gradient, lk__exchanged(p, gradient), bytes);
}
