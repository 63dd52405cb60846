/* experts.c - operations of a mixture of experts: choosing the largest elements, grouping rows by expert and restoring
 * their order, and one product for each group. Rows of all samples are grouped together, so the rows are coupled;
 * widths are not. */
#include "graph/op/describe.h"

/* ---- topk ---- */

static int topk_shape(lk__graph_shapes *s)
{
    const lk__graph_shape *x = s->in[0];
    int64_t                n = x->rank ? x->dims[x->rank - 1] : 0;
    if (x->rank < 1 || s->attrs->k < 1 || s->attrs->k > n)
        return LK__SHAPE_FAIL(s, "topk: k is %lld; expected 1 to %lld, the size of the last axis of x %s",
                              (long long)s->attrs->k, (long long)n, lk__shape_show(x).text);
    if (x->count_axis == x->rank - 1)
        return LK__SHAPE_FAIL(s, "topk: cannot choose along the batch axis of %s", lk__shape_show(x).text);
    if (n > INT32_MAX)
        return LK__SHAPE_FAIL(s, "topk: the last axis of %s is too long for an i32 index", lk__shape_show(x).text);
    s->out[0] = *x;
    s->out[0].dims[x->rank - 1] = s->attrs->k;
    s->out[1] = s->out[0];
    s->out[1].dtype = LK_I32;
    return 2;
}

static void topk_gradient(lk__graph_backward *b, int dy)
{
    int operands[] = {dy, lk__grad_out(b, 1)};
    lk__grad_give(b, 0, lk__grad_emit_like(b, LK__OP_topk_grad, NULL, operands, 2, lk__grad_in(b, 0)));
}

DESCRIBE(topk){
    .factors = "x(rows.., !n) -> y(rows.., !k) index(rows.., k)",
    .inputs = 1,
    .in = {OPERAND("x", REAL, REQUIRED, ROWS)},
    .outputs = 2,
    .out = {OPERAND("y", REAL, REQUIRED, ROWS), OPERAND("index", I32, REQUIRED, ROWS)},
    .attributes = LK__HAS(k),
    .shape = topk_shape,
    .gradient = topk_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

DESCRIBE(topk_grad){
    .factors = "dy(rows.., k) index(rows.., k) -> dx(rows.., !n)",
    .inputs = 2,
    .in = {OPERAND("dy", REAL, REQUIRED, ROWS), OPERAND("index", I32, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("dx", REAL, REQUIRED, ROWS)},
    .attributes = LK__NO_ATTRIBUTES,
    BACKWARD_ONLY,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

/* ---- groups ---- */

/* The rows of x, k times each. */
static lk__graph_shape assignments(const lk__graph_shape *x, int64_t k)
{
    lk__graph_shape y = *x;
    y.dims[0] *= k;
    if (y.count_axis == 0) y.count_unit *= k;
    return y;
}

static int group_rows_shape(lk__graph_shapes *s)
{
    const lk__graph_shape *ids = s->in[0];
    if (ids->rank != 2 || ids->count_axis > 0)
        return LK__SHAPE_FAIL(s, "group_rows: ids have shape %s; expected (rows, experts per row)",
                              lk__shape_show(ids).text);
    if (s->attrs->experts < 1 || s->attrs->experts > 65536 || s->attrs->capacity < 0)
        return LK__SHAPE_FAIL(
            s,
            "group_rows: %lld experts and a capacity of %lld; expected 1 to 65536 experts and a capacity of 0 or more",
            (long long)s->attrs->experts, (long long)s->attrs->capacity);
    if (ids->dims[0] > INT32_MAX / (ids->dims[1] > 0 ? ids->dims[1] : 1))
        return LK__SHAPE_FAIL(s, "group_rows: ids %s have too many elements for an i32 index",
                              lk__shape_show(ids).text);
    lk__graph_shape order = assignments(ids, ids->dims[1]);
    order.rank = 1;
    order.dims[1] = 0;
    s->out[0] = order;
    s->out[1] = *ids;
    s->out[2] = lk__shape_vector(LK_I32, s->attrs->experts + 1);
    s->out[3] = lk__shape_vector(LK_F64, s->attrs->experts);
    return 4;
}

DESCRIBE(group_rows){
    .factors = "ids(!rows, !k) -> order(rows*k) place(rows, k) offsets(_) counts(_)",
    .inputs = 1,
    .in = {OPERAND("ids", I32, REQUIRED, ROWS)},
    .outputs = 4,
    .out = {OPERAND("order", I32, REQUIRED, ROWS), OPERAND("place", I32, REQUIRED, ROWS),
            OPERAND("offsets", I32, REQUIRED, ROWS), OPERAND("counts", F64, IF_READ, ROWS)},
    .attributes = LK__HAS(experts) | LK__HAS(capacity),
    .shape = group_rows_shape,
    .gradient = lk__gradient_stopped,
    .no_gradient = 1u << 0,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

/* Whether order, place and weight, inputs 1 to 3, are those of k assignments for each of `rows`. */
static bool check_assignments(lk__graph_shapes *s, const lk__graph_shape *rows, const lk__graph_shape *all)
{
    const lk__graph_shape *order = s->in[1], *place = s->in[2], *weight = s->inputs > 3 ? s->in[3] : NULL;
    int64_t                k = place->rank == 2 ? place->dims[1] : 0;
    lk__graph_shape        want = assignments(rows, k);
    bool                   known = place->rank == 2 && place->dims[0] == rows->dims[0] && order->rank == 1 &&
                 order->dims[0] == want.dims[0] && order->count_axis == want.count_axis &&
                 order->count_unit == want.count_unit && all->rank == 2 && all->dims[0] == want.dims[0] &&
                 all->count_axis == want.count_axis && all->count_unit == want.count_unit && all->count_axis <= 0;
    if (known && (!weight || lk__shape_equal(weight, place))) return true;
    if (known)
        lk__graph_fail(s->graph, s->site, "%s: weight %s does not have the shape of place, %s", lk__op_name(s->op),
                       lk__shape_show(weight).text, lk__shape_show(place).text);
    else
        lk__graph_fail(s->graph, s->site, "%s: order %s and place %s do not match the rows of %s", lk__op_name(s->op),
                       lk__shape_show(order).text, lk__shape_show(place).text, lk__shape_show(s->in[0]).text);
    return false;
}

static int gather_rows_shape(lk__graph_shapes *s)
{
    const lk__graph_shape *x = s->in[0];
    lk__graph_shape        y = assignments(x, s->in[2]->rank == 2 ? s->in[2]->dims[1] : 0);
    if (!check_assignments(s, x, &y)) return -1;
    s->out[0] = y;
    return 1;
}

static int combine_rows_shape(lk__graph_shapes *s)
{
    if (!check_assignments(s, s->in[2], s->in[0])) return -1;
    s->out[0] = *s->in[2];
    s->out[0].dtype = s->in[0]->dtype;
    s->out[0].dims[1] = s->in[0]->dims[1];
    return 1;
}

/* Each is the gradient of the other; `rows` and `all` are what the weight multiplies and what it gives, by row and by
 * assignment. */
static void give_rows_gradient(lk__graph_backward *b, lk__op other, int dy, int rows, int all)
{
    int order = lk__grad_in(b, 1), place = lk__grad_in(b, 2), weight = lk__grad_in(b, 3);
    if (weight >= 0 && lk__grad_wants(b, 3)) {
        int operands[] = {rows, all, place};
        lk__grad_give(b, 3, lk__grad_emit_like(b, LK__OP_combine_rows_grad_weight, NULL, operands, 3, weight));
    }
    if (lk__grad_wants(b, 0))
        lk__grad_give(b, 0, LK__GRAD_EMIT(b, other, NULL, weight < 0 ? 3 : 4, dy, order, place, weight));
}

static void gather_rows_gradient(lk__graph_backward *b, int dy)
{
    give_rows_gradient(b, LK__OP_combine_rows, dy, lk__grad_in(b, 0), dy);
}

static void combine_rows_gradient(lk__graph_backward *b, int dx)
{
    give_rows_gradient(b, LK__OP_gather_rows, dx, dx, lk__grad_in(b, 0));
}

DESCRIBE(gather_rows){
    .factors = "x(!rows, width) order(rows*k) place(rows, !k) weight(rows, k) -> y(rows*k, width)",
    .inputs = 4,
    .in = {OPERAND("x", REAL, REQUIRED, ROWS), OPERAND("order", I32, REQUIRED, ROWS),
           OPERAND("place", I32, REQUIRED, ROWS), OPERAND("weight", REAL, OPTIONAL, ROWS)},
    .outputs = 1,
    .out = {OPERAND("y", REAL, REQUIRED, ROWS)},
    .attributes = LK__NO_ATTRIBUTES,
    .shape = gather_rows_shape,
    .gradient = gather_rows_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

DESCRIBE(combine_rows){
    .factors = "y(rows*k, width) order(rows*k) place(!rows, !k) weight(rows, k) -> x(rows, width)",
    .inputs = 4,
    .in = {OPERAND("y", REAL, REQUIRED, ROWS), OPERAND("order", I32, REQUIRED, ROWS),
           OPERAND("place", I32, REQUIRED, ROWS), OPERAND("weight", REAL, OPTIONAL, ROWS)},
    .outputs = 1,
    .out = {OPERAND("x", REAL, REQUIRED, ROWS)},
    .attributes = LK__NO_ATTRIBUTES,
    .shape = combine_rows_shape,
    .gradient = combine_rows_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

DESCRIBE(combine_rows_grad_weight){
    .factors = "dx(!rows, width) y(rows*!k, width) place(rows, k) -> dweight(rows, k)",
    .inputs = 3,
    .in = {OPERAND("dx", REAL, REQUIRED, ROWS), OPERAND("y", REAL, REQUIRED, ROWS),
           OPERAND("place", I32, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("dweight", REAL, REQUIRED, ROWS)},
    .attributes = LK__NO_ATTRIBUTES,
    BACKWARD_ONLY,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

/* ---- one product for each expert ---- */

static int grouped_linear_shape(lk__graph_shapes *s)
{
    const lk__graph_shape *x = s->in[0], *w = s->in[1], *offsets = s->in[2];
    int                    in = s->attrs->transposed ? 1 : 2; /* the axis of the weight */
    if (w->rank != 3 || w->count_axis >= 0)
        return LK__SHAPE_FAIL(s, "grouped_linear: weight has shape %s; expected (experts, %s)", lk__shape_show(w).text,
                              in == 1 ? "in, out" : "out, in");
    if (x->rank != 2 || x->count_axis > 0 || x->dims[1] != w->dims[in])
        return LK__SHAPE_FAIL(s, "grouped_linear: x %s does not match weight %s; expected (rows, %lld)",
                              lk__shape_show(x).text, lk__shape_show(w).text, (long long)w->dims[in]);
    if (offsets->rank != 1 || offsets->count_axis >= 0 || offsets->dims[0] != w->dims[0] + 1)
        return LK__SHAPE_FAIL(
            s, "grouped_linear: offsets have shape %s; expected (%lld): where each expert's rows begin, and the end",
            lk__shape_show(offsets).text, (long long)(w->dims[0] + 1));
    s->out[0] = *x;
    s->out[0].dims[1] = w->dims[3 - in];
    return 1;
}

static void grouped_linear_gradient(lk__graph_backward *b, int dy)
{
    bool transposed = b->n.attrs.transposed;
    int  x = lk__grad_in(b, 0), w = lk__grad_in(b, 1), offsets = lk__grad_in(b, 2);
    /* The weight's first, so that it can be reduced over the ranks earlier. */
    if (lk__grad_wants(b, 1)) {
        int operands[] = {x, dy, offsets};
        lk__grad_give(b, 1,
                      lk__grad_emit_like(b, LK__OP_grouped_linear_grad_weight,
                                         &(lk__op_attrs){.transposed = transposed}, operands, 3, w));
    }
    if (lk__grad_wants(b, 0))
        lk__grad_give(
            b, 0,
            LK__GRAD_EMIT(b, LK__OP_grouped_linear, &(lk__op_attrs){.transposed = !transposed}, 3, dy, w, offsets));
}

static double grouped_linear_arithmetic(const lk_graph *g, const lk__graph_node *n)
{
    const lk__graph_shape *x = &g->values[n->in[0]].shape;
    return 2 * elements(g, n->out[0]) * (double)x->dims[1];
}

static double grouped_linear_grad_weight_arithmetic(const lk_graph *g, const lk__graph_node *n)
{
    return 2 * elements(g, n->in[0]) * (double)g->values[n->in[1]].shape.dims[1];
}

DESCRIBE(grouped_linear){
    .factors = "x(!rows, in) weight(!experts, out, in)@transposed offsets(_) -> y(rows, out)",
    .inputs = 3,
    .in = {OPERAND("x", REAL, REQUIRED, ROWS), OPERAND("weight", REAL, REQUIRED, ROWS),
           OPERAND("offsets", I32, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("y", PRODUCT, REQUIRED, ROWS)},
    .attributes = LK__HAS(transposed) | LK__HAS(sum),
    .shape = grouped_linear_shape,
    .gradient = grouped_linear_gradient,
    .no_gradient = 1u << 2,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    .matmul = 1u << 0 | 1u << 1,
    .grouped = {.offsets = 3, .weights = 1u << 1},
    .arithmetic = grouped_linear_arithmetic,
    .bytes = lk__bytes_operands,
};

/* With `parts` the offsets are the first row and the end of each expert in each of so many sources of rows, those of a
 * source side by side; the kernel is given those of one of them (plan/expert_leaves.h). */
DESCRIBE(grouped_linear_grad_weight){
    .factors = "x(!rows, in) dy(rows, out) offsets(_) -> dw(!experts, out, in)@transposed",
    .inputs = 3,
    .in = {OPERAND("x", REAL, REQUIRED, ROWS), OPERAND("dy", REAL, REQUIRED, ROWS),
           OPERAND("offsets", I32, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("dw", WIDE, REQUIRED, ROWS)},
    .attributes = LK__HAS(transposed) | LK__HAS(parts),
    BACKWARD_ONLY,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    .matmul = 1u << 0 | 1u << 1,
    .grouped = {.offsets = 3, .gradients = 1u << 0},
    .arithmetic = grouped_linear_grad_weight_arithmetic,
    .bytes = lk__bytes_operands,
};

/* ---- experts of several ranks ---- */

/* `start` is this rank, among those along the axes `mesh`. Behind the gradients (plan/experts.c). bounds: of each rank,
 * the first row and the end of each of this rank's experts. */
DESCRIBE(route_rows){
    .factors = "-",
    .inputs = 1,
    .in = {OPERAND("all_offsets", I32, REQUIRED, ROWS)},
    .outputs = 4,
    .out = {OPERAND("offsets", I32, REQUIRED, ROWS), OPERAND("order", I32, REQUIRED, ROWS),
            OPERAND("place", I32, REQUIRED, ROWS), OPERAND("bounds", I32, IF_READ, ROWS)},
    .attributes = LK__HAS(mesh) | LK__HAS(start),
    BACKWARD_ONLY,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};
