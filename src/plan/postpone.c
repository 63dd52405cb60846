/* postpone.c - with the schedule zero-bubble: nodes of backward that no other stage waits for, most of them gradients
 * of weights, move behind all others, so that a stage can run them where it would wait. Nodes and values stay the same,
 * and so do all results. */
#include "plan/pipeline.h"

#include <string.h>

/* Sends, and what they depend on. What has another effect stays where it is. */
static void mark_needed(const lk_graph *g, size_t forward, bool *needed, bool *read)
{
    for (size_t i = g->nodes_count; i-- > forward;) {
        const lk__graph_node *n = &g->nodes[i];
        needed[i] = !n->dead && lk__plan_has_effect(n);
        for (int k = 0; k < n->outputs && !needed[i] && !n->dead; k++) needed[i] = n->out[k] >= 0 && read[n->out[k]];
        for (int k = 0; k < n->inputs && needed[i]; k++)
            if (n->in[k] >= 0) read[n->in[k]] = true;
    }
}

/* The needed nodes come first; returns how many they are. */
static size_t divide(lk_graph *g, size_t forward, const bool *needed, lk__graph_node *kept)
{
    size_t count = 0, first = 0;
    for (int before = 1; before >= 0; before--) {
        for (size_t i = forward; i < g->nodes_count; i++)
            if (needed[i] == before) kept[count++] = g->nodes[i];
        if (before) first = count;
    }
    memcpy(&g->nodes[forward], kept, count * sizeof *kept);
    lk__plan_set_producers(g);
    return first;
}

static bool sends_in_backward(const lk_graph *g, size_t forward)
{
    for (size_t i = forward; i < g->nodes_count; i++)
        if (!g->nodes[i].dead && g->nodes[i].op == LK__OP_send) return true;
    return false;
}

lk_status lk__pass_postpone(const lk_plan *p, lk__plan_list *list, size_t forward)
{
    lk_graph *g = list->graph;
    if (lk__plan_stages(p) == 1 || p->parallel.pipeline_schedule != LK_PIPELINE_ZERO_BUBBLE) return LK_OK;
    if (p->stage)
        return lk__fail(p->context, LK_EUNSUPPORTED,
                        "the schedule zero-bubble with ranks that have slices of the state: gradients of one slice are "
                        "made at different times, so use the schedule 1f1b, or the axis data instead of shard");
    if (!sends_in_backward(g, forward)) return LK_OK; /* nobody waits for the first stage */
    size_t          flags = g->nodes_count + g->values_count, nodes = (g->nodes_count - forward) * sizeof(*g->nodes);
    bool           *needed = lk__alloc(p->context, LK_MEMORY_OTHER, flags * sizeof *needed);
    lk__graph_node *kept = lk__alloc(p->context, LK_MEMORY_OTHER, nodes);
    if (needed && kept) {
        mark_needed(g, forward, needed, needed + g->nodes_count);
        list->weights_begin = forward + divide(g, forward, needed, kept);
    }
    lk_status status = needed && kept ? LK_OK : LK_ENOMEM;
    lk__free(p->context, LK_MEMORY_OTHER, needed, flags * sizeof *needed);
    lk__free(p->context, LK_MEMORY_OTHER, kept, nodes);
    return status;
}

/* The last of the needed nodes is a send, which nothing moves over. */
void lk__plan_find_postponed(lk__plan_list *list)
{
    size_t i = list->end[LK_BACKWARD];
    if (!list->weights_begin) return;
    while (i > list->end[LK_FORWARD] && list->graph->nodes[list->order[i - 1]].op != LK__OP_send) i--;
    list->weights_begin = i < list->end[LK_BACKWARD] ? i : 0;
}
