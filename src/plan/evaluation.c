/* evaluation.c - rewrites the graph of the model for evaluation mode. */
#include "plan/expert_leaves.h"

static void replace_uses(lk__plan_list *list, int from, int to)
{
    lk_graph *g = list->graph;
    for (size_t i = 0; i < g->nodes_count; i++)
        for (int j = 0; j < g->nodes[i].inputs; j++)
            if (g->nodes[i].in[j] == from) g->nodes[i].in[j] = to;
    for (int i = 0; i < list->outputs_count; i++)
        if (list->outputs[i] == from) list->outputs[i] = to;
    for (int i = 0; i < list->numbers_count; i++)
        if (list->numbers[i] == from) list->numbers[i] = to;
}

/* A sum over the batch of all ranks. Ranks may evaluate different numbers of batches, and leaves one by one. */
static void remove_batch_sum(lk__plan_list *list, lk__graph_node *n)
{
    if (n->op != LK__OP_all_reduce || !n->attrs.update) return;
    int       y = n->out[0], x = n->in[0];
    lk_graph *g = list->graph;
    n->dead = true;
    for (size_t i = 0; i < g->nodes_count; i++) {
        lk__graph_node *wait = &g->nodes[i];
        if (wait->op != LK__OP_wait || wait->in[0] != y) continue;
        wait->dead = true;
        replace_uses(list, wait->out[0], x);
    }
}

void lk__pass_leaf_statistics(lk__plan_list *list)
{
    for (size_t i = 0; i < list->graph->nodes_count; i++) remove_batch_sum(list, &list->graph->nodes[i]);
}

/* joint: ranks evaluate parts of the same batch at the same time. */
void lk__pass_evaluation(lk__plan_list *list, bool joint)
{
    for (size_t i = 0; i < list->graph->nodes_count; i++) {
        lk__graph_node *n = &list->graph->nodes[i];
        switch (lk__op_find(n->op)->evaluation) {
        case LK__EVALUATE_SAME:
            if (!joint) remove_batch_sum(list, n);
            break;
        case LK__EVALUATE_KEEPING_ALL: n->attrs.probability = 0; break;
        case LK__EVALUATE_BY_BUFFERS: /* x, w, b, running_mean, running_var are kept */
            n->op = LK__OP_batch_norm_eval;
            n->inputs = 5;
            n->outputs = 1;
            n->attrs.update = false;
            break;
        case LK__EVALUATE_IDENTITY:
            n->dead = true;
            replace_uses(list, n->out[0], n->in[0]);
            break;
        }
    }
}
