/* grad.c - gradients by graph transformation: visits the nodes from the loss backwards; each operation's gradient rule
 * appends the nodes that compute its inputs' gradients. The nodes of blocks that are marked for recomputation are
 * recorded again before their backward. */
#include "graph/op.h"

#include <string.h>

typedef lk__graph_backward backward;

/* Rules add values: both maps grow with the graph. */
static bool grow_maps(backward *b)
{
    if (b->g->status < 0) return false;
    size_t need = b->g->values_count, had = b->capacity;
    if (need <= had) return true;
    if (lk__grow(b->g->context, (void **)&b->now, &b->now_capacity, need, sizeof(int)) < 0 ||
        lk__grow(b->g->context, (void **)&b->gradient, &b->capacity, need, sizeof(int)) < 0) {
        b->g->status = LK_ENOMEM;
        return false;
    }
    for (size_t i = had; i < b->capacity; i++) {
        b->gradient[i] = LK__GRAD_NONE;
        b->now[i] = (int)i;
    }
    return true;
}

/* ---- for gradient rules ---- */

int lk__grad_in(const backward *b, int i) { return i < b->n.inputs && b->n.in[i] >= 0 ? b->now[b->n.in[i]] : -1; }
int lk__grad_out(const backward *b, int i) { return b->n.out[i] < 0 ? -1 : b->now[b->n.out[i]]; }

bool lk__grad_wants(const backward *b, int i) { return lk__node_wants_gradient(b->g, &b->n, i); }

lk__graph_shape lk__grad_shape(const backward *b, int value) { return b->g->values[value].shape; }

int lk__grad_emit_like(backward *b, lk__op op, const lk__op_attrs *attrs, const int *operands, int inputs, int like)
{
    lk__graph_shape shape = lk__grad_shape(b, like);
    int             node = lk__emit_shaped(b->g, b->n.site, op, attrs, operands, inputs, &shape, 1);
    return node < 0 ? -1 : b->g->nodes[node].out[0];
}

/* The type of a value's gradient: sums over samples, which parameters' gradients are, are wide. */
static lk_dtype gradient_type(const lk__graph_value *v)
{
    return v->kind == LK__VALUE_STATE ? lk__wide_type(v->shape.dtype) : v->shape.dtype;
}

void lk__grad_give(backward *b, int i, int g)
{
    if (g >= 0) g = lk__emit_cast(b->g, b->n.site, g, gradient_type(&b->g->values[b->n.in[i]]));
    if (g < 0 || !grow_maps(b)) return;
    int *slot = &b->gradient[b->n.in[i]];
    *slot = *slot == LK__GRAD_NONE ? g : LK__GRAD_EMIT(b, LK__OP_add, NULL, 2, *slot, g);
    grow_maps(b);
}

int lk__grad_reduce_to(backward *b, int dy, int like)
{
    if (dy < 0) return -1; /* the graph has failed */
    lk__graph_shape from = lk__grad_shape(b, dy), to = lk__grad_shape(b, like);
    lk__op_attrs    attrs = {0};
    for (int i = 0; i < from.rank; i++) {
        int j = i - (from.rank - to.rank);
        if (j < 0 || (to.dims[j] == 1 && (from.dims[i] != 1 || from.count_axis == i))) attrs.mask |= 1u << i;
    }
    if (attrs.mask) dy = LK__GRAD_EMIT(b, LK__OP_sum, &attrs, 1, dy);
    if (dy < 0 || lk__shape_equal(&b->g->values[dy].shape, &to)) return dy;
    return lk__grad_emit_like(b, LK__OP_reshape, NULL, &dy, 1, like);
}

int lk__grad_before_activation(backward *b, int dy)
{
    if (b->n.attrs.activation == LK__IDENTITY) return dy;
    return LK__GRAD_EMIT(b, LK__OP_unary_grad, &(lk__op_attrs){.unary = b->n.attrs.activation}, 2, dy,
                         lk__grad_out(b, 0));
}

void lk__grad_norm(backward *b, lk__op op, const int *operands, int inputs, int last)
{
    int wanted = 1;
    for (int i = 1; i <= last; i++)
        if (lk__grad_wants(b, i)) wanted |= 1 << i;
    int node = lk__emit(b->g, b->n.site, op, &b->n.attrs, operands, inputs, wanted);
    if (node < 0) return;
    lk__graph_node made = b->g->nodes[node];
    for (int i = 0; i <= last; i++)
        if (lk__grad_wants(b, i)) lk__grad_give(b, i, made.out[i]);
}

void lk__gradient_none(backward *b, int dy)
{
    (void)dy;
    lk__graph_fail(b->g, b->n.site, "%s has no gradient", lk__op_name(b->n.op));
}

void lk__gradient_stopped(backward *b, int dy) { (void)b, (void)dy; }

/* ---- the traversal ---- */

/* The outermost block around `block` that is to be recomputed, or 0. */
static int recomputed_block(const lk_graph *g, int block)
{
    int found = 0;
    for (; block > 0; block = g->blocks[block].parent)
        if (g->blocks[block].recompute) found = block;
    return found;
}

/* Records the nodes of a block again, from its inputs; backward then reads the copies. Running statistics are not
 * updated twice; dropout's numbers depend on its stream alone, so they are the same. Nodes whose descriptor says
 * LK__KEEP are not recorded again. */
static void recompute(backward *b, int block, size_t forward_nodes)
{
    lk_graph *g = b->g;
    for (size_t i = 0; i < forward_nodes && grow_maps(b); i++) {
        lk__graph_node n = g->nodes[i];
        if (n.dead || recomputed_block(g, n.block) != block) continue;
        if (lk__op_find(n.op)->recompute == LK__KEEP) continue;
        lk__graph_shape shapes[LK__MAX_OUT] = {{0}};
        for (int j = 0; j < n.inputs; j++)
            if (n.in[j] >= 0) n.in[j] = b->now[n.in[j]];
        for (int j = 0; j < n.outputs; j++)
            if (n.out[j] >= 0) shapes[j] = g->values[n.out[j]].shape;
        n.attrs.update = false;
        g->block = n.block;
        int copy = lk__emit_shaped(g, n.site, n.op, &n.attrs, n.in, n.inputs, shapes, n.outputs);
        if (copy < 0 || !grow_maps(b)) return;
        for (int j = 0; j < n.outputs; j++)
            if (n.out[j] >= 0) b->now[n.out[j]] = g->nodes[copy].out[j];
    }
}

/* The value that a chain of reshapes starts from: two parameters must not share one as their gradient. */
static int alias_root(const lk_graph *g, int value)
{
    while (value >= 0 && g->values[value].kind == LK__VALUE_RESULT &&
           lk__op_shares_memory(g->nodes[g->values[value].node].op))
        value = g->nodes[g->values[value].node].in[0];
    return value;
}

/* Whether a gradient was computed by forward or is not computed at all. Parameters' gradients have their own region,
 * which only backward writes. */
static bool made_before(const lk_graph *g, int value, size_t forward_nodes)
{
    const lk__graph_value *v = &g->values[alias_root(g, value)];
    return v->kind != LK__VALUE_RESULT || (size_t)v->node < forward_nodes;
}

static void collect_gradients(backward *b, int *gradients, size_t forward_nodes)
{
    lk_graph *g = b->g;
    for (size_t i = 0; i < g->states_count && grow_maps(b); i++) {
        gradients[i] = LK__GRAD_NONE;
        const lk__graph_state *s = &g->states[i];
        if (s->buffer || s->frozen) continue;
        int  own = b->gradient[s->value];
        bool copied = own >= 0 && made_before(g, own, forward_nodes);
        for (size_t j = 0; j < i && own >= 0; j++)
            copied = copied || (gradients[j] >= 0 && alias_root(g, gradients[j]) == alias_root(g, own));
        b->n.site = s->site;
        gradients[i] = copied ? LK__GRAD_EMIT(b, LK__OP_scale, &(lk__op_attrs){.scale = 1}, 1, own) : own;
    }
}

/* Whether the loss depends on the node by a value that needs a gradient. */
static bool has_gradient(const backward *b)
{
    for (int i = 0; i < b->n.outputs; i++) {
        int v = b->n.out[i];
        if (v >= 0 && b->gradient[v] != LK__GRAD_NONE && b->g->values[v].needs_gradient) return true;
    }
    return false;
}

/* Whether a gradient of this number can be made. */
static bool check_number(lk_graph *g, int number)
{
    const lk__graph_value *v = &g->values[number];
    if (lk__shape_elements(&v->shape) == 1 && v->shape.count_axis < 0) return true;
    lk__graph_fail(g, v->site, "the loss must be a single number: lk_loss sums the values of all samples");
    return false;
}

/* From the gradients that the map holds of what is minimised, backwards. */
static void traverse(backward *b, size_t forward_nodes, int *gradients)
{
    lk_graph *g = b->g;
    int       last_block = 0;
    for (size_t i = forward_nodes; i-- > 0 && g->status == LK_OK;) {
        b->n = g->nodes[i];
        if (b->n.dead || !has_gradient(b)) continue;
        int dy = b->n.out[0] < 0 ? LK__GRAD_NONE : b->gradient[b->n.out[0]];
        g->block = b->n.block;
        int block = recomputed_block(g, b->n.block);
        if (block && block != last_block) {
            lk__graph_node keep = b->n;
            recompute(b, block, forward_nodes);
            b->n = keep;
            g->block = keep.block;
        }
        last_block = block;
        lk__op_find(b->n.op)->gradient(b, dy);
        grow_maps(b);
    }
    g->block = 0;
    collect_gradients(b, gradients, forward_nodes);
}

static lk_status free_maps(backward *b)
{
    lk__free(b->g->context, LK_MEMORY_OTHER, b->gradient, b->capacity * sizeof(int));
    lk__free(b->g->context, LK_MEMORY_OTHER, b->now, b->now_capacity * sizeof(int));
    return b->g->status;
}

lk_status lk__graph_grad(lk_graph *g, int loss, int *gradients)
{
    backward b = {.g = g};
    size_t   forward_nodes = g->nodes_count;
    if (!grow_maps(&b) || !check_number(g, loss)) return free_maps(&b);
    const lk__graph_value *v = &g->values[loss];
    bool is_loss = v->kind == LK__VALUE_RESULT && lk__op_find(g->nodes[v->node].op)->loss != LK__LOSS_NO;
    if (!v->needs_gradient) {
        lk__graph_fail(g, v->site, "the loss depends on no trainable parameter");
        return free_maps(&b);
    }
    if (is_loss) {
        b.gradient[loss] = LK__GRAD_ONE;
    } else {
        lk__graph_shape shape = v->shape;
        int node = lk__emit_shaped(g, v->site, LK__OP_fill, &(lk__op_attrs){.scale = 1}, NULL, 0, &shape, 1);
        if (!grow_maps(&b)) return free_maps(&b);
        b.gradient[loss] = g->nodes[node].out[0];
    }
    traverse(&b, forward_nodes, gradients);
    return free_maps(&b);
}

lk_status lk__graph_grad_sum(lk_graph *g, const int *numbers, const int *factors, int count, int *gradients)
{
    backward b = {.g = g};
    size_t   forward_nodes = g->nodes_count;
    bool     needed = false;
    if (!grow_maps(&b)) return free_maps(&b);
    for (int i = 0; i < count; i++) {
        if (!check_number(g, numbers[i])) return free_maps(&b);
        needed |= g->values[numbers[i]].needs_gradient;
        b.gradient[numbers[i]] = factors[i];
    }
    if (!needed) lk__graph_fail(g, g->values[numbers[0]].site, "the loss depends on no trainable parameter");
    if (needed) traverse(&b, forward_nodes, gradients);
    return free_maps(&b);
}
