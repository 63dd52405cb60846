/* elementwise.c - each element of the result depends on one element of each operand: arithmetic with broadcasting,
 * functions of one value, dropout, fills. */
#include "graph/op/describe.h"

/* ---- add, sub, mul, div ---- */

/* The shape that a and b broadcast to, with b's type, in *to; -1: they do not. */
static int broadcast_pair(lk__graph_shapes *s, const lk__graph_shape *a, const lk__graph_shape *b, lk__graph_shape *to)
{
    lk__graph_shape y = {
        .dtype = b->dtype, .rank = a->rank > b->rank ? a->rank : b->rank, .count_axis = -1, .count_unit = 1};
    for (int i = 0; i < y.rank; i++) { /* i counts from the last axis */
        int     ia = a->rank - 1 - i, ib = b->rank - 1 - i, iy = y.rank - 1 - i;
        int64_t da = ia >= 0 ? a->dims[ia] : 1, db = ib >= 0 ? b->dims[ib] : 1;
        bool    ca = ia >= 0 && a->count_axis == ia, cb = ib >= 0 && b->count_axis == ib;
        bool    fits =
            da == db ? ca == cb && (!ca || a->count_unit == b->count_unit) : (da == 1 && !ca) || (db == 1 && !cb);
        if (da == 1 && db == 1 && ca != cb) fits = true; /* a batch of capacity 1 against a constant */
        if (!fits)
            return LK__SHAPE_FAIL(s, "%s: shapes %s and %s do not broadcast%s", lk__op_name(s->op),
                                  lk__shape_show(a).text, lk__shape_show(b).text,
                                  da == db ? " (one is the batch axis, the other is not)" : "");
        if ((ca || cb) && y.count_axis >= 0)
            return LK__SHAPE_FAIL(s, "%s: the result of %s and %s would have two batch axes", lk__op_name(s->op),
                                  lk__shape_show(a).text, lk__shape_show(b).text);
        y.dims[iy] = da > db ? da : db;
        if (ca) lk__shape_carry_count(&y, a, ia, iy);
        if (cb) lk__shape_carry_count(&y, b, ib, iy);
    }
    *to = y;
    return 1;
}

static int broadcast_shape(lk__graph_shapes *s) { return broadcast_pair(s, s->in[0], s->in[1], &s->out[0]); }

static int negate(lk__graph_backward *b, int x)
{
    return LK__GRAD_EMIT(b, LK__OP_scale, &(lk__op_attrs){.scale = -1}, 1, x);
}

static void add_gradient(lk__graph_backward *b, int dy)
{
    for (int i = 0; i < 2; i++)
        if (lk__grad_wants(b, i)) lk__grad_give(b, i, lk__grad_reduce_to(b, dy, lk__grad_in(b, i)));
}

static void sub_gradient(lk__graph_backward *b, int dy)
{
    if (lk__grad_wants(b, 0)) lk__grad_give(b, 0, lk__grad_reduce_to(b, dy, lk__grad_in(b, 0)));
    if (lk__grad_wants(b, 1)) lk__grad_give(b, 1, negate(b, lk__grad_reduce_to(b, dy, lk__grad_in(b, 1))));
}

static void mul_gradient(lk__graph_backward *b, int dy)
{
    for (int i = 0; i < 2; i++) {
        if (!lk__grad_wants(b, i)) continue;
        int product = LK__GRAD_EMIT(b, LK__OP_mul, NULL, 2, dy, lk__grad_in(b, 1 - i));
        lk__grad_give(b, i, lk__grad_reduce_to(b, product, lk__grad_in(b, i)));
    }
}

/* y = a / c: da = dy / c, dc = -(dy / c) · y */
static void div_gradient(lk__graph_backward *b, int dy)
{
    int da = LK__GRAD_EMIT(b, LK__OP_div, NULL, 2, dy, lk__grad_in(b, 1));
    if (lk__grad_wants(b, 0)) lk__grad_give(b, 0, lk__grad_reduce_to(b, da, lk__grad_in(b, 0)));
    if (!lk__grad_wants(b, 1)) return;
    int product = LK__GRAD_EMIT(b, LK__OP_mul, NULL, 2, da, lk__grad_out(b, 0));
    lk__grad_give(b, 1, negate(b, lk__grad_reduce_to(b, product, lk__grad_in(b, 1))));
}

#define BINARY(rule)                                                                            \
    {                                                                                           \
        .factors = "a(d..) b(d..) -> y(d..)", \
        .inputs = 2, .in = {OPERAND("a", REAL, REQUIRED, FOLLOW), OPERAND("b", REAL, REQUIRED, FOLLOW)}, \
        .outputs = 1, .out = {OPERAND("y", REAL, REQUIRED, FOLLOW)},                           \
        .attributes = LK__NO_ATTRIBUTES, .shape = broadcast_shape, .gradient = rule,            \
        .no_gradient = LK__NO_OPERAND, .in_place = 1u << 0 | 1u << 1, ORDINARY, MEMORY_BOUND    \
    }
DESCRIBE(add) BINARY(add_gradient);
DESCRIBE(sub) BINARY(sub_gradient);
DESCRIBE(mul) BINARY(mul_gradient);
DESCRIBE(div) BINARY(div_gradient);

/* ---- where ---- */

static int where_shape(lk__graph_shapes *s)
{
    lk__graph_shape both;
    if (broadcast_pair(s, s->in[1], s->in[2], &both) < 0) return -1;
    return broadcast_pair(s, s->in[0], &both, &s->out[0]);
}

/* Each operand gets dy where it was selected, 0 elsewhere. */
static void where_gradient(lk__graph_backward *b, int dy)
{
    lk__graph_shape scalar = lk__shape_scalar(lk__grad_shape(b, dy).dtype);
    int             fill = lk__emit_shaped(b->g, b->n.site, LK__OP_fill, NULL, NULL, 0, &scalar, 1);
    if (fill < 0) return;
    int zero = b->g->nodes[fill].out[0], condition = lk__grad_in(b, 0);
    for (int i = 1; i <= 2; i++) {
        if (!lk__grad_wants(b, i)) continue;
        int taken = LK__GRAD_EMIT(b, LK__OP_where, NULL, 3, condition, i == 1 ? dy : zero, i == 1 ? zero : dy);
        lk__grad_give(b, i, lk__grad_reduce_to(b, taken, lk__grad_in(b, i)));
    }
}

/* Row-major: a condition of another type has no other layout. */
DESCRIBE(where){
    .factors = "condition(d..) a(d..) b(d..) -> y(d..)",
    .inputs = 3,
    .in = {OPERAND("condition", ANY, REQUIRED, ROWS), OPERAND("a", REAL, REQUIRED, ROWS),
           OPERAND("b", REAL, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("y", REAL, REQUIRED, ROWS)},
    .attributes = LK__NO_ATTRIBUTES,
    .shape = where_shape,
    .gradient = where_gradient,
    .no_gradient = 1u << 0,
    .in_place = 1u << 1 | 1u << 2,
    ORDINARY,
    MEMORY_BOUND,
};

/* ---- functions of one value ---- */

#define UNARY_ATTRIBUTES LK__HAS(unary) | LK__HAS(exponent) | LK__HAS(minimum) | LK__HAS(maximum) | LK__HAS(slope)

static int unary_shape(lk__graph_shapes *s)
{
    const lk__op_attrs *a = s->attrs;
    if (!(a->exponent - a->exponent == 0) || !(a->slope - a->slope == 0)) /* neither NaN nor infinite */
        return LK__SHAPE_FAIL(s, "%s: %g is not a finite number", lk__unary_name(a->unary),
                              a->unary == LK__POW ? a->exponent : a->slope);
    if (a->minimum != a->minimum || a->maximum != a->maximum)
        return LK__SHAPE_FAIL(s, "clamp: the bounds %g and %g must not be NaN", a->minimum, a->maximum);
    return lk__shape_same(s);
}

static void unary_gradient(lk__graph_backward *b, int dy)
{
    int saved = lk__unary_saves_result(b->n.attrs.unary) ? lk__grad_out(b, 0) : lk__grad_in(b, 0);
    lk__grad_give(b, 0, LK__GRAD_EMIT(b, LK__OP_unary_grad, &b->n.attrs, 2, dy, saved));
}

DESCRIBE(unary){
    .factors = "x(d..) -> y(d..)",
    .inputs = 1,
    .in = {OPERAND("x", REAL, REQUIRED, FOLLOW)},
    .outputs = 1,
    .out = {OPERAND("y", REAL, REQUIRED, FOLLOW)},
    .attributes = UNARY_ATTRIBUTES,
    .shape = unary_shape,
    .gradient = unary_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = 1u << 0,
    ORDINARY,
    MEMORY_BOUND,
};

DESCRIBE(unary_grad){
    .factors = "dy(d..) saved(d..) -> dx(d..)",
    .inputs = 2,
    .in = {OPERAND("dy", REAL, REQUIRED, FOLLOW), OPERAND("saved", REAL, REQUIRED, FOLLOW)},
    .outputs = 1,
    .out = {OPERAND("dx", REAL, REQUIRED, FOLLOW)},
    .attributes = UNARY_ATTRIBUTES,
    .shape = lk__shape_same,
    .gradient = lk__gradient_none,
    .no_gradient = LK__NO_OPERAND,
    .in_place = 1u << 0,
    ORDINARY,
    MEMORY_BOUND,
};

static void scale_gradient(lk__graph_backward *b, int dy)
{
    lk__grad_give(b, 0, LK__GRAD_EMIT(b, LK__OP_scale, &b->n.attrs, 1, dy));
}

DESCRIBE(scale){
    .factors = "x(d..) -> y(d..)",
    .inputs = 1,
    .in = {OPERAND("x", REAL, REQUIRED, FOLLOW)},
    .outputs = 1,
    .out = {OPERAND("y", REAL, REQUIRED, FOLLOW)},
    .attributes = LK__HAS(scale),
    .shape = lk__shape_same,
    .gradient = scale_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = 1u << 0,
    ORDINARY,
    MEMORY_BOUND,
};

/* Scales the gradient that a loss computed in forward. */
DESCRIBE(scale_by){
    .factors = "x(d..) factor() -> y(d..)",
    .inputs = 2,
    .in = {OPERAND("x", REAL, REQUIRED, ROWS), OPERAND("factor", F64, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("y", REAL, REQUIRED, ROWS)},
    .attributes = LK__NO_ATTRIBUTES,
    .shape = lk__shape_same,
    .gradient = lk__gradient_none,
    .no_gradient = LK__NO_OPERAND,
    .in_place = 1u << 0,
    ORDINARY,
    MEMORY_BOUND,
};

DESCRIBE(fill){
    .factors = "-> y(d..)",
    .inputs = -1,
    .outputs = 1,
    .out = {OPERAND("y", REAL, REQUIRED, ROWS)},
    .attributes = LK__HAS(scale),
    BACKWARD_ONLY,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

/* The gradient of x gets x's type, wherever it comes from. */
static void cast_gradient(lk__graph_backward *b, int dy) { lk__grad_give(b, 0, dy); }

DESCRIBE(cast){
    .factors = "x(d..) -> y(d..)",
    .inputs = 1,
    .in = {OPERAND("x", ANY, REQUIRED, FOLLOW)},
    .outputs = 1,
    .out = {OPERAND("y", GIVEN, REQUIRED, FOLLOW)},
    .attributes = LK__NO_ATTRIBUTES,
    .shape = lk__shape_given,
    .gradient = cast_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

/* ---- dropout ---- */

static int dropout_shape(lk__graph_shapes *s)
{
    if (s->in[0]->rank < 1) return LK__SHAPE_FAIL(s, "dropout: a scalar has no samples");
    return lk__shape_same(s);
}

/* Its random numbers are a function of the stream and the sample, so the same node on dy drops the same elements. */
static void dropout_gradient(lk__graph_backward *b, int dy)
{
    lk__grad_give(b, 0, LK__GRAD_EMIT(b, LK__OP_dropout, &b->n.attrs, 1, dy));
}

/* Row-major: which elements are dropped is a function of their position in the tensor, not in memory. */
DESCRIBE(dropout){
    .factors = "x(samples*tokens, d..) -> y(samples*tokens, d..); tokens=rows",
    .inputs = 1,
    .in = {OPERAND("x", REAL, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("y", REAL, REQUIRED, ROWS)},
    .attributes = LK__HAS(probability) | LK__HAS(stream) | LK__HAS(rows),
    .shape = dropout_shape,
    .gradient = dropout_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = 1u << 0,
    .leaves = LK__LEAVES_SEPARATE,
    .runs = LK__RUNS_KERNEL,
    .effect = LK__EFFECT_NONE,
    .evaluation = LK__EVALUATE_IDENTITY,
    .recompute = LK__RECOMPUTE,
    .fuse = LK__FUSE_NOTHING,
    .loss = LK__LOSS_NO,
    MEMORY_BOUND,
};

/* ---- swiglu ---- */

static int swiglu_shape(lk__graph_shapes *s)
{
    if (!lk__shape_equal(s->in[0], s->in[1]))
        return LK__SHAPE_FAIL(s, "swiglu: gate %s and up %s differ", lk__shape_show(s->in[0]).text,
                              lk__shape_show(s->in[1]).text);
    s->out[0] = *s->in[0];
    return 1;
}

static void swiglu_gradient(lk__graph_backward *b, int dy)
{
    int in[] = {dy, lk__grad_in(b, 0), lk__grad_in(b, 1)}, wanted = 0;
    for (int i = 0; i < 2; i++)
        if (lk__grad_wants(b, i)) wanted |= 1 << i;
    int node = lk__emit(b->g, b->n.site, LK__OP_swiglu_grad, NULL, in, 3, wanted);
    if (node < 0) return;
    lk__graph_node made = b->g->nodes[node];
    for (int i = 0; i < 2; i++)
        if (wanted >> i & 1) lk__grad_give(b, i, made.out[i]);
}

DESCRIBE(swiglu){
    .factors = "gate(d..) up(d..) -> y(d..)",
    .inputs = 2,
    .in = {OPERAND("gate", REAL, REQUIRED, ROWS), OPERAND("up", REAL, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("y", REAL, REQUIRED, ROWS)},
    .attributes = LK__NO_ATTRIBUTES,
    .shape = swiglu_shape,
    .gradient = swiglu_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = 1u << 0 | 1u << 1,
    ORDINARY,
    MEMORY_BOUND,
};

static int swiglu_grad_shape(lk__graph_shapes *s)
{
    s->out[0] = *s->in[1];
    s->out[1] = *s->in[2];
    return 2;
}

DESCRIBE(swiglu_grad){
    .factors = "dy(d..) gate(d..) up(d..) -> dgate(d..) dup(d..)",
    .inputs = 3,
    .in = {OPERAND("dy", REAL, REQUIRED, ROWS), OPERAND("gate", REAL, REQUIRED, ROWS),
           OPERAND("up", REAL, REQUIRED, ROWS)},
    .outputs = 2,
    .out = {OPERAND("dgate", REAL, OPTIONAL, ROWS), OPERAND("dup", REAL, OPTIONAL, ROWS)},
    .attributes = LK__NO_ATTRIBUTES,
    .shape = swiglu_grad_shape,
    .gradient = lk__gradient_none,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};
