/* expert_states.c - which states are weights of experts, and their parts. */
#include "plan/divisor.h"
#include "plan/experts.h"

bool lk__plan_is_expert(const lk_plan *p, size_t state)
{
    const lk__plan_splits *splits = &p->states[state].splits[LK__ARRAY_STORED];
    for (int i = 0; i < splits->count; i++)
        if (splits->split[i].axes & p->expert_axes) return true;
    return false;
}

static lk_status split_state(lk_plan *p, const lk__graph_node *n, int v)
{
    const lk_graph        *g = p->graph;
    const lk__graph_value *value = &g->values[v];
    int                    extent = lk__mesh_extent(&p->mesh, p->expert_axes);
    char                   text[LK__MESH_TEXT];
    const char            *file = n->site.file ? n->site.file : "?";
    if (value->kind != LK__VALUE_STATE)
        return lk__fail(
            p->context, LK_EUNSUPPORTED,
            "%s:%d: the weight of %s is a computed value, but only parameters can be split over the expert axis", file,
            n->site.line, lk__node_name(g, n));
    if (value->shape.dims[0] % extent)
        return lk__fail(p->context, LK_EINVAL,
                        "the mesh %s has %d ranks along expert, which do not divide the %lld experts of \"%s\"; the "
                        "nearest extent that works is expert=%lld",
                        lk__mesh_format(&p->mesh, text), extent, (long long)value->shape.dims[0],
                        g->states[value->state].name, (long long)lk__nearest_divisor(value->shape.dims[0], extent));
    if (lk__plan_is_expert(p, (size_t)value->state)) return LK_OK;
    for (int a = 0; a < LK__ARRAY_COUNT; a++) {
        lk__plan_splits *splits = &p->states[value->state].splits[a];
        splits->split[splits->count++] = (lk__plan_cut){.dim = 0, .axes = p->expert_axes, .outer = 1};
    }
    return LK_OK;
}

lk_status lk__plan_split_experts(lk_plan *p)
{
    lk_status status = LK_OK;
    bool      found = false;
    char      text[LK__MESH_TEXT];
    if (!p->expert_axes) return LK_OK;
    for (size_t i = 0; i < p->graph->nodes_count && status >= 0; i++) {
        const lk__graph_node *n = &p->graph->nodes[i];
        unsigned              weights = lk__op_find(n->op)->grouped.weights;
        for (int k = 0; k < n->inputs && status >= 0; k++) {
            if (!(weights >> k & 1)) continue;
            found = true;
            status = split_state(p, n, n->in[k]);
        }
    }
    if (found || status < 0) return status;
    return lk__fail(p->context, LK_EINVAL,
                    "the mesh %s has %d ranks along expert, but the model has no experts: use the data axis instead",
                    lk__mesh_format(&p->mesh, text), lk__mesh_extent(&p->mesh, p->expert_axes));
}
