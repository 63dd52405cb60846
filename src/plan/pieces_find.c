/* pieces_find.c - finds collectives of forward whose products can run piece by piece, and into how many pieces they are
 * cut: the number that was requested, or the number for which the product and the collective take the least time by a
 * model with the rates of a common network. The caller must know whether ranks have such a network: with a transport
 * that moves no data while kernels run, nothing is gained. */
#include "plan/pieces.h"

#include "graph/factor.h"
#include "plan/readers.h"
#include "plan/traffic.h"

/* Of a network of 10 Gbit/s: the same on all ranks and in every plan, so that plans agree. */
static const double bandwidth = 1.25e9, latency = 50e-6;
static const double overhead = 10e-6; /* of each piece besides: calls of kernels, and weights that are read again */
static const double least = 100e-6;   /* seconds that are to be saved */

enum { ESTIMATED_MOST = 4, LEAST_ROWS = 32 }; /* pieces; rows of a product in one */

typedef struct finder {
    const lk_plan       *plan;
    const lk__plan_list *list;
    const lk_graph      *g;
    lk__plan_readers     readers;
    lk__plan_exchanges  *found;
    int                  asked; /* pieces, or LK_PIECES_ESTIMATED */
    size_t               forward;
} finder;

/* ---- nodes that can be cut ---- */

static int64_t samples_of(const lk_graph *g, int v)
{
    const lk__graph_shape *s = &g->values[v].shape;
    return s->rank > 0 && s->count_axis == 0 && !s->count_first && !g->values[v].routed ? s->dims[0] / s->count_unit
                                                                                        : 0;
}

/* Whether so many samples of an operand are its first dimension, and that is one factor; which one. */
static int rows_factor(const lk_graph *g, const lk__factor_dim *dims, int v, int64_t samples)
{
    bool alone = dims[0].segments == 1 && dims[0].segment[0].count == 1 && !dims[0].listed;
    return alone && samples_of(g, v) == samples ? dims[0].segment[0].factor[0] : -1;
}

static bool has_elsewhere(const lk__factor_dim dims[LK_MAX_RANK], int factor)
{
    for (int i = 1; i < LK_MAX_RANK; i++)
        if (lk__factor_in_dim(&dims[i], factor)) return true;
    return false;
}

/* Views are not into what the caller binds: its address is known later. */
static bool is_in_memory(const lk_graph *g, int v)
{
    while (g->values[v].kind == LK__VALUE_RESULT && lk__op_shares_memory(g->nodes[g->values[v].node].op))
        v = g->nodes[g->values[v].node].in[0];
    return g->values[v].kind == LK__VALUE_RESULT;
}

/* Whether one operand alone has the samples, in its rows. */
static bool cuts_one_input(const lk__graph_node *n, const lk__factors *f, int factor, int at)
{
    for (int i = 0; i < n->inputs; i++)
        if (i != at && n->in[i] >= 0 && (n->in[i] == n->in[at] || lk__factor_in(f->in[i], factor))) return false;
    return !has_elsewhere(f->in[at], factor);
}

/* A product whose rows follow from those of input `given` alone. */
static bool is_product(const lk_graph *g, const lk__graph_node *n, int given)
{
    const lk__graph_op *d = lk__op_find(n->op);
    lk__factors         f;
    char                text[128];
    int64_t             samples = samples_of(g, given);
    int                 at = 0, factor;
    if (d->runs != LK__RUNS_KERNEL || d->arithmetic(g, n) <= 0 || lk__plan_has_effect(n) || samples < 2 ||
        d->attributes & LK__HAS(stream) || n->op == LK__OP_custom || lk__node_factors(g, n, &f, text))
        return false;
    while (at < n->inputs && n->in[at] != given) at++;
    if (at == n->inputs || d->in[0].layout != LK__LAYOUT_ROWS || d->out[0].layout != LK__LAYOUT_ROWS) return false;
    factor = rows_factor(g, f.in[at], given, samples);
    if (factor < 0 || !is_in_memory(g, given) || f.factor[factor].coupled || !cuts_one_input(n, &f, factor, at))
        return false;
    for (int k = 0; k < n->outputs; k++)
        if (n->out[k] >= 0 && (rows_factor(g, f.out[k], n->out[k], samples) != factor ||
                               has_elsewhere(f.out[k], factor) || g->values[n->out[k]].kind != LK__VALUE_RESULT))
            return false;
    return true;
}

/* ---- how many pieces ---- */

static double product_seconds(const finder *x, const lk__plan_exchange *e)
{
    const lk__device_rates rates = x->plan->device->backend->kernels.rates;
    double                 seconds = 0;
    for (int i = 0; i < e->products_count; i++)
        seconds += lk__node_seconds(x->g, &x->g->nodes[e->products[i]], rates.flops, rates.memory);
    return seconds;
}

/* Both, in so many pieces: the link carries one after the other, and so does the rank compute them. */
static double exchange_seconds(const lk__plan_exchange *e, double computes, double sends, int pieces)
{
    double clock = 0, network = 0;
    for (int i = 0; i < pieces; i++) {
        double compute = computes / pieces + (pieces > 1 ? overhead : 0), send = latency + sends / pieces;
        if (e->gathers) {
            network += send;
            clock = (clock > network ? clock : network) + compute;
        } else {
            clock += compute;
            network = (clock > network ? clock : network) + send;
        }
    }
    return clock > network ? clock : network;
}

static int64_t product_rows(const lk_graph *g, const lk__plan_exchange *e)
{
    const lk__graph_shape *s = &g->values[g->nodes[e->products[0]].out[0]].shape;
    return lk__shape_elements(s) / s->dims[s->rank - 1];
}

static int choose_pieces(const finder *x, const lk__plan_exchange *e)
{
    const lk__graph_node *start = &x->g->nodes[e->start];
    double                computes = product_seconds(x, e);
    double                sends = lk__plan_collective_bytes(x->plan, x->g, start) / bandwidth;
    double                whole = exchange_seconds(e, computes, sends, 1), best = whole - least;
    int                   pieces = 1;
    if (x->asked > 0) return (int)(x->asked < e->samples ? x->asked : e->samples);
    for (int i = 2; i <= ESTIMATED_MOST && i <= e->samples && product_rows(x->g, e) / i >= LEAST_ROWS; i++) {
        double seconds = exchange_seconds(e, computes, sends, i);
        if (seconds < best) best = seconds, pieces = i;
    }
    return pieces;
}

/* ---- exchanges ---- */

static bool is_free(const finder *x, int node) { return x->found->of_node[node] < 0; }

static lk_status keep_exchange(finder *x, lk__plan_exchange *e)
{
    lk__plan_exchanges *all = x->found;
    if ((e->pieces = choose_pieces(x, e)) < 2) return LK_OK;
    if (lk__grow(x->plan->context, (void **)&all->all, &all->capacity, all->count + 1, sizeof *e) < 0) return LK_ENOMEM;
    all->of_node[e->start] = all->of_node[e->wait] = (int)all->count;
    for (int i = 0; i < e->views_count; i++) all->of_node[e->views[i]] = (int)all->count;
    for (int i = 0; i < e->products_count; i++) all->of_node[e->products[i]] = (int)all->count;
    all->all[all->count++] = *e;
    return LK_OK;
}

static int find_wait(const finder *x, int start)
{
    int  v = x->g->nodes[start].out[0], wait = x->readers.first[v];
    bool known = x->readers.count[v] == 1 && (size_t)wait < x->forward;
    return known && lk__op_find(x->g->nodes[wait].op)->runs == LK__RUNS_WAIT ? wait : -1;
}

/* Whether it is the gathered value, or a view of it. */
static bool is_gathered(const finder *x, const lk__plan_exchange *e, int v)
{
    bool found = v == x->g->nodes[e->wait].out[0];
    for (int k = 0; k < e->views_count && !found; k++) found = v == x->g->nodes[e->views[k]].out[0];
    return v >= 0 && found;
}

/* The operand of a node that is; how many are. */
static int gathered_input(const finder *x, const lk__plan_exchange *e, const lk__graph_node *n, int *count)
{
    int given = -1;
    *count = 0;
    for (int i = 0; i < n->inputs; i++)
        if (is_gathered(x, e, n->in[i])) given = n->in[i], ++*count;
    return given;
}

/* Whether everything else that a product reads is there when the first one runs. */
static bool is_ready(const finder *x, const lk__plan_exchange *e, const lk__graph_node *n, int given)
{
    for (int i = 0; i < n->inputs; i++) {
        const lk__graph_value *v = n->in[i] < 0 || n->in[i] == given ? NULL : &x->g->values[n->in[i]];
        if (v && v->kind == LK__VALUE_RESULT && e->products_count && v->node > e->products[0]) return false;
    }
    return true;
}

/* What a node is to the gathered value, if it reads that. */
static void add_reader(finder *x, lk__plan_exchange *e, int node)
{
    int                   count, given = gathered_input(x, e, &x->g->nodes[node], &count);
    const lk__graph_node *n = &x->g->nodes[node];
    bool                  early = (size_t)node < x->forward && is_free(x, node) && count == 1;
    if (given < 0) return;
    if (n->op == LK__OP_reshape && !n->attrs.start && early && e->views_count < LK__PIECES_VIEWS &&
        samples_of(x->g, n->out[0]) == e->samples && !e->products_count)
        e->views[e->views_count++] = node;
    else if (early && e->products_count < LK__PIECES_PRODUCTS && !e->whole && is_product(x->g, n, given) &&
             is_ready(x, e, n, given))
        e->products[e->products_count++] = node;
    else if (e->products_count)
        e->whole = true;
    else
        e->samples = 0; /* it is needed as a whole before any product runs */
}

static bool is_read_outside(const finder *x, const lk__plan_exchange *e)
{
    int values[LK__PIECES_VIEWS + 1] = {x->g->nodes[e->wait].out[0]}, count = 1;
    for (int i = 0; i < e->views_count; i++) values[count++] = x->g->nodes[e->views[i]].out[0];
    for (int i = 0; i < count; i++) {
        int readers = 0;
        for (size_t k = 0; k < x->g->nodes_count; k++)
            for (int j = 0; j < x->g->nodes[k].inputs && x->readers.needed[k]; j++)
                readers += x->g->nodes[k].in[j] == values[i];
        if (readers != x->readers.count[values[i]]) return true;
    }
    return false;
}

static lk_status find_gather(finder *x, int start)
{
    lk__plan_exchange e = {.gathers = true, .start = start, .wait = find_wait(x, start)};
    if (e.wait < 0) return LK_OK;
    e.samples = samples_of(x->g, x->g->nodes[start].in[0]);
    if (samples_of(x->g, x->g->nodes[start].out[0]) != e.samples || !is_in_memory(x->g, x->g->nodes[start].in[0]))
        return LK_OK;
    for (size_t i = (size_t)e.wait + 1; i < x->g->nodes_count && e.samples > 1; i++)
        if (x->readers.needed[i]) add_reader(x, &e, (int)i);
    if (e.samples < 2 || !e.products_count) return LK_OK;
    e.whole = e.whole || is_read_outside(x, &e);
    return keep_exchange(x, &e);
}

/* The product that makes the operand of a sum, and nothing else reads it. */
static lk_status find_sum(finder *x, int start)
{
    lk__plan_exchange e = {.start = start, .wait = find_wait(x, start)};
    int               v = x->g->nodes[start].in[0], node;
    if (e.wait < 0) return LK_OK;
    e.samples = samples_of(x->g, v);
    for (;;) {
        int readers = v == x->g->nodes[start].in[0] ? 2 : 1; /* the start, and its wait */
        node = x->g->values[v].kind == LK__VALUE_RESULT && x->readers.count[v] == readers ? x->g->values[v].node : -1;
        if (node < 0 || samples_of(x->g, v) != e.samples || !is_free(x, node)) return LK_OK;
        const lk__graph_node *n = &x->g->nodes[node];
        if (n->op != LK__OP_reshape || n->attrs.start || e.views_count == LK__PIECES_VIEWS) break;
        for (int i = e.views_count++; i > 0; i--) e.views[i] = e.views[i - 1];
        e.views[0] = node;
        v = n->in[0];
    }
    const lk__graph_node *n = &x->g->nodes[node];
    bool                  fits = e.samples > 1 && samples_of(x->g, x->g->nodes[start].out[0]) == e.samples;
    if (!fits || n->outputs != 1 || n->inputs < 1 || !is_product(x->g, n, n->in[0])) return LK_OK;
    e.products[e.products_count++] = node;
    return keep_exchange(x, &e);
}

static lk_status find_all(finder *x)
{
    lk_status status = LK_OK;
    for (size_t i = 0; i < x->forward && status >= 0; i++) {
        const lk__graph_node *n = &x->g->nodes[i];
        const lk__graph_op   *d = lk__op_find(n->op);
        if (!x->readers.needed[i] || d->runs != LK__RUNS_COLLECTIVE || !(n->attrs.mesh & x->plan->placed_axes))
            continue;
        if (d->collective == LK__ALL_GATHER && n->attrs.rows == 1) status = find_gather(x, (int)i);
        bool sums = d->collective == LK__REDUCE_SCATTER ? n->attrs.rows == 1 : d->collective == LK__ALL_REDUCE;
        if (sums) status = find_sum(x, (int)i);
    }
    return status;
}

lk_status lk__exchanges_find(const lk_plan *p, const lk__plan_list *list, int asked, size_t forward,
                             lk__plan_exchanges *all)
{
    finder x = {.plan = p, .list = list, .g = list->graph, .found = all, .asked = asked, .forward = forward};
    *all = (lk__plan_exchanges){.nodes = list->graph->nodes_count};
    lk_status status = lk__readers_find(list, true, &x.readers);
    all->of_node = lk__alloc(p->context, LK_MEMORY_OTHER, all->nodes * sizeof *all->of_node);
    if (all->nodes && !all->of_node) status = LK_ENOMEM;
    for (size_t i = 0; i < all->nodes && status >= 0; i++) all->of_node[i] = -1;
    if (status >= 0) status = find_all(&x);
    lk__readers_free(list, &x.readers);
    return status;
}

void lk__exchanges_free(const lk_plan *p, lk__plan_exchanges *all)
{
    lk__free(p->context, LK_MEMORY_OTHER, all->all, all->capacity * sizeof *all->all);
    lk__free(p->context, LK_MEMORY_OTHER, all->of_node, all->nodes * sizeof *all->of_node);
}
