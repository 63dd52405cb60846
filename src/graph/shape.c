/* shape.c - one rule per operation: checks the inputs' shapes and gives the outputs'. The run-time count of an axis follows
 * the data: a rule that cannot carry it refuses. */
#include "graph/graph.h"

#include <stdio.h>
#include <string.h>

/* What a rule works on; `fail` keeps the first failure in the graph and makes the rule return -1. */
typedef struct rule {
    lk_graph              *graph;
    lk_site                site;
    lk__op                 op;
    const lk__op_attrs    *attrs;
    const lk__graph_shape *in[LK__MAX_IN];
    int                    inputs;
    lk__graph_shape       *out;
} rule;

#define FAIL(r, ...) (lk__graph_fail((r)->graph, (r)->site, __VA_ARGS__), -1)

int64_t lk__shape_elements(const lk__graph_shape *s)
{
    int64_t n = 1;
    for (int i = 0; i < s->rank; i++) n *= s->dims[i];
    return n;
}

bool lk__shape_equal(const lk__graph_shape *a, const lk__graph_shape *b)
{
    if (a->rank != b->rank || a->count_axis != b->count_axis) return false;
    if (a->count_axis >= 0 && a->count_unit != b->count_unit) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dims[i] != b->dims[i]) return false;
    return true;
}

void lk__shape_text(const lk__graph_shape *s, char *text, size_t bytes)
{
    size_t used = (size_t)snprintf(text, bytes, "(");
    for (int i = 0; i < s->rank && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%lld%s", i ? ", " : "", (long long)s->dims[i],
                                 i == s->count_axis ? "*" : "");
    if (used < bytes) snprintf(text + used, bytes - used, ")");
}

typedef struct shape_text {
    char text[128];
} shape_text;

static shape_text show(const lk__graph_shape *s)
{
    shape_text t;
    lk__shape_text(s, t.text, sizeof t.text);
    return t;
}

static lk__graph_shape fixed(lk_dtype type, int rank, const int64_t *dims)
{
    lk__graph_shape s = {.dtype = type, .rank = rank, .count_axis = -1, .count_unit = 1};
    for (int i = 0; i < rank; i++) s.dims[i] = dims[i];
    return s;
}

static lk__graph_shape scalar(lk_dtype type) { return fixed(type, 0, NULL); }
static lk__graph_shape vector(const rule *r, int64_t n) { return fixed(r->graph->real, 1, &n); }

/* Takes axis `from` of x's count over to axis `to` of y. */
static void carry_count(lk__graph_shape *y, const lk__graph_shape *x, int from, int to)
{
    if (x->count_axis != from) return;
    y->count_axis = to;
    y->count_unit = x->count_unit;
}

static int want_rank(const rule *r, int input, int rank, const char *what)
{
    if (r->in[input]->rank == rank) return 0;
    return FAIL(r, "%s: %s has shape %s; %d axes are needed", lk__op_name(r->op), what, show(r->in[input]).text, rank);
}

static int64_t window_out(int64_t size, int64_t kernel, int64_t stride, int64_t padding)
{
    int64_t span = size + 2 * padding - kernel;
    return span < 0 ? 0 : span / stride + 1;
}

static int image_window(const rule *r, const lk__graph_shape *x, int64_t channels, int64_t kh, int64_t kw,
                        lk__graph_shape *y)
{
    const lk__op_attrs *a = r->attrs;
    if (a->stride < 1 || a->padding < 0 || kh < 1 || kw < 1)
        return FAIL(r, "%s: stride %lld, padding %lld and kernel %lld×%lld cannot be", lk__op_name(r->op),
                    (long long)a->stride, (long long)a->padding, (long long)kh, (long long)kw);
    if (x->rank != 4) return FAIL(r, "%s: x has shape %s; (N, C, H, W) is needed", lk__op_name(r->op), show(x).text);
    if (x->count_axis > 0) return FAIL(r, "%s: the batch must be axis 0 of x %s", lk__op_name(r->op), show(x).text);
    int64_t dims[4] = {x->dims[0], channels, window_out(x->dims[2], kh, a->stride, a->padding),
                       window_out(x->dims[3], kw, a->stride, a->padding)};
    if (dims[2] < 1 || dims[3] < 1)
        return FAIL(r, "%s: a %lld×%lld window does not fit into x %s with padding %lld", lk__op_name(r->op),
                    (long long)kh, (long long)kw, show(x).text, (long long)a->padding);
    *y = fixed(r->graph->real, 4, dims);
    carry_count(y, x, 0, 0);
    return 0;
}

static int rule_conv2d(rule *r)
{
    const lk__graph_shape *x = r->in[0], *w = r->in[1], *b = r->inputs > 2 ? r->in[2] : NULL;
    int64_t                groups = r->attrs->groups;
    if (x->rank != 4) return FAIL(r, "conv2d: x has shape %s; (N, C, H, W) is needed", show(x).text);
    if (w->rank != 4) return FAIL(r, "conv2d: weight has shape %s; (O, C/groups, kh, kw) is needed", show(w).text);
    if (groups < 1 || x->dims[1] % groups || w->dims[0] % groups)
        return FAIL(r, "conv2d: %lld groups do not divide %lld input and %lld output channels", (long long)groups,
                    (long long)x->dims[1], (long long)w->dims[0]);
    if (w->dims[1] * groups != x->dims[1])
        return FAIL(r, "conv2d: x %s has %lld channels, weight %s expects %lld", show(x).text, (long long)x->dims[1],
                    show(w).text, (long long)(w->dims[1] * groups));
    if (b && (b->rank != 1 || b->dims[0] != w->dims[0]))
        return FAIL(r, "conv2d: bias %s does not fit weight %s", show(b).text, show(w).text);
    if (image_window(r, x, w->dims[0], w->dims[2], w->dims[3], &r->out[0]) < 0) return -1;
    if (r->attrs->pool <= 1) return 1;
    r->out[0].dims[2] /= r->attrs->pool;
    r->out[0].dims[3] /= r->attrs->pool;
    r->out[1] = r->out[0];
    r->out[1].dtype = LK_U8;
    return 2;
}

static int rule_pool(rule *r)
{
    const lk__graph_shape *x = r->in[0];
    if (x->rank != 4) return FAIL(r, "%s: x has shape %s; (N, C, H, W) is needed", lk__op_name(r->op), show(x).text);
    int64_t kernel = r->attrs->kernel;
    if (kernel > 15)
        return FAIL(r, "%s: a kernel of %lld; at most 15 is possible", lk__op_name(r->op), (long long)kernel);
    if (2 * r->attrs->padding > kernel)
        return FAIL(r, "%s: padding %lld is more than half the kernel %lld", lk__op_name(r->op),
                    (long long)r->attrs->padding, (long long)kernel);
    if (image_window(r, x, x->dims[1], kernel, kernel, &r->out[0]) < 0) return -1;
    if (r->op != LK__OP_max_pool2d) return 1;
    r->out[1] = r->out[0];
    r->out[1].dtype = LK_U8;
    return 2;
}

static int rule_linear(rule *r)
{
    const lk__graph_shape *x = r->in[0], *w = r->in[1], *b = r->inputs > 2 ? r->in[2] : NULL;
    if (w->rank != 2) return FAIL(r, "linear: weight has shape %s; (out, in) is needed", show(w).text);
    if (x->rank < 1 || x->dims[x->rank - 1] != w->dims[1])
        return FAIL(r, "linear: x %s ends in %lld features, weight %s expects %lld", show(x).text,
                    (long long)(x->rank ? x->dims[x->rank - 1] : 1), show(w).text, (long long)w->dims[1]);
    if (x->count_axis == x->rank - 1) return FAIL(r, "linear: the features of x %s are the batch axis", show(x).text);
    if (b && (b->rank != 1 || b->dims[0] != w->dims[0]))
        return FAIL(r, "linear: bias %s does not fit weight %s", show(b).text, show(w).text);
    r->out[0] = *x;
    r->out[0].dims[x->rank - 1] = w->dims[0];
    return 1;
}

/* Batch axes of a matmul: equal, or one side has none. */
static int rule_matmul(rule *r)
{
    const lk__graph_shape *a = r->in[0], *b = r->in[1];
    if (a->rank < 2 || b->rank < 2)
        return FAIL(r, "matmul: %s × %s; each side needs two axes or more", show(a).text, show(b).text);
    int                    ma = a->rank - 2 + r->attrs->transpose_a, ka = a->rank - 1 - r->attrs->transpose_a;
    int                    kb = b->rank - 2 + r->attrs->transpose_b, nb = b->rank - 1 - r->attrs->transpose_b;
    bool                   same_count = (a->count_axis == ka) == (b->count_axis == kb);
    const lk__graph_shape *batch = a->rank >= b->rank ? a : b;
    if (a->dims[ka] != b->dims[kb] || !same_count)
        return FAIL(r, "matmul: %s × %s do not fit: %lld against %lld", show(a).text, show(b).text,
                    (long long)a->dims[ka], (long long)b->dims[kb]);
    if (a->rank != b->rank && a->rank != 2 && b->rank != 2)
        return FAIL(r, "matmul: batch axes of %s and %s differ", show(a).text, show(b).text);
    if (a->rank == b->rank)
        for (int i = 0; i < a->rank - 2; i++)
            if (a->dims[i] != b->dims[i] || (a->count_axis == i) != (b->count_axis == i))
                return FAIL(r, "matmul: batch axes of %s and %s differ", show(a).text, show(b).text);
    lk__graph_shape y = fixed(r->graph->real, batch->rank, batch->dims);
    for (int i = 0; i < y.rank - 2; i++) carry_count(&y, batch, i, i);
    y.dims[y.rank - 2] = a->dims[ma];
    y.dims[y.rank - 1] = b->dims[nb];
    carry_count(&y, a, ma, y.rank - 2);
    carry_count(&y, b, nb, y.rank - 1);
    if (r->attrs->mask) { /* the gradient of a shared side: summed over the batch */
        int64_t         dims[2] = {y.dims[y.rank - 2], y.dims[y.rank - 1]};
        lk__graph_shape shared = fixed(y.dtype, 2, dims);
        carry_count(&shared, &y, y.rank - 2, 0);
        carry_count(&shared, &y, y.rank - 1, 1);
        y = shared;
    }
    r->out[0] = y;
    return 1;
}

static int rule_binary(rule *r)
{
    const lk__graph_shape *a = r->in[0], *b = r->in[1];
    lk__graph_shape        y = {
               .dtype = a->dtype, .rank = a->rank > b->rank ? a->rank : b->rank, .count_axis = -1, .count_unit = 1};
    for (int i = 0; i < y.rank; i++) { /* i counts from the last axis */
        int     ia = a->rank - 1 - i, ib = b->rank - 1 - i, iy = y.rank - 1 - i;
        int64_t da = ia >= 0 ? a->dims[ia] : 1, db = ib >= 0 ? b->dims[ib] : 1;
        bool    ca = ia >= 0 && a->count_axis == ia, cb = ib >= 0 && b->count_axis == ib;
        bool    fits =
            da == db ? ca == cb && (!ca || a->count_unit == b->count_unit) : (da == 1 && !ca) || (db == 1 && !cb);
        if (da == 1 && db == 1 && ca != cb) fits = true; /* a batch of capacity 1 against a constant */
        if (!fits)
            return FAIL(r, "%s: shapes %s and %s do not broadcast%s", lk__op_name(r->op), show(a).text, show(b).text,
                        da == db ? " (one is the batch axis, the other is not)" : "");
        y.dims[iy] = da > db ? da : db;
        if (ca) carry_count(&y, a, ia, iy);
        if (cb) carry_count(&y, b, ib, iy);
    }
    r->out[0] = y;
    return 1;
}

static int rule_same(rule *r, int input)
{
    r->out[0] = *r->in[input];
    return 1;
}

static int rule_axis(rule *r)
{
    int axis = r->attrs->axis;
    if (axis < 0 || axis >= r->in[0]->rank)
        return FAIL(r, "%s: x %s has no axis %d", lk__op_name(r->op), show(r->in[0]).text, axis);
    return rule_same(r, r->op == LK__OP_softmax || r->op == LK__OP_log_softmax ? 0 : 1);
}

/* Rows of a norm over the last `axis` dims of x: one statistic a row. */
static int rule_row_norm(rule *r)
{
    const lk__graph_shape *x = r->in[0];
    int                    trailing = r->attrs->axis;
    if (trailing < 1 || trailing > x->rank)
        return FAIL(r, "%s: x %s has fewer than %d axes", lk__op_name(r->op), show(x).text, trailing);
    if (x->count_axis >= x->rank - trailing)
        return FAIL(r, "%s: cannot normalise over the batch axis of %s", lk__op_name(r->op), show(x).text);
    for (int input = 1; input < r->inputs; input++) {
        const lk__graph_shape *w = r->in[input];
        if (!w) continue;
        bool fits = w->rank == trailing;
        for (int i = 0; fits && i < trailing; i++) fits = w->dims[i] == x->dims[x->rank - trailing + i];
        if (!fits)
            return FAIL(r, "%s: weight or bias %s does not fit x %s", lk__op_name(r->op), show(w).text, show(x).text);
    }
    lk__graph_shape rows = fixed(r->graph->real, x->rank - trailing, x->dims);
    for (int i = 0; i < rows.rank; i++) carry_count(&rows, x, i, i);
    r->out[0] = *x;
    r->out[1] = r->out[2] = rows;
    return r->op == LK__OP_layer_norm ? 3 : 2;
}

static int rule_row_norm_grad(rule *r)
{
    const lk__graph_shape *x = r->in[1];
    int                    trailing = r->attrs->axis;
    r->out[0] = *x;
    r->out[1] = r->out[2] = fixed(r->graph->real, trailing, x->dims + x->rank - trailing);
    return r->op == LK__OP_layer_norm_grad ? 3 : 2;
}

static int rule_batch_norm(rule *r)
{
    const lk__graph_shape *x = r->in[0];
    if (x->rank != 4 && x->rank != 2)
        return FAIL(r, "batch_norm: x has shape %s; (N, C) or (N, C, H, W) is needed", show(x).text);
    if (x->count_axis > 0) return FAIL(r, "batch_norm: the batch must be axis 0 of x %s", show(x).text);
    bool training = r->op == LK__OP_batch_norm || r->op == LK__OP_batch_norm_apply;
    int  last = training ? 4 : r->inputs - 1;
    for (int i = 1; i <= last && i < r->inputs; i++)
        if (r->in[i] && (r->in[i]->rank != 1 || r->in[i]->dims[0] != x->dims[1]))
            return FAIL(r, "batch_norm: %s does not fit the %lld channels of x %s", show(r->in[i]).text,
                        (long long)x->dims[1], show(x).text);
    r->out[0] = *x;
    r->out[1] = r->out[2] = vector(r, x->dims[1]);
    return training ? 3 : 1;
}

static int rule_batch_norm_grad(rule *r)
{
    r->out[0] = *r->in[1];
    r->out[1] = r->out[2] = vector(r, r->in[1]->dims[1]);
    return r->op == LK__OP_batch_norm_grad_apply ? 1 : 3;
}

/* Sums in double, to be added over ranks. */
static int rule_batch_norm_stats(rule *r)
{
    int64_t channels = r->in[r->op == LK__OP_batch_norm_stats ? 0 : 1]->dims[1];
    if (r->op == LK__OP_batch_norm_stats) {
        r->out[0] = fixed(LK_F64, 1, (int64_t[]){2 * channels + 1});
        r->out[1] = fixed(LK_F64, 1, &channels);
        return 2;
    }
    r->out[0] = fixed(LK_F64, 1, (int64_t[]){2 * channels});
    r->out[1] = r->out[2] = vector(r, channels);
    return 3;
}

static int rule_embedding(rule *r)
{
    const lk__graph_shape *ids = r->in[0], *table = r->in[1];
    if (ids->dtype != LK_I32 || table->rank != 2 || ids->rank >= LK_MAX_RANK)
        return FAIL(r, "embedding: ids %s must be i32 and table %s (V, D)", show(ids).text, show(table).text);
    r->out[0] = *ids;
    r->out[0].dtype = r->graph->real;
    r->out[0].dims[r->out[0].rank++] = table->dims[1];
    return 1;
}

static int rule_permute(rule *r)
{
    const lk__graph_shape *x = r->in[0];
    unsigned               seen = 0;
    lk__graph_shape        y = fixed(x->dtype, x->rank, x->dims);
    for (int i = 0; i < x->rank; i++) {
        int axis = r->attrs->axes[i];
        if (axis < 0 || axis >= x->rank || seen >> axis & 1)
            return FAIL(r, "permute: the axes of %s must each be named once", show(x).text);
        seen |= 1u << axis;
        y.dims[i] = x->dims[axis];
        carry_count(&y, x, axis, i);
    }
    r->out[0] = y;
    return 1;
}

static int rule_slice(rule *r)
{
    const lk__graph_shape *x = r->in[0];
    int                    axis = r->attrs->axis;
    int64_t                start = r->attrs->start, length = r->attrs->length;
    if (axis < 0 || axis >= x->rank || start < 0 || length < 1 || start > x->dims[axis] - length)
        return FAIL(r, "slice: x %s has no [%lld, %lld) along axis %d", show(x).text, (long long)start,
                    (long long)(start + length), axis);
    if (x->count_axis == axis) return FAIL(r, "slice: cannot cut the batch axis of %s", show(x).text);
    r->out[0] = *x;
    r->out[0].dims[axis] = length;
    return 1;
}

static int rule_concat(rule *r)
{
    lk__graph_shape y = *r->in[0];
    int             axis = r->attrs->axis;
    if (axis < 0 || axis >= y.rank) return FAIL(r, "concat: %s has no axis %d", show(&y).text, axis);
    if (y.count_axis == axis) return FAIL(r, "concat: cannot join along the batch axis of %s", show(&y).text);
    for (int i = 1; i < r->inputs; i++) {
        lk__graph_shape other = *r->in[i];
        int64_t         add = other.rank == y.rank ? other.dims[axis] : 0;
        if (add) other.dims[axis] = y.dims[axis];
        if (!add || !lk__shape_equal(&other, &y) || other.dtype != y.dtype)
            return FAIL(r, "concat: %s and %s differ in more than axis %d", show(r->in[0]).text, show(r->in[i]).text,
                        axis);
        y.dims[axis] += add;
    }
    r->out[0] = y;
    return 1;
}

/* attrs.mask: axes to add over; attrs.length: 1 keeps them as dims of 1. */
static int rule_sum(rule *r)
{
    const lk__graph_shape *x = r->in[0];
    lk__graph_shape        y = {.dtype = x->dtype, .count_axis = -1, .count_unit = 1};
    for (int i = 0; i < x->rank; i++) {
        bool reduced = r->attrs->mask >> i & 1;
        if (reduced && !r->attrs->length) continue;
        y.dims[y.rank] = reduced ? 1 : x->dims[i];
        if (!reduced) carry_count(&y, x, i, y.rank);
        y.rank++;
    }
    r->out[0] = y;
    return 1;
}

static int rule_cross_entropy(rule *r)
{
    const lk__graph_shape *x = r->in[0], *labels = r->in[1], *w = r->inputs > 2 ? r->in[2] : NULL;
    if (x->rank != 2) return FAIL(r, "cross_entropy: logits have shape %s; (rows, classes) is needed", show(x).text);
    lk__graph_shape rows = fixed(labels->dtype, 1, x->dims);
    carry_count(&rows, x, 0, 0);
    if (labels->dtype != LK_I32 || !lk__shape_equal(&rows, labels))
        return FAIL(r, "cross_entropy: labels %s (%s) do not fit logits %s; i32, one a row, is needed",
                    show(labels).text, lk_dtype_name(labels->dtype), show(x).text);
    if (w && !lk__shape_equal(&rows, w))
        return FAIL(r, "cross_entropy: weight %s does not fit logits %s", show(w).text, show(x).text);
    if (!(r->attrs->label_smoothing >= 0 && r->attrs->label_smoothing < 1))
        return FAIL(r, "cross_entropy: label_smoothing is %g; 0 to below 1 is possible", r->attrs->label_smoothing);
    r->out[0] = r->out[1] = r->out[2] = scalar(LK_F64);
    r->out[3] = *x;
    return 4;
}

static int rule_mse(rule *r)
{
    if (!lk__shape_equal(r->in[0], r->in[1]))
        return FAIL(r, "mse: x %s and target %s differ", show(r->in[0]).text, show(r->in[1]).text);
    r->out[0] = r->out[1] = scalar(LK_F64);
    return 2;
}

static int apply(rule *r)
{
    switch (r->op) {
    case LK__OP_conv2d: return rule_conv2d(r);
    case LK__OP_max_pool2d:
    case LK__OP_avg_pool2d: return rule_pool(r);
    case LK__OP_global_avg_pool2d: {
        if (want_rank(r, 0, 4, "x") < 0) return -1;
        r->out[0] = fixed(r->graph->real, 2, r->in[0]->dims);
        carry_count(&r->out[0], r->in[0], 0, 0);
        return 1;
    }
    case LK__OP_linear: return rule_linear(r);
    case LK__OP_matmul: return rule_matmul(r);
    case LK__OP_add:
    case LK__OP_sub:
    case LK__OP_mul:
    case LK__OP_div: return rule_binary(r);
    case LK__OP_unary:
    case LK__OP_scale: return rule_same(r, 0);
    case LK__OP_dropout:
        if (r->in[0]->rank < 1) return FAIL(r, "dropout: a scalar has no samples");
        return rule_same(r, 0);
    case LK__OP_unary_grad: return rule_same(r, 0);
    case LK__OP_softmax:
    case LK__OP_log_softmax:
    case LK__OP_softmax_grad:
    case LK__OP_log_softmax_grad: return rule_axis(r);
    case LK__OP_layer_norm:
    case LK__OP_rms_norm: return rule_row_norm(r);
    case LK__OP_layer_norm_grad:
    case LK__OP_rms_norm_grad: return rule_row_norm_grad(r);
    case LK__OP_batch_norm:
    case LK__OP_batch_norm_apply:
    case LK__OP_batch_norm_eval: return rule_batch_norm(r);
    case LK__OP_batch_norm_stats:
    case LK__OP_batch_norm_grad_stats: return rule_batch_norm_stats(r);
    case LK__OP_batch_norm_grad:
    case LK__OP_batch_norm_grad_apply:
    case LK__OP_batch_norm_eval_grad: return rule_batch_norm_grad(r);
    case LK__OP_sync: return rule_same(r, 0);
    case LK__OP_embedding: return rule_embedding(r);
    case LK__OP_permute: return rule_permute(r);
    case LK__OP_slice: return rule_slice(r);
    case LK__OP_concat: return rule_concat(r);
    case LK__OP_sum: return rule_sum(r);
    case LK__OP_cross_entropy: return rule_cross_entropy(r);
    case LK__OP_cross_entropy_grad: return rule_same(r, 0);
    case LK__OP_mse: return rule_mse(r);
    case LK__OP_mse_grad: return rule_same(r, 0);
    case LK__OP_to_channels_last:
    case LK__OP_to_channels_first: return rule_same(r, 0);
    case LK__OP_square_sum: r->out[0] = scalar(LK_F64); return 1;
    case LK__OP_gradient_scale: r->out[0] = r->out[1] = scalar(LK_F64); return 2;
    /* These take the shape of something that is not among their inputs: see lk__emit_shaped. */
    case LK__OP_reshape:
    case LK__OP_expand:
    case LK__OP_slice_grad:
    case LK__OP_fill:
    case LK__OP_embedding_grad:
    case LK__OP_conv2d_grad_input:
    case LK__OP_conv2d_grad_weight:
    case LK__OP_max_pool2d_grad:
    case LK__OP_avg_pool2d_grad:
    case LK__OP_global_avg_pool2d_grad:
    case LK__OP_linear_grad_input:
    case LK__OP_linear_grad_weight:
    case LK__OP_sgd:
    case LK__OP_adam:
    case LK__OP_COUNT: break;
    }
    return FAIL(r, "%s: no shape follows from its inputs", lk__op_name(r->op));
}

int lk__shape_rule(lk_graph *graph, lk_site site, lk__op op, const lk__op_attrs *attrs, const int *in, int inputs,
                   lk__graph_shape *out)
{
    rule r = {.graph = graph, .site = site, .op = op, .attrs = attrs, .inputs = inputs, .out = out};
    for (int i = 0; i < inputs; i++) r.in[i] = in[i] >= 0 ? &graph->values[in[i]].shape : NULL;
    return apply(&r);
}
