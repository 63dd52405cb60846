/* build_axes.c - the recording calls that take axes: reductions, and changes of shape. */
#include "graph/build.h"

lk_tensor lk_softmax_at(lk_site site, lk_tensor x, int axis)
{
    return lk__graph_record1(site, LK__OP_softmax, &(lk__op_attrs){.axis = lk__normal_axis(x, axis)}, x);
}

lk_tensor lk_log_softmax_at(lk_site site, lk_tensor x, int axis)
{
    return lk__graph_record1(site, LK__OP_log_softmax, &(lk__op_attrs){.axis = lk__normal_axis(x, axis)}, x);
}

lk_tensor lk_max_at(lk_site site, lk_tensor x, int axis, lk_axis_options options)
{
    return lk__graph_record1(site, LK__OP_max,
                             &(lk__op_attrs){.axis = lk__normal_axis(x, axis), .keepdim = options.keepdim}, x);
}

lk_tensor lk_argmax_at(lk_site site, lk_tensor x, int axis, lk_axis_options options)
{
    return lk__graph_record1(site, LK__OP_argmax,
                             &(lk__op_attrs){.axis = lk__normal_axis(x, axis), .keepdim = options.keepdim}, x);
}

static lk_tensor record_sum(lk_site site, lk_tensor x, lk_reduce_options options, bool mean)
{
    lk_graph *g = lk__common_graph(site, lk__op_name(LK__OP_sum), &x, 1);
    if (!g) return lk__no_result(site, &x, 1);
    int          rank = lk_tensor_rank(x);
    lk__op_attrs attrs = {.mask = (1u << rank) - 1, .mean = mean, .keepdim = options.keepdim};
    if ((options.axes != NULL) != (options.axes_count > 0)) {
        lk__graph_fail(g, site,
                       "%s: axes and axes_count must be set together, as in .axes = (int[]){0, 1}, .axes_count = 2",
                       mean ? "mean" : "sum");
        return (lk_tensor){g, -1};
    }
    if (options.axes) {
        attrs.mask = 0;
        for (int i = 0; i < options.axes_count; i++) {
            int axis = lk__normal_axis(x, options.axes[i]);
            if (axis < 0 || axis >= rank) {
                lk__graph_fail(g, site, "%s: axis %d is out of range for a tensor of %d axes", mean ? "mean" : "sum",
                               options.axes[i], rank);
                return (lk_tensor){g, -1};
            }
            attrs.mask |= 1u << axis;
        }
    }
    return lk__graph_record1(site, LK__OP_sum, &attrs, x);
}

lk_tensor lk_sum_at(lk_site site, lk_tensor x, lk_reduce_options options)
{
    return record_sum(site, x, options, false);
}
lk_tensor lk_mean_at(lk_site site, lk_tensor x, lk_reduce_options options)
{
    return record_sum(site, x, options, true);
}

/* The count's axis after a reshape: axes before it must stay, and one of the new axes must hold whole samples. */
static bool reshape_count(const lk__graph_shape *x, lk__graph_shape *y)
{
    y->count_axis = -1;
    y->count_unit = 1;
    if (x->count_axis < 0) return true;
    int axis = x->count_axis;
    if (axis >= y->rank) return false;
    for (int i = 0; i < axis; i++)
        if (x->dims[i] != y->dims[i]) return false;
    int64_t scaled = x->count_unit * y->dims[axis];
    if (scaled % x->dims[axis] || scaled / x->dims[axis] < 1) return false;
    y->count_axis = axis;
    y->count_unit = scaled / x->dims[axis];
    return true;
}

lk_tensor lk_reshape_at(lk_site site, lk_tensor x, int rank, const int64_t *dims)
{
    lk_graph *g = lk__common_graph(site, lk__op_name(LK__OP_reshape), &x, 1);
    if (!g) return lk__no_result(site, &x, 1);
    lk_tensor       failed = {g, -1};
    lk__graph_shape from = g->values[x.id].shape, to = {.dtype = from.dtype, .rank = rank};
    char            text[128];
    int64_t         known = 1, elements = lk__shape_elements(&from);
    int             open = -1;
    lk__shape_text(&from, text, sizeof text);
    if (rank < 0 || rank > LK_MAX_RANK) {
        lk__graph_fail(g, site, "reshape: the new shape has %d axes; expected 0 to %d", rank, LK_MAX_RANK);
        return failed;
    }
    for (int i = 0; i < rank; i++) {
        to.dims[i] = dims[i];
        if (dims[i] == -1 && open < 0)
            open = i;
        else if (dims[i] < 1 || dims[i] > elements) {
            lk__graph_fail(g, site, "reshape of %s: size %lld of axis %d is invalid", text, (long long)dims[i], i);
            return failed;
        } else
            known = dims[i] > elements / known ? elements + 1 : known * dims[i]; /* does not overflow */
    }
    if (open >= 0 && known > 0 && elements % known == 0) to.dims[open] = elements / known, known = elements;
    if (known != elements) {
        lk__graph_fail(g, site, "reshape: the new shape does not have the %lld elements of %s", (long long)elements,
                       text);
        return failed;
    }
    if (!reshape_count(&from, &to)) {
        lk__graph_fail(g, site, "reshape of %s would split the batch axis (marked *)", text);
        return failed;
    }
    int node = lk__emit_shaped(g, site, LK__OP_reshape, NULL, &x.id, 1, &to, 1);
    return (lk_tensor){g, node < 0 ? -1 : g->nodes[node].out[0]};
}

lk_tensor lk_flatten_at(lk_site site, lk_tensor x)
{
    return lk_reshape_at(site, x, 2, (int64_t[]){lk_tensor_rank(x) ? lk_tensor_dim(x, 0) : 1, -1});
}

lk_tensor lk_permute_at(lk_site site, lk_tensor x, const int *axes)
{
    lk__op_attrs attrs = {0};
    for (int i = 0; i < lk_tensor_rank(x); i++) attrs.axes[i] = lk__normal_axis(x, axes[i]);
    return lk__graph_record1(site, LK__OP_permute, &attrs, x);
}

lk_tensor lk_transpose_at(lk_site site, lk_tensor x, int axis_a, int axis_b)
{
    lk_graph *g = lk__common_graph(site, lk__op_name(LK__OP_permute), &x, 1);
    if (!g) return lk__no_result(site, &x, 1);
    int axes[LK_MAX_RANK], rank = lk_tensor_rank(x), a = lk__normal_axis(x, axis_a), b = lk__normal_axis(x, axis_b);
    if (a < 0 || a >= rank || b < 0 || b >= rank) {
        lk__graph_fail(g, site, "transpose: axis %d or %d is out of range for a tensor of %d axes", axis_a, axis_b,
                       rank);
        return (lk_tensor){g, -1};
    }
    for (int i = 0; i < rank; i++) axes[i] = i == a ? b : i == b ? a : i;
    return lk_permute_at(site, x, axes);
}

lk_tensor lk_slice_at(lk_site site, lk_tensor x, int axis, int64_t start, int64_t length)
{
    return lk__graph_record1(site, LK__OP_slice,
                             &(lk__op_attrs){.axis = lk__normal_axis(x, axis), .start = start, .length = length}, x);
}

lk_tensor lk_concat_at(lk_site site, const lk_tensor *x, int count, int axis)
{
    if (count < 1 || count > 8) {
        if (count > 0 && x[0].graph) lk__graph_fail(x[0].graph, site, "concat: %d tensors; expected 1 to 8", count);
        return lk__no_result(site, x, count > 0 ? 1 : 0);
    }
    for (int i = 1; i < count; i++)
        if (x[0].graph && !x[i].graph) lk__graph_fail(x[0].graph, site, "concat: argument %d is missing", i + 1);
    return lk__graph_record(site, LK__OP_concat, &(lk__op_attrs){.axis = lk__normal_axis(x[0], axis)}, x, count);
}
