/* terms.c - a loss that is a sum of losses: which ones, and by what each is multiplied. The mean of a sum is not the sum over one
 * weight: every loss has its own (labels that are missing for one head are there for another), so it is divided before they are added.
 * Only sums, differences and multiples by numbers that are known now can be taken apart. */
#include "graph/op.h"

#include <stdio.h>
#include <string.h>

typedef struct walk {
    lk_graph         *g;
    lk__graph_term   *terms;
    int               count;
    const bool       *sums; /* by value: it depends on the sum of a loss */
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
    for (int i = 0; i < w->count; i++)
        if (w->terms[i].sum == value) {
            w->terms[i].factor += factor;
            return;
        }
    if (w->count == LK_MAX_LOSSES) {
        refuse(w, LK__TERMS_TOO_MANY, value);
        return;
    }
    w->terms[w->count++] = (lk__graph_term){factor, value, lk__graph_loss_node(w->g, value)};
}

/* Whether a value is one number that is recorded in the graph. */
static bool find_number(const lk_graph *g, int value, double *number)
{
    const lk__graph_value *v = &g->values[value];
    if (v->kind != LK__VALUE_CONSTANT || lk__shape_elements(&v->shape) != 1) return false;
    const void *data = g->constants[v->state].data;
    if (!data || !lk__is_element(v->shape.dtype) || v->shape.dtype == LK_BF16) return false;
    *number = v->shape.dtype == LK_F64 ? *(const double *)data : (double)*(const float *)data;
    return true;
}

static void take_apart(walk *w, int value, double factor);

/* A product or a quotient with a number. */
static void take_multiple(walk *w, const lk__graph_node *n, int value, double factor)
{
    double number;
    if (find_number(w->g, n->in[1], &number))
        take_apart(w, n->in[0], n->op == LK__OP_mul ? factor * number : factor / number);
    else if (n->op == LK__OP_mul && find_number(w->g, n->in[0], &number))
        take_apart(w, n->in[1], factor * number);
    else
        refuse(w, LK__TERMS_OTHER, value);
}

static void take_apart(walk *w, int value, double factor)
{
    const lk_graph        *g = w->g;
    const lk__graph_value *v = &g->values[value];
    if (!w->sums[value] || lk__graph_loss_node(g, value) >= 0) {
        add_term(w, value, factor);
        return;
    }
    const lk__graph_node *n = &g->nodes[v->node];
    bool                  single = lk__shape_elements(&v->shape) == 1 && v->shape.count_axis < 0;
    if (!single) {
        refuse(w, LK__TERMS_OTHER, value);
        return;
    }
    switch (n->op) {
    case LK__OP_add:
    case LK__OP_sub:
        take_apart(w, n->in[0], factor);
        take_apart(w, n->in[1], n->op == LK__OP_sub ? -factor : factor);
        break;
    case LK__OP_scale: take_apart(w, n->in[0], factor * n->attrs.scale); break;
    case LK__OP_cast:
    case LK__OP_reshape: take_apart(w, n->in[0], factor); break;
    case LK__OP_mul:
    case LK__OP_div: take_multiple(w, n, value, factor); break;
    default: refuse(w, LK__TERMS_OTHER, value); break;
    }
}

lk__graph_reasons lk__graph_terms(lk_graph *g, int loss, lk__graph_term *terms, int *count, int *at)
{
    size_t bytes = g->values_count * sizeof(bool);
    bool  *sums = lk__alloc(g->context, LK_MEMORY_OTHER, bytes);
    *count = 0;
    *at = loss;
    if (!sums) return LK__TERMS_NO_MEMORY;
    mark_sums(g, sums);
    walk w = {.g = g, .terms = terms, .sums = sums, .at = loss};
    take_apart(&w, loss, 1);
    lk__free(g->context, LK_MEMORY_OTHER, sums, bytes);
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
        snprintf(text, bytes, "%s: the loss is a sum of more than %d losses", site, LK_MAX_LOSSES);
        break;
    case LK__TERMS_NO_WEIGHT:
        snprintf(text, bytes,
                 "%s: this part of the loss is added or averaged over samples, and would change with the number of "
                 "ranks: use lk_loss of a value for each sample, or one such as lk_cross_entropy",
                 site);
        break;
    case LK__TERMS_NO_MEMORY: snprintf(text, bytes, "out of memory"); break;
    default:
        snprintf(text, bytes,
                 "%s: %s of a loss. A loss is a sum over samples until the update divides it by its weight: losses can "
                 "be added, subtracted and multiplied by numbers (lk_scale), nothing else; for other functions, "
                 "compute them for each sample and use lk_loss",
                 site, v->kind == LK__VALUE_RESULT ? lk__node_name(g, &g->nodes[v->node]) : "use");
        break;
    }
}
