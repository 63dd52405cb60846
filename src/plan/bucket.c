/* bucket.c - the layout of gradients: contiguous, in the order in which backward makes them, divided into buckets that are reduced
 * as one. A bucket is complete when its last gradient is made; there its all_reduce starts, or with shared state its reduce_scatter,
 * and backward continues; its wait is in the section sync. So a bucket is closed when it is full, and also when it is large enough and the next gradient takes long to compute. */
#include "plan/plan.h"

#include <stdlib.h>

enum { FIRST_BUCKET = 1 << 20, BUCKET = 25 << 20, LARGE_ENOUGH = 1 << 20 };
#define LONG_GAP 500e-6 /* seconds; a link's latency is well below it */

typedef struct gradient {
    size_t state;
    int    position; /* in the order: the node that makes it */
} gradient;

static int by_position(const void *a, const void *b)
{
    const gradient *x = a, *y = b;
    if (x->position != y->position) return x->position < y->position ? -1 : 1;
    return x->state < y->state ? -1 : x->state > y->state;
}

/* Position of every node in the order, or -1. */
static int *node_positions(const lk__plan_list *list)
{
    int *position = lk__alloc(list->graph->context, LK_MEMORY_OTHER, list->graph->nodes_count * sizeof(int));
    if (!position) return NULL;
    for (size_t i = 0; i < list->graph->nodes_count; i++) position[i] = -1;
    for (size_t i = 0; i < list->order_count; i++) position[list->order[i]] = (int)i;
    return position;
}

/* All gradients in the order in which backward makes them; returns how many. */
static size_t list_gradients(const lk__plan_list *list, const int *position, gradient *all)
{
    size_t count = 0;
    for (size_t i = 0; i < list->graph->states_count; i++)
        if (list->gradients[i] >= 0)
            all[count++] = (gradient){i, position[list->graph->values[list->gradients[i]].node]};
    if (count) qsort(all, count, sizeof *all, by_position);
    return count;
}

/* Seconds from one gradient to the next. */
static double gap_seconds(const lk_plan *p, const gradient *before, const gradient *next)
{
    const lk__plan_list   *list = &p->train;
    const lk__device_rates rates = p->device->backend->rates;
    double                 seconds = 0;
    for (int i = before->position + 1; i <= next->position; i++)
        seconds += lk__node_seconds(list->graph, &list->graph->nodes[list->order[i]], rates.flops, rates.memory);
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

static lk_status make_buckets(lk_plan *p)
{
    lk__plan_list *list = &p->train;
    lk_context    *c = p->context;
    size_t         states = list->graph->states_count, offset = 0, nodes = list->graph->nodes_count * sizeof(int);
    gradient      *all = states ? lk__alloc(c, LK_MEMORY_OTHER, states * sizeof *all) : NULL;
    int           *position = node_positions(list);
    lk_status      status = LK_ENOMEM;
    if ((states && !all) || !position) goto done;
    size_t count = list_gradients(list, position, all);
    for (size_t i = 0; i < count; i++) {
        lk__plan_state  *sp = &p->states[all[i].state];
        size_t           bytes = lk__round_up(sp->wide_bytes, p->shared ? LK__SLICE_ALIGN : LK__ALIGN);
        lk_dtype         dtype = list->graph->values[list->gradients[all[i].state]].shape.dtype;
        lk__plan_bucket *last = p->buckets_count ? &p->buckets[p->buckets_count - 1] : NULL;
        bool             close_early = last && lk__plan_batch_parts(p) > 1 && last->bytes >= LARGE_ENOUGH &&
                           gap_seconds(p, &all[i - 1], &all[i]) > LONG_GAP;
        if (!last || close_early || last->dtype != dtype || last->bytes + bytes > bucket_limit(p, p->buckets_count - 1)) {
            if (lk__grow(c, (void **)&p->buckets, &p->buckets_capacity, p->buckets_count + 1, sizeof *last) < 0)
                goto done;
            offset = close_bucket(p);
            last = &p->buckets[p->buckets_count++];
            *last = (lk__plan_bucket){.offset = offset, .dtype = dtype};
        }
        sp->trained = true;
        sp->gradient_offset = offset;
        offset += bytes;
        last->bytes += bytes;
        last->states++;
        last->after = (size_t)all[i].position;
    }
    p->gradient_bytes = close_bucket(p);
    status = LK_OK;
done:
    lk__free(c, LK_MEMORY_OTHER, all, states * sizeof *all);
    lk__free(c, LK_MEMORY_OTHER, position, nodes);
    return status;
}

/* Inserts a node into the order; the sections from `section` on end one later. */
static lk_status insert_node(lk__plan_list *list, size_t position, int node, lk_section section)
{
    if (node < 0) return list->graph->status;
    if (lk__grow(list->graph->context, (void **)&list->order, &list->order_capacity, list->order_count + 1,
                 sizeof(int)) < 0)
        return LK_ENOMEM;
    for (size_t i = list->order_count++; i > position; i--) list->order[i] = list->order[i - 1];
    list->order[position] = node;
    for (int s = section; s < LK_SECTION_COUNT; s++) list->end[s]++;
    return LK_OK;
}

/* The bucket as a value of the training graph or, of what is reduced for a shared state, this rank's slice of it. */
static int bucket_value(lk_plan *p, size_t index, bool slice)
{
    const lk__plan_bucket *b = &p->buckets[index];
    int64_t                elements = (int64_t)(b->bytes / lk_dtype_size(b->dtype)), owners = lk__plan_owners(p);
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

/* The collective of bucket `index`: started once it is complete, waited for in the section sync. In place. */
static lk_status add_collective(lk_plan *p, size_t index)
{
    lk__plan_list   *list = &p->train;
    lk_graph        *g = list->graph;
    lk__plan_bucket *b = &p->buckets[index];
    lk__op_attrs     attrs = {.reduction = LK_SUM, .order = lk__plan_order(p), .group = LK__GROUP_DATA};
    int              bucket = bucket_value(p, index, false), result = p->shared ? bucket_value(p, index, true) : bucket;
    if (bucket < 0 || result < 0) return g->status;
    if (p->shared) attrs.parts = lk__plan_owners(p);
    if (p->shared && p->parallel.hosts > 1) attrs.group = LK__GROUP_DATA_BY_HOST;
    b->after += index; /* behind the starts of the buckets before it */
    int start = lk__emit_update(g, LK_HERE, p->shared ? LK__OP_reduce_scatter : LK__OP_all_reduce, &attrs, &bucket, 1,
                                &result, 1);
    lk_status status = insert_node(list, b->after + 1, start, LK_BACKWARD);
    if (status < 0) return status;
    int wait = lk__emit_update(g, LK_HERE, LK__OP_wait, NULL, (int[]){result, bucket}, 2, &result, 1);
    return insert_node(list, list->end[LK_SYNC], wait, LK_SYNC);
}

lk_status lk__pass_buckets(lk_plan *p)
{
    lk_status status = make_buckets(p);
    p->memory[LK_MEMORY_GRADIENTS] = p->gradient_bytes * (size_t)p->sets;
    if (lk__plan_batch_parts(p) > 1 && p->gradient_dtype != p->graph->real) /* and rounded, where they are reduced */
        p->memory[LK_MEMORY_GRADIENTS] += p->gradient_bytes / sizeof(float) * lk_dtype_size(p->gradient_dtype);
    p->reduces = lk__plan_batch_parts(p) > 1 || p->parallel.leaves;
    for (size_t i = 0; i < p->buckets_count && p->reduces && status >= 0; i++) status = add_collective(p, i);
    return status;
}
