/* contraction.c - operations bound by arithmetic: linear, matmul, conv2d, and their gradients. */
#include "graph/op/describe.h"

/* dw and, where there is a bias that needs it, db: one node with up to two outputs. */
static void give_weight_gradient(lk__graph_backward *b, lk__op op, const lk__op_attrs *attrs, const int *operands,
                                 int inputs)
{
    bool bias = lk__grad_wants(b, 2);
    if (!lk__grad_wants(b, 1) && !bias) return;
    lk__graph_shape shapes[2] = {lk__grad_shape(b, lk__grad_in(b, 1))};
    if (bias) shapes[1] = lk__grad_shape(b, lk__grad_in(b, 2));
    int node = lk__emit_shaped(b->g, b->n.site, op, attrs, operands, inputs, shapes, bias ? 2 : 1);
    if (node < 0) return;
    int dw = b->g->nodes[node].out[0], db = bias ? b->g->nodes[node].out[1] : -1;
    if (lk__grad_wants(b, 1)) lk__grad_give(b, 1, dw);
    if (bias) lk__grad_give(b, 2, db);
}

/* ---- linear ---- */

static int linear_shape(lk__graph_shapes *s)
{
    const lk__graph_shape *x = s->in[0], *w = s->in[1], *b = s->inputs > 2 ? s->in[2] : NULL;
    int                    in = s->attrs->transposed ? 0 : 1; /* the axis of the weight */
    if (w->rank != 2)
        return LK__SHAPE_FAIL(s, "linear: weight has shape %s; expected %s", lk__shape_show(w).text,
                              in == 0 ? "(in, out)" : "(out, in)");
    if (x->rank < 1 || x->dims[x->rank - 1] != w->dims[in])
        return LK__SHAPE_FAIL(s, "linear: x %s has %lld features, but weight %s expects %lld", lk__shape_show(x).text,
                              (long long)(x->rank ? x->dims[x->rank - 1] : 1), lk__shape_show(w).text,
                              (long long)w->dims[in]);
    if (x->count_axis == x->rank - 1)
        return LK__SHAPE_FAIL(s, "linear: the features of x %s cannot be the batch axis", lk__shape_show(x).text);
    if (b && (b->rank != 1 || b->dims[0] != w->dims[1 - in]))
        return LK__SHAPE_FAIL(s, "linear: bias %s does not match weight %s", lk__shape_show(b).text,
                              lk__shape_show(w).text);
    if (!lk__shape_check_weights(s, 2)) return -1;
    s->out[0] = *x;
    s->out[0].dims[x->rank - 1] = w->dims[1 - in];
    return 1;
}

static void linear_gradient(lk__graph_backward *b, int dy)
{
    lk__op_attrs attrs = {.transposed = b->n.attrs.transposed};
    dy = lk__grad_before_activation(b, dy);
    /* The weight's first, so that it can be reduced over the ranks earlier. */
    give_weight_gradient(b, LK__OP_linear_grad_weight, &attrs, (int[]){lk__grad_in(b, 0), dy}, 2);
    if (!lk__grad_wants(b, 0)) return;
    int operands[] = {dy, lk__grad_in(b, 1)};
    lk__grad_give(b, 0, lk__grad_emit_like(b, LK__OP_linear_grad_input, &attrs, operands, 2, lk__grad_in(b, 0)));
}

static double linear_arithmetic(const lk_graph *g, const lk__graph_node *n)
{
    return 2 * elements(g, n->out[0]) * (double)g->values[n->in[1]].shape.dims[n->attrs.transposed ? 0 : 1];
}

static double linear_grad_input_arithmetic(const lk_graph *g, const lk__graph_node *n)
{
    return 2 * elements(g, n->out[0]) * (double)g->values[n->in[1]].shape.dims[n->attrs.transposed ? 1 : 0];
}

static double linear_grad_weight_arithmetic(const lk_graph *g, const lk__graph_node *n)
{
    return 2 * elements(g, n->in[0]) * (double)g->values[n->out[0]].shape.dims[n->attrs.transposed ? 1 : 0];
}

DESCRIBE(linear){
    .factors = "x(rows.., in) weight(out, in)@transposed +bias(out) -> y(rows.., out) before(rows.., out)"
               "; ^activation",
    .inputs = 3,
    .in = {OPERAND("x", REAL, REQUIRED, ROWS), OPERAND("weight", REAL, REQUIRED, ROWS),
           OPERAND("bias", REAL, OPTIONAL, ROWS)},
    .outputs = 2,
    .out = {OPERAND("y", PRODUCT, REQUIRED, ROWS), OPERAND("before", REAL, IF_READ, ROWS)},
    .attributes = LK__HAS(activation) | LK__HAS(transposed) | LK__HAS(sum),
    .shape = linear_shape,
    .gradient = linear_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    .leaves = LK__LEAVES_SEPARATE,
    .runs = LK__RUNS_KERNEL,
    .effect = LK__EFFECT_NONE,
    .evaluation = LK__EVALUATE_SAME,
    .recompute = LK__RECOMPUTE,
    .fuse = {{LK__FUSION_FUNCTION}, {LK__FUSION_KEPT, .operand = 1, .late = true}},
    .loss = LK__LOSS_NO,
    .matmul = 1u << 0 | 1u << 1,
    .arithmetic = linear_arithmetic,
    .bytes = lk__bytes_operands,
};

/* What it adds and multiplies by is set by plan/fuse.c alone. */
DESCRIBE(linear_grad_input){
    .factors = "dy(rows.., out) weight(out, in)@transposed ^before(rows.., in) +residual(rows.., in) -> dx(rows.., in)",
    .inputs = 4,
    .in = {OPERAND("dy", REAL, REQUIRED, ROWS), OPERAND("weight", REAL, REQUIRED, ROWS),
           OPERAND("before", REAL, OPTIONAL, ROWS), OPERAND("residual", REAL, OPTIONAL, ROWS)},
    .outputs = 1,
    .out = {OPERAND("dx", PRODUCT, REQUIRED, ROWS)},
    .attributes = LK__HAS(activation) | LK__HAS(transposed) | LK__HAS(sum),
    BACKWARD_ONLY,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY_BUT_FUSION,
    .fuse = {{LK__FUSION_SUM, .operand = 3, .late = true}, {LK__FUSION_GRADIENT, .operand = 2, .late = true}},
    .matmul = 1u << 0 | 1u << 1,
    .arithmetic = linear_grad_input_arithmetic,
    .bytes = lk__bytes_operands,
};

DESCRIBE(linear_grad_weight){
    .factors = "x(rows.., in) dy(rows.., out) +sum(out, in)@transposed -> dw(out, in)@transposed db(out):dy",
    .inputs = 3, /* sum: of other rows, to which dw is added */
    .in = {OPERAND("x", REAL, REQUIRED, ROWS), OPERAND("dy", REAL, REQUIRED, ROWS),
           OPERAND("sum", WIDE, OPTIONAL, ROWS)},
    .outputs = 2,
    .out = {OPERAND("dw", WIDE, REQUIRED, ROWS), OPERAND("db", WIDE, OPTIONAL, ROWS)},
    .attributes = LK__HAS(transposed),
    BACKWARD_ONLY,
    .no_gradient = LK__NO_OPERAND,
    .in_place = 1u << 2,
    .leaves = LK__LEAVES_ADDED,
    .runs = LK__RUNS_KERNEL,
    .effect = LK__EFFECT_NONE,
    .evaluation = LK__EVALUATE_SAME,
    .recompute = LK__RECOMPUTE,
    .fuse = LK__FUSE_NOTHING,
    .loss = LK__LOSS_NO,
    .matmul = 1u << 0 | 1u << 1,
    .arithmetic = linear_grad_weight_arithmetic,
    .bytes = lk__bytes_operands,
};

/* ---- matmul ---- */

/* Batch axes: equal, or one operand has none. */
static bool batch_axes_fit(const lk__graph_shape *a, const lk__graph_shape *b)
{
    if (a->rank != b->rank) return a->rank == 2 || b->rank == 2;
    for (int i = 0; i < a->rank - 2; i++)
        if (a->dims[i] != b->dims[i] || (a->count_axis == i) != (b->count_axis == i)) return false;
    return true;
}

static int matmul_shape(lk__graph_shapes *s)
{
    const lk__graph_shape *a = s->in[0], *b = s->in[1];
    if (a->rank < 2 || b->rank < 2)
        return LK__SHAPE_FAIL(s, "matmul: %s × %s: each operand needs at least two axes", lk__shape_show(a).text,
                              lk__shape_show(b).text);
    int                    ma = a->rank - 2 + s->attrs->transpose_a, ka = a->rank - 1 - s->attrs->transpose_a;
    int                    kb = b->rank - 2 + s->attrs->transpose_b, nb = b->rank - 1 - s->attrs->transpose_b;
    bool                   same_count = (a->count_axis == ka) == (b->count_axis == kb);
    const lk__graph_shape *batch = a->rank >= b->rank ? a : b;
    if (a->dims[ka] != b->dims[kb] || !same_count)
        return LK__SHAPE_FAIL(s, "matmul: %s × %s: the inner axes differ: %lld and %lld", lk__shape_show(a).text,
                              lk__shape_show(b).text, (long long)a->dims[ka], (long long)b->dims[kb]);
    if (!batch_axes_fit(a, b))
        return LK__SHAPE_FAIL(s, "matmul: the batch axes of %s and %s differ", lk__shape_show(a).text,
                              lk__shape_show(b).text);
    lk__graph_shape y = lk__shape_fixed(a->dtype, batch->rank, batch->dims);
    for (int i = 0; i < y.rank - 2; i++) lk__shape_carry_count(&y, batch, i, i);
    if ((y.count_axis >= 0) + (a->count_axis == ma) + (b->count_axis == nb) > 1)
        return LK__SHAPE_FAIL(s, "matmul: the result of %s × %s would have two batch axes", lk__shape_show(a).text,
                              lk__shape_show(b).text);
    y.dims[y.rank - 2] = a->dims[ma];
    y.dims[y.rank - 1] = b->dims[nb];
    lk__shape_carry_count(&y, a, ma, y.rank - 2);
    lk__shape_carry_count(&y, b, nb, y.rank - 1);
    if (s->attrs->sum_batch) { /* the gradient of a shared operand: summed over the batch */
        int64_t         dims[2] = {y.dims[y.rank - 2], y.dims[y.rank - 1]};
        lk__graph_shape shared = lk__shape_fixed(y.dtype, 2, dims);
        lk__shape_carry_count(&shared, &y, y.rank - 2, 0);
        lk__shape_carry_count(&shared, &y, y.rank - 1, 1);
        y = shared;
    }
    s->out[0] = y;
    return 1;
}

static int emit_matmul(lk__graph_backward *b, const lk__op_attrs *attrs, int first, int second)
{
    return LK__GRAD_EMIT(b, LK__OP_matmul, attrs, 2, first, second);
}

static void matmul_gradient(lk__graph_backward *b, int dy)
{
    int  a = lk__grad_in(b, 0), c = lk__grad_in(b, 1), rank = lk__grad_shape(b, dy).rank;
    bool ta = b->n.attrs.transpose_a, tc = b->n.attrs.transpose_b;
    bool shared_a = lk__grad_shape(b, a).rank < rank, shared_c = lk__grad_shape(b, c).rank < rank;
    if (lk__grad_wants(b, 0)) { /* dA = dY·Cᵀ, or its transpose C·dYᵀ where A is stored transposed */
        lk__op_attrs attrs = {.transpose_a = ta && tc, .transpose_b = ta || !tc, .sum_batch = shared_a};
        lk__grad_give(b, 0, ta ? emit_matmul(b, &attrs, c, dy) : emit_matmul(b, &attrs, dy, c));
    }
    if (lk__grad_wants(b, 1)) { /* dC = Aᵀ·dY, or dYᵀ·A */
        lk__op_attrs attrs = {.transpose_a = tc || !ta, .transpose_b = tc && ta, .sum_batch = shared_c};
        lk__grad_give(b, 1, tc ? emit_matmul(b, &attrs, dy, a) : emit_matmul(b, &attrs, a, dy));
    }
}

static double matmul_arithmetic(const lk_graph *g, const lk__graph_node *n)
{
    const lk__graph_shape *a = &g->values[n->in[0]].shape;
    return 2 * elements(g, n->out[0]) * (double)a->dims[a->rank - (n->attrs.transpose_a ? 2 : 1)];
}

DESCRIBE(matmul){
    .factors = "a(batch.., m, k)@transpose_a b(batch.., k, n)@transpose_b -> y(batch.., m, n)",
    .inputs = 2,
    .in = {OPERAND("a", REAL, REQUIRED, ROWS), OPERAND("b", REAL, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("y", PRODUCT, REQUIRED, ROWS)},
    .attributes = LK__HAS(transpose_a) | LK__HAS(transpose_b) | LK__HAS(sum_batch) | LK__HAS(sum),
    .shape = matmul_shape,
    .gradient = matmul_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    .matmul = 1u << 0 | 1u << 1,
    .arithmetic = matmul_arithmetic,
    .bytes = lk__bytes_operands,
};

/* ---- conv2d ---- */

static int conv2d_shape(lk__graph_shapes *s)
{
    const lk__graph_shape *x = s->in[0], *w = s->in[1], *b = s->inputs > 2 ? s->in[2] : NULL;
    int64_t                groups = s->attrs->groups;
    if (x->rank != 4) return LK__SHAPE_FAIL(s, "conv2d: x has shape %s; expected (N, C, H, W)", lk__shape_show(x).text);
    if (w->rank != 4)
        return LK__SHAPE_FAIL(s, "conv2d: weight has shape %s; expected (O, C/groups, kh, kw)", lk__shape_show(w).text);
    if (groups < 1 || x->dims[1] % groups || w->dims[0] % groups)
        return LK__SHAPE_FAIL(s, "conv2d: %lld groups do not divide %lld input and %lld output channels",
                              (long long)groups, (long long)x->dims[1], (long long)w->dims[0]);
    if (w->dims[1] * groups != x->dims[1])
        return LK__SHAPE_FAIL(s, "conv2d: x %s has %lld channels, but weight %s expects %lld", lk__shape_show(x).text,
                              (long long)x->dims[1], lk__shape_show(w).text, (long long)(w->dims[1] * groups));
    if (b && (b->rank != 1 || b->dims[0] != w->dims[0]))
        return LK__SHAPE_FAIL(s, "conv2d: bias %s does not match weight %s", lk__shape_show(b).text,
                              lk__shape_show(w).text);
    if (!lk__shape_check_weights(s, 2) || lk__shape_window(s, w->dims[0], w->dims[2], w->dims[3]) < 0) return -1;
    if (s->attrs->pool <= 1) return 1;
    s->out[0].dims[2] /= s->attrs->pool;
    s->out[0].dims[3] /= s->attrs->pool;
    s->out[1] = s->out[0];
    s->out[1].dtype = LK_U8;
    return 2;
}

static void conv2d_gradient(lk__graph_backward *b, int dy)
{
    bool         pooled = b->n.attrs.pool > 1;
    int          index = pooled ? lk__grad_out(b, 1) : -1;
    lk__op_attrs attrs = b->n.attrs;
    if (!pooled) { /* with a pool, the index marks where relu's gradient is zero */
        dy = lk__grad_before_activation(b, dy);
        attrs.activation = LK__IDENTITY;
    }
    give_weight_gradient(b, LK__OP_conv2d_grad_weight, &attrs, (int[]){lk__grad_in(b, 0), dy, index}, pooled ? 3 : 2);
    if (!lk__grad_wants(b, 0)) return;
    int operands[] = {dy, lk__grad_in(b, 1), index};
    lk__grad_give(b, 0,
                  lk__grad_emit_like(b, LK__OP_conv2d_grad_input, &attrs, operands, pooled ? 3 : 2, lk__grad_in(b, 0)));
}

/* Each element before the pool needs one product per weight of its channel; a fused pool keeps one of p × p
 * elements. */
static double conv2d_products(const lk_graph *g, const lk__graph_node *n, int y, int weight)
{
    const lk__graph_shape *w = &g->values[weight].shape;
    return 2 * elements(g, y) * (double)(n->attrs.pool > 1 ? n->attrs.pool * n->attrs.pool : 1) *
           (double)(w->dims[1] * w->dims[2] * w->dims[3]);
}

static double conv2d_arithmetic(const lk_graph *g, const lk__graph_node *n)
{
    return conv2d_products(g, n, n->out[0], n->in[1]);
}
static double conv2d_grad_input_arithmetic(const lk_graph *g, const lk__graph_node *n)
{
    return conv2d_products(g, n, n->in[0], n->in[1]);
}
static double conv2d_grad_weight_arithmetic(const lk_graph *g, const lk__graph_node *n)
{
    return conv2d_products(g, n, n->in[1], n->out[0]);
}

#define CONV2D_ATTRIBUTES LK__HAS(activation) | LK__HAS(pool) | LK__HAS(stride) | LK__HAS(padding) | LK__HAS(groups)

DESCRIBE(conv2d){
    .factors = "x(n, g*c, !h, !w) weight(g*o, c, !kh, !kw) +bias(g*o) -> y(n, g*o, !yh, !yw) index(n, g*o, yh, yw)"
               "; g=groups; ^activation; ^pool",
    .inputs = 3,
    .in = {OPERAND("x", REAL, REQUIRED, LAST), OPERAND("weight", REAL, REQUIRED, ROWS),
           OPERAND("bias", REAL, OPTIONAL, ROWS)},
    .outputs = 2,
    .out = {OPERAND("y", PRODUCT, REQUIRED, LAST), OPERAND("index", U8, OPTIONAL, LAST)},
    .attributes = CONV2D_ATTRIBUTES | LK__HAS(sum),
    .shape = conv2d_shape,
    .gradient = conv2d_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    .leaves = LK__LEAVES_SEPARATE,
    .runs = LK__RUNS_KERNEL,
    .effect = LK__EFFECT_NONE,
    .evaluation = LK__EVALUATE_SAME,
    .recompute = LK__RECOMPUTE,
    .fuse = {{LK__FUSION_FUNCTION}, {LK__FUSION_MAX_POOL}},
    .loss = LK__LOSS_NO,
    .arithmetic = conv2d_arithmetic,
    .bytes = lk__bytes_operands,
};

DESCRIBE(conv2d_grad_input){
    .factors = "dy(n, g*o, !yh, !yw) weight(g*o, c, !kh, !kw) index(n, g*o, yh, yw) -> dx(n, g*c, !h, !w)"
               "; g=groups",
    .inputs = 3,
    .in = {OPERAND("dy", REAL, REQUIRED, LAST), OPERAND("weight", REAL, REQUIRED, ROWS),
           OPERAND("index", U8, OPTIONAL, LAST)},
    .outputs = 1,
    .out = {OPERAND("dx", PRODUCT, REQUIRED, LAST)},
    .attributes = CONV2D_ATTRIBUTES | LK__HAS(sum),
    BACKWARD_ONLY,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    .arithmetic = conv2d_grad_input_arithmetic,
    .bytes = lk__bytes_operands,
};

DESCRIBE(conv2d_grad_weight){
    .factors = "x(n, g*c, !h, !w) dy(n, g*o, !yh, !yw) index(n, g*o, yh, yw) -> dw(g*o, c, !kh, !kw) db(g*o):dy"
               "; g=groups",
    .inputs = 3,
    .in = {OPERAND("x", REAL, REQUIRED, LAST), OPERAND("dy", REAL, REQUIRED, LAST),
           OPERAND("index", U8, OPTIONAL, LAST)},
    .outputs = 2,
    .out = {OPERAND("dw", WIDE, REQUIRED, ROWS), OPERAND("db", WIDE, OPTIONAL, ROWS)},
    .attributes = CONV2D_ATTRIBUTES,
    BACKWARD_ONLY,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    .arithmetic = conv2d_grad_weight_arithmetic,
    .bytes = lk__bytes_operands,
};
