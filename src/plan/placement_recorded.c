/* placement_recorded.c - values that a model places itself (lk_place). */
#include "plan/divisor.h"
#include "plan/placement_finder.h"

/* Whether a list still has a value: fusion and evaluation leave some out. */
static bool has_value(const lk_graph *g, int v)
{
    const lk__graph_value *value = &g->values[v];
    if (value->kind != LK__VALUE_RESULT) return true;
    const lk__graph_node *n = &g->nodes[value->node];
    for (int k = 0; k < n->outputs && !n->dead; k++)
        if (n->out[k] == v) return true;
    return false;
}

/* The value that stands for a recorded one: what an element-wise operation made of it, with which it was fused. -1:
 * nothing reads it. */
static int value_for(const lk__placement_finder *f, int v)
{
    const lk_graph *recorded = f->plan->graph;
    int             found = v;
    while (found >= 0 && !has_value(f->g, found)) {
        int next = -1;
        for (size_t i = 0; i < recorded->nodes_count && next < 0; i++)
            for (int k = 0; k < recorded->nodes[i].inputs; k++) {
                int y = recorded->nodes[i].out[0];
                if (recorded->nodes[i].in[k] == found && y > found &&
                    lk__shape_equal(&recorded->values[y].shape, &recorded->values[found].shape))
                    next = y;
            }
        found = next;
    }
    return found;
}

static lk_status refuse_split(const lk__placement_finder *f, const lk__graph_value *recorded, int v, int dim)
{
    const char            *name = lk_axis_name((lk_axis)recorded->placed_axis);
    const lk__graph_shape *s = &f->g->values[v].shape;
    lk_site                site = recorded->site;
    if (s->count_axis == dim)
        return lk__fail(f->g->context, LK_EINVAL,
                        "%s:%d: lk_place: dimension %d is the batch, which cannot be split along %s",
                        site.file ? site.file : "?", site.line, dim, name);
    return lk__fail(f->g->context, LK_EINVAL,
                    "%s:%d: lk_place: dimension %d of %s has %lld elements, which %s=%d does not divide; the "
                    "nearest extent that works is %lld",
                    site.file ? site.file : "?", site.line, dim, lk__shape_show(s).text, (long long)s->dims[dim], name,
                    f->extent, (long long)lk__nearest_divisor(s->dims[dim], f->extent));
}

static lk_status place_value(lk__placement_finder *f, const lk__graph_value *recorded, int v)
{
    lk__placement_value place = {.kind = LK__PLACE_SPLIT, .dim = recorded->placed_dim, .outer = 1}, *held = &f->held[v];
    const lk__graph_shape *s = &f->g->values[v].shape;
    bool                   splits = recorded->placed_dim >= 0;
    if (held->kind == LK__PLACE_SPLIT && (!splits || held->dim != place.dim))
        return lk__fail(
            f->g->context, LK_EINVAL,
            "%s:%d: lk_place conflicts with tactics or with another lk_place that splits along dimension %d",
            recorded->site.file ? recorded->site.file : "?", recorded->site.line, held->dim);
    if (!splits) {
        f->pinned[v] = true;
        return LK_OK;
    }
    if (held->kind == LK__PLACE_SPLIT) return LK_OK;
    if (s->count_axis == place.dim || s->dims[place.dim] % f->extent) return refuse_split(f, recorded, v, place.dim);
    lk_status status = lk__placement_try_value(f, v, &place);
    lk__placement_keep(f);
    return status;
}

lk_status lk__placement_recorded(lk__placement_finder *f, unsigned axis)
{
    const lk_graph *recorded = f->plan->graph;
    lk_status       status = LK_OK;
    for (int whole = 1; whole >= 0; whole--) /* those that are whole bound what follows from the others */
        for (size_t i = 0; i < recorded->values_count && status >= 0; i++) {
            const lk__graph_value *value = &recorded->values[i];
            if (!(value->placed_axis & axis) || (value->placed_dim < 0) != whole) continue;
            int v = value_for(f, (int)i);
            if (v >= 0) status = place_value(f, value, v);
        }
    return status;
}
