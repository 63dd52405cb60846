/* collective.c - operations that the ranks of a group run together. A collective is two nodes: one starts it, and its
 * wait completes it. The wait reads the operand as well as the result, so both are alive, and neither is overwritten,
 * from start to wait.
 *
 * Gradients are stated on global values. The result of a reduction is one value, the same on all ranks, and so is its
 * cotangent. What arrives here as dy is what this rank's samples contribute to that cotangent, as with the gradient of
 * any parameter: its sum over the group is the cotangent. An operand of a sum has the same cotangent on every rank; the
 * cotangent of a gathered operand is its own part. The result of a reduce_scatter belongs to this rank only, and so
 * does dy: the operands' cotangent is the dy of all ranks, gathered. */
#include "graph/op/describe.h"

/* The replicated value's cotangent, of what this rank contributes to it. */
static int replicate(lk__graph_backward *b, int dy)
{
    lk__op_attrs attrs = {.reduction = LK_SUM, .order = b->n.attrs.order, .group = b->n.attrs.group};
    return lk__emit_all_reduce(b->g, b->n.site, &attrs, dy);
}

static void all_reduce_gradient(lk__graph_backward *b, int dy)
{
    if (b->n.attrs.reduction != LK_SUM)
        lk__graph_fail(b->g, b->n.site, "all_reduce has a gradient only with the sum reduction");
    else
        lk__grad_give(b, 0, replicate(b, dy));
}

static void all_gather_gradient(lk__graph_backward *b, int dy)
{
    int all = replicate(b, dy);
    if (all >= 0) lk__grad_give(b, 0, lk__grad_emit_like(b, LK__OP_own_part, NULL, &all, 1, lk__grad_in(b, 0)));
}

static void reduce_scatter_gradient(lk__graph_backward *b, int dy)
{
    lk__op_attrs attrs = {.order = b->n.attrs.order, .group = b->n.attrs.group, .parts = b->n.attrs.parts};
    if (b->n.attrs.reduction != LK_SUM)
        lk__graph_fail(b->g, b->n.site, "reduce_scatter has a gradient only with the sum reduction");
    else
        lk__grad_give(b, 0, lk__emit_all_gather(b->g, b->n.site, &attrs, dy));
}

static void wait_gradient(lk__graph_backward *b, int dy) { lk__grad_give(b, 0, dy); }

int lk__emit_collective(lk_graph *g, lk_site site, lk__op op, const lk__op_attrs *attrs, int x)
{
    int y = lk__emit1(g, site, op, attrs, &x, 1);
    return y < 0 ? -1 : lk__emit1(g, site, LK__OP_wait, NULL, (int[]){y, x}, 2);
}

int lk__emit_all_reduce(lk_graph *g, lk_site site, const lk__op_attrs *attrs, int x)
{
    return lk__emit_collective(g, site, LK__OP_all_reduce, attrs, x);
}

int lk__emit_all_gather(lk_graph *g, lk_site site, const lk__op_attrs *attrs, int x)
{
    return lk__emit_collective(g, site, LK__OP_all_gather, attrs, x);
}

int lk__emit_reduce_scatter(lk_graph *g, lk_site site, const lk__op_attrs *attrs, int x)
{
    return lk__emit_collective(g, site, LK__OP_reduce_scatter, attrs, x);
}

/* Parts must be of one size. Ranks that have different parts of the batch have different counts of samples; those along
 * other axes of the mesh have the same. */
static bool check_operand(lk__graph_shapes *s)
{
    if (s->in[0]->count_axis < 0 || s->attrs->mesh) return true;
    (void)LK__SHAPE_FAIL(s, "%s: x has shape %s; expected a shape without a batch axis (marked *)", lk__op_name(s->op),
                         lk__shape_show(s->in[0]).text);
    return false;
}

static int reduced_shape(lk__graph_shapes *s) { return check_operand(s) ? lk__shape_same(s) : -1; }

/* The axis of the parts comes behind as many as the attribute `rows` says: behind the first, they lie side by side in
 * each row. */
static int gathered_shape(lk__graph_shapes *s)
{
    const lk__graph_shape *x = s->in[0];
    int64_t                dims[LK_MAX_RANK], rows = s->attrs->rows;
    if (!check_operand(s)) return -1;
    if (s->attrs->parts < 1 || x->rank + 1 > LK_MAX_RANK || rows < 0 || rows > x->rank)
        return LK__SHAPE_FAIL(s,
                              "all_gather: %lld parts of %s; expected at least 1 part, and a result of at most %d axes",
                              (long long)s->attrs->parts, lk__shape_show(x).text, LK_MAX_RANK);
    for (int i = 0; i < x->rank; i++) dims[i + (i >= rows)] = x->dims[i];
    dims[rows] = s->attrs->parts;
    s->out[0] = lk__shape_fixed(x->dtype, x->rank + 1, dims);
    if (x->count_axis >= 0)
        lk__shape_carry_count(&s->out[0], x, x->count_axis, x->count_axis + (x->count_axis >= rows));
    return 1;
}

static int scattered_shape(lk__graph_shapes *s)
{
    const lk__graph_shape *x = s->in[0];
    int64_t                dims[LK_MAX_RANK], rows = s->attrs->rows;
    if (!check_operand(s)) return -1;
    if (s->attrs->parts < 1 || rows < 0 || rows >= x->rank || x->dims[rows] != s->attrs->parts || x->count_axis == rows)
        return LK__SHAPE_FAIL(
            s, "reduce_scatter: x has shape %s; its %s must have size %lld, the number of parts (at least 1)",
            lk__shape_show(x).text, rows ? "axis after the rows" : "first axis", (long long)s->attrs->parts);
    for (int i = 0; i < x->rank - 1; i++) dims[i] = x->dims[i + (i >= rows)];
    s->out[0] = lk__shape_fixed(x->dtype, x->rank - 1, dims);
    if (x->count_axis >= 0) lk__shape_carry_count(&s->out[0], x, x->count_axis, x->count_axis - (x->count_axis > rows));
    return 1;
}

/* ---- descriptors ---- */

#define X OPERAND("x", ANY, REQUIRED, ROWS)
#define Y OPERAND("y", ANY, REQUIRED, ROWS)
#define X_TO_Y .inputs = 1, .in = {X}, .outputs = 1, .out = {Y}, .no_gradient = LK__NO_OPERAND

/* Of what has a communicated result: computing it again would communicate again. */
#define KEPT                                                                                                   \
    .in_place = LK__NO_OPERAND, .leaves = LK__LEAVES_SEPARATE, .effect = LK__EFFECT_NONE,                      \
    .evaluation = LK__EVALUATE_SAME, .recompute = LK__KEEP, .fuse = LK__FUSE_NOTHING, .loss = LK__LOSS_NO
/* Starts the collective of this kind. */
#define STARTS(kind) KEPT, .runs = LK__RUNS_COLLECTIVE, .collective = kind, MEMORY_BOUND
/* Moves no bytes. */
#define RUNS(how) KEPT, .runs = how, .arithmetic = lk__arithmetic_none, .bytes = lk__bytes_none

/* A concatenation in place: the operands have their addresses inside the result (plan/bucket.c). */
DESCRIBE(bucket){
    .factors = "-",
    .inputs = 2,
    .in = {X, OPERAND("more", ANY, REPEATED, ROWS)},
    .outputs = 1,
    .out = {Y},
    .attributes = LK__NO_ATTRIBUTES,
    BACKWARD_ONLY,
    .no_gradient = LK__NO_OPERAND,
    RUNS(LK__RUNS_NOTHING),
};

/* With `update` only in training: a statistic of the batch, which in evaluation is this rank's (plan/evaluation.c). */
DESCRIBE(all_reduce){
    .factors = "x(d..) -> y(d..)",
    X_TO_Y,
    .attributes = LK__HAS(reduction) | LK__HAS(order) | LK__HAS(group) | LK__HAS(mesh) | LK__HAS(update),
    .shape = reduced_shape,
    .gradient = all_reduce_gradient,
    STARTS(LK__ALL_REDUCE),
};

DESCRIBE(all_gather){
    .factors = "-",
    X_TO_Y,
    .attributes = LK__HAS(order) | LK__HAS(group) | LK__HAS(mesh) | LK__HAS(parts) | LK__HAS(rows),
    .shape = gathered_shape,
    .gradient = all_gather_gradient,
    STARTS(LK__ALL_GATHER),
};

DESCRIBE(reduce_scatter){
    .factors = "-",
    X_TO_Y,
    .attributes = LK__HAS(reduction) | LK__HAS(order) | LK__HAS(group) | LK__HAS(mesh) | LK__HAS(parts) | LK__HAS(rows),
    .shape = scattered_shape,
    .gradient = reduce_scatter_gradient,
    STARTS(LK__REDUCE_SCATTER),
};

/* Rows to the ranks that have their experts, or back. Behind the gradients, as own_part: its own would be its
 * reverse. */
DESCRIBE(exchange_rows){
    .factors = "-",
    .inputs = 2,
    .in = {X, OPERAND("offsets", I32, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {Y},
    .attributes = LK__HAS(mesh) | LK__HAS(parts) | LK__HAS(transposed),
    BACKWARD_ONLY,
    .no_gradient = 1u << 1,
    STARTS(LK__ALL_TO_ALLV),
};

DESCRIBE(wait){
    .factors = "y(d..) x(d..) -> complete(d..)",
    .inputs = 2,
    .in = {Y, X},
    .outputs = 1,
    .out = {OPERAND("complete", ANY, REQUIRED, ROWS)},
    .attributes = LK__NO_ATTRIBUTES,
    .shape = lk__shape_same,
    .gradient = wait_gradient,
    .no_gradient = 1u << 1,
    RUNS(LK__RUNS_WAIT),
};

/* A replicated value's part of this rank or leaf: one of those along the first axis or, where the attribute `mesh` says
 * along which axes ranks have parts, this rank's `length` along `axis` from `start` on, which the kernel of slice
 * computes. In the gradient of all_gather, and behind the gradients: its own would be another all_gather. */
DESCRIBE(own_part){
    .factors = "-",
    X_TO_Y,
    .attributes = LK__HAS(mesh) | LK__HAS(parts) | LK__HAS(axis) | LK__HAS(start) | LK__HAS(length),
    BACKWARD_ONLY,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};
