/* placement_coupled.c - factors that are coupled and can be cut all the same, such as the classes of a loss:
 * descriptors know how (lk__graph_coupled). A node is divided before placements are found; where its factor stays
 * whole, it is one node again. */
#include "plan/placement.h"

#include "graph/factor.h"

/* Smaller parts are not worth what they must know of each other. */
enum { LEAST_EXTENT = 16 };

typedef struct division {
    const lk_plan *plan;
    unsigned       axis;
    int64_t        extent;
    bool           placed; /* states are split as the plan says */
} division;

/* Whether another list has split this dimension of a state. */
static bool is_split(const division *d, const lk_graph *g, int state, int dim)
{
    const lk__plan_splits *splits = &d->plan->states[g->values[state].state].splits[LK__ARRAY_STORED];
    for (int i = 0; i < splits->count; i++)
        if (splits->split[i].axes == d->axis && splits->split[i].dim == dim) return true;
    return false;
}

static bool is_coupled(const lk_graph *g, const lk__graph_node *n, int input, int dim)
{
    lk__factors f;
    char        text[128];
    if (lk__node_factors(g, n, &f, text)) return false;
    const lk__factor_dim *d = &f.in[input][dim];
    return d->segments == 1 && d->segment[0].count == 1 && f.factor[d->segment[0].factor[0]].coupled;
}

static bool wants_division(const division *d, const lk_graph *g, const lk__graph_node *n, const lk__graph_coupled *rule)
{
    if (!rule->divide) return false;
    int                    v = n->in[rule->input];
    const lk__graph_shape *s = &g->values[v].shape;
    int                    dim = rule->dim < 0 ? s->rank + rule->dim : rule->dim;
    bool                   state = g->values[v].kind == LK__VALUE_STATE;
    /* Ranks must have whole parts of the sums over the factor, where these are the same in every layout. */
    if (d->plan->parallel.reproducible_layout && !lk__sum_parts_nest(&n->attrs.sum, s->dims[dim], (int)d->extent))
        return false;
    return s->dims[dim] % d->extent == 0 && s->dims[dim] / d->extent >= LEAST_EXTENT &&
           is_coupled(g, n, rule->input, dim) && (!d->placed || !state || is_split(d, g, v, dim));
}

static int divide_node(lk_graph *g, const lk__graph_node *n, void *user)
{
    const division          *d = user;
    const lk__graph_coupled *rule = &lk__op_find(n->op)->coupled;
    lk__graph_node           off = *n;
    if (!wants_division(d, g, n, rule)) return lk__plan_append(g, n);
    off.dead = true; /* taken again where the factor is not cut after all */
    return lk__plan_append(g, &off) < 0 ? -1 : rule->divide(g, &off, d->extent);
}

lk_status lk__placement_divide_coupled(const lk_plan *p, lk_graph *g, const lk__placement_rules *rules, size_t *forward)
{
    division  d = {p, rules->axis, lk__mesh_extent(&p->mesh, rules->axis), rules->placed};
    int       first = *forward < g->nodes_count ? g->nodes[*forward].out[0] : -1; /* the first value of backward */
    lk_status status = lk__plan_rebuild(g, divide_node, &d);
    if (status < 0) return status;
    lk__plan_set_producers(g);
    *forward = first >= 0 ? (size_t)g->values[first].node : g->nodes_count;
    return LK_OK;
}

/* The nodes that stand for the one at i, which was divided: up to the result; i: it was not. */
static size_t end_of_division(const lk_graph *g, size_t i)
{
    const lk__graph_node *n = &g->nodes[i];
    size_t                end = i;
    if (!n->dead || !lk__op_find(n->op)->coupled.divide) return i;
    for (int k = 0; k < n->outputs; k++) /* one that is only unread makes its outputs itself */
        if (n->out[k] >= 0 && (size_t)g->values[n->out[k]].node > end) end = (size_t)g->values[n->out[k]].node;
    return end;
}

bool lk__placement_join_coupled(lk_graph *g, const bool *cut)
{
    bool joined = false;
    for (size_t i = 0; i < g->nodes_count; i++) {
        size_t end = end_of_division(g, i);
        bool   stays = end == i;
        for (size_t k = i + 1; k <= end; k++) stays |= cut[k] && !g->nodes[k].dead;
        if (stays) continue;
        for (size_t k = i + 1; k <= end; k++) g->nodes[k].dead = true;
        g->nodes[i].dead = false;
        joined = true;
    }
    lk__plan_set_producers(g);
    return joined;
}
