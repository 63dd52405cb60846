/* build_layers.c - the recording calls of products, convolutions, pools, norms, embeddings and attention. Layers that
 * create their own parameters are in nn/layers.c. */
#include "graph/build.h"

#include <math.h>

/* x[3] has x, weight and bias, of which only the bias may be missing. */
static lk_tensor record_weighted(lk_site site, lk__op op, const lk__op_attrs *attrs, const lk_tensor x[3])
{
    if (x[0].graph && !x[1].graph) lk__graph_fail(x[0].graph, site, "%s: the weight is missing", lk__op_name(op));
    return lk__graph_record(site, op, attrs, x, 3);
}

lk_tensor lk_matmul_at(lk_site site, lk_tensor a, lk_tensor b, lk_matmul_options options)
{
    lk__op_attrs attrs = {.transpose_a = options.transpose_a, .transpose_b = options.transpose_b};
    return lk__graph_record2(site, LK__OP_matmul, &attrs, a, b);
}

lk_tensor lk_f_linear_at(lk_site site, lk_tensor x, lk_tensor weight, lk_tensor bias)
{
    return record_weighted(site, LK__OP_linear, NULL, (lk_tensor[]){x, weight, bias});
}

lk_tensor lk_addmm_at(lk_site site, lk_tensor bias, lk_tensor x, lk_tensor weight)
{
    return record_weighted(site, LK__OP_linear, &(lk__op_attrs){.transposed = true}, (lk_tensor[]){x, weight, bias});
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
    return record_weighted(site, LK__OP_conv2d, &attrs, (lk_tensor[]){x, weight, bias});
}

lk_tensor lk_max_pool2d_at(lk_site site, lk_tensor x, int64_t kernel, lk_window_options options)
{
    lk__op_attrs attrs = window_attrs(options, kernel, kernel);
    refuse_option(site, x, LK__OP_max_pool2d, options.groups != 0, "groups");
    return lk__graph_record1(site, LK__OP_max_pool2d, &attrs, x);
}

lk_tensor lk_avg_pool2d_at(lk_site site, lk_tensor x, int64_t kernel, lk_window_options options)
{
    lk__op_attrs attrs = window_attrs(options, kernel, kernel);
    refuse_option(site, x, LK__OP_avg_pool2d, options.groups != 0, "groups");
    return lk__graph_record1(site, LK__OP_avg_pool2d, &attrs, x);
}

lk_tensor lk_global_avg_pool2d_at(lk_site site, lk_tensor x)
{
    return lk__graph_record1(site, LK__OP_global_avg_pool2d, NULL, x);
}

lk_tensor lk_f_layer_norm_at(lk_site site, lk_tensor x, lk_tensor weight, lk_tensor bias, lk_norm_options options)
{
    lk__op_attrs attrs = {.axis = weight.graph ? lk_tensor_rank(weight) : 1,
                          .epsilon = options.epsilon > 0 ? options.epsilon : 1e-5};
    refuse_option(site, x, LK__OP_layer_norm, options.momentum != 0, "momentum");
    return lk__graph_record(site, LK__OP_layer_norm, &attrs, (lk_tensor[]){x, weight, bias}, 3);
}

lk_tensor lk_f_rms_norm_at(lk_site site, lk_tensor x, lk_tensor weight, lk_norm_options options)
{
    double       epsilon = lk_tensor_dtype(x) == LK_F64 ? 2.220446049250313e-16 : 1.1920928955078125e-07;
    lk__op_attrs attrs = {.axis = weight.graph ? lk_tensor_rank(weight) : 1,
                          .epsilon = options.epsilon > 0 ? options.epsilon : epsilon};
    refuse_option(site, x, LK__OP_rms_norm, options.momentum != 0, "momentum");
    return lk__graph_record(site, LK__OP_rms_norm, &attrs, (lk_tensor[]){x, weight}, 2);
}

lk_tensor lk_f_group_norm_at(lk_site site, lk_tensor x, int64_t groups, lk_tensor weight, lk_tensor bias,
                             lk_norm_options options)
{
    lk__op_attrs attrs = {.groups = groups, .epsilon = options.epsilon > 0 ? options.epsilon : 1e-5};
    refuse_option(site, x, LK__OP_group_norm, options.momentum != 0, "momentum");
    return lk__graph_record(site, LK__OP_group_norm, &attrs, (lk_tensor[]){x, weight, bias}, 3);
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

/* ---- attention ---- */

lk_tensor lk_attention_at(lk_site site, lk_tensor q, lk_tensor k, lk_tensor v, lk_attention_options options)
{
    lk_tensor all[] = {q, k, v, options.first, options.last, options.lengths};
    lk_graph *g = lk__common_graph(site, lk__op_name(LK__OP_attention), all, 6);
    if (!g || !q.graph || lk_tensor_rank(q) != 3) return lk__graph_record(site, LK__OP_attention, NULL, all, 6);
    int64_t heads = options.heads ? options.heads : 1, groups = options.kv_heads ? options.kv_heads : heads;
    int64_t together = k.graph ? heads : heads + 2 * groups;
    double  width = together > 0 ? (double)lk_tensor_dim(q, 2) / (double)together : 1;
    return lk__graph_record(
        site, LK__OP_attention,
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
    return lk__graph_record(site, LK__OP_rope, &(lk__op_attrs){.heads = heads}, (lk_tensor[]){x, table, positions}, 3);
}

lk_tensor lk_cache_write_at(lk_site site, lk_tensor cache, lk_tensor x, lk_tensor rows)
{
    lk_tensor all[] = {cache, x, rows};
    lk_graph *g = lk__common_graph(site, lk__op_name(LK__OP_cache_write), all, 3);
    if (!g) return lk__no_result(site, all, 3);
    const lk__graph_value *v = cache.graph ? &g->values[cache.id] : NULL;
    if (!v || v->kind != LK__VALUE_STATE || !g->states[v->state].buffer || !g->states[v->state].not_saved)
        lk__graph_fail(g, site, "cache_write: the first argument must be a buffer with not_saved (lk_buffer)");
    else if (x.graph && lk_tensor_dtype(x) != v->shape.dtype)
        lk__graph_fail(g, site, "cache_write: x is %s, but the cache is %s; use lk_cast",
                       lk_dtype_name(lk_tensor_dtype(x)), lk_dtype_name(v->shape.dtype));
    return lk__graph_record(site, LK__OP_cache_write, NULL, all, 3);
}

lk_tensor lk_swiglu_at(lk_site site, lk_tensor gate, lk_tensor up)
{
    return lk__graph_record2(site, LK__OP_swiglu, NULL, gate, up);
}
