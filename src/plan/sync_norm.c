/* sync_norm.c - synchronised batch norm: each batch norm in training becomes the statistics of this rank's rows, their sum
 * over all ranks and leaves, and a normalisation with that sum. Runs after fuse and before the gradients are made; the gradient
 * rule of the normalisation adds one more sum to backward. Nodes run in the order of the list, so the list is rebuilt. */
#include "plan/plan.h"

/* Appends the node unchanged; returns its index or -1. */
static int append_node(lk_graph *g, const lk__graph_node *n)
{
    if (lk__grow(g->context, (void **)&g->nodes, &g->nodes_capacity, g->nodes_count + 1, sizeof *g->nodes) < 0) {
        g->status = LK_ENOMEM;
        return -1;
    }
    g->nodes[g->nodes_count] = *n;
    return (int)g->nodes_count++;
}

/* Appends the three nodes for one batch norm; returns the index of the last, which has its outputs, or -1. */
static int append_sync_norm(lk_graph *g, const lk__graph_node *norm)
{
    lk__graph_node n = *norm;
    int            in[] = {n.in[0], n.inputs > 3 ? n.in[3] : -1};
    g->block = n.block;
    int node = lk__emit(g, n.site, LK__OP_batch_norm_stats, NULL, in, 2, LK__ALL_OUTPUTS);
    if (node < 0) return -1;
    int local = g->nodes[node].out[0], centre = g->nodes[node].out[1];
    int total = lk__emit1(g, n.site, LK__OP_sync, NULL, &local, 1);
    if (total < 0) return -1;
    n.op = LK__OP_batch_norm_apply;
    for (; n.inputs < 6; n.inputs++) n.in[n.inputs] = -1;
    n.in[6] = total;
    n.in[7] = centre;
    n.inputs = 8;
    return append_node(g, &n);
}

lk_status lk__pass_sync_norm(lk__plan_list *list)
{
    lk_graph       *g = list->graph;
    lk__graph_node *nodes = g->nodes;
    size_t          count = g->nodes_count, capacity = g->nodes_capacity, values = g->values_count;
    int             block = g->block, *moved = lk__alloc(g->context, LK_MEMORY_OTHER, count * sizeof *moved);
    if (count && !moved) return LK_ENOMEM;
    g->nodes = NULL;
    g->nodes_count = g->nodes_capacity = 0;
    for (size_t i = 0; i < count && g->status == LK_OK; i++) {
        bool norm = nodes[i].op == LK__OP_batch_norm && !nodes[i].dead;
        moved[i] = norm ? append_sync_norm(g, &nodes[i]) : append_node(g, &nodes[i]);
    }
    for (size_t v = 0; v < values && g->status == LK_OK; v++)
        if (g->values[v].kind == LK__VALUE_RESULT) g->values[v].node = moved[g->values[v].node];
    g->block = block;
    lk__free(g->context, LK_MEMORY_OTHER, nodes, capacity * sizeof *nodes);
    lk__free(g->context, LK_MEMORY_OTHER, moved, count * sizeof *moved);
    return g->status;
}
