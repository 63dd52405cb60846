/* bucket.c - the layout of gradients: contiguous, in the order in which backward computes them, divided into buckets
 * that are each reduced as a whole. A bucket is a node, a concatenation in place, after the node that computes its last
 * gradient. There its all_reduce (with shared state, its reduce_scatter) starts and backward continues; its wait is in
 * the section sync. So a bucket is closed when it is full, and also when it is large enough and the next gradient takes
 * long to compute. */
#include "plan/expert_leaves.h"
#include "plan/experts.h"

#include <stdlib.h>

enum { FIRST_BUCKET = 1 << 20, BUCKET = 25 << 20, LARGE_ENOUGH = 1 << 20 };
#define LONG_GAP 500e-6 /* seconds; a link's latency is well below it */

typedef struct gradient {
    size_t state;
    int    node; /* that makes it */
    bool   experts;
    bool   postponed; /* it is made behind what other stages wait for (postpone.c) */
} gradient;

static int by_node(const void *a, const void *b)
{
    const gradient *x = a, *y = b;
    if (x->experts != y->experts) return x->experts ? 1 : -1;
    if (x->node != y->node) return x->node < y->node ? -1 : 1;
    return x->state < y->state ? -1 : x->state > y->state;
}

/* All gradients in the order in which backward makes them, those of experts behind the others; returns how many. */
static size_t list_gradients(const lk_plan *p, gradient *all)
{
    const lk__plan_list *list = &p->train;
    size_t               count = 0;
    for (size_t i = 0; i < list->graph->states_count; i++) {
        if (list->gradients[i] < 0) continue;
        int node = list->graph->values[list->gradients[i]].node;
        all[count++] = (gradient){i, node, p->expert_axes && lk__plan_is_expert(p, i),
                                  list->weights_begin && (size_t)node >= list->weights_begin};
    }
    if (count) qsort(all, count, sizeof *all, by_node);
    return count;
}

/* Seconds from one gradient to the next. */
static double gap_seconds(const lk_plan *p, const gradient *before, const gradient *next)
{
    const lk_graph        *g = p->train.graph;
    const lk__device_rates rates = p->device->backend->kernels.rates;
    double                 seconds = 0;
    for (int i = before->node + 1; i <= next->node; i++)
        if (!g->nodes[i].dead) seconds += lk__node_seconds(g, &g->nodes[i], rates.flops, rates.memory);
    return seconds;
}

/* With one rank nothing is reduced and all gradients are one bucket. */
static size_t bucket_limit(const lk_plan *p, size_t buckets)
{
    if (lk__plan_batch_parts(p) == 1) return SIZE_MAX;
    size_t most = p->parallel.bucket_bytes ? p->parallel.bucket_bytes : BUCKET;
    return buckets == 0 && most > FIRST_BUCKET && !p->parallel.bucket_bytes ? FIRST_BUCKET : most;
}

/* With shared state a bucket is one slice for each owner; returns where it ends. */
static size_t close_bucket(lk_plan *p)
{
    if (p->buckets_count == 0) return 0;
    lk__plan_bucket *b = &p->buckets[p->buckets_count - 1];
    if (p->shared) b->bytes = lk__round_up(b->bytes, LK__SLICE_ALIGN * (size_t)lk__plan_owners(p));
    return b->offset + b->bytes;
}

/* Appends a bucket, unless the gradient belongs into the last. */
static lk__plan_bucket *find_bucket(lk_plan *p, const gradient *before, const gradient *next, size_t bytes)
{
    const lk__plan_list *list = &p->train;
    lk_dtype             dtype = list->graph->values[list->gradients[next->state]].shape.dtype;
    lk__plan_bucket     *last = p->buckets_count ? &p->buckets[p->buckets_count - 1] : NULL;
    bool                 close_early =
        last && lk__plan_batch_parts(p) > 1 && last->bytes >= LARGE_ENOUGH && gap_seconds(p, before, next) > LONG_GAP;
    if (last && !close_early && last->dtype == dtype && last->experts == next->experts &&
        last->postponed == next->postponed && last->bytes + bytes <= bucket_limit(p, p->buckets_count - 1))
        return last;
    if (lk__grow(p->context, (void **)&p->buckets, &p->buckets_capacity, p->buckets_count + 1, sizeof *last) < 0)
        return NULL;
    size_t offset = close_bucket(p);
    last = &p->buckets[p->buckets_count++];
    *last = (lk__plan_bucket){.offset = offset, .dtype = dtype, .experts = next->experts, .postponed = next->postponed};
    return last;
}

static lk_status fill_buckets(lk_plan *p, const gradient *all, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        lk__plan_state *sp = &p->states[all[i].state];
        size_t bytes = lk__round_up(lk__plan_gradient_bytes(p, all[i].state), p->shared ? LK__SLICE_ALIGN : LK__ALIGN);
        lk__plan_bucket *b = find_bucket(p, i ? &all[i - 1] : NULL, &all[i], bytes);
        if (!b) return LK_ENOMEM;
        sp->trained = true;
        sp->gradient_offset = b->offset + b->bytes;
        b->bytes += bytes;
        b->states++;
    }
    p->gradient_bytes = close_bucket(p);
    return LK_OK;
}

/* The bucket as a value of the training graph or, of what is reduced for a shared state, this rank's slice of it. */
static int bucket_value(lk_plan *p, size_t index, bool slice)
{
    const lk__plan_bucket *b = &p->buckets[index];
    int64_t                elements = (int64_t)(b->bytes / lk_dtype_size(b->dtype)), owners = lk__bucket_owners(p, b);
    lk_dtype               type = lk__bucket_type(p, b);
    lk__graph_value        v = {.shape = lk__shape_vector(type, slice ? elements / owners : elements),
                                .kind = LK__VALUE_BUCKET,
                                .node = -1,
                                .state = (int)index,
                                .slot = slice,
                                .site = LK_HERE};
    if (p->shared && !slice) v.shape = lk__shape_fixed(type, 2, (int64_t[]){owners, elements / owners});
    return lk__graph_add_value(p->train.graph, &v);
}

/* ---- nodes ---- */

typedef struct insertion {
    const gradient *next; /* whose node was not seen yet */
    size_t          left;
    size_t          bucket; /* the next one */
    int             in_bucket;
} insertion;
typedef struct insertions {
    lk_plan  *plan;
    insertion of[2]; /* of gradients that all ranks add, and of those of experts */
} insertions;

/* The gradients of a bucket, as many as a node can have at a time. */
static lk_status add_members(lk_plan *p, int bucket, const gradient *members, int count)
{
    lk_graph *g = p->train.graph;
    for (int i = 0; i < count; i += LK__MAX_IN) {
        int in[LK__MAX_IN], n = count - i < LK__MAX_IN ? count - i : LK__MAX_IN;
        for (int k = 0; k < n; k++) in[k] = p->train.gradients[members[i + k].state];
        if (lk__emit_update(g, LK_HERE, LK__OP_bucket, NULL, in, n, &bucket, 1) < 0) return g->status;
    }
    return LK_OK;
}

/* A bucket that is complete: its members, and the start of its collective. In place. */
static lk_status add_start(lk_plan *p, size_t index, const gradient *members)
{
    lk_graph        *g = p->train.graph;
    lk__plan_bucket *b = &p->buckets[index];
    lk__op_attrs     attrs = {.reduction = LK_SUM, .order = lk__plan_order(p), .group = LK__GROUP_DATA};
    b->value = bucket_value(p, index, false);
    b->result = p->shared ? bucket_value(p, index, true) : b->value;
    if (b->value < 0 || b->result < 0) return g->status;
    if (b->experts) attrs.mesh = LK__PLAN_BATCH_AXES & ~LK__PLAN_EXPERT_AXES;
    if (p->shared) attrs.parts = lk__bucket_owners(p, b);
    if (p->shared && p->parallel.hosts > 1) attrs.group = LK__GROUP_DATA_BY_HOST;
    if (add_members(p, b->value, members, b->states) < 0) return g->status;
    lk__op op = p->shared ? LK__OP_reduce_scatter : LK__OP_all_reduce;
    return lk__emit_update(g, LK_HERE, op, &attrs, &b->value, 1, &b->result, 1) < 0 ? g->status : LK_OK;
}

/* Behind the node that makes the last gradient of a bucket; one node may complete several. */
static lk_status insert_complete(lk_plan *p, insertion *x, int made)
{
    for (; x->left && x->next->node == made; x->next++, x->left--) {
        const lk__plan_bucket *b = &p->buckets[x->bucket];
        if (++x->in_bucket < b->states) continue;
        if (add_start(p, x->bucket, x->next + 1 - b->states) < 0) return p->train.graph->status;
        x->bucket++;
        x->in_bucket = 0;
    }
    return LK_OK;
}

static int insert_starts(lk_graph *g, const lk__graph_node *n, void *user)
{
    insertions *x = user;
    int         made = -1, index = lk__plan_append(g, n);
    for (int i = 0; i < n->outputs && made < 0; i++)
        if (n->out[i] >= 0 && g->values[n->out[i]].kind == LK__VALUE_RESULT) made = g->values[n->out[i]].node;
    for (int i = 0; i < 2 && index >= 0; i++)
        if (insert_complete(x->plan, &x->of[i], made) < 0) return -1;
    return index;
}

/* The gradients from `first` on, and their buckets. */
static insertion insertion_of(const lk_plan *p, const gradient *all, size_t first, size_t count, bool experts)
{
    insertion x = {.next = all + first, .left = count - first};
    while (x.bucket < p->buckets_count && p->buckets[x.bucket].experts != experts) x.bucket++;
    return x;
}

static lk_status add_waits(lk_plan *p)
{
    lk_graph *g = p->train.graph;
    for (size_t i = 0; i < p->buckets_count; i++) {
        const lk__plan_bucket *b = &p->buckets[i];
        int                    in[] = {b->result, b->value};
        if (lk__emit_update(g, LK_HERE, LK__OP_wait, NULL, in, 2, &b->result, 1) < 0) return g->status;
    }
    return LK_OK;
}

lk_status lk__pass_buckets(lk_plan *p, size_t *backward)
{
    lk__plan_list *list = &p->train;
    size_t         bytes = list->graph->states_count * sizeof(gradient);
    if (p->stage) return lk__pass_shard_buckets(p, backward);
    gradient *all = bytes ? lk__alloc(p->context, LK_MEMORY_OTHER, bytes) : NULL;
    if (bytes && !all) return LK_ENOMEM;
    size_t    count = bytes ? list_gradients(p, all) : 0, common = 0;
    lk_status status = fill_buckets(p, all, count);
    p->reduces = lk__plan_batch_parts(p) > 1 || p->parallel.leaves;
    while (common < count && !all[common].experts) common++;
    insertions x = {.plan = p,
                    .of = {insertion_of(p, all, 0, common, false), insertion_of(p, all, common, count, true)}};
    if (status >= 0 && p->reduces) status = lk__plan_rebuild(list->graph, insert_starts, &x);
    *backward = list->graph->nodes_count;
    if (status >= 0 && p->reduces) status = add_waits(p);
    lk__free(p->context, LK_MEMORY_OTHER, all, bytes);
    return status;
}

void lk__plan_gradient_memory(lk_plan *p)
{
    p->memory[LK_MEMORY_GRADIENTS] = p->gradient_bytes * (size_t)p->sets;
    if (lk__plan_batch_parts(p) > 1 && p->gradient_dtype != p->graph->real &&
        !lk__plan_scatters(p)) /* and rounded, where they are reduced */
        p->memory[LK_MEMORY_GRADIENTS] += p->gradient_bytes / sizeof(float) * lk_dtype_size(p->gradient_dtype);
    p->memory[LK_MEMORY_GRADIENTS] += lk__source_bytes(p);
}

size_t lk__bucket_complete(const lk_plan *p, size_t index)
{
    const lk__plan_list *list = &p->train;
    size_t               i = 0;
    while (i < list->order_count &&
           !lk__plan_starts_bucket(list->graph, &list->graph->nodes[list->order[i]], (int)index))
        i++;
    return i;
}
