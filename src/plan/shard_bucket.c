/* shard_bucket.c - buckets where ranks have slices of the state: one for each unit. Its reduce_scatter starts after the
 * node that computes the last of its gradients. With stage 1, and with leaves, gradients are in their region and are
 * reduced once per step; the wait is in the section sync. With stages 2 and 3 they are in the arena until the
 * reduce_scatter ends, at the latest before the second next one starts; the slices are kept. */
#include "plan/expert_leaves.h"
#include "plan/instruction.h"

typedef struct insertion {
    lk_plan *plan;
    int     *complete; /* by bucket: the node that makes the last of its gradients */
    int      pending;  /* bucket whose reduce_scatter is in flight; -1: none */
} insertion;

static int state_bucket(const lk_plan *p, size_t state)
{
    return p->states[state].unit < 0 ? -1 : p->units[p->states[state].unit].bucket;
}

/* ---- places ---- */

/* In the order in which backward completes them. */
static lk_status list_buckets(lk_plan *p, int *complete)
{
    const lk__plan_list *list = &p->train;
    for (size_t u = 0; u < p->units_count; u++) complete[u] = -1;
    for (size_t i = 0; i < p->graph->states_count; i++) {
        if (list->gradients[i] < 0) continue;
        int node = list->graph->values[list->gradients[i]].node, unit = p->states[i].unit;
        if (node > complete[unit]) complete[unit] = node;
    }
    for (;;) {
        int next = -1;
        for (int u = 0; u < (int)p->units_count; u++)
            if (!p->units[u].frozen && p->units[u].bucket < 0 && lk__unit_is_held(p, &p->units[u]) &&
                (next < 0 || complete[u] < complete[next]))
                next = u;
        if (next < 0) return LK_OK;
        lk_status status =
            lk__grow(p->context, (void **)&p->buckets, &p->buckets_capacity, p->buckets_count + 1, sizeof *p->buckets);
        if (status < 0) return status;
        lk__plan_unit *u = &p->units[next];
        lk_dtype       type = lk__wide_type(u->dtype);
        u->bucket = (int)p->buckets_count;
        p->buckets[p->buckets_count++] = (lk__plan_bucket){
            .bytes = (size_t)u->elements * lk_dtype_size(type), .dtype = type, .states = u->states, .unit = next};
        p->buckets[p->buckets_count - 1].experts = p->expert_axes && !(u->axes & p->expert_axes);
    }
}

/* `offset` counts whole gradients, also where the arena has them. */
static void place_buckets(lk_plan *p)
{
    size_t offset = 0, kept = 0;
    for (size_t i = 0; i < p->buckets_count; i++) {
        lk__plan_bucket     *b = &p->buckets[i];
        const lk__plan_unit *u = &p->units[b->unit];
        size_t               own = (size_t)lk__unit_shard(p, u), shards = (size_t)lk__unit_shards(p, u);
        b->offset = offset;
        b->slice = !lk__plan_scatters(p) ? offset + own * (b->bytes / shards) : kept;
        offset += b->bytes;
        kept += b->bytes / shards;
    }
    p->gradient_bytes = lk__plan_scatters(p) ? kept : offset;
    for (size_t i = 0; i < p->graph->states_count; i++) {
        if (p->train.gradients[i] < 0) continue;
        const lk__plan_bucket *b = &p->buckets[state_bucket(p, i)];
        p->states[i].trained = true;
        p->states[i].gradient_offset = b->offset + (size_t)p->states[i].unit_at * lk_dtype_size(b->dtype);
    }
}

/* ---- values ---- */

/* slot 0: all of a bucket; 1: this rank's slice; 2: the same in the type of the gradients, where they are rounded. */
enum { ALL, SLICE, WIDE_SLICE };
static int bucket_value(lk_plan *p, size_t index, int slot)
{
    const lk__plan_bucket *b = &p->buckets[index];
    int64_t                shards = lk__unit_shards(p, &p->units[b->unit]),
            each = (int64_t)(b->bytes / lk_dtype_size(b->dtype)) / shards;
    lk_dtype        type = slot == WIDE_SLICE ? b->dtype : lk__bucket_type(p, b);
    lk__graph_value v = {.shape =
                             slot ? lk__shape_vector(type, each) : lk__shape_fixed(type, 2, (int64_t[]){shards, each}),
                         .kind = LK__VALUE_BUCKET,
                         .node = -1,
                         .state = (int)index,
                         .slot = slot,
                         .site = LK_HERE};
    return lk__graph_add_value(p->train.graph, &v);
}

/* This rank's parts of the states' gradients. */
static lk_status add_slices(lk_plan *p)
{
    lk_graph *g = p->train.graph;
    for (size_t i = 0; i < p->graph->states_count; i++) {
        if (p->train.gradients[i] < 0) continue;
        lk__graph_value v = {.shape = g->values[p->train.gradients[i]].shape,
                             .kind = LK__VALUE_SLICE,
                             .node = -1,
                             .state = (int)i,
                             .site = LK_HERE};
        if ((p->states[i].gradient_slice = lk__graph_add_value(g, &v)) < 0) return g->status;
    }
    return LK_OK;
}

/* ---- nodes ---- */

static lk_status add_members(lk_plan *p, size_t index)
{
    lk_graph *g = p->train.graph;
    int       in[LK__MAX_IN], count = 0, bucket = p->buckets[index].value;
    for (size_t i = 0; i <= p->graph->states_count; i++) {
        bool end = i == p->graph->states_count;
        if (!end && p->train.gradients[i] >= 0 && state_bucket(p, i) == (int)index) in[count++] = p->train.gradients[i];
        if (count < (end ? 1 : LK__MAX_IN)) continue;
        if (lk__emit_update(g, LK_HERE, LK__OP_bucket, NULL, in, count, &bucket, 1) < 0) return g->status;
        count = 0;
    }
    return LK_OK;
}

/* Stages 2 and 3 keep slices in the wide type, to which those of micro-batches are added: gradients are rounded for the
 * reduce_scatter alone. */
static bool is_rounded(const lk_plan *p) { return lk__plan_scatters(p) && p->gradient_dtype != p->graph->real; }

static lk_status add_wide_slice(lk_plan *p, const lk__plan_bucket *b)
{
    lk_graph *g = p->train.graph;
    int       complete = lk__emit1(g, LK_HERE, LK__OP_wait, NULL, (int[]){b->received, b->rounded}, 2);
    if (complete < 0) return g->status;
    return lk__emit_update(g, LK_HERE, LK__OP_cast, NULL, &complete, 1, &b->result, 1) < 0 ? g->status : LK_OK;
}

static lk_status add_wait(lk_plan *p, size_t index)
{
    lk_graph              *g = p->train.graph;
    const lk__plan_bucket *b = &p->buckets[index];
    if (is_rounded(p)) return add_wide_slice(p, b);
    int in[] = {b->result, b->value};
    return lk__emit_update(g, LK_HERE, LK__OP_wait, NULL, in, 2, &b->result, 1) < 0 ? g->status : LK_OK;
}

static lk_status add_rounded_start(lk_plan *p, lk__plan_bucket *b, const lk__op_attrs *attrs)
{
    lk_graph       *g = p->train.graph;
    lk__graph_shape slice = g->values[b->result].shape;
    slice.dtype = p->gradient_dtype;
    if ((b->rounded = lk__emit_cast(g, LK_HERE, b->value, p->gradient_dtype)) < 0) return g->status;
    int node = lk__emit_shaped(g, LK_HERE, LK__OP_reduce_scatter, attrs, &b->rounded, 1, &slice, 1);
    if (node < 0) return g->status;
    b->received = g->nodes[node].out[0];
    return LK_OK;
}

/* Over which one collective adds: leaves that do not nest are added over all parts of the batch at once. */
static unsigned reduced_axes(const lk_plan *p, const lk__plan_bucket *b)
{
    if (lk__bucket_has_sources(p, b)) return LK__PLAN_BATCH_AXES & ~LK__PLAN_EXPERT_AXES;
    return lk__plan_by_slices(p) ? (unsigned)LK__PLAN_BATCH_AXES : p->units[b->unit].axes;
}

static lk_status add_start(lk_plan *p, size_t index)
{
    lk_graph        *g = p->train.graph;
    lk__plan_bucket *b = &p->buckets[index];
    lk__op_attrs     attrs = {.reduction = LK_SUM,
                              .order = LK__ORDER_RANKS,
                              .mesh = reduced_axes(p, b),
                              .parts = lk__unit_shards(p, &p->units[b->unit])};
    b->value = bucket_value(p, index, ALL);
    b->result = bucket_value(p, index, SLICE);
    if (b->value < 0 || b->result < 0 || add_members(p, index) < 0) return g->status;
    if (is_rounded(p)) return add_rounded_start(p, b, &attrs);
    return lk__emit_update(g, LK_HERE, LK__OP_reduce_scatter, &attrs, &b->value, 1, &b->result, 1) < 0 ? g->status
                                                                                                       : LK_OK;
}

static int insert_starts(lk_graph *g, const lk__graph_node *n, void *user)
{
    insertion *x = user;
    lk_plan   *p = x->plan;
    int        made = -1, index = lk__plan_append(g, n);
    for (int i = 0; i < n->outputs && made < 0; i++)
        if (n->out[i] >= 0 && g->values[n->out[i]].kind == LK__VALUE_RESULT) made = g->values[n->out[i]].node;
    for (size_t b = 0; b < p->buckets_count && index >= 0 && made >= 0; b++) {
        if (x->complete[p->buckets[b].unit] != made) continue;
        if (lk__plan_scatters(p) && x->pending >= 0 && add_wait(p, (size_t)x->pending) < 0) return -1;
        if (add_start(p, b) < 0) return -1;
        x->pending = (int)b;
    }
    return index;
}

/* Whether other ranks have the same slice, and sums of other samples in it. */
static bool has_replicas(const lk_plan *p, const lk__plan_bucket *b)
{
    return !lk__bucket_by_slices(p, b) && lk__mesh_extent(&p->mesh, LK_AXIS_DATA) > 1;
}

/* In the section sync: the waits that are not in backward, and the sum over ranks that have the same slices. */
static lk_status add_sync(lk_plan *p)
{
    lk_graph    *g = p->train.graph;
    lk__op_attrs attrs = {.reduction = LK_SUM, .order = LK__ORDER_RANKS, .mesh = LK_AXIS_DATA};
    for (size_t i = 0; i < p->buckets_count; i++) {
        lk__plan_bucket *b = &p->buckets[i];
        if (!lk__plan_scatters(p) && add_wait(p, i) < 0) return g->status;
        if (!has_replicas(p, b)) continue;
        b->summed = lk__bucket_type(p, b) == b->dtype ? b->result : bucket_value(p, i, WIDE_SLICE);
        if (b->summed < 0 || lk__emit_update(g, LK_HERE, LK__OP_all_reduce, &attrs, &b->summed, 1, &b->summed, 1) < 0)
            return g->status;
    }
    for (size_t i = 0; i < p->buckets_count; i++) {
        if (!has_replicas(p, &p->buckets[i])) continue;
        int in[] = {p->buckets[i].summed, p->buckets[i].summed};
        if (lk__emit_update(g, LK_HERE, LK__OP_wait, NULL, in, 2, in, 1) < 0) return g->status;
    }
    return LK_OK;
}

lk_status lk__pass_shard_buckets(lk_plan *p, size_t *backward)
{
    size_t    bytes = p->units_count * sizeof(int);
    insertion x = {.plan = p, .pending = -1, .complete = lk__alloc(p->context, LK_MEMORY_OTHER, bytes)};
    lk_status status = bytes && !x.complete ? LK_ENOMEM : list_buckets(p, x.complete);
    if (status >= 0) place_buckets(p);
    if (status >= 0) status = add_slices(p);
    p->reduces = true;
    if (status >= 0) status = lk__plan_rebuild(p->train.graph, insert_starts, &x);
    if (status >= 0 && lk__plan_scatters(p) && x.pending >= 0) status = add_wait(p, (size_t)x.pending);
    *backward = p->train.graph->nodes_count;
    if (status >= 0) status = add_sync(p);
    lk__free(p->context, LK_MEMORY_OTHER, x.complete, bytes);
    return status;
}
