/* leaf_batch.c - whether all leaves of a rank can run as one batch. A sample's own numbers do not depend on how many others are with it, so
 * only what adds over samples must be run leaf by leaf: the gradients of parameters, the metrics, the sums of synchronised batch
 * norm. A weight is then read once for all leaves instead of once for each. */
#include "plan/plan.h"

static bool counted(const lk_graph *g, int v) { return v >= 0 && g->values[v].shape.count_axis >= 0; }

static bool is_gradient(const lk__plan_order *t, int v)
{
    for (size_t i = 0; i < t->graph->states_count; i++)
        if (t->gradients[i] == v) return true;
    return false;
}

static lk__graph_runs runs(const lk__graph_node *n) { return lk__op_find(n->op)->runs; }

/* What is read of value v between forward and update, other than by a collective, which adds over leaves. */
static bool read_before_update(const lk__plan_order *t, int v)
{
    for (size_t p = 0; p < t->end[LK_BACKWARD]; p++) {
        const lk__graph_node *n = &t->graph->nodes[t->order[p]];
        for (int i = 0; i < n->inputs; i++)
            if (n->in[i] == v && runs(n) != LK__RUNS_COLLECTIVE) return true;
    }
    return false;
}

/* Every operand's samples lie one after the other, so that a leaf is a piece of each. */
static bool in_rows(const lk_graph *g, const lk__graph_node *n)
{
    for (int i = 0; i < n->inputs + n->outputs; i++) {
        int v = i < n->inputs ? n->in[i] : n->out[i - n->inputs];
        if (counted(g, v) && g->values[v].shape.count_axis != 0) return false;
    }
    return true;
}

typedef enum part { WHOLE, BY_LEAF, NEITHER } part;

static part how(const lk__plan_order *t, const lk__graph_node *n)
{
    const lk_graph     *g = t->graph;
    const lk__graph_op *d = lk__op_find(n->op);
    bool                samples = false, sums = false, gradient = false, bad = false;
    for (int i = 0; i < n->inputs; i++) samples |= counted(g, n->in[i]);
    for (int i = 0; i < n->outputs; i++) {
        int v = n->out[i];
        if (v < 0 || counted(g, v)) continue;
        bool metric = v == t->sum || v == t->weight || v == t->correct;
        bool same = d->same >> i & 1; /* on every leaf */
        gradient |= is_gradient(t, v);
        sums |= !same;
        bad |= !same && !is_gradient(t, v) && !metric && read_before_update(t, v);
        bad |= is_gradient(t, v) && read_before_update(t, v);
    }
    if (d->runs != LK__RUNS_KERNEL || (!samples && !gradient) || !sums) return WHOLE;
    return bad || !in_rows(g, n) || d->samples == LK__SAMPLES_COUPLED ? NEITHER : BY_LEAF;
}

lk_status lk__pass_leaf_batch(lk_plan *p)
{
    lk__plan_order *t = &p->train;
    if (t->order_count && !(t->by_leaf = lk__alloc(p->context, LK_MEMORY_OTHER, t->order_count * sizeof *t->by_leaf)))
        return LK_ENOMEM;
    for (size_t i = 0; i < t->end[LK_BACKWARD]; i++) {
        const lk__graph_node *n = &t->graph->nodes[t->order[i]];
        part                  it = how(t, n);
        t->by_leaf[i] = it == BY_LEAF;
        for (size_t k = 0; k < t->graph->states_count && lk__op_find(n->op)->samples == LK__SAMPLES_LEAVES; k++)
            p->states[k].in_parts |=
                t->gradients[k] >= 0 && (t->gradients[k] == n->out[0] || t->gradients[k] == n->out[1]);
        if (it == NEITHER)
            return lk__fail(p->context, LK_EUNSUPPORTED,
                            "%s at %s:%d adds over samples in the midst of the model: leaves must run one by one",
                            lk__op_name(n->op), n->site.file ? n->site.file : "?", n->site.line);
    }
    return LK_OK;
}
