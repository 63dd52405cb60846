/* build.c - the recording calls of lockstep/graph.h. Each checks what a descriptor cannot express (the arguments'
 * graph, ranges), adds its node and returns the result; after a failure they do nothing. */
#include "base/collective.h"
#include "base/dtype.h"
#include "graph/graph.h"

#include <math.h>
#include <string.h>

/* No graph can keep an error then, so the id holds the line of the first such call (lk__empty_line). */
lk_tensor lk__no_result(lk_site site, const lk_tensor *x, int count)
{
    int line = 0;
    for (int i = 0; i < count; i++) {
        if (x[i].graph) return (lk_tensor){x[i].graph, -1};
        if (!line) line = lk__empty_line(x[i]);
    }
    return (lk_tensor){NULL, -(line ? line : site.line)};
}

lk_graph *lk__common_graph(lk_site site, const char *name, const lk_tensor *x, int count)
{
    lk_graph *g = NULL;
    for (int i = 0; i < count && !g; i++) g = x[i].graph;
    if (!g || g->status < 0) return NULL;
    for (int i = 0; i < count; i++) {
        if (!x[i].graph) continue;
        if (x[i].graph != g || x[i].id < 0 || (size_t)x[i].id >= g->values_count) {
            lk__graph_fail(g, site, "%s: argument %d is not a tensor of this graph", name, i + 1);
            return NULL;
        }
    }
    return g;
}

/* The common case: operands whose graph is NULL are missing, which is allowed for all but the first. */
static lk_tensor record(lk_site site, lk__op op, const lk__op_attrs *attrs, const lk_tensor *x, int count)
{
    lk_graph *g = lk__common_graph(site, lk__op_name(op), x, count);
    int       in[LK__MAX_IN];
    if (!g) return lk__no_result(site, x, count);
    if (!x[0].graph) {
        lk__graph_fail(g, site, "%s: the first argument is missing", lk__op_name(op));
        return (lk_tensor){g, -1};
    }
    for (int i = 0; i < count; i++) in[i] = x[i].graph ? x[i].id : -1;
    while (count > 0 && in[count - 1] < 0) count--;
    int node = lk__emit(g, site, op, attrs, in, count, LK__ALL_OUTPUTS);
    return (lk_tensor){g, node < 0 ? -1 : g->nodes[node].out[0]};
}

static lk_tensor record1(lk_site site, lk__op op, const lk__op_attrs *attrs, lk_tensor x)
{
    return record(site, op, attrs, &x, 1);
}

static lk_tensor record2(lk_site site, lk__op op, const lk__op_attrs *attrs, lk_tensor a, lk_tensor b)
{
    lk_graph *g = a.graph ? a.graph : b.graph;
    if (g && (!a.graph || !b.graph)) {
        lk__graph_fail(g, site, "%s: an argument is missing", lk__op_name(op));
        return (lk_tensor){g, -1};
    }
    return record(site, op, attrs, (lk_tensor[]){a, b}, 2);
}

/* Of these only the bias may be missing. */
static lk_tensor record_weighted(lk_site site, lk__op op, const lk__op_attrs *attrs, lk_tensor x, lk_tensor weight,
                                 lk_tensor bias)
{
    if (x.graph && !weight.graph) lk__graph_fail(x.graph, site, "%s: the weight is missing", lk__op_name(op));
    return record(site, op, attrs, (lk_tensor[]){x, weight, bias}, 3);
}

static int normal_axis(lk_tensor x, int axis) { return axis < 0 ? axis + lk_tensor_rank(x) : axis; }

lk_tensor lk_add_at(lk_site site, lk_tensor a, lk_tensor b) { return record2(site, LK__OP_add, NULL, a, b); }
lk_tensor lk_sub_at(lk_site site, lk_tensor a, lk_tensor b) { return record2(site, LK__OP_sub, NULL, a, b); }
lk_tensor lk_mul_at(lk_site site, lk_tensor a, lk_tensor b) { return record2(site, LK__OP_mul, NULL, a, b); }
lk_tensor lk_div_at(lk_site site, lk_tensor a, lk_tensor b) { return record2(site, LK__OP_div, NULL, a, b); }

lk_tensor lk_scale_at(lk_site site, lk_tensor x, double factor)
{
    return record1(site, LK__OP_scale, &(lk__op_attrs){.scale = factor}, x);
}

static lk_tensor record_unary(lk_site site, lk_tensor x, lk__op_unary which)
{
    return record1(site, LK__OP_unary, &(lk__op_attrs){.unary = which}, x);
}

/* Those without attributes. */
#define RECORD_PLAIN(constant, name) \
    lk_tensor lk_##name##_at(lk_site site, lk_tensor x) { return record_unary(site, x, constant); }
#define RECORD_APART(constant, name)
#define RECORD(constant, name, saves, fused, recorded) RECORD_##recorded(constant, name)
LK__UNARY_LIST(RECORD)
#undef RECORD

lk_tensor lk_gelu_at(lk_site site, lk_tensor x, lk_gelu_options options)
{
    return record_unary(site, x, options.tanh ? LK__GELU_TANH : LK__GELU);
}

lk_tensor lk_pow_at(lk_site site, lk_tensor x, double exponent)
{
    return record1(site, LK__OP_unary, &(lk__op_attrs){.unary = LK__POW, .exponent = exponent}, x);
}

lk_tensor lk_clamp_at(lk_site site, lk_tensor x, double minimum, double maximum)
{
    return record1(site, LK__OP_unary, &(lk__op_attrs){.unary = LK__CLAMP, .minimum = minimum, .maximum = maximum}, x);
}

lk_tensor lk_leaky_relu_at(lk_site site, lk_tensor x, double slope)
{
    return record1(site, LK__OP_unary, &(lk__op_attrs){.unary = LK__LEAKY_RELU, .slope = slope}, x);
}

lk_tensor lk_where_at(lk_site site, lk_tensor condition, lk_tensor a, lk_tensor b)
{
    return record(site, LK__OP_where, NULL, (lk_tensor[]){condition, a, b}, 3);
}

lk_tensor lk_cast_at(lk_site site, lk_tensor x, lk_dtype type)
{
    lk_graph *g = lk__common_graph(site, lk__op_name(LK__OP_cast), &x, 1);
    if (!g) return lk__no_result(site, &x, 1);
    if (!lk__is_element(type)) {
        lk__graph_fail(g, site, "cast: %s to %s; expected %s", lk_dtype_name(lk_tensor_dtype(x)), lk_dtype_name(type),
                       lk__dtype_names_of(lk__is_element).text);
        return (lk_tensor){g, -1};
    }
    return (lk_tensor){g, lk__emit_cast(g, site, x.id, type)};
}

lk_tensor lk_stop_gradient_at(lk_site site, lk_tensor x) { return record1(site, LK__OP_stop_gradient, NULL, x); }

lk_tensor lk_place_at(lk_site site, lk_tensor x, const char *axis, int dim)
{
    lk_graph *g = lk__common_graph(site, "place", &x, 1);
    char      shown[LK__SHOWN];
    int       index = 0;
    if (!g) return lk__no_result(site, &x, 1);
    lk__graph_value *v = &g->values[x.id];
    int              from_last = dim < 0 && dim != LK_REPLICATED ? dim + v->shape.rank : dim;
    while (axis && index < LK__AXES && strcmp(axis, lk__axis_names[index]) != 0) index++;
    if (!axis || index == LK__AXES)
        lk__graph_fail(g, site, "place: there is no axis %s", axis ? lk__shown(axis, shown) : "NULL");
    else if (strcmp(axis, "tensor") != 0)
        lk__graph_fail(g, site, "place: values are placed along the axis tensor, not along %s", axis);
    else if (v->kind == LK__VALUE_INPUT)
        lk__graph_fail(g, site, "place: an input is whole on every rank; place what is computed from it");
    else if (from_last != LK_REPLICATED && (from_last < 0 || from_last >= v->shape.rank))
        lk__graph_fail(g, site, "place: %d is not a dimension of x, which has %d", dim, v->shape.rank);
    else
        v->placed_axis = 1u << index, v->placed_dim = from_last == LK_REPLICATED ? -1 : from_last;
    return g->status < 0 ? (lk_tensor){g, -1} : x;
}

lk_tensor lk_dropout_at(lk_site site, lk_tensor x, double probability)
{
    lk_graph *g = lk__common_graph(site, lk__op_name(LK__OP_dropout), &x, 1);
    if (!g) return lk__no_result(site, &x, 1);
    if (!(probability >= 0 && probability <= 1)) {
        lk__graph_fail(g, site, "dropout: probability %g is out of range; expected 0 to 1", probability);
        return (lk_tensor){g, -1};
    }
    const lk__graph_shape *shape = &g->values[x.id].shape;
    if (shape->count_axis > 0) {
        lk__graph_fail(g, site, "dropout: the batch must be axis 0");
        return (lk_tensor){g, -1};
    }
    int64_t rows = shape->count_axis == 0 ? shape->count_unit : 1;
    return record1(site, LK__OP_dropout,
                   &(lk__op_attrs){.probability = probability, .stream = g->dropouts++, .rows = rows}, x);
}

lk_tensor lk_softmax_at(lk_site site, lk_tensor x, int axis)
{
    return record1(site, LK__OP_softmax, &(lk__op_attrs){.axis = normal_axis(x, axis)}, x);
}

lk_tensor lk_log_softmax_at(lk_site site, lk_tensor x, int axis)
{
    return record1(site, LK__OP_log_softmax, &(lk__op_attrs){.axis = normal_axis(x, axis)}, x);
}

lk_tensor lk_max_at(lk_site site, lk_tensor x, int axis, lk_axis_options options)
{
    return record1(site, LK__OP_max, &(lk__op_attrs){.axis = normal_axis(x, axis), .keepdim = options.keepdim}, x);
}

lk_tensor lk_argmax_at(lk_site site, lk_tensor x, int axis, lk_axis_options options)
{
    return record1(site, LK__OP_argmax, &(lk__op_attrs){.axis = normal_axis(x, axis), .keepdim = options.keepdim}, x);
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
            int axis = normal_axis(x, options.axes[i]);
            if (axis < 0 || axis >= rank) {
                lk__graph_fail(g, site, "%s: axis %d is out of range for %d axes", mean ? "mean" : "sum",
                               options.axes[i], rank);
                return (lk_tensor){g, -1};
            }
            attrs.mask |= 1u << axis;
        }
    }
    return record1(site, LK__OP_sum, &attrs, x);
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
        lk__graph_fail(g, site, "reshape: %d axes; expected 0 to %d", rank, LK_MAX_RANK);
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
    for (int i = 0; i < lk_tensor_rank(x); i++) attrs.axes[i] = normal_axis(x, axes[i]);
    return record1(site, LK__OP_permute, &attrs, x);
}

lk_tensor lk_transpose_at(lk_site site, lk_tensor x, int axis_a, int axis_b)
{
    lk_graph *g = lk__common_graph(site, lk__op_name(LK__OP_permute), &x, 1);
    if (!g) return lk__no_result(site, &x, 1);
    int axes[LK_MAX_RANK], rank = lk_tensor_rank(x), a = normal_axis(x, axis_a), b = normal_axis(x, axis_b);
    if (a < 0 || a >= rank || b < 0 || b >= rank) {
        lk__graph_fail(g, site, "transpose: axes %d and %d are out of range for %d axes", axis_a, axis_b, rank);
        return (lk_tensor){g, -1};
    }
    for (int i = 0; i < rank; i++) axes[i] = i == a ? b : i == b ? a : i;
    return lk_permute_at(site, x, axes);
}

lk_tensor lk_slice_at(lk_site site, lk_tensor x, int axis, int64_t start, int64_t length)
{
    return record1(site, LK__OP_slice, &(lk__op_attrs){.axis = normal_axis(x, axis), .start = start, .length = length},
                   x);
}

lk_tensor lk_concat_at(lk_site site, const lk_tensor *x, int count, int axis)
{
    if (count < 1 || count > 8) {
        if (count > 0 && x[0].graph) lk__graph_fail(x[0].graph, site, "concat: %d tensors; expected 1 to 8", count);
        return lk__no_result(site, x, count > 0 ? 1 : 0);
    }
    for (int i = 1; i < count; i++)
        if (x[0].graph && !x[i].graph) lk__graph_fail(x[0].graph, site, "concat: argument %d is missing", i + 1);
    return record(site, LK__OP_concat, &(lk__op_attrs){.axis = normal_axis(x[0], axis)}, x, count);
}

lk_tensor lk_matmul_at(lk_site site, lk_tensor a, lk_tensor b, lk_matmul_options options)
{
    lk__op_attrs attrs = {.transpose_a = options.transpose_a, .transpose_b = options.transpose_b};
    return record2(site, LK__OP_matmul, &attrs, a, b);
}

lk_tensor lk_f_linear_at(lk_site site, lk_tensor x, lk_tensor weight, lk_tensor bias)
{
    return record_weighted(site, LK__OP_linear, NULL, x, weight, bias);
}

lk_tensor lk_addmm_at(lk_site site, lk_tensor bias, lk_tensor x, lk_tensor weight)
{
    return record_weighted(site, LK__OP_linear, &(lk__op_attrs){.transposed = true}, x, weight, bias);
}

/* Fails if an option is set that the operation does not have. */
static void refuse_option(lk_site site, lk_tensor x, lk__op op, bool set, const char *option)
{
    if (set && x.graph) lk__graph_fail(x.graph, site, "%s has no option %s", lk__op_name(op), option);
}

static lk__op_attrs window_attrs(lk_window_options options, int64_t kernel, int64_t stride)
{
    return (lk__op_attrs){
        .kernel = kernel, .stride = options.stride ? options.stride : stride, .padding = options.padding};
}

lk_tensor lk_f_conv2d_at(lk_site site, lk_tensor x, lk_tensor weight, lk_tensor bias, lk_window_options options)
{
    lk__op_attrs attrs = window_attrs(options, 0, 1);
    attrs.groups = options.groups ? options.groups : 1;
    return record_weighted(site, LK__OP_conv2d, &attrs, x, weight, bias);
}

lk_tensor lk_max_pool2d_at(lk_site site, lk_tensor x, int64_t kernel, lk_window_options options)
{
    lk__op_attrs attrs = window_attrs(options, kernel, kernel);
    refuse_option(site, x, LK__OP_max_pool2d, options.groups != 0, "groups");
    return record1(site, LK__OP_max_pool2d, &attrs, x);
}

lk_tensor lk_avg_pool2d_at(lk_site site, lk_tensor x, int64_t kernel, lk_window_options options)
{
    lk__op_attrs attrs = window_attrs(options, kernel, kernel);
    refuse_option(site, x, LK__OP_avg_pool2d, options.groups != 0, "groups");
    return record1(site, LK__OP_avg_pool2d, &attrs, x);
}

lk_tensor lk_global_avg_pool2d_at(lk_site site, lk_tensor x)
{
    return record1(site, LK__OP_global_avg_pool2d, NULL, x);
}

lk_tensor lk_f_layer_norm_at(lk_site site, lk_tensor x, lk_tensor weight, lk_tensor bias, lk_norm_options options)
{
    lk__op_attrs attrs = {.axis = weight.graph ? lk_tensor_rank(weight) : 1,
                          .epsilon = options.epsilon > 0 ? options.epsilon : 1e-5};
    refuse_option(site, x, LK__OP_layer_norm, options.momentum != 0, "momentum");
    return record(site, LK__OP_layer_norm, &attrs, (lk_tensor[]){x, weight, bias}, 3);
}

lk_tensor lk_f_rms_norm_at(lk_site site, lk_tensor x, lk_tensor weight, lk_norm_options options)
{
    double       epsilon = lk_tensor_dtype(x) == LK_F64 ? 2.220446049250313e-16 : 1.1920928955078125e-07;
    lk__op_attrs attrs = {.axis = weight.graph ? lk_tensor_rank(weight) : 1,
                          .epsilon = options.epsilon > 0 ? options.epsilon : epsilon};
    refuse_option(site, x, LK__OP_rms_norm, options.momentum != 0, "momentum");
    return record(site, LK__OP_rms_norm, &attrs, (lk_tensor[]){x, weight}, 2);
}

lk_tensor lk_f_group_norm_at(lk_site site, lk_tensor x, int64_t groups, lk_tensor weight, lk_tensor bias,
                             lk_norm_options options)
{
    lk__op_attrs attrs = {.groups = groups, .epsilon = options.epsilon > 0 ? options.epsilon : 1e-5};
    refuse_option(site, x, LK__OP_group_norm, options.momentum != 0, "momentum");
    return record(site, LK__OP_group_norm, &attrs, (lk_tensor[]){x, weight, bias}, 3);
}

static bool is_buffer(lk_tensor x)
{
    const lk_graph *g = x.graph;
    return x.id >= 0 && (size_t)x.id < g->values_count && g->values[x.id].kind == LK__VALUE_STATE &&
           g->states[g->values[x.id].state].buffer;
}

lk_tensor lk_f_batch_norm_at(lk_site site, lk_tensor x, lk_tensor weight, lk_tensor bias, lk_tensor running_mean,
                             lk_tensor running_var, lk_tensor tracked, lk_norm_options options)
{
    lk_tensor all[] = {x, weight, bias, running_mean, running_var, tracked};
    lk_graph *g = lk__common_graph(site, lk__op_name(LK__OP_batch_norm), all, 6);
    int       in[6];
    if (!g) return lk__no_result(site, all, 6);
    if (!x.graph || !running_mean.graph || !running_var.graph) {
        lk__graph_fail(g, site, "batch_norm: x, running_mean and running_var are required");
        return (lk_tensor){g, -1};
    }
    for (int i = 3; i < 6; i++)
        if (all[i].graph && !is_buffer(all[i])) {
            lk__graph_fail(g, site, "batch_norm: running_mean, running_var and tracked must be buffers (lk_buffer)");
            return (lk_tensor){g, -1};
        }
    for (int i = 0; i < 6; i++) in[i] = all[i].graph ? all[i].id : -1;
    lk__op_attrs attrs = {.epsilon = options.epsilon > 0 ? options.epsilon : 1e-5,
                          .momentum = options.momentum > 0 ? options.momentum : 0.1,
                          .update = true};
    int          node = lk__emit(g, site, LK__OP_batch_norm, &attrs, in, 6, LK__ALL_OUTPUTS);
    return (lk_tensor){g, node < 0 ? -1 : g->nodes[node].out[0]};
}

lk_tensor lk_f_embedding_at(lk_site site, lk_tensor ids, lk_tensor table)
{
    lk_tensor all[] = {ids, table};
    lk_graph *g = lk__common_graph(site, lk__op_name(LK__OP_embedding), all, 2);
    if (!g) return lk__no_result(site, all, 2);
    if (!ids.graph || !table.graph) {
        lk__graph_fail(g, site, "embedding: ids and a table are required");
        return (lk_tensor){g, -1};
    }
    return (lk_tensor){g, lk__emit1(g, site, LK__OP_embedding, NULL, (int[]){ids.id, table.id}, 2)};
}

lk_tensor lk_mse_at(lk_site site, lk_tensor x, lk_tensor target) { return record2(site, LK__OP_mse, NULL, x, target); }
lk_tensor lk_l1_at(lk_site site, lk_tensor x, lk_tensor target) { return record2(site, LK__OP_l1, NULL, x, target); }

lk_tensor lk_bce_with_logits_at(lk_site site, lk_tensor logits, lk_tensor target, lk_bce_with_logits_options options)
{
    lk_tensor all[] = {logits, target, options.weight};
    lk_graph *g = lk__common_graph(site, lk__op_name(LK__OP_bce_with_logits), all, 3);
    for (int i = 1; g && i < 3; i++)
        if (all[i].graph && g->values[all[i].id].needs_gradient)
            lk__graph_fail(g, site, "bce_with_logits: the %s gets no gradient; pass it through lk_stop_gradient",
                           i == 1 ? "target" : "weight");
    return record(site, LK__OP_bce_with_logits, NULL, all, 3);
}

/* Integers are compared as f64, which holds those up to 2^53. */
lk_tensor lk_equal_at(lk_site site, lk_tensor a, lk_tensor b)
{
    lk_tensor all[] = {a, b};
    lk_graph *g = lk__common_graph(site, lk__op_name(LK__OP_where), all, 2);
    if (!g) return lk__no_result(site, all, 2);
    if (!a.graph || !b.graph) {
        lk__graph_fail(g, site, "equal: an argument is missing");
        return (lk_tensor){g, -1};
    }
    for (int i = 0; i < 2; i++) {
        all[i] = lk_stop_gradient_at(site, all[i]);
        if (lk_tensor_dtype(a) != lk_tensor_dtype(b) || lk_tensor_dtype(a) != g->real)
            all[i] = lk_cast_at(site, all[i], LK_F64);
    }
    const float  numbers[] = {0, 1};
    const double wide[] = {0, 1};
    lk_tensor    constants[2];
    for (int i = 0; i < 2; i++)
        constants[i] =
            lk_constant_at(site, g, g->real, 0, NULL, g->real == LK_F64 ? (const void *)&wide[i] : &numbers[i]);
    return lk_where_at(site, lk_sub_at(site, all[0], all[1]), constants[0], constants[1]);
}

/* ---- attention ---- */

lk_tensor lk_attention_at(lk_site site, lk_tensor q, lk_tensor k, lk_tensor v, lk_attention_options options)
{
    lk_tensor all[] = {q, k, v, options.first, options.last, options.lengths};
    lk_graph *g = lk__common_graph(site, lk__op_name(LK__OP_attention), all, 6);
    if (!g || !q.graph || lk_tensor_rank(q) != 3) return record(site, LK__OP_attention, NULL, all, 6);
    int64_t heads = options.heads ? options.heads : 1, groups = options.kv_heads ? options.kv_heads : heads;
    int64_t together = k.graph ? heads : heads + 2 * groups;
    double  width = together > 0 ? (double)lk_tensor_dim(q, 2) / (double)together : 1;
    return record(site, LK__OP_attention,
                  &(lk__op_attrs){.heads = heads,
                                  .kv_heads = groups,
                                  .causal = options.causal,
                                  .window = options.window,
                                  .scale = options.scale != 0 ? options.scale : 1 / sqrt(width > 0 ? width : 1),
                                  .probability = options.dropout,
                                  .stream = options.dropout > 0 ? g->dropouts++ : 0},
                  all, 6);
}

lk_tensor lk_rope_at(lk_site site, lk_tensor x, lk_tensor table, int64_t heads, lk_tensor positions)
{
    return record(site, LK__OP_rope, &(lk__op_attrs){.heads = heads}, (lk_tensor[]){x, table, positions}, 3);
}

lk_tensor lk_cache_write_at(lk_site site, lk_tensor cache, lk_tensor x, lk_tensor rows)
{
    lk_tensor all[] = {cache, x, rows};
    lk_graph *g = lk__common_graph(site, lk__op_name(LK__OP_cache_write), all, 3);
    if (!g) return lk__no_result(site, all, 3);
    const lk__graph_value *v = cache.graph ? &g->values[cache.id] : NULL;
    if (!v || v->kind != LK__VALUE_STATE || !g->states[v->state].buffer || !g->states[v->state].not_saved)
        lk__graph_fail(g, site, "cache_write: the first argument is not a buffer with not_saved (lk_buffer)");
    else if (x.graph && lk_tensor_dtype(x) != v->shape.dtype)
        lk__graph_fail(g, site, "cache_write: x is %s and the cache %s; use lk_cast", lk_dtype_name(lk_tensor_dtype(x)),
                       lk_dtype_name(v->shape.dtype));
    return record(site, LK__OP_cache_write, NULL, all, 3);
}

lk_tensor lk_swiglu_at(lk_site site, lk_tensor gate, lk_tensor up)
{
    return record2(site, LK__OP_swiglu, NULL, gate, up);
}

lk_tensor lk_linear_cross_entropy_at(lk_site site, lk_tensor x, lk_tensor weight, lk_tensor labels,
                                     lk_cross_entropy_options options)
{
    lk_tensor all[] = {x, weight, labels};
    lk_graph *g = lk__common_graph(site, lk__op_name(LK__OP_linear_cross_entropy), all, 3);
    if (!g) return lk__no_result(site, all, 3);
    if (!x.graph || !weight.graph || !labels.graph || options.weight.graph) {
        lk__graph_fail(g, site, "%s",
                       options.weight.graph ? "linear_cross_entropy: sample weights are not supported"
                                            : "linear_cross_entropy: x, weight and labels are required");
        return (lk_tensor){g, -1};
    }
    if (lk_tensor_rank(x) != 2) { /* rows; the batch's count becomes a count of rows */
        all[2] = lk_reshape_at(site, labels, 1, (int64_t[]){-1});
        all[0] = lk_reshape_at(site, x, 2, (int64_t[]){-1, lk_tensor_dim(x, -1)});
    }
    return record(site, LK__OP_linear_cross_entropy,
                  &(lk__op_attrs){.label_smoothing = options.label_smoothing,
                                  .ignore_index = options.ignore_index ? *options.ignore_index : -100},
                  all, 3);
}
