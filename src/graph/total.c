/* total.c - users' own losses and metrics: a sum of numbers of samples, together with its weight. A number that was
 * already added or averaged over samples has lost its weight: programs see a part of the batch (a rank's, a
 * micro-batch's, a leaf's), so that its mean would change with the number of parts. It is refused, except for the sum
 * of a loss, whose weight is known. */
#include "graph/op.h"

#include <stdio.h>
#include <string.h>

static bool is_counted(const lk_graph *g, int value) { return value >= 0 && g->values[value].shape.count_axis >= 0; }

/* Nodes are in the order of recording: what they read was made before. */
static bool depends_on_samples(lk_graph *g, int value)
{
    bool *depends = lk__alloc(g->context, LK_MEMORY_OTHER, g->values_count * sizeof *depends), found = false;
    if (!depends) {
        lk__graph_no_memory(g);
        return false;
    }
    for (size_t i = 0; i < g->values_count; i++) depends[i] = is_counted(g, (int)i);
    for (size_t i = 0; i < g->nodes_count; i++) {
        const lk__graph_node *n = &g->nodes[i];
        bool                  any = false;
        for (int k = 0; k < n->inputs; k++) any |= n->in[k] >= 0 && depends[n->in[k]];
        for (int k = 0; any && k < n->outputs; k++)
            if (n->out[k] >= 0 && !lk__node_is_same(g, n, k)) depends[n->out[k]] = true;
    }
    found = depends[value];
    lk__free(g->context, LK_MEMORY_OTHER, depends, g->values_count * sizeof *depends);
    return found;
}

bool lk__graph_lacks_weight(lk_graph *g, int value)
{
    return !is_counted(g, value) && lk__graph_loss_node(g, value) < 0 && depends_on_samples(g, value);
}

/* A node `total` of x and its weight, or -1. Integers are added as f64; a weight of another type than x's is cast. */
static int emit_total(lk_site site, lk_tensor x, lk_tensor weight, const char *what)
{
    lk_graph *g = lk__common_graph(site, lk__op_name(LK__OP_total), (lk_tensor[]){x, weight}, 2);
    if (!g) return -1;
    if (!x.graph) {
        lk__graph_fail(g, site, "%s: the first argument is missing", what);
        return -1;
    }
    if (weight.graph && g->values[weight.id].needs_gradient) {
        lk__graph_fail(g, site, "%s: the weight has no gradient; pass it through lk_stop_gradient", what);
        return -1;
    }
    if (!weight.graph && lk__graph_lacks_weight(g, x.id)) {
        lk__graph_fail(g, site,
                       "%s: x is already summed or averaged over samples, so it would change with the number of ranks: "
                       "pass one value per sample, or the weight of the sum",
                       what);
        return -1;
    }
    if (g->status < 0) return -1;
    int      in[] = {x.id, weight.graph ? weight.id : -1};
    lk_dtype type = lk_tensor_dtype(x);
    if (!lk__is_element(type)) in[0] = lk__emit_cast(g, site, in[0], type = LK_F64);
    if (in[1] >= 0) in[1] = lk__emit_cast(g, site, in[1], type);
    return g->status < 0 ? -1 : lk__emit(g, site, LK__OP_total, NULL, in, in[1] < 0 ? 1 : 2, LK__ALL_OUTPUTS);
}

/* Whether x is the sum of a loss, which has its own weight. */
static bool is_loss(lk_tensor x, lk_tensor weight)
{
    return x.graph && x.graph->status == LK_OK && !weight.graph && x.id >= 0 && lk__graph_loss_node(x.graph, x.id) >= 0;
}

/* Whether x is a sum of losses, each with its own weight. */
static bool is_sum_of_losses(lk_tensor x, lk_tensor weight)
{
    lk__graph_term terms[LK_MAX_LOSSES];
    int            count = 0, at;
    if (!x.graph || x.graph->status < 0 || weight.graph || x.id < 0 || is_counted(x.graph, x.id)) return false;
    return lk__graph_terms(x.graph, x.id, terms, &count, &at) == LK__TERMS_KNOWN && count > 0;
}

lk_tensor lk_loss_at(lk_site site, lk_tensor x, lk_total_options options)
{
    lk_tensor all[] = {x, options.weight};
    if (is_loss(x, options.weight) || is_sum_of_losses(x, options.weight)) return x;
    int node = emit_total(site, x, options.weight, "loss");
    return node < 0 ? lk__no_result(site, all, 2) : (lk_tensor){x.graph, x.graph->nodes[node].out[0]};
}

void lk_metric_at(lk_site site, lk_tensor x, const char *name, lk_total_options options)
{
    lk_graph *g = x.graph ? x.graph : options.weight.graph;
    if (!g || g->status < 0) return;
    if (!name || !*name) {
        lk__graph_fail(g, site, "metric: a name is required");
        return;
    }
    for (size_t i = 0; i < g->metrics_count; i++)
        if (strcmp(g->metrics[i].name, name) == 0) lk__graph_fail(g, site, "metric \"%s\" already exists", name);
    if (g->metrics_count == LK_MAX_METRICS)
        lk__graph_fail(g, site, "metric \"%s\": a graph can have at most %d metrics", name, LK_MAX_METRICS);
    char what[80];
    snprintf(what, sizeof what, "metric \"%.60s\"", name);
    if (options.weight.graph) options.weight = lk_stop_gradient_at(site, options.weight);
    int node = is_loss(x, options.weight) ? lk__graph_loss_node(g, x.id)
                                          : emit_total(site, lk_stop_gradient_at(site, x), options.weight, what);
    if (node < 0) return;
    if (lk__grow(g->context, (void **)&g->metrics, &g->metrics_capacity, g->metrics_count + 1, sizeof *g->metrics) <
        0) {
        lk__graph_fail(g, site, "metric \"%s\": out of memory", name);
        return;
    }
    lk__graph_metric m = {lk__strdup(g->context, name), g->nodes[node].out[0], g->nodes[node].out[1]};
    if (!m.name)
        lk__graph_fail(g, site, "metric \"%s\": out of memory", name);
    else
        g->metrics[g->metrics_count++] = m;
}
