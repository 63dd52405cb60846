/* pipeline_segments.c - the segments of a model, the stages that have them, and the stages that hold its states
 * (pipeline.h). */
#include "plan/pipeline.h"
#include "plan/stages.h"

#include <ctype.h>
#include <string.h>

/* How finely a model is divided: by its layers; where these are too few, by all blocks; then at each place that one
 * value crosses. */
typedef enum division { BY_LAYERS, BY_BLOCKS, BY_VALUES, DIVISIONS } division;

typedef struct finder {
    lk_plan                  *plan;
    lk_graph                 *g;
    struct lk__plan_pipeline *pipeline;
    bool                     *free;    /* by value: made of inputs and constants alone */
    int                      *last;    /* by value: the last node that reads it, which is in a stage; -1: none */
    bool                     *around;  /* by block: it is around segments */
    bool                     *member;  /* by block: its name is that of a member of a list of layers */
    int                      *members; /* by block: how many are in it; two or more: it is such a list */
    size_t                    blocks;  /* that were recorded */
} finder;

/* ---- blocks ---- */

/* Whether a number is the last component of a name, or that component's end. */
static bool has_number(const lk_graph *g, int block, bool whole)
{
    const char *name = g->blocks[block].name;
    size_t      begin = strlen(g->blocks[g->blocks[block].parent].name), end = strlen(name), at = end;
    while (at > begin && isdigit((unsigned char)name[at - 1])) at--;
    return at < end && (!whole || at == 0 || name[at - 1] == '.');
}

/* By numbers; or, where none is found, by names that end with one, of blocks around others: a layer "fc1" is none. */
static bool find_members(finder *f, bool numbers)
{
    bool found = false;
    memset(f->members, 0, f->blocks * sizeof *f->members);
    for (size_t i = 1; i < f->blocks; i++) f->members[f->g->blocks[i].parent]++;
    for (size_t i = 1; i < f->blocks; i++)
        f->member[i] = (numbers || f->members[i] > 0) && has_number(f->g, (int)i, numbers);
    memset(f->members, 0, f->blocks * sizeof *f->members);
    for (size_t i = 1; i < f->blocks; i++) f->members[f->g->blocks[i].parent] += f->member[i];
    for (size_t i = 0; i < f->blocks; i++) found |= f->members[i] > 1;
    return found;
}

/* Of a model without a list every block is one of the layers, if it is a segment. */
static void find_lists(finder *f)
{
    bool found = find_members(f, true) || find_members(f, false);
    for (size_t i = 1; i < f->blocks && !found; i++) f->member[i] = true;
    if (!found) memset(f->members, 0, f->blocks * sizeof *f->members);
}

/* A list of layers, and the blocks around one; not what is inside of a layer. Parents have smaller numbers. */
static void find_around(finder *f, division by)
{
    const lk_graph *g = f->g;
    f->around[0] = true;
    for (size_t i = 1; i < f->blocks; i++) f->around[i] = by != BY_LAYERS;
    for (size_t i = 1; i < f->blocks && by == BY_LAYERS; i++) {
        bool inside = false;
        for (int b = (int)i; b > 0; b = g->blocks[b].parent)
            inside |= f->member[b] && f->members[g->blocks[b].parent] > 1;
        if (inside || f->members[i] < 2) continue;
        for (int b = (int)i; b > 0; b = g->blocks[b].parent) f->around[b] = true;
    }
}

/* The outermost block of a node that is not around segments; 0: none. */
static int segment_block(const finder *f, int block)
{
    int found = 0;
    for (; block > 0; block = f->g->blocks[block].parent)
        if (!f->around[block]) found = block;
    return found;
}

/* ---- values ---- */

static bool is_free(const finder *f, const lk__graph_node *n)
{
    if (lk__plan_has_effect(n) || lk__op_find(n->op)->runs == LK__RUNS_COLLECTIVE) return false;
    for (int i = 0; i < n->inputs; i++)
        if (n->in[i] >= 0 && !f->free[n->in[i]]) return false;
    return true;
}

static void find_free(finder *f)
{
    lk_graph *g = f->g;
    for (size_t v = 0; v < g->values_count; v++) {
        f->free[v] = g->values[v].kind == LK__VALUE_INPUT || g->values[v].kind == LK__VALUE_CONSTANT;
        f->last[v] = -1;
    }
    for (size_t i = 0; i < g->nodes_count; i++) {
        const lk__graph_node *n = &g->nodes[i];
        bool                  free = is_free(f, n);
        for (int k = 0; k < n->outputs; k++)
            if (n->out[k] >= 0) f->free[n->out[k]] = free;
        for (int k = 0; k < n->inputs && !free; k++)
            if (n->in[k] >= 0) f->last[n->in[k]] = (int)i;
    }
}

/* How many values made by node i and those before it are read by nodes behind it. */
static int count_crossing(const finder *f, size_t i)
{
    int count = 0;
    for (size_t k = 0; k <= i; k++)
        for (int j = 0; j < f->g->nodes[k].outputs; j++) {
            int v = f->g->nodes[k].out[j];
            count += v >= 0 && !f->free[v] && f->g->values[v].kind == LK__VALUE_RESULT && f->last[v] > (int)i;
        }
    return count;
}

/* ---- segments ---- */

static lk_status add_segment(finder *f, int block, size_t node)
{
    struct lk__plan_pipeline *p = f->pipeline;
    if (lk__grow(f->plan->context, (void **)&p->segments, &p->segments_capacity, p->segments_count + 1,
                 sizeof *p->segments) < 0)
        return LK_ENOMEM;
    bool layer = block && (size_t)block < f->blocks && f->member[block];
    p->segments[p->segments_count++] = (lk__plan_segment){.block = block, .layer = layer, .first = node};
    return LK_OK;
}

/* A block without a name inside of `parent`; -1: out of memory. */
static int add_block(lk_graph *g, int parent)
{
    char *name;
    if (lk__grow(g->context, (void **)&g->blocks, &g->blocks_capacity, g->blocks_count + 1, sizeof *g->blocks) < 0 ||
        !(name = lk__strdup(g->context, g->blocks[parent].name)))
        return -1;
    g->blocks[g->blocks_count] = (lk__graph_block){.name = name, .parent = parent};
    return (int)g->blocks_count++;
}

static lk_status divide_nodes(finder *f, division by, bool assign)
{
    lk_graph *g = f->g;
    int       open = -1, of = -1; /* the segment's block, and that which its nodes were recorded in; -1: none */
    find_around(f, by);
    f->pipeline->segments_count = 0;
    for (size_t i = 0; i < g->nodes_count; i++) {
        lk__graph_node *n = &g->nodes[i];
        int             block = segment_block(f, n->block);
        if (is_free(f, n) && !block) continue; /* in no stage */
        bool between = open >= 0 && of >= 0 && (by != BY_BLOCKS || of == n->block);
        if (block ? open != block : !between) {
            int opened = block ? block : assign ? add_block(g, n->block) : 0;
            if (opened < 0 || add_segment(f, opened, i) < 0) return LK_ENOMEM;
            open = opened;
            of = block ? -1 : n->block;
        }
        if (!block && assign) n->block = open;
        if (by == BY_VALUES && count_crossing(f, i) == 1) open = of = -1;
    }
    return LK_OK;
}

static lk_status find_segments(finder *f)
{
    int       stages = lk__plan_stages(f->plan), most = 0;
    lk_status status = LK_OK;
    char      text[LK__MESH_TEXT];
    find_free(f);
    find_lists(f);
    for (int by = BY_LAYERS; by < DIVISIONS && status >= 0; by++) {
        if ((status = divide_nodes(f, (division)by, false)) < 0) return status;
        if ((int)f->pipeline->segments_count >= stages) return divide_nodes(f, (division)by, true);
        if ((int)f->pipeline->segments_count > most) most = (int)f->pipeline->segments_count;
    }
    return lk__fail(
        f->plan->context, LK_EINVAL,
        "the mesh %s has %d pipeline stages, but the model can be cut into at most %d: cuts are possible between "
        "blocks, and where a single value crosses the cut",
        lk__mesh_format(&f->plan->mesh, text), stages, most);
}

/* ---- stages ---- */

/* Stages of another plan that hold all states which a segment reads; all bits: it reads none. */
static uint64_t held_like(const lk_plan *p, const lk_plan *like, int block)
{
    const lk_graph *g = p->graph;
    uint64_t        held = UINT64_MAX;
    for (size_t i = 0; i < g->nodes_count; i++) {
        int of = g->nodes[i].block;
        while (of > 0 && of != block) of = g->blocks[of].parent;
        for (int k = 0; k < g->nodes[i].inputs && of == block; k++) {
            int v = g->nodes[i].in[k];
            if (v >= 0 && g->values[v].kind == LK__VALUE_STATE)
                held &= like->states[g->values[v].state].splits[LK__ARRAY_STORED].held;
        }
    }
    return held;
}

/* Each segment where its states are; one without any with the segment before it. */
static void cut_like(lk_plan *p, const lk_plan *like)
{
    int stage = 0;
    for (size_t i = 0; i < p->pipeline->segments_count; i++) {
        lk__plan_segment *s = &p->pipeline->segments[i];
        uint64_t          held = held_like(p, like, s->block);
        int               next = stage;
        while (next < lk__plan_stages(p) && !(held >> next & 1)) next++;
        if (next < lk__plan_stages(p)) stage = next;
        s->stage = stage;
    }
}

static void set_stages_of_blocks(struct lk__plan_pipeline *p, const lk_graph *g)
{
    for (size_t i = 0; i < p->blocks_count; i++) p->stage_of_block[i] = -1;
    for (size_t i = 0; i < p->segments_count; i++) p->stage_of_block[p->segments[i].block] = p->segments[i].stage;
    for (size_t i = 1; i < p->blocks_count; i++) /* parents have smaller numbers */
        if (p->stage_of_block[i] < 0) p->stage_of_block[i] = p->stage_of_block[g->blocks[i].parent];
}

/* ---- states ---- */

static void set_held(lk_plan *p, size_t state, uint64_t held)
{
    for (int a = 0; a < LK__ARRAY_COUNT; a++) p->states[state].splits[a].held = held;
}

/* Whether a state that several stages use is held by the first of them and sent to the others in each micro-batch, as
 * any other value is: where gradients are added in the order of one rank, and where ranks sum slices of them. */
static bool sends_states(const lk_plan *p) { return p->parallel.reproducible_layout || p->stage || p->shared; }

static void hold_states(lk_plan *p)
{
    const lk_graph *g = p->graph;
    for (size_t i = 0; i < g->nodes_count; i++) {
        int stage = p->pipeline->stage_of_block[g->nodes[i].block];
        for (int k = 0; k < g->nodes[i].inputs && stage >= 0; k++) {
            int v = g->nodes[i].in[k];
            if (v < 0 || g->values[v].kind != LK__VALUE_STATE) continue;
            size_t state = (size_t)g->values[v].state;
            set_held(p, state, p->states[state].splits[LK__ARRAY_STORED].held | (uint64_t)1 << stage);
        }
    }
    for (size_t i = 0; i < g->states_count; i++) {
        uint64_t held = p->states[i].splits[LK__ARRAY_STORED].held;
        if (!held) set_held(p, i, 1); /* nothing reads it */
        if (held && sends_states(p)) set_held(p, i, held & -held);
    }
    p->split_axes |= LK__PLAN_STAGE_AXES;
}

bool lk__plan_holds(const lk_plan *p, size_t state)
{
    uint64_t held = p->states[state].splits[LK__ARRAY_STORED].held;
    return !held || (held >> lk__plan_own_stage(p) & 1);
}

int lk__plan_first_holder(const lk_plan *p, size_t state)
{
    uint64_t held = p->states[state].splits[LK__ARRAY_STORED].held;
    int      stage = 0;
    while (held && !(held >> stage & 1)) stage++;
    return stage;
}

bool lk__plan_is_tied(const lk_plan *p, size_t state)
{
    uint64_t held = p->states[state].splits[LK__ARRAY_STORED].held;
    return (held & (held - 1)) != 0;
}

bool lk__plan_trains(const lk_plan *p, size_t state)
{
    return p->states[state].trained || (p->pipeline && p->pipeline->trained[state]);
}

/* ---- of a plan ---- */

static lk_status allocate(finder *f)
{
    lk_context *c = f->plan->context;
    size_t      values = f->g->values_count;
    f->free = lk__alloc(c, LK_MEMORY_OTHER, values * sizeof *f->free);
    f->last = lk__alloc(c, LK_MEMORY_OTHER, values * sizeof *f->last);
    f->around = lk__alloc(c, LK_MEMORY_OTHER, f->blocks * sizeof *f->around);
    f->member = lk__alloc(c, LK_MEMORY_OTHER, f->blocks * sizeof *f->member);
    f->members = lk__alloc(c, LK_MEMORY_OTHER, f->blocks * sizeof *f->members);
    return (values && (!f->free || !f->last)) || !f->around || !f->member || !f->members ? LK_ENOMEM : LK_OK;
}

static void free_finder(finder *f)
{
    lk_context *c = f->plan->context;
    size_t      values = f->g->values_count;
    lk__free(c, LK_MEMORY_OTHER, f->free, values * sizeof *f->free);
    lk__free(c, LK_MEMORY_OTHER, f->last, values * sizeof *f->last);
    lk__free(c, LK_MEMORY_OTHER, f->around, f->blocks * sizeof *f->around);
    lk__free(c, LK_MEMORY_OTHER, f->member, f->blocks * sizeof *f->member);
    lk__free(c, LK_MEMORY_OTHER, f->members, f->blocks * sizeof *f->members);
}

/* By block and by state, of the pipeline. */
static lk_status allocate_maps(lk_plan *p)
{
    struct lk__plan_pipeline *x = p->pipeline;
    size_t                    blocks = p->graph->blocks_count, states = p->graph->states_count;
    x->stage_of_block = lk__alloc(p->context, LK_MEMORY_OTHER, blocks * sizeof *x->stage_of_block);
    x->blocks_count = blocks;
    x->trained = lk__alloc(p->context, LK_MEMORY_OTHER, states * sizeof *x->trained);
    x->tied = lk__alloc(p->context, LK_MEMORY_OTHER, states * sizeof *x->tied);
    x->states_count = states;
    if (!x->stage_of_block || (states && (!x->trained || !x->tied))) return LK_ENOMEM;
    for (size_t i = 0; i < states; i++) x->tied[i] = -1;
    return LK_OK;
}

enum { MOST_STAGES = 64 }; /* bits of lk__plan_splits.held */

lk_status lk__plan_make_stages(lk_plan *p, const lk_plan_config *config, const lk_plan *like)
{
    int    stages = lk__plan_stages(p);
    finder f = {.plan = p, .g = p->graph, .blocks = p->graph->blocks_count};
    if (stages == 1) return LK_OK;
    if (stages > MOST_STAGES)
        return lk__fail(p->context, LK_EUNSUPPORTED, "the mesh has %d ranks along pipeline; at most %d are supported",
                        stages, MOST_STAGES);
    if (!(p->pipeline = lk__alloc(p->context, LK_MEMORY_OTHER, sizeof *p->pipeline))) return LK_ENOMEM;
    f.pipeline = p->pipeline;
    lk_status status = allocate(&f);
    if (status >= 0) status = find_segments(&f);
    free_finder(&f);
    if (status < 0) return status;
    if ((status = allocate_maps(p)) < 0) return status;
    if (like)
        cut_like(p, like);
    else if ((status = lk__plan_cut_stages(p, config)) < 0)
        return status;
    set_stages_of_blocks(p->pipeline, p->graph);
    hold_states(p);
    for (size_t i = 0; like && i < p->graph->states_count; i++)
        set_held(p, i, like->states[i].splits[LK__ARRAY_STORED].held);
    return LK_OK;
}

void lk__plan_free_stages(lk_plan *p)
{
    struct lk__plan_pipeline *x = p->pipeline;
    if (!x) return;
    lk__free(p->context, LK_MEMORY_OTHER, x->segments, x->segments_capacity * sizeof *x->segments);
    lk__free(p->context, LK_MEMORY_OTHER, x->stage_of_block, x->blocks_count * sizeof *x->stage_of_block);
    lk__free(p->context, LK_MEMORY_OTHER, x->trained, x->states_count * sizeof *x->trained);
    lk__free(p->context, LK_MEMORY_OTHER, x->tied, x->states_count * sizeof *x->tied);
    lk__stages_costs_free(p->context, x->costs);
    lk__free(p->context, LK_MEMORY_OTHER, x, sizeof *x);
}
