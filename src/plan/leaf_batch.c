/* leaf_batch.c - decides whether all leaves of a rank run as one batch. A sample's results do not depend on the number
 * of samples in the batch, so only operations that add over samples must run leaf by leaf: the gradients of parameters,
 * the metrics, the sums of synchronised batch norm. A weight is then read once for all leaves instead of once for each.
 * A model that needs such a sum between its layers runs its leaves one after the other, with the activations of one
 * leaf. */
#include "plan/plan.h"

static bool counted(const lk_graph *g, int v) { return v >= 0 && g->values[v].shape.count_axis >= 0; }

bool lk__plan_is_gradient(const lk__plan_list *list, int v)
{
    const lk_graph *g = list->graph;
    for (size_t i = 0; list->gradients && v >= 0 && i < g->states_count; i++) {
        int at = list->gradients[i];
        while (at >= 0 && at != v && g->values[at].kind == LK__VALUE_RESULT &&
               lk__op_shares_memory(g->nodes[g->values[at].node].op))
            at = g->nodes[g->values[at].node].in[0];
        if (at == v) return true;
    }
    return false;
}

static lk__graph_runs runs(const lk__graph_node *n) { return lk__op_find(n->op)->runs; }

/* Whether forward or backward reads value v, other than by a collective, which adds over leaves, its wait, and its
 * bucket. */
static bool read_before_update(const lk__plan_list *list, int v)
{
    for (size_t p = 0; p < list->end[LK_BACKWARD]; p++) {
        const lk__graph_node *n = &list->graph->nodes[list->order[p]];
        if (lk__plan_is_bucket(list->graph, n)) continue;
        for (int i = 0; i < n->inputs; i++)
            if (n->in[i] == v && runs(n) != LK__RUNS_COLLECTIVE && runs(n) != LK__RUNS_WAIT) return true;
    }
    return false;
}

/* Whether the samples are axis 0 of every operand, so that a leaf is a contiguous part of each. */
static bool in_rows(const lk_graph *g, const lk__graph_node *n)
{
    for (int i = 0; i < n->inputs + n->outputs; i++) {
        int v = i < n->inputs ? n->in[i] : n->out[i - n->inputs];
        if (counted(g, v) && g->values[v].shape.count_axis != 0) return false;
    }
    return true;
}

typedef enum execution { WHOLE, BY_LEAF, UNSUPPORTED } execution;

static execution choose_execution(const lk__plan_list *list, const lk__graph_node *n)
{
    const lk_graph     *g = list->graph;
    const lk__graph_op *d = lk__op_find(n->op);
    bool                samples = false, sums = false, gradient = false, bad = false;
    for (int i = 0; i < n->inputs; i++) samples |= counted(g, n->in[i]);
    for (int i = 0; i < n->outputs; i++) {
        int v = n->out[i];
        if (v < 0 || counted(g, v)) continue;
        bool metric = lk__plan_is_number(list, v);
        bool same = lk__node_is_same(g, n, i); /* on every leaf */
        gradient |= lk__plan_is_gradient(list, v);
        sums |= !same || lk__plan_is_gradient(list, v); /* which leaves add */
        bad |= !same && !lk__plan_is_gradient(list, v) && !metric && read_before_update(list, v);
        bad |= lk__plan_is_gradient(list, v) && read_before_update(list, v);
    }
    bool coupled = lk__node_couples_samples(g, n);
    if (coupled && samples && d->runs == LK__RUNS_KERNEL) return UNSUPPORTED;
    if (d->runs != LK__RUNS_KERNEL || (!samples && !gradient && !coupled) || !sums) return WHOLE;
    return bad || !in_rows(g, n) || coupled ? UNSUPPORTED : BY_LEAF;
}

/* A collective reads a number of each leaf: a node that runs leaf by leaf must make it. */
static bool reads_leaves(const lk__plan_list *list, const lk__graph_node *n)
{
    const lk__graph_value *x = &list->graph->values[n->in[0]];
    return x->kind == LK__VALUE_RESULT && choose_execution(list, &list->graph->nodes[x->node]) == BY_LEAF;
}

/* A collective that gives each leaf another result, which a batch has no room for. */
static bool parts_leaves(const lk_graph *g, const lk__graph_node *n)
{
    return runs(n) == LK__RUNS_COLLECTIVE && !lk__node_is_same(g, n, 0);
}

/* Parameters are the same to all leaves, wherever they come from. */
static bool gathers_parameters(const lk_graph *g, const lk__graph_node *n)
{
    return runs(n) == LK__RUNS_COLLECTIVE && g->values[n->in[0]].kind == LK__VALUE_UNIT;
}

/* The first node that does not allow it, or -1. */
static int find_coupling(const lk__plan_list *list)
{
    for (size_t i = 0; i < list->end[LK_BACKWARD]; i++) {
        const lk__graph_node *n = &list->graph->nodes[list->order[i]];
        if (lk__plan_is_bucket(list->graph, n) || gathers_parameters(list->graph, n)) continue;
        if (choose_execution(list, n) == UNSUPPORTED || parts_leaves(list->graph, n) ||
            (runs(n) == LK__RUNS_COLLECTIVE && !reads_leaves(list, n)))
            return list->order[i];
    }
    return -1;
}

/* Marks the nodes that run leaf by leaf. */
static void mark_leaves(lk_plan *p)
{
    lk__plan_list *list = &p->train;
    for (size_t i = 0; i < list->end[LK_BACKWARD]; i++) {
        const lk__graph_node *n = &list->graph->nodes[list->order[i]];
        list->by_leaf[list->order[i]] = choose_execution(list, n) == BY_LEAF;
    }
}

void lk__plan_reduce_capacity(lk_plan *p)
{
    lk__split_job job = lk__plan_split(p, lk__plan_batch_part(p));
    int64_t       capacity = lk__split_leaf_capacity(&job, lk_plan_capacity(p));
    lk__graph_set_capacity(p->graph, capacity);
    if (p->train.graph) lk__graph_set_capacity(p->train.graph, capacity);
}

lk_status lk__pass_leaf_batch(lk_plan *p)
{
    lk__plan_list *list = &p->train;
    if (!p->batch_leaves) return LK_OK;
    if ((p->couples = find_coupling(list)) >= 0) {
        p->batch_leaves = false;
        lk__plan_reduce_capacity(p);
        return LK_OK;
    }
    size_t count = list->graph->nodes_count;
    if (count && !(list->by_leaf = lk__alloc(p->context, LK_MEMORY_OTHER, count * sizeof *list->by_leaf)))
        return LK_ENOMEM;
    list->by_leaf_count = count;
    mark_leaves(p);
    return LK_OK;
}
