/* shape.c - operations that move elements and compute nothing: reshape, stop_gradient, permute, slice, concat, join,
 * changes of layout. */
#include "graph/op/describe.h"

/* ---- reshape ---- */

static void reshape_gradient(lk__graph_backward *b, int dy)
{
    lk__grad_give(b, 0, lk__grad_emit_like(b, LK__OP_reshape, NULL, &dy, 1, lk__grad_in(b, 0)));
}

DESCRIBE(reshape){
    .factors = "x(x..) -> y(y..); reshape",
    .inputs = 1,
    .in = {OPERAND("x", ANY, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("y", ANY, REQUIRED, ROWS)},
    .attributes = LK__HAS(start), /* a view of a part: so many elements of x before it */
    .shape = lk__shape_given,
    .gradient = reshape_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    .leaves = LK__LEAVES_SEPARATE,
    .runs = LK__RUNS_NOTHING,
    .effect = LK__EFFECT_NONE,
    .evaluation = LK__EVALUATE_SAME,
    .recompute = LK__RECOMPUTE,
    .fuse = LK__FUSE_NOTHING,
    .loss = LK__LOSS_NO,
    .arithmetic = lk__arithmetic_none,
    .bytes = lk__bytes_none,
};

/* ---- stop_gradient ---- */

DESCRIBE(stop_gradient){
    .factors = "x(d..) -> y(d..)",
    .inputs = 1,
    .in = {OPERAND("x", ANY, REQUIRED, FOLLOW)},
    .outputs = 1,
    .out = {OPERAND("y", ANY, REQUIRED, FOLLOW)},
    .attributes = LK__NO_ATTRIBUTES,
    .shape = lk__shape_same,
    .gradient = lk__gradient_stopped,
    .no_gradient = 1u << 0,
    .in_place = LK__NO_OPERAND,
    .leaves = LK__LEAVES_SEPARATE,
    .runs = LK__RUNS_NOTHING,
    .effect = LK__EFFECT_NONE,
    .evaluation = LK__EVALUATE_SAME,
    .recompute = LK__RECOMPUTE,
    .fuse = LK__FUSE_NOTHING,
    .loss = LK__LOSS_NO,
    .arithmetic = lk__arithmetic_none,
    .bytes = lk__bytes_none,
};

/* ---- permute ---- */

static int permute_shape(lk__graph_shapes *s)
{
    const lk__graph_shape *x = s->in[0];
    unsigned               seen = 0;
    lk__graph_shape        y = lk__shape_fixed(x->dtype, x->rank, x->dims);
    for (int i = 0; i < x->rank; i++) {
        int axis = s->attrs->axes[i];
        if (axis < 0 || axis >= x->rank || seen >> axis & 1)
            return LK__SHAPE_FAIL(s, "permute: each axis of %s must be given exactly once", lk__shape_show(x).text);
        seen |= 1u << axis;
        y.dims[i] = x->dims[axis];
        lk__shape_carry_count(&y, x, axis, i);
    }
    s->out[0] = y;
    return 1;
}

static void permute_gradient(lk__graph_backward *b, int dy)
{
    lk__op_attrs inverse = {0};
    for (int i = 0; i < lk__grad_shape(b, dy).rank; i++) inverse.axes[b->n.attrs.axes[i]] = i;
    lk__grad_give(b, 0, LK__GRAD_EMIT(b, LK__OP_permute, &inverse, 1, dy));
}

DESCRIBE(permute){
    .factors = "x(x..) -> y(y..); axes",
    .inputs = 1,
    .in = {OPERAND("x", REAL, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("y", REAL, REQUIRED, ROWS)},
    .attributes = LK__HAS(axes),
    .shape = permute_shape,
    .gradient = permute_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

/* ---- slice ---- */

static int slice_shape(lk__graph_shapes *s)
{
    const lk__graph_shape *x = s->in[0];
    int                    axis = s->attrs->axis;
    int64_t                start = s->attrs->start, length = s->attrs->length;
    if (axis < 0 || axis >= x->rank || start < 0 || length < 1 || start > x->dims[axis] - length)
        return LK__SHAPE_FAIL(s, "slice: x %s has no range [%lld, %lld) along axis %d", lk__shape_show(x).text,
                              (long long)start, (long long)((uint64_t)start + (uint64_t)length), axis);
    if (x->count_axis == axis)
        return LK__SHAPE_FAIL(s, "slice: cannot slice the batch axis of %s", lk__shape_show(x).text);
    s->out[0] = *x;
    s->out[0].dims[axis] = length;
    return 1;
}

static void slice_gradient(lk__graph_backward *b, int dy)
{
    lk__grad_give(b, 0, lk__grad_emit_like(b, LK__OP_slice_grad, &b->n.attrs, &dy, 1, lk__grad_in(b, 0)));
}

DESCRIBE(slice){
    .factors = "x(d..) -> y(d..); -axis",
    .inputs = 1,
    .in = {OPERAND("x", MOVED, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("y", MOVED, REQUIRED, ROWS)},
    .attributes = LK__HAS(axis) | LK__HAS(start) | LK__HAS(length),
    .shape = slice_shape,
    .gradient = slice_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    .segments = LK__SEGMENTS_SLICED,
    ORDINARY,
    MEMORY_BOUND,
};

DESCRIBE(slice_grad){
    .factors = "dy(d..) -> dx(d..); -axis",
    .inputs = 1,
    .in = {OPERAND("dy", REAL, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("dx", REAL, REQUIRED, ROWS)},
    .attributes = LK__HAS(axis) | LK__HAS(start) | LK__HAS(length),
    BACKWARD_ONLY,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    .segments = LK__SEGMENTS_FILLED,
    ORDINARY,
    MEMORY_BOUND,
};

/* ---- concat ---- */

static int concat_shape(lk__graph_shapes *s)
{
    lk__graph_shape y = *s->in[0];
    int             axis = s->attrs->axis;
    if (axis < 0 || axis >= y.rank)
        return LK__SHAPE_FAIL(s, "concat: %s has no axis %d", lk__shape_show(&y).text, axis);
    if (y.count_axis == axis)
        return LK__SHAPE_FAIL(s, "concat: cannot concatenate along the batch axis of %s", lk__shape_show(&y).text);
    for (int i = 1; i < s->inputs; i++) {
        lk__graph_shape other = *s->in[i];
        int64_t         add = other.rank == y.rank ? other.dims[axis] : 0;
        if (add) other.dims[axis] = y.dims[axis];
        if (!add || !lk__shape_equal(&other, &y) || other.dtype != y.dtype)
            return LK__SHAPE_FAIL(s, "concat: %s and %s differ in more than axis %d", lk__shape_show(s->in[0]).text,
                                  lk__shape_show(s->in[i]).text, axis);
        y.dims[axis] += add;
    }
    s->out[0] = y;
    return 1;
}

static void concat_gradient(lk__graph_backward *b, int dy)
{
    int64_t start = 0;
    for (int i = 0; i < b->n.inputs; i++) {
        int64_t      length = lk__grad_shape(b, lk__grad_in(b, i)).dims[b->n.attrs.axis];
        lk__op_attrs part = {.axis = b->n.attrs.axis, .start = start, .length = length};
        if (lk__grad_wants(b, i)) lk__grad_give(b, i, LK__GRAD_EMIT(b, LK__OP_slice, &part, 1, dy));
        start += length;
    }
}

DESCRIBE(concat){
    .factors = "x(d..) more(d..) -> y(d..); -axis",
    .inputs = 2,
    .in = {OPERAND("x", REAL, REQUIRED, ROWS), OPERAND("more", REAL, REPEATED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("y", REAL, REQUIRED, ROWS)},
    .attributes = LK__HAS(axis),
    .shape = concat_shape,
    .gradient = concat_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    .segments = LK__SEGMENTS_JOINED,
    ORDINARY,
    MEMORY_BOUND,
};

/* ---- join: rows that are one behind the other in memory already (plan/pieces.h) ---- */

DESCRIBE(join){
    .factors = "-",
    .inputs = 2,
    .in = {OPERAND("x", ANY, REQUIRED, ROWS), OPERAND("more", ANY, REPEATED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("y", ANY, REQUIRED, ROWS)},
    .attributes = LK__NO_ATTRIBUTES,
    BACKWARD_ONLY,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    .leaves = LK__LEAVES_SEPARATE,
    .runs = LK__RUNS_NOTHING,
    .effect = LK__EFFECT_NONE,
    .evaluation = LK__EVALUATE_SAME,
    .recompute = LK__RECOMPUTE,
    .fuse = LK__FUSE_NOTHING,
    .loss = LK__LOSS_NO,
    .arithmetic = lk__arithmetic_none,
    .bytes = lk__bytes_none,
};

/* ---- changes of layout, which the layout pass adds: of images, and of the indices that pools have of them ---- */

DESCRIBE(to_channels_last){
    .factors = "x(d..) -> y(d..)",
    .inputs = 1,
    .in = {OPERAND("x", ANY, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("y", ANY, REQUIRED, LAST)},
    .attributes = LK__NO_ATTRIBUTES,
    .shape = lk__shape_same,
    .gradient = lk__gradient_none,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

DESCRIBE(to_channels_first){
    .factors = "x(d..) -> y(d..)",
    .inputs = 1,
    .in = {OPERAND("x", ANY, REQUIRED, LAST)},
    .outputs = 1,
    .out = {OPERAND("y", ANY, REQUIRED, ROWS)},
    .attributes = LK__NO_ATTRIBUTES,
    .shape = lk__shape_same,
    .gradient = lk__gradient_none,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};
