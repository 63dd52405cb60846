/* build_experts.c - the recording calls of lockstep/moe.h. */
#include "graph/build.h"

#include "graph/op.h"

#include <lockstep/moe.h>
#include <stdio.h>

/* A result of the node that made x; invalid where x is. */
static lk_tensor sibling(lk_tensor x, int output)
{
    if (!x.graph || x.id < 0) return x;
    const lk__graph_node *n = &x.graph->nodes[x.graph->values[x.id].node];
    return (lk_tensor){x.graph, n->out[output]};
}

lk_topk_result lk_topk_at(lk_site site, lk_tensor x, int64_t k)
{
    lk_tensor values = lk__graph_record1(site, LK__OP_topk, &(lk__op_attrs){.k = k}, x);
    return (lk_topk_result){values, sibling(values, 1)};
}

lk_groups lk_group_rows_at(lk_site site, lk_tensor ids, int64_t experts, int64_t capacity)
{
    lk__op_attrs attrs = {.experts = experts, .capacity = capacity};
    lk_tensor    order = lk__graph_record1(site, LK__OP_group_rows, &attrs, ids);
    return (lk_groups){order, sibling(order, 1), sibling(order, 2), sibling(order, 3)};
}

/* Only the weight, the last of x, may be missing. */
static lk_tensor record_grouped(lk_site site, lk__op op, const lk_tensor *x, int count, int needed)
{
    for (int i = 1; x[0].graph && i < needed; i++)
        if (!x[i].graph) lk__graph_fail(x[0].graph, site, "%s: an argument is missing", lk__op_name(op));
    return lk__graph_record(site, op, NULL, x, count);
}

lk_tensor lk_gather_rows_at(lk_site site, lk_tensor x, lk_groups g, lk_tensor weight)
{
    return record_grouped(site, LK__OP_gather_rows, (lk_tensor[]){x, g.order, g.place, weight}, 4, 3);
}

lk_tensor lk_combine_rows_at(lk_site site, lk_tensor y, lk_groups g, lk_tensor weight)
{
    return record_grouped(site, LK__OP_combine_rows, (lk_tensor[]){y, g.order, g.place, weight}, 4, 3);
}

lk_tensor lk_grouped_linear_at(lk_site site, lk_tensor x, lk_tensor weight, lk_groups g)
{
    return record_grouped(site, LK__OP_grouped_linear, (lk_tensor[]){x, weight, g.offsets}, 3, 3);
}

/* ---- all layers of a model ---- */

/* The routers that were recorded: what all layers chose and how likely each choice was, added over the layers. */
typedef struct routers {
    lk_tensor probabilities, counts; /* (N, experts), f64 (experts) */
    int64_t   layers, experts, k;
} routers;

/* The probabilities that a group was chosen from; -1: its ids are not those of a router. */
static int find_probabilities(const lk_graph *g, const lk__graph_node *group, int64_t *k)
{
    const lk__graph_value *ids = &g->values[group->in[0]];
    if (group->op != LK__OP_group_rows || ids->kind != LK__VALUE_RESULT) return -1;
    const lk__graph_node *top = &g->nodes[ids->node];
    *k = top->attrs.k;
    return top->op == LK__OP_topk ? top->in[0] : -1;
}

static bool add_router(lk_site site, lk_graph *g, const lk__graph_node *group, routers *r)
{
    int64_t k = 0;
    int     p = find_probabilities(g, group, &k);
    if (p < 0) return true;
    lk_tensor probabilities = {g, p}, counts = {g, group->out[3]};
    if (r->layers > 0 && (r->experts != group->attrs.experts || r->k != k)) {
        lk__graph_fail(g, site,
                       "moe_balance: one layer has %lld experts and %lld per token, another has %lld and %lld: layers "
                       "can be balanced together only if both numbers match",
                       (long long)r->experts, (long long)r->k, (long long)group->attrs.experts, (long long)k);
        return false;
    }
    r->probabilities = r->layers ? lk_add_at(site, r->probabilities, probabilities) : probabilities;
    r->counts = r->layers ? lk_add_at(site, r->counts, counts) : counts;
    r->experts = group->attrs.experts;
    r->k = k;
    r->layers++;
    return true;
}

static bool find_routers(lk_site site, lk_tensor x, const char *name, routers *r)
{
    lk_graph *g = lk__common_graph(site, name, &x, 1);
    if (!g) return false;
    size_t count = g->nodes_count;
    for (size_t i = 0; i < count; i++) {
        lk__graph_node n = g->nodes[i]; /* nodes move as they grow */
        if (n.op == LK__OP_group_rows && !add_router(site, g, &n, r)) return false;
    }
    if (r->layers == 0) lk__graph_fail(g, site, "%s: no layer with experts was recorded before this call", name);
    return r->layers > 0 && g->status == LK_OK;
}

lk_tensor lk_moe_balance_at(lk_site site, lk_tensor x)
{
    routers r = {.layers = 0};
    if (!find_routers(site, x, "moe_balance", &r)) return lk__no_result(site, &x, 1);
    lk_graph    *g = x.graph;
    lk__op_attrs sum = {.reduction = LK_SUM, .update = true}; /* of all ranks; in evaluation by its plan */
    lk_tensor    all = {g, lk__emit_all_reduce(g, site, &sum, r.counts.id)};
    lk_tensor    share = lk_div_at(site, all, lk_sum_at(site, all, (lk_reduce_options){0}));
    share = lk_cast_at(site, share, lk_tensor_dtype(r.probabilities));
    /* E Σ f P with f = k share and P the mean over tokens and layers: the loss is the mean over N · E numbers */
    double factor = (double)(r.experts * r.experts * r.k) / (double)r.layers;
    return lk_loss_at(site, lk_scale_at(site, lk_mul_at(site, r.probabilities, share), factor), (lk_total_options){0});
}

void lk_moe_metrics_at(lk_site site, lk_tensor x)
{
    routers r = {.layers = 0};
    if (!find_routers(site, x, "moe_metrics", &r)) return;
    int64_t each = (r.experts + LK_MOE_METRICS - 1) / LK_MOE_METRICS;
    for (int64_t e = 0; e < r.experts; e += each) {
        char    name[64];
        int64_t count = r.experts - e < each ? r.experts - e : each;
        if (each == 1)
            snprintf(name, sizeof name, "expert_%lld", (long long)e);
        else
            snprintf(name, sizeof name, "experts_%lld_to_%lld", (long long)e, (long long)(e + count - 1));
        lk_metric_at(site, lk_slice_at(site, r.counts, 0, e, count), name, (lk_total_options){.weight = r.counts});
    }
}
