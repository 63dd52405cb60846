/* shared_update.c - the update of a state that the ranks of a host share: every rank sums and updates its slices, block
 * by block, so that a sum is still in the cache when the optimizer reads it. Bound by memory: a rank reads its slices
 * of all ranks' gradients, and 1 / world of the optimizer's state. On several hosts every host does the same to its
 * own copy, with sums that collectives have made before. */
#include "run/shared.h"

#include "base/exact_sum.h"
#include "comm/hosts.h"
#include "run/collective.h"
#include "run/interpreter.h"

#include <string.h>

/* ---- waits for all ranks of this host ---- */

static lk_status wait_for_host(lk_program *p, const char *name)
{
    double    start = lk__now();
    lk_status status = lk__comm_barrier_host(p->batch);
    double    end = lk__now();
    p->collectives->waited += end - start;
    lk__traced(p, name, start, end, 0);
    return status;
}

/* ---- the norm of the gradient ---- */

static char *own_gradient(const lk_program *p, int state, int64_t first)
{
    return lk__gradient_set(p, 0) + p->plan->states[state].gradient_offset +
           (size_t)first * lk_dtype_size(p->plan->graph->real);
}

/* Sums a part over all ranks, what is in this rank's slice into its gradients, and its squares. */
static void sum_part(void *argument, int64_t tile, int worker)
{
    const lk_program          *p = argument;
    const lk__run_shared      *x = p->shared;
    const lk__run_part        *part = &x->parts[tile];
    const lk__run_instruction *in = &p->slots[0].train.instructions[x->norms[part->state]];
    lk__kernel_call            call = in->call;
    double                     partial[LK__EXACT_MOST];
    bool                       whole = part->own == part->count || x->summed == LK__SUMMED_WHOLE;
    char                      *own = own_gradient(p, part->state, part->first);
    char                      *sum = whole ? own : x->scratch + (size_t)worker * x->scratch_bytes;
    if (!whole || x->summed == LK__SUMMED_NOWHERE)
        lk__shared_sum(p, part->state, part->first, part->count, sum, worker);
    if (!whole && x->summed == LK__SUMMED_NOWHERE)
        memcpy(own, sum, (size_t)part->own * lk_dtype_size(p->plan->graph->real));
    call.in[0] = (lk__kernel_operand){.data = sum, .dtype = call.in[0].dtype, .rank = 1, .dims = {part->count}};
    call.out[0].data = part->squares;
    call.workspace = partial;
    call.pool = NULL;
    (void)in->run(&call);
}

/* Of all tensors at once: the instructions behind this one are the other tensors'. */
static size_t end_of_action(const lk_program *p, const lk__schedule_run *run, size_t at)
{
    size_t end = at;
    while (end < lk__run_slot_list(p, run, 0)->count &&
           lk__run_at(p, run, end)->action == lk__run_at(p, run, at)->action)
        end++;
    return end;
}

lk_status lk__run_wait_slices(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    (void)run, (void)at, (void)next;
    return lk__shared_wait_slices(p);
}

lk_status lk__run_square_slices(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    *next = end_of_action(p, run, at);
    lk__pool_run(lk__context_pool(p->context), (int64_t)p->shared->parts_count, sum_part, p);
    return LK_OK;
}

/* Leaves every tensor's sum of squares where its instruction would. */
lk_status lk__run_barrier_norm(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    const lk__run_shared *x = p->shared;
    lk_status             status = wait_for_host(p, lk__action_name(LK__DO_BARRIER_NORM));
    (void)at, (void)next;
    for (size_t i = 0; i < p->plan->graph->states_count && status >= 0; i++) {
        if (x->norms[i] < 0) continue;
        const double *parts = x->squares + x->first_square[i];
        double       *total = lk__run_at(p, run, (size_t)x->norms[i])->call.out[0].data;
        int           each = x->square_doubles;
        for (int k = 0; k < each; k++) total[k] = 0;
        for (int64_t k = 0, n = lk__square_parts(lk__state_elements(p->plan, (int)i)); k < n; k++)
            lk__exact_add(total, parts + k * each, each);
    }
    return status;
}

/* ---- slices ---- */

static void move_operand(lk__kernel_operand *o, int64_t first, int64_t count)
{
    if (o->data) o->data = (char *)o->data + (size_t)first * lk_dtype_size(o->dtype);
    o->rank = 1;
    o->dims[0] = count;
}

/* The new parameters, which are still in the cache, to the copies of other memory nodes. */
static void replicate_block(const lk_program *p, const lk__run_block *b)
{
    const lk__plan_state *sp = &p->plan->states[b->state];
    const lk_graph       *g = p->plan->graph;
    size_t                size = lk_dtype_size(g->values[g->states[b->state].value].shape.dtype);
    lk__store_replicate(p->store, p->store->parameters + sp->place.offset + (size_t)b->first * size,
                        (size_t)b->count * size);
}

static void update_block(void *argument, int64_t tile, int worker)
{
    const lk_program          *p = argument;
    const lk__run_shared      *x = p->shared;
    const lk__run_block       *b = &x->blocks[tile];
    const lk__run_instruction *in = &p->slots[0].train.instructions[x->optimizers[b->state]];
    lk__kernel_call            call = in->call;
    move_operand(&call.in[0], b->first, b->count);
    for (int i = 0; i < call.outputs; i++) move_operand(&call.out[i], b->first, b->count);
    /* With clipping all but the last are summed in place already. */
    if (x->summed == LK__SUMMED_NOWHERE && (b->last || !x->squares)) {
        call.in[0].data = x->scratch + (size_t)worker * x->scratch_bytes;
        lk__shared_sum(p, b->state, b->first, b->count, call.in[0].data, worker);
    }
    call.pool = NULL;
    (void)in->run(&call);
    replicate_block(p, b);
}

/* A profile has the time of every instruction: that of all is divided by elements. */
static void profile_slices(lk_program *p, double seconds)
{
    const lk__run_shared *x = p->shared;
    double                elements = 0;
    for (size_t i = 0; i < x->blocks_count; i++) elements += (double)x->blocks[i].count;
    for (size_t i = 0; i < x->blocks_count; i++)
        p->slots[0].train.instructions[x->optimizers[x->blocks[i].state]].seconds +=
            seconds * (double)x->blocks[i].count / elements;
    for (size_t i = 0; i < p->plan->graph->states_count; i++)
        if (x->optimizers[i] >= 0) p->slots[0].train.instructions[x->optimizers[i]].runs++;
}

lk_status lk__run_update_slices(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    double start = p->profile || p->trace ? lk__now() : 0;
    *next = end_of_action(p, run, at);
    lk__pool_run(lk__context_pool(p->context), (int64_t)p->shared->blocks_count, update_block, p);
    if (!p->profile && !p->trace) return LK_OK;
    double end = lk__now();
    profile_slices(p, end - start);
    if (p->trace)
        lk__trace_add(p->trace, &(lk__trace_event){.name = lk__action_name(LK__DO_UPDATE_SLICES),
                                                   .kind = LK__TRACE_KERNEL,
                                                   .track = LK__TRACK_COMPUTE,
                                                   .begin = start,
                                                   .end = end});
    return LK_OK;
}

/* ---- reports ---- */

/* On several hosts LK_SYNC may have succeeded on other ranks of this one, which may update at once. On one host a rank
 * that has got all reports has them because all others can get them. */
static lk_status fail_sync(lk_program *p, lk_status status, bool allows_update)
{
    return status < 0 && allows_update && p->plan->parallel.hosts > 1 ? lk__store_invalidate(p->store, status) : status;
}

lk_status lk__run_report_shared(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    bool      allows_update = p->progress.allows_update;
    lk_status status = lk__gather_reports(p);
    (void)at, (void)next;
    p->shared->summed = p->shared->lazy ? LK__SUMMED_NOWHERE : LK__SUMMED_SLICES;
    return status < 0 ? fail_sync(p, status, allows_update) : lk__use_reports(p, run->list);
}

lk_status lk__run_exchange(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    (void)run, (void)at, (void)next;
    return fail_sync(p, lk__shared_exchange(p), p->progress.update_allowed);
}

/* ---- barriers ---- */

/* In a step the rank that writes buffers has done so before the last collective of LK_BACKWARD. By hand the caller may
 * read them at once, or run LK_FORWARD again. */
lk_status lk__run_barrier_buffers(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    (void)run, (void)at, (void)next;
    return wait_for_host(p, lk__action_name(LK__DO_BARRIER_BUFFERS));
}

lk_status lk__run_barrier_begin(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    (void)run, (void)at, (void)next;
    return wait_for_host(p, lk__action_name(LK__DO_BARRIER_BEGIN));
}

lk_status lk__run_barrier_update(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    (void)run, (void)at, (void)next;
    lk_status status = lk__store_invalidate(p->store, wait_for_host(p, lk__action_name(LK__DO_BARRIER_UPDATE)));
    p->progress.update_allowed = p->shared->slices_pending = false;
    return status;
}
