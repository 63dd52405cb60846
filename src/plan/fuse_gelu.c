/* fuse_gelu.c - fuses gelu (its tanh form) into the product before it, and its gradient into the product that makes what it is multiplied
 * with, where the device does both in one pass over memory. Runs after the gradients are made: backward reads what gelu was applied to,
 * which the fused product writes as well. */
#include "plan/readers.h"

static bool is_gelu(const lk_graph *g, const lk__graph_node *n, lk__op op)
{
    return !n->dead && n->op == op && n->attrs.unary == LK__GELU_TANH && g->values[n->out[0]].shape.dtype == LK_BF16;
}

/* x → linear → v → gelu → y: one node with y and v. */
static void fuse_forward(lk_graph *g, const lk__plan_readers *r, lk__graph_node *n)
{
    int v = n->out[0];
    if (v < 0 || n->attrs.activation != LK__IDENTITY || n->outputs != 1 || r->count[v] == 0) return;
    lk__graph_node *gelu = &g->nodes[r->first[v]];
    if (!is_gelu(g, gelu, LK__OP_unary) || gelu->in[0] != v) return;
    n->attrs.activation = LK__GELU_TANH;
    n->out[0] = gelu->out[0];
    n->out[1] = v;
    n->outputs = 2;
    g->values[n->out[0]].node = (int)(n - g->nodes);
    gelu->dead = true;
}

/* dy → linear_grad_input → dv → gelu's gradient with v → du: one node. */
static void fuse_gradient(lk_graph *g, const lk__plan_readers *r, lk__graph_node *n)
{
    int dv = n->out[0];
    if (dv < 0 || n->inputs != 2 || r->count[dv] != 1) return;
    lk__graph_node *gelu = &g->nodes[r->first[dv]];
    if (!is_gelu(g, gelu, LK__OP_unary_grad) || gelu->in[0] != dv) return;
    int v = gelu->in[1];
    if (g->values[v].kind == LK__VALUE_RESULT && g->values[v].node > (int)(n - g->nodes)) return; /* made in between */
    n->attrs.activation = LK__GELU_TANH;
    n->in[2] = v;
    n->inputs = 3;
    n->out[0] = gelu->out[0];
    g->values[n->out[0]].node = (int)(n - g->nodes);
    gelu->dead = true;
}

lk_status lk__pass_fuse_gelu(lk__plan_list *list)
{
    lk_graph        *g = list->graph;
    lk__plan_readers r;
    if (!lk__context_device(g->context)->backend->fuses_gelu) return LK_OK;
    lk_status status = lk__readers_find(list, &r);
    for (size_t i = 0; status >= 0 && i < g->nodes_count; i++) {
        lk__graph_node *n = &g->nodes[i];
        if (n->dead || !r.needed[i]) continue;
        if (n->op == LK__OP_linear) fuse_forward(g, &r, n);
        if (n->op == LK__OP_linear_grad_input) fuse_gradient(g, &r, n);
    }
    lk__readers_free(list, &r);
    return status;
}
