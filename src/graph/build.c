/* build.c - helpers of the recording calls of lockstep/graph.h, and the calls of element-wise operations. Each checks
 * what a descriptor cannot express (the arguments' graph, ranges), adds its node and returns the result; after a
 * failure they do nothing. Others are in build_axes.c, build_layers.c and losses.c. */
#include "graph/build.h"

#include "base/collective.h"
#include "base/dtype.h"

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

lk_tensor lk__graph_record(lk_site site, lk__op op, const lk__op_attrs *attrs, const lk_tensor *x, int count)
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

lk_tensor lk__graph_record1(lk_site site, lk__op op, const lk__op_attrs *attrs, lk_tensor x)
{
    return lk__graph_record(site, op, attrs, &x, 1);
}

lk_tensor lk__graph_record2(lk_site site, lk__op op, const lk__op_attrs *attrs, lk_tensor a, lk_tensor b)
{
    lk_graph *g = a.graph ? a.graph : b.graph;
    if (g && (!a.graph || !b.graph)) {
        lk__graph_fail(g, site, "%s: an argument is missing", lk__op_name(op));
        return (lk_tensor){g, -1};
    }
    return lk__graph_record(site, op, attrs, (lk_tensor[]){a, b}, 2);
}

lk_tensor lk_add_at(lk_site site, lk_tensor a, lk_tensor b) { return lk__graph_record2(site, LK__OP_add, NULL, a, b); }
lk_tensor lk_sub_at(lk_site site, lk_tensor a, lk_tensor b) { return lk__graph_record2(site, LK__OP_sub, NULL, a, b); }
lk_tensor lk_mul_at(lk_site site, lk_tensor a, lk_tensor b) { return lk__graph_record2(site, LK__OP_mul, NULL, a, b); }
lk_tensor lk_div_at(lk_site site, lk_tensor a, lk_tensor b) { return lk__graph_record2(site, LK__OP_div, NULL, a, b); }

lk_tensor lk_scale_at(lk_site site, lk_tensor x, double factor)
{
    return lk__graph_record1(site, LK__OP_scale, &(lk__op_attrs){.scale = factor}, x);
}

static lk_tensor record_unary(lk_site site, lk_tensor x, lk__op_unary which)
{
    return lk__graph_record1(site, LK__OP_unary, &(lk__op_attrs){.unary = which}, x);
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
    return lk__graph_record1(site, LK__OP_unary, &(lk__op_attrs){.unary = LK__POW, .exponent = exponent}, x);
}

lk_tensor lk_clamp_at(lk_site site, lk_tensor x, double minimum, double maximum)
{
    return lk__graph_record1(site, LK__OP_unary,
                             &(lk__op_attrs){.unary = LK__CLAMP, .minimum = minimum, .maximum = maximum}, x);
}

lk_tensor lk_leaky_relu_at(lk_site site, lk_tensor x, double slope)
{
    return lk__graph_record1(site, LK__OP_unary, &(lk__op_attrs){.unary = LK__LEAKY_RELU, .slope = slope}, x);
}

lk_tensor lk_where_at(lk_site site, lk_tensor condition, lk_tensor a, lk_tensor b)
{
    return lk__graph_record(site, LK__OP_where, NULL, (lk_tensor[]){condition, a, b}, 3);
}

lk_tensor lk_cast_at(lk_site site, lk_tensor x, lk_dtype type)
{
    lk_graph *g = lk__common_graph(site, lk__op_name(LK__OP_cast), &x, 1);
    if (!g) return lk__no_result(site, &x, 1);
    if (!lk__is_element(type)) {
        lk__graph_fail(g, site, "cast: %s cannot be converted to %s; expected %s", lk_dtype_name(lk_tensor_dtype(x)),
                       lk_dtype_name(type), lk__dtype_names_of(lk__is_element).text);
        return (lk_tensor){g, -1};
    }
    return (lk_tensor){g, lk__emit_cast(g, site, x.id, type)};
}

lk_tensor lk_stop_gradient_at(lk_site site, lk_tensor x)
{
    return lk__graph_record1(site, LK__OP_stop_gradient, NULL, x);
}

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
        lk__graph_fail(g, site, "place: values can be placed along the tensor axis, not along %s", axis);
    else if (v->kind == LK__VALUE_INPUT)
        lk__graph_fail(g, site,
                       "place: an input is always whole on every rank; place a value computed from it instead");
    else if (from_last != LK_REPLICATED && (from_last < 0 || from_last >= v->shape.rank))
        lk__graph_fail(g, site, "place: dimension %d is out of range for x, which has %d dimensions", dim,
                       v->shape.rank);
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
        lk__graph_fail(g, site, "dropout: the batch axis of x must be axis 0");
        return (lk_tensor){g, -1};
    }
    int64_t rows = shape->count_axis == 0 ? shape->count_unit : 1;
    return lk__graph_record1(site, LK__OP_dropout,
                             &(lk__op_attrs){.probability = probability, .stream = g->dropouts++, .rows = rows}, x);
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
