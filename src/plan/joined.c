/* joined.c - finds the parts of joined values. */
#include "plan/joined.h"

/* What a kernel or a collective writes, of a chain of views and waits. */
static int written_value(const lk_graph *g, int v)
{
    while (g->values[v].kind == LK__VALUE_RESULT && lk__op_shares_memory(g->nodes[g->values[v].node].op))
        v = g->nodes[g->values[v].node].in[0];
    return v;
}

static void add_join(const lk_graph *g, const lk__graph_node *n, lk__plan_joined *j)
{
    size_t offset = 0;
    for (int i = 0; i < n->inputs; i++) {
        const lk__graph_shape *s = &g->values[n->in[i]].shape;
        int                    v = written_value(g, n->in[i]);
        j->whole[v] = n->out[0];
        j->first[v] = written_value(g, n->in[0]);
        j->offset[v] = offset;
        offset += (size_t)lk__shape_elements(s) * lk_dtype_size(s->dtype);
    }
}

lk_status lk__joined_find(const lk__plan_list *list, lk__plan_joined *j)
{
    const lk_graph *g = list->graph;
    *j = (lk__plan_joined){.values = g->values_count};
    j->whole = lk__alloc(g->context, LK_MEMORY_OTHER, j->values * sizeof *j->whole);
    j->first = lk__alloc(g->context, LK_MEMORY_OTHER, j->values * sizeof *j->first);
    j->offset = lk__alloc(g->context, LK_MEMORY_OTHER, j->values * sizeof *j->offset);
    if (j->values && (!j->whole || !j->first || !j->offset)) return LK_ENOMEM;
    for (size_t v = 0; v < j->values; v++) j->whole[v] = j->first[v] = -1;
    for (size_t p = 0; p < list->order_count; p++)
        if (g->nodes[list->order[p]].op == LK__OP_join) add_join(g, &g->nodes[list->order[p]], j);
    return LK_OK;
}

void lk__joined_free(const lk__plan_list *list, lk__plan_joined *j)
{
    lk_context *c = list->graph->context;
    lk__free(c, LK_MEMORY_OTHER, j->whole, j->values * sizeof *j->whole);
    lk__free(c, LK_MEMORY_OTHER, j->first, j->values * sizeof *j->first);
    lk__free(c, LK_MEMORY_OTHER, j->offset, j->values * sizeof *j->offset);
}
