/* overlap.c - collectives between parts of products that run while other products compute: a start moves, with the
 * nodes that only it needs, before products that do not depend on it, and a wait moves after products that do not
 * depend on it. The weight gradient of a layer hides the reduce_scatter of its input's gradient, and the product that
 * computes that gradient hides the all_gather of what was saved. Nodes and values stay the same, and so do all results.
 *
 * Sums start early: their operands exist anyway, and their result is smaller. A gathered value is larger than its
 * parts, so its wait is moved first, which extends only the lifetime of a part; its start is moved only if that does
 * not hide the collective. */
#include "plan/plan.h"

#include <string.h>

/* Nodes that a start or wait moves over, at most: what is moved is held longer. */
enum { WINDOW = 24 };
/* Operations that hide a byte that is moved; fewer than `least` are not worth the memory. */
static const double enough = 64, least = 1;

typedef struct overlap {
    lk_graph      *g;
    unsigned       axes; /* of the collectives that move */
    bool          *along; /* by value: one of them makes it */
    size_t         begin, end;
    lk__graph_node kept[WINDOW + 1];
} overlap;

static double value_bytes(const lk_graph *g, int v)
{
    const lk__graph_shape *s = &g->values[v].shape;
    return (double)lk__shape_elements(s) * (double)lk_dtype_size(s->dtype) / lk__value_ranks(g, v);
}

/* What the collective moves, at least. */
static double moved_bytes(const lk_graph *g, const lk__graph_node *n)
{
    double in = value_bytes(g, n->in[0]), out = value_bytes(g, n->out[0]);
    return in > out ? in : out;
}

static double arithmetic_of(const lk_graph *g, const lk__graph_node *n)
{
    return n->dead ? 0 : lk__op_find(n->op)->arithmetic(g, n);
}

static bool is_start(const overlap *o, const lk__graph_node *n)
{
    return !n->dead && lk__op_find(n->op)->runs == LK__RUNS_COLLECTIVE && n->attrs.mesh & o->axes;
}

static bool is_wait(const overlap *o, const lk__graph_node *n)
{
    return !n->dead && lk__op_find(n->op)->runs == LK__RUNS_WAIT && o->along[n->in[0]];
}

/* Nodes that nothing moves over: their order is that of other collectives, or of what they write. */
static bool is_barrier(const lk__graph_node *n)
{
    if (n->dead) return false;
    lk__graph_runs runs = lk__op_find(n->op)->runs;
    return runs == LK__RUNS_COLLECTIVE || runs == LK__RUNS_WAIT || lk__plan_has_effect(n);
}

static bool makes_input(const lk__graph_node *n, const lk__graph_node *reader)
{
    for (int k = 0; k < n->outputs && !n->dead; k++)
        for (int i = 0; i < reader->inputs; i++)
            if (n->out[k] >= 0 && reader->in[i] == n->out[k]) return true;
    return false;
}

/* The marked nodes of first … last come before the others. */
static void move_marked(overlap *o, size_t first, size_t last, const bool *marked)
{
    size_t          count = last - first + 1, at = 0;
    lk__graph_node *nodes = &o->g->nodes[first];
    for (int before = 1; before >= 0; before--)
        for (size_t i = 0; i < count; i++)
            if (marked[i] == before) o->kept[at++] = nodes[i];
    memcpy(nodes, o->kept, count * sizeof *nodes);
}

/* The start at `index`: before products that it does not need. hidden: operations behind it that hide it already. */
static void hoist_start(overlap *o, size_t index, double hidden)
{
    const lk_graph *g = o->g;
    double          bytes = moved_bytes(g, &g->nodes[index]);
    bool            needed[WINDOW + 1] = {false}; /* by distance from `index` */
    size_t          first = index, to = index;
    needed[0] = true;
    while (first > o->begin && index - first < WINDOW && hidden < enough * bytes) {
        const lk__graph_node *n = &g->nodes[first - 1];
        if (is_barrier(n)) break;
        bool wanted = false;
        for (size_t i = first; i <= index && !wanted; i++) wanted = needed[index - i] && makes_input(n, &g->nodes[i]);
        first--;
        needed[index - first] = wanted;
        double arithmetic = wanted ? 0 : arithmetic_of(g, n);
        if (arithmetic > 0) to = first;
        hidden += arithmetic;
    }
    if (to == index || hidden < least * bytes) return;
    bool marked[WINDOW + 1];
    for (size_t i = to; i <= index; i++) marked[i - to] = needed[index - i];
    move_marked(o, to, index, marked);
}

/* The wait at `index`: behind products that do not need it, together with views of its result. Its group completes
 * collectives in the order of their starts: other starts and waits do not matter to it. */
static void sink_wait(overlap *o, size_t index)
{
    const lk_graph *g = o->g;
    double          bytes = value_bytes(g, g->nodes[index].in[0]), hidden = 0;
    bool            stays[WINDOW + 1] = {false}; /* by distance from `index`: not moved with it */
    size_t          to = index;
    for (size_t i = index + 1; i < o->end && i - index <= WINDOW && hidden < enough * bytes; i++) {
        const lk__graph_node *n = &g->nodes[i];
        bool                  reads = false;
        for (size_t k = index; k < i && !reads; k++) reads = !stays[k - index] && makes_input(&g->nodes[k], n);
        if ((reads && n->op != LK__OP_reshape) || (!n->dead && lk__plan_has_effect(n))) break;
        stays[i - index] = !reads;
        double arithmetic = reads ? 0 : arithmetic_of(g, n);
        if (arithmetic > 0) to = i;
        hidden += arithmetic;
    }
    if (to > index) move_marked(o, index, to, stays);
}

/* Operations between the start at `index` and its wait. */
static double hidden_behind(const overlap *o, size_t index)
{
    double hidden = 0;
    for (size_t i = index + 1; i < o->end; i++) {
        const lk__graph_node *n = &o->g->nodes[i];
        if (!n->dead && lk__op_find(n->op)->runs == LK__RUNS_WAIT && n->in[0] == o->g->nodes[index].out[0]) break;
        hidden += arithmetic_of(o->g, n);
    }
    return hidden;
}

/* What it makes is larger than what it reads. */
static bool is_gather(const lk_graph *g, const lk__graph_node *n)
{
    return value_bytes(g, n->out[0]) > value_bytes(g, n->in[0]);
}

static void set_producers(lk_graph *g)
{
    for (size_t i = 0; i < g->nodes_count; i++)
        for (int k = 0; k < g->nodes[i].outputs && !g->nodes[i].dead; k++)
            if (g->nodes[i].out[k] >= 0 && g->values[g->nodes[i].out[k]].kind == LK__VALUE_RESULT)
                g->values[g->nodes[i].out[k]].node = (int)i;
}

lk_status lk__pass_overlap(const lk_plan *p, lk__plan_list *list, size_t forward)
{
    lk_graph *g = list->graph;
    size_t    values = g->values_count;
    overlap   o = {.g = g, .axes = lk__plan_cut_axes(p), .begin = forward, .end = g->nodes_count};
    if (!o.axes) return LK_OK;
    if (!(o.along = lk__alloc(g->context, LK_MEMORY_OTHER, values * sizeof *o.along))) return LK_ENOMEM;
    for (size_t i = o.begin; i < o.end; i++) {
        if (!is_start(&o, &g->nodes[i])) continue;
        o.along[g->nodes[i].out[0]] = true;
        if (!is_gather(g, &g->nodes[i])) hoist_start(&o, i, 0);
    }
    for (size_t i = o.end; i-- > o.begin;)
        if (is_wait(&o, &g->nodes[i])) sink_wait(&o, i);
    for (size_t i = o.begin; i < o.end; i++)
        if (is_start(&o, &g->nodes[i]) && is_gather(g, &g->nodes[i])) hoist_start(&o, i, hidden_behind(&o, i));
    set_producers(g);
    lk__free(g->context, LK_MEMORY_OTHER, o.along, values * sizeof *o.along);
    return LK_OK;
}
