/* reduction.c - sums, means and maxima over axes, and pools over windows of an image. */
#include "graph/op/describe.h"

/* ---- sum, mean ---- */

static int sum_shape(lk__graph_shapes *s)
{
    const lk__graph_shape *x = s->in[0];
    lk__graph_shape        y = {.dtype = x->dtype, .count_axis = -1, .count_unit = 1};
    for (int i = 0; i < x->rank; i++) {
        bool reduced = s->attrs->mask >> i & 1;
        if (reduced && !s->attrs->keepdim) continue;
        y.dims[y.rank] = reduced ? 1 : x->dims[i];
        if (!reduced) lk__shape_carry_count(&y, x, i, y.rank);
        y.rank++;
    }
    s->out[0] = y;
    return 1;
}

static void sum_gradient(lk__graph_backward *b, int dy)
{
    lk__grad_give(b, 0, lk__grad_emit_like(b, LK__OP_expand, &b->n.attrs, &dy, 1, lk__grad_in(b, 0)));
}

/* With `parts` a sum is divided into no more of them, whatever is kept. */
DESCRIBE(sum){
    .factors = "x(d..) -> y(d..); -mask",
    .inputs = 1,
    .in = {OPERAND("x", REAL, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("y", REAL, REQUIRED, ROWS)},
    .attributes = LK__HAS(mask) | LK__HAS(mean) | LK__HAS(keepdim) | LK__HAS(sum) | LK__HAS(parts),
    .shape = sum_shape,
    .gradient = sum_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

DESCRIBE(expand){
    .factors = "dy(d..) -> dx(d..); -mask",
    .inputs = 1,
    .in = {OPERAND("dy", REAL, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("dx", REAL, REQUIRED, ROWS)},
    .attributes = LK__HAS(mask) | LK__HAS(mean) | LK__HAS(keepdim),
    BACKWARD_ONLY,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

/* ---- max, argmax: over one axis ---- */

static int argmax_shape(lk__graph_shapes *s)
{
    const lk__graph_shape *x = s->in[0];
    int                    axis = s->attrs->axis;
    lk__graph_shape        y = {.dtype = LK_I32, .count_axis = -1, .count_unit = 1};
    if (axis < 0 || axis >= x->rank)
        return LK__SHAPE_FAIL(s, "%s: x %s has no axis %d", lk__op_name(s->op), lk__shape_show(x).text, axis);
    if (x->count_axis == axis)
        return LK__SHAPE_FAIL(s, "%s: cannot reduce the batch axis of %s", lk__op_name(s->op), lk__shape_show(x).text);
    if (x->dims[axis] > INT32_MAX)
        return LK__SHAPE_FAIL(s, "%s: axis %d of %s is too long for an i32 index", lk__op_name(s->op), axis,
                              lk__shape_show(x).text);
    for (int i = 0; i < x->rank; i++) {
        if (i == axis && !s->attrs->keepdim) continue;
        y.dims[y.rank] = i == axis ? 1 : x->dims[i];
        lk__shape_carry_count(&y, x, i, y.rank);
        y.rank++;
    }
    s->out[0] = y;
    return 1;
}

static int max_shape(lk__graph_shapes *s)
{
    if (argmax_shape(s) < 0) return -1;
    s->out[1] = s->out[0];
    s->out[0].dtype = s->in[0]->dtype;
    return 2;
}

static void max_gradient(lk__graph_backward *b, int dy)
{
    int operands[] = {dy, lk__grad_out(b, 1)};
    lk__grad_give(b, 0, lk__grad_emit_like(b, LK__OP_max_grad, &b->n.attrs, operands, 2, lk__grad_in(b, 0)));
}

DESCRIBE(max){
    .factors = "x(d..) -> y(d..) index(d..); -axis",
    .inputs = 1,
    .in = {OPERAND("x", REAL, REQUIRED, ROWS)},
    .outputs = 2,
    .out = {OPERAND("y", REAL, REQUIRED, ROWS), OPERAND("index", I32, IF_READ, ROWS)},
    .attributes = LK__HAS(axis) | LK__HAS(keepdim),
    .shape = max_shape,
    .gradient = max_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

DESCRIBE(max_grad){
    .factors = "dy(d..) index(d..) -> dx(d..); -axis",
    .inputs = 2,
    .in = {OPERAND("dy", REAL, REQUIRED, ROWS), OPERAND("index", I32, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("dx", REAL, REQUIRED, ROWS)},
    .attributes = LK__HAS(axis) | LK__HAS(keepdim),
    BACKWARD_ONLY,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

DESCRIBE(argmax){
    .factors = "x(d..) -> index(d..); -axis",
    .inputs = 1,
    .in = {OPERAND("x", REAL, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("index", I32, REQUIRED, ROWS)},
    .attributes = LK__HAS(axis) | LK__HAS(keepdim),
    .shape = argmax_shape,
    .gradient = lk__gradient_stopped,
    .no_gradient = 1u << 0,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

/* ---- pools ---- */

static int pool_shape(lk__graph_shapes *s)
{
    const lk__graph_shape *x = s->in[0];
    if (x->rank != 4)
        return LK__SHAPE_FAIL(s, "%s: x has shape %s; expected (N, C, H, W)", lk__op_name(s->op),
                              lk__shape_show(x).text);
    int64_t kernel = s->attrs->kernel;
    if (kernel > 15)
        return LK__SHAPE_FAIL(s, "%s: kernel %lld is too large; expected at most 15", lk__op_name(s->op),
                              (long long)kernel);
    if (2 * s->attrs->padding > kernel)
        return LK__SHAPE_FAIL(s, "%s: padding %lld is more than half the kernel %lld", lk__op_name(s->op),
                              (long long)s->attrs->padding, (long long)kernel);
    return lk__shape_window(s, x->dims[1], kernel, kernel) < 0 ? -1 : 1;
}

static int max_pool2d_shape(lk__graph_shapes *s)
{
    if (pool_shape(s) < 0) return -1;
    s->out[1] = s->out[0];
    s->out[1].dtype = LK_U8;
    return 2;
}

static int global_avg_pool2d_shape(lk__graph_shapes *s)
{
    const lk__graph_shape *x = s->in[0];
    if (x->rank != 4)
        return LK__SHAPE_FAIL(s, "global_avg_pool2d: x has shape %s; expected 4 axes", lk__shape_show(x).text);
    s->out[0] = lk__shape_fixed(x->dtype, 2, x->dims);
    lk__shape_carry_count(&s->out[0], x, 0, 0);
    return 1;
}

static void max_pool2d_gradient(lk__graph_backward *b, int dy)
{
    int operands[] = {dy, lk__grad_out(b, 1)};
    lk__grad_give(b, 0, lk__grad_emit_like(b, LK__OP_max_pool2d_grad, &b->n.attrs, operands, 2, lk__grad_in(b, 0)));
}

static void avg_pool2d_gradient(lk__graph_backward *b, int dy)
{
    lk__grad_give(b, 0, lk__grad_emit_like(b, LK__OP_avg_pool2d_grad, &b->n.attrs, &dy, 1, lk__grad_in(b, 0)));
}

static void global_avg_pool2d_gradient(lk__graph_backward *b, int dy)
{
    lk__grad_give(b, 0, lk__grad_emit_like(b, LK__OP_global_avg_pool2d_grad, NULL, &dy, 1, lk__grad_in(b, 0)));
}

#define POOL_ATTRIBUTES LK__HAS(kernel) | LK__HAS(stride) | LK__HAS(padding)

DESCRIBE(max_pool2d){
    .factors = "x(n, c, !h, !w) -> y(n, c, !yh, !yw) index(n, c, yh, yw)",
    .inputs = 1,
    .in = {OPERAND("x", REAL, REQUIRED, LAST)},
    .outputs = 2,
    .out = {OPERAND("y", REAL, REQUIRED, LAST), OPERAND("index", U8, OPTIONAL, LAST)},
    .attributes = POOL_ATTRIBUTES,
    .shape = max_pool2d_shape,
    .gradient = max_pool2d_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

DESCRIBE(max_pool2d_grad){
    .factors = "dy(n, c, !yh, !yw) index(n, c, yh, yw) -> dx(n, c, !h, !w)",
    .inputs = 2,
    .in = {OPERAND("dy", REAL, REQUIRED, LAST), OPERAND("index", U8, REQUIRED, LAST)},
    .outputs = 1,
    .out = {OPERAND("dx", REAL, REQUIRED, LAST)},
    .attributes = POOL_ATTRIBUTES,
    BACKWARD_ONLY,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

DESCRIBE(avg_pool2d){
    .factors = "x(n, c, !h, !w) -> y(n, c, !yh, !yw)",
    .inputs = 1,
    .in = {OPERAND("x", REAL, REQUIRED, LAST)},
    .outputs = 1,
    .out = {OPERAND("y", REAL, REQUIRED, LAST)},
    .attributes = POOL_ATTRIBUTES,
    .shape = pool_shape,
    .gradient = avg_pool2d_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

DESCRIBE(avg_pool2d_grad){
    .factors = "dy(n, c, !yh, !yw) -> dx(n, c, !h, !w)",
    .inputs = 1,
    .in = {OPERAND("dy", REAL, REQUIRED, LAST)},
    .outputs = 1,
    .out = {OPERAND("dx", REAL, REQUIRED, LAST)},
    .attributes = POOL_ATTRIBUTES,
    BACKWARD_ONLY,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

DESCRIBE(global_avg_pool2d){
    .factors = "x(n, c, !h, !w) -> y(n, c)",
    .inputs = 1,
    .in = {OPERAND("x", REAL, REQUIRED, LAST)},
    .outputs = 1,
    .out = {OPERAND("y", REAL, REQUIRED, ROWS)},
    .attributes = LK__NO_ATTRIBUTES,
    .shape = global_avg_pool2d_shape,
    .gradient = global_avg_pool2d_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

DESCRIBE(global_avg_pool2d_grad){
    .factors = "dy(n, c) -> dx(n, c, !h, !w)",
    .inputs = 1,
    .in = {OPERAND("dy", REAL, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("dx", REAL, REQUIRED, LAST)},
    .attributes = LK__NO_ATTRIBUTES,
    BACKWARD_ONLY,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};
