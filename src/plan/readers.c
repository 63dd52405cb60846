/* readers.c - finds the readers of values. */
#include "plan/readers.h"

static void mark_outside(const lk_graph *g, lk__plan_readers *r, int v)
{
    if (v < 0) return;
    r->count[v]++;
    if (g->values[v].kind == LK__VALUE_RESULT) r->needed[g->values[v].node] = true;
}

/* What nothing reads is removed later; until then it must not take part: a norm of a block that is recomputed in vain
 * would keep its addition alive. */
static void find_readers(const lk__plan_list *list, bool gradients, lk__plan_readers *r)
{
    const lk_graph *g = list->graph;
    for (int i = 0; i < list->numbers_count; i++) mark_outside(g, r, list->numbers[i]);
    for (int i = 0; i < list->outputs_count; i++) mark_outside(g, r, list->outputs[i]);
    for (size_t i = 0; gradients && list->gradients && i < g->states_count; i++) mark_outside(g, r, list->gradients[i]);
    for (size_t i = g->nodes_count; i-- > 0;) {
        const lk__graph_node *n = &g->nodes[i];
        if (n->dead || (gradients && !r->needed[i] && !lk__plan_has_effect(n))) continue;
        r->needed[i] = true;
        for (int j = 0; j < n->inputs; j++) {
            mark_outside(g, r, n->in[j]);
            if (n->in[j] >= 0) r->first[n->in[j]] = (int)i;
        }
    }
}

lk_status lk__readers_find(const lk__plan_list *list, bool gradients, lk__plan_readers *r)
{
    lk_context *c = list->graph->context;
    *r = (lk__plan_readers){.nodes = list->graph->nodes_count, .values = list->graph->values_count};
    r->needed = lk__alloc(c, LK_MEMORY_OTHER, r->nodes * sizeof *r->needed);
    r->count = lk__alloc(c, LK_MEMORY_OTHER, r->values * sizeof *r->count);
    r->first = lk__alloc(c, LK_MEMORY_OTHER, r->values * sizeof *r->first);
    if ((r->nodes && !r->needed) || (r->values && (!r->count || !r->first))) return LK_ENOMEM;
    find_readers(list, gradients, r);
    return LK_OK;
}

void lk__readers_free(const lk__plan_list *list, lk__plan_readers *r)
{
    lk_context *c = list->graph->context;
    lk__free(c, LK_MEMORY_OTHER, r->needed, r->nodes * sizeof *r->needed);
    lk__free(c, LK_MEMORY_OTHER, r->count, r->values * sizeof *r->count);
    lk__free(c, LK_MEMORY_OTHER, r->first, r->values * sizeof *r->first);
}
