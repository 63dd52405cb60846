/* normalisation.c - softmax, and the norms whose statistics belong to one sample: layer norm, RMS norm, group norm.
 * Norms over the batch are in batch_norm.c. */
#include "graph/op/describe.h"

/* ---- softmax ---- */

static int softmax_shape(lk__graph_shapes *s)
{
    int axis = s->attrs->axis;
    if (axis < 0 || axis >= s->in[0]->rank)
        return LK__SHAPE_FAIL(s, "%s: x %s has no axis %d", lk__op_name(s->op), lk__shape_show(s->in[0]).text, axis);
    return lk__shape_same(s);
}

static void softmax_gradient(lk__graph_backward *b, int dy)
{
    lk__grad_give(b, 0, LK__GRAD_EMIT(b, LK__OP_softmax_grad, &b->n.attrs, 2, dy, lk__grad_out(b, 0)));
}

static void log_softmax_gradient(lk__graph_backward *b, int dy)
{
    lk__grad_give(b, 0, LK__GRAD_EMIT(b, LK__OP_log_softmax_grad, &b->n.attrs, 2, dy, lk__grad_out(b, 0)));
}

#define SOFTMAX(rule)                                                                                         \
    {                                                                                                         \
        .factors = "x(d..) -> y(d..); !axis", \
        .inputs = 1, .in = {OPERAND("x", REAL, REQUIRED, ROWS)},                                              \
        .outputs = 1, .out = {OPERAND("y", REAL, REQUIRED, ROWS)},                                            \
        .attributes = LK__HAS(axis), .shape = softmax_shape, .gradient = rule, .no_gradient = LK__NO_OPERAND, \
        .in_place = 1u << 0, ORDINARY, MEMORY_BOUND                                 \
    }
DESCRIBE(softmax) SOFTMAX(softmax_gradient);
DESCRIBE(log_softmax) SOFTMAX(log_softmax_gradient);

#define SOFTMAX_GRAD                                                                                                \
    {                                                                                                               \
        .factors = "dy(d..) y(d..) -> dx(d..); !axis", \
        .inputs = 2, .in = {OPERAND("dy", REAL, REQUIRED, ROWS), OPERAND("y", REAL, REQUIRED, ROWS)}, .outputs = 1, \
        .out = {OPERAND("dx", REAL, REQUIRED, ROWS)}, .attributes = LK__HAS(axis), .shape = softmax_shape,          \
        .gradient = lk__gradient_none, .no_gradient = LK__NO_OPERAND, .in_place = 1u << 0,                          \
        ORDINARY, MEMORY_BOUND                                                            \
    }
DESCRIBE(softmax_grad) SOFTMAX_GRAD;
DESCRIBE(log_softmax_grad) SOFTMAX_GRAD;

/* ---- layer norm, RMS norm: rows are the last `axis` dims of x; one statistic per row ---- */

static int row_norm_shape(lk__graph_shapes *s, int statistics)
{
    const lk__graph_shape *x = s->in[0];
    int                    trailing = s->attrs->axis;
    if (trailing < 1 || trailing > x->rank)
        return LK__SHAPE_FAIL(s, "%s: x %s has fewer than %d axes", lk__op_name(s->op), lk__shape_show(x).text,
                              trailing);
    if (x->count_axis >= x->rank - trailing)
        return LK__SHAPE_FAIL(s, "%s: cannot normalise over the batch axis of %s", lk__op_name(s->op),
                              lk__shape_show(x).text);
    const int residual = 1 + statistics; /* of layer norm after weight and bias, of RMS norm after weight */
    for (int input = 1; input < s->inputs; input++) {
        const lk__graph_shape *w = s->in[input];
        if (!w) continue;
        if (input == residual && lk__shape_equal(w, x)) continue;
        bool fits = w->rank == trailing;
        for (int i = 0; fits && i < trailing; i++) fits = w->dims[i] == x->dims[x->rank - trailing + i];
        if (!fits || w->count_axis >= 0)
            return LK__SHAPE_FAIL(s, "%s: weight or bias %s does not match x %s", lk__op_name(s->op),
                                  lk__shape_show(w).text, lk__shape_show(x).text);
    }
    lk__graph_shape rows = lk__shape_fixed(x->dtype, x->rank - trailing, x->dims);
    for (int i = 0; i < rows.rank; i++) lk__shape_carry_count(&rows, x, i, i);
    s->out[0] = *x;
    s->out[1] = s->out[2] = rows;
    if (s->inputs <= residual || !s->in[residual]) return 1 + statistics;
    s->out[residual] = *x;
    return 2 + statistics;
}

static int layer_norm_shape(lk__graph_shapes *s) { return row_norm_shape(s, 2); }
static int rms_norm_shape(lk__graph_shapes *s) { return row_norm_shape(s, 1); }

static int row_norm_grad_shape(lk__graph_shapes *s, int parameters)
{
    const lk__graph_shape *x = s->in[1];
    int                    trailing = s->attrs->axis;
    s->out[0] = *x;
    s->out[1] = s->out[2] = lk__shape_fixed(x->dtype, trailing, x->dims + x->rank - trailing);
    return 1 + parameters;
}

static int layer_norm_grad_shape(lk__graph_shapes *s) { return row_norm_grad_shape(s, 2); }
static int rms_norm_grad_shape(lk__graph_shapes *s) { return row_norm_grad_shape(s, 1); }

static void layer_norm_gradient(lk__graph_backward *b, int dy)
{
    int operands[] = {dy, lk__grad_in(b, 0), lk__grad_in(b, 1), lk__grad_out(b, 1), lk__grad_out(b, 2)};
    lk__grad_norm(b, LK__OP_layer_norm_grad, operands, 5, 2);
}

static void rms_norm_gradient(lk__graph_backward *b, int dy)
{
    int operands[] = {dy, lk__grad_in(b, 0), lk__grad_in(b, 1), lk__grad_out(b, 1)};
    lk__grad_norm(b, LK__OP_rms_norm_grad, operands, 4, 1);
}

/* Residuals are added by plan/fuse.c alone, after the gradients were derived. */
DESCRIBE(layer_norm){
    .factors = "x(rows.., !width..) weight(width..) bias(width..) residual(rows.., width..) "
               "-> y(rows.., width..) mean(rows*..) rstd(rows*..) sum(rows.., width..); width..#axis",
    .inputs = 4,
    .in = {OPERAND("x", REAL, REQUIRED, ROWS), OPERAND("weight", WIDE, OPTIONAL, ROWS),
           OPERAND("bias", WIDE, OPTIONAL, ROWS), OPERAND("residual", REAL, OPTIONAL, ROWS)},
    .outputs = 4,
    .out = {OPERAND("y", REAL, REQUIRED, ROWS), OPERAND("mean", WIDE, REQUIRED, ROWS),
            OPERAND("rstd", WIDE, REQUIRED, ROWS), OPERAND("sum", REAL, OPTIONAL, ROWS)},
    .attributes = LK__HAS(axis) | LK__HAS(epsilon),
    .shape = layer_norm_shape,
    .gradient = layer_norm_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY_BUT_FUSION,
    .fuse = {{LK__FUSION_OPERAND, .operand = 3, .late = true}},
    MEMORY_BOUND,
};

DESCRIBE(layer_norm_grad){
    .factors =
        "dy(rows.., !width..) x(rows.., width..) weight(width..) mean(rows*..) rstd(rows*..) residual(rows.., width..) "
        "-> dx(rows.., width..) dw(width..) db(width..); width..#axis",
    .inputs = 6,
    .in = {OPERAND("dy", REAL, REQUIRED, ROWS), OPERAND("x", REAL, REQUIRED, ROWS),
           OPERAND("weight", WIDE, OPTIONAL, ROWS), OPERAND("mean", WIDE, REQUIRED, ROWS),
           OPERAND("rstd", WIDE, REQUIRED, ROWS), OPERAND("residual", REAL, OPTIONAL, ROWS)},
    .outputs = 3,
    .out = {OPERAND("dx", REAL, REQUIRED, ROWS), OPERAND("dw", WIDE, OPTIONAL, ROWS),
            OPERAND("db", WIDE, OPTIONAL, ROWS)},
    .attributes = LK__HAS(axis) | LK__HAS(epsilon) | LK__HAS(sum),
    .shape = layer_norm_grad_shape,
    .gradient = lk__gradient_none,
    .no_gradient = LK__NO_OPERAND,
    .in_place = 1u << 5,
    ORDINARY_BUT_FUSION,
    .fuse = {{LK__FUSION_SUM, .operand = 5, .late = true}},
    MEMORY_BOUND,
};

DESCRIBE(rms_norm){
    .factors = "x(rows.., !width..) weight(width..) residual(rows.., width..) "
               "-> y(rows.., width..) rstd(rows*..) sum(rows.., width..); width..#axis",
    .inputs = 3,
    .in = {OPERAND("x", REAL, REQUIRED, ROWS), OPERAND("weight", WIDE, OPTIONAL, ROWS),
           OPERAND("residual", REAL, OPTIONAL, ROWS)},
    .outputs = 3,
    .out = {OPERAND("y", REAL, REQUIRED, ROWS), OPERAND("rstd", WIDE, REQUIRED, ROWS),
            OPERAND("sum", REAL, OPTIONAL, ROWS)},
    .attributes = LK__HAS(axis) | LK__HAS(epsilon),
    .shape = rms_norm_shape,
    .gradient = rms_norm_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY_BUT_FUSION,
    .fuse = {{LK__FUSION_OPERAND, .operand = 2, .late = true}},
    MEMORY_BOUND,
};

DESCRIBE(rms_norm_grad){
    .factors = "dy(rows.., !width..) x(rows.., width..) weight(width..) rstd(rows*..) residual(rows.., width..) "
               "-> dx(rows.., width..) dw(width..); width..#axis",
    .inputs = 5,
    .in = {OPERAND("dy", REAL, REQUIRED, ROWS), OPERAND("x", REAL, REQUIRED, ROWS),
           OPERAND("weight", WIDE, OPTIONAL, ROWS), OPERAND("rstd", WIDE, REQUIRED, ROWS),
           OPERAND("residual", REAL, OPTIONAL, ROWS)},
    .outputs = 2,
    .out = {OPERAND("dx", REAL, REQUIRED, ROWS), OPERAND("dw", WIDE, OPTIONAL, ROWS)},
    .attributes = LK__HAS(axis) | LK__HAS(epsilon) | LK__HAS(sum),
    .shape = rms_norm_grad_shape,
    .gradient = lk__gradient_none,
    .no_gradient = LK__NO_OPERAND,
    .in_place = 1u << 4,
    ORDINARY_BUT_FUSION,
    .fuse = {{LK__FUSION_SUM, .operand = 4, .late = true}},
    MEMORY_BOUND,
};

/* ---- group norm: statistics of C/groups neighbouring channels of one sample ---- */

static int group_norm_shape(lk__graph_shapes *s)
{
    const lk__graph_shape *x = s->in[0];
    int64_t                groups = s->attrs->groups;
    if (x->rank < 2) return LK__SHAPE_FAIL(s, "group_norm: x has shape %s; expected (N, C, …)", lk__shape_show(x).text);
    if (x->count_axis > 0)
        return LK__SHAPE_FAIL(s, "group_norm: the batch axis of x %s must be axis 0", lk__shape_show(x).text);
    if (groups < 1 || x->dims[1] % groups)
        return LK__SHAPE_FAIL(s, "group_norm: the %lld channels of x %s cannot be divided into %lld groups",
                              (long long)x->dims[1], lk__shape_show(x).text, (long long)groups);
    for (int i = 1; i < s->inputs; i++)
        if (s->in[i] && (s->in[i]->rank != 1 || s->in[i]->dims[0] != x->dims[1] || s->in[i]->count_axis >= 0))
            return LK__SHAPE_FAIL(s, "group_norm: weight or bias %s does not match the %lld channels of x %s",
                                  lk__shape_show(s->in[i]).text, (long long)x->dims[1], lk__shape_show(x).text);
    lk__graph_shape statistics = lk__shape_fixed(x->dtype, 2, (int64_t[]){x->dims[0], groups});
    lk__shape_carry_count(&statistics, x, 0, 0);
    s->out[0] = *x;
    s->out[1] = s->out[2] = statistics;
    return 3;
}

static int group_norm_grad_shape(lk__graph_shapes *s)
{
    s->out[0] = *s->in[1];
    s->out[1] = s->out[2] = lk__shape_vector(s->in[1]->dtype, s->in[1]->dims[1]);
    return 3;
}

static void group_norm_gradient(lk__graph_backward *b, int dy)
{
    int operands[] = {dy, lk__grad_in(b, 0), lk__grad_in(b, 1), lk__grad_out(b, 1), lk__grad_out(b, 2)};
    lk__grad_norm(b, LK__OP_group_norm_grad, operands, 5, 2);
}

DESCRIBE(group_norm){
    .factors = "x(n, g*!c, !s..) weight(g*c) bias(g*c) -> y(n, g*c, s..) mean(n, g) rstd(n, g); g=groups",
    .inputs = 3,
    .in = {OPERAND("x", REAL, REQUIRED, ROWS), OPERAND("weight", WIDE, OPTIONAL, ROWS),
           OPERAND("bias", WIDE, OPTIONAL, ROWS)},
    .outputs = 3,
    .out = {OPERAND("y", REAL, REQUIRED, ROWS), OPERAND("mean", WIDE, REQUIRED, ROWS),
            OPERAND("rstd", WIDE, REQUIRED, ROWS)},
    .attributes = LK__HAS(groups) | LK__HAS(epsilon),
    .shape = group_norm_shape,
    .gradient = group_norm_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

DESCRIBE(group_norm_grad){
    .factors = "dy(n, g*!c, !s..) x(n, g*c, s..) weight(g*c) mean(n, g) rstd(n, g) -> dx(n, g*c, s..) dw(g*c) db(g*c)"
               "; g=groups",
    .inputs = 5,
    .in = {OPERAND("dy", REAL, REQUIRED, ROWS), OPERAND("x", REAL, REQUIRED, ROWS),
           OPERAND("weight", WIDE, OPTIONAL, ROWS), OPERAND("mean", WIDE, REQUIRED, ROWS),
           OPERAND("rstd", WIDE, REQUIRED, ROWS)},
    .outputs = 3,
    .out = {OPERAND("dx", REAL, REQUIRED, ROWS), OPERAND("dw", WIDE, OPTIONAL, ROWS),
            OPERAND("db", WIDE, OPTIONAL, ROWS)},
    .attributes = LK__HAS(groups) | LK__HAS(epsilon),
    .shape = group_norm_grad_shape,
    .gradient = lk__gradient_none,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};
