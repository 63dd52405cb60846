/* access.c - the accesses of instructions: to nodes, numbers and inputs; access_bucket.c has accesses to gradients. */
#include "plan/access.h"

#include "base/tree.h"
#include "plan/expert_leaves.h"
#include "plan/joined.h"
#include "plan/pipeline.h"

/* ---- single accesses ---- */

lk__plan_content *lk__access_put(lk__plan_accesses *a, lk__plan_access access)
{
    a->unused = access;
    if (a->status < 0 || access.begin >= access.end) return &a->unused.content;
    a->status = lk__grow(a->plan->context, (void **)&a->all, &a->capacity, a->count + 1, sizeof *a->all);
    if (a->status < 0) return &a->unused.content;
    a->all[a->count] = access;
    return &a->all[a->count++].content;
}

lk__plan_content *lk__access_number(lk__plan_accesses *a, lk__plan_access_kind kind, int space, size_t number,
                                    int first, int count)
{
    return lk__access_put(a, (lk__plan_access){.kind = kind,
                                               .space = space,
                                               .begin = number,
                                               .end = number + 1,
                                               .content = {.value = (int)number, .first = first, .count = count}});
}

static int space_of(lk__plan_region region, int slot)
{
    switch (region) {
    case LK__IN_PARAMETERS: return LK__SPACE_PARAMETERS;
    case LK__IN_BUFFERS: return LK__SPACE_BUFFERS;
    case LK__IN_CONSTANTS: return LK__SPACE_CONSTANTS;
    case LK__IN_MASTER: return LK__SPACE_MASTER;
    case LK__IN_OPTIMIZER: return LK__SPACE_OPTIMIZER;
    case LK__IN_GRADIENTS: return LK__SPACE_GRADIENTS;
    case LK__IN_GATHERED: return LK__SPACE_GATHERED;
    case LK__IN_HOST: return LK__SPACE_HOST;
    case LK__IN_COMMON: return LK__SPACE_COMMON;
    default: return lk__space_activations(slot);
    }
}

/* Whether a rank has a part of the value alone (plan/shard.h). */
static bool is_cut(const lk_plan *p, const lk__graph_value *v)
{
    bool of_state = v->kind == LK__VALUE_STATE || v->kind == LK__VALUE_MASTER || v->kind == LK__VALUE_OPTIMIZER ||
                    v->kind == LK__VALUE_SLICE;
    return of_state && p->stage && p->states[v->state].unit >= 0 && (v->kind != LK__VALUE_STATE || p->stage == 3);
}

static size_t bytes_of(const lk__plan_accesses *a, int v)
{
    const lk__graph_value *value = &a->list->graph->values[v];
    size_t                 size = lk_dtype_size(value->shape.dtype);
    if (is_cut(a->plan, value)) return (size_t)lk__range_count(lk__plan_piece(a->plan, (size_t)value->state)) * size;
    return (size_t)lk__shape_elements(&value->shape) * size;
}

static bool is_updated(lk__plan_region region)
{
    return region == LK__IN_PARAMETERS || region == LK__IN_MASTER || region == LK__IN_OPTIMIZER;
}

lk__plan_content *lk__access_value(lk__plan_accesses *a, lk__plan_access_kind kind, int v, int slot, int part, int set)
{
    lk__plan_place place = a->list->places[v];
    int            here = a->slot + slot;
    if (place.region == LK__IN_INPUT) return lk__access_number(a, kind, lk__space_inputs(here), place.offset, part, 1);
    size_t          begin = place.offset;
    lk__plan_access one = {.kind = kind, .space = space_of(place.region, here)};
    one.content = (lk__plan_content){.value = a->root[v], .first = part, .count = 1};
    bool once = place.region == LK__IN_GATHERED || place.region == LK__IN_HOST;
    if (once && part != LK__PART_ALL) one.content.first -= slot; /* one for all slots */
    if (place.region == LK__IN_GRADIENTS) begin += (size_t)set * a->plan->gradient_bytes;
    if (place.region == LK__IN_GRADIENTS && part == LK__PART_ALL) {
        one.content.first = 0;
        one.content.count = a->parts;
        if (lk__plan_batch_parts(a->plan) > 1) one.content.stage = LK__STAGE_REDUCED;
    }
    if (is_updated(place.region) || place.region == LK__IN_BUFFERS || place.region == LK__IN_CONSTANTS)
        one.content.first = LK__PART_ALL;
    if (is_updated(place.region) && kind == LK__WRITES) one.content.stage = LK__STAGE_UPDATED;
    if (a->scaled[a->root[v]] && kind != LK__WRITES) one.content.stage = LK__STAGE_SCALED;
    one.begin = begin;
    one.content.origin = begin - (place.offset - a->list->places[a->root[v]].offset); /* of what it is a view of */
    one.end = begin + bytes_of(a, v);
    return lk__access_put(a, one);
}

lk__plan_leaf_change lk__access_leaves(const lk__plan_accesses *a, int first, int count)
{
    return lk__access_leaves_of(a, lk__plan_batch_part(a->plan), first, count);
}

lk__plan_leaf_change lk__access_leaves_of(const lk__plan_accesses *a, int part, int first, int count)
{
    lk__plan_leaf_change change = {.same = 0};
    change.before_count = lk__leaf_stack(a->plan, part, first, change.before);
    change.after_count = lk__leaf_stack(a->plan, part, first + count, change.after);
    while (change.same < change.before_count && change.before[change.same].count == change.after[change.same].count)
        change.same++;
    return change;
}

/* ---- nodes ---- */

static bool updates_buffer(const lk__plan_accesses *a, const lk__graph_node *n, int i)
{
    const lk__graph_value *v = &a->list->graph->values[n->in[i]];
    return lk__op_find(n->op)->effect == LK__EFFECT_IF_UPDATE && n->attrs.update && v->kind == LK__VALUE_STATE &&
           a->list->graph->states[v->state].buffer;
}

/* A node that writes a cache writes rows of it: what was there does not matter. */
static bool reads_input(const lk__graph_node *n, int i)
{
    return n->in[i] >= 0 && (i > 0 || lk__op_find(n->op)->effect != LK__EFFECT_CACHE);
}

static bool may_replace(const lk__graph_node *n, int input)
{
    const lk__graph_op *d = lk__op_find(n->op);
    return ((d->in_place | lk__node_in_place(n, d->replaces.output)) >> input & 1) != 0;
}

static void read_operands(lk__plan_accesses *a, const lk__graph_node *n, int slot, int part, int set)
{
    const lk__graph_op *d = lk__op_find(n->op);
    for (int i = 0; i < n->inputs; i++) {
        if (!reads_input(n, i)) continue;
        bool in_place = may_replace(n, i) || updates_buffer(a, n, i);
        lk__access_value(a, in_place ? LK__READS_IN_PLACE : LK__READS, n->in[i], slot, part, set);
    }
    for (int i = 0; i < n->outputs && d->effect == LK__EFFECT_STATE; i++)
        if (n->out[i] >= 0) lk__access_value(a, LK__READS_IN_PLACE, n->out[i], slot, part, set);
}

static void write_buffers(lk__plan_accesses *a, const lk__graph_node *n, int slot, int part, int set)
{
    for (int i = 0; i < n->inputs; i++)
        if (n->in[i] >= 0 && updates_buffer(a, n, i)) lk__access_value(a, LK__WRITES, n->in[i], slot, part, set);
}

static bool is_private(const lk__plan_list *list, int v)
{
    for (size_t i = 0; i < list->order_count; i++) {
        const lk__graph_node *n = &list->graph->nodes[list->order[i]];
        if (lk__op_find(n->op)->runs == LK__RUNS_COLLECTIVE && n->in[0] == v) return true;
    }
    return false;
}

static size_t leaf_sum(const lk__plan_accesses *a, int v, int leaf)
{
    return (size_t)a->root[v] * (size_t)a->parts + (size_t)leaf;
}

/* Output v of a node that runs leaf by leaf: gradients are added to those of the run's leaves before. */
static void write_leaves(lk__plan_accesses *a, const lk__schedule_run *run, int v)
{
    bool gradient = a->list->places[v].region == LK__IN_GRADIENTS, own = is_private(a->list, v);
    if (!gradient && !own) lk__access_value(a, LK__WRITES, v, 0, run->part, 0);
    for (int leaf = run->part; own && leaf < run->part + run->each; leaf++)
        lk__access_number(a, LK__WRITES, LK__SPACE_LEAF_SUMS, leaf_sum(a, v, leaf), leaf, 1);
    if (!gradient) return;
    lk__plan_leaf_change change = lk__access_leaves(a, run->part, run->each);
    for (int i = change.same; i < change.before_count; i++)
        lk__access_value(a, LK__READS_IN_PLACE, v, 0, change.before[i].first, change.before[i].set)->count =
            change.before[i].count;
    for (int i = change.same; i < change.after_count; i++)
        lk__access_value(a, LK__WRITES, v, 0, change.after[i].first, change.after[i].set)->count =
            change.after[i].count;
}

/* The numbers of each leaf that the host reads. */
static void keep_numbers(lk__plan_accesses *a, const lk__schedule_run *run, const lk__graph_node *n)
{
    int end = run->part + run->each;
    for (int i = 0; i < n->outputs; i++)
        for (int k = 0; k < a->list->numbers_count; k++)
            for (int leaf = run->part; leaf < end && n->out[i] >= 0 && a->list->numbers[k] == n->out[i]; leaf++)
                lk__access_number(a, LK__WRITES, LK__SPACE_NUMBERS, (size_t)leaf * LK__PLAN_NUMBERS + (size_t)k, leaf,
                                  1);
}

static void run_kernel(lk__plan_accesses *a, const lk__schedule_run *run, const lk__graph_node *n, bool by_leaf,
                       bool once)
{
    for (int slot = 0; slot < run->slots; slot++) {
        int part = once ? LK__PART_ALL : run->part + slot, set = run->set + slot;
        if (lk__access_rounding(a, run, n)) return;
        read_operands(a, n, slot, part, set);
        if (slot == 0) write_buffers(a, n, slot, part, set); /* the others only read them: step.updates_buffers */
        for (int i = 0; i < n->outputs; i++) {
            if (n->out[i] < 0) continue;
            if (by_leaf)
                write_leaves(a, run, n->out[i]);
            else
                lk__access_value(a, LK__WRITES, n->out[i], slot, part, set);
        }
    }
}

static void start_value(lk__plan_accesses *a, const lk__schedule_run *run, const lk__graph_node *n, bool leaf_batch,
                        bool once)
{
    for (int slot = 0; slot < run->slots; slot++) {
        int                    part = once ? LK__PART_ALL : run->part + slot, set = run->set + slot;
        const lk__graph_value *x = &a->list->graph->values[n->in[0]];
        if (x->kind == LK__VALUE_BUCKET) {
            lk__access_sum_slices(a, x->state);
            return;
        }
        bool updated = lk__plan_is_unit(a->list->graph, n);
        if (x->kind == LK__VALUE_UNIT)
            lk__access_unit(a, LK__READS_IN_PLACE, x->state, true, updated ? LK__STAGE_UPDATED : LK__STAGE_MADE);
        else if (!leaf_batch)
            lk__access_value(a, LK__READS, n->in[0], slot, part, set);
        for (int i = 1; i < n->inputs; i++) lk__access_value(a, LK__READS_AT_ONCE, n->in[i], slot, part, set);
        for (int leaf = 0; leaf < a->parts && leaf_batch; leaf++)
            lk__access_number(a, LK__READS, LK__SPACE_LEAF_SUMS, leaf_sum(a, n->in[0], leaf), leaf, 1);
        if (updated)
            lk__access_unit(a, LK__WRITES, x->state, false, LK__STAGE_UPDATED);
        else
            lk__access_value(a, LK__WRITES, n->out[0], slot, part, set);
    }
}

/* Of a send or a receive, in flight until its wait. */
static void start_transfer(lk__plan_accesses *a, const lk__schedule_run *run, const lk__graph_node *n, bool once)
{
    int part = once ? LK__PART_ALL : run->part;
    if (n->op == LK__OP_send)
        lk__access_value(a, LK__READS, n->in[0], 0, part, run->set);
    else
        lk__access_value(a, LK__WRITES, n->out[0], 0, part, run->set);
}

/* ---- inputs and numbers ---- */

static void write_inputs(lk__plan_accesses *a, const lk__schedule_run *run)
{
    for (int slot = 0; slot < run->slots; slot++)
        for (size_t v = 0; v < a->values; v++)
            if (a->list->graph->values[v].kind == LK__VALUE_INPUT)
                lk__access_value(a, LK__WRITES, (int)v, slot, run->part + slot, 0);
}

static void read_numbers(lk__plan_accesses *a, int slot, int part)
{
    for (int k = 0; k < a->list->numbers_count; k++)
        if (a->list->numbers[k] >= 0) lk__access_value(a, LK__READS, a->list->numbers[k], slot, part, 0);
}

/* Those of a batch, in the row of its leaf or added to those of the batches before. */
static void write_numbers(lk__plan_accesses *a, const lk__schedule_run *run)
{
    bool adds = run->flags & LK__IF_ADDS;
    for (int slot = 0; slot < run->slots; slot++) {
        int    part = run->part + slot;
        size_t row = (size_t)(run->row + slot) * LK__PLAN_NUMBERS;
        read_numbers(a, slot, part);
        for (int k = 0; k < a->list->numbers_count; k++) {
            if (a->list->numbers[k] < 0) continue;
            if (adds) lk__access_number(a, LK__READS_IN_PLACE, LK__SPACE_NUMBERS, row + (size_t)k, 0, part);
            lk__access_number(a, LK__WRITES, LK__SPACE_NUMBERS, row + (size_t)k, adds ? 0 : part, adds ? part + 1 : 1);
        }
    }
}

static void write_leaf_numbers(lk__plan_accesses *a)
{
    for (int i = 0; i < a->plan->losses_count; i++) {
        int number = lk__number_losses(a->plan) + 2 * i;
        if (a->plan->losses[i].weigh != LK__WEIGH_RUNS || a->list->numbers[number] < 0) continue;
        lk__access_value(a, LK__READS, a->list->numbers[number], 0, 0, 0);
        for (int leaf = 0; leaf < a->parts; leaf++)
            lk__access_number(a, LK__WRITES, LK__SPACE_NUMBERS, (size_t)leaf * LK__PLAN_NUMBERS + (size_t)number, leaf,
                              1);
    }
}

static void report_numbers(lk__plan_accesses *a, bool shared)
{
    int rows = lk__plan_divide(a->plan).rows;
    for (int row = 0; row < rows; row++)
        for (int k = 0; k < a->list->numbers_count; k++)
            if (a->list->numbers[k] >= 0)
                lk__access_number(a, LK__READS, LK__SPACE_NUMBERS, (size_t)row * LK__PLAN_NUMBERS + (size_t)k, row,
                                  a->parts / rows);
    if (shared && a->late) lk__access_lent(a);
    lk__access_number(a, LK__WRITES, LK__SPACE_REPORT, 0, LK__PART_ALL, 1);
    if (shared) lk__access_number(a, LK__WRITES, LK__SPACE_PEERS, 0, LK__PART_ALL, 1);
}

/* In the section update of the last batch, where it also leaves the weight. */
static void add_batch_numbers(lk__plan_accesses *a, const lk__schedule_run *run, lk_section section)
{
    int part = section == LK_UPDATE ? a->parts - 1 : run->part, weight = a->list->numbers[LK__NUMBER_WEIGHT];
    read_numbers(a, 0, part);
    if (run->flags & LK__IF_ADDS) lk__access_number(a, LK__READS_IN_PLACE, LK__SPACE_SUMS, 0, 0, part);
    lk__access_number(a, LK__WRITES, LK__SPACE_SUMS, 0, 0, part + 1);
    if (section == LK_UPDATE && weight >= 0 && !a->group.queued)
        lk__access_value(a, LK__WRITES, weight, 0, LK__PART_ALL, 0);
}

static void sum_batch_numbers(lk__plan_accesses *a)
{
    int weight = a->list->numbers[LK__NUMBER_WEIGHT];
    lk__access_number(a, LK__READS, LK__SPACE_SUMS, 0, 0, a->parts);
    lk__access_number(a, LK__WRITES, LK__SPACE_REPORT, 0, LK__PART_ALL, 1);
    if (weight >= 0) lk__access_value(a, LK__WRITES, weight, 0, LK__PART_ALL, 0);
}

static void write_scales(lk__plan_accesses *a, const lk__schedule_run *run)
{
    for (int slot = 0; slot < run->slots; slot++)
        for (int i = 0; i < a->plan->losses_count; i++) {
            int v = a->plan->losses[i].scale;
            if (a->list->places[v].region != LK__IN_ACTIVATIONS) continue; /* nothing reads it */
            lk__access_value(a, LK__WRITES, v, slot, run->part + slot, 0)->stage = LK__STAGE_SCALED;
        }
}

static void write_weight(lk__plan_accesses *a)
{
    int weight = a->list->numbers[LK__NUMBER_WEIGHT];
    lk__access_number(a, LK__READS, LK__SPACE_REPORT, 0, LK__PART_ALL, 1);
    lk__access_value(a, LK__WRITES, weight, 0, LK__PART_ALL, 0);
}

static void read_norm(lk__plan_accesses *a)
{
    if (a->list->norm >= 0) lk__access_value(a, LK__READS, a->list->norm, 0, LK__PART_ALL, 0);
}

static void read_outputs(lk__plan_accesses *a)
{
    for (int i = 0; i < a->list->outputs_count; i++) lk__access_value(a, LK__READS, a->list->outputs[i], 0, 0, 0);
}

/* ---- all actions ---- */

/* Of kernels, of collectives over values, of messages and of inputs. false: it is none of these. */
static bool find_of_nodes(lk__plan_accesses *a, const lk__schedule_run *run, const lk__plan_instruction *in)
{
    const lk__graph_node *n = in->node >= 0 ? &a->list->graph->nodes[in->node] : NULL;
    switch (in->action) {
    case LK__DO_INPUTS:
    case LK__DO_BOUND:
    case LK__DO_BATCH_BEGIN: write_inputs(a, run); break;
    case LK__DO_LEAVES:
    case LK__DO_KERNEL:
        run_kernel(a, run, n, lk__plan_by_leaf(a->list, in->node), in->section == LK_UPDATE);
        if (in->action == LK__DO_LEAVES) keep_numbers(a, run, n);
        break;
    case LK__DO_SOURCES:
        read_operands(a, n, 0, run->part, run->set);
        lk__access_sources(a, run, (size_t)lk__source_gradient(a->plan, a->list, n));
        break;
    case LK__DO_START:
    case LK__DO_START_STAGED:
    case LK__DO_START_HOST:
    case LK__DO_START_EXCHANGE:
    case LK__DO_START_EXCHANGE_STAGED:
    case LK__DO_START_ALONE:
    case LK__DO_REFUSE_LEAVES:
    case LK__DO_START_LEAVES: start_value(a, run, n, false, in->section == LK_UPDATE); break;
    case LK__DO_START_LEAF_BATCH: start_value(a, run, n, true, false); break;
    case LK__DO_START_SEND:
    case LK__DO_START_SEND_STAGED:
    case LK__DO_START_RECEIVE:
    case LK__DO_START_RECEIVE_STAGED:
        start_transfer(a, run, n, in->section == LK_SYNC || in->section == LK_UPDATE);
        break;
    case LK__DO_SLICE: lk__access_slice(a, n); break;
    case LK__DO_OUTPUTS:
        read_numbers(a, 0, 0);
        read_outputs(a);
        break;
    case LK__DO_TOKENS:
        read_outputs(a);
        write_inputs(a, run);
        break;
    default: return false;
    }
    return true;
}

/* Of the loss, the weight and the norm: what is counted and reported. */
static bool find_of_numbers(lk__plan_accesses *a, const lk__schedule_run *run, const lk__plan_instruction *in)
{
    switch (in->action) {
    case LK__DO_LOSS_SCALES: write_scales(a, run); break;
    case LK__DO_LOSSES: read_numbers(a, 0, run->part); break;
    case LK__DO_NUMBERS: write_numbers(a, run); break;
    case LK__DO_LEAF_NUMBERS: write_leaf_numbers(a); break;
    case LK__DO_REPORT: report_numbers(a, false); break;
    case LK__DO_REPORT_SHARED: report_numbers(a, true); break;
    case LK__DO_DIVIDE:
    case LK__DO_DIVIDE_SHARED:
    case LK__DO_CHECK_LOSS: lk__access_number(a, LK__READS, LK__SPACE_REPORT, 0, LK__PART_ALL, 1); break;
    case LK__DO_WEIGHT: write_weight(a); break;
    case LK__DO_NORM: read_norm(a); break;
    case LK__DO_BATCH_NUMBERS: add_batch_numbers(a, run, in->section); break;
    case LK__DO_SUM_NUMBERS: sum_batch_numbers(a); break;
    case LK__DO_STEP_RESULT:
        lk__access_number(a, LK__READS, LK__SPACE_SUMS, 0, 0, a->parts);
        read_norm(a);
        break;
    default: return false;
    }
    return true;
}

/* Of buckets of gradients, whole or in slices. */
static bool find_of_gradients(lk__plan_accesses *a, const lk__schedule_run *run, const lk__plan_instruction *in)
{
    switch (in->action) {
    case LK__DO_START_SHARD:
    case LK__DO_START_SHARD_STAGED:
        if (lk__bucket_type(a->plan, &a->plan->buckets[in->bucket]) != a->plan->buckets[in->bucket].dtype)
            lk__access_bucket(a, run, in);
        else
            lk__access_start_shard(a, run, in->bucket);
        break;
    case LK__DO_ADD_SLICES: lk__access_add_slices(a, run, in->bucket); break;
    case LK__DO_FETCH_PARTS: lk__access_fetch_parts(a); break;
    case LK__DO_SQUARE_PARTS: lk__access_square_parts(a, &a->list->graph->nodes[in->node]); break;
    case LK__DO_ADD_SQUARES: lk__access_add_squares(a); break;
    case LK__DO_ADD_SETS:
    case LK__DO_ADD_LEAVES:
    case LK__DO_ROUND:
    case LK__DO_WIDEN:
    case LK__DO_WIDEN_SLICE:
    case LK__DO_COPY_OUT:
    case LK__DO_COPY_OUT_SETS:
    case LK__DO_COPY_IN:
    case LK__DO_START_BUCKET:
    case LK__DO_START_SCATTER:
    case LK__DO_START_SOURCES:
    case LK__DO_START_SLICES: lk__access_bucket(a, run, in); break;
    case LK__DO_EXCHANGE:
    case LK__DO_WAIT_SLICES:
    case LK__DO_SQUARE_SLICES:
    case LK__DO_BARRIER_NORM:
    case LK__DO_UPDATE_SLICES:
    case LK__DO_BARRIER_UPDATE: lk__access_shared(a, run, in); break;
    default: return false;
    }
    return true;
}

static bool has_no_accesses(lk__plan_action action)
{
    switch (action) {
    /* The step block is part of every slot's inputs; a step's end is another way to run what follows it. */
    case LK__DO_STEP_BLOCK:
    case LK__DO_READ_IDS:
    case LK__DO_STEP_END:
    case LK__DO_WAIT:
    case LK__DO_WAIT_RECEIVED:
    case LK__DO_WAIT_RECEIVED_STAGED:
    case LK__DO_WAIT_SENT:
    case LK__DO_LEND:
    case LK__DO_BARRIER_BEGIN:
    case LK__DO_BARRIER_BUFFERS: return true;
    default: return false;
    }
}

lk_status lk__accesses_find(lk__plan_accesses *a, const lk__schedule_run *run, const lk__plan_instruction *in)
{
    a->count = 0;
    a->slot = run->slot;
    if (!find_of_nodes(a, run, in) && !find_of_numbers(a, run, in) && !find_of_gradients(a, run, in) &&
        !has_no_accesses(in->action))
        return lk__fail(a->plan->context, LK_EUNSUPPORTED, "the memory that the instruction \"%s\" accesses is unknown",
                        lk__action_name(in->action));
    return a->status;
}

lk_status lk__accesses_before(lk__plan_accesses *a, const lk__schedule_run *first)
{
    const lk_graph *g = a->list->graph;
    a->count = 0;
    a->slot = 0;
    for (size_t v = 0; v < a->values; v++) {
        lk__graph_kind kind = g->values[v].kind;
        if (kind == LK__VALUE_RESULT || kind == LK__VALUE_INPUT || kind == LK__VALUE_BUCKET || kind == LK__VALUE_UNIT ||
            kind == LK__VALUE_SLICE)
            continue;
        if (kind != LK__VALUE_CONSTANT && !lk__plan_holds(a->plan, (size_t)g->values[v].state)) continue;
        lk__access_value(a, LK__WRITES, (int)v, 0, LK__PART_ALL, 0)->stage = LK__STAGE_MADE;
    }
    /* A step of generation has those that the step before has chosen. */
    if (first->section == LK_EVALUATE && (first->flags & LK__IF_QUEUED)) write_inputs(a, first);
    return a->status;
}

lk_status lk__accesses_after(lk__plan_accesses *a, const lk__schedule_run *last)
{
    a->count = 0;
    a->slot = 0;
    for (size_t i = 0; i < a->list->order_count && last->through == LK_UPDATE; i++) {
        const lk__graph_node *n = &a->list->graph->nodes[a->list->order[i]];
        for (int k = 0; k < n->outputs && lk__op_find(n->op)->effect == LK__EFFECT_STATE; k++) {
            if (n->out[k] < 0) continue;
            lk__access_value(a, LK__READS, n->out[k], 0, LK__PART_ALL, 0)->stage = LK__STAGE_UPDATED;
        }
    }
    return a->status;
}

/* ---- creating and freeing ---- */

/* Parts of a larger value count as that one. */
static lk_status find_roots(lk__plan_accesses *a)
{
    const lk_graph *g = a->list->graph;
    lk__plan_joined joined;
    lk_status       status = lk__joined_find(a->list, &joined);
    for (size_t v = 0; v < a->values && status >= 0; v++) a->root[v] = joined.whole[v] < 0 ? (int)v : joined.first[v];
    for (size_t i = 0; i < a->list->order_count && status >= 0; i++) {
        const lk__graph_node *n = &g->nodes[a->list->order[i]];
        lk__graph_runs        runs = lk__op_find(n->op)->runs;
        bool                  same = runs == LK__RUNS_NOTHING || runs == LK__RUNS_WAIT;
        if (same && !lk__plan_is_bucket(g, n)) a->root[n->out[0]] = a->root[n->in[0]];
    }
    lk__joined_free(a->list, &joined);
    return status;
}

lk_status lk__accesses_create(const lk_plan *plan, const lk__plan_list *list, lk__plan_group group,
                              const lk__plan_owned *pieces, size_t pieces_count, lk__plan_accesses *a)
{
    const lk_graph *g = list->graph;
    *a = (lk__plan_accesses){.plan = plan, .list = list, .pieces = pieces, .pieces_count = pieces_count};
    a->values = g->values_count;
    a->group = group;
    a->late = plan->trains && lk__plan_sums_late(plan, group);
    a->parts = lk__plan_divide(plan).here;
    a->root = lk__alloc(plan->context, LK_MEMORY_OTHER, a->values * sizeof *a->root);
    a->scaled = lk__alloc(plan->context, LK_MEMORY_OTHER, a->values * sizeof *a->scaled);
    if (a->values && (!a->root || !a->scaled)) {
        lk__accesses_free(a);
        return LK_ENOMEM;
    }
    if (find_roots(a) < 0) {
        lk__accesses_free(a);
        return LK_ENOMEM;
    }
    for (int i = 0; i < plan->losses_count && list == &plan->train; i++)
        a->scaled[a->root[plan->losses[i].scale]] = true;
    return LK_OK;
}

void lk__accesses_free(lk__plan_accesses *a)
{
    lk_context *c = a->plan->context;
    lk__free(c, LK_MEMORY_OTHER, a->root, a->values * sizeof *a->root);
    lk__free(c, LK_MEMORY_OTHER, a->scaled, a->values * sizeof *a->scaled);
    lk__free(c, LK_MEMORY_OTHER, a->all, a->capacity * sizeof *a->all);
}
