/* grad.c - gradients by graph transformation: walks the nodes back from the loss and appends, for each, the nodes that carry
 * the gradient of its outputs to its inputs. Blocks marked for recomputation are recorded again in front of their backward. */
#include "graph/graph.h"

#include <string.h>

enum { NONE = -1, ONE = -2 }; /* in `gradient`: no gradient yet; the loss's own, which is the number 1 */

typedef struct backward {
    lk_graph      *g;
    int           *gradient; /* by value id */
    int           *now;      /* by value id: what backward reads for it (its recomputed twin, or itself) */
    size_t         capacity, now_capacity;
    lk__graph_node n; /* the node whose gradient is being made: a copy, since nodes move as they grow */
} backward;

/* Values appear while we walk: keep both maps as long as the graph. */
static bool fit(backward *b)
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
        b->gradient[i] = NONE;
        b->now[i] = (int)i;
    }
    return true;
}

static int  in(const backward *b, int i) { return i < b->n.inputs && b->n.in[i] >= 0 ? b->now[b->n.in[i]] : -1; }
static int  out(const backward *b, int i) { return b->n.out[i] < 0 ? -1 : b->now[b->n.out[i]]; }
static bool wants(const backward *b, int i)
{
    return i < b->n.inputs && b->n.in[i] >= 0 && b->g->values[b->n.in[i]].needs_gradient;
}
static lk__graph_shape shape_of(const backward *b, int value) { return b->g->values[value].shape; }

#define EMIT1(b, op, attrs, inputs, ...) lk__emit1((b)->g, (b)->n.site, op, attrs, (int[]){__VA_ARGS__}, inputs)

static int emit_like(backward *b, lk__op op, const lk__op_attrs *attrs, const int *operands, int inputs, int like)
{
    lk__graph_shape shape = shape_of(b, like);
    int             node = lk__emit_shaped(b->g, b->n.site, op, attrs, operands, inputs, &shape, 1);
    return node < 0 ? -1 : b->g->nodes[node].out[0];
}

/* Adds g to the gradient of the node's input i. */
static void give(backward *b, int i, int g)
{
    if (g < 0 || !fit(b)) return;
    int *slot = &b->gradient[b->n.in[i]];
    *slot = *slot == NONE ? g : EMIT1(b, LK__OP_add, NULL, 2, *slot, g);
    fit(b);
}

/* Sums dy down to the shape of `like`: the gradient of broadcasting. */
static int reduce_to(backward *b, int dy, int like)
{
    lk__graph_shape from = shape_of(b, dy), to = shape_of(b, like);
    lk__op_attrs    attrs = {0};
    for (int i = 0; i < from.rank; i++) {
        int j = i - (from.rank - to.rank);
        if (j < 0 || (to.dims[j] == 1 && (from.dims[i] != 1 || from.count_axis == i))) attrs.mask |= 1u << i;
    }
    if (attrs.mask) dy = EMIT1(b, LK__OP_sum, &attrs, 1, dy);
    if (dy < 0 || lk__shape_equal(&b->g->values[dy].shape, &to)) return dy;
    return emit_like(b, LK__OP_reshape, NULL, &dy, 1, like);
}

static void grad_binary(backward *b, int dy)
{
    switch (b->n.op) {
    case LK__OP_add:
        if (wants(b, 0)) give(b, 0, reduce_to(b, dy, in(b, 0)));
        if (wants(b, 1)) give(b, 1, reduce_to(b, dy, in(b, 1)));
        return;
    case LK__OP_sub:
        if (wants(b, 0)) give(b, 0, reduce_to(b, dy, in(b, 0)));
        if (wants(b, 1)) {
            int down = reduce_to(b, dy, in(b, 1));
            give(b, 1, EMIT1(b, LK__OP_scale, &(lk__op_attrs){.scale = -1}, 1, down));
        }
        return;
    case LK__OP_mul:
        for (int i = 0; i < 2; i++)
            if (wants(b, i)) give(b, i, reduce_to(b, EMIT1(b, LK__OP_mul, NULL, 2, dy, in(b, 1 - i)), in(b, i)));
        return;
    default: { /* y = a / c: da = dy / c, dc = -(dy / c) · y */
        int da = EMIT1(b, LK__OP_div, NULL, 2, dy, in(b, 1));
        if (wants(b, 0)) give(b, 0, reduce_to(b, da, in(b, 0)));
        if (wants(b, 1)) {
            int dc = reduce_to(b, EMIT1(b, LK__OP_mul, NULL, 2, da, out(b, 0)), in(b, 1));
            give(b, 1, EMIT1(b, LK__OP_scale, &(lk__op_attrs){.scale = -1}, 1, dc));
        }
    }
    }
}

static void grad_matmul(backward *b, int dy)
{
    int  a = in(b, 0), c = in(b, 1), rank = shape_of(b, dy).rank;
    bool ta = b->n.attrs.transpose_a, tc = b->n.attrs.transpose_b;
    bool shared_a = shape_of(b, a).rank < rank, shared_c = shape_of(b, c).rank < rank;
    if (wants(b, 0)) { /* dA = dY·Cᵀ, or its transpose C·dYᵀ where A is stored transposed */
        lk__op_attrs attrs = {.transpose_a = ta && tc, .transpose_b = ta || !tc, .mask = shared_a};
        give(b, 0, ta ? EMIT1(b, LK__OP_matmul, &attrs, 2, c, dy) : EMIT1(b, LK__OP_matmul, &attrs, 2, dy, c));
    }
    if (wants(b, 1)) { /* dC = Aᵀ·dY, or dYᵀ·A */
        lk__op_attrs attrs = {.transpose_a = tc || !ta, .transpose_b = tc && ta, .mask = shared_c};
        give(b, 1, tc ? EMIT1(b, LK__OP_matmul, &attrs, 2, dy, a) : EMIT1(b, LK__OP_matmul, &attrs, 2, a, dy));
    }
}

/* dw and, where there is a bias that wants one, db: one node with up to two outputs. */
static void grad_weight(backward *b, lk__op op, const lk__op_attrs *attrs, const int *operands, int inputs)
{
    if (!wants(b, 1) && !wants(b, 2)) return;
    bool            bias = wants(b, 2);
    lk__graph_shape shapes[2] = {shape_of(b, in(b, 1))};
    if (bias) shapes[1] = shape_of(b, in(b, 2));
    int node = lk__emit_shaped(b->g, b->n.site, op, attrs, operands, inputs, shapes, bias ? 2 : 1);
    if (node < 0) return;
    int dw = b->g->nodes[node].out[0], db = bias ? b->g->nodes[node].out[1] : -1;
    if (wants(b, 1)) give(b, 1, dw);
    if (bias) give(b, 2, db);
}

/* The gradient before a fused relu. */
static int before_activation(backward *b, int dy)
{
    if (b->n.attrs.activation == LK__IDENTITY) return dy;
    return EMIT1(b, LK__OP_unary_grad, &(lk__op_attrs){.unary = b->n.attrs.activation}, 2, dy, out(b, 0));
}

static void grad_conv2d(backward *b, int dy)
{
    bool         pooled = b->n.attrs.pool > 1;
    int          index = pooled ? out(b, 1) : -1;
    lk__op_attrs attrs = b->n.attrs;
    if (!pooled) { /* with a pool, the index knows what relu stopped */
        dy = before_activation(b, dy);
        attrs.activation = LK__IDENTITY;
    }
    /* The weight's first: the sooner it is made, the sooner it can be on its way to other ranks. */
    grad_weight(b, LK__OP_conv2d_grad_weight, &attrs, (int[]){in(b, 0), dy, index}, pooled ? 3 : 2);
    if (wants(b, 0)) {
        int operands[] = {dy, in(b, 1), index};
        give(b, 0, emit_like(b, LK__OP_conv2d_grad_input, &attrs, operands, pooled ? 3 : 2, in(b, 0)));
    }
}

static void grad_linear(backward *b, int dy)
{
    dy = before_activation(b, dy);
    grad_weight(b, LK__OP_linear_grad_weight, NULL, (int[]){in(b, 0), dy}, 2); /* first, as above */
    if (wants(b, 0)) {
        int operands[] = {dy, in(b, 1)};
        give(b, 0, emit_like(b, LK__OP_linear_grad_input, NULL, operands, 2, in(b, 0)));
    }
}

/* Norms: one node gives dx, dw and db; `last` is its highest input that may want a gradient. */
static void grad_norm(backward *b, lk__op op, const int *operands, int inputs, int last)
{
    int wanted = 1;
    for (int i = 1; i <= last; i++)
        if (wants(b, i)) wanted |= 1 << i;
    int node = lk__emit(b->g, b->n.site, op, &b->n.attrs, operands, inputs, wanted);
    if (node < 0) return;
    lk__graph_node made = b->g->nodes[node];
    for (int i = 0; i <= last; i++)
        if (wants(b, i)) give(b, i, made.out[i]);
}

/* The sums that go through the statistics are those of all ranks; dw and db are of the rows at hand, like the gradient of
 * any weight. The statistics themselves get no gradient: dx has all of it. */
static void grad_synced_norm(backward *b, int dy)
{
    const lk__op_attrs attrs = b->n.attrs;
    int                y = attrs.activation ? out(b, 0) : -1, mean = out(b, 1), rstd = out(b, 2);
    int                operands[] = {dy, in(b, 0), mean, rstd, y};
    int                wanted = 1 | (wants(b, 1) ? 2 : 0) | (wants(b, 2) ? 4 : 0);
    int node = lk__emit(b->g, b->n.site, LK__OP_batch_norm_grad_stats, &attrs, operands, y < 0 ? 4 : 5, wanted);
    if (node < 0) return;
    lk__graph_node made = b->g->nodes[node];
    for (int i = 1; i <= 2; i++)
        if (wants(b, i)) give(b, i, made.out[i]);
    if (!wants(b, 0)) return;
    int sums = EMIT1(b, LK__OP_sync, NULL, 1, made.out[0]);
    give(b, 0, EMIT1(b, LK__OP_batch_norm_grad_apply, &attrs, 8, dy, in(b, 0), in(b, 1), mean, rstd, y, sums, in(b, 6)));
}

static void grad_concat(backward *b, int dy)
{
    int64_t start = 0;
    for (int i = 0; i < b->n.inputs; i++) {
        int64_t      length = shape_of(b, in(b, i)).dims[b->n.attrs.axis];
        lk__op_attrs part = {.axis = b->n.attrs.axis, .start = start, .length = length};
        if (wants(b, i)) give(b, i, EMIT1(b, LK__OP_slice, &part, 1, dy));
        start += length;
    }
}

static void grad_loss(backward *b, int dy)
{
    lk__op op = b->n.op == LK__OP_mse ? LK__OP_mse_grad : LK__OP_cross_entropy_grad;
    int    dloss = dy == ONE ? -1 : dy;
    if (op == LK__OP_cross_entropy_grad) {
        if (wants(b, 0)) give(b, 0, EMIT1(b, op, &b->n.attrs, 4, out(b, 3), in(b, 1), in(b, 2), dloss));
        return;
    }
    for (int i = 0; i < 2; i++)
        if (wants(b, i)) give(b, i, EMIT1(b, op, &b->n.attrs, 3, in(b, i), in(b, 1 - i), dloss));
}

static void grad_unary(backward *b, int dy)
{
    lk__op_unary u = b->n.attrs.unary;
    int          saved = u == LK__RELU || u == LK__SIGMOID || u == LK__TANH ? out(b, 0) : in(b, 0);
    give(b, 0, EMIT1(b, LK__OP_unary_grad, &b->n.attrs, 2, dy, saved));
}

static void grad_permute(backward *b, int dy)
{
    lk__op_attrs inverse = {0};
    for (int i = 0; i < shape_of(b, dy).rank; i++) inverse.axes[b->n.attrs.axes[i]] = i;
    give(b, 0, EMIT1(b, LK__OP_permute, &inverse, 1, dy));
}

static void grad_node(backward *b, int dy)
{
    const lk__op_attrs *a = &b->n.attrs;
    switch (b->n.op) {
    case LK__OP_conv2d: grad_conv2d(b, dy); return;
    case LK__OP_linear: grad_linear(b, dy); return;
    case LK__OP_matmul: grad_matmul(b, dy); return;
    case LK__OP_add:
    case LK__OP_sub:
    case LK__OP_mul:
    case LK__OP_div: grad_binary(b, dy); return;
    case LK__OP_unary: grad_unary(b, dy); return;
    case LK__OP_scale: give(b, 0, EMIT1(b, LK__OP_scale, a, 1, dy)); return;
    case LK__OP_dropout: give(b, 0, EMIT1(b, LK__OP_dropout, a, 1, dy)); return;
    case LK__OP_softmax: give(b, 0, EMIT1(b, LK__OP_softmax_grad, a, 2, dy, out(b, 0))); return;
    case LK__OP_log_softmax: give(b, 0, EMIT1(b, LK__OP_log_softmax_grad, a, 2, dy, out(b, 0))); return;
    case LK__OP_max_pool2d:
        give(b, 0, emit_like(b, LK__OP_max_pool2d_grad, a, (int[]){dy, out(b, 1)}, 2, in(b, 0)));
        return;
    case LK__OP_avg_pool2d: give(b, 0, emit_like(b, LK__OP_avg_pool2d_grad, a, &dy, 1, in(b, 0))); return;
    case LK__OP_global_avg_pool2d: give(b, 0, emit_like(b, LK__OP_global_avg_pool2d_grad, a, &dy, 1, in(b, 0))); return;
    case LK__OP_layer_norm: {
        int operands[] = {dy, in(b, 0), in(b, 1), out(b, 1), out(b, 2)};
        grad_norm(b, LK__OP_layer_norm_grad, operands, 5, 2);
        return;
    }
    case LK__OP_rms_norm: {
        int operands[] = {dy, in(b, 0), in(b, 1), out(b, 1)};
        grad_norm(b, LK__OP_rms_norm_grad, operands, 4, 1);
        return;
    }
    case LK__OP_batch_norm: {
        int operands[] = {dy, in(b, 0), in(b, 1), out(b, 1), out(b, 2), out(b, 0)};
        grad_norm(b, LK__OP_batch_norm_grad, operands, a->activation ? 6 : 5, 2);
        return;
    }
    case LK__OP_batch_norm_apply: grad_synced_norm(b, dy); return;
    case LK__OP_batch_norm_eval: {
        int operands[] = {before_activation(b, dy), in(b, 0), in(b, 1), in(b, 3), in(b, 4)};
        grad_norm(b, LK__OP_batch_norm_eval_grad, operands, 5, 2);
        return;
    }
    case LK__OP_embedding:
        if (wants(b, 1)) give(b, 1, emit_like(b, LK__OP_embedding_grad, a, (int[]){in(b, 0), dy}, 2, in(b, 1)));
        return;
    case LK__OP_reshape: give(b, 0, emit_like(b, LK__OP_reshape, NULL, &dy, 1, in(b, 0))); return;
    case LK__OP_permute: grad_permute(b, dy); return;
    case LK__OP_slice: give(b, 0, emit_like(b, LK__OP_slice_grad, a, &dy, 1, in(b, 0))); return;
    case LK__OP_concat: grad_concat(b, dy); return;
    case LK__OP_sum: give(b, 0, emit_like(b, LK__OP_expand, a, &dy, 1, in(b, 0))); return;
    case LK__OP_cross_entropy:
    case LK__OP_mse: grad_loss(b, dy); return;
    default: lk__graph_fail(b->g, b->n.site, "%s has no gradient", lk__op_name(b->n.op));
    }
}

/* The outermost block around `block` that is to be recomputed, or 0. */
static int recomputed_block(const lk_graph *g, int block)
{
    int found = 0;
    for (; block > 0; block = g->blocks[block].parent)
        if (g->blocks[block].recompute) found = block;
    return found;
}

/* Records the nodes of a block again, from its inputs; backward then reads the twins. Running statistics are not updated twice;
 * dropout's numbers depend on its stream alone, so they come out the same. Sums over all ranks are kept: they are small,
 * and would have to travel again. */
static void recompute(backward *b, int block, size_t forward_nodes)
{
    lk_graph *g = b->g;
    for (size_t i = 0; i < forward_nodes && fit(b); i++) {
        lk__graph_node n = g->nodes[i];
        if (n.dead || recomputed_block(g, n.block) != block) continue;
        if (n.op == LK__OP_batch_norm_stats || n.op == LK__OP_sync) continue;
        lk__graph_shape shapes[LK__MAX_OUT] = {{0}};
        for (int j = 0; j < n.inputs; j++)
            if (n.in[j] >= 0) n.in[j] = b->now[n.in[j]];
        for (int j = 0; j < n.outputs; j++)
            if (n.out[j] >= 0) shapes[j] = g->values[n.out[j]].shape;
        n.attrs.update = false;
        int twin = lk__emit_shaped(g, n.site, n.op, &n.attrs, n.in, n.inputs, shapes, n.outputs);
        if (twin < 0 || !fit(b)) return;
        for (int j = 0; j < n.outputs; j++)
            if (n.out[j] >= 0) b->now[n.out[j]] = g->nodes[twin].out[j];
    }
}

/* The value that a chain of reshapes starts from: two parameters must not share one as their gradient. */
static int root(const lk_graph *g, int value)
{
    while (value >= 0 && g->values[value].kind == LK__VALUE_RESULT &&
           g->nodes[g->values[value].node].op == LK__OP_reshape)
        value = g->nodes[g->values[value].node].in[0];
    return value;
}

static void collect(backward *b, int *gradients)
{
    lk_graph *g = b->g;
    for (size_t i = 0; i < g->states_count && fit(b); i++) {
        gradients[i] = NONE;
        const lk__graph_state *s = &g->states[i];
        if (s->buffer || s->frozen) continue;
        int  own = b->gradient[s->value];
        bool taken = own >= 0 && g->values[root(g, own)].kind != LK__VALUE_RESULT;
        for (size_t j = 0; j < i && own >= 0; j++)
            taken = taken || (gradients[j] >= 0 && root(g, gradients[j]) == root(g, own));
        b->n.site = s->site;
        gradients[i] = taken ? EMIT1(b, LK__OP_scale, &(lk__op_attrs){.scale = 1}, 1, own) : own;
    }
}

lk_status lk__graph_grad(lk_graph *g, int loss, int *gradients)
{
    backward b = {.g = g};
    size_t   forward_nodes = g->nodes_count;
    int      last_block = 0;
    if (!fit(&b)) goto done;
    const lk__graph_value *v = &g->values[loss];
    lk__op                 op = v->kind == LK__VALUE_RESULT ? g->nodes[v->node].op : LK__OP_COUNT;
    if (lk__shape_elements(&v->shape) != 1 || v->shape.count_axis >= 0) {
        lk__graph_fail(g, v->site, "the loss must be a single number; sum it or take its mean");
        goto done;
    }
    if (!v->needs_gradient) {
        lk__graph_fail(g, v->site, "the loss depends on no trainable parameter");
        goto done;
    }
    if (op == LK__OP_cross_entropy || op == LK__OP_mse) {
        b.gradient[loss] = ONE;
    } else {
        lk__graph_shape shape = v->shape;
        int node = lk__emit_shaped(g, v->site, LK__OP_fill, &(lk__op_attrs){.scale = 1}, NULL, 0, &shape, 1);
        if (!fit(&b)) goto done;
        b.gradient[loss] = g->nodes[node].out[0];
    }
    for (size_t i = forward_nodes; i-- > 0 && g->status == LK_OK;) {
        b.n = g->nodes[i];
        int dy = b.n.dead || b.n.out[0] < 0 ? NONE : b.gradient[b.n.out[0]];
        if (dy == NONE || !g->values[b.n.out[0]].needs_gradient) continue;
        g->block = b.n.block;
        int block = recomputed_block(g, b.n.block);
        if (block && block != last_block) {
            lk__graph_node keep = b.n;
            recompute(&b, block, forward_nodes);
            b.n = keep;
        }
        last_block = block;
        grad_node(&b, dy);
        fit(&b);
    }
    g->block = 0;
    collect(&b, gradients);
done:
    lk__free(g->context, LK_MEMORY_OTHER, b.gradient, b.capacity * sizeof(int));
    lk__free(g->context, LK_MEMORY_OTHER, b.now, b.now_capacity * sizeof(int));
    return g->status;
}
