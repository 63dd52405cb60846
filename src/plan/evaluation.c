/* evaluation.c - evaluation is a mode of the same model: a rewriting of its graph. */
#include "plan/plan.h"

static void replace_uses(lk__plan_order *t, int from, int to)
{
    lk_graph *g = t->graph;
    for (size_t i = 0; i < g->nodes_count; i++)
        for (int j = 0; j < g->nodes[i].inputs; j++)
            if (g->nodes[i].in[j] == from) g->nodes[i].in[j] = to;
    for (int i = 0; i < t->outputs_count; i++)
        if (t->outputs[i] == from) t->outputs[i] = to;
    if (t->sum == from) t->sum = to;
}

void lk__pass_evaluation(lk__plan_order *t)
{
    for (size_t i = 0; i < t->graph->nodes_count; i++) {
        lk__graph_node *n = &t->graph->nodes[i];
        switch (lk__op_find(n->op)->evaluation) {
        case LK__EVALUATE_SAME: break;
        case LK__EVALUATE_BY_BUFFERS: /* x, w, b, running_mean, running_var stay; the rest goes */
            n->op = LK__OP_batch_norm_eval;
            n->inputs = 5;
            n->outputs = 1;
            n->attrs.update = false;
            break;
        case LK__EVALUATE_IDENTITY:
            n->dead = true;
            replace_uses(t, n->out[0], n->in[0]);
            break;
        }
    }
}
