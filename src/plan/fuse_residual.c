/* fuse_residual.c - fuses additions with layer and RMS norms where the device computes both in one pass over memory: x = a + b before the
 * norm of x, and the sum of a norm's dx with the gradient that arrives past it; the same for the dx of a linear whose input others read
 * too. Runs after the gradients are made, because backward reads x, not a and b, also where it computes the norm again. */
#include "plan/readers.h"

/* Where a norm has its residual, and a gradient what is added to it; -1: it is no such operation. */
static int residual_input(lk__op op)
{
    return op == LK__OP_layer_norm          ? 3
           : op == LK__OP_rms_norm          ? 2
           : op == LK__OP_layer_norm_grad   ? 5
           : op == LK__OP_rms_norm_grad     ? 4
           : op == LK__OP_linear_grad_input ? 3
                                            : -1;
}

/* An addition that broadcasts nothing. */
static bool adds_alike(const lk_graph *g, const lk__graph_node *n)
{
    const lk__graph_value *y = &g->values[n->out[0]];
    if (n->dead || n->op != LK__OP_add) return false;
    for (int i = 0; i < 2; i++) {
        const lk__graph_value *x = &g->values[n->in[i]];
        if (!lk__shape_equal(&x->shape, &y->shape) || x->shape.dtype != y->shape.dtype) return false;
    }
    return true;
}

static bool device_fuses(const lk_graph *g, const lk__graph_node *n, const lk__graph_node *next)
{
    return lk__context_device(g->context)->backend->fuses(n->op, &n->attrs, next->op, &next->attrs);
}

static void set_residual(lk__graph_node *n, int at, int value)
{
    for (int i = n->inputs; i < at; i++) n->in[i] = -1;
    n->in[at] = value;
    n->inputs = at + 1;
}

/* x = a + b; the norm of x: one node with both results, where the norm is. Nothing before it may read x. */
static void fuse_sum(lk_graph *g, const lk__plan_readers *r, int index)
{
    lk__graph_node *n = &g->nodes[index];
    int             at = residual_input(n->op), x = n->in[0];
    if (g->values[x].kind != LK__VALUE_RESULT || r->first[x] != index || n->inputs > at) return;
    lk__graph_node *add = &g->nodes[g->values[x].node];
    if (!adds_alike(g, add) || !device_fuses(g, add, n)) return;
    n->in[0] = add->in[0];
    set_residual(n, at, add->in[1]);
    n->out[n->outputs++] = x; /* after the statistics */
    g->values[x].node = index;
    add->dead = true;
}

/* The dx of a norm or a linear, added to a gradient that was made before: one node. */
static void fuse_gradient(lk_graph *g, const lk__plan_readers *r, int index)
{
    lk__graph_node *n = &g->nodes[index];
    int             at = residual_input(n->op), dx = n->out[0];
    if (dx < 0 || r->count[dx] != 1 || n->inputs > at) return;
    lk__graph_node *add = &g->nodes[r->first[dx]];
    if ((add->in[0] != dx && add->in[1] != dx) || !adds_alike(g, add) || !device_fuses(g, n, add)) return;
    int other = add->in[0] == dx ? add->in[1] : add->in[0];
    if (g->values[other].kind == LK__VALUE_RESULT && g->values[other].node > index) return;
    set_residual(n, at, other);
    n->out[0] = add->out[0];
    g->values[n->out[0]].node = index;
    add->dead = true;
}

lk_status lk__pass_fuse_residual(lk__plan_list *list)
{
    lk_graph        *g = list->graph;
    lk__plan_readers r;
    lk_status        status = lk__readers_find(list, &r);
    for (size_t i = 0; status >= 0 && i < g->nodes_count; i++) {
        lk__graph_node *n = &g->nodes[i];
        if (n->dead || !r.needed[i]) continue;
        if (n->op == LK__OP_layer_norm || n->op == LK__OP_rms_norm) fuse_sum(g, &r, (int)i);
        if (n->op == LK__OP_layer_norm_grad || n->op == LK__OP_rms_norm_grad || n->op == LK__OP_linear_grad_input)
            fuse_gradient(g, &r, (int)i);
    }
    lk__readers_free(list, &r);
    return status;
}
