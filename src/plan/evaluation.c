/* evaluation.c - rewrites the graph of the model for evaluation mode. */
#include "plan/plan.h"

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

void lk__pass_evaluation(lk__plan_list *list)
{
    for (size_t i = 0; i < list->graph->nodes_count; i++) {
        lk__graph_node *n = &list->graph->nodes[i];
        switch (lk__op_find(n->op)->evaluation) {
        case LK__EVALUATE_SAME: break;
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
