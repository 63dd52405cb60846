/* placement_packed.c - attention that reads queries, keys and values side by side, with fewer heads of keys than there
 * are ranks along an axis: it reads slices instead. Queries can be cut over all ranks then, and keys and values have
 * copies. */
#include "plan/placement.h"

typedef struct division {
    int64_t               extent;
    const lk__graph_node *first; /* of backward; NULL: there is none */
    size_t                forward;
} division;

/* What lies side by side in a value. */
typedef struct packed {
    int     value;
    int64_t start[3], length[3];
} packed;

static bool has_few_groups(const lk__graph_node *n, int64_t extent)
{
    int64_t heads = n->attrs.heads, groups = n->attrs.kv_heads;
    return groups % extent && extent % groups == 0 && heads % extent == 0;
}

static bool is_absent(const lk__graph_node *n, int operand) { return operand >= n->inputs || n->in[operand] < 0; }

static packed describe_packed(const lk_graph *g, const lk__graph_node *n, int operand)
{
    const lk__graph_shape *s = &g->values[n->in[operand]].shape;
    int64_t                heads = n->attrs.heads, groups = n->attrs.kv_heads, d = s->dims[2] / (heads + 2 * groups);
    return (packed){n->in[operand], {0, heads * d, (heads + groups) * d}, {heads * d, groups * d, groups * d}};
}

/* The slice that forward has made, or a new one. */
static int find_slice(lk_graph *g, lk_site site, const packed *p, int i)
{
    lk__op_attrs attrs = {.axis = 2, .start = p->start[i], .length = p->length[i]};
    for (size_t k = 0; k < g->nodes_count; k++) {
        const lk__graph_node *n = &g->nodes[k];
        if (!n->dead && n->op == LK__OP_slice && n->in[0] == p->value && lk__attrs_equal(&n->attrs, &attrs))
            return n->out[0];
    }
    return lk__emit1(g, site, LK__OP_slice, &attrs, &p->value, 1);
}

static bool find_slices(lk_graph *g, lk_site site, const packed *p, int in[3])
{
    for (int i = 0; i < 3; i++)
        if ((in[i] = find_slice(g, site, p, i)) < 0) return false;
    return true;
}

static int divide_forward(lk_graph *g, const lk__graph_node *old)
{
    lk__graph_node n = *old;
    packed         p = describe_packed(g, old, 0);
    if (!find_slices(g, old->site, &p, n.in)) return -1;
    if (n.inputs < 3) n.inputs = 3;
    return lk__plan_append(g, &n);
}

/* The gradients of the three are put side by side. */
static int divide_backward(lk_graph *g, const lk__graph_node *old)
{
    lk__graph_node n = *old;
    packed         p = describe_packed(g, old, 1);
    if (!find_slices(g, old->site, &p, &n.in[1])) return -1;
    int node = lk__emit(g, n.site, n.op, &n.attrs, n.in, n.inputs, LK__ALL_OUTPUTS);
    if (node < 0) return -1;
    int made[] = {g->nodes[node].out[0], g->nodes[node].out[1], g->nodes[node].out[2]};
    int all = lk__emit(g, n.site, LK__OP_concat, &(lk__op_attrs){.axis = 2}, made, 3, LK__ALL_OUTPUTS);
    if (all >= 0) g->nodes[all].out[0] = old->out[0];
    return all;
}

static int divide_node(lk_graph *g, const lk__graph_node *n, void *user)
{
    division *d = user;
    if (n == d->first) d->forward = g->nodes_count;
    if (n->op == LK__OP_attention && is_absent(n, 1) && has_few_groups(n, d->extent)) return divide_forward(g, n);
    if (n->op == LK__OP_attention_grad && is_absent(n, 2) && has_few_groups(n, d->extent)) return divide_backward(g, n);
    return lk__plan_append(g, n);
}

lk_status lk__placement_divide_packed(lk_graph *g, int extent, size_t *forward)
{
    division d = {.extent = extent};
    for (size_t i = *forward; i < g->nodes_count && !d.first; i++)
        if (!g->nodes[i].dead) d.first = &g->nodes[i];
    lk_status status = lk__plan_rebuild(g, divide_node, &d);
    *forward = d.first ? d.forward : g->nodes_count;
    return status;
}
