/* leaf_batch.c - whether all leaves of a rank can run as one batch. A sample's results do not depend on the number of samples in the
 * batch, so only operations that add over samples must run leaf by leaf: the gradients of parameters, the metrics, the sums of
 * synchronised batch norm. A weight is then read once for all leaves instead of once for each. */
#include "plan/plan.h"

static bool counted(const lk_graph *g, int v) { return v >= 0 && g->values[v].shape.count_axis >= 0; }

static bool is_gradient(const lk__plan_list *list, int v)
{
    for (size_t i = 0; i < list->graph->states_count; i++)
        if (list->gradients[i] == v) return true;
    return false;
}

static lk__graph_runs runs(const lk__graph_node *n) { return lk__op_find(n->op)->runs; }

/* Whether forward or backward reads value v, other than by a collective, which adds over leaves. */
static bool read_before_update(const lk__plan_list *list, int v)
{
    for (size_t p = 0; p < list->end[LK_BACKWARD]; p++) {
        const lk__graph_node *n = &list->graph->nodes[list->order[p]];
        for (int i = 0; i < n->inputs; i++)
            if (n->in[i] == v && runs(n) != LK__RUNS_COLLECTIVE) return true;
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
        bool metric = v == list->sum || v == list->weight || v == list->correct;
        bool same = d->same >> i & 1; /* on every leaf */
        gradient |= is_gradient(list, v);
        sums |= !same;
        bad |= !same && !is_gradient(list, v) && !metric && read_before_update(list, v);
        bad |= is_gradient(list, v) && read_before_update(list, v);
    }
    if (d->runs != LK__RUNS_KERNEL || (!samples && !gradient) || !sums) return WHOLE;
    return bad || !in_rows(g, n) || d->samples == LK__SAMPLES_COUPLED ? UNSUPPORTED : BY_LEAF;
}

lk_status lk__pass_leaf_batch(lk_plan *p)
{
    lk__plan_list *list = &p->train;
    if (list->order_count &&
        !(list->by_leaf = lk__alloc(p->context, LK_MEMORY_OTHER, list->order_count * sizeof *list->by_leaf)))
        return LK_ENOMEM;
    for (size_t i = 0; i < list->end[LK_BACKWARD]; i++) {
        const lk__graph_node *n = &list->graph->nodes[list->order[i]];
        execution             execution = choose_execution(list, n);
        list->by_leaf[i] = execution == BY_LEAF;
        for (size_t k = 0; k < list->graph->states_count && lk__op_find(n->op)->samples == LK__SAMPLES_LEAVES; k++)
            p->states[k].adds_leaves |=
                list->gradients[k] >= 0 && (list->gradients[k] == n->out[0] || list->gradients[k] == n->out[1]);
        if (execution == UNSUPPORTED)
            return lk__fail(p->context, LK_EUNSUPPORTED,
                            "%s at %s:%d adds over samples within the model: leaves must run one by one",
                            lk__op_name(n->op), n->site.file ? n->site.file : "?", n->site.line);
    }
    return LK_OK;
}
