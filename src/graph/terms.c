/* terms.c - splits a loss that is a sum of losses into its terms and their factors. Every loss has its own weight
 * (labels may be missing for one head and present for another), so each sum is divided by its weight before the losses
 * are added. Only sums, differences, and multiples by numbers that are known when the graph is recorded can be
 * split. */
#include "graph/op.h"

#include <stdio.h>
#include <string.h>

typedef struct walk {
    lk_graph         *g;
    lk__graph_term   *terms;
    int               count;
    bool             *sums;    /* by value: it depends on the sum of a loss */
    bool             *reached; /* by value: the loss is computed from it */
    double           *factors; /* by value: what it is multiplied by in the loss */
    lk__graph_reasons reason;
    int               at; /* the value that is to blame */
} walk;

int lk__graph_loss_node(const lk_graph *g, int value)
{
    const lk__graph_value *v = &g->values[value];
    if (v->kind != LK__VALUE_RESULT) return -1;
    const lk__graph_node *n = &g->nodes[v->node];
    return lk__op_find(n->op)->loss != LK__LOSS_NO && n->out[0] == value ? v->node : -1;
}

/* Marks the sums of losses and what is computed from them. */
static void mark_sums(const lk_graph *g, bool *sums)
{
    for (size_t i = 0; i < g->nodes_count; i++) {
        const lk__graph_node *n = &g->nodes[i];
        bool                  any = false;
        for (int k = 0; k < n->inputs; k++) any |= n->in[k] >= 0 && sums[n->in[k]];
        for (int k = 0; any && k < n->outputs; k++)
            if (n->out[k] >= 0) sums[n->out[k]] = true;
        if (lk__op_find(n->op)->loss != LK__LOSS_NO && n->out[0] >= 0) sums[n->out[0]] = true;
    }
}

static void refuse(walk *w, lk__graph_reasons reason, int value)
{
    if (w->reason == LK__TERMS_KNOWN) w->reason = reason, w->at = value;
}

static void add_term(walk *w, int value, double factor)
{
    if (w->count == LK_MAX_LOSSES)
        refuse(w, LK__TERMS_TOO_MANY, value);
    else
        w->terms[w->count++] = (lk__graph_term){factor, value, lk__graph_loss_node(w->g, value)};
}

/* Whether a value is one number that is recorded in the graph. */
static bool find_number(const lk_graph *g, int value, double *number)
{
    const lk__graph_value *v = &g->values[value];
    if (v->kind != LK__VALUE_CONSTANT || lk__shape_elements(&v->shape) != 1) return false;
    const void *data = g->constants[v->state].data;
    if (!data || !lk__is_element(v->shape.dtype) || lk__is_narrow(v->shape.dtype)) return false;
    *number = v->shape.dtype == LK_F64 ? *(const double *)data : (double)*(const float *)data;
    return true;
}

/* Adds to what a value is multiplied by in the loss. */
static void reach(walk *w, int value, double factor)
{
    w->reached[value] = true;
    w->factors[value] += factor;
}

/* A product or a quotient with a number. */
static void take_multiple(walk *w, const lk__graph_node *n, int value, double factor)
{
    double number;
    if (find_number(w->g, n->in[1], &number))
        reach(w, n->in[0], n->op == LK__OP_mul ? factor * number : factor / number);
    else if (n->op == LK__OP_mul && find_number(w->g, n->in[0], &number))
        reach(w, n->in[1], factor * number);
    else
        refuse(w, LK__TERMS_OTHER, value);
}

static bool is_term(const walk *w, int value) { return !w->sums[value] || lk__graph_loss_node(w->g, value) >= 0; }

static void take_apart(walk *w, const lk__graph_node *n, int value)
{
    const lk__graph_value *v = &w->g->values[value];
    double                 factor = w->factors[value];
    if (lk__shape_elements(&v->shape) != 1 || v->shape.count_axis >= 0) {
        refuse(w, LK__TERMS_OTHER, value);
        return;
    }
    switch (n->op) {
    case LK__OP_add:
    case LK__OP_sub:
        reach(w, n->in[0], factor);
        reach(w, n->in[1], n->op == LK__OP_sub ? -factor : factor);
        break;
    case LK__OP_scale: reach(w, n->in[0], factor * n->attrs.scale); break;
    case LK__OP_cast:
    case LK__OP_reshape: reach(w, n->in[0], factor); break;
    case LK__OP_mul:
    case LK__OP_div: take_multiple(w, n, value, factor); break;
    default: refuse(w, LK__TERMS_OTHER, value); break;
    }
}

/* From the loss back, so that everything that uses a value has been taken apart before the value. */
static void walk_back(walk *w, int loss)
{
    const lk_graph *g = w->g;
    reach(w, loss, 1);
    for (size_t i = g->nodes_count; i-- > 0;) {
        const lk__graph_node *n = &g->nodes[i];
        for (int k = 0; k < n->outputs; k++)
            if (n->out[k] >= 0 && w->reached[n->out[k]] && !is_term(w, n->out[k])) take_apart(w, n, n->out[k]);
    }
    for (size_t i = 0; i < g->values_count; i++)
        if (w->reached[i] && is_term(w, (int)i)) add_term(w, (int)i, w->factors[i]);
}

lk__graph_reasons lk__graph_terms(lk_graph *g, int loss, lk__graph_term *terms, int *count, int *at)
{
    size_t  bytes = g->values_count * (sizeof(double) + 2 * sizeof(bool));
    double *factors = lk__alloc(g->context, LK_MEMORY_OTHER, bytes);
    *count = 0;
    *at = loss;
    if (!factors) return LK__TERMS_NO_MEMORY;
    walk w = {.g = g, .terms = terms, .factors = factors, .sums = (bool *)(factors + g->values_count), .at = loss};
    w.reached = w.sums + g->values_count;
    mark_sums(g, w.sums);
    walk_back(&w, loss);
    lk__free(g->context, LK_MEMORY_OTHER, factors, bytes);
    bool one = w.count == 1 && terms[0].sum == loss;
    for (int i = 0; i < w.count && !one; i++)
        if (terms[i].node < 0 && lk__graph_lacks_weight(g, terms[i].sum)) refuse(&w, LK__TERMS_NO_WEIGHT, terms[i].sum);
    *count = one ? 0 : w.count;
    *at = w.at;
    return w.reason;
}

void lk__graph_terms_text(const lk_graph *g, lk__graph_reasons reason, int at, char *text, size_t bytes)
{
    const lk__graph_value *v = &g->values[at];
    char                   site[256];
    snprintf(site, sizeof site, "%s:%d", v->site.file ? v->site.file : "?", v->site.line);
    switch (reason) {
    case LK__TERMS_TOO_MANY:
        snprintf(text, bytes, "%s: the loss is a sum of more than %d terms", site, LK_MAX_LOSSES);
        break;
    case LK__TERMS_NO_WEIGHT:
        snprintf(text, bytes,
                 "%s: this part of the loss is summed or averaged over samples, so it would change with the number of "
                 "ranks: use lk_loss with a value for each sample, or a loss such as lk_cross_entropy",
                 site);
        break;
    case LK__TERMS_NO_MEMORY: snprintf(text, bytes, "out of memory"); break;
    default:
        snprintf(text, bytes,
                 "%s: %s of a loss is not supported. A loss is a sum over samples until the update divides it by its "
                 "weight: losses can only be added, subtracted and multiplied by numbers (lk_scale); compute other "
                 "functions for each sample, then use lk_loss",
                 site, v->kind == LK__VALUE_RESULT ? lk__node_name(g, &g->nodes[v->node]) : "use");
        break;
    }
}
