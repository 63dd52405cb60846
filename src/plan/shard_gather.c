/* shard_gather.c - the all_gathers of parameters that ranks have slices of: after the update where every rank keeps all
 * of them (stages 1 and 2), or before their use (stage 3).
 *
 * With stage 3, the uses of a unit form segments: as long as no more other units than may be in flight are used in
 * between, it is kept. Each segment has an all_gather, whose start is where the segment before it begins (with more
 * blocks in flight: some segments earlier), and whose wait is before its first use. Parameters are views of the
 * gathered value. The memory pass frees it after the last use. Where several ranks along shard are on a host, they
 * gather it once for all of them (lk__plan_host). */
#include "plan/plan.h"

static int unit_value(const lk_plan *p, lk_graph *g, size_t unit, bool slice)
{
    const lk__plan_unit *u = &p->units[unit];
    int64_t              each = lk__unit_each(p, u);
    lk__graph_value      v = {.shape = slice ? lk__shape_vector(u->dtype, each)
                                             : lk__shape_fixed(u->dtype, 2, (int64_t[]){lk__unit_shards(p, u), each}),
                              .kind = LK__VALUE_UNIT,
                              .node = -1,
                              .state = (int)unit,
                              .slot = slice,
                              .site = LK_HERE};
    return lk__graph_add_value(g, &v);
}

static lk__op_attrs gather_attrs(const lk_plan *p, size_t unit)
{
    const lk__plan_unit *u = &p->units[unit];
    return (lk__op_attrs){.order = LK__ORDER_RANKS,
                          .group = lk__unit_on_host(p, u) ? LK__GROUP_DATA_BY_HOST : LK__GROUP_DATA,
                          .mesh = u->axes,
                          .parts = lk__unit_shards(p, u)};
}

/* ---- behind the update ---- */

lk_status lk__shard_gather_updated(lk_plan *p, size_t unit)
{
    lk_graph      *g = p->train.graph;
    lk__plan_unit *u = &p->units[unit];
    lk__op_attrs   attrs = gather_attrs(p, unit);
    if (lk__unit_shards(p, u) == 1) return LK_OK;
    u->slice = unit_value(p, g, unit, true);
    u->value = unit_value(p, g, unit, false);
    if (u->slice < 0 || u->value < 0) return g->status;
    return lk__emit_update(g, LK_HERE, LK__OP_all_gather, &attrs, &u->slice, 1, &u->value, 1) < 0 ? g->status : LK_OK;
}

lk_status lk__shard_wait_updated(lk_plan *p)
{
    lk_graph *g = p->train.graph;
    for (size_t i = 0; i < p->units_count; i++) {
        int in[] = {p->units[i].value, p->units[i].slice};
        if (lk__unit_shards(p, &p->units[i]) == 1 || !lk__unit_is_held(p, &p->units[i])) continue;
        if (lk__emit_update(g, LK_HERE, LK__OP_wait, NULL, in, 2, in, 1) < 0) return g->status;
    }
    return LK_OK;
}

/* ---- before use ---- */

typedef struct segment {
    int    unit;
    size_t first;       /* use: the number of a node among those that are not removed */
    size_t start;       /* the node before which its all_gather starts */
    int    slice, made; /* values: the operand, and the result of the start */
} segment;

typedef struct gathering {
    const lk_plan *plan;
    segment       *all; /* by first use */
    size_t         count, capacity;
    size_t         started, waited;      /* of them */
    int           *view;                 /* by state: in the latest segment of its unit; -1: none yet */
    int           *current;              /* by unit: the gathered value; -1: none */
    size_t         number;               /* of the next node */
    size_t         forward, forward_end; /* number of the first node behind forward, and its index in the new list */
    size_t         weights;              /* and of the first whose gradients are postponed; SIZE_MAX: none */
} gathering;

static int unit_read(const lk_plan *p, const lk_graph *g, int v)
{
    if (v < 0 || g->values[v].kind != LK__VALUE_STATE) return -1;
    int unit = p->states[g->values[v].state].unit;
    return unit >= 0 && lk__unit_shards(p, &p->units[unit]) == 1 ? -1 : unit; /* it is whole */
}

/* Whether so many segments begin behind the latest use of a unit that what was gathered is dropped. */
static bool is_dropped(const gathering *x, int unit, size_t last_use, int in_flight)
{
    int others = 0;
    for (size_t i = x->count; i-- > 0 && x->all[i].first > last_use;) others += x->all[i].unit != unit;
    return others >= in_flight;
}

/* Forward, backward and postponed gradients: between these a stage of a pipeline computes other micro-batches, which
 * gather too. */
static int part_of(const gathering *x, size_t node) { return (node >= x->forward) + (node >= x->weights); }

static lk_status add_use(gathering *x, int unit, size_t node, size_t *last_use, bool *used)
{
    int  in_flight = x->plan->parallel.blocks_in_flight;
    bool between = x->plan->pipeline && part_of(x, node) != part_of(x, *last_use);
    if (!*used || between || is_dropped(x, unit, *last_use, in_flight)) {
        lk_status status = lk__grow(x->plan->context, (void **)&x->all, &x->capacity, x->count + 1, sizeof *x->all);
        if (status < 0) return status;
        x->all[x->count++] = (segment){.unit = unit, .first = node};
    }
    *used = true;
    *last_use = node;
    return LK_OK;
}

static lk_status find_segments(gathering *x, const lk__plan_list *list, size_t end, size_t forward, size_t *last_use,
                               bool *used)
{
    const lk_graph *g = list->graph;
    size_t          number = 0, weights = list->weights_begin;
    x->forward = x->weights = SIZE_MAX;
    lk_status status = LK_OK;
    for (size_t i = 0; i < end && status >= 0; i++) {
        if (i == forward) x->forward = number;
        if (weights && i == weights) x->weights = number;
        if (g->nodes[i].dead) continue;
        for (int k = 0; k < g->nodes[i].inputs && status >= 0; k++) {
            int unit = unit_read(x->plan, g, g->nodes[i].in[k]);
            if (unit >= 0) status = add_use(x, unit, number, &last_use[unit], &used[unit]);
        }
        number++;
    }
    if (forward >= end) x->forward = number;
    return status;
}

/* A start is as early as the blocks in flight allow, but within its section. */
static void set_starts(gathering *x)
{
    size_t ahead = (size_t)x->plan->parallel.blocks_in_flight - 1;
    for (size_t i = 0; i < x->count; i++) {
        segment *s = &x->all[i];
        s->start = i < ahead ? 0 : x->all[i - ahead].first;
        if (s->first >= x->forward && s->start < x->forward) s->start = x->forward;
        if (s->first >= x->weights && s->start < x->weights) s->start = x->weights;
    }
}

static int start_segment(gathering *x, lk_graph *g, segment *s)
{
    lk__op_attrs attrs = gather_attrs(x->plan, (size_t)s->unit);
    if ((s->slice = unit_value(x->plan, g, (size_t)s->unit, true)) < 0) return -1;
    return s->made = lk__emit1(g, LK_HERE, LK__OP_all_gather, &attrs, &s->slice, 1);
}

static int wait_segment(gathering *x, lk_graph *g, const segment *s)
{
    int value = lk__emit1(g, LK_HERE, LK__OP_wait, NULL, (int[]){s->made, s->slice}, 2);
    x->current[s->unit] = value;
    for (size_t i = 0; i < x->plan->graph->states_count; i++)
        if (x->plan->states[i].unit == s->unit) x->view[i] = -1;
    return value;
}

/* The parameter in the value that was gathered last. */
static int view_state(gathering *x, lk_graph *g, int state_value)
{
    int             state = g->values[state_value].state;
    lk__graph_shape shape = g->values[state_value].shape;
    lk__op_attrs    attrs = {.start = x->plan->states[state].unit_at};
    int             unit = x->plan->states[state].unit;
    if (x->view[state] >= 0) return x->view[state];
    int node = lk__emit_shaped(g, g->states[state].site, LK__OP_reshape, &attrs, &x->current[unit], 1, &shape, 1);
    if (node < 0) return -1;
    x->view[state] = g->nodes[node].out[0];
    g->values[x->view[state]].part = g->values[state_value].part; /* which an axis that cuts values gave it */
    return x->view[state];
}

static int insert_gathers(lk_graph *g, const lk__graph_node *given, void *user)
{
    gathering     *x = user;
    lk__graph_node n = *given;
    size_t         number = x->number++;
    if (number == x->forward) x->forward_end = g->nodes_count;
    /* Starts behind the wait of the segment that begins here: its all_gather is the one that is needed first. */
    for (; x->waited < x->count && x->all[x->waited].first == number; x->waited++) {
        if (x->started == x->waited && start_segment(x, g, &x->all[x->started++]) < 0) return -1;
        if (wait_segment(x, g, &x->all[x->waited]) < 0) return -1;
    }
    for (; x->started < x->count && x->all[x->started].start <= number; x->started++)
        if (start_segment(x, g, &x->all[x->started]) < 0) return -1;
    for (int i = 0; i < n.inputs; i++)
        if (unit_read(x->plan, g, n.in[i]) >= 0 && (n.in[i] = view_state(x, g, n.in[i])) < 0) return -1;
    return lk__plan_append(g, &n);
}

static lk_status gather_list(gathering *x, lk__plan_list *list, size_t *forward, size_t *backward)
{
    lk_context *c = x->plan->context;
    size_t      units = x->plan->units_count, states = x->plan->graph->states_count;
    size_t     *last_use = lk__alloc(c, LK_MEMORY_OTHER, units * sizeof *last_use);
    bool       *used = lk__alloc(c, LK_MEMORY_OTHER, units * sizeof *used);
    lk_status   status = LK_ENOMEM;
    x->view = lk__alloc(c, LK_MEMORY_OTHER, states * sizeof *x->view);
    x->current = lk__alloc(c, LK_MEMORY_OTHER, units * sizeof *x->current);
    if (last_use && used && x->view && x->current) status = find_segments(x, list, *backward, *forward, last_use, used);
    if (status >= 0) {
        set_starts(x);
        x->forward_end = SIZE_MAX;
        status = lk__plan_rebuild(list->graph, insert_gathers, x);
    }
    lk__free(c, LK_MEMORY_OTHER, last_use, units * sizeof *last_use);
    lk__free(c, LK_MEMORY_OTHER, used, units * sizeof *used);
    lk__free(c, LK_MEMORY_OTHER, x->view, states * sizeof *x->view);
    lk__free(c, LK_MEMORY_OTHER, x->current, units * sizeof *x->current);
    lk__free(c, LK_MEMORY_OTHER, x->all, x->capacity * sizeof *x->all);
    return status;
}

lk_status lk__pass_shard_gather(lk_plan *p, lk__plan_list *list, size_t *forward, size_t *backward)
{
    gathering x = {.plan = p};
    size_t    before = list->graph->nodes_count, behind = before - *backward;
    if (p->stage < 3 || p->units_count == 0) return LK_OK;
    lk_status status = gather_list(&x, list, forward, backward);
    size_t    now = list->graph->nodes_count;
    *forward = x.forward_end < now ? x.forward_end : now - behind;
    *backward = now - behind;
    return status;
}
