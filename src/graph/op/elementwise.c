/* elementwise.c - each element of the result depends on one element of each operand: arithmetic with broadcasting, functions of
 * one value, dropout, constants. */
#include "graph/op/describe.h"

/* ---- add, sub, mul, div ---- */

static int broadcast_shape(lk__graph_shapes *s)
{
    const lk__graph_shape *a = s->in[0], *b = s->in[1];
    lk__graph_shape        y = {.dtype = a->dtype, .rank = a->rank > b->rank ? a->rank : b->rank, .count_axis = -1, .count_unit = 1};
    for (int i = 0; i < y.rank; i++) { /* i counts from the last axis */
        int     ia = a->rank - 1 - i, ib = b->rank - 1 - i, iy = y.rank - 1 - i;
        int64_t da = ia >= 0 ? a->dims[ia] : 1, db = ib >= 0 ? b->dims[ib] : 1;
        bool    ca = ia >= 0 && a->count_axis == ia, cb = ib >= 0 && b->count_axis == ib;
        bool    fits = da == db ? ca == cb && (!ca || a->count_unit == b->count_unit) : (da == 1 && !ca) || (db == 1 && !cb);
        if (da == 1 && db == 1 && ca != cb) fits = true; /* a batch of capacity 1 against a constant */
        if (!fits)
            return LK__SHAPE_FAIL(s, "%s: shapes %s and %s do not broadcast%s", lk__op_name(s->op), lk__shape_show(a).text,
                                  lk__shape_show(b).text, da == db ? " (one is the batch axis, the other is not)" : "");
        y.dims[iy] = da > db ? da : db;
        if (ca) lk__shape_carry_count(&y, a, ia, iy);
        if (cb) lk__shape_carry_count(&y, b, ib, iy);
    }
    s->out[0] = y;
    return 1;
}

static int negate(lk__graph_backward *b, int x) { return LK__GRAD_EMIT(b, LK__OP_scale, &(lk__op_attrs){.scale = -1}, 1, x); }

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

/* F64 too: the update adds squares of gradients, which are sums in double. */
#define BINARY(rule)                                                                            \
    {                                                                                           \
        .inputs = 2, .in = {OPERAND("a", ANY, REQUIRED, FOLLOW), OPERAND("b", ANY, REQUIRED, FOLLOW)}, \
        .outputs = 1, .out = {OPERAND("y", ANY, REQUIRED, FOLLOW)},                             \
        .attributes = LK__NO_ATTRIBUTES, .shape = broadcast_shape, .gradient = rule,            \
        .no_gradient = LK__NO_OPERAND, .in_place = 1u << 0 | 1u << 1, ORDINARY, MEMORY_BOUND    \
    }
DESCRIBE(add) BINARY(add_gradient);
DESCRIBE(sub) BINARY(sub_gradient);
DESCRIBE(mul) BINARY(mul_gradient);
DESCRIBE(div) BINARY(div_gradient);

/* ---- functions of one value ---- */

static void unary_gradient(lk__graph_backward *b, int dy)
{
    lk__op_unary u = b->n.attrs.unary;
    int          saved = u == LK__RELU || u == LK__SIGMOID || u == LK__TANH ? lk__grad_out(b, 0) : lk__grad_in(b, 0);
    lk__grad_give(b, 0, LK__GRAD_EMIT(b, LK__OP_unary_grad, &b->n.attrs, 2, dy, saved));
}

DESCRIBE(unary){
    .inputs = 1,
    .in = {OPERAND("x", REAL, REQUIRED, FOLLOW)},
    .outputs = 1,
    .out = {OPERAND("y", REAL, REQUIRED, FOLLOW)},
    .attributes = LK__HAS(unary),
    .shape = lk__shape_same,
    .gradient = unary_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = 1u << 0,
    ORDINARY,
    MEMORY_BOUND,
};

DESCRIBE(unary_grad){
    .inputs = 2,
    .in = {OPERAND("dy", REAL, REQUIRED, FOLLOW), OPERAND("saved", REAL, REQUIRED, FOLLOW)},
    .outputs = 1,
    .out = {OPERAND("dx", REAL, REQUIRED, FOLLOW)},
    .attributes = LK__HAS(unary),
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

DESCRIBE(fill){
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
    .inputs = 1,
    .in = {OPERAND("x", REAL, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("y", REAL, REQUIRED, ROWS)},
    .attributes = LK__HAS(probability) | LK__HAS(stream) | LK__HAS(rows),
    .shape = dropout_shape,
    .gradient = dropout_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = 1u << 0,
    .same = LK__NO_OPERAND,
    .samples = LK__SAMPLES_APART,
    .runs = LK__RUNS_KERNEL,
    .effect = LK__EFFECT_NONE,
    .evaluation = LK__EVALUATE_IDENTITY,
    .recompute = LK__RECOMPUTE,
    .fuse = LK__FUSE_NOTHING,
    .loss = LK__LOSS_NO,
    MEMORY_BOUND,
};
