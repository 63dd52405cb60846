/* pipeline.c - the pass of pipeline.h: finds the stage of each node and the values that cross between stages, on the
 * graph of all stages, then builds the list of this rank's stage. Pairs of sends and receives are numbered before
 * anything is removed, so all ranks use the same numbers. */
#include "plan/pipeline.h"

#include <string.h>

enum { FREE = -1, GONE = -2 }; /* stages of nodes: in every stage that reads it; removed */

typedef struct cutter {
    lk_plan       *plan;
    lk__plan_list *list;
    lk_graph      *g;
    int            own, stages;
    size_t         forward, values, nodes; /* that there were before */
    int           *stage;                  /* by node */
    int           *made;                   /* by value: the stage of its node; FREE: it need not be sent */
    bool          *independent;            /* by value: made of inputs and constants alone */
    bool          *tied;                   /* by node: it adds gradients of a state that several stages hold */
    uint64_t      *readers;                /* by value: stages that receive it, as bits */
    int           *pair;                   /* by value: the number of the first of its pairs */
    int           *received;               /* by value: what this rank has received; -1: not yet */
    bool           begun;
} cutter;

/* ---- the stage of each node ---- */

static bool is_free(const cutter *c, const lk__graph_node *n)
{
    const lk__graph_op *d = lk__op_find(n->op);
    if (lk__plan_has_effect(n) || d->runs == LK__RUNS_COLLECTIVE || d->runs == LK__RUNS_WAIT) return false;
    for (int i = 0; i < n->inputs; i++)
        if (n->in[i] >= 0 && !c->independent[n->in[i]]) return false;
    return true;
}

/* Of a node in no segment, such as the copy of a gradient: that of its operands, the latest in forward and the earliest
 * in backward. */
static int stage_of_operands(const cutter *c, const lk__graph_node *n, bool backward)
{
    int stage = -1;
    for (int i = 0; i < n->inputs; i++) {
        int made = n->in[i] < 0 ? FREE : c->made[n->in[i]];
        if (made < 0) continue;
        if (stage < 0 || (backward ? made < stage : made > stage)) stage = made;
    }
    return stage < 0 ? 0 : stage;
}

static void find_stages(cutter *c)
{
    const lk_graph *g = c->g;
    for (size_t v = 0; v < c->values; v++) {
        bool state = g->values[v].kind == LK__VALUE_STATE && !lk__plan_is_tied(c->plan, (size_t)g->values[v].state);
        c->made[v] = state ? lk__plan_first_holder(c->plan, (size_t)g->values[v].state) : FREE;
        c->independent[v] = g->values[v].kind == LK__VALUE_INPUT || g->values[v].kind == LK__VALUE_CONSTANT;
        c->received[v] = -1;
    }
    for (size_t i = 0; i < c->nodes; i++) {
        const lk__graph_node *n = &g->nodes[i];
        c->stage[i] = GONE;
        if (n->dead) continue;
        int  of = c->plan->pipeline->stage_of_block[n->block];
        bool free = is_free(c, n);
        c->stage[i] = free ? FREE : of >= 0 ? of : stage_of_operands(c, n, i >= c->forward);
        for (int k = 0; k < n->outputs; k++) {
            if (n->out[k] < 0 || g->values[n->out[k]].kind != LK__VALUE_RESULT) continue;
            c->made[n->out[k]] = c->stage[i];
            c->independent[n->out[k]] = free;
        }
    }
}

/* ---- gradients of states that several stages hold ---- */

/* The nodes that add the gradients of its uses. */
static void mark_sums(cutter *c, int v)
{
    const lk__graph_value *value = &c->g->values[v];
    if (value->kind != LK__VALUE_RESULT || c->g->nodes[value->node].op != LK__OP_add) return;
    c->tied[value->node] = true;
    for (int k = 0; k < 2; k++) mark_sums(c, c->g->nodes[value->node].in[k]);
}

/* The sum of those that one stage makes; -1: it makes none. */
static int part_of(const cutter *c, int v, int stage)
{
    const lk__graph_value *value = &c->g->values[v];
    if (value->kind != LK__VALUE_RESULT || !c->tied[value->node])
        return c->made[v] == stage || c->made[v] == FREE ? v : -1;
    const lk__graph_node *n = &c->g->nodes[value->node];
    int                   a = part_of(c, n->in[0], stage), b = part_of(c, n->in[1], stage);
    if (a >= 0 && b >= 0) return v;
    return a >= 0 ? a : b;
}

/* This stage's parts become the gradients of such states, and sums add those of one stage alone. */
static bool divide_sums(cutter *c)
{
    lk_graph *g = c->g;
    for (size_t i = 0; i < g->states_count && c->list->gradients; i++)
        if (lk__plan_is_tied(c->plan, i) && c->list->gradients[i] >= 0) mark_sums(c, c->list->gradients[i]);
    for (size_t i = 0; i < g->states_count && c->list->gradients; i++) {
        int v = c->list->gradients[i];
        if (v < 0 || !lk__plan_is_tied(c->plan, i) || !lk__plan_holds(c->plan, i)) continue;
        c->list->gradients[i] = part_of(c, v, c->own);
        if (c->list->gradients[i] >= 0) continue;
        lk__graph_fail(g, g->states[i].site,
                       "\"%s\" is used in several stages, and its gradient is not a sum over its uses in each stage: "
                       "cut the model so that one stage has all of them (--stages), or train without the pipeline axis",
                       g->states[i].name);
        return false;
    }
    for (size_t i = c->nodes; i-- > 0;) { /* backwards: what a sum adds is found by the sums before it as they were */
        lk__graph_node *n = &g->nodes[i];
        if (!c->tied[i] || n->dead) continue;
        int a = part_of(c, n->in[0], c->stage[i]), b = part_of(c, n->in[1], c->stage[i]);
        if (a < 0 || b < 0) {
            n->dead = true;
            c->stage[i] = GONE;
        } else {
            n->in[0] = a;
            n->in[1] = b;
        }
    }
    return true;
}

/* ---- values that cross ---- */

static bool refuse_direction(cutter *c, const lk__graph_node *n, int v)
{
    lk__graph_fail(
        c->g, n->site,
        "%s reads a value of stage %d, which is against the order of the stages: cut the model so that both are in one "
        "stage (--stages), record the model in a different order, or train without the pipeline axis",
        lk__node_name(c->g, n), c->made[v]);
    return false;
}

static void add_reader(cutter *c, int v, int stage)
{
    if (c->made[v] >= 0 && c->made[v] != stage) c->readers[v] |= (uint64_t)1 << stage;
}

/* Outputs that the caller reads are on all ranks. */
static bool find_readers(cutter *c)
{
    lk_graph *g = c->g;
    for (size_t i = 0; i < c->nodes; i++) {
        const lk__graph_node *n = &g->nodes[i];
        for (int k = 0; k < n->inputs && c->stage[i] >= 0; k++) {
            int v = n->in[k];
            if (v < 0 || c->made[v] < 0 || c->made[v] == c->stage[i]) continue;
            bool backward = g->values[v].kind == LK__VALUE_RESULT && (size_t)g->values[v].node >= c->forward;
            bool later = c->made[v] > c->stage[i];
            if (later ? i < c->forward : backward) return refuse_direction(c, n, v);
            if (g->values[v].routed) {
                lk__graph_fail(
                    g, n->site,
                    "%s reads rows of experts of another stage: cut the model so that one stage has all of a layer's "
                    "experts and what reads their rows (--stages), or train without the pipeline axis",
                    lk__node_name(g, n));
                return false;
            }
            add_reader(c, v, c->stage[i]);
        }
    }
    for (int i = 0; i < c->list->outputs_count; i++)
        for (int s = 0; s < c->stages; s++) add_reader(c, c->list->outputs[i], s);
    return true;
}

static void number_pairs(cutter *c)
{
    int next = 0;
    for (size_t i = 0; i < c->g->states_count; i++) {
        int v = c->g->states[i].value;
        c->pair[v] = next;
        next += __builtin_popcountll(c->readers[v]);
    }
    for (size_t i = 0; i < c->nodes; i++)
        for (int k = 0; k < c->g->nodes[i].outputs && c->stage[i] >= 0; k++) {
            int v = c->g->nodes[i].out[k];
            if (v < 0) continue;
            c->pair[v] = next;
            next += __builtin_popcountll(c->readers[v]);
        }
    if (next > c->plan->pipeline->pairs) c->plan->pipeline->pairs = next;
}

/* The number of the pair for one of the stages that receive a value. */
static int pair_of(const cutter *c, int v, int stage)
{
    return c->pair[v] + __builtin_popcountll(c->readers[v] & (((uint64_t)1 << stage) - 1));
}

/* ---- the list ---- */

static lk__op_attrs attrs_of(int other, int pair)
{
    return (lk__op_attrs){.mesh = LK__PLAN_STAGE_AXES, .transfer = {.stage = other, .number = pair}};
}

/* `from`: v, or a copy of it. */
static bool send_copy(cutter *c, lk_site site, int v, int from)
{
    for (int stage = 0; stage < c->stages; stage++) {
        lk__op_attrs attrs = attrs_of(stage, pair_of(c, v, stage));
        if ((c->readers[v] >> stage & 1) && lk__emit_send(c->g, site, &attrs, from) < 0) return false;
    }
    return true;
}

static bool send_value(cutter *c, lk_site site, int v) { return send_copy(c, site, v, v); }

/* Of parameters that are gathered before their use, a copy: the next micro-batch gathers others to the same place while
 * it is in flight. */
static bool send_state(cutter *c, size_t state)
{
    int     v = c->g->states[state].value, from = v;
    lk_site site = c->g->states[state].site;
    if (c->readers[v] && c->plan->stage == 3)
        from = lk__emit1(c->g, site, LK__OP_scale, &(lk__op_attrs){.scale = 1}, &v, 1);
    return from >= 0 && send_copy(c, site, v, from);
}

/* A value as this rank has it. */
static int local_value(cutter *c, lk_site site, int v)
{
    if ((size_t)v >= c->values || c->made[v] < 0 || c->made[v] == c->own) return v;
    if (c->received[v] >= 0) return c->received[v];
    lk__op_attrs attrs = attrs_of(c->made[v], pair_of(c, v, c->own));
    return c->received[v] = lk__emit_receive(c->g, site, &attrs, v);
}

/* The stage that counts a number. */
static int stage_of_number(const cutter *c, int v)
{
    if (c->made[v] >= 0 || c->g->values[v].kind != LK__VALUE_RESULT) return c->made[v] >= 0 ? c->made[v] : 0;
    int stage = c->plan->pipeline->stage_of_block[c->g->nodes[c->g->values[v].node].block];
    return stage < 0 ? 0 : stage;
}

/* States that other stages use, and numbers that they make: these are 0 here, and added over the stages. */
static bool begin_list(cutter *c)
{
    c->begun = true;
    for (size_t i = 0; i < c->g->states_count; i++)
        if (c->made[c->g->states[i].value] == c->own && !send_state(c, i)) return false;
    for (int i = 0; i < c->list->numbers_count; i++) {
        int v = c->list->numbers[i];
        if (v < 0 || stage_of_number(c, v) == c->own) continue;
        lk__graph_shape shape = c->g->values[v].shape;
        lk__op_attrs    zero = {.scale = 0};
        int             node = lk__emit_shaped(c->g, c->g->values[v].site, LK__OP_fill, &zero, NULL, 0, &shape, 1);
        if (node < 0) return false;
        c->list->numbers[i] = c->g->nodes[node].out[0];
    }
    return true;
}

static bool cut_node(void *user, const lk__graph_node *old, size_t index)
{
    cutter        *c = user;
    lk__graph_node n = *old;
    if (!c->begun && !begin_list(c)) return false;
    n.dead = c->stage[index] != FREE && c->stage[index] != c->own;
    for (int i = 0; i < n.inputs && !n.dead; i++)
        if (n.in[i] >= 0 && (n.in[i] = local_value(c, n.site, n.in[i])) < 0) return false;
    if (lk__plan_append(c->g, &n) < 0) return false;
    for (int k = 0; k < n.outputs && c->stage[index] == c->own; k++)
        if (n.out[k] >= 0 && !send_value(c, n.site, n.out[k])) return false;
    return true;
}

/* Gradients have their own memory, which only backward writes: what forward has made is copied, as the whole gradient
 * was that it is a part of (graph/grad.c). */
static bool copy_gradients(cutter *c, size_t forward)
{
    lk_graph *g = c->g;
    for (size_t i = 0; c->list->gradients && i < g->states_count; i++) {
        int v = c->list->gradients[i], from = v;
        if (v < 0 || !lk__plan_is_tied(c->plan, i)) continue;
        while (g->values[from].kind == LK__VALUE_RESULT && lk__op_shares_memory(g->nodes[g->values[from].node].op))
            from = g->nodes[g->values[from].node].in[0];
        if (g->values[from].kind == LK__VALUE_RESULT && (size_t)g->values[from].node >= forward) continue;
        int copy = lk__emit1(g, g->states[i].site, LK__OP_scale, &(lk__op_attrs){.scale = 1}, &v, 1);
        if (copy < 0) return false;
        g->values[copy].part = g->values[v].part;
        c->list->gradients[i] = copy;
    }
    return true;
}

static bool cut_list(cutter *c, size_t *forward)
{
    lk__plan_list *list = c->list;
    if (lk__plan_rebuild_at(c->g, cut_node, c, forward) < 0) return false;
    for (int i = 0; i < list->outputs_count; i++) {
        int v = list->outputs[i];
        if ((list->outputs[i] = local_value(c, c->g->values[v].site, v)) < 0) return false;
    }
    if (list->outputs_count) *forward = c->g->nodes_count; /* of an evaluation: what it receives is part of it */
    for (size_t i = 0; list->gradients && i < c->g->states_count; i++) {
        c->plan->pipeline->trained[i] = list->gradients[i] >= 0;
        if (!lk__plan_holds(c->plan, i)) list->gradients[i] = -1;
    }
    return copy_gradients(c, *forward);
}

static bool allocate(cutter *c)
{
    lk_context *context = c->g->context;
    c->stage = lk__alloc(context, LK_MEMORY_OTHER, c->nodes * sizeof *c->stage);
    c->tied = lk__alloc(context, LK_MEMORY_OTHER, c->nodes * sizeof *c->tied);
    c->made = lk__alloc(context, LK_MEMORY_OTHER, c->values * sizeof *c->made);
    c->independent = lk__alloc(context, LK_MEMORY_OTHER, c->values * sizeof *c->independent);
    c->readers = lk__alloc(context, LK_MEMORY_OTHER, c->values * sizeof *c->readers);
    c->pair = lk__alloc(context, LK_MEMORY_OTHER, c->values * sizeof *c->pair);
    c->received = lk__alloc(context, LK_MEMORY_OTHER, c->values * sizeof *c->received);
    bool nodes = !c->nodes || (c->stage && c->tied);
    if (nodes && (!c->values || (c->made && c->independent && c->readers && c->pair && c->received))) return true;
    lk__graph_no_memory(c->g);
    return false;
}

static void free_cutter(cutter *c)
{
    lk_context *context = c->g->context;
    lk__free(context, LK_MEMORY_OTHER, c->stage, c->nodes * sizeof *c->stage);
    lk__free(context, LK_MEMORY_OTHER, c->tied, c->nodes * sizeof *c->tied);
    lk__free(context, LK_MEMORY_OTHER, c->made, c->values * sizeof *c->made);
    lk__free(context, LK_MEMORY_OTHER, c->independent, c->values * sizeof *c->independent);
    lk__free(context, LK_MEMORY_OTHER, c->readers, c->values * sizeof *c->readers);
    lk__free(context, LK_MEMORY_OTHER, c->pair, c->values * sizeof *c->pair);
    lk__free(context, LK_MEMORY_OTHER, c->received, c->values * sizeof *c->received);
}

lk_status lk__pass_pipeline(lk_plan *p, lk__plan_list *list, size_t *forward)
{
    lk_graph *g = list->graph;
    if (!p->pipeline) return LK_OK;
    for (size_t i = 0; i < g->nodes_count; i++)
        if (!g->nodes[i].dead) p->pipeline->hash = lk__node_hash(g, &g->nodes[i], p->pipeline->hash);
    lk_status status = lk__tied_divide_forms(p, list);
    if (status < 0) return status;
    cutter c = {.plan = p,
                .list = list,
                .g = g,
                .own = lk__plan_own_stage(p),
                .stages = lk__plan_stages(p),
                .forward = *forward,
                .values = g->values_count,
                .nodes = g->nodes_count};
    bool   done = allocate(&c);
    if (done) find_stages(&c);
    done = done && divide_sums(&c) && find_readers(&c);
    if (done) number_pairs(&c);
    done = done && cut_list(&c, forward);
    free_cutter(&c);
    return done ? LK_OK : g->status < 0 ? g->status : LK_ENOMEM;
}
