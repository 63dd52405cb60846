/* staging_create.c - allocates the buffers for copies between the host and a device that has its own memory
 * (staging.c). */
#include "run/program.h"

static bool is_staged(const lk_program *p) { return !lk__device_is_host(p->device); }

/* Gradients that ranks exchange: in the host's memory, symmetric where ranks share a host. */
static lk_status make_exchanged(lk_program *p)
{
    size_t    bytes = p->plan->memory[LK_MEMORY_GRADIENTS];
    void     *memory;
    lk_status status = bytes ? lk_comm_alloc(p->batch, bytes, &memory) : LK_OK;
    if (status < 0) return lk__fail_prefix(p->context, status, "staging of gradients in shared memory: ");
    if (bytes) p->memory.exchanged = memory;
    if (bytes && p->device->backend->memory.pin) p->device->backend->memory.pin(p->device, memory, bytes);
    lk__account(p->context, LK_MEMORY_STAGING, (ptrdiff_t)bytes);
    p->memory.chunk = p->device->backend->memory.alloc_host(p->device, LK_MEMORY_STAGING, LK__STAGING_CHUNK);
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
    return p->batch && p->group.staged ? make_exchanged(p) : LK_OK;
}

void lk__staging_free(lk_program *p)
{
    if (!is_staged(p)) return;
    if (p->batch && p->memory.exchanged && p->memory.exchanged != p->memory.gradients) {
        if (p->device->backend->memory.unpin) p->device->backend->memory.unpin(p->device, p->memory.exchanged);
        lk_comm_release(p->batch, p->memory.exchanged);
        lk__account(p->context, LK_MEMORY_STAGING, -(ptrdiff_t)p->plan->memory[LK_MEMORY_GRADIENTS]);
    }
    if (p->memory.chunk)
        p->device->backend->memory.free_host(p->device, LK_MEMORY_STAGING, p->memory.chunk, LK__STAGING_CHUNK);
    lk__free(p->context, LK_MEMORY_OTHER, p->memory.input_offsets, (p->values + 1) * sizeof *p->memory.input_offsets);
}
