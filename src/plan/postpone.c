/* postpone.c - with the schedule zero-bubble: nodes of backward that no other stage waits for, most of them gradients
 * of weights, move after all others, so that a stage can run them when it would otherwise wait. Nodes and values stay
 * the same, and so do all results. */
#include "plan/pipeline.h"

#include <string.h>

/* Sends, what they depend on, and views of that. What has another effect stays where it is. */
static void mark_needed(const lk_graph *g, size_t forward, bool *needed, bool *read)
{
    for (size_t i = g->nodes_count; i-- > forward;) {
        const lk__graph_node *n = &g->nodes[i];
        needed[i] = !n->dead && lk__plan_has_effect(n);
        for (int k = 0; k < n->outputs && !needed[i] && !n->dead; k++) needed[i] = n->out[k] >= 0 && read[n->out[k]];
        for (int k = 0; k < n->inputs && needed[i]; k++)
            if (n->in[k] >= 0) read[n->in[k]] = true;
    }
    for (size_t i = forward; i < g->nodes_count; i++) {
        const lk__graph_node  *n = &g->nodes[i];
        const lk__graph_value *from = n->inputs && n->in[0] >= 0 ? &g->values[n->in[0]] : NULL;
        if (n->dead || !from || from->kind != LK__VALUE_RESULT || !lk__op_shares_memory(n->op)) continue;
        needed[i] |= (size_t)from->node >= forward && needed[from->node];
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

/* A slice has gradients of several states, which are reduced as one and then added to those of the micro-batches
 * before: those that are made early, most of them of norms, are copied behind the others. `early`: by state. */
static lk_status copy_early(lk__plan_list *list, const bool *early)
{
    lk_graph *g = list->graph;
    for (size_t i = 0; i < g->states_count; i++) {
        int v = list->gradients[i];
        if (!early[i]) continue;
        int copy = lk__emit1(g, g->states[i].site, LK__OP_scale, &(lk__op_attrs){.scale = 1}, &v, 1);
        if (copy < 0) return g->status;
        g->values[copy].part = g->values[v].part;
        list->gradients[i] = copy;
    }
    return LK_OK;
}

static void mark_early(const lk__plan_list *list, size_t forward, const bool *needed, bool *early)
{
    const lk_graph *g = list->graph;
    for (size_t i = 0; i < g->states_count; i++) {
        int v = list->gradients[i], node = v < 0 ? -1 : g->values[v].node;
        early[i] = node >= (int)forward && needed[node];
    }
}

static lk_status postpone(const lk_plan *p, lk__plan_list *list, size_t forward, bool *flags, lk__graph_node *kept)
{
    lk_graph *g = list->graph;
    bool     *needed = flags, *read = needed + g->nodes_count, *early = read + g->values_count;
    mark_needed(g, forward, needed, read);
    mark_early(list, forward, needed, early);
    list->weights_begin = forward + divide(g, forward, needed, kept);
    return p->stage ? copy_early(list, early) : LK_OK;
}

lk_status lk__pass_postpone(const lk_plan *p, lk__plan_list *list, size_t forward)
{
    lk_graph *g = list->graph;
    if (lk__plan_stages(p) == 1 || p->parallel.pipeline_schedule != LK_PIPELINE_ZERO_BUBBLE) return LK_OK;
    if (!sends_in_backward(g, forward)) return LK_OK; /* nobody waits for the first stage */
    size_t          nodes = (g->nodes_count - forward) * sizeof(*g->nodes);
    size_t          bytes = (g->nodes_count + g->values_count + g->states_count) * sizeof(bool);
    bool           *flags = lk__alloc(p->context, LK_MEMORY_OTHER, bytes);
    lk__graph_node *kept = lk__alloc(p->context, LK_MEMORY_OTHER, nodes);
    lk_status       status = flags && kept ? postpone(p, list, forward, flags, kept) : LK_ENOMEM;
    lk__free(p->context, LK_MEMORY_OTHER, flags, bytes);
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
