/* losses.c - several losses that are added (graph/terms.c). Each is divided by its own weight in the global batch, so
 * the weights of all micro-batches, leaves and ranks must be known before the first backward runs. A separate list
 * computes those weights that do not follow from the count of samples; it reads only inputs and constants. The factor
 * of a loss's gradient is a number among the activations, which the host writes before backward (run/losses.c). */
#include "plan/plan.h"

lk_status lk__plan_find_losses(lk_plan *p, lk_graph *recorded, int loss)
{
    lk__graph_term terms[LK_MAX_LOSSES];
    char           text[640];
    int            at;
    if (loss < 0) return LK_OK;
    lk__graph_reasons reason = lk__graph_terms(recorded, loss, terms, &p->losses_count, &at);
    if (recorded->status < 0) return lk__fail(p->context, recorded->status, "%s", recorded->error);
    if (reason != LK__TERMS_KNOWN) {
        lk__graph_terms_text(recorded, reason, at, text, sizeof text);
        return lk__fail(p->context, reason == LK__TERMS_NO_MEMORY ? LK_ENOMEM : LK_EINVAL, "%s", text);
    }
    for (int i = 0; i < p->losses_count; i++)
        p->losses[i] = (lk__plan_loss){.factor = terms[i].factor,
                                       .sum = terms[i].sum,
                                       .weight = terms[i].node < 0 ? -1 : recorded->nodes[terms[i].node].out[1]};
    return LK_OK;
}

/* The loss's numbers: the sum, weight and correct of its op, or any single number with weight 1. Then the metrics', and
 * sum and weight of several losses, which have no common ones. */
void lk__plan_find_numbers(const lk_plan *p, lk__plan_list *list, int loss)
{
    const lk_graph *g = list->graph;
    list->numbers[LK__NUMBER_SUM] = list->numbers[LK__NUMBER_WEIGHT] = list->numbers[LK__NUMBER_CORRECT] = list->norm =
        -1;
    list->numbers_count = lk__number_losses(p) + 2 * p->losses_count;
    for (size_t i = 0; i < g->metrics_count; i++) {
        list->numbers[LK__NUMBER_METRICS + 2 * i] = g->metrics[i].sum;
        list->numbers[LK__NUMBER_METRICS + 2 * i + 1] = g->metrics[i].weight;
    }
    for (int i = 0; i < p->losses_count; i++) {
        list->numbers[lk__number_losses(p) + 2 * i] = p->losses[i].sum;
        list->numbers[lk__number_losses(p) + 2 * i + 1] = p->losses[i].weight;
    }
    if (loss < 0 || p->losses_count) return;
    list->numbers[LK__NUMBER_SUM] = loss;
    const lk__graph_value *v = &list->graph->values[loss];
    if (v->kind != LK__VALUE_RESULT) return;
    const lk__graph_node *n = &list->graph->nodes[v->node];
    lk__graph_loss        kind = lk__op_find(n->op)->loss;
    if (kind == LK__LOSS_NO || n->out[0] != loss) return;
    list->numbers[LK__NUMBER_WEIGHT] = n->out[1];
    if (kind == LK__LOSS_SUM_WEIGHT_CORRECT) list->numbers[LK__NUMBER_CORRECT] = n->out[2];
}

/* At the end of forward, so that backward finds them in memory that forward has reserved. */
lk_status lk__pass_loss_scales(lk_plan *p, lk__plan_list *list)
{
    lk_graph *g = list->graph;
    for (int i = 0; i < p->losses_count; i++) {
        int             sum = list->numbers[lk__number_losses(p) + 2 * i];
        lk__graph_shape shape = g->values[sum].shape;
        lk__op_attrs    attrs = {.scale = p->losses[i].factor};
        int             node = lk__emit_shaped(g, g->values[sum].site, LK__OP_fill, &attrs, NULL, 0, &shape, 1);
        if (node < 0) return g->status;
        p->losses[i].scale = g->nodes[node].out[0];
    }
    return LK_OK;
}

lk_status lk__pass_loss_gradients(lk_plan *p, lk__plan_list *list)
{
    int sums[LK_MAX_LOSSES], scales[LK_MAX_LOSSES];
    if (!p->losses_count) return lk__graph_grad(list->graph, list->numbers[LK__NUMBER_SUM], list->gradients);
    for (int i = 0; i < p->losses_count; i++) {
        sums[i] = list->numbers[lk__number_losses(p) + 2 * i];
        scales[i] = p->losses[i].scale;
    }
    return lk__graph_grad_sum(list->graph, sums, scales, p->losses_count, list->gradients);
}

/* ---- the list of weights ---- */

/* What keeps value v from being known before the model runs: a node or a state that it depends on; NULL: nothing. */
static const char *find_obstacle(const lk_graph *g, bool *needed, int v)
{
    for (size_t i = 0; i < g->nodes_count; i++) needed[i] = false;
    if (g->values[v].kind != LK__VALUE_RESULT) return NULL;
    needed[g->values[v].node] = true;
    for (size_t i = g->nodes_count; i-- > 0;) {
        const lk__graph_node *n = &g->nodes[i];
        const lk__graph_op   *d = lk__op_find(n->op);
        if (!needed[i]) continue;
        if (d->effect != LK__EFFECT_NONE || d->evaluation != LK__EVALUATE_SAME) return lk__node_name(g, n);
        for (int k = 0; k < n->inputs; k++) {
            if (n->in[k] < 0) continue;
            const lk__graph_value *x = &g->values[n->in[k]];
            if (x->kind == LK__VALUE_STATE) return g->states[x->state].name;
            if (x->kind == LK__VALUE_RESULT) needed[x->node] = true;
        }
    }
    return NULL;
}

/* Appends what computes weight i, and checks that it can be computed first. */
static lk_status add_weight(lk_plan *p, lk__plan_list *list, int i, int *value)
{
    lk_graph      *g = list->graph;
    lk__plan_loss *loss = &p->losses[i];
    *value = -1;
    loss->weigh = LK__WEIGH_RUNS;
    if (loss->weight < 0) return LK_OK;
    const lk__graph_node *n = &g->nodes[g->values[loss->weight].node];
    loss->weigh = LK__WEIGH_ELEMENTS;
    loss->elements = g->values[n->in[0]].shape;
    lk_site site = n->site;
    if (!lk__op_find(n->op)->weigh(g, n, value)) return lk__fail(p->context, g->status, "%s", g->error);
    if (*value < 0) return LK_OK;
    loss->weigh = LK__WEIGH_COMPUTED;
    bool *needed = lk__alloc(p->context, LK_MEMORY_OTHER, g->nodes_count * sizeof *needed);
    if (!needed) return LK_ENOMEM;
    const char *obstacle = find_obstacle(g, needed, *value);
    lk__free(p->context, LK_MEMORY_OTHER, needed, g->nodes_count * sizeof *needed);
    if (!obstacle) return LK_OK;
    return lk__fail(p->context, LK_EINVAL,
                    "%s:%d: the weight of this loss depends on %s. When losses are added, each is divided by its own "
                    "weight, which must be known before the model runs: compute it from inputs and constants",
                    site.file ? site.file : "?", site.line, obstacle);
}

lk_status lk__plan_weights(lk_plan *p)
{
    lk__plan_list *list = &p->weights;
    bool           computed = false;
    if (!p->losses_count) return LK_OK;
    lk_status status = lk__graph_copy(p->graph, &list->graph);
    list->norm = -1;
    list->numbers_count = p->losses_count;
    for (int i = 0; i < p->losses_count && status >= 0; i++) {
        status = add_weight(p, list, i, &list->numbers[i]);
        computed |= p->losses[i].weigh == LK__WEIGH_COMPUTED;
    }
    if (status < 0 || !computed) return status;
    size_t nodes = list->graph->nodes_count;
    for (size_t i = 0; i < nodes; i++) /* nothing else runs, whatever its effect */
        if (lk__plan_has_effect(&list->graph->nodes[i])) list->graph->nodes[i].dead = true;
    if ((status = lk__pass_layout(list, nodes, nodes, nodes)) < 0) return status;
    return lk__pass_memory(list, p);
}

double lk__plan_mean_loss(const lk_plan *p, const double *numbers)
{
    const double *pair = numbers + lk__number_losses(p);
    double        loss = 0;
    if (!p->losses_count)
        return numbers[LK__NUMBER_WEIGHT] != 0 ? numbers[LK__NUMBER_SUM] / numbers[LK__NUMBER_WEIGHT] : 0;
    for (int i = 0; i < p->losses_count; i++, pair += 2) /* without a weight the sum is 0, or not a number */
        loss += p->losses[i].factor * (pair[1] != 0 ? pair[0] / pair[1] : pair[0]);
    return loss;
}
