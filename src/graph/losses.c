/* losses.c - the recording calls of losses, with and without a reduction. Users' own losses are in total.c, sums of
 * losses in terms.c. */
#include "graph/build.h"

static lk_tensor record_entropy(lk_site site, lk__op op, lk_tensor logits, lk_tensor labels,
                                lk_cross_entropy_options options)
{
    lk_tensor all[] = {logits, labels, options.weight};
    lk_graph *g = lk__common_graph(site, lk__op_name(op), all, 3);
    if (!g) return lk__no_result(site, all, 3);
    if (!logits.graph || !labels.graph || lk_tensor_rank(logits) < 1) {
        lk__graph_fail(g, site, "%s: logits (…, classes) and labels are required", lk__op_name(op));
        return (lk_tensor){g, -1};
    }
    if (options.weight.graph && g->values[options.weight.id].needs_gradient) {
        lk__graph_fail(g, site, "%s: sample weights have no gradient; pass them through lk_stop_gradient",
                       lk__op_name(op));
        return (lk_tensor){g, -1};
    }
    if (lk_tensor_rank(logits) != 2) { /* rows of classes; the batch's count becomes a count of rows */
        int64_t classes = lk_tensor_dim(logits, -1);
        for (int i = 1; i < 3; i++)
            if (all[i].graph) all[i] = lk_reshape_at(site, all[i], 1, (int64_t[]){-1});
        all[0] = lk_reshape_at(site, logits, 2, (int64_t[]){-1, classes});
        if (g->status < 0) return (lk_tensor){g, -1};
    }
    lk__op_attrs attrs = {.label_smoothing = options.label_smoothing,
                          .ignore_index = options.ignore_index ? *options.ignore_index : -100};
    int          in[] = {all[0].id, all[1].id, all[2].graph ? all[2].id : -1};
    int          node = lk__emit(g, site, op, &attrs, in, all[2].graph ? 3 : 2, LK__ALL_OUTPUTS);
    return (lk_tensor){g, node < 0 ? -1 : g->nodes[node].out[0]};
}

lk_tensor lk_cross_entropy_at(lk_site site, lk_tensor logits, lk_tensor labels, lk_cross_entropy_options options)
{
    return record_entropy(site, LK__OP_cross_entropy, logits, labels, options);
}

lk_tensor lk_cross_entropy_each_at(lk_site site, lk_tensor logits, lk_tensor labels, lk_cross_entropy_options options)
{
    lk_tensor each = record_entropy(site, LK__OP_cross_entropy_each, logits, labels, options);
    if (!each.graph || each.id < 0 || lk_tensor_rank(labels) == 1) return each;
    return lk_reshape_at(site, each, lk_tensor_rank(labels), each.graph->values[labels.id].shape.dims);
}

lk_tensor lk_mse_each_at(lk_site site, lk_tensor x, lk_tensor target)
{
    lk_tensor all[] = {x, target};
    lk_graph *g = lk__common_graph(site, "mse_each", all, 2);
    int       axes[LK_MAX_RANK], rank = lk_tensor_rank(x);
    if (!g) return lk__no_result(site, all, 2);
    if (!x.graph || !target.graph || rank < 1 ||
        !lk__shape_equal(&g->values[x.id].shape, &g->values[target.id].shape)) {
        lk__graph_fail(g, site, "mse_each: x and target must have the same shape, (N, …)");
        return (lk_tensor){g, -1};
    }
    for (int i = 1; i < rank; i++) axes[i - 1] = i;
    lk_tensor off = lk_sub_at(site, x, target), square = lk_mul_at(site, off, off);
    if (rank == 1) return square;
    return lk_mean_at(site, square, (lk_reduce_options){.axes = axes, .axes_count = rank - 1});
}

lk_tensor lk_mse_at(lk_site site, lk_tensor x, lk_tensor target)
{
    return lk__graph_record2(site, LK__OP_mse, NULL, x, target);
}

lk_tensor lk_l1_at(lk_site site, lk_tensor x, lk_tensor target)
{
    return lk__graph_record2(site, LK__OP_l1, NULL, x, target);
}

lk_tensor lk_bce_with_logits_at(lk_site site, lk_tensor logits, lk_tensor target, lk_bce_with_logits_options options)
{
    lk_tensor all[] = {logits, target, options.weight};
    lk_graph *g = lk__common_graph(site, lk__op_name(LK__OP_bce_with_logits), all, 3);
    for (int i = 1; g && i < 3; i++)
        if (all[i].graph && g->values[all[i].id].needs_gradient)
            lk__graph_fail(g, site, "bce_with_logits: the %s has no gradient; pass it through lk_stop_gradient",
                           i == 1 ? "target" : "weight");
    return lk__graph_record(site, LK__OP_bce_with_logits, NULL, all, 3);
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
    return lk__graph_record(site, LK__OP_linear_cross_entropy,
                            &(lk__op_attrs){.label_smoothing = options.label_smoothing,
                                            .ignore_index = options.ignore_index ? *options.ignore_index : -100},
                            all, 3);
}
