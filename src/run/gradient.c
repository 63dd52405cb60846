/* gradient.c - gradients by name, for programs that reduce or change them by other means: copied, never by pointer, so
 * that they may be in any memory. They are row-major like the parameters, which the plan's layout pass ensures. */
#include "run/program.h"

#include "plan/pipeline.h"

#include <math.h>
#include <string.h>

const void *lk_program_gradient(const lk_program *p, const char *parameter)
{
    int state = p->plan->trains ? lk__find_state(p->plan->graph, parameter) : -1;
    if (state < 0 || !p->plan->states[state].trained || !p->visible_gradients || lk__gradient_is_part(p, state) ||
        lk__plan_is_tied(p->plan, (size_t)state))
        return NULL;
    return lk__gradient_set(p, 0) + p->plan->states[state].gradient_offset;
}

/* ---- the sum of all ranks, where every rank has it ---- */

static lk_status read_own(lk_program *p, int state, void *data, size_t bytes)
{
    return lk__device_read(p->device, p->stream, data, lk__gradient_set(p, 0) + p->plan->states[state].gradient_offset,
                           bytes);
}
static lk_status has_all(lk_program *p)
{
    (void)p;
    return LK_OK;
}
static void all_written(lk_program *p) { (void)p; }

const lk__run_gradients lk__gradients_of_all = {
    .read = read_own, .gather = has_all, .reuse = has_all, .written = all_written};

/* ---- by name ---- */

/* Afterwards the first set holds complete gradients, of this rank or of all ranks, and nothing else accesses it. */
static lk_status finish_gradients(lk_program *p)
{
    if (!p->plan->trains)
        return lk__fail(p->context, LK_EINVAL, "this program was planned without an optimizer: it has no gradients");
    if (p->progress.pending == 0 || p->progress.synced) return LK_OK;
    if (!p->comm) return lk__section_by_hand(p, LK_SYNC); /* no other rank takes part */
    if (!p->progress.sent && p->division.by_hand) return LK_OK;
    return lk__fail(
        p->context, LK_EINVAL,
        "the gradients are being reduced over the ranks: run LK_SYNC first, or call lk_program_no_sync before "
        "LK_BACKWARD");
}

/* The same, for a call that changes them. Of ranks that share their state each has its own until then: collective. */
static lk_status gather_gradients(lk_program *p)
{
    lk_status status = finish_gradients(p);
    return status >= 0 && p->progress.synced ? p->gradients->gather(p) : status;
}

/* Of a gradient, what this rank has: bytes from `skipped` on. */
typedef struct located {
    char  *memory;
    size_t whole, skipped, bytes;
} located;

static lk_status locate_gradient(const lk_program *p, const char *parameter, located *found)
{
    int state = lk__find_state(p->plan->graph, parameter);
    *found = (located){.memory = NULL};
    if (state < 0) return lk__fail(p->context, LK_ENOENT, "the model has no parameter \"%s\"", parameter);
    if (!lk__plan_trains(p->plan, (size_t)state))
        return lk__fail(p->context, LK_ENOENT, "\"%s\" has no gradient: it is frozen, or a buffer", parameter);
    found->whole = p->plan->states[state].wide_bytes;
    if (!p->plan->states[state].trained) return LK_OK; /* other stages of the pipeline have it */
    found->bytes = lk__plan_gradient_bytes(p->plan, (size_t)state);
    found->memory = lk__gradient_set(p, 0) + p->plan->states[state].gradient_offset;
    if (p->shard) {
        size_t    size = lk_dtype_size(p->plan->graph->real);
        lk__range piece = lk__plan_piece(p->plan, (size_t)state);
        found->memory = lk__gradient_set(p, 0) + lk__plan_gradient_piece(p->plan, (size_t)state);
        found->skipped = (size_t)piece.first * size;
        found->bytes = (size_t)lk__range_count(piece) * size;
    }
    return LK_OK;
}

static lk_status check_bytes(const lk_program *p, const char *parameter, size_t bytes, size_t given)
{
    const lk_graph *g = p->plan->graph;
    char            shape[128];
    if (bytes == given) return LK_OK;
    lk__shape_text(&g->values[g->states[lk__find_state(p->plan->graph, parameter)].value].shape, shape, sizeof shape);
    return lk__fail(p->context, LK_EINVAL, "the gradient of \"%s\", %s in %s, has %zu bytes, not %zu", parameter, shape,
                    lk_dtype_name(g->real), bytes, given);
}

/* Gradients are where their states are. */
static lk_status check_stage(const lk_program *p, const char *parameter)
{
    size_t state = (size_t)lk__find_state(p->plan->graph, parameter);
    if (p->plan->states[state].trained) return LK_OK;
    return lk__fail(p->context, LK_ENOENT, "the gradient of \"%s\" is on the ranks of stage %d of the pipeline",
                    parameter, lk__plan_first_holder(p->plan, state));
}

/* What this rank has of the gradient: of all ranks once that is there, or of its own samples and uses. */
static lk_status read_part(lk_program *p, int state, void *data)
{
    size_t bytes = lk__plan_gradient_bytes(p->plan, (size_t)state);
    if (!p->progress.synced) return read_own(p, state, data, bytes);
    lk_status status = p->gradients->read(p, state, data, bytes);
    return status < 0 ? status : lk__gradient_add_stages(p, state, data);
}

lk_status lk_program_gradient_read(lk_program *p, const char *parameter, void *data, size_t bytes)
{
    located   found;
    lk_status status = finish_gradients(p);
    if (status < 0 || (status = locate_gradient(p, parameter, &found)) < 0 ||
        (status = check_stage(p, parameter)) < 0 || (status = check_bytes(p, parameter, found.whole, bytes)) < 0)
        return status;
    if (!p->progress.has_gradients)
        return lk__fail(p->context, LK_EINVAL, "there are no gradients yet: run LK_FORWARD and LK_BACKWARD first");
    if (p->gradients->forgotten && !p->progress.pending)
        return lk__fail(
            p->context, LK_EINVAL,
            "ranks that share their state do not keep gradients: read them after LK_SYNC and before LK_UPDATE");
    if (p->shard && !p->progress.synced)
        return lk__fail(p->context, LK_EINVAL,
                        "each rank keeps only its slice of the summed gradients: read gradients after LK_SYNC");
    int    state = lk__find_state(p->plan->graph, parameter);
    size_t local = lk__plan_gradient_bytes(p->plan, (size_t)state);
    if (!lk__gradient_is_part(p, state)) return read_part(p, state, data);
    void *part = lk__alloc(p->context, LK_MEMORY_OTHER, local);
    if (!part) return LK_ENOMEM;
    status = read_part(p, state, part);
    if (status >= 0) status = lk__gradient_gather(p, state, part, data);
    lk__free(p->context, LK_MEMORY_OTHER, part, local);
    return status;
}

/* One of the kernels that have a single operand and a factor, over gradients in their memory. */
static lk_status run_over_gradients(const lk_program *p, lk__op op, double factor, void *data, size_t bytes)
{
    lk_dtype           real = p->plan->graph->real;
    lk__op_attrs       attrs = {.scale = factor};
    lk__kernel_operand all = {.data = data, .dtype = real, .rank = 1, .dims = {(int64_t)(bytes / lk_dtype_size(real))}};
    lk__kernel_call    call = {.attrs = &attrs,
                               .pool = lk__context_pool(p->context),
                               .step = &p->slots[0].step,
                               .step_memory = lk__step_memory(&p->slots[0]),
                               .outputs = 1,
                               .device = p->device,
                               .stream = p->stream};
    call.out[0] = all;
    if (op == LK__OP_scale) call.in[call.inputs++] = all;
    lk__device_kernel kernel = p->device->backend->kernels.find(p->device, op, real, &call);
    lk_status         status = LK_EUNSUPPORTED;
    if (!kernel.run || (kernel.prepare && (status = kernel.prepare(p->device, &kernel, &call)) < 0))
        return lk__fail(p->context, status, "the device %s has no kernel that changes gradients",
                        lk_context_device(p->context));
    return kernel.run(&call);
}

lk_status lk__scale_gradients(lk_program *p, double factor)
{
    return run_over_gradients(p, LK__OP_scale, factor, lk__gradient_set(p, 0), p->plan->gradient_bytes);
}

lk_status lk_program_gradient_write(lk_program *p, const char *parameter, const void *data, size_t bytes)
{
    located   found;
    lk_status status = gather_gradients(p);
    if (status < 0 || (status = locate_gradient(p, parameter, &found)) < 0 ||
        (status = check_bytes(p, parameter, found.whole, bytes)) < 0)
        return status;
    if (p->progress.pending == 0) { /* no backward has run: written gradients count as one, the others are zero */
        status = run_over_gradients(p, LK__OP_fill, 0, lk__gradient_set(p, 0), p->plan->gradient_bytes);
        if (status < 0) return status;
        p->progress.pending = 1;
        p->progress.synced = p->progress.has_gradients = p->progress.written = true;
        p->progress.weight = 1;
        p->progress.update_allowed = false;
        p->gradients->written(p);
    }
    if (found.bytes == 0) return LK_OK;
    int state = lk__find_state(p->plan->graph, parameter);
    if (lk__plan_is_tied(p->plan, (size_t)state) &&
        lk__plan_first_holder(p->plan, (size_t)state) != lk__plan_own_stage(p->plan)) /* the sum is that of the first */
        return run_over_gradients(p, LK__OP_fill, 0, found.memory, found.bytes);
    if (!lk__gradient_is_part(p, state))
        return lk__device_write(p->device, p->stream, found.memory, (const char *)data + found.skipped, found.bytes);
    size_t local = lk__plan_gradient_bytes(p->plan, (size_t)state);
    char  *part = lk__alloc(p->context, LK_MEMORY_OTHER, local);
    if (!part) return LK_ENOMEM;
    lk__gradient_cut(p, state, data, part);
    status = lk__device_write(p->device, p->stream, found.memory, part + found.skipped, found.bytes);
    lk__free(p->context, LK_MEMORY_OTHER, part, local);
    return status;
}

static lk_status check_pending(const lk_program *p)
{
    if (p->progress.pending) return LK_OK;
    return lk__fail(
        p->context, LK_EINVAL,
        "there are no gradients for the next LK_UPDATE: first run LK_FORWARD and LK_BACKWARD, or write gradients");
}

lk_status lk_program_gradient_scale(lk_program *p, const char *parameter, double factor)
{
    located   found;
    lk_status status = gather_gradients(p);
    if (status < 0 || (status = check_pending(p)) < 0) return status;
    if (!isfinite(factor))
        return lk__fail(p->context, LK_EINVAL, "gradients must be scaled by a finite factor, not by %g", factor);
    if (!parameter) return lk__scale_gradients(p, factor);
    if ((status = locate_gradient(p, parameter, &found)) < 0 || found.bytes == 0) return status;
    return run_over_gradients(p, LK__OP_scale, factor, found.memory, found.bytes);
}

lk_status lk_program_gradient_weight(lk_program *p, double weight)
{
    lk_status status = finish_gradients(p);
    if (status < 0 || (status = check_pending(p)) < 0) return status;
    if (!p->progress.synced)
        return lk__fail(p->context, LK_EINVAL,
                        "set the weight after LK_SYNC, which would otherwise add it to the weights of the other ranks");
    if (!(weight > 0) || !isfinite(weight))
        return lk__fail(p->context, LK_EINVAL, "gradients must be divided by a finite weight above 0, not by %g",
                        weight);
    p->progress.weight = weight;
    return LK_OK;
}
