/* sync_norm.c - synchronised batch norm: each batch norm in training becomes the statistics of this rank's rows, their
 * sum over all ranks and leaves, and a normalisation with that sum. Runs after fuse and before the gradients are made;
 * the gradient rule of the normalisation adds one more sum to backward. */
#include "plan/plan.h"

/* Appends the nodes for one batch norm; returns the index of the last, which has its outputs, or -1. */
static int append_sync_norm(lk_graph *g, const lk__graph_node *norm, lk__op_order order)
{
    lk__graph_node n = *norm;
    int            in[] = {n.in[0], n.inputs > 3 ? n.in[3] : -1};
    int            node = lk__emit(g, n.site, LK__OP_batch_norm_stats, NULL, in, 2, LK__ALL_OUTPUTS);
    if (node < 0) return -1;
    int local = g->nodes[node].out[0], centre = g->nodes[node].out[1];
    int total = lk__emit_all_reduce(g, n.site, &(lk__op_attrs){.order = order}, local);
    if (total < 0) return -1;
    n.op = LK__OP_batch_norm_apply;
    for (; n.inputs < 6; n.inputs++) n.in[n.inputs] = -1;
    n.in[6] = total;
    n.in[7] = centre;
    n.inputs = 8;
    return lk__plan_append(g, &n);
}

static int rewrite_node(lk_graph *g, const lk__graph_node *n, void *user)
{
    return n->op == LK__OP_batch_norm ? append_sync_norm(g, n, *(const lk__op_order *)user) : lk__plan_append(g, n);
}

lk_status lk__pass_sync_norm(lk__plan_list *list, lk__op_order order)
{
    const lk_graph *g = list->graph;
    size_t          i = 0;
    while (i < g->nodes_count && g->nodes[i].op != LK__OP_batch_norm) i++;
    if (i == g->nodes_count)
        return lk__fail(g->context, LK_EINVAL,
                        "synchronised batch norm was requested (sync_batch_norm, --sync-batchnorm), but the model has "
                        "no batch norm: remove this option");
    return lk__plan_rebuild(list->graph, rewrite_node, &order);
}
