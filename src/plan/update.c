/* update.c - the update section: the gradients' common scale (mean over the samples, clipping), then one optimizer
 * node per parameter, which updates its master copy and rounds that to the stored one where there are two. */
#include "base/exact_sum.h"
#include "graph/optimizer.h"
#include "plan/pipeline.h"

#include <fnmatch.h>

/* The group that a parameter belongs to, or NULL. */
static const lk_parameter_group *group_of(const lk_optimizer_config *o, const lk__graph_state *s)
{
    for (int i = 0; i < o->groups_count; i++)
        if (fnmatch(o->groups[i].match, s->name, 0) == 0) return &o->groups[i];
    return NULL;
}

static lk__op_attrs optimizer_attrs(const lk_optimizer_config *o, const lk__graph_state *s)
{
    const lk_parameter_group *group = group_of(o, s);
    lk__op_attrs              a = {.lr_scale = 1, .weight_decay = s->no_decay && !o->decay_all ? 0 : o->weight_decay};
    lk__optimizer_attributes(o, &a);
    if (group) {
        if (group->lr_scale > 0) a.lr_scale = group->lr_scale;
        if (group->weight_decay >= 0) a.weight_decay = group->weight_decay;
    }
    return a;
}

/* What the update reads of a gradient: this rank's part of it where ranks have slices of the state. -1: it has none. */
static int updated_gradient(const lk_plan *p, size_t state)
{
    int gradient = p->train.gradients[state];
    if (p->pipeline && p->pipeline->tied[state] >= 0) return p->pipeline->tied[state];
    return gradient >= 0 && p->stage ? p->states[state].gradient_slice : gradient;
}

/* The same where it counts for the norm: of a state that several stages hold, in the first of them. */
static int squared_gradient(const lk_plan *p, size_t state)
{
    bool counts = !lk__plan_is_tied(p, state) || lk__plan_first_holder(p, state) == lk__plan_own_stage(p);
    return counts ? updated_gradient(p, state) : -1;
}

/* The axes along which ranks compute parts of a state's gradient: of all that the placement pass splits values over,
 * or those of experts, over which slices are added anyway. */
static unsigned gradient_axes(const lk_plan *p, size_t state)
{
    unsigned               axes = 0;
    const lk__plan_splits *splits = &p->states[state].splits[LK__ARRAY_STORED];
    for (int i = 0; i < splits->count; i++)
        axes |= splits->split[i].axes & p->expert_axes ? (p->stage ? 0 : p->expert_axes) : p->placed_axes;
    return axes;
}

/* Adds those square sums, of nodes from `first` on in the order of states, that are of gradients of which ranks have
 * parts along these axes. -1: there are none, or failure. */
static int add_squares(const lk_plan *p, size_t first, unsigned axes, int total)
{
    lk_graph *g = p->train.graph;
    for (size_t i = 0; i < g->states_count && g->status >= 0; i++) {
        if (squared_gradient(p, i) < 0) continue;
        size_t node = first++;
        int    one = g->nodes[node].out[0];
        if (gradient_axes(p, i) != axes) continue;
        total = total < 0 ? one : lk__emit1(g, g->nodes[node].site, LK__OP_add, NULL, (int[]){total, one}, 2);
    }
    return total;
}

/* The sum over the stages; total -1: this one trains nothing. */
static int add_stages(const lk_plan *p, int total)
{
    lk_graph       *g = p->train.graph;
    int64_t         parts = lk__plan_exact_norm(p) ? lk__exact_count(g->real) : 1;
    lk__graph_shape shape = lk__plan_exact_norm(p) ? lk__shape_vector(LK_F64, parts) : lk__shape_scalar(LK_F64);
    if (total < 0) {
        int node = lk__emit_shaped(g, LK_HERE, LK__OP_fill, &(lk__op_attrs){.scale = 0}, NULL, 0, &shape, 1);
        if (node < 0) return -1;
        total = g->nodes[node].out[0];
    }
    return lk__emit_all_reduce(g, LK_HERE, &(lk__op_attrs){.reduction = LK_SUM, .mesh = LK__PLAN_STAGE_AXES}, total);
}

/* The sum of all gradients' squares, as one value. */
static int total_squares(const lk_plan *p)
{
    lk_graph    *g = p->train.graph;
    size_t       first = g->nodes_count;
    int          total = -1;
    lk__op_attrs exact = {.parts = lk__plan_exact_norm(p) ? lk__exact_count(g->real) : 0};
    lk__op_attrs sharded = {.reduction = LK_SUM, .order = LK__ORDER_RANKS, .mesh = lk__plan_shard_axes(p)};
    for (size_t i = 0; i < g->states_count; i++) {
        int gradient = squared_gradient(p, i);
        if (gradient >= 0 && lk__emit1(g, g->states[i].site, LK__OP_square_sum, &exact, &gradient, 1) < 0) return -1;
    }
    unsigned parts[] = {p->placed_axes | p->expert_axes, p->expert_axes, p->placed_axes};
    for (int i = 0; i < 3 && g->status >= 0; i++) {
        if (!parts[i] || (i > 0 && parts[i] == parts[0])) continue;
        int part = add_squares(p, first, parts[i], -1);
        if (part >= 0)
            part = lk__emit_all_reduce(g, LK_HERE, &(lk__op_attrs){.reduction = LK_SUM, .mesh = parts[i]}, part);
        if (part >= 0) total = total < 0 ? part : lk__emit1(g, LK_HERE, LK__OP_add, NULL, (int[]){total, part}, 2);
    }
    if (g->status >= 0) total = add_squares(p, first, 0, total);
    if (g->status < 0) return -1;
    if (p->stage && !lk__plan_squares_by_part(p) && total >= 0)
        total = lk__emit_all_reduce(g, LK_HERE, &sharded, total);
    return g->status >= 0 && p->pipeline ? add_stages(p, total) : total;
}

static int moment_value(lk_graph *g, size_t state, int slot)
{
    lk__graph_value v = g->values[g->states[state].value];
    v.kind = LK__VALUE_OPTIMIZER;
    v.shape.dtype = lk__wide_type(v.shape.dtype);
    v.slot = slot;
    v.name = NULL;
    return lk__graph_add_value(g, &v);
}

/* What the optimizer updates: the parameter, or its master copy. */
static int updated_value(lk_graph *g, size_t state, bool master)
{
    lk__graph_value v = g->values[g->states[state].value];
    if (!master) return g->states[state].value;
    v.kind = LK__VALUE_MASTER;
    v.shape.dtype = lk__wide_type(v.shape.dtype);
    v.name = NULL;
    return lk__graph_add_value(g, &v);
}

_Static_assert(LK_MAX_MOMENTS + 2 <= LK__MAX_OUT,
               "an optimizer's operation updates the parameter, moments and a stored copy");

/* The optimizer's node for one state, and how many moments that has. */
static lk_status update_state(lk_plan *p, const lk_optimizer_config *o, size_t i, int scale)
{
    lk_graph       *g = p->train.graph;
    lk__plan_state *sp = &p->states[i];
    lk__op          op = lk__optimizer_find(o->kind)->op;
    lk__op_attrs    attrs = optimizer_attrs(o, &g->states[i]);
    unsigned        keeps = lk__optimizer_keeps(o);
    int in[] = {updated_gradient(p, i), scale}, out[LK__MAX_OUT], outputs = 1, stored = lk__op_find(op)->outputs - 1;
    for (int k = 0; k < LK__MAX_OUT; k++) out[k] = -1;
    if ((out[0] = updated_value(g, i, sp->master)) < 0) return g->status;
    for (int m = 0; m < LK_MAX_MOMENTS; m++) {
        if (!(keeps >> m & 1)) continue;
        if ((out[1 + m] = moment_value(g, i, sp->moments++)) < 0) return g->status;
        outputs = 2 + m;
    }
    if (sp->master) {
        out[stored] = g->states[i].value;
        outputs = stored + 1;
    }
    return lk__emit_update(g, g->states[i].site, op, &attrs, in, 2, out, outputs) < 0 ? g->status : LK_OK;
}

/* Behind the last state of a unit: its new parameters to all ranks, where they keep them. */
static lk_status gather_unit(lk_plan *p, size_t state)
{
    int unit = p->states[state].unit;
    if (p->stage == 3) return LK_OK;
    for (size_t i = state + 1; i < p->graph->states_count; i++)
        if (p->states[i].unit == unit && p->train.gradients[i] >= 0) return LK_OK;
    return lk__shard_gather_updated(p, (size_t)unit);
}

static void describe_moments(const lk_optimizer_config *o, lk__plan_moment moments[LK_MAX_MOMENTS])
{
    const lk__graph_optimizer *optimizer = lk__optimizer_find(o->kind);
    unsigned                   keeps = lk__optimizer_keeps(o);
    for (int m = 0, count = 0; m < LK_MAX_MOMENTS; m++)
        if (keeps >> m & 1)
            moments[count++] =
                (lk__plan_moment){optimizer->moments[m], optimizer->initial ? optimizer->initial(o, m) : 0};
}

/* A state that other stages alone hold has moments, too: of no bytes here. All stages must train alike. */
static void describe_elsewhere(lk_plan *p, const lk_optimizer_config *o)
{
    const lk_graph *g = p->train.graph;
    for (size_t i = 0; p->pipeline && i < p->graph->states_count; i++) {
        lk__graph_node update = {.op = lk__optimizer_find(o->kind)->op, .attrs = optimizer_attrs(o, &g->states[i])};
        update.attrs.clip = o->clip;
        if (p->pipeline->trained[i]) p->pipeline->hash = lk__node_hash(g, &update, p->pipeline->hash);
        if (p->train.gradients[i] >= 0 || !p->pipeline->trained[i]) continue;
        p->states[i].moments = __builtin_popcount(lk__optimizer_keeps(o));
    }
}

lk_status lk__pass_update(lk_plan *p, const lk_optimizer_config *o)
{
    lk__plan_list *list = &p->train;
    lk_graph      *g = list->graph;
    lk_status      status = lk__pass_tied(p);
    if (status < 0) return status;
    int squares = o->clip > 0 ? total_squares(p) : -1;
    int in[2] = {list->numbers[LK__NUMBER_WEIGHT], squares};
    int node = lk__emit(g, LK_HERE, LK__OP_gradient_scale, &(lk__op_attrs){.clip = o->clip}, in, squares < 0 ? 1 : 2,
                        LK__ALL_OUTPUTS);
    if (node < 0) return g->status;
    int scale = g->nodes[node].out[0];
    list->norm = g->nodes[node].out[1];
    describe_moments(o, p->moments);
    describe_elsewhere(p, o);
    for (size_t i = 0; i < g->states_count && status >= 0; i++) {
        if (list->gradients[i] < 0) continue;
        status = update_state(p, o, i, scale);
        if (status >= 0 && p->stage) status = gather_unit(p, i);
    }
    return status < 0 || p->stage == 0 || p->stage == 3 ? status : lk__shard_wait_updated(p);
}
