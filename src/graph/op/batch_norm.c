/* batch_norm.c - batch norm with the batch's statistics, with running statistics, and with statistics of the whole
 * global batch: several operations with sums over all ranks between them, which plan/sync_norm.c combines. */
#include "graph/op/describe.h"

#define NORM_ATTRIBUTES LK__HAS(activation) | LK__HAS(update) | LK__HAS(epsilon) | LK__HAS(momentum)

/* x, then up to `last` vectors of its channels, and input `residual` like x. */
static int norm_shape(lk__graph_shapes *s, int last, int residual, int outputs)
{
    const lk__graph_shape *x = s->in[0];
    if (x->rank != 4 && x->rank != 2)
        return LK__SHAPE_FAIL(s, "batch_norm: x has shape %s; expected (N, C) or (N, C, H, W)", lk__shape_show(x).text);
    if (x->count_axis > 0)
        return LK__SHAPE_FAIL(s, "batch_norm: the batch axis of x %s must be axis 0", lk__shape_show(x).text);
    for (int i = 1; i <= last && i < s->inputs; i++)
        if (s->in[i] && (s->in[i]->rank != 1 || s->in[i]->dims[0] != x->dims[1] || s->in[i]->count_axis >= 0))
            return LK__SHAPE_FAIL(s, "batch_norm: %s does not match the %lld channels of x %s",
                                  lk__shape_show(s->in[i]).text, (long long)x->dims[1], lk__shape_show(x).text);
    if (residual < s->inputs && s->in[residual] && !lk__shape_equal(s->in[residual], x))
        return LK__SHAPE_FAIL(s, "batch_norm: residual %s and x %s differ", lk__shape_show(s->in[residual]).text,
                              lk__shape_show(x).text);
    s->out[0] = *x;
    s->out[1] = s->out[2] = lk__shape_vector(x->dtype, x->dims[1]);
    return outputs;
}

enum { TRAINING_RESIDUAL = 6, EVALUATION_RESIDUAL = 5 };

static int training_shape(lk__graph_shapes *s) { return norm_shape(s, 4, TRAINING_RESIDUAL, 3); }
static int apply_shape(lk__graph_shapes *s) { return norm_shape(s, 4, s->inputs, 3); }
static int evaluation_shape(lk__graph_shapes *s) { return norm_shape(s, 4, EVALUATION_RESIDUAL, 1); }

static int grad_shape(lk__graph_shapes *s)
{
    s->out[0] = *s->in[1];
    s->out[1] = s->out[2] = lk__shape_vector(s->in[1]->dtype, s->in[1]->dims[1]);
    return 3;
}

static void training_gradient(lk__graph_backward *b, int dy)
{
    /* The residual needs the gradient before the activation, too; only relu's is part of the kernel. */
    if (lk__grad_in(b, TRAINING_RESIDUAL) >= 0 || b->n.attrs.activation != LK__RELU) {
        dy = lk__grad_before_activation(b, dy);
        b->n.attrs.activation = LK__IDENTITY;
        if (lk__grad_wants(b, TRAINING_RESIDUAL)) lk__grad_give(b, TRAINING_RESIDUAL, dy);
    }
    int operands[] = {
        dy, lk__grad_in(b, 0), lk__grad_in(b, 1), lk__grad_out(b, 1), lk__grad_out(b, 2), lk__grad_out(b, 0)};
    lk__grad_norm(b, LK__OP_batch_norm_grad, operands, b->n.attrs.activation ? 6 : 5, 2);
}

static void evaluation_gradient(lk__graph_backward *b, int dy)
{
    dy = lk__grad_before_activation(b, dy);
    if (lk__grad_wants(b, EVALUATION_RESIDUAL)) lk__grad_give(b, EVALUATION_RESIDUAL, dy);
    int operands[] = {dy, lk__grad_in(b, 0), lk__grad_in(b, 1), lk__grad_in(b, 3), lk__grad_in(b, 4)};
    lk__grad_norm(b, LK__OP_batch_norm_eval_grad, operands, 5, 2);
}

DESCRIBE(batch_norm){
    .factors =
        "x(!n, c, !s..) weight(c) bias(c) running_mean(c) running_var(c) num_batches_tracked() residual(n, c, s..) "
        "-> y(n, c, s..) mean(c) rstd(c)",
    .inputs = 7,
    .in = {OPERAND("x", REAL, REQUIRED, LAST), OPERAND("weight", WIDE, OPTIONAL, ROWS),
           OPERAND("bias", WIDE, OPTIONAL, ROWS), OPERAND("running_mean", WIDE, OPTIONAL, ROWS),
           OPERAND("running_var", WIDE, OPTIONAL, ROWS), OPERAND("num_batches_tracked", I64, OPTIONAL, ROWS),
           OPERAND("residual", REAL, OPTIONAL, LAST)},
    .outputs = 3,
    .out = {OPERAND("y", REAL, REQUIRED, LAST), OPERAND("mean", WIDE, REQUIRED, ROWS),
            OPERAND("rstd", WIDE, REQUIRED, ROWS)},
    .attributes = NORM_ATTRIBUTES,
    .shape = training_shape,
    .gradient = training_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    .leaves = LK__LEAVES_SEPARATE,
    .runs = LK__RUNS_KERNEL,
    .effect = LK__EFFECT_IF_UPDATE,
    .evaluation = LK__EVALUATE_BY_BUFFERS,
    .recompute = LK__RECOMPUTE,
    .fuse = {{LK__FUSION_SUM, .operand = TRAINING_RESIDUAL}, {LK__FUSION_FUNCTION}},
    .loss = LK__LOSS_NO,
    MEMORY_BOUND,
};

DESCRIBE(batch_norm_grad){
    .factors = "dy(!n, c, !s..) x(n, c, s..) weight(c) mean(c) rstd(c) y(n, c, s..) -> dx(n, c, s..) dw(c) db(c)",
    .inputs = 6,
    .in = {OPERAND("dy", REAL, REQUIRED, LAST), OPERAND("x", REAL, REQUIRED, LAST),
           OPERAND("weight", WIDE, OPTIONAL, ROWS), OPERAND("mean", WIDE, REQUIRED, ROWS),
           OPERAND("rstd", WIDE, REQUIRED, ROWS), OPERAND("y", REAL, OPTIONAL, LAST)},
    .outputs = 3,
    .out = {OPERAND("dx", REAL, REQUIRED, LAST), OPERAND("dw", WIDE, OPTIONAL, ROWS),
            OPERAND("db", WIDE, OPTIONAL, ROWS)},
    .attributes = NORM_ATTRIBUTES,
    .shape = grad_shape,
    .gradient = lk__gradient_none,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

DESCRIBE(batch_norm_eval){
    .factors = "x(n, c, s..) weight(c) bias(c) running_mean(c) running_var(c) residual(n, c, s..) -> y(n, c, s..)",
    .inputs = 6,
    .in = {OPERAND("x", REAL, REQUIRED, LAST), OPERAND("weight", WIDE, OPTIONAL, ROWS),
           OPERAND("bias", WIDE, OPTIONAL, ROWS), OPERAND("running_mean", WIDE, REQUIRED, ROWS),
           OPERAND("running_var", WIDE, REQUIRED, ROWS), OPERAND("residual", REAL, OPTIONAL, LAST)},
    .outputs = 1,
    .out = {OPERAND("y", REAL, REQUIRED, LAST)},
    .attributes = NORM_ATTRIBUTES,
    .shape = evaluation_shape,
    .gradient = evaluation_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = 1u << 0,
    .leaves = LK__LEAVES_SEPARATE,
    .runs = LK__RUNS_KERNEL,
    .effect = LK__EFFECT_NONE,
    .evaluation = LK__EVALUATE_SAME,
    .recompute = LK__RECOMPUTE,
    .fuse = {{LK__FUSION_SUM, .operand = EVALUATION_RESIDUAL}, {LK__FUSION_FUNCTION}},
    .loss = LK__LOSS_NO,
    MEMORY_BOUND,
};

DESCRIBE(batch_norm_eval_grad){
    .factors = "dy(n, c, s..) x(n, c, s..) weight(c) running_mean(c) running_var(c) -> dx(n, c, s..) dw(c) db(c)",
    .inputs = 5,
    .in = {OPERAND("dy", REAL, REQUIRED, LAST), OPERAND("x", REAL, REQUIRED, LAST),
           OPERAND("weight", WIDE, OPTIONAL, ROWS), OPERAND("running_mean", WIDE, REQUIRED, ROWS),
           OPERAND("running_var", WIDE, REQUIRED, ROWS)},
    .outputs = 3,
    .out = {OPERAND("dx", REAL, REQUIRED, LAST), OPERAND("dw", WIDE, OPTIONAL, ROWS),
            OPERAND("db", WIDE, OPTIONAL, ROWS)},
    .attributes = NORM_ATTRIBUTES,
    .shape = grad_shape,
    .gradient = lk__gradient_none,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

/* ---- with the statistics of all ranks: sums in double, which are added over ranks ---- */

static int stats_shape(lk__graph_shapes *s)
{
    int64_t channels = s->in[0]->dims[1];
    s->out[0] = lk__shape_fixed(LK_F64, 2, (int64_t[]){3, channels}); /* how many, their sums, and their squares' */
    s->out[1] = lk__shape_vector(LK_F64, channels);
    return 2;
}

static int grad_stats_shape(lk__graph_shapes *s)
{
    int64_t channels = s->in[1]->dims[1];
    s->out[0] = lk__shape_fixed(LK_F64, 2, (int64_t[]){2, channels});
    s->out[1] = s->out[2] = lk__shape_vector(s->in[1]->dtype, channels);
    return 3;
}

/* The attributes of the all_reduce that made the statistics: input 6 is its wait. */
static lk__op_attrs stats_collective(const lk__graph_backward *b)
{
    const lk_graph *g = b->g;
    int             started = g->nodes[g->values[b->n.in[6]].node].in[0];
    return g->nodes[g->values[started].node].attrs;
}

/* The sums in the gradient of the statistics are those of all ranks; dw and db are of this rank's rows, like the
 * gradient of any weight. The statistics themselves get no gradient: dx has all of it. */
static void apply_gradient(lk__graph_backward *b, int dy)
{
    if (b->n.attrs.activation != LK__RELU) { /* only relu's gradient is part of the kernels */
        dy = lk__grad_before_activation(b, dy);
        b->n.attrs.activation = LK__IDENTITY;
    }
    const lk__op_attrs attrs = b->n.attrs;
    int y = attrs.activation ? lk__grad_out(b, 0) : -1, mean = lk__grad_out(b, 1), rstd = lk__grad_out(b, 2);
    int operands[] = {dy, lk__grad_in(b, 0), mean, rstd, y};
    int wanted = 1 | (lk__grad_wants(b, 1) ? 2 : 0) | (lk__grad_wants(b, 2) ? 4 : 0);
    int node = lk__emit(b->g, b->n.site, LK__OP_batch_norm_grad_stats, &attrs, operands, y < 0 ? 4 : 5, wanted);
    if (node < 0) return;
    lk__graph_node made = b->g->nodes[node];
    for (int i = 1; i <= 2; i++)
        if (lk__grad_wants(b, i)) lk__grad_give(b, i, made.out[i]);
    if (!lk__grad_wants(b, 0)) return;
    lk__op_attrs like = stats_collective(b);
    int          sums = lk__emit_all_reduce(b->g, b->n.site, &like, made.out[0]);
    lk__grad_give(b, 0,
                  LK__GRAD_EMIT(b, LK__OP_batch_norm_grad_apply, &attrs, 8, dy, lk__grad_in(b, 0), lk__grad_in(b, 1),
                                mean, rstd, y, sums, lk__grad_in(b, 6)));
}

DESCRIBE(batch_norm_stats){
    .factors = "x(n, c, s..) running_mean(c) -> batch_norm_sums(_, c) centre(c):running_mean",
    .inputs = 2,
    .in = {OPERAND("x", REAL, REQUIRED, LAST), OPERAND("running_mean", WIDE, OPTIONAL, ROWS)},
    .outputs = 2,
    .out = {OPERAND("batch norm sums", F64, REQUIRED, ROWS), OPERAND("centre", F64, REQUIRED, ROWS)},
    .attributes = LK__NO_ATTRIBUTES,
    .shape = stats_shape,
    .gradient = lk__gradient_stopped,
    .no_gradient = 1u << 0 | 1u << 1,
    .in_place = LK__NO_OPERAND,
    .leaves = LK__LEAVES_SEPARATE,
    .runs = LK__RUNS_KERNEL,
    .effect = LK__EFFECT_NONE,
    .evaluation = LK__EVALUATE_SAME,
    .recompute = LK__KEEP,
    .fuse = LK__FUSE_NOTHING,
    .loss = LK__LOSS_NO,
    MEMORY_BOUND,
};

DESCRIBE(batch_norm_apply){
    .factors =
        "x(n, c, s..) weight(c) bias(c) running_mean(c) running_var(c) num_batches_tracked() stats(_, c) centre(c) "
        "-> y(n, c, s..) mean(c):stats,centre rstd(c):stats,centre",
    .inputs = 8,
    .in = {OPERAND("x", REAL, REQUIRED, LAST), OPERAND("weight", WIDE, OPTIONAL, ROWS),
           OPERAND("bias", WIDE, OPTIONAL, ROWS), OPERAND("running_mean", WIDE, OPTIONAL, ROWS),
           OPERAND("running_var", WIDE, OPTIONAL, ROWS), OPERAND("num_batches_tracked", I64, OPTIONAL, ROWS),
           OPERAND("stats", F64, REQUIRED, ROWS), OPERAND("centre", F64, REQUIRED, ROWS)},
    .outputs = 3,
    .out = {OPERAND("y", REAL, REQUIRED, LAST), OPERAND("mean", WIDE, REQUIRED, ROWS),
            OPERAND("rstd", WIDE, REQUIRED, ROWS)},
    .attributes = NORM_ATTRIBUTES,
    .shape = apply_shape,
    .gradient = apply_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    .leaves = LK__LEAVES_SEPARATE,
    .runs = LK__RUNS_KERNEL,
    .effect = LK__EFFECT_IF_UPDATE,
    .evaluation = LK__EVALUATE_SAME,
    .recompute = LK__RECOMPUTE,
    .fuse = LK__FUSE_NOTHING,
    .loss = LK__LOSS_NO,
    MEMORY_BOUND,
};

DESCRIBE(batch_norm_grad_stats){
    .factors = "dy(n, c, s..) x(n, c, s..) mean(c) rstd(c) y(n, c, s..) -> batch_norm_sums(_, c) dw(c) db(c)",
    .inputs = 5,
    .in = {OPERAND("dy", REAL, REQUIRED, LAST), OPERAND("x", REAL, REQUIRED, LAST),
           OPERAND("mean", WIDE, REQUIRED, ROWS), OPERAND("rstd", WIDE, REQUIRED, ROWS),
           OPERAND("y", REAL, OPTIONAL, LAST)},
    .outputs = 3,
    .out = {OPERAND("batch norm sums", F64, REQUIRED, ROWS), OPERAND("dw", WIDE, OPTIONAL, ROWS),
            OPERAND("db", WIDE, OPTIONAL, ROWS)},
    .attributes = NORM_ATTRIBUTES,
    .shape = grad_stats_shape,
    .gradient = lk__gradient_none,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

DESCRIBE(batch_norm_grad_apply){
    .factors = "dy(n, c, s..) x(n, c, s..) weight(c) mean(c) rstd(c) y(n, c, s..) sums(_, c) stats(_, c) "
               "-> dx(n, c, s..)",
    .inputs = 8,
    .in = {OPERAND("dy", REAL, REQUIRED, LAST), OPERAND("x", REAL, REQUIRED, LAST),
           OPERAND("weight", WIDE, OPTIONAL, ROWS), OPERAND("mean", WIDE, REQUIRED, ROWS),
           OPERAND("rstd", WIDE, REQUIRED, ROWS), OPERAND("y", REAL, OPTIONAL, LAST),
           OPERAND("sums", F64, REQUIRED, ROWS), OPERAND("stats", F64, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("dx", REAL, REQUIRED, LAST)},
    .attributes = NORM_ATTRIBUTES,
    .shape = lk__shape_same_second,
    .gradient = lk__gradient_none,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};
