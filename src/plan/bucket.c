/* bucket.c - where gradients live: one after the other in the order in which backward makes them, cut into buckets that travel
 * as one. A bucket is whole when the last gradient in it is made; from then on it can be on its way while backward goes on. So
 * it is closed when it is full, and also when it is worth a journey and the next gradient is long in coming. */
#include "plan/plan.h"

#include <stdlib.h>

enum { FIRST_BUCKET = 1 << 20, BUCKET = 25 << 20, WORTH = 1 << 20 };
/* Some machine's rates, the same on every rank; a link's latency is well below a long time. */
#define FLOPS 30e9
#define MEMORY 10e9
#define LONG 500e-6 /* seconds */

typedef struct made {
    size_t state;
    int    position; /* in the order: where its gradient is whole */
} made;

static int earlier(const void *a, const void *b)
{
    const made *x = a, *y = b;
    if (x->position != y->position) return x->position < y->position ? -1 : 1;
    return x->state < y->state ? -1 : x->state > y->state;
}

/* Position of every node in the order, or -1. */
static int *positions(const lk__plan_order *t)
{
    int *position = lk__alloc(t->graph->context, LK_MEMORY_OTHER, t->graph->nodes_count * sizeof(int));
    if (!position) return NULL;
    for (size_t i = 0; i < t->graph->nodes_count; i++) position[i] = -1;
    for (size_t i = 0; i < t->order_count; i++) position[t->order[i]] = (int)i;
    return position;
}

static size_t collect(const lk__plan_order *t, const int *position, made *all)
{
    size_t count = 0;
    for (size_t i = 0; i < t->graph->states_count; i++)
        if (t->gradients[i] >= 0) all[count++] = (made){i, position[t->graph->values[t->gradients[i]].node]};
    if (count) qsort(all, count, sizeof *all, earlier);
    return count;
}

/* From the gradient before to this one. */
static double gap(const lk__plan_order *t, const made *before, const made *next)
{
    double seconds = 0;
    for (int i = before->position + 1; i <= next->position; i++)
        seconds += lk__node_seconds(t->graph, &t->graph->nodes[t->order[i]], FLOPS, MEMORY);
    return seconds;
}

/* With one rank nothing travels and everything is one bucket. */
static size_t limit(const lk_plan *p, size_t buckets)
{
    if (p->parallel.world <= 1) return SIZE_MAX;
    size_t most = p->parallel.bucket_bytes ? p->parallel.bucket_bytes : BUCKET;
    return buckets == 0 && most > FIRST_BUCKET && !p->parallel.bucket_bytes ? FIRST_BUCKET : most;
}

lk_status lk__pass_buckets(lk_plan *p)
{
    lk__plan_order *t = &p->train;
    lk_context     *c = p->context;
    size_t          states = t->graph->states_count, offset = 0, nodes = t->graph->nodes_count * sizeof(int);
    made           *all = states ? lk__alloc(c, LK_MEMORY_OTHER, states * sizeof *all) : NULL;
    int            *position = positions(t);
    lk_status       status = LK_ENOMEM;
    if ((states && !all) || !position) goto done;
    size_t count = collect(t, position, all);
    for (size_t i = 0; i < count; i++) {
        lk__plan_state  *sp = &p->states[all[i].state];
        size_t           bytes = lk__round_up(sp->bytes, LK__ALIGN);
        lk__plan_bucket *last = p->buckets_count ? &p->buckets[p->buckets_count - 1] : NULL;
        bool far = last && p->parallel.world > 1 && last->bytes >= WORTH && gap(t, &all[i - 1], &all[i]) > LONG;
        if (!last || far || last->bytes + bytes > limit(p, p->buckets_count - 1)) {
            if (lk__grow(c, (void **)&p->buckets, &p->buckets_capacity, p->buckets_count + 1, sizeof *last) < 0)
                goto done;
            last = &p->buckets[p->buckets_count++];
            *last = (lk__plan_bucket){.offset = offset};
        }
        sp->trained = true;
        sp->gradient_offset = offset;
        offset += bytes;
        last->bytes += bytes;
        last->states++;
        last->after = (size_t)all[i].position;
    }
    p->gradient_bytes = offset;
    status = LK_OK;
done:
    lk__free(c, LK_MEMORY_OTHER, all, states * sizeof *all);
    lk__free(c, LK_MEMORY_OTHER, position, nodes);
    return status;
}
