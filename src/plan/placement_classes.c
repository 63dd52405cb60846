/* placement_classes.c - losses over classes that are cut over an axis: no rank has all logits. Each part of the classes
 * tells the others its statistics (class_statistics), with which the loss is computed from its own part. A product and
 * its loss in one node are divided for that. */
#include "plan/placement.h"

/* Fewer classes of a rank are not worth the statistics, of LK__CLASS_STATISTICS numbers in f64 for each row. */
enum { LEAST_CLASSES = 16 };

typedef struct division {
    const lk_plan *plan;
    unsigned       axis;
    int64_t        extent;
    bool           placed; /* only where the weight is split by its classes */
} division;

static bool is_loss(const lk__graph_node *n)
{
    return n->op == LK__OP_cross_entropy || n->op == LK__OP_cross_entropy_each;
}

static bool divides(const division *d, int64_t classes)
{
    return classes % d->extent == 0 && classes / d->extent >= LEAST_CLASSES;
}

/* Whether the list of training splits the classes of a state. */
static bool is_split(const division *d, const lk_graph *g, int weight)
{
    if (g->values[weight].kind != LK__VALUE_STATE) return false;
    const lk__plan_splits *splits = &d->plan->states[g->values[weight].state].splits[LK__ARRAY_STORED];
    for (int i = 0; i < splits->count; i++)
        if (splits->split[i].axes == d->axis && splits->split[i].dim == 0) return true;
    return false;
}

/* ---- statistics ---- */

static int emit_statistics(lk_graph *g, const lk__graph_node *n, int logits, int labels, int64_t extent)
{
    lk__op_attrs           attrs = {.ignore_index = n->attrs.ignore_index, .label_smoothing = n->attrs.label_smoothing};
    const lk__graph_shape *x = &g->values[logits].shape;
    lk__graph_shape        s = {.dtype = LK_F64, .rank = x->rank + 1, .count_unit = x->count_unit};
    s.count_axis = x->count_axis < 0 ? -1 : x->count_axis + 1;
    s.dims[0] = extent;
    for (int i = 0; i + 1 < x->rank; i++) s.dims[i + 1] = x->dims[i];
    s.dims[x->rank] = LK__CLASS_STATISTICS;
    int node = lk__emit_shaped(g, n->site, LK__OP_class_statistics, &attrs, (int[]){logits, labels}, 2, &s, 1);
    return node < 0 ? -1 : g->nodes[node].out[0];
}

static int append_loss(lk_graph *g, const lk__graph_node *loss, int64_t extent)
{
    lk__graph_node n = *loss;
    int            statistics = emit_statistics(g, loss, n.in[0], n.in[1], extent);
    if (statistics < 0) return -1;
    if (n.inputs < 3) n.in[2] = -1;
    n.in[3] = statistics;
    n.inputs = 4;
    return lk__plan_append(g, &n);
}

/* ---- a product and its loss ---- */

/* A node that makes a value that there is. */
static bool append_product(lk_graph *g, const lk__graph_node *like, lk__op op, int a, int b, int out)
{
    lk__graph_node n = {.op = op, .site = like->site, .block = like->block, .inputs = 2, .outputs = 1};
    n.in[0] = a;
    n.in[1] = b;
    n.out[0] = out;
    return lk__plan_append(g, &n) >= 0;
}

static int output_of(const lk__graph_node *n, int k) { return k < n->outputs ? n->out[k] : -1; }

/* The gradients that the fused node makes, from those of the logits. */
static bool append_gradients(lk_graph *g, const lk__graph_node *fused, int probabilities, const lk__op_attrs *attrs)
{
    int      x = fused->in[0], w = fused->in[1], dx = output_of(fused, 3), dw = output_of(fused, 4);
    lk_dtype type = g->values[x].shape.dtype;
    if (dx < 0 && dw < 0) return true;
    int d = lk__emit1(g, fused->site, LK__OP_cross_entropy_grad, attrs, (int[]){probabilities, fused->in[2]}, 2);
    if (d >= 0) d = lk__emit_cast(g, fused->site, d, type);
    if (d < 0) return false;
    if (dw >= 0 && !append_product(g, fused, LK__OP_linear_grad_weight, x, d, dw)) return false;
    return dx < 0 || append_product(g, fused, LK__OP_linear_grad_input, d, w, dx);
}

static int append_parts(lk_graph *g, const lk__graph_node *fused, int64_t extent)
{
    lk__op_attrs   attrs = {.ignore_index = fused->attrs.ignore_index, .label_smoothing = fused->attrs.label_smoothing};
    lk__graph_node off = *fused;
    off.dead = true; /* taken again where the classes are not cut after all */
    if (lk__plan_append(g, &off) < 0) return -1;
    int logits = lk__emit1(g, fused->site, LK__OP_linear, NULL, (int[]){fused->in[0], fused->in[1]}, 2);
    if (logits >= 0) logits = lk__emit_cast(g, fused->site, logits, lk__wide_type(g->values[logits].shape.dtype));
    int statistics = logits < 0 ? -1 : emit_statistics(g, fused, logits, fused->in[2], extent);
    if (statistics < 0) return -1;
    int in[] = {logits, fused->in[2], -1, statistics};
    int loss = lk__emit(g, fused->site, LK__OP_cross_entropy, &attrs, in, 4, LK__ALL_OUTPUTS);
    if (loss < 0 || !append_gradients(g, fused, g->nodes[loss].out[3], &attrs)) return -1;
    for (int k = 0; k < 3; k++)
        if (output_of(fused, k) >= 0) g->nodes[loss].out[k] = fused->out[k];
    return loss;
}

/* ---- the list ---- */

static int divide_node(lk_graph *g, const lk__graph_node *n, void *user)
{
    const division *d = user;
    if (is_loss(n) && (n->inputs < 4 || n->in[3] < 0)) {
        const lk__graph_shape *s = &g->values[n->in[0]].shape;
        if (divides(d, s->dims[s->rank - 1])) return append_loss(g, n, d->extent);
    }
    bool product = n->op == LK__OP_linear_cross_entropy && divides(d, g->values[n->in[1]].shape.dims[0]);
    if (product && (!d->placed || is_split(d, g, n->in[1]))) return append_parts(g, n, d->extent);
    return lk__plan_append(g, n);
}

static void set_producers(lk_graph *g)
{
    for (size_t i = 0; i < g->nodes_count; i++)
        for (int k = 0; k < g->nodes[i].outputs && !g->nodes[i].dead; k++)
            if (g->nodes[i].out[k] >= 0 && g->values[g->nodes[i].out[k]].kind == LK__VALUE_RESULT)
                g->values[g->nodes[i].out[k]].node = (int)i;
}

lk_status lk__placement_divide_classes(const lk_plan *p, lk_graph *g, const lk__placement_rules *rules, size_t *forward)
{
    division  d = {p, rules->axis, lk__mesh_extent(&p->mesh, rules->axis), rules->placed};
    int       first = *forward < g->nodes_count ? g->nodes[*forward].out[0] : -1; /* the first value of backward */
    lk_status status = lk__plan_rebuild(g, divide_node, &d);
    if (status < 0) return status;
    set_producers(g);
    *forward = first >= 0 ? (size_t)g->values[first].node : g->nodes_count;
    return LK_OK;
}

/* The nodes that stand for the dead one at `fused`: from the next to the last that makes one of its outputs. */
static void join_parts(lk_graph *g, size_t fused)
{
    lk__graph_node *n = &g->nodes[fused];
    size_t          last = fused;
    for (int k = 0; k < n->outputs; k++)
        if (n->out[k] >= 0 && (size_t)g->values[n->out[k]].node > last) last = (size_t)g->values[n->out[k]].node;
    for (size_t i = fused + 1; i <= last; i++) g->nodes[i].dead = true;
    n->dead = false;
}

static size_t find_fused(const lk_graph *g, size_t statistics)
{
    for (size_t i = statistics; i-- > 0;)
        if (g->nodes[i].op == LK__OP_linear_cross_entropy && g->nodes[i].dead &&
            g->nodes[i].in[2] == g->nodes[statistics].in[1])
            return i;
    return statistics;
}

bool lk__placement_join_classes(lk_graph *g, const bool *cut)
{
    bool joined = false;
    for (size_t i = 0; i < g->nodes_count; i++) {
        lk__graph_node *n = &g->nodes[i];
        if (n->dead || n->op != LK__OP_class_statistics || cut[i]) continue;
        size_t fused = find_fused(g, i);
        n->dead = joined = true;
        if (fused < i) {
            join_parts(g, fused);
            continue;
        }
        for (size_t k = i + 1; k < g->nodes_count; k++) /* the loss that reads them */
            if (!g->nodes[k].dead && g->nodes[k].inputs == 4 && g->nodes[k].in[3] == n->out[0]) {
                g->nodes[k].inputs = g->nodes[k].in[2] < 0 ? 2 : 3;
                g->nodes[k].in[3] = -1;
                break;
            }
    }
    set_producers(g);
    return joined;
}
