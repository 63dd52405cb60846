/* split.c - divides a fused node into separate nodes, for plans in which something must come between them, such as the
 * sum of partial products over ranks before a residual is added and a function is applied. The reverse of fuse.c, by
 * the same patterns. */
#include "plan/fuse.h"

/* The pattern of this kind by which a node is fused; NULL: it is not. */
static const lk__graph_fusion *fused_by(const lk__graph_node *n, lk__fusion_kind kind)
{
    const lk__graph_fusion *patterns = lk__op_find(n->op)->fuse;
    for (int i = 0; i < LK__FUSIONS && patterns[i].kind; i++) {
        if (patterns[i].kind != kind) continue;
        int  operand = patterns[i].operand;
        bool function = n->attrs.activation != LK__IDENTITY;
        bool there = kind == LK__FUSION_FUNCTION ? function
                     : kind == LK__FUSION_KEPT   ? function && n->outputs > operand
                                                 : n->inputs > operand && n->in[operand] >= 0;
        return there ? &patterns[i] : NULL;
    }
    return NULL;
}

bool lk__plan_is_fused(const lk__graph_node *n)
{
    static const lk__fusion_kind kinds[] = {LK__FUSION_SUM, LK__FUSION_FUNCTION, LK__FUSION_GRADIENT,
                                            LK__FUSION_OPERAND};
    if (n->attrs.pool > 1) return false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (fused_by(n, kinds[i])) return true;
    return false;
}

static int take_input(lk__graph_node *n, int at)
{
    int value = n->in[at];
    n->in[at] = -1;
    while (n->inputs > 0 && n->in[n->inputs - 1] < 0) n->inputs--;
    return value;
}

/* The addition before a node, whose result is its last output. */
static bool append_sum_before(lk_graph *g, lk__graph_node *n, const lk__graph_fusion *by)
{
    int            operands[] = {n->in[0], take_input(n, by->operand)}, sum = n->out[--n->outputs];
    lk__graph_node add = {.op = LK__OP_add, .site = n->site, .block = n->block, .inputs = 2, .outputs = 1};
    add.in[0] = operands[0];
    add.in[1] = operands[1];
    add.out[0] = n->in[0] = sum;
    return lk__plan_append(g, &add) >= 0;
}

/* A node behind the one at `before`, with its output 0, which then is another value: `kept`, or a new one where that is
 * below 0. */
static int append_behind(lk_graph *g, int before, lk__op op, const lk__op_attrs *attrs, int second, int kept)
{
    int             y = g->nodes[before].out[0], in[] = {y, second};
    lk__graph_shape shape = g->values[y].shape;
    int             node = lk__emit_shaped(g, g->nodes[before].site, op, attrs, in, second < 0 ? 1 : 2, &shape, 1);
    if (node < 0) return -1;
    int made = g->nodes[node].out[0], from = kept < 0 ? made : kept;
    g->nodes[before].out[0] = g->nodes[node].in[0] = from;
    g->nodes[node].out[0] = y;
    return node;
}

static int append_parts(lk_graph *g, const lk__graph_node *node)
{
    const lk__graph_fusion *operand = fused_by(node, LK__FUSION_OPERAND), *sum = fused_by(node, LK__FUSION_SUM),
                           *function = fused_by(node, LK__FUSION_FUNCTION), *keeps = fused_by(node, LK__FUSION_KEPT),
                           *gradient = fused_by(node, LK__FUSION_GRADIENT);
    lk__graph_node n = *node;
    lk__op_attrs   applied = {.unary = n.attrs.activation};
    int            kept = -1;
    if (operand && !append_sum_before(g, &n, operand)) return -1;
    int residual = sum ? take_input(&n, sum->operand) : -1, saved = gradient ? take_input(&n, gradient->operand) : -1;
    if (keeps) kept = n.out[--n.outputs];
    n.attrs.activation = LK__IDENTITY;
    int last = lk__plan_append(g, &n);
    if (last >= 0 && residual >= 0) last = append_behind(g, last, LK__OP_add, NULL, residual, -1);
    if (last >= 0 && function) last = append_behind(g, last, LK__OP_unary, &applied, -1, kept);
    if (last >= 0 && gradient) last = append_behind(g, last, LK__OP_unary_grad, &applied, saved, -1);
    return last;
}

typedef struct splitter {
    lk__plan_wants_split wants;
    void                *user;
} splitter;

static int split_node(lk_graph *g, const lk__graph_node *n, void *user)
{
    const splitter *s = user;
    return lk__plan_is_fused(n) && s->wants(g, n, s->user) ? append_parts(g, n) : lk__plan_append(g, n);
}

lk_status lk__plan_split_fused(lk_graph *g, lk__plan_wants_split wants, void *user)
{
    lk_status status = lk__plan_rebuild(g, split_node, &(splitter){wants, user});
    for (size_t i = 0; i < g->nodes_count && status >= 0; i++) /* the outputs of a node may now be those of several */
        for (int k = 0; k < g->nodes[i].outputs && !g->nodes[i].dead; k++)
            if (g->nodes[i].out[k] >= 0 && g->values[g->nodes[i].out[k]].kind == LK__VALUE_RESULT)
                g->values[g->nodes[i].out[k]].node = (int)i;
    return status;
}
