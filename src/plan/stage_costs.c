/* stage_costs.c - estimates the costs of a model's segments from a graph with gradients that is built only for the
 * estimate, and divides the model into stages by these costs. Axes that split operations or the batch divide all
 * segments equally, so the estimate uses the whole model as it was recorded. */
#include "graph/optimizer.h"
#include "plan/cost.h"
#include "plan/pipeline.h"
#include "plan/stages.h"

#include <math.h>

void lk__stages_costs_free(lk_context *c, lk__stages_costs *costs)
{
    if (!costs) return;
    size_t segments = (size_t)costs->segments;
    lk__free(c, LK_MEMORY_OTHER, costs->prices, costs->prices_capacity * sizeof *costs->prices);
    lk__free(c, LK_MEMORY_OTHER, costs->crossings, costs->crossings_capacity * sizeof *costs->crossings);
    lk__free(c, LK_MEMORY_OTHER, costs->state, 2 * segments * sizeof *costs->state);
    lk__free(c, LK_MEMORY_OTHER, costs, sizeof *costs);
}

/* ---- the graph that is priced ---- */

typedef struct pricing {
    lk_plan          *plan;
    lk_graph         *graph; /* forward and backward, as recorded */
    size_t            forward;
    int              *gradients;  /* by state */
    int              *segment_of; /* by block; -1: none */
    bool             *needed;     /* by value: something other than gradients of parameters depends on it */
    bool             *read;       /* by value: a gradient depends on it; of others, nodes of backward do not run */
    lk__stages_costs *costs;
} pricing;

static int segment_of(const pricing *w, const lk__graph_node *n)
{
    return (size_t)n->block < w->graph->blocks_count ? w->segment_of[n->block] : -1;
}

static bool runs(const pricing *w, size_t node)
{
    const lk__graph_node *n = &w->graph->nodes[node];
    if (n->dead || node < w->forward) return !n->dead;
    for (int i = 0; i < n->outputs; i++)
        if (n->out[i] >= 0 && w->read[n->out[i]]) return true;
    return false; /* such as the last of the nodes that are computed again */
}

static void find_read(pricing *w)
{
    const lk_graph *g = w->graph;
    for (size_t i = 0; i < g->states_count; i++)
        if (w->gradients[i] >= 0) w->read[w->gradients[i]] = true;
    for (size_t i = g->nodes_count; i-- > w->forward;)
        for (int k = 0; k < g->nodes[i].inputs && runs(w, i); k++)
            if (g->nodes[i].in[k] >= 0) w->read[g->nodes[i].in[k]] = true;
}

/* That of the innermost block around each that is a segment. Parents precede their blocks. */
static void find_segments(pricing *w)
{
    const struct lk__plan_pipeline *pipeline = w->plan->pipeline;
    for (size_t b = 0; b < w->graph->blocks_count; b++) {
        w->segment_of[b] = b ? w->segment_of[w->graph->blocks[b].parent] : -1;
        for (size_t i = 0; i < pipeline->segments_count; i++)
            if (pipeline->segments[i].block == (int)b) w->segment_of[b] = (int)i;
    }
}

static lk_status derive_gradients(pricing *w, const lk_plan_config *config)
{
    lk__plan_list list = {.graph = w->graph, .gradients = w->gradients};
    w->forward = w->graph->nodes_count;
    if (!config->optimizer) return LK_OK;
    lk__plan_freeze_groups(w->graph, config->optimizer);
    lk__plan_find_numbers(w->plan, &list, config->loss.id);
    lk_status status = lk__pass_loss_scales(w->plan, &list);
    w->forward = w->graph->nodes_count;
    return status < 0 ? status : lk__pass_loss_gradients(w->plan, &list);
}

static double value_bytes(const lk_graph *g, int v)
{
    return (double)lk__shape_elements(&g->values[v].shape) * (double)lk_dtype_size(g->values[v].shape.dtype);
}

/* The sum of gradients of a tied parameter, which is made once in a step, behind the micro-batches. */
static bool adds_uses(const pricing *w, size_t node)
{
    const lk__graph_node *n = &w->graph->nodes[node];
    if (node < w->forward || n->op != LK__OP_add) return false;
    for (size_t i = 0; i < w->graph->states_count; i++)
        if (w->gradients[i] == n->out[0]) return true;
    return false;
}

/* Nodes of backward that nothing but gradients of parameters depends on. */
static lk__stages_phase phase_of(const pricing *w, size_t node)
{
    const lk__graph_node *n = &w->graph->nodes[node];
    if (node < w->forward) return LK__STAGES_FORWARD;
    for (int i = 0; i < n->outputs; i++)
        if (n->out[i] >= 0 && w->needed[n->out[i]]) return LK__STAGES_BACKWARD;
    return LK__STAGES_WEIGHTS;
}

/* Values that another segment reads are needed, and what they are made of. */
static void find_needed(pricing *w)
{
    const lk_graph *g = w->graph;
    for (size_t i = g->nodes_count; i-- > w->forward;) {
        const lk__graph_node *n = &g->nodes[i];
        bool                  follows = phase_of(w, i) == LK__STAGES_BACKWARD;
        for (int k = 0; k < n->inputs && runs(w, i); k++) {
            if (n->in[k] < 0 || g->values[n->in[k]].kind != LK__VALUE_RESULT) continue;
            const lk__graph_node *maker = &g->nodes[g->values[n->in[k]].node];
            bool                  crosses = segment_of(w, maker) != segment_of(w, n) && !adds_uses(w, i);
            if (follows || crosses) w->needed[n->in[k]] = true;
        }
    }
}

static lk_status add_price(pricing *w, lk__op op, int segment, lk__stages_phase phase, double arithmetic, double bytes)
{
    lk__stages_costs *c = w->costs;
    lk_status         status =
        lk__grow(w->plan->context, (void **)&c->prices, &c->prices_capacity, c->prices_count + 1, sizeof *c->prices);
    if (status >= 0) c->prices[c->prices_count++] = (lk__stages_price){op, segment, phase, arithmetic, bytes};
    return status;
}

static lk_status price_nodes(pricing *w)
{
    const lk_graph *g = w->graph;
    lk_status       status = LK_OK;
    for (size_t i = 0; i < g->nodes_count && status >= 0; i++) {
        const lk__graph_node *n = &g->nodes[i];
        const lk__graph_op   *d = lk__op_find(n->op);
        int                   segment = segment_of(w, n);
        if (!runs(w, i) || segment < 0 || d->runs != LK__RUNS_KERNEL) continue;
        status = add_price(w, n->op, segment, phase_of(w, i), d->arithmetic(g, n), d->bytes(g, n));
    }
    return status;
}

/* ---- states and values ---- */

/* Tied parameters count in each segment that reads them. The update reads and writes a parameter and its moments, and
 * reads its gradient. */
static lk_status price_state(pricing *w, const lk_plan_config *config, int state, int segment)
{
    bool   trained = config->optimizer && w->gradients[state] >= 0;
    int    moments = trained ? __builtin_popcount(lk__optimizer_keeps(config->optimizer)) : 0;
    double bytes = value_bytes(w->graph, w->graph->states[state].value);
    w->costs->state[segment] += bytes * (trained ? 2 + moments : 1);
    if (!trained) return LK_OK;
    return add_price(w, lk__optimizer_find(config->optimizer->kind)->op, segment, LK__STAGES_UPDATE, 0,
                     bytes * (3 + 2 * moments));
}

static bool has_crossing(const lk__stages_costs *c, int value, int to)
{
    for (size_t i = c->crossings_count; i-- > 0;)
        if (c->crossings[i].value == value && c->crossings[i].to == to) return true;
    return false;
}

/* A value that another segment makes is received once in each that reads it. */
static lk_status price_crossing(pricing *w, int value, int from, int to)
{
    lk__stages_costs *c = w->costs;
    if (from < 0 || from == to || has_crossing(c, value, to)) return LK_OK;
    lk_status status = lk__grow(w->plan->context, (void **)&c->crossings, &c->crossings_capacity,
                                c->crossings_count + 1, sizeof *c->crossings);
    if (status >= 0)
        c->crossings[c->crossings_count++] = (lk__stages_crossing){value, from, to, value_bytes(w->graph, value)};
    return status;
}

/* `seen`: by value; of a state 1 + the last segment that read it, of others whether it counts as kept already: what
 * backward reads of forward stays in memory in between. */
static lk_status price_operands(pricing *w, const lk_plan_config *config, int *seen)
{
    const lk_graph *g = w->graph;
    lk_status       status = LK_OK;
    for (size_t i = 0; i < g->nodes_count && status >= 0; i++) {
        const lk__graph_node *n = &g->nodes[i];
        int                   to = segment_of(w, n);
        for (int k = 0; k < n->inputs && to >= 0 && runs(w, i) && status >= 0; k++) {
            int v = n->in[k];
            if (v < 0) continue;
            const lk__graph_value *x = &g->values[v];
            if (x->kind == LK__VALUE_STATE && i < w->forward && seen[v] != to + 1)
                seen[v] = to + 1, status = price_state(w, config, x->state, to);
            if (x->kind != LK__VALUE_RESULT) continue;
            int from = segment_of(w, &g->nodes[x->node]);
            if (i >= w->forward && (size_t)x->node < w->forward && from == to && !seen[v])
                seen[v] = 1, w->costs->activations[to] += value_bytes(g, v);
            if (!adds_uses(w, i)) status = price_crossing(w, v, from, to);
        }
    }
    return status;
}

static lk_status price_plan(pricing *w, const lk_plan_config *config)
{
    lk_context *c = w->plan->context;
    size_t      blocks = w->graph->blocks_count, states = w->graph->states_count;
    lk_status   status = LK_ENOMEM;
    int        *seen = NULL;
    w->segment_of = lk__alloc(c, LK_MEMORY_OTHER, blocks * sizeof *w->segment_of);
    w->gradients = lk__alloc(c, LK_MEMORY_OTHER, (states + 1) * sizeof *w->gradients);
    if (!w->segment_of || !w->gradients) goto end;
    for (size_t i = 0; i < states; i++) w->gradients[i] = -1;
    find_segments(w);
    if ((status = derive_gradients(w, config)) < 0) goto end;
    size_t values = w->graph->values_count;
    status = LK_ENOMEM;
    if (!(seen = lk__alloc(c, LK_MEMORY_OTHER, values * sizeof *seen))) goto end;
    if (!(w->needed = lk__alloc(c, LK_MEMORY_OTHER, 2 * values * sizeof *w->needed))) goto end;
    w->read = w->needed + values;
    find_read(w);
    find_needed(w);
    status = price_nodes(w);
    if (status >= 0) status = price_operands(w, config, seen);
end:
    lk__free(c, LK_MEMORY_OTHER, w->segment_of, blocks * sizeof *w->segment_of);
    lk__free(c, LK_MEMORY_OTHER, w->gradients, (states + 1) * sizeof *w->gradients);
    lk__free(c, LK_MEMORY_OTHER, seen, seen ? w->graph->values_count * sizeof *seen : 0);
    lk__free(c, LK_MEMORY_OTHER, w->needed, w->needed ? 2 * w->graph->values_count * sizeof *w->needed : 0);
    return status;
}

/* ---- stages ---- */

/* The same on every rank. */
static lk_rates device_rates(const lk_plan *p)
{
    return (lk_rates){.flops = p->device->backend->kernels.rates.flops,
                      .memory = p->device->backend->kernels.rates.memory};
}

static double price_seconds(const lk__stages_price *price, const lk_rates *rates)
{
    return fmax(price->arithmetic / rates->flops, price->bytes / rates->memory);
}

/* By measured times, where there are some. */
static double price_of(const lk_plan *p, const lk__stages_price *price, const lk_rates *rates)
{
    lk_rates typical = device_rates(p);
    return p->times ? lk__cost_of_work(p, price->op, price_seconds(price, &typical)) : price_seconds(price, rates);
}

double lk__stages_seconds(const lk_plan *p, int stage, lk__stages_phase phase, const lk_rates *rates)
{
    const lk__stages_costs *costs = p->pipeline->costs;
    double                  seconds = 0;
    for (size_t i = 0; costs && i < costs->prices_count; i++)
        if (costs->prices[i].phase == phase && p->pipeline->segments[costs->prices[i].segment].stage == stage)
            seconds += price_of(p, &costs->prices[i], rates);
    return seconds;
}

/* Whether a value crosses to a segment of the same stage before the i-th crossing. */
static bool has_crossed(const lk__stages_costs *costs, const lk__plan_segment *segments, size_t i)
{
    const lk__stages_crossing *x = &costs->crossings[i];
    for (size_t k = 0; k < i; k++)
        if (costs->crossings[k].value == x->value && segments[costs->crossings[k].to].stage == segments[x->to].stage)
            return true;
    return false;
}

/* Each value crosses to a stage once, whichever of its segments read it, and when. */
double lk__stages_sent(const lk_plan *p, int from, int to)
{
    const lk__stages_costs *costs = p->pipeline->costs;
    const lk__plan_segment *segments = p->pipeline->segments;
    double                  bytes = 0;
    for (size_t i = 0; costs && i < costs->crossings_count; i++) {
        const lk__stages_crossing *x = &costs->crossings[i];
        if (segments[x->from].stage == from && segments[x->to].stage == to && !has_crossed(costs, segments, i))
            bytes += x->bytes;
    }
    return bytes;
}

static lk_status assign_stages(lk_plan *p, const lk_plan_config *config, const lk__stages_costs *costs)
{
    int                stages = lk__plan_stages(p), layers = 0, count = costs->segments;
    lk__stages_request request = {{stages, p->parallel.micro_batches, p->parallel.pipeline_schedule, p->receives_early},
                                  config->stages};
    size_t             bytes = (size_t)count * sizeof(lk__stages_segment) + (size_t)stages * sizeof(int);
    lk_rates           rates = device_rates(p);
    lk__stages_segment *segments = lk__alloc(p->context, LK_MEMORY_OTHER, bytes);
    if (!segments) return LK_ENOMEM;
    int *first = (int *)(void *)(segments + count);
    for (int i = 0; i < count; i++) {
        segments[i].state = costs->state[i];
        segments[i].activations = costs->activations[i];
        segments[i].block = p->pipeline->segments[i].layer ? layers++ : -1;
    }
    for (size_t i = 0; i < costs->prices_count; i++) {
        const lk__stages_price *price = &costs->prices[i];
        double                  runs = price->phase == LK__STAGES_UPDATE ? request.shape.micro_batches : 1;
        segments[price->segment].seconds += price_seconds(price, &rates) / runs;
    }
    lk_status status = lk__stages_cut(p->context, segments, count, &request, first);
    for (int i = 0, stage = 0; i < count && status >= 0; i++) {
        while (stage + 1 < stages && first[stage + 1] <= i) stage++;
        p->pipeline->segments[i].stage = stage;
    }
    lk__free(p->context, LK_MEMORY_OTHER, segments, bytes);
    return status;
}

lk_status lk__plan_cut_stages(lk_plan *p, const lk_plan_config *config)
{
    lk_context       *c = p->context;
    pricing           w = {.plan = p};
    size_t            segments = p->pipeline->segments_count;
    lk__stages_costs *costs = lk__alloc(c, LK_MEMORY_OTHER, sizeof *costs);
    if (!costs) return LK_ENOMEM;
    p->pipeline->costs = w.costs = costs; /* which frees them */
    costs->segments = (int)segments;
    if (!(costs->state = lk__alloc(c, LK_MEMORY_OTHER, 2 * segments * sizeof *costs->state))) return LK_ENOMEM;
    costs->activations = costs->state + segments;
    lk_status status = lk__graph_copy(p->graph, &w.graph);
    if (status >= 0) status = price_plan(&w, config);
    if (status < 0 && w.graph && w.graph->status < 0) lk__fail(c, status, "%s", w.graph->error);
    lk_graph_free(w.graph);
    return status < 0 ? status : assign_stages(p, config, costs);
}
