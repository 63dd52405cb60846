/* instruction.c - creates the instructions of a list of nodes. Only this file decides how sharded updates, leaves,
 * micro-batches, a narrow type of gradients and a device with its own memory affect a program. */
#include "plan/instruction.h"

#include "base/tree.h"
#include "plan/expert_leaves.h"
#include "plan/launch_group.h"

static const struct {
    const char          *name;
    lk__plan_action_kind kind;
} actions[LK__ACTION_COUNT] = {
#define LK__ACTION_ROW(id, name, kind) [LK__DO_##id] = {name, LK__IS_##kind},
    LK__ACTIONS(LK__ACTION_ROW)
#undef LK__ACTION_ROW
};

const char          *lk__action_name(lk__plan_action action) { return actions[action].name; }
lk__plan_action_kind lk__action_kind_of(lk__plan_action action) { return actions[action].kind; }

/* Summing so many bytes of gradients takes less time than handing them to the thread that would do it while backward
 * runs: `bench train --model mlp -n 8` on 16 cores. */
static const size_t FEW_BYTES = 256 << 10;

bool lk__plan_by_slices(const lk_plan *p)
{
    if (p->parallel.leaves == 0) return false;
    return !lk__tree_nests(p->parallel.leaves, lk__plan_batch_parts(p)) || (p->stage && !lk__plan_shards_nest(p));
}

bool lk__bucket_by_slices(const lk_plan *p, const lk__plan_bucket *b)
{
    return lk__bucket_has_sources(p, b) || lk__plan_by_slices(p);
}

bool lk__plan_sums_late(const lk_plan *p, lk__plan_group group)
{
    bool overlaps = group.overlaps && p->gradient_bytes > FEW_BYTES;
    return p->shared && (lk__plan_by_slices(p) || (!overlaps && p->parallel.hosts == 1));
}

typedef struct maker {
    const lk_plan         *plan;
    const lk__plan_list   *list;
    lk__plan_group         group;
    lk__plan_instructions *out;
    lk_status              status;
} maker;

static void put(maker *m, lk_section section, lk__plan_instruction in)
{
    lk__plan_instructions *out = m->out;
    in.section = section;
    in.launch = -1;
    if (m->status < 0) return;
    m->status = lk__grow(m->plan->context, (void **)&out->all, &out->capacity, out->count + 1, sizeof *out->all);
    if (m->status < 0) return;
    out->all[out->count++] = in;
    out->at.end[section] = out->count;
}

static void put_action(maker *m, lk_section section, lk__plan_action action, unsigned when)
{
    put(m, section, (lk__plan_instruction){.action = action, .when = when, .node = -1, .bucket = -1, .collective = -1});
}

/* The instruction that was put last begins a launch group, or runs one; -1: it does not. */
static void set_launch(maker *m, int launch)
{
    if (m->status >= 0) m->out->all[m->out->count - 1].launch = launch;
}

static void put_bucket(maker *m, lk_section section, lk__plan_action action, unsigned when, int bucket)
{
    put(m, section,
        (lk__plan_instruction){.action = action, .when = when, .node = -1, .bucket = bucket, .collective = -1});
}

static const lk__graph_node *node_at(const maker *m, size_t position)
{
    return &m->list->graph->nodes[m->list->order[position]];
}

/* ---- buckets ---- */

static int bucket_of(const maker *m, const lk__graph_node *n)
{
    const lk__graph_value *x = &m->list->graph->values[n->in[0]];
    if (n->attrs.mesh == LK_AXIS_DATA) return -1; /* of slices that are reduced: a value like others */
    return x->kind == LK__VALUE_BUCKET ? x->state : -1;
}

static lk__plan_instruction reduction_of(const maker *m, const lk__plan_bucket *b)
{
    const lk_plan *p = m->plan;
    if (lk__bucket_has_sources(p, b))
        return (lk__plan_instruction){.action = LK__DO_START_SOURCES,
                                      .how = p->stage ? "all_to_all" : "all_to_all and all_gather"};
    if (p->stage && lk__plan_by_slices(p))
        return (lk__plan_instruction){.action = LK__DO_START_SLICES, .how = "all_to_all"};
    if (p->stage)
        return (lk__plan_instruction){.action = m->group.staged ? LK__DO_START_SHARD_STAGED : LK__DO_START_SHARD,
                                      .how = "reduce_scatter"};
    if (p->shared)
        return (lk__plan_instruction){.action = LK__DO_START_SCATTER,
                                      .how = p->parallel.hosts > 1 ? "reduce_scatter on hosts, all_reduce between them:"
                                                                   : "reduce_scatter"};
    if (lk__plan_by_slices(p))
        return (lk__plan_instruction){.action = LK__DO_START_SLICES, .how = "all_to_all and all_gather"};
    return (lk__plan_instruction){.action = LK__DO_START_BUCKET, .how = "all_reduce"};
}

/* From a bucket that is complete to its reduction. */
static void put_reduction(maker *m, lk_section section, unsigned when, int node, int bucket, int collective)
{
    const lk_plan *p = m->plan;
    if (lk__plan_batch_parts(p) == 1) return;
    if (lk__bucket_type(p, &p->buckets[bucket]) != p->buckets[bucket].dtype)
        put_bucket(m, section, LK__DO_ROUND, when, bucket);
    if (lk__plan_sums_late(p, m->group)) return;
    if (m->group.staged && (!p->stage || lk__plan_by_slices(p)))
        put_bucket(m, section, lk__plan_by_slices(p) ? LK__DO_COPY_OUT_SETS : LK__DO_COPY_OUT, when, bucket);
    lk__plan_instruction start = reduction_of(m, &p->buckets[bucket]);
    start.when = when;
    start.node = node;
    start.bucket = bucket;
    start.collective = collective;
    put(m, section, start);
}

/* In the section sync: the reduction, where backward has not made it, and its end. */
static void put_end_of_reduction(maker *m, int start, int wait, int bucket, int collective)
{
    const lk_plan *p = m->plan;
    put_reduction(m, LK_SYNC, LK__IF_HELD, start, bucket, collective);
    if (lk__plan_batch_parts(p) == 1 || lk__plan_sums_late(p, m->group)) return;
    put(m, LK_SYNC,
        (lk__plan_instruction){.action = LK__DO_WAIT, .node = wait, .bucket = bucket, .collective = collective});
    if (m->group.staged && !p->stage) put_bucket(m, LK_SYNC, LK__DO_COPY_IN, 0, bucket);
    if (lk__bucket_type(p, &p->buckets[bucket]) != p->buckets[bucket].dtype)
        put_bucket(m, LK_SYNC, p->shared || p->stage ? LK__DO_WIDEN_SLICE : LK__DO_WIDEN, 0, bucket);
}

/* Where they scatter, every backward has the slices of its own gradients, and adds them to those before. */
static void put_end_of_bucket(maker *m, lk_section section, int start, int wait, int bucket, int collective)
{
    if (!lk__plan_scatters(m->plan)) {
        put_end_of_reduction(m, start, wait, bucket, collective);
        return;
    }
    put(m, section,
        (lk__plan_instruction){.action = LK__DO_WAIT, .node = wait, .bucket = bucket, .collective = collective});
    if (m->plan->sets > 1) put_bucket(m, section, LK__DO_ADD_SLICES, LK__IF_ADDS, bucket);
}

/* ---- nodes ---- */

static bool starts_with_others(const lk__graph_node *n)
{
    lk__graph_runs runs = lk__op_find(n->op)->runs;
    return runs == LK__RUNS_COLLECTIVE || runs == LK__RUNS_TRANSFER;
}

/* The start whose result a wait reads: its position in the order. */
static size_t start_of(const maker *m, size_t wait)
{
    size_t i = wait;
    while (i-- > 0)
        if (starts_with_others(node_at(m, i)) && node_at(m, i)->out[0] == node_at(m, wait)->in[0]) return i;
    return wait; /* not reached: the pass that made it made both */
}

static int collective_at(const maker *m, size_t position)
{
    int number = 0;
    for (size_t i = 0; i < position; i++) number += starts_with_others(node_at(m, i));
    return number;
}

/* Whether the host reads a number after each leaf. */
static bool reads_leaves(const maker *m, const lk__graph_node *n)
{
    for (int i = 0; i < n->outputs; i++)
        if (n->out[i] >= 0 && lk__plan_is_number(m->list, n->out[i])) return true;
    return false;
}

static void put_kernel(maker *m, lk_section section, size_t position, lk__plan_action action)
{
    put(m, section,
        (lk__plan_instruction){.action = action, .node = m->list->order[position], .bucket = -1, .collective = -1});
    if (action == LK__DO_KERNEL) set_launch(m, lk__launch_group_at(m->list, position));
}

/* Of a collective that is no bucket's. */
static lk__plan_instruction start_of_value(const maker *m, const lk__graph_node *n)
{
    if (n->attrs.order == LK__ORDER_LEAVES && m->list != &m->plan->train)
        return (lk__plan_instruction){.action = LK__DO_REFUSE_LEAVES};
    if (n->attrs.order == LK__ORDER_LEAVES)
        return (lk__plan_instruction){.action = m->plan->batch_leaves ? LK__DO_START_LEAF_BATCH : LK__DO_START_LEAVES,
                                      .how = "all_gather"};
    if (lk__collectives[lk__op_find(n->op)->collective].counts)
        return (lk__plan_instruction){.action = m->group.staged ? LK__DO_START_EXCHANGE_STAGED : LK__DO_START_EXCHANGE};
    bool alone = lk__mesh_extent(&m->plan->mesh, lk__node_axes(n)) == 1;
    if (n->attrs.group == LK__GROUP_DATA_BY_HOST)
        return (lk__plan_instruction){.action = LK__DO_START_HOST, .how = "all_gather once on every host:"};
    return (lk__plan_instruction){.action = alone             ? LK__DO_START_ALONE
                                            : m->group.staged ? LK__DO_START_STAGED
                                                              : LK__DO_START};
}

/* A send or a receive, or the wait for a receive. */
static void put_transfer(maker *m, lk_section section, size_t start, int node, lk__plan_action action,
                         lk__plan_action staged)
{
    put(m, section,
        (lk__plan_instruction){.action = m->group.staged ? staged : action,
                               .node = node,
                               .bucket = -1,
                               .collective = collective_at(m, start)});
}

/* The wait of a collective, or of a receive. */
static void put_wait(maker *m, lk_section section, size_t position)
{
    int    node = m->list->order[position], bucket;
    size_t start = start_of(m, position);
    if (lk__op_find(node_at(m, start)->op)->runs == LK__RUNS_TRANSFER)
        put_transfer(m, section, start, node, LK__DO_WAIT_RECEIVED, LK__DO_WAIT_RECEIVED_STAGED);
    else if ((bucket = bucket_of(m, node_at(m, start))) >= 0)
        put_end_of_bucket(m, section, m->list->order[start], node, bucket, collective_at(m, start));
    else
        put(m, section,
            (lk__plan_instruction){
                .action = LK__DO_WAIT, .node = node, .bucket = -1, .collective = collective_at(m, start)});
}

static void put_node(maker *m, lk_section section, size_t position)
{
    const lk__graph_node *n = node_at(m, position);
    int                   node = m->list->order[position], bucket, collective;
    lk__plan_instruction  start;
    switch (lk__op_find(n->op)->runs) {
    case LK__RUNS_NOTHING: return;
    case LK__RUNS_KERNEL:
        if (m->list == &m->plan->train && lk__source_gradient(m->plan, m->list, n) >= 0) {
            put_kernel(m, section, position, LK__DO_SOURCES);
            return;
        }
        put_kernel(m, section, position,
                   lk__plan_by_leaf(m->list, node) && reads_leaves(m, n) ? LK__DO_LEAVES : LK__DO_KERNEL);
        if (lk__plan_scatters(m->plan) && m->plan->sets > 1 &&
            lk__plan_is_bucket(m->list->graph, n)) /* a slice, widened */
            put_bucket(m, section, LK__DO_ADD_SLICES, LK__IF_ADDS, m->list->graph->values[n->out[0]].state);
        return;
    case LK__RUNS_COLLECTIVE:
        collective = collective_at(m, position);
        m->out->collectives++;
        if ((bucket = bucket_of(m, n)) >= 0 && lk__plan_scatters(m->plan)) { /* each backward reduces its own */
            put_reduction(m, section, 0, node, bucket, collective);
            return;
        }
        if (bucket >= 0) {
            if (m->plan->sets > 1 && !m->plan->parallel.leaves)
                put_bucket(m, section, LK__DO_ADD_SETS, LK__IF_ADDS, bucket);
            /* where they are one batch, the kernels of gradients do it */
            if (m->plan->parallel.leaves && !m->plan->batch_leaves)
                put_bucket(m, section, LK__DO_ADD_LEAVES, 0, bucket);
            put_reduction(m, section, LK__IF_LAST, node, bucket, collective);
            return;
        }
        start = start_of_value(m, n);
        start.node = node;
        start.bucket = -1;
        start.collective = collective;
        put(m, section, start);
        return;
    case LK__RUNS_TRANSFER:
        m->out->collectives++;
        if (n->op == LK__OP_send) /* receives start in front of the section */
            put_transfer(m, section, position, node, LK__DO_START_SEND, LK__DO_START_SEND_STAGED);
        return;
    case LK__RUNS_WAIT: put_wait(m, section, position); return;
    }
}

static size_t section_begin(const maker *m, lk_section section)
{
    return section == LK_FORWARD || section == LK_EVALUATE ? 0 : m->list->end[section - 1];
}

/* Of one rank's buckets, which no collective follows. A set that another micro-batch's backward overwrites is added
 * before that. */
static void put_sets(maker *m, bool postponed)
{
    const lk_plan *p = m->plan;
    for (size_t i = 0; i < p->buckets_count && !p->reduces && p->sets > 1; i++)
        if (p->buckets[i].postponed == postponed) put_bucket(m, LK_BACKWARD, LK__DO_ADD_SETS, LK__IF_ADDS, (int)i);
}

static void put_nodes(maker *m, lk_section section)
{
    for (size_t i = section_begin(m, section); i < m->list->end[section]; i++) {
        if (section == LK_BACKWARD && i == m->list->weights_begin) {
            put_sets(m, false);
            m->out->at.weights = m->out->count;
        }
        put_node(m, section, i);
    }
}

static bool has_sends(const maker *m, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        if (node_at(m, i)->op == LK__OP_send) return true;
    return false;
}

/* Of a section's receives that with the least number above `last`; SIZE_MAX: none. Values are numbered in the order in
 * which they are sent, so that none has to be buffered for another. */
static size_t next_receive(const maker *m, lk_section section, int last)
{
    size_t found = SIZE_MAX;
    for (size_t i = section_begin(m, section); i < m->list->end[section]; i++) {
        const lk__graph_node *n = node_at(m, i);
        if (n->op != LK__OP_receive || n->attrs.transfer.number <= last) continue;
        if (found == SIZE_MAX || n->attrs.transfer.number < node_at(m, found)->attrs.transfer.number) found = i;
    }
    return found;
}

/* The starts of a section's receives; before the first ones of a slot, what was sent from it must have arrived. */
static void begin_section(maker *m, lk_section section)
{
    m->out->at.receives[section] = m->out->count;
    if (section == LK_FORWARD && has_sends(m, 0, m->list->end[LK_BACKWARD]))
        put_action(m, section, LK__DO_WAIT_SENT, 0);
    for (int last = -1;;) {
        size_t next = next_receive(m, section, last);
        if (next == SIZE_MAX) break;
        last = node_at(m, next)->attrs.transfer.number;
        put_transfer(m, section, next, m->list->order[next], LK__DO_START_RECEIVE, LK__DO_START_RECEIVE_STAGED);
    }
    m->out->at.begin[section] = m->out->count;
}

/* ---- sections ---- */

/* What a device with its own memory needs: there before kernels read it, and back before the host does. */
static bool is_staged(const maker *m) { return !lk__device_is_host(m->plan->device); }

static void put_inputs(maker *m, lk_section section)
{
    put_action(m, section, is_staged(m) ? LK__DO_INPUTS : LK__DO_BOUND, LK__IF_WAITED);
}

static void put_step_block(maker *m, lk_section section)
{
    if (is_staged(m)) put_action(m, section, LK__DO_STEP_BLOCK, LK__IF_WAITED);
}

static void put_backward(maker *m)
{
    const lk_plan *p = m->plan;
    put_step_block(m, LK_BACKWARD);
    if (p->losses_count) put_action(m, LK_BACKWARD, LK__DO_LOSS_SCALES, LK__IF_WAITED);
    put_nodes(m, LK_BACKWARD);
    put_sets(m, m->list->weights_begin > 0);
    if (!p->batch_leaves) put_action(m, LK_BACKWARD, LK__DO_NUMBERS, LK__IF_WAITED);
    if (p->batch_leaves && p->losses_count) put_action(m, LK_BACKWARD, LK__DO_LEAF_NUMBERS, LK__IF_WAITED);
    if (lk__plan_queues(p)) put_action(m, LK_BACKWARD, LK__DO_BATCH_NUMBERS, LK__IF_QUEUED | LK__IF_MORE);
    if (!m->list->weights_begin) m->out->at.weights = m->out->count;
}

static void put_sync(maker *m)
{
    const lk_plan *p = m->plan;
    if (p->helpers) put_action(m, LK_SYNC, LK__DO_LEND, 0);
    if (has_sends(m, 0, m->list->end[LK_BACKWARD])) put_action(m, LK_SYNC, LK__DO_WAIT_SENT, 0);
    put_nodes(m, LK_SYNC);
    if (has_sends(m, m->list->end[LK_BACKWARD], m->list->end[LK_SYNC])) put_action(m, LK_SYNC, LK__DO_WAIT_SENT, 0);
    put_action(m, LK_SYNC, p->shared ? LK__DO_REPORT_SHARED : LK__DO_REPORT, LK__IF_WAITED);
    if (p->shared && p->parallel.hosts > 1 && lk__plan_sums_late(p, m->group))
        put_action(m, LK_SYNC, LK__DO_EXCHANGE, 0);
}

static bool writes_state(const lk__graph_node *n) { return lk__op_find(n->op)->effect == LK__EFFECT_STATE; }

/* Of a state that the ranks of a host share: each has the squares of its slices, then all have the norm, then each
 * updates its slices. */
static void put_shared_update(maker *m)
{
    size_t begin = m->list->end[LK_SYNC], end = m->list->end[LK_UPDATE];
    bool   clips = false;
    put_action(m, LK_UPDATE, LK__DO_BARRIER_BEGIN, LK__IF_SEPARATE);
    for (size_t i = begin; i < end; i++) clips |= node_at(m, i)->op == LK__OP_square_sum;
    if (clips) put_action(m, LK_UPDATE, LK__DO_WAIT_SLICES, 0);
    for (size_t i = begin; i < end; i++)
        if (node_at(m, i)->op == LK__OP_square_sum) put_kernel(m, LK_UPDATE, i, LK__DO_SQUARE_SLICES);
    if (clips) put_action(m, LK_UPDATE, LK__DO_BARRIER_NORM, 0);
    for (size_t i = begin; i < end; i++)
        if (node_at(m, i)->op != LK__OP_square_sum && !writes_state(node_at(m, i))) put_node(m, LK_UPDATE, i);
    for (size_t i = begin; i < end; i++)
        if (writes_state(node_at(m, i))) put_kernel(m, LK_UPDATE, i, LK__DO_UPDATE_SLICES);
    put_action(m, LK_UPDATE, LK__DO_BARRIER_UPDATE, 0);
}

/* The squares of all slices, where they are added as one rank adds them; returns whether they are. */
static bool put_squares_by_part(maker *m)
{
    size_t begin = m->list->end[LK_SYNC], end = m->list->end[LK_UPDATE];
    bool   clips = false;
    for (size_t i = begin; i < end; i++) clips |= node_at(m, i)->op == LK__OP_square_sum;
    if (!clips || !lk__plan_squares_by_part(m->plan)) return false;
    put_action(m, LK_UPDATE, LK__DO_FETCH_PARTS, 0);
    for (size_t i = begin; i < end; i++)
        if (node_at(m, i)->op == LK__OP_square_sum) put_kernel(m, LK_UPDATE, i, LK__DO_SQUARE_PARTS);
    put_action(m, LK_UPDATE, LK__DO_ADD_SQUARES, 0);
    return true;
}

/* Of a state of which ranks have slices: kernels on states run on this rank's part of them. */
static void put_sharded_update(maker *m)
{
    bool by_part = put_squares_by_part(m);
    for (size_t i = m->list->end[LK_SYNC]; i < m->list->end[LK_UPDATE]; i++) {
        const lk__graph_node *n = node_at(m, i);
        if (by_part && n->op == LK__OP_square_sum) continue;
        if (n->op == LK__OP_square_sum || writes_state(n))
            put_kernel(m, LK_UPDATE, i, LK__DO_SLICE);
        else
            put_node(m, LK_UPDATE, i);
    }
}

static lk__plan_action weighing_of(const maker *m)
{
    if (m->list->numbers[LK__NUMBER_WEIGHT] >= 0) return LK__DO_WEIGHT;
    return m->plan->shared ? LK__DO_DIVIDE_SHARED : LK__DO_DIVIDE;
}

static void put_update(maker *m)
{
    bool queues = lk__plan_queues(m->plan);
    int  end = queues ? lk__launch_group_step_end(m->list) : -1;
    put_action(m, LK_UPDATE, LK__DO_CHECK_LOSS, LK__IF_WAITED);
    put_action(m, LK_UPDATE, weighing_of(m), LK__IF_WAITED);
    put_step_block(m, LK_UPDATE);
    if (end >= 0) {
        put_action(m, LK_UPDATE, LK__DO_STEP_END, LK__IF_QUEUED);
        set_launch(m, end);
    }
    if (queues) put_action(m, LK_UPDATE, LK__DO_BATCH_NUMBERS, LK__IF_QUEUED);
    if (queues && m->group.queued) put_action(m, LK_UPDATE, LK__DO_SUM_NUMBERS, LK__IF_QUEUED);
    if (m->plan->shared)
        put_shared_update(m);
    else if (m->plan->stage)
        put_sharded_update(m);
    else
        put_nodes(m, LK_UPDATE);
    if (has_sends(m, m->list->end[LK_SYNC], m->list->end[LK_UPDATE])) put_action(m, LK_UPDATE, LK__DO_WAIT_SENT, 0);
    put_action(m, LK_UPDATE, LK__DO_NORM, LK__IF_WAITED);
    if (queues) put_action(m, LK_UPDATE, LK__DO_STEP_RESULT, LK__IF_QUEUED);
}

static void put_training(maker *m)
{
    begin_section(m, LK_FORWARD);
    put_inputs(m, LK_FORWARD);
    if (lk__plan_queues(m->plan)) put_action(m, LK_FORWARD, LK__DO_BATCH_BEGIN, LK__IF_QUEUED);
    put_nodes(m, LK_FORWARD);
    if (is_staged(m)) put_action(m, LK_FORWARD, LK__DO_READ_IDS, LK__IF_WAITED);
    put_action(m, LK_FORWARD, LK__DO_LOSSES, LK__IF_WAITED);
    if (m->group.awaits_buffers) put_action(m, LK_FORWARD, LK__DO_BARRIER_BUFFERS, LK__IF_BY_HAND);
    begin_section(m, LK_BACKWARD);
    put_backward(m);
    begin_section(m, LK_SYNC);
    put_sync(m);
    begin_section(m, LK_UPDATE);
    put_update(m);
}

lk_status lk__plan_instruct(const lk_plan *plan, const lk__plan_list *list, lk__plan_group group,
                            lk__plan_instructions *instructions)
{
    maker m = {plan, list, group, instructions, LK_OK};
    *instructions = (lk__plan_instructions){.all = NULL};
    if (list == &plan->train) {
        put_training(&m);
    } else {
        begin_section(&m, LK_EVALUATE);
        put_inputs(&m, LK_EVALUATE);
        put_nodes(&m, LK_EVALUATE);
        if (has_sends(&m, 0, list->order_count)) put_action(&m, LK_EVALUATE, LK__DO_WAIT_SENT, 0);
        if (list == &plan->evaluate && is_staged(&m)) put_action(&m, LK_EVALUATE, LK__DO_READ_IDS, LK__IF_WAITED);
        if (list == &plan->evaluate) put_action(&m, LK_EVALUATE, LK__DO_OUTPUTS, LK__IF_WAITED);
        if (list == &plan->evaluate) put_action(&m, LK_EVALUATE, LK__DO_TOKENS, LK__IF_QUEUED);
    }
    if (m.status < 0) lk__plan_instructions_free(plan->context, instructions);
    return m.status;
}

void lk__plan_instructions_free(lk_context *c, lk__plan_instructions *instructions)
{
    lk__free(c, LK_MEMORY_OTHER, instructions->all, instructions->capacity * sizeof *instructions->all);
    *instructions = (lk__plan_instructions){.all = NULL};
}
