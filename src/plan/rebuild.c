/* rebuild.c - rebuilds a list, for passes that insert nodes: nodes run in the order of the list. */
#include "plan/plan.h"

int lk__plan_append(lk_graph *g, const lk__graph_node *n)
{
    if (lk__grow(g->context, (void **)&g->nodes, &g->nodes_capacity, g->nodes_count + 1, sizeof *g->nodes) < 0) {
        g->status = LK_ENOMEM;
        return -1;
    }
    g->nodes[g->nodes_count] = *n;
    return (int)g->nodes_count++;
}

lk_status lk__plan_rebuild(lk_graph *g, lk__plan_rewrite rewrite, void *user)
{
    lk__graph_node *nodes = g->nodes;
    size_t          count = g->nodes_count, capacity = g->nodes_capacity, values = g->values_count;
    int             block = g->block, *moved = lk__alloc(g->context, LK_MEMORY_OTHER, count * sizeof *moved);
    if (count && !moved) return LK_ENOMEM;
    g->nodes = NULL;
    g->nodes_count = g->nodes_capacity = 0;
    for (size_t i = 0; i < count && g->status == LK_OK; i++) {
        g->block = nodes[i].block;
        moved[i] = nodes[i].dead ? lk__plan_append(g, &nodes[i]) : rewrite(g, &nodes[i], user);
    }
    for (size_t v = 0; v < values && g->status == LK_OK; v++)
        if (g->values[v].kind == LK__VALUE_RESULT) g->values[v].node = moved[g->values[v].node];
    g->block = block;
    lk__free(g->context, LK_MEMORY_OTHER, nodes, capacity * sizeof *nodes);
    lk__free(g->context, LK_MEMORY_OTHER, moved, count * sizeof *moved);
    return g->status;
}

lk_status lk__plan_rebuild_at(lk_graph *g, lk__plan_rewrite_at rewrite, void *user, size_t *forward)
{
    lk__graph_node *nodes = g->nodes;
    size_t          count = g->nodes_count, capacity = g->nodes_capacity, end = *forward;
    int             block = g->block;
    bool            done = true;
    g->nodes = NULL;
    g->nodes_count = g->nodes_capacity = 0;
    for (size_t i = 0; i < count && done; i++) {
        if (i == end) *forward = g->nodes_count;
        g->block = nodes[i].block;
        done = nodes[i].dead ? lk__plan_append(g, &nodes[i]) >= 0 : rewrite(user, &nodes[i], i);
    }
    if (end >= count) *forward = g->nodes_count;
    g->block = block;
    lk__free(g->context, LK_MEMORY_OTHER, nodes, capacity * sizeof *nodes);
    lk__plan_set_producers(g);
    return g->status < 0 ? g->status : done ? LK_OK : LK_ENOMEM;
}

void lk__plan_set_producers(lk_graph *g)
{
    /* Values of removed nodes keep a number in the list; those that another node has taken over are set behind them. */
    for (int dead = 1; dead >= 0; dead--)
        for (size_t i = 0; i < g->nodes_count; i++)
            for (int k = 0; k < g->nodes[i].outputs && g->nodes[i].dead == dead; k++)
                if (g->nodes[i].out[k] >= 0 && g->values[g->nodes[i].out[k]].kind == LK__VALUE_RESULT)
                    g->values[g->nodes[i].out[k]].node = (int)i;
}
