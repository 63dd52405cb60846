/* loss.c - losses: a sum over samples in double, and the weight that the mean divides by. */
#include "graph/op/describe.h"
#include "graph/op/loss_parts.h"

#define LOSS                                                                                                        \
    .leaves = LK__LEAVES_SEPARATE, .runs = LK__RUNS_KERNEL, .effect = LK__EFFECT_NONE, \
    .evaluation = LK__EVALUATE_SAME, .recompute = LK__RECOMPUTE, .fuse = LK__FUSE_NOTHING

/* ---- weights that are known before the model runs ---- */

static bool weigh_elements(lk_graph *g, const lk__graph_node *n, int *value)
{
    (void)g, (void)n;
    *value = -1;
    return true;
}

static int emit_number(lk_graph *g, lk_site site, lk_dtype type, double number)
{
    lk__graph_shape shape = lk__shape_scalar(type);
    int             node = lk__emit_shaped(g, site, LK__OP_fill, &(lk__op_attrs){.scale = number}, NULL, 0, &shape, 1);
    return node < 0 ? -1 : g->nodes[node].out[0];
}

/* The sum of x, times a number. */
static bool emit_sum(lk_graph *g, lk_site site, int x, double times, int *value)
{
    *value = x < 0 ? -1 : lk__emit1(g, site, LK__OP_total, NULL, &x, 1);
    if (*value >= 0 && times != 1) *value = lk__emit1(g, site, LK__OP_scale, &(lk__op_attrs){.scale = times}, value, 1);
    return *value >= 0;
}

/* The rows whose label is not ignored, or the weights of these. */
static bool weigh_labels(lk_graph *g, const lk__graph_node *n, int labels, int weight, int *value)
{
    lk_site  site = n->site;
    lk_dtype type = weight < 0 ? g->real : g->values[weight].shape.dtype;
    int      wide = lk__emit_cast(g, site, labels, LK_F64); /* exact */
    int      ignored = emit_number(g, site, LK_F64, (double)n->attrs.ignore_index);
    if (wide < 0 || ignored < 0) return false;
    int counts = lk__emit1(g, site, LK__OP_sub, NULL, (int[]){wide, ignored}, 2); /* not 0: it does */
    int one = weight < 0 ? emit_number(g, site, type, 1) : weight, zero = emit_number(g, site, type, 0);
    if (counts < 0 || one < 0 || zero < 0) return false;
    return emit_sum(g, site, lk__emit1(g, site, LK__OP_where, NULL, (int[]){counts, one, zero}, 3), 1, value);
}

static bool weigh_cross_entropy(lk_graph *g, const lk__graph_node *n, int *value)
{
    lk__graph_node own = *n; /* nodes move as they grow */
    return weigh_labels(g, &own, own.in[1], own.inputs > 2 ? own.in[2] : -1, value);
}

static bool weigh_linear_cross_entropy(lk_graph *g, const lk__graph_node *n, int *value)
{
    lk__graph_node own = *n;
    return weigh_labels(g, &own, own.in[2], -1, value);
}

static bool weigh_bce_with_logits(lk_graph *g, const lk__graph_node *n, int *value)
{
    int w = n->inputs > 2 ? n->in[2] : -1;
    if (w < 0) return weigh_elements(g, n, value);
    double each =
        (double)lk__shape_elements(&g->values[n->in[0]].shape) / (double)lk__shape_elements(&g->values[w].shape);
    return emit_sum(g, n->site, w, each, value);
}

static bool weigh_total(lk_graph *g, const lk__graph_node *n, int *value)
{
    if (n->inputs < 2 || n->in[1] < 0) return weigh_elements(g, n, value);
    return emit_sum(g, n->site, n->in[1], 1, value);
}

/* ---- cross_entropy ---- */

/* (parts, rows, numbers of a row), of logits (rows, classes). */
static lk__graph_shape statistics_of_rows(const lk__graph_shape *x, int64_t parts)
{
    lk__graph_shape statistics = lk__shape_fixed(LK_F64, 3, (int64_t[]){parts, x->dims[0], LK__CLASS_STATISTICS});
    lk__shape_carry_count(&statistics, x, 0, 1);
    return statistics;
}

/* Checks the operands; -1: the failure is recorded. */
static int check_labelled_rows(lk__graph_shapes *s)
{
    const lk__graph_shape *x = s->in[0], *labels = s->in[1], *w = s->inputs > 2 ? s->in[2] : NULL;
    const lk__graph_shape *parts = s->inputs > 3 ? s->in[3] : NULL;
    if (x->rank != 2)
        return LK__SHAPE_FAIL(s, "%s: logits have shape %s; expected (rows, classes)", lk__op_name(s->op),
                              lk__shape_show(x).text);
    lk__graph_shape rows = lk__shape_fixed(labels->dtype, 1, x->dims);
    lk__shape_carry_count(&rows, x, 0, 0);
    if (labels->dtype != LK_I32 || !lk__shape_equal(&rows, labels))
        return LK__SHAPE_FAIL(s, "%s: labels %s (%s) do not match logits %s; expected one i32 per row",
                              lk__op_name(s->op), lk__shape_show(labels).text, lk_dtype_name(labels->dtype),
                              lk__shape_show(x).text);
    if (w && !lk__shape_equal(&rows, w))
        return LK__SHAPE_FAIL(s, "%s: weight %s does not match logits %s", lk__op_name(s->op), lk__shape_show(w).text,
                              lk__shape_show(x).text);
    lk__graph_shape own = statistics_of_rows(x, parts && parts->rank == 3 ? parts->dims[0] : 1);
    if (parts && !lk__shape_equal(&own, parts))
        return LK__SHAPE_FAIL(s, "%s: statistics %s do not match logits %s; expected (parts, rows, %d)",
                              lk__op_name(s->op), lk__shape_show(parts).text, lk__shape_show(x).text,
                              LK__CLASS_STATISTICS);
    if (!(s->attrs->label_smoothing >= 0 && s->attrs->label_smoothing < 1))
        return LK__SHAPE_FAIL(s, "%s: label_smoothing is %g; expected at least 0 and less than 1", lk__op_name(s->op),
                              s->attrs->label_smoothing);
    return 0;
}

static int cross_entropy_shape(lk__graph_shapes *s)
{
    if (check_labelled_rows(s) < 0) return -1;
    s->out[0] = s->out[1] = s->out[2] = lk__shape_scalar(LK_F64);
    s->out[3] = *s->in[0];
    return 4;
}

static int class_statistics_shape(lk__graph_shapes *s)
{
    if (check_labelled_rows(s) < 0) return -1;
    s->out[0] = statistics_of_rows(s->in[0], s->attrs->sum.parts > 1 ? s->attrs->sum.parts : 1);
    return 1;
}

static int cross_entropy_each_shape(lk__graph_shapes *s)
{
    if (check_labelled_rows(s) < 0) return -1;
    s->out[0] = *s->in[1];
    s->out[0].dtype = s->in[0]->dtype;
    s->out[1] = *s->in[0];
    return 2;
}

static void cross_entropy_gradient(lk__graph_backward *b, int dy)
{
    int dloss = dy == LK__GRAD_ONE ? -1 : dy;
    if (!lk__grad_wants(b, 0)) return;
    lk__grad_give(b, 0,
                  LK__GRAD_EMIT(b, LK__OP_cross_entropy_grad, &b->n.attrs, 4, lk__grad_out(b, 3), lk__grad_in(b, 1),
                                lk__grad_in(b, 2), dloss));
}

DESCRIBE(cross_entropy){
    .factors = "logits(rows.., !classes) labels(rows..) weight(rows..) "
               "-> sum() weight():labels,weight correct() probabilities(rows.., classes)\n"
               "logits(rows.., classes) labels(rows..) weight(rows..) statistics(_, rows.., _) "
               "-> sum():labels,weight,statistics weight():labels,weight correct():labels,statistics "
               "probabilities(rows.., classes)",
    .inputs = 4,
    .in = {OPERAND("logits", REAL, REQUIRED, ROWS), OPERAND("labels", I32, REQUIRED, ROWS),
           OPERAND("weight", REAL, OPTIONAL, ROWS), OPERAND("statistics", F64, OPTIONAL, ROWS)},
    .outputs = 4,
    .out = {OPERAND("sum", F64, REQUIRED, ROWS), OPERAND("weight", F64, REQUIRED, ROWS),
            OPERAND("correct", F64, REQUIRED, ROWS), OPERAND("probabilities", REAL, REQUIRED, ROWS)},
    .attributes = LK__HAS(ignore_index) | LK__HAS(label_smoothing) | LK__HAS(sum),
    .shape = cross_entropy_shape,
    .gradient = cross_entropy_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    LOSS,
    .loss = LK__LOSS_SUM_WEIGHT_CORRECT,
    .weigh = weigh_cross_entropy,
    .coupled = {.input = 0, .dim = -1, .divide = lk__divide_cross_entropy},
    .replaces = {.output = 3, .with = 3}, /* statistics say what is needed of logits of other rows and classes */
    MEMORY_BOUND,
};

/* That of a row is multiplied by dy of the row, as by a weight. */
static void cross_entropy_each_gradient(lk__graph_backward *b, int dy)
{
    int weight = lk__grad_in(b, 2);
    if (!lk__grad_wants(b, 0)) return;
    if (weight >= 0) dy = LK__GRAD_EMIT(b, LK__OP_mul, NULL, 2, dy, weight);
    lk__grad_give(
        b, 0, LK__GRAD_EMIT(b, LK__OP_cross_entropy_grad, &b->n.attrs, 3, lk__grad_out(b, 1), lk__grad_in(b, 1), dy));
}

DESCRIBE(cross_entropy_each){
    .factors = "logits(rows.., !classes) labels(rows..) weight(rows..) -> loss(rows..) probabilities(rows.., classes)\n"
               "logits(rows.., classes) labels(rows..) weight(rows..) statistics(_, rows.., _) "
               "-> loss(rows..):labels,weight,statistics probabilities(rows.., classes)",
    .inputs = 4,
    .in = {OPERAND("logits", REAL, REQUIRED, ROWS), OPERAND("labels", I32, REQUIRED, ROWS),
           OPERAND("weight", REAL, OPTIONAL, ROWS), OPERAND("statistics", F64, OPTIONAL, ROWS)},
    .outputs = 2,
    .out = {OPERAND("loss", REAL, REQUIRED, ROWS), OPERAND("probabilities", REAL, IF_READ, ROWS)},
    .attributes = LK__HAS(ignore_index) | LK__HAS(label_smoothing) | LK__HAS(sum),
    .shape = cross_entropy_each_shape,
    .gradient = cross_entropy_each_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    .coupled = {.input = 0, .dim = -1, .divide = lk__divide_cross_entropy},
    .replaces = {.output = 1, .with = 3},
    MEMORY_BOUND,
};

DESCRIBE(cross_entropy_grad){
    .factors = "probabilities(rows.., classes) labels(rows..) weight(rows..) dloss() -> dlogits(rows.., classes)",
    .inputs = 4,
    .in = {OPERAND("probabilities", REAL, REQUIRED, ROWS), OPERAND("labels", I32, REQUIRED, ROWS),
           OPERAND("weight", REAL, OPTIONAL, ROWS), OPERAND("dloss", F64, OPTIONAL, ROWS)},
    .outputs = 1,
    .out = {OPERAND("dlogits", REAL, REQUIRED, ROWS)},
    .attributes = LK__HAS(ignore_index) | LK__HAS(label_smoothing),
    .shape = lk__shape_same,
    .gradient = lk__gradient_none,
    .no_gradient = LK__NO_OPERAND,
    .in_place = 1u << 0,
    ORDINARY,
    MEMORY_BOUND,
};

/* What a part of the classes tells the others, before the loss: inserted where the classes of a loss are cut. */
DESCRIBE(class_statistics){
    .factors = "logits(rows.., !classes) labels(rows..) -> statistics(#classes, rows.., _)",
    .inputs = 2,
    .in = {OPERAND("logits", REAL, REQUIRED, ROWS), OPERAND("labels", I32, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("statistics", F64, REQUIRED, ROWS)},
    .attributes = LK__HAS(ignore_index) | LK__HAS(label_smoothing) | LK__HAS(sum),
    .shape = class_statistics_shape,
    .gradient = lk__gradient_none,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

/* ---- mse, l1 ---- */

static int distance_shape(lk__graph_shapes *s)
{
    if (!lk__shape_equal(s->in[0], s->in[1]))
        return LK__SHAPE_FAIL(s, "%s: x %s and target %s differ", lk__op_name(s->op), lk__shape_show(s->in[0]).text,
                              lk__shape_show(s->in[1]).text);
    s->out[0] = s->out[1] = lk__shape_scalar(LK_F64);
    return 2;
}

/* The target's gradient is that of x with the operands exchanged. */
static void give_distance_gradient(lk__graph_backward *b, lk__op op, int dy)
{
    int dloss = dy == LK__GRAD_ONE ? -1 : dy;
    for (int i = 0; i < 2; i++)
        if (lk__grad_wants(b, i))
            lk__grad_give(b, i, LK__GRAD_EMIT(b, op, NULL, 3, lk__grad_in(b, i), lk__grad_in(b, 1 - i), dloss));
}

static void mse_gradient(lk__graph_backward *b, int dy) { give_distance_gradient(b, LK__OP_mse_grad, dy); }
static void l1_gradient(lk__graph_backward *b, int dy) { give_distance_gradient(b, LK__OP_l1_grad, dy); }

#define DISTANCE(rule)                                                                                               \
    {                                                                                                                \
        .factors = "x(d..) target(d..) -> sum() weight()", \
        .inputs = 2, .in = {OPERAND("x", REAL, REQUIRED, ROWS), OPERAND("target", REAL, REQUIRED, ROWS)},            \
        .outputs = 2, .out = {OPERAND("sum", F64, REQUIRED, ROWS), OPERAND("weight", F64, REQUIRED, ROWS)},          \
        .attributes = LK__NO_ATTRIBUTES, .shape = distance_shape, .gradient = rule, .no_gradient = LK__NO_OPERAND,   \
        .in_place = LK__NO_OPERAND, LOSS, .loss = LK__LOSS_SUM_WEIGHT,              \
        .weigh = weigh_elements, MEMORY_BOUND                                                                        \
    }
DESCRIBE(mse) DISTANCE(mse_gradient);
DESCRIBE(l1) DISTANCE(l1_gradient);

#define DISTANCE_GRAD                                                                                                \
    {                                                                                                                \
        .factors = "x(d..) target(d..) dloss() -> dx(d..)", \
        .inputs = 3,                                                                                                 \
        .in = {OPERAND("x", REAL, REQUIRED, ROWS), OPERAND("target", REAL, REQUIRED, ROWS),                          \
               OPERAND("dloss", F64, OPTIONAL, ROWS)},                                                               \
        .outputs = 1, .out = {OPERAND("dx", REAL, REQUIRED, ROWS)}, .attributes = LK__NO_ATTRIBUTES,                 \
        .shape = lk__shape_same, .gradient = lk__gradient_none, .no_gradient = LK__NO_OPERAND,                       \
        .in_place = LK__NO_OPERAND, ORDINARY, MEMORY_BOUND                                                        \
    }
DESCRIBE(mse_grad) DISTANCE_GRAD;
DESCRIBE(l1_grad) DISTANCE_GRAD;

/* ---- bce_with_logits ---- */

static int bce_with_logits_shape(lk__graph_shapes *s)
{
    const lk__graph_shape *x = s->in[0], *target = s->in[1], *w = s->inputs > 2 ? s->in[2] : NULL;
    if (!lk__shape_equal(x, target))
        return LK__SHAPE_FAIL(s, "bce_with_logits: logits %s and target %s differ", lk__shape_show(x).text,
                              lk__shape_show(target).text);
    bool fits = !w || (w->rank <= x->rank && w->count_axis == x->count_axis && w->count_unit == x->count_unit);
    for (int i = 0; fits && w && i < w->rank; i++) fits = w->dims[i] == x->dims[i];
    if (!fits)
        return LK__SHAPE_FAIL(s, "bce_with_logits: weight %s does not match the first axes of logits %s",
                              lk__shape_show(w).text, lk__shape_show(x).text);
    s->out[0] = s->out[1] = lk__shape_scalar(LK_F64);
    s->out[2] = *x;
    return 3;
}

/* Forward computed it together with the loss. */
static void bce_with_logits_gradient(lk__graph_backward *b, int dy)
{
    int dlogits = lk__grad_out(b, 2);
    if (!lk__grad_wants(b, 0)) return;
    lk__grad_give(b, 0, dy == LK__GRAD_ONE ? dlogits : LK__GRAD_EMIT(b, LK__OP_scale_by, NULL, 2, dlogits, dy));
}

DESCRIBE(bce_with_logits){
    .factors = "logits(rows.., d..) target(rows.., d..) weight(rows..) -> sum() weight() dlogits(rows.., d..)",
    .inputs = 3,
    .in = {OPERAND("logits", REAL, REQUIRED, ROWS), OPERAND("target", REAL, REQUIRED, ROWS),
           OPERAND("weight", REAL, OPTIONAL, ROWS)},
    .outputs = 3,
    .out = {OPERAND("sum", F64, REQUIRED, ROWS), OPERAND("weight", F64, REQUIRED, ROWS),
            OPERAND("dlogits", REAL, IF_READ, ROWS)},
    .attributes = LK__NO_ATTRIBUTES,
    .shape = bce_with_logits_shape,
    .gradient = bce_with_logits_gradient,
    .no_gradient = 1u << 1 | 1u << 2,
    .in_place = LK__NO_OPERAND,
    LOSS,
    .loss = LK__LOSS_SUM_WEIGHT,
    .weigh = weigh_bce_with_logits,
    MEMORY_BOUND,
};

/* ---- total: a sum and its weight, for losses and metrics ---- */

static int total_shape(lk__graph_shapes *s)
{
    s->out[0] = s->out[1] = lk__shape_scalar(LK_F64);
    return 2;
}

static void total_gradient(lk__graph_backward *b, int dy)
{
    if (!lk__grad_wants(b, 0)) return;
    lk__graph_shape shape = lk__grad_shape(b, lk__grad_in(b, 0));
    int node = lk__emit_shaped(b->g, b->n.site, LK__OP_fill, &(lk__op_attrs){.scale = 1}, NULL, 0, &shape, 1);
    if (node < 0) return;
    int ones = b->g->nodes[node].out[0];
    lk__grad_give(b, 0, dy == LK__GRAD_ONE ? ones : LK__GRAD_EMIT(b, LK__OP_scale_by, NULL, 2, ones, dy));
}

DESCRIBE(total){
    .factors = "x(d..) -> sum() weight()\n"
               "x(d..) weight(w..) -> sum():x weight():weight",
    .inputs = 2,
    .in = {OPERAND("x", REAL, REQUIRED, ROWS), OPERAND("weight", REAL, OPTIONAL, ROWS)},
    .outputs = 2,
    .out = {OPERAND("sum", F64, REQUIRED, ROWS), OPERAND("weight", F64, REQUIRED, ROWS)},
    .attributes = LK__NO_ATTRIBUTES,
    .shape = total_shape,
    .gradient = total_gradient,
    .no_gradient = 1u << 1,
    .in_place = LK__NO_OPERAND,
    LOSS,
    .loss = LK__LOSS_SUM_WEIGHT,
    .weigh = weigh_total,
    MEMORY_BOUND,
};

/* ---- linear_cross_entropy ---- */

static int linear_cross_entropy_shape(lk__graph_shapes *s)
{
    const lk__graph_shape *x = s->in[0], *w = s->in[1], *labels = s->in[2];
    if (x->rank != 2 || w->rank != 2 || w->count_axis >= 0 || w->dims[1] != x->dims[1] || x->count_axis > 0)
        return LK__SHAPE_FAIL(s, "linear_cross_entropy: x %s and weight %s must be (rows, width) and (classes, width)",
                              lk__shape_show(x).text, lk__shape_show(w).text);
    lk__graph_shape rows = lk__shape_fixed(labels->dtype, 1, x->dims);
    lk__shape_carry_count(&rows, x, 0, 0);
    if (!lk__shape_equal(&rows, labels))
        return LK__SHAPE_FAIL(s, "linear_cross_entropy: labels %s do not match x %s; expected one i32 per row",
                              lk__shape_show(labels).text, lk__shape_show(x).text);
    if (!(s->attrs->label_smoothing >= 0 && s->attrs->label_smoothing < 1))
        return LK__SHAPE_FAIL(s, "linear_cross_entropy: label_smoothing is %g; expected at least 0 and less than 1",
                              s->attrs->label_smoothing);
    s->out[0] = s->out[1] = s->out[2] = lk__shape_scalar(LK_F64);
    s->out[3] = *x;
    s->out[4] = *w;
    return 5;
}

/* Forward computed both gradients together with the loss. */
static void linear_cross_entropy_gradient(lk__graph_backward *b, int dy)
{
    for (int i = 0; i < 2; i++) {
        int made = lk__grad_out(b, 3 + i);
        if (!lk__grad_wants(b, i)) continue;
        lk__grad_give(b, i, dy == LK__GRAD_ONE ? made : LK__GRAD_EMIT(b, LK__OP_scale_by, NULL, 2, made, dy));
    }
}

static double linear_cross_entropy_arithmetic(const lk_graph *g, const lk__graph_node *n)
{
    int products = 1 + (n->outputs > 3 && n->out[3] >= 0) + (n->outputs > 4 && n->out[4] >= 0);
    return 2 * products * elements(g, n->in[2]) * elements(g, n->in[1]);
}

DESCRIBE(linear_cross_entropy){
    .factors = "x(rows, !width) weight(!classes, width) labels(rows) "
               "-> sum() weight():labels correct() dx(rows, width) dweight(classes, width)",
    .inputs = 3,
    .in = {OPERAND("x", REAL, REQUIRED, ROWS), OPERAND("weight", REAL, REQUIRED, ROWS),
           OPERAND("labels", I32, REQUIRED, ROWS)},
    .outputs = 5,
    .out = {OPERAND("sum", F64, REQUIRED, ROWS), OPERAND("weight", F64, REQUIRED, ROWS),
            OPERAND("correct", F64, REQUIRED, ROWS), OPERAND("dx", REAL, IF_READ, ROWS),
            OPERAND("dweight", WIDE, IF_READ, ROWS)},
    .attributes = LK__HAS(ignore_index) | LK__HAS(label_smoothing) | LK__HAS(sum) | LK__HAS(rows),
    .shape = linear_cross_entropy_shape,
    .gradient = linear_cross_entropy_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    LOSS,
    .loss = LK__LOSS_SUM_WEIGHT_CORRECT,
    .weigh = weigh_linear_cross_entropy,
    .matmul = 1u << 0 | 1u << 1,
    .coupled = {.input = 1, .dim = 0, .divide = lk__divide_linear_cross_entropy},
    .arithmetic = linear_cross_entropy_arithmetic,
    .bytes = lk__bytes_operands,
};
