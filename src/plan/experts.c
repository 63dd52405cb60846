/* experts.c - the pass of experts.h: first decides, on the unchanged graph, in which form each value is held and each
 * node runs, then rebuilds the list with the local shapes and with exchanges between the two forms. A value keeps its
 * number, which is its held form; its other form is a new value, which is created where it is first needed and then
 * kept. */
#include "plan/experts.h"

#include "plan/expert_leaves.h"

#include "graph/factor.h"

#include <string.h>

typedef enum held {
    BY_SOURCE,
    BY_EXPERT,
    OF_EXPERTS /* dimension 0 is the experts, of which this rank has a part: weights and their gradients */
} held;

/* One grouping of rows, known by its offsets. */
typedef struct routes {
    int     offsets;                  /* value: by source */
    int64_t rows;                     /* capacity by expert */
    int     all, local, order, place; /* values: of all ranks; of this rank's experts; -1: not made yet */
    int     order_back, place_back;
    int     bounds; /* value, where the batch has leaves: the rows of each rank */
} routes;

typedef struct form {
    held held;
    int  routes; /* BY_EXPERT: index */
    int  other;  /* the value in its other form; -1: not made */
} form;

typedef struct experts {
    lk_plan         *plan;
    lk__plan_list   *list;
    lk_graph        *g;
    int              ranks, own;
    size_t           values; /* that there were before */
    form            *forms;  /* by value */
    lk__graph_shape *whole;  /* by value: its shape before */
    held            *runs;   /* by node: in which form it reads and makes rows */
    int             *by;     /* by node: of which routes */
    unsigned        *rows;   /* by node: inputs that it reads in the form in which it runs */
    routes          *routes;
    size_t           routes_count, routes_capacity;
} experts;

/* ---- finding ---- */

static int find_routes(experts *x, int offsets, int rows_value)
{
    lk_graph              *g = x->g;
    const lk__graph_value *v = &g->values[offsets];
    size_t                 i = 0;
    while (i < x->routes_count && x->routes[i].offsets != offsets) i++;
    if (i < x->routes_count) return (int)i;
    if (lk__grow(g->context, (void **)&x->routes, &x->routes_capacity, i + 1, sizeof *x->routes) < 0) {
        lk__graph_no_memory(g);
        return -1;
    }
    int64_t rows = x->ranks * g->values[rows_value].shape.dims[0];
    int64_t most = v->kind == LK__VALUE_RESULT ? g->nodes[v->node].attrs.capacity : 0;
    if (most > 0 && most * (v->shape.dims[0] - 1) < rows) rows = most * (v->shape.dims[0] - 1);
    x->routes[x->routes_count++] =
        (routes){.offsets = offsets, .rows = rows, .all = -1, .local = -1, .order = -1, .place = -1};
    return (int)i;
}

static bool refuse(experts *x, const lk__graph_node *n, const char *why)
{
    lk__graph_fail(x->g, n->site,
                   "%s %s, which is not supported when the experts' weights are split over the expert axis",
                   lk__node_name(x->g, n), why);
    return false;
}

/* Rows that experts of another grouping have are in another order, on other ranks. */
static bool refuse_routes(experts *x, const lk__graph_node *n)
{
    lk__graph_fail(x->g, n->site,
                   "%s reads rows of two groupings of tokens, whose experts are on different ranks along expert: group "
                   "them once (lk_group_rows), or train without the expert axis",
                   lk__node_name(x->g, n));
    return false;
}

static bool has_other_routes(const experts *x, int v, int routes)
{
    return v >= 0 && x->forms[v].held == BY_EXPERT && x->forms[v].routes != routes;
}

/* Operations on groups. */
static bool find_grouped(experts *x, size_t i)
{
    const lk__graph_node    *n = &x->g->nodes[i];
    const lk__graph_grouped *d = &lk__op_find(n->op)->grouped;
    int                      routes = find_routes(x, n->in[d->offsets - 1], n->in[0]);
    if (routes < 0) return false;
    x->runs[i] = BY_EXPERT;
    x->by[i] = routes;
    for (int k = 0; k < n->inputs; k++) {
        if (has_other_routes(x, n->in[k], routes)) return refuse_routes(x, n);
        if ((d->weights >> k & 1) && x->forms[n->in[k]].held != OF_EXPERTS)
            return refuse(x, n, "reads a weight that is not a parameter");
    }
    for (int k = 0; k < n->outputs; k++)
        if (n->out[k] >= 0) x->forms[n->out[k]] = (form){d->gradients >> k & 1 ? OF_EXPERTS : BY_EXPERT, routes, -1};
    return true;
}

/* The factor that dimension 0 of an operand is; -1: none, or several. */
static int first_factor(const lk__factor_dim dims[LK_MAX_RANK])
{
    return dims[0].segments == 1 && dims[0].segment[0].count == 1 ? dims[0].segment[0].factor[0] : -1;
}

/* Whether it computes each row of input `from` by itself, and its outputs have these rows, too. Random numbers depend
 * on where an element is; other collectives are of the rows that were recorded. */
static bool follows(const experts *x, const lk__graph_node *n, int from)
{
    lk__factors         f;
    char                text[128];
    const lk__graph_op *d = lk__op_find(n->op);
    if (d->attributes & LK__HAS(stream) || d->runs == LK__RUNS_COLLECTIVE || d->runs == LK__RUNS_WAIT) return false;
    if (lk__node_factors(x->g, n, &f, text)) return false;
    int rows = first_factor(f.in[from]);
    if (rows < 0 || f.factor[rows].coupled) return false;
    for (int i = 0; i < n->inputs; i++)
        if (n->in[i] >= 0 && lk__factor_in(f.in[i], rows) && first_factor(f.in[i]) != rows) return false;
    for (int k = 0; k < n->outputs; k++)
        if (n->out[k] >= 0 && first_factor(f.out[k]) != rows) return false;
    return true;
}

/* Whether input i has the rows, or experts, of input `from`. */
static bool has_rows(const experts *x, const lk__graph_node *n, int i, int from)
{
    lk__factors f;
    char        text[128];
    if (n->in[i] < 0 || lk__node_factors(x->g, n, &f, text)) return false;
    return lk__factor_in(f.in[i], first_factor(f.in[from]));
}

static bool find_node(experts *x, size_t i)
{
    const lk__graph_node *n = &x->g->nodes[i];
    int                   from = -1;
    if (lk__op_find(n->op)->grouped.offsets) return find_grouped(x, i);
    for (int k = 0; k < n->inputs && from < 0; k++)
        if (n->in[k] >= 0 && x->forms[n->in[k]].held != BY_SOURCE) from = k;
    if (from < 0) return true;
    held held = x->forms[n->in[from]].held;
    if (!follows(x, n, from)) return held == BY_EXPERT || refuse(x, n, "reads weights of experts");
    for (int k = 0; k < n->inputs && held == OF_EXPERTS; k++)
        if (has_rows(x, n, k, from) && x->forms[n->in[k]].held != OF_EXPERTS)
            return refuse(x, n, "computes with weights of experts");
    for (int k = 0; k < n->inputs && held == BY_EXPERT; k++)
        if (has_rows(x, n, k, from) && has_other_routes(x, n->in[k], x->forms[n->in[from]].routes))
            return refuse_routes(x, n);
    x->runs[i] = held;
    x->by[i] = x->forms[n->in[from]].routes;
    for (int k = 0; k < n->outputs; k++)
        if (n->out[k] >= 0) x->forms[n->out[k]] = (form){held, x->by[i], -1};
    return true;
}

/* A parameter that the loss does not depend on has a gradient that a node without operands makes. */
static bool check_gradients(experts *x)
{
    for (size_t i = 0; i < x->g->states_count && x->list->gradients; i++) {
        int v = x->list->gradients[i];
        if (v < 0 || (x->forms[v].held == OF_EXPERTS) == lk__plan_is_expert(x->plan, i)) continue;
        const lk__graph_node *n = &x->g->nodes[x->g->values[v].node];
        if (x->forms[v].held == OF_EXPERTS || n->inputs > 0)
            return refuse(x, n, "computes the gradient of a parameter");
        x->forms[v].held = OF_EXPERTS;
    }
    return true;
}

/* The gradients of leaves are made by one operation: there is no room for those of one use of a weight. */
static bool check_leaves(experts *x)
{
    for (size_t i = 0; i < x->g->states_count && lk__plan_expert_leaves(x->plan) && x->list->gradients; i++) {
        int v = x->list->gradients[i];
        if (v < 0 || x->forms[v].held != OF_EXPERTS) continue;
        const lk__graph_node *n = &x->g->nodes[x->g->values[v].node];
        if (n->inputs > 0 && !lk__op_find(n->op)->grouped.gradients)
            return refuse(x, n, "adds the gradients of several uses of a parameter while training with leaves");
    }
    return true;
}

static bool find_forms(experts *x)
{
    bool done = true;
    for (size_t v = 0; v < x->values; v++) {
        const lk__graph_value *value = &x->g->values[v];
        bool expert = value->kind == LK__VALUE_STATE && lk__plan_is_expert(x->plan, (size_t)value->state);
        x->forms[v] = (form){expert ? OF_EXPERTS : BY_SOURCE, -1, -1};
        x->whole[v] = value->shape;
    }
    for (size_t i = 0; i < x->g->nodes_count && done; i++) done = x->g->nodes[i].dead || find_node(x, i);
    return done && check_gradients(x) && check_leaves(x);
}

/* ---- rewriting ---- */

static lk__graph_shape shape_by_expert(const lk__graph_shape *whole, int64_t rows)
{
    lk__graph_shape s = *whole;
    s.dims[0] = rows;
    s.count_axis = -1;
    s.count_unit = 1;
    return s;
}

static void cut_experts(const experts *x, lk__graph_value *v)
{
    if (v->part.rank == 0) {
        v->part.rank = v->shape.rank;
        memcpy(v->part.whole, v->shape.dims, sizeof v->part.whole);
    }
    v->shape.dims[0] /= x->ranks;
    v->part.first[0] = x->own * v->shape.dims[0];
    v->part.outer[0] = 0;
}

static int output_of(const lk_graph *g, int node, int k) { return node < 0 ? -1 : g->nodes[node].out[k]; }

static int emit_view(lk_graph *g, lk_site site, int v, const lk__graph_shape *shape)
{
    if (v < 0 || lk__shape_equal(&g->values[v].shape, shape)) return v;
    return output_of(g, lk__emit_shaped(g, site, LK__OP_reshape, NULL, &v, 1, shape, 1), 0);
}

/* The offsets of all ranks, and what follows from them, where they are needed first. */
static bool make_routes(experts *x, lk_site site, routes *r)
{
    lk_graph    *g = x->g;
    lk__op_attrs gather = {.mesh = x->plan->expert_axes, .parts = x->ranks};
    lk__op_attrs own = {.mesh = x->plan->expert_axes, .start = x->own};
    int64_t      experts = g->values[r->offsets].shape.dims[0] - 1;
    if (r->all >= 0) return true;
    lk__graph_shape shapes[] = {lk__shape_vector(LK_I32, experts / x->ranks + 1), lk__shape_vector(LK_I32, r->rows),
                                lk__shape_fixed(LK_I32, 2, (int64_t[]){r->rows, 1}),
                                lk__shape_vector(LK_I32, 2 * experts)};
    int             all = lk__emit_all_gather(g, site, &gather, r->offsets);
    if (all < 0) return false;
    int node = lk__emit_shaped(g, site, LK__OP_route_rows, &own, &all, 1, shapes, 4);
    r->local = output_of(g, node, 0);
    r->order = output_of(g, node, 1);
    r->place = output_of(g, node, 2);
    r->bounds = output_of(g, node, 3);
    r->order_back = emit_view(g, site, r->place, &shapes[1]);
    r->place_back = emit_view(g, site, r->order, &shapes[2]);
    if (g->status < 0) return false;
    r->all = all;
    int routed[] = {r->order, r->place, r->order_back, r->place_back};
    for (int i = 0; i < 4; i++) g->values[routed[i]].routed = all + 1;
    for (size_t v = 0; v < x->values; v++)
        if (x->forms[v].held == BY_EXPERT && &x->routes[x->forms[v].routes] == r) g->values[v].routed = all + 1;
    return true;
}

static int emit_exchange(experts *x, lk_site site, const routes *r, int v, const lk__graph_shape *shape, bool back)
{
    lk_graph    *g = x->g;
    lk__op_attrs attrs = {.mesh = x->plan->expert_axes, .parts = x->ranks, .transposed = back};
    int          node = lk__emit_shaped(g, site, LK__OP_exchange_rows, &attrs, (int[]){v, r->all}, 2, shape, 1);
    int          y = output_of(g, node, 0);
    int          complete = y < 0 ? -1 : lk__emit1(g, site, LK__OP_wait, NULL, (int[]){y, v}, 2);
    if (complete >= 0 && !back) g->values[y].routed = g->values[complete].routed = r->all + 1;
    return complete;
}

/* Rows between the order of ranks and that of experts. */
static int emit_order(experts *x, lk_site site, const routes *r, int v, bool back)
{
    lk_graph *g = x->g;
    int       in[] = {v, back ? r->order_back : r->order, back ? r->place_back : r->place};
    if (v < 0) return -1;
    /* With an expert for each rank the two orders are the same. */
    if (g->values[r->offsets].shape.dims[0] - 1 == x->ranks) return v;
    lk__graph_shape shape = g->values[v].shape;
    lk__graph_shape rows = lk__shape_fixed(shape.dtype, 2, (int64_t[]){r->rows, lk__shape_elements(&shape) / r->rows});
    in[0] = emit_view(g, site, v, &rows);
    if (in[0] >= 0) g->values[in[0]].routed = r->all + 1;
    int y = in[0] < 0 ? -1 : lk__emit1(g, site, LK__OP_gather_rows, NULL, in, 3);
    if (y >= 0) g->values[y].routed = r->all + 1;
    y = emit_view(g, site, y, &shape);
    if (y >= 0) g->values[y].routed = r->all + 1;
    return y;
}

/* A value in the form in which a node reads rows. */
static int find_form(experts *x, lk_site site, int v, held needed, int by)
{
    form *f = &x->forms[v];
    if (f->held == needed || f->held == OF_EXPERTS || needed == OF_EXPERTS) return v;
    if (f->held != BY_EXPERT && f->routes != by) f->other = -1; /* that of another grouping */
    if (f->other >= 0) return f->other;
    if (f->held != BY_EXPERT) f->routes = by;
    routes *r = &x->routes[f->routes];
    if (!make_routes(x, site, r)) return -1;
    if (needed == BY_EXPERT) {
        lk__graph_shape shape = shape_by_expert(&x->whole[v], r->rows);
        return f->other = emit_order(x, site, r, emit_exchange(x, site, r, v, &shape, false), false);
    }
    int y = emit_order(x, site, r, v, true);
    return f->other = y < 0 ? -1 : emit_exchange(x, site, r, y, &x->whole[v], true);
}

static bool rewrite_node(void *user, const lk__graph_node *old, size_t index)
{
    experts       *x = user;
    lk__graph_node n = *old;
    held           runs = x->runs[index];
    int            by = x->by[index], offsets = lk__op_find(n.op)->grouped.offsets - 1;
    bool           leaves = lk__plan_expert_leaves(x->plan) && lk__op_find(n.op)->grouped.gradients;
    if (runs == BY_EXPERT && !make_routes(x, n.site, &x->routes[by])) return false;
    if (leaves) n.attrs.parts = x->ranks;
    for (int i = 0; i < n.inputs; i++) {
        if (n.in[i] < 0) continue;
        if (i == offsets)
            n.in[i] = leaves ? x->routes[by].bounds : x->routes[by].local;
        else if (runs == BY_SOURCE || (x->rows[index] >> i & 1))
            n.in[i] = find_form(x, n.site, n.in[i], runs, by);
        if (n.in[i] < 0) return false;
    }
    return lk__plan_append(x->g, &n) >= 0;
}

/* By node: its inputs that have rows, while shapes are those of before. */
static unsigned rows_mask(const experts *x, size_t i)
{
    const lk__graph_node    *n = &x->g->nodes[i];
    const lk__graph_grouped *d = &lk__op_find(n->op)->grouped;
    unsigned                 mask = 0;
    int                      from = -1;
    if (n->dead || x->runs[i] != BY_EXPERT) return 0;
    if (d->offsets) return ((1u << n->inputs) - 1) & ~(d->weights | 1u << (d->offsets - 1));
    for (int k = 0; k < n->inputs && from < 0; k++)
        if (n->in[k] >= 0 && x->forms[n->in[k]].held == BY_EXPERT) from = k;
    for (int k = 0; k < n->inputs; k++)
        if (has_rows(x, n, k, from)) mask |= 1u << k;
    return mask;
}

static void set_shapes(experts *x)
{
    for (size_t v = 0; v < x->values; v++) {
        const form *f = &x->forms[v];
        if (f->held == OF_EXPERTS) cut_experts(x, &x->g->values[v]);
        if (f->held != BY_EXPERT) continue;
        x->g->values[v].shape = shape_by_expert(&x->whole[v], x->routes[f->routes].rows);
    }
}

/* What the caller reads is by source. */
static bool convert_outputs(experts *x)
{
    for (int i = 0; i < x->list->outputs_count; i++) {
        int v = find_form(x, LK_HERE, x->list->outputs[i], BY_SOURCE, -1);
        if (v < 0) return false;
        x->list->outputs[i] = v;
    }
    return true;
}

static bool rewrite_nodes(experts *x, size_t *forward)
{
    bool evaluates = *forward >= x->g->nodes_count;
    if (lk__plan_rebuild_at(x->g, rewrite_node, x, forward) < 0 || !convert_outputs(x)) return false;
    if (evaluates) *forward = x->g->nodes_count;
    lk__plan_set_producers(x->g);
    return true;
}

lk_status lk__pass_experts(lk_plan *p, lk__plan_list *list, size_t *forward)
{
    lk_graph   *g = list->graph;
    lk_context *c = p->context;
    if (!p->expert_axes) return LK_OK;
    experts x = {.plan = p, .list = list, .g = g, .values = g->values_count};
    size_t  nodes = g->nodes_count;
    bool    done = false;
    x.ranks = lk__mesh_extent(&p->mesh, p->expert_axes);
    x.own = lk__mesh_coordinate(&p->mesh, p->expert_axes, lk__plan_rank(p));
    x.forms = lk__alloc(c, LK_MEMORY_OTHER, x.values * sizeof *x.forms);
    x.whole = lk__alloc(c, LK_MEMORY_OTHER, x.values * sizeof *x.whole);
    x.runs = lk__alloc(c, LK_MEMORY_OTHER, nodes * sizeof *x.runs);
    x.by = lk__alloc(c, LK_MEMORY_OTHER, nodes * sizeof *x.by);
    x.rows = lk__alloc(c, LK_MEMORY_OTHER, nodes * sizeof *x.rows);
    if (x.rows && x.forms && x.whole && x.runs && x.by && find_forms(&x)) {
        for (size_t i = 0; i < nodes; i++) x.rows[i] = rows_mask(&x, i);
        set_shapes(&x);
        done = rewrite_nodes(&x, forward);
    }
    lk__free(c, LK_MEMORY_OTHER, x.rows, nodes * sizeof *x.rows);
    lk__free(c, LK_MEMORY_OTHER, x.forms, x.values * sizeof *x.forms);
    lk__free(c, LK_MEMORY_OTHER, x.whole, x.values * sizeof *x.whole);
    lk__free(c, LK_MEMORY_OTHER, x.runs, nodes * sizeof *x.runs);
    lk__free(c, LK_MEMORY_OTHER, x.by, nodes * sizeof *x.by);
    lk__free(c, LK_MEMORY_OTHER, x.routes, x.routes_capacity * sizeof *x.routes);
    return g->status < 0 ? lk__fail(c, g->status, "%s", g->error) : done ? LK_OK : LK_ENOMEM;
}
