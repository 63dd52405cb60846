/* shard.c - the units of a plan whose ranks along the shard axis have slices of the state: which states form a unit,
 * and which part of it this rank has. */
#include "plan/experts.h"
#include "plan/pipeline.h"

#include "base/tree.h"

#include <fnmatch.h>

/* Elements between two states' beginnings, and of a slice, are multiples of this: of every type whole cache lines. */
enum { UNIT_ALIGN = 32 };
/* A unit that is smaller is joined with the next: a collective of fewer bytes takes its latency. */
enum { SMALL_UNIT = 64 << 10, MERGED_UNIT = 25 << 20 };

static int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

int lk__unit_shards(const lk_plan *p, const lk__plan_unit *u) { return lk__mesh_extent(&p->mesh, u->axes); }
int lk__unit_shard(const lk_plan *p, const lk__plan_unit *u)
{
    return lk__mesh_coordinate(&p->mesh, u->axes, p->mesh.rank);
}

int64_t lk__unit_each(const lk_plan *p, const lk__plan_unit *u) { return u->elements / lk__unit_shards(p, u); }

bool lk__plan_scatters(const lk_plan *p) { return p->stage > 1 && !p->parallel.leaves; }

bool lk__plan_shards_nest(const lk_plan *p)
{
    unsigned axes = lk__plan_shard_axes(p);
    int      rank = lk__plan_rank(p), count = lk__mesh_extent(&p->mesh, axes);
    int      first = lk__mesh_member(&p->mesh, axes, rank, 0), last = lk__mesh_member(&p->mesh, axes, rank, count - 1);
    if (lk__mesh_extent(&p->mesh, LK_AXIS_DATA) == 1) return true;
    return lk__tree_nests(lk__plan_batch_parts(p), lk__mesh_extent(&p->mesh, LK_AXIS_DATA)) &&
           lk__plan_batch_part_of(p, last) == lk__plan_batch_part_of(p, first) + count - 1;
}

bool lk__plan_squares_by_part(const lk_plan *p)
{
    return p->stage && p->parallel.leaves && lk__device_is_host(p->device) && !lk__plan_exact_norm(p) &&
           !p->expert_axes;
}

/* With stages as well: no rank has the squares of all. */
bool lk__plan_exact_norm(const lk_plan *p)
{
    bool stages = p->parallel.leaves && lk__plan_stages(p) > 1;
    return (p->parallel.reproducible_layout || stages) && lk__device_is_host(p->device);
}

/* Of what a rank that holds it would have without the shard axis: parts of values that are cut are equal. */
static int64_t state_elements(const lk_plan *p, size_t state)
{
    lk__plan_slices s = lk__plan_state_slices(p, state, LK__ARRAY_STORED);
    return lk__slices_elements(&s, lk__plan_holds(p, state) ? s.own : 0);
}

bool lk__unit_is_held(const lk_plan *p, const lk__plan_unit *u)
{
    return !u->held || (u->held >> lk__plan_own_stage(p) & 1);
}

lk__range lk__plan_piece(const lk_plan *p, size_t state)
{
    return lk__plan_piece_of(p, state, lk__unit_shard(p, &p->units[p->states[state].unit]));
}

lk__range lk__plan_piece_of(const lk_plan *p, size_t state, int shard)
{
    const lk__plan_state *s = &p->states[state];
    int64_t               elements = s->unit_elements, each = lk__unit_each(p, &p->units[s->unit]);
    lk__range             piece = {shard * each - s->unit_at, (shard + 1) * each - s->unit_at};
    if (piece.first < 0) piece.first = 0;
    if (piece.end > elements) piece.end = elements;
    return piece.first < piece.end ? piece : (lk__range){0, 0};
}

int64_t lk__plan_piece_at(const lk_plan *p, size_t state)
{
    const lk__plan_state *s = &p->states[state];
    const lk__plan_unit  *u = &p->units[s->unit];
    int64_t               at = s->unit_at - lk__unit_shard(p, u) * lk__unit_each(p, u);
    return at > 0 && lk__range_count(lk__plan_piece(p, state)) ? at : 0;
}

size_t lk__plan_gradient_piece(const lk_plan *p, size_t state)
{
    const lk__plan_bucket *b = &p->buckets[p->units[p->states[state].unit].bucket];
    return b->slice + (size_t)lk__plan_piece_at(p, state) * lk_dtype_size(b->dtype);
}

/* ---- which states are together ---- */

static bool is_frozen(const lk_graph *g, size_t state, const lk_optimizer_config *o)
{
    for (int i = 0; o && i < o->groups_count; i++)
        if (fnmatch(o->groups[i].match, g->states[state].name, 0) == 0)
            return g->states[state].frozen || o->groups[i].frozen;
    return g->states[state].frozen;
}

/* The block in which a state is first read. */
static int block_of(const lk_graph *g, size_t state)
{
    for (size_t i = 0; i < g->nodes_count; i++)
        for (int k = 0; k < g->nodes[i].inputs; k++)
            if (g->nodes[i].in[k] == g->states[state].value) return g->nodes[i].block;
    return 0;
}

static bool is_inside(const lk_graph *g, int block, int outer)
{
    while (block && block != outer) block = g->blocks[block].parent;
    return block == outer;
}

typedef struct blocks {
    const lk_graph *graph;
    int            *of;       /* by state */
    int64_t        *elements; /* by block: of all states in it */
} blocks;

/* The outermost block around a state that is a small part of the model: a block with most of the model in it is a name
 * for its layers. */
static int unit_block(const blocks *b, size_t state)
{
    const lk_graph *g = b->graph;
    int             chosen = b->of[state];
    for (int block = chosen; block; block = g->blocks[block].parent)
        if (b->elements[block] * 4 <= b->elements[0]) chosen = block;
    return chosen;
}

static lk_status find_blocks(const lk_plan *p, blocks *b)
{
    const lk_graph *g = b->graph = p->graph;
    b->of = lk__alloc(p->context, LK_MEMORY_OTHER, g->states_count * sizeof *b->of);
    b->elements = lk__alloc(p->context, LK_MEMORY_OTHER, g->blocks_count * sizeof *b->elements);
    if ((g->states_count && !b->of) || (g->blocks_count && !b->elements)) return LK_ENOMEM;
    for (size_t i = 0; i < g->states_count; i++) {
        b->of[i] = block_of(g, i);
        for (size_t k = 0; k < g->blocks_count && !g->states[i].buffer; k++)
            if (is_inside(g, b->of[i], (int)k)) b->elements[k] += state_elements(p, i);
    }
    return LK_OK;
}

static void free_blocks(const lk_plan *p, blocks *b)
{
    lk__free(p->context, LK_MEMORY_OTHER, b->of, p->graph->states_count * sizeof *b->of);
    lk__free(p->context, LK_MEMORY_OTHER, b->elements, p->graph->blocks_count * sizeof *b->elements);
}

static bool is_full(const lk_plan *p, const lk__plan_unit *u, const lk__plan_unit *next)
{
    size_t bytes = (size_t)u->elements * lk_dtype_size(u->dtype);
    size_t most = p->parallel.bucket_bytes ? p->parallel.bucket_bytes : MERGED_UNIT;
    if (p->stage < 3) return bytes + (size_t)next->elements * lk_dtype_size(u->dtype) > most;
    return u->block != next->block && bytes >= SMALL_UNIT;
}

static bool is_like(const lk__plan_unit *u, const lk__plan_unit *other)
{
    return u->dtype == other->dtype && u->frozen == other->frozen && u->axes == other->axes && u->held == other->held;
}

/* The last unit that has such states, unless it is full; else a new one. -1: out of memory. */
static int find_unit(lk_plan *p, const lk__plan_unit *like)
{
    size_t i = p->units_count;
    while (i > 0 && !is_like(&p->units[i - 1], like)) i--;
    if (i > 0 && !is_full(p, &p->units[i - 1], like)) return (int)i - 1;
    if (lk__grow(p->context, (void **)&p->units, &p->units_capacity, p->units_count + 1, sizeof *p->units) < 0)
        return -1;
    p->units[p->units_count] = (lk__plan_unit){.block = like->block,
                                               .axes = like->axes,
                                               .dtype = like->dtype,
                                               .frozen = like->frozen,
                                               .held = like->held,
                                               .bucket = -1};
    return (int)p->units_count++;
}

static lk_status add_state(lk_plan *p, size_t state, int block, bool frozen)
{
    const lk_graph *g = p->graph;
    lk__plan_unit   like = {.block = block,
                            .axes = lk__plan_is_expert(p, state) ? (unsigned)LK_AXIS_SHARD : lk__plan_shard_axes(p),
                            .dtype = g->values[g->states[state].value].shape.dtype,
                            .frozen = frozen,
                            .held = p->states[state].splits[LK__ARRAY_STORED].held,
                            .elements = state_elements(p, state)};
    int             unit = find_unit(p, &like);
    if (unit < 0) return LK_ENOMEM;
    lk__plan_unit *u = &p->units[unit];
    p->states[state].unit = unit;
    p->states[state].unit_at = u->elements;
    p->states[state].unit_elements = like.elements;
    u->elements += round_up(like.elements, UNIT_ALIGN);
    u->states++;
    return LK_OK;
}

/* What is behind the last block, such as its norm, is small: it joins that. */
static void join_last(lk_plan *p)
{
    size_t         last = p->units_count - 1, before = last;
    lk__plan_unit *u = &p->units[last];
    if (p->stage < 3 || (size_t)u->elements * lk_dtype_size(u->dtype) >= SMALL_UNIT) return;
    while (before > 0 && !is_like(&p->units[before - 1], u)) before--;
    if (before == 0) return;
    lk__plan_unit *into = &p->units[before - 1];
    for (size_t i = 0; i < p->graph->states_count; i++) {
        if (p->states[i].unit != (int)last) continue;
        p->states[i].unit = (int)before - 1;
        p->states[i].unit_at += into->elements;
    }
    into->elements += u->elements;
    into->states += u->states;
    p->units_count--;
}

/* ---- how arrays are split ---- */

static void split_state(lk_plan *p, size_t state)
{
    lk__plan_state      *s = &p->states[state];
    const lk__plan_unit *u = &p->units[s->unit];
    lk__plan_flat        flat = {u->axes, s->unit_at, lk__unit_each(p, u)};
    for (int a = 0; a < LK__ARRAY_COUNT; a++)
        if (a != LK__ARRAY_STORED || p->stage == 3) s->splits[a].flat = flat;
}

lk_status lk__plan_make_units(lk_plan *p, const lk_optimizer_config *optimizer)
{
    lk_graph *g = p->graph;
    blocks    b = {.graph = g};
    for (size_t i = 0; i < g->states_count; i++) p->states[i].unit = -1;
    if (p->stage == 0) return LK_OK;
    lk_status status = find_blocks(p, &b);
    for (size_t i = 0; i < g->states_count && status >= 0; i++) {
        bool frozen = is_frozen(g, i, optimizer) || !p->trains;
        if (g->states[i].buffer || (frozen && p->stage < 3)) continue;
        status = add_state(p, i, unit_block(&b, i), frozen);
    }
    free_blocks(p, &b);
    if (status < 0 || p->units_count == 0) return status;
    join_last(p);
    for (size_t i = 0; i < p->units_count; i++)
        p->units[i].elements = round_up(p->units[i].elements + !p->units[i].elements,
                                        (int64_t)UNIT_ALIGN * lk__unit_shards(p, &p->units[i]));
    for (size_t i = 0; i < g->states_count; i++)
        if (p->states[i].unit >= 0) split_state(p, i);
    for (size_t i = 0; i < p->units_count; i++) p->split_axes |= lk__mesh_used_axes(&p->mesh, p->units[i].axes);
    return LK_OK;
}
