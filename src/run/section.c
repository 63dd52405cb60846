/* section.c - the interpreter: runs the calls of a section, slot by slot between the points where slots and ranks synchronise. */
#include "run/shared.h"

#include "comm/hosts.h"
#include "run/lend.h"
#include "run/timeline.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void *lk__program_resolve(const lk_program *p, const char *arena, const char *gradients, lk__plan_place place)
{
    switch (place.region) {
    case LK__IN_PARAMETERS: return p->store->parameters + place.offset;
    case LK__IN_BUFFERS: return p->store->buffers + place.offset;
    case LK__IN_CONSTANTS: return p->constants + place.offset;
    case LK__IN_MASTER: return p->store->master + place.offset;
    case LK__IN_OPTIMIZER: return p->store->optimizer + place.offset;
    case LK__IN_GRADIENTS: return (char *)gradients + place.offset;
    case LK__IN_ACTIVATIONS: return (char *)arena + place.offset;
    default: return NULL;
    }
}

static int operand_value(const lk__graph_node *n, int i) { return i < n->inputs ? n->in[i] : n->out[i - n->inputs]; }
static lk__kernel_operand *operand(lk__kernel_call *call, const lk__graph_node *n, int i)
{
    return i < n->inputs ? &call->in[i] : &call->out[i - n->inputs];
}

/* Sets the extents that depend on the count, and the addresses of inputs and gradients. */
static lk_status set_operands(lk_program *p, const lk__run_slot *slot, lk__run_list *list, const char *gradients)
{
    const lk__plan_list *planned = list->planned;
    for (size_t i = 0; i < list->count; i++) {
        lk__run_instruction  *in = &list->instructions[i];
        const lk__graph_node *n = &planned->graph->nodes[in->node];
        for (int j = 0; j < n->inputs + n->outputs; j++) {
            int v = operand_value(n, j);
            if (v < 0) continue;
            lk__kernel_operand    *o = operand(&in->call, n, j);
            const lk__graph_shape *s = &planned->graph->values[v].shape;
            if (s->count_axis >= 0) o->dims[s->count_axis] = slot->step.count * s->count_unit;
            if (planned->places[v].region == LK__IN_GRADIENTS) o->data = (char *)gradients + planned->places[v].offset;
            if (planned->places[v].region != LK__IN_INPUT) continue;
            size_t input = planned->places[v].offset;
            o->data = (void *)lk__input_memory(p, slot, input);
            if (!o->data)
                return lk__fail(p->context, LK_EINVAL, "input \"%s\" is not bound; call lk_program_bind before a run",
                                p->plan->graph->values[input].name);
        }
    }
    list->samples = slot->step.count;
    list->total = p->step.total;
    list->gradients = gradients;
    return LK_OK;
}

lk_status lk__program_number(const lk_program *p, const char *arena, const lk__plan_list *planned, int value,
                             double otherwise, double *number)
{
    float narrow;
    *number = otherwise;
    if (value < 0) return LK_OK;
    const void *data = lk__program_resolve(p, arena, p->gradients, planned->places[value]);
    if (planned->graph->values[value].shape.dtype != LK_F32)
        return lk__device_read(p->device, p->stream, number, data, sizeof *number);
    lk_status status = lk__device_read(p->device, p->stream, &narrow, data, sizeof narrow);
    *number = (double)narrow;
    return status;
}

lk_status lk__slot_numbers(const lk_program *p, const lk__run_slot *slot, const lk__plan_list *planned, double *numbers)
{
    lk_status status = LK_OK;
    for (int i = 0; i < planned->numbers_count && status >= 0; i++)
        status = lk__program_number(p, slot->arena, planned, planned->numbers[i], lk__number_otherwise(p->plan, i),
                                    &numbers[i]);
    return status;
}

static double mean(double sum, double weight) { return weight != 0 ? sum / weight : 0; }

void lk__metrics_set(lk_program *p, const double *numbers)
{
    int count = (int)p->plan->graph->metrics_count;
    for (int i = 0; i < count; i++) {
        const double *pair = numbers + LK__NUMBER_METRICS + 2 * i;
        p->named[i] = (lk_named_metric){p->plan->graph->metrics[i].name, pair[0], pair[1], mean(pair[0], pair[1])};
    }
    double loss = lk__plan_mean_loss(p->plan, numbers);
    bool   several = p->plan->losses_count > 0; /* they have no common sum */
    memcpy(p->latest, numbers, (size_t)p->plan->evaluate.numbers_count * sizeof *numbers);
    p->metrics = (lk_metrics){.loss = loss,
                              .sum = several ? loss : numbers[LK__NUMBER_SUM],
                              .weight = several ? 1 : numbers[LK__NUMBER_WEIGHT],
                              .correct = numbers[LK__NUMBER_CORRECT],
                              .named = p->named,
                              .named_count = count};
}

static inline lk_status call_kernel(lk_program *p, lk__run_instruction *in)
{
    return in->leaves ? lk__leaf_batch_run(p, in) : in->run(&in->call);
}

/* Waits for the kernel, so that a failure is its own. */
static lk_status run_and_wait(lk_program *p, lk__run_instruction *in)
{
    lk_status status = call_kernel(p, in);
    if (status >= 0) status = p->device->backend->stream_wait(p->device, p->stream);
    if (status >= 0) return LK_OK;
    const lk__run_list *lists[] = {&p->evaluate, &p->weights};
    const lk_graph     *g = p->plan->train.graph;
    for (int i = 0; i < 2; i++)
        if (in >= lists[i]->instructions && in < lists[i]->instructions + lists[i]->count) g = lists[i]->planned->graph;
    const lk__graph_node *n = &g->nodes[in->node];
    char                  text[512];
    lk__node_text(g, n, text, sizeof text);
    return lk__fail_prefix(p->context, status, "%s, recorded at %s:%d: ", text, n->site.file ? n->site.file : "?",
                           n->site.line);
}

static inline lk_status run_instruction(lk_program *p, lk__run_instruction *in)
{
    if (p->waits) return run_and_wait(p, in);
    if ((!p->profile && !p->trace) || lk__timeline_on(p)) return call_kernel(p, in);
    double    start = lk__now();
    lk_status status = call_kernel(p, in);
    if (status >= 0) status = p->device->backend->stream_wait(p->device, p->stream);
    double end = lk__now();
    in->seconds += end - start;
    in->runs++;
    if (p->trace)
        lk__trace_add(
            p->trace,
            &(lk__trace_event){
                .name = in->name, .kind = LK__TRACE_KERNEL, .track = LK__TRACK_COMPUTE, .begin = start, .end = end});
    return status;
}

lk_status lk__kernels_issue(lk_program *p, const lk__run_key *key)
{
    lk_status status = LK_OK;
    bool      together = !p->waits;
    for (size_t i = key->begin, end; i < key->end && status >= 0; i = end) {
        end = i;
        if ((status = lk__timeline_before(p, p->stream)) < 0) return status;
        if (together) status = lk__update_run(p, key->list, i, key->end, &end);
        if (status >= 0 && end == i) status = run_instruction(p, &key->list->instructions[end++]);
        lk__lend_progress(p);
        lk__run_unit unit = {.list = (lk__run_list *)key->list, .begin = i, .end = end};
        if (status >= 0) status = lk__timeline_after(p, p->stream, &unit);
    }
    return status;
}

/* Kernels begin … end-1 of a list, as recorded where the device records. */
static lk_status run_kernels(lk_program *p, lk__run_list *list, size_t begin, size_t end)
{
    lk__run_key key = {.list = list,
                       .begin = begin,
                       .end = end,
                       .samples = list->samples,
                       .total = list->total,
                       .gradients = list->gradients};
    lk_status   status = LK_OK;
    if (!p->graphs) return lk__kernels_issue(p, &key);
    for (size_t i = begin; i < end && status >= 0; i = key.end) { /* what waits for numbers is not recorded */
        bool waits = lk__leaf_batch_waits(p, &list->instructions[i]);
        for (key.begin = i, key.end = i + 1; key.end < end; key.end++)
            if (waits || lk__leaf_batch_waits(p, &list->instructions[key.end])) break;
        status = waits ? lk__kernels_issue(p, &key) : lk__run_recorded(p, &key, lk__kernels_issue);
    }
    return status;
}

lk_status lk__operands_set(lk_program *p, const char *gradients)
{
    lk__run_slot *slot = &p->slots[0];
    if (slot->train.samples == slot->step.count && slot->train.gradients == gradients) return LK_OK;
    return set_operands(p, slot, &slot->train, gradients);
}

lk_status lk__operands_evaluate(lk_program *p)
{
    lk__run_slot *slot = &p->slots[0];
    return p->evaluate.samples == slot->step.count ? LK_OK : set_operands(p, slot, &p->evaluate, p->gradients);
}

lk_status lk__operands_weigh(lk_program *p)
{
    lk__run_slot *slot = &p->slots[0];
    return p->weights.samples == slot->step.count ? LK_OK : set_operands(p, slot, &p->weights, p->gradients);
}

lk_status lk__list_run(lk_program *p, lk__run_list *list)
{
    lk_status status = lk__stage_inputs(p, &p->slots[0]);
    for (size_t i = list->begin[LK_EVALUATE], end = list->end[LK_EVALUATE], stop; i < end && status >= 0; i = stop + 1) {
        for (stop = i; stop < end && list->instructions[stop].kind == LK__RUNS_KERNEL;) stop++;
        status = run_kernels(p, list, i, stop);
        if (status >= 0 && stop < end) status = lk__collective_evaluate(p, &list->instructions[stop]);
    }
    return status;
}

static int slots_of(const lk_program *p, lk_section section) { return section == LK_UPDATE ? 1 : p->plan->slots; }

lk_status lk__slots_prepare(lk_program *p, lk_section section)
{
    int       slots = slots_of(p, section);
    bool      batch_leaves = p->plan->batch_leaves;
    lk_status status = LK_OK;
    for (int i = 0; i < slots; i++) {
        lk__run_list *own = &p->slots[i].train;
        int           set = p->plan->parallel.leaves ? p->leaf + i : p->pending > 0 ? 1 : 0;
        const char   *gradients = lk__gradient_set(p, section == LK_UPDATE ? 0 : set);
        bool          set_up = own->samples == p->slots[i].step.count && (!batch_leaves || own->total == p->step.total);
        if (set_up && (section == LK_FORWARD || own->gradients == gradients)) continue;
        if ((status = set_operands(p, &p->slots[i], own, gradients)) < 0) return status;
        if (batch_leaves) lk__leaf_batch_patch(p);
    }
    return status;
}

static lk_status run_slots(lk_program *p, lk_section section)
{
    int           slots = slots_of(p, section);
    lk__run_list *list = &p->slots[0].train;
    bool          batch_leaves = p->plan->batch_leaves;
    bool          last = !p->no_sync && (batch_leaves || slots > 1 || p->leaf == lk__leaves_here(p) - 1);
    lk_status     status = lk__slots_prepare(p, section);
    for (int i = 0; i < slots && status >= 0; i++)
        status = section == LK_FORWARD ? lk__stage_inputs(p, &p->slots[i]) : lk__stage_step(p, &p->slots[i]);
    for (size_t i = list->begin[section], stop; i < list->end[section] && status >= 0; i = stop + 1) {
        for (stop = i; stop < list->end[section] && list->instructions[stop].kind == LK__RUNS_KERNEL;) stop++;
        for (int slot = 0; slot < slots; slot++)
            if ((status = run_kernels(p, &p->slots[slot].train, i, stop)) < 0) return status;
        if (stop < list->end[section]) status = lk__collective_run(p, stop, last);
    }
    return status;
}

#define STEP_ORDER "the order of a step is LK_FORWARD, LK_BACKWARD, LK_UPDATE"

/* Metrics of a micro-batch count when its gradients do. */
static lk_status run_backward(lk_program *p)
{
    const lk_plan *plan = p->plan;
    bool           adds = plan->parallel.leaves || plan->sets > 1;
    if (!p->ready)
        return lk__fail(p->context, LK_EINVAL, "LK_BACKWARD %s; " STEP_ORDER,
                        p->overwritten ? "after LK_EVALUATE, which has overwritten what it reads"
                                       : "without a LK_FORWARD that it belongs to");
    if (!adds && p->no_sync)
        return lk__fail(p->context, LK_EINVAL,
                        "lk_program_no_sync accumulates gradients, but the plan holds one set of them: plan it with "
                        "micro_batches above 1");
    if (p->comm && !plan->parallel.leaves && !p->synced && p->pending && p->sent) { /* its gradients are in flight */
        if (adds)
            return lk__fail(
                p->context, LK_EINVAL,
                "the gradients of the LK_BACKWARD before this one were sent to the other ranks already, so "
                "nothing can be added to them: call lk_program_no_sync(program, true) before all but the last");
        lk_status status = lk__collectives_drain(p);
        if (status < 0) return status;
    }
    if (p->shared && p->synced && p->shared->summed != LK__SUMMED_WHOLE) { /* other ranks may be reading them */
        lk_status status = lk__comm_barrier_host(p->comm);
        if (status < 0) return status;
    }
    if (p->synced || (!adds && p->pending)) { /* gradients that no update used are replaced */
        p->pending = 0;
        p->synced = p->written = false;
        p->invalid_backward = false;
        if (!p->invalid_forward) p->invalid_text[0] = 0;
    }
    p->sent = 0;
    lk_status status = lk__losses_scale(p);
    p->ready = false; /* gradients overwrite activations */
    if (status >= 0) status = run_slots(p, LK_BACKWARD);
    for (size_t i = 0; status >= 0 && !plan->reduces && p->pending > 0 && i < plan->buckets_count; i++)
        status = lk__gradients_accumulate(p, &plan->buckets[i]);
    if (status < 0) return status;
    for (int i = 0; i < plan->slots && !plan->batch_leaves; i++) {
        double numbers[LK__PLAN_NUMBERS], *to = lk__leaf_numbers(p, plan->parallel.leaves ? p->leaf + i : 0);
        if ((status = lk__slot_numbers(p, &p->slots[i], &plan->train, numbers)) < 0) return status;
        bool more = !plan->parallel.leaves && p->pending > 0;
        for (int k = 0; k < plan->train.numbers_count; k++) to[k] = more ? to[k] + numbers[k] : numbers[k];
    }
    if (plan->batch_leaves && (status = lk__losses_keep_numbers(p)) < 0) return status;
    p->pending++;
    p->has_gradients = true;
    p->invalid_backward |= p->invalid_forward;
    return LK_OK;
}

/* Of all buckets; where one fails, the others are still waited for, since they use the gradients. */
static lk_status run_waits(lk_program *p)
{
    const lk__run_list *list = &p->slots[0].train;
    lk_status           status = LK_OK;
    for (size_t i = list->begin[LK_SYNC]; i < list->end[LK_SYNC] && status >= 0; i++)
        status = lk__collective_run(p, i, true);
    if (status < 0) (void)lk__collectives_drain(p);
    return status;
}

/* LK_SYNC failed on this rank. On several hosts it may have succeeded on others of this one, which may update at once. On one host a rank
 * that has got all reports has them because all others can get them. */
static lk_status fail_sync(lk_program *p, lk_status status, bool permits)
{
    return status < 0 && permits && p->plan->parallel.hosts > 1 ? lk__store_invalidate(p->store, status) : status;
}

/* The update divides by the weight of all ranks. */
static lk_status run_sync(lk_program *p)
{
    const lk__plan_list *planned = &p->plan->train;
    if (p->synced) return LK_OK;
    if (p->pending == 0)
        return lk__fail(p->context, LK_EINVAL, "there are no gradients to synchronise: run LK_BACKWARD first");
    bool permits = p->shared && p->shared->permits;
    lk__lend_cores(p);
    lk_status status = run_waits(p);
    if (status >= 0) status = fail_sync(p, lk__gather_reports(p), permits);
    if (p->shared) {
        p->shared->permits = false;
        p->shared->summed = p->shared->lazy ? LK__SUMMED_NOWHERE : LK__SUMMED_SLICES;
    }
    if (status < 0 || (status = lk__share_ids(p)) < 0) return status;
    double all[LK__PLAN_NUMBERS];
    lk__add_reports(p, all);
    if (planned->numbers[LK__NUMBER_WEIGHT] < 0) all[LK__NUMBER_WEIGHT] = 1;
    lk__metrics_set(p, all);
    p->weight = all[LK__NUMBER_WEIGHT];
    if (p->shared && (status = fail_sync(p, lk__shared_exchange(p), permits)) < 0) return status;
    p->synced = true;
    return LK_OK;
}

/* The weight is among the activations, which other sections may have overwritten since LK_SYNC. A loss without one is divided here. */
static lk_status set_weight(lk_program *p)
{
    const lk__plan_list *planned = &p->plan->train;
    int                  weight = planned->numbers[LK__NUMBER_WEIGHT];
    if (weight < 0 && p->weight != 1) {
        lk_status status = p->shared ? lk__shared_gather(p) : LK_OK;
        return status < 0 ? status : lk__scale_gradients(p, 1 / p->weight);
    }
    if (weight < 0) return LK_OK;
    void *to = lk__program_resolve(p, p->slots[0].arena, p->gradients, planned->places[weight]);
    return lk__device_write(p->device, p->stream, to, &p->weight, sizeof p->weight);
}

/* All ranks have the same reports, so that all of them stop here. Gradients of the caller's own have no loss. */
static lk_status check_finite(lk_program *p)
{
    int rank = 0, world = lk__plan_ranks(p->plan);
    if (p->written) return LK_OK;
    while (rank < world && isfinite(lk__program_rank_sums(p, rank).sum)) rank++;
    if (rank == world) return LK_OK;
    double loss = lk__program_rank_sums(p, rank).sum;
    lk__drop_gradients(p);
    char whose[48] = "the loss";
    if (world > 1) snprintf(whose, sizeof whose, "the loss of rank %d", rank);
    return lk__fail(p->context, LK_ENAN, "step %lld: %s is %g: the update was not made, and no state has changed",
                    (long long)p->step.step, whose, loss);
}

static lk_status run_update(lk_program *p)
{
    if (p->pending == 0)
        return lk__fail(p->context, LK_EINVAL,
                        "LK_UPDATE without gradients; " STEP_ORDER ", or gradients of your own with "
                        "lk_program_gradient_write before LK_UPDATE");
    if (p->shared && !p->synced) p->shared->permits = true; /* nothing is between the two */
    lk_status status = p->synced ? LK_OK : run_sync(p);
    if (status < 0 || (status = check_finite(p)) < 0 || (status = set_weight(p)) < 0) return status;
    if ((status = p->shared ? lk__shared_update(p) : run_slots(p, LK_UPDATE)) < 0) return status;
    const lk__plan_list *planned = &p->plan->train;
    status = lk__program_number(p, p->slots[0].arena, planned, planned->norm, 0, &p->metrics.grad_norm);
    if (status < 0) return status;
    p->ready = false;
    lk__drop_gradients(p);
    return LK_OK;
}

static lk_status run_evaluate(lk_program *p)
{
    lk__run_list *list = &p->evaluate;
    double        numbers[LK__PLAN_NUMBERS];
    lk_status     status = lk__operands_evaluate(p);
    if (status < 0) return status;
    p->overwritten |= p->ready;
    p->ready = p->invalid.found = false;
    status = lk__list_run(p, list);
    if (status < 0 || (status = lk__slot_numbers(p, &p->slots[0], list->planned, numbers)) < 0) return status;
    lk__metrics_set(p, numbers);
    p->evaluated = p->slots[0].step.count;
    return lk__check_ids(p, list->planned);
}

static lk_status run_forward(lk_program *p)
{
    p->ready = p->overwritten = p->invalid.found = p->invalid_forward = false;
    if (!p->invalid_backward) p->invalid_text[0] = 0; /* of a forward that no backward followed */
    double    numbers[LK__PLAN_NUMBERS];
    lk_status status = run_slots(p, LK_FORWARD);
    if (status < 0 || (status = lk__slot_numbers(p, &p->slots[0], &p->plan->train, numbers)) < 0) return status;
    lk__metrics_set(p, numbers);
    if ((status = lk__check_ids(p, &p->plan->train)) < 0) return status;
    p->ready = true;
    return LK_OK;
}

/* Buffers that the ranks share may be partly new if one of them died here. */
static lk_status check_buffers(lk_program *p, lk_status status)
{
    bool changed = status < 0 && p->plan->writes_buffers && lk__store_shares_buffers(p->store);
    return changed && lk_comm_status(p->comm) < 0 ? lk__store_invalidate(p->store, status) : status;
}

/* Parameters that all ranks share are in the caches of those that updated them: ranks begin at different ones. */
static lk_status run_helped(lk_program *p, lk_status (*section)(lk_program *))
{
    lk__pool *pool = lk__context_pool(p->context);
    if (p->shared) lk__pool_begin_at(pool, lk__plan_own(p->plan), lk__plan_owners(p->plan));
    lk__lend_begin(p);
    lk_status status = section(p);
    lk__lend_end(p);
    lk__pool_begin_at(pool, 0, 1);
    return status;
}

lk_status lk__section_run(lk_program *p, lk_section section)
{
    lk_status status = lk__store_check(p->store);
    p->evaluated = -1; /* its outputs are overwritten */
    if (status < 0) return status;
    switch (section) {
    case LK_FORWARD: return check_buffers(p, run_helped(p, run_forward));
    case LK_BACKWARD: return run_helped(p, run_backward);
    case LK_SYNC: return run_sync(p);
    case LK_UPDATE: return run_update(p);
    default: return run_evaluate(p);
    }
}
