/* interpreter.c - runs the instructions of a section, one after the other. Most instructions are implemented in other
 * files; kernels are run here, from a recording where the device records. */
#include "run/interpreter.h"

#include "plan/expert_leaves.h"
#include "plan/instruction.h"
#include "run/digest.h"
#include "run/lend.h"
#include "run/timeline.h"

static const lk__run_action actions[LK__ACTION_COUNT] = {
    [LK__DO_INPUTS] = lk__run_inputs,
    [LK__DO_BOUND] = lk__run_bound,
    [LK__DO_STEP_BLOCK] = lk__run_step_block,
    [LK__DO_READ_IDS] = lk__run_read_ids,
    [LK__DO_KERNEL] = lk__run_kernels,
    [LK__DO_LEAVES] = lk__run_leaves,
    [LK__DO_SOURCES] = lk__run_sources,
    [LK__DO_START] = lk__run_start,
    [LK__DO_START_STAGED] = lk__run_start_staged,
    [LK__DO_START_EXCHANGE] = lk__run_start_exchange,
    [LK__DO_START_EXCHANGE_STAGED] = lk__run_start_exchange_staged,
    [LK__DO_START_HOST] = lk__run_start_host,
    [LK__DO_START_ALONE] = lk__run_start_alone,
    [LK__DO_START_LEAVES] = lk__run_start_leaves,
    [LK__DO_START_LEAF_BATCH] = lk__run_start_leaf_batch,
    [LK__DO_REFUSE_LEAVES] = lk__run_refuse_leaves,
    [LK__DO_START_BUCKET] = lk__run_start_bucket,
    [LK__DO_START_SCATTER] = lk__run_start_scatter,
    [LK__DO_START_SLICES] = lk__run_start_slices,
    [LK__DO_START_SOURCES] = lk__run_start_sources,
    [LK__DO_WAIT] = lk__run_wait,
    [LK__DO_START_SEND] = lk__run_start_send,
    [LK__DO_START_SEND_STAGED] = lk__run_start_send_staged,
    [LK__DO_START_RECEIVE] = lk__run_start_receive,
    [LK__DO_START_RECEIVE_STAGED] = lk__run_start_receive_staged,
    [LK__DO_WAIT_RECEIVED] = lk__run_wait_received,
    [LK__DO_WAIT_RECEIVED_STAGED] = lk__run_wait_received_staged,
    [LK__DO_WAIT_SENT] = lk__run_wait_sent,
    [LK__DO_LOSS_SCALES] = lk__run_loss_scales,
    [LK__DO_ADD_SETS] = lk__run_add_sets,
    [LK__DO_ADD_LEAVES] = lk__run_add_leaves,
    [LK__DO_ROUND] = lk__run_round,
    [LK__DO_WIDEN] = lk__run_widen,
    [LK__DO_WIDEN_SLICE] = lk__run_widen_slice,
    [LK__DO_COPY_OUT] = lk__run_copy_out,
    [LK__DO_COPY_OUT_SETS] = lk__run_copy_out_sets,
    [LK__DO_COPY_IN] = lk__run_copy_in,
    [LK__DO_LOSSES] = lk__run_loss,
    [LK__DO_NUMBERS] = lk__run_numbers,
    [LK__DO_LEAF_NUMBERS] = lk__run_leaf_numbers,
    [LK__DO_LEND] = lk__run_lend_cores,
    [LK__DO_BARRIER_BUFFERS] = lk__run_barrier_buffers,
    [LK__DO_REPORT] = lk__run_report_step,
    [LK__DO_REPORT_SHARED] = lk__run_report_shared,
    [LK__DO_EXCHANGE] = lk__run_exchange,
    [LK__DO_CHECK_LOSS] = lk__run_check_loss,
    [LK__DO_WEIGHT] = lk__run_weight,
    [LK__DO_DIVIDE] = lk__run_divide,
    [LK__DO_DIVIDE_SHARED] = lk__run_divide_shared,
    [LK__DO_BARRIER_BEGIN] = lk__run_barrier_begin,
    [LK__DO_WAIT_SLICES] = lk__run_wait_slices,
    [LK__DO_SQUARE_SLICES] = lk__run_square_slices,
    [LK__DO_BARRIER_NORM] = lk__run_barrier_norm,
    [LK__DO_UPDATE_SLICES] = lk__run_update_slices,
    [LK__DO_BARRIER_UPDATE] = lk__run_barrier_update,
    [LK__DO_NORM] = lk__run_norm,
    [LK__DO_BATCH_BEGIN] = lk__run_batch_begin,
    [LK__DO_BATCH_NUMBERS] = lk__run_batch_numbers,
    [LK__DO_START_SHARD] = lk__run_start_shard,
    [LK__DO_START_SHARD_STAGED] = lk__run_start_shard_staged,
    [LK__DO_ADD_SLICES] = lk__run_add_slices,
    [LK__DO_SLICE] = lk__run_slice,
    [LK__DO_FETCH_PARTS] = lk__run_fetch_parts,
    [LK__DO_SQUARE_PARTS] = lk__run_square_parts,
    [LK__DO_ADD_SQUARES] = lk__run_add_squares,
    [LK__DO_SUM_NUMBERS] = lk__run_sum_numbers,
    [LK__DO_STEP_END] = lk__run_step_end,
    [LK__DO_STEP_RESULT] = lk__run_step_result,
    [LK__DO_TOKENS] = lk__run_choose_tokens,
    [LK__DO_OUTPUTS] = lk__run_outputs,
};

/* ---- operands ---- */

void *lk__program_resolve(const lk_program *p, const char *arena, const char *gradients, lk__plan_place place)
{
    switch (place.region) {
    case LK__IN_PARAMETERS: return p->store->parameters + place.offset;
    case LK__IN_BUFFERS: return p->store->buffers + place.offset;
    case LK__IN_CONSTANTS: return p->memory.constants + place.offset;
    case LK__IN_MASTER: return p->store->master + place.offset;
    case LK__IN_OPTIMIZER: return p->store->optimizer + place.offset;
    case LK__IN_GRADIENTS: return (char *)gradients + place.offset;
    case LK__IN_ACTIVATIONS: return (char *)arena + place.offset;
    case LK__IN_COMMON: return p->memory.common + place.offset;
    case LK__IN_GATHERED: return p->memory.gathered + place.offset;
    case LK__IN_HOST: return p->memory.host + place.offset;
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
        lk__run_instruction *in = &list->instructions[i];
        if (in->node < 0) continue;
        const lk__graph_node *n = &planned->graph->nodes[in->node];
        for (int j = 0; j < n->inputs + n->outputs; j++) {
            int v = operand_value(n, j);
            if (v < 0) continue;
            lk__kernel_operand    *o = operand(&in->call, n, j);
            const lk__graph_shape *s = &planned->graph->values[v].shape;
            if (s->count_axis >= 0) o->dims[s->count_axis] = lk__shape_extent(s, slot->step.count);
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

/* Where they are set for another count or set of gradients, which forward does not use. */
lk_status lk__operands_prepare(lk_program *p, const lk__schedule_run *run)
{
    for (int i = 0; i < run->slots; i++) {
        lk__run_list *list = lk__run_slot_list(p, run, i);
        const char   *gradients = lk__gradient_set(p, run->set + i);
        bool          leaves = list->total == p->step.total && list->part == run->part && list->each == run->each;
        bool          same = list->samples == lk__run_slot_at(p, run, i)->step.count && (!list->by_leaf || leaves);
        if (same && (run->through == LK_FORWARD || list->gradients == gradients)) continue;
        lk_status status = set_operands(p, lk__run_slot_at(p, run, i), list, gradients);
        if (status < 0) return status;
        list->part = run->part;
        list->each = run->each;
        if (list->by_leaf) lk__leaf_batch_patch(p);
    }
    return LK_OK;
}

/* ---- kernels ---- */

lk_status lk__run_call(lk_program *p, lk__run_instruction *in)
{
    (void)p;
    return in->run(&in->call);
}

/* Waits for the kernel, so that a failure is its own. */
static lk_status run_and_wait(lk_program *p, const lk__run_list *list, lk__run_instruction *in)
{
    if (p->digests) lk__digests_write(p, list, in, false);
    lk_status status = in->issue(p, in);
    if (status >= 0) status = p->device->backend->memory.stream_wait(p->device, p->stream);
    if (status >= 0 && p->digests) lk__digests_write(p, list, in, true);
    if (status >= 0) return LK_OK;
    const lk_graph       *g = list->planned->graph;
    const lk__graph_node *n = &g->nodes[in->node];
    char                  text[512];
    lk__node_text(g, n, text, sizeof text);
    return lk__fail_prefix(p->context, status, "%s, recorded at %s:%d: ", text, n->site.file ? n->site.file : "?",
                           n->site.line);
}

static inline lk_status run_kernel(lk_program *p, const lk__run_list *list, lk__run_instruction *in)
{
    if (p->waits) return run_and_wait(p, list, in);
    if ((!p->profile && !p->trace) || lk__timeline_on(p)) return in->issue(p, in);
    double    start = lk__now();
    lk_status status = in->issue(p, in);
    if (status >= 0) status = p->device->backend->memory.stream_wait(p->device, p->stream);
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

static bool is_kernel(const lk__run_instruction *in)
{
    return in->action == LK__DO_KERNEL || in->action == LK__DO_LEAVES;
}

/* Queues the kernels among instructions begin … end-1: the others there are not part of the run. */
static lk_status issue_kernels(lk_program *p, const lk__run_key *key)
{
    lk_status status = LK_OK;
    for (size_t i = key->begin, end; i < key->end && status >= 0; i = end) {
        end = i + 1;
        if (!is_kernel(&key->list->instructions[i])) continue;
        if ((status = lk__timeline_before(p, p->stream)) < 0) return status;
        bool launched = false;
        if (!p->waits) status = lk__launch_group(p, key->list, i, key->end, &end, &launched);
        if (status >= 0 && !launched) status = run_kernel(p, key->list, &key->list->instructions[i]);
        lk__lend_progress(p);
        lk__run_unit unit = {.list = (lk__run_list *)key->list, .begin = i, .end = end};
        if (status >= 0) status = lk__timeline_after(p, p->stream, &unit);
    }
    return status;
}

static lk__run_key key_of(const lk__run_list *list, size_t begin, size_t end)
{
    return (lk__run_key){.list = list,
                         .begin = begin,
                         .end = end,
                         .samples = list->samples,
                         .total = list->total,
                         .gradients = list->gradients,
                         .batch = list->by_leaf ? list->part : 0};
}

/* Where the run stops or another action of it follows. */
static size_t find_stop(const lk_program *p, const lk__schedule_run *run, size_t at)
{
    size_t end = lk__schedule_end(&lk__run_slot_list(p, run, 0)->at, run), stop = at + 1;
    for (size_t i = stop; i < end; i++) {
        const lk__run_instruction *in = lk__run_at(p, run, i);
        if (in->when & ~run->flags) continue;
        if (in->action != LK__DO_KERNEL) break;
        stop = i + 1;
    }
    return stop;
}

lk_status lk__run_kernels(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk_status status = LK_OK;
    *next = find_stop(p, run, at);
    for (int slot = 0; slot < run->slots && status >= 0; slot++) {
        lk__run_key key = key_of(lk__run_slot_list(p, run, slot), at, *next);
        bool        records = p->graphs && !(run->flags & LK__IF_QUEUED); /* which is one recording */
        status = records ? lk__run_recorded(p, &key, issue_kernels) : issue_kernels(p, &key);
    }
    return status;
}

lk_status lk__run_leaves(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk__run_key key = key_of(lk__run_slot_list(p, run, 0), at, *next);
    return issue_kernels(p, &key);
}

/* The gradient of experts of each source's leaf, from the rows of that source alone. */
lk_status lk__run_sources(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk__run_list          *list = lk__run_slot_list(p, run, 0);
    lk__run_instruction   *in = &list->instructions[at];
    const lk_plan         *plan = p->plan;
    const lk__graph_node  *n = &list->planned->graph->nodes[in->node];
    size_t                 state = (size_t)lk__source_gradient(plan, list->planned, n);
    const lk__plan_bucket *b = lk__gradient_bucket(plan, state);
    int                    offsets = lk__op_find(n->op)->grouped.offsets - 1; /* -1: a gradient of zeros */
    int32_t               *bounds = offsets < 0 ? NULL : in->call.in[offsets].data;
    void                  *made = in->call.out[0].data;
    lk_status              status = LK_OK;
    (void)next;
    for (int source = 0; source < lk__plan_sources(plan) && status >= 0; source++) {
        lk__leaf_sum leaf = lk__source_leaf(plan, source, run->part, run->each);
        if (leaf.count == 0) continue;
        in->call.out[0].data = p->memory.gradients + lk__source_set(plan, b, source, leaf.set) +
                               (plan->states[state].gradient_offset - b->offset);
        if (bounds) in->call.in[offsets].data = bounds + 2 * source * in->call.out[0].dims[0];
        status = run_kernel(p, list, in);
    }
    in->call.out[0].data = made;
    if (bounds) in->call.in[offsets].data = bounds;
    return status;
}

/* On this rank's part of a state. It may be empty: then there is nothing to update, and its squares are 0. */
lk_status lk__run_slice(lk_program *p, const lk__schedule_run *run, size_t at, size_t *next)
{
    lk__run_list        *list = lk__run_slot_list(p, run, 0);
    lk__run_instruction *in = &list->instructions[at];
    (void)next;
    if (in->call.in[0].dims[0] > 0) {
        lk__run_unit unit = {.list = list, .begin = at, .end = at + 1};
        lk_status    status = lk__timeline_before(p, p->stream);
        if (status >= 0) status = run_kernel(p, list, in);
        return status < 0 ? status : lk__timeline_after(p, p->stream, &unit);
    }
    if (lk__op_find(in->op)->effect == LK__EFFECT_STATE) return LK_OK;
    size_t bytes = (size_t)lk__operand_elements(&in->call.out[0]) * sizeof(double);
    return p->device->backend->memory.fill(p->device, p->stream, in->call.out[0].data, 0, bytes);
}

/* ---- the interpreter ---- */

lk_status lk__interpret(lk_program *p, const lk__schedule_run *run)
{
    const lk__run_list *list = lk__run_slot_list(p, run, 0);
    lk_status           status = lk__operands_prepare(p, run);
    size_t              end = lk__schedule_end(&list->at, run);
    for (size_t i = lk__schedule_begin(&list->at, run), next; i < end && status >= 0; i = next) {
        const lk__run_instruction *in = &list->instructions[i];
        next = i + 1;
        if (!(in->when & ~run->flags)) status = actions[in->action](p, run, i, &next);
    }
    return status;
}
