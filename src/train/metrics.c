/* metrics.c - the metrics of a step or an evaluation: those that the model recorded, the accuracy of a cross-entropy,
 * and how unequal the loads of experts are. */
#include "train/trainer.h"

#include <string.h>

const lk_named_metric *lk_metrics_find(const lk_named_metric *metrics, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(metrics[i].name, name) == 0) return &metrics[i];
    return NULL;
}

int lk__trainer_numbers(const lk_trainer *t) { return t->plan->evaluate.numbers_count + 1; }

void lk__trainer_get_numbers(const lk_trainer *t, int64_t samples, double *numbers)
{
    int count = t->plan->evaluate.numbers_count;
    memcpy(numbers, lk__program_numbers(t->program), (size_t)count * sizeof *numbers);
    numbers[count] = (double)samples;
}

static lk_named_metric make_metric(const char *name, double sum, double weight)
{
    return (lk_named_metric){name, sum, weight, weight != 0 ? sum / weight : 0};
}

/* The labels that a cross-entropy counts: its weight or, where samples have weights of their own, all rows of the
 * logits. */
static double count_labels(const lk_trainer *t, const double *numbers)
{
    const lk_graph       *g = t->plan->evaluate.graph;
    const lk__graph_node *n = &g->nodes[g->values[t->plan->evaluate.numbers[LK__NUMBER_CORRECT]].node];
    double                samples = numbers[lk__trainer_numbers(t) - 1];
    /* cross_entropy has weights of samples as operand 2; linear_cross_entropy has none */
    bool weighted = n->op == LK__OP_cross_entropy && n->inputs > 2 && n->in[2] >= 0;
    return weighted ? samples * (double)g->values[n->in[1]].shape.count_unit : numbers[LK__NUMBER_WEIGHT];
}

/* The largest load over the mean: of the experts whose shares the model recorded (lk_moe_metrics) or, where ranks have
 * different experts, of these ranks, for which the others wait. 0: there are no shares. */
static double find_load(const lk_trainer *t, int count)
{
    lk__mesh_grid mesh = lk__trainer_mesh(&t->config);
    int           ranks = lk__mesh_extent(&mesh, LK__PLAN_EXPERT_AXES), first = 0, shares = 0;
    while (first < count && strncmp(t->named[first].name, "expert", 6) != 0) first++;
    while (first + shares < count && strncmp(t->named[first + shares].name, "expert", 6) == 0) shares++;
    int    parts = ranks > 1 && shares % ranks == 0 ? ranks : shares;
    double most = 0;
    for (int i = 0; i < parts; i++) {
        double load = 0;
        for (int k = 0; k < shares / parts; k++) load += t->named[first + i * (shares / parts) + k].value;
        if (load > most) most = load;
    }
    return most * parts;
}

int lk__trainer_set_named(lk_trainer *t, const double *numbers)
{
    const lk_graph *g = t->plan->graph;
    int             count = 0;
    for (size_t i = 0; i < g->metrics_count; i++) {
        const double *pair = numbers + LK__NUMBER_METRICS + 2 * i;
        t->named[count++] = make_metric(g->metrics[i].name, pair[0], pair[1]);
    }
    double load = find_load(t, count);
    if (load > 0) t->named[count++] = make_metric("expert_load", load, 1);
    if (t->plan->evaluate.numbers[LK__NUMBER_CORRECT] >= 0 && !lk_metrics_find(t->named, count, "accuracy"))
        t->named[count++] = make_metric("accuracy", numbers[LK__NUMBER_CORRECT], count_labels(t, numbers));
    return count;
}
