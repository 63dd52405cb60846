/* shape.c - shapes: comparing and printing them, and helpers of the shape rules in graph/op/. The run-time count of an
 * axis follows the data: a rule that cannot carry it to an output fails. */
#include "graph/op.h"

#include <stdio.h>

int64_t lk__shape_elements(const lk__graph_shape *s)
{
    int64_t n = 1;
    for (int i = 0; i < s->rank; i++) n *= s->dims[i];
    return n;
}

int64_t lk__shape_extent(const lk__graph_shape *s, int64_t samples)
{
    int64_t extent = (samples - s->count_first) * s->count_unit, most = s->dims[s->count_axis];
    return extent < 0 ? 0 : extent < most ? extent : most;
}

bool lk__shape_fits(const lk__graph_shape *s)
{
    int64_t n = 1;
    for (int i = 0; i < s->rank; i++) {
        if (s->dims[i] < 0 || (s->dims[i] > 0 && n > LK__MOST_ELEMENTS / s->dims[i])) return false;
        n *= s->dims[i];
    }
    return true;
}

bool lk__shape_equal(const lk__graph_shape *a, const lk__graph_shape *b)
{
    if (a->rank != b->rank || a->count_axis != b->count_axis) return false;
    if (a->count_axis >= 0 && (a->count_unit != b->count_unit || a->count_first != b->count_first)) return false;
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

lk__graph_shape_text lk__shape_show(const lk__graph_shape *s)
{
    lk__graph_shape_text t;
    lk__shape_text(s, t.text, sizeof t.text);
    return t;
}

lk__graph_shape lk__shape_fixed(lk_dtype type, int rank, const int64_t *dims)
{
    lk__graph_shape s = {.dtype = type, .rank = rank, .count_axis = -1, .count_unit = 1};
    for (int i = 0; i < rank; i++) s.dims[i] = dims[i];
    return s;
}

lk__graph_shape lk__shape_scalar(lk_dtype type) { return lk__shape_fixed(type, 0, NULL); }
lk__graph_shape lk__shape_vector(lk_dtype type, int64_t n) { return lk__shape_fixed(type, 1, &n); }

void lk__shape_carry_count(lk__graph_shape *y, const lk__graph_shape *x, int from, int to)
{
    if (x->count_axis != from) return;
    y->count_axis = to;
    y->count_unit = x->count_unit;
    y->count_first = x->count_first;
}

int lk__shape_same(lk__graph_shapes *s)
{
    s->out[0] = *s->in[0];
    return 1;
}

int lk__shape_same_second(lk__graph_shapes *s)
{
    s->out[0] = *s->in[1];
    return 1;
}

int lk__shape_given(lk__graph_shapes *s)
{
    return LK__SHAPE_FAIL(s, "%s: the shape of its result cannot be inferred from its inputs", lk__op_name(s->op));
}

static int64_t window_out(int64_t size, int64_t kernel, int64_t stride, int64_t padding)
{
    int64_t span = size + 2 * padding - kernel;
    return span < 0 ? 0 : span / stride + 1;
}

bool lk__shape_check_weights(lk__graph_shapes *s, int last)
{
    for (int i = 1; i <= last && i < s->inputs; i++)
        if (s->in[i] && s->in[i]->count_axis >= 0) {
            (void)LK__SHAPE_FAIL(s, "%s: its %s %s has a batch axis, but must be the same for all samples",
                                 lk__op_name(s->op), i == 1 ? "weight" : "bias", lk__shape_show(s->in[i]).text);
            return false;
        }
    return true;
}

int lk__shape_window(lk__graph_shapes *s, int64_t channels, int64_t kh, int64_t kw)
{
    const lk__graph_shape *x = s->in[0];
    const lk__op_attrs    *a = s->attrs;
    if (a->stride < 1 || a->padding < 0 || a->padding > LK__MOST_ELEMENTS || kh < 1 || kw < 1)
        return LK__SHAPE_FAIL(s, "%s: stride %lld, padding %lld and kernel %lld×%lld are invalid", lk__op_name(s->op),
                              (long long)a->stride, (long long)a->padding, (long long)kh, (long long)kw);
    if (x->count_axis > 0)
        return LK__SHAPE_FAIL(s, "%s: the batch axis of x %s must be axis 0", lk__op_name(s->op),
                              lk__shape_show(x).text);
    int64_t dims[4] = {x->dims[0], channels, window_out(x->dims[2], kh, a->stride, a->padding),
                       window_out(x->dims[3], kw, a->stride, a->padding)};
    if (dims[2] < 1 || dims[3] < 1)
        return LK__SHAPE_FAIL(s, "%s: a %lld×%lld window does not fit into x %s with padding %lld", lk__op_name(s->op),
                              (long long)kh, (long long)kw, lk__shape_show(x).text, (long long)a->padding);
    s->out[0] = lk__shape_fixed(x->dtype, 4, dims);
    lk__shape_carry_count(&s->out[0], x, 0, 0);
    return 0;
}
