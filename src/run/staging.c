/* staging.c - what is copied between the host and a device whose memory is not the host's: inputs and the samples' ids before a section
 * runs, the report of ids out of range after it, and gradients that ranks exchange over a backend that does not reach the device.
 * On the CPU nothing is: kernels read the caller's inputs, and collectives the gradients, where they are. */
#include "run/interpreter.h"
#include "run/timeline.h"

#include "comm/abort.h"

#include <string.h>

static bool is_staged(const lk_program *p) { return !lk__device_is_host(p->device); }

/* ---- creating and freeing ---- */

/* Gradients that ranks exchange: in the host's memory, symmetric where ranks share a host. */
static lk_status make_exchanged(lk_program *p)
{
    size_t    bytes = p->plan->memory[LK_MEMORY_GRADIENTS];
    void     *memory;
    lk_status status = bytes ? lk_comm_alloc(p->batch, bytes, &memory) : LK_OK;
    if (status < 0) return lk__fail_prefix(p->context, status, "staging of gradients in shared memory: ");
    if (bytes) p->memory.exchanged = memory;
    if (bytes && p->device->backend->pin) p->device->backend->pin(p->device, memory, bytes);
    lk__account(p->context, LK_MEMORY_STAGING, (ptrdiff_t)bytes);
    p->memory.chunk = p->device->backend->alloc_host(p->device, LK_MEMORY_STAGING, LK__STAGING_CHUNK);
    return p->memory.chunk ? LK_OK : LK_ENOMEM;
}

lk_status lk__staging_create(lk_program *p)
{
    const lk_plan *plan = p->plan;
    size_t         offsets = (p->values + 1) * sizeof *p->memory.input_offsets;
    p->memory.exchanged = p->memory.gradients;
    if (!is_staged(p)) return LK_OK;
    if (!(p->memory.input_offsets = lk__alloc(p->context, LK_MEMORY_OTHER, offsets))) return LK_ENOMEM;
    size_t inputs = lk__plan_stage_inputs(plan, p->memory.input_offsets) * (size_t)plan->slots + LK__STAGED_REPORT;
    for (int i = 0; i < plan->slots; i++)
        p->slots[i].staged = p->memory.staged + LK__STAGED_REPORT + (size_t)i * lk__plan_stage_inputs(plan, NULL);
    p->memory.report = (lk__kernel_invalid_id *)p->memory.staged;
    p->memory.rows_sent = lk__plan_sent_bytes(plan) ? p->memory.staged + inputs : NULL;
    return p->batch && !lk__comm_reaches(p->batch, p->device) ? make_exchanged(p) : LK_OK;
}

void lk__staging_free(lk_program *p)
{
    if (!is_staged(p)) return;
    if (p->batch && p->memory.exchanged && p->memory.exchanged != p->memory.gradients) {
        if (p->device->backend->unpin) p->device->backend->unpin(p->device, p->memory.exchanged);
        lk_comm_release(p->batch, p->memory.exchanged);
        lk__account(p->context, LK_MEMORY_STAGING, -(ptrdiff_t)p->plan->memory[LK_MEMORY_GRADIENTS]);
    }
    if (p->memory.chunk)
        p->device->backend->free_host(p->device, LK_MEMORY_STAGING, p->memory.chunk, LK__STAGING_CHUNK);
    lk__free(p->context, LK_MEMORY_OTHER, p->memory.input_offsets, (p->values + 1) * sizeof *p->memory.input_offsets);
}

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
    status = p->device->backend->copy_in(p->device, p->stream, (void *)to, host, bytes);
    return end_copy(p, status, "copy to the device", bytes);
}

static bool is_same_step(const lk__kernel_step *a, const lk__kernel_step *b)
{
    return a->step == b->step && a->epoch == b->epoch && a->count == b->count && a->seed == b->seed &&
           a->sample_ids == b->sample_ids && a->updates_buffers == b->updates_buffers && a->part == b->part &&
           a->micro_batch == b->micro_batch && a->turn == b->turn && a->rate == b->rate;
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
                      : lk__source_gather(p, slot, (lk__device_rows){.headers = slot->staged},
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
        return lk__fail(p->context, LK_EINVAL, "%lld ids of samples: no input has a batch, and at most %lld are copied",
                        (long long)slot->step.count, (long long)lk__plan_staged_ids(p->capacity));
    if (status >= 0 && slot->ids)
        status = copy_in(p, lk__ids_memory(p, slot), slot->ids, (size_t)slot->step.count * sizeof *slot->ids);
    if (status >= 0 && p->source) status = make_inputs(p, slot);
    if (status >= 0)
        status = p->device->backend->fill(p->device, p->stream, p->memory.report, 0, sizeof *p->memory.report);
    /* The caller may change its arrays as soon as the section has returned, and it waits for the metrics. */
    return status;
}

lk_status lk__run_inputs(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk_status status = LK_OK;
    (void)at, (void)next;
    for (int i = 0; i < run->slots && status >= 0; i++) status = lk__stage_inputs(p, &p->slots[i]);
    return status;
}

lk_status lk__run_step_block(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk_status status = LK_OK;
    (void)at, (void)next;
    for (int i = 0; i < run->slots && status >= 0; i++) status = lk__stage_step(p, &p->slots[i]);
    return status;
}

lk_status lk__read_report(lk_program *p)
{
    return is_staged(p) ? lk__device_read(p->device, p->stream, &p->ids.invalid, p->memory.report, sizeof p->ids.invalid)
                        : LK_OK;
}

/* ---- gradients ---- */

lk_status lk__stage_out(lk_program *p, const char *gradient, size_t bytes)
{
    if (p->memory.exchanged == p->memory.gradients) return LK_OK;
    lk_status status = lk__timeline_before(p, p->stream);
    if (status >= 0) status = lk__device_read(p->device, p->stream, lk__exchanged(p, gradient), gradient, bytes);
    return end_copy(p, status, "copy from the device", bytes);
}

lk_status lk__stage_in(lk_program *p, char *gradient, size_t bytes)
{
    return p->memory.exchanged == p->memory.gradients ? LK_OK : copy_in(p, gradient, lk__exchanged(p, gradient), bytes);
}

/* ---- whole regions ---- */

lk_status lk__broadcast_memory(lk_program *p, char *memory, size_t bytes)
{
    if (bytes == 0) return LK_OK;
    if (lk__comm_reaches(p->comm, p->device)) return lk_comm_broadcast(p->comm, memory, bytes, LK_U8, 0, NULL);
    lk_status status = LK_OK;
    for (size_t at = 0; at < bytes && status >= 0; at += LK__STAGING_CHUNK) {
        size_t part = bytes - at < LK__STAGING_CHUNK ? bytes - at : LK__STAGING_CHUNK;
        status = lk__device_read(p->device, p->stream, p->memory.chunk, memory + at, part);
        if (status >= 0) status = lk_comm_broadcast(p->comm, p->memory.chunk, part, LK_U8, 0, NULL);
        if (status >= 0) status = lk__device_write(p->device, p->stream, memory + at, p->memory.chunk, part);
    }
    return status;
}
