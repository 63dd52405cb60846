/* leaf_tree.c - gradients that are added in the tree over leaves. A rank first adds the subtrees that it holds whole.
 * Where every rank holds one subtree and all are of the same size, an all_reduce over ranks completes the tree.
 * Otherwise every rank gets its slice of all ranks' subtrees, completes the tree over its slice, and the slices are
 * gathered, unless ranks have slices of the state. Where ranks share their state, the owner of a slice reads all
 * subtrees of its host in place. */
#include "run/leaf_tree.h"

#include "base/reduce.h"
#include "base/tree.h"

#include <string.h>

enum {
    BLOCK = LK__LEAF_TREE_BLOCK,
    DEPTH = 14, /* of a tree over the maximum number of leaves */
};

/* ---- the tree ---- */

size_t lk__leaf_tree_scratch_bytes(void) { return (size_t)DEPTH * BLOCK * sizeof(double); }

const char *lk__leaf_tree_walk(const lk__leaf_tree *t, int lo, int hi, size_t offset, size_t count, char *scratch)
{
    for (int i = 0; i < t->count; i++)
        if (t->subtrees[i].first == lo && t->subtrees[i].last == hi) return t->at[i] + offset;
    int         middle = lo + lk__tree_left(hi - lo);
    const void *sides[] = {lk__leaf_tree_walk(t, lo, middle, offset, count, scratch), NULL};
    sides[1] = lk__leaf_tree_walk(t, middle, hi, offset, count, scratch + BLOCK * sizeof(double));
    lk__reduce(scratch, sides, 2, count, t->type, LK_SUM);
    return scratch;
}

static const char *add_tree(const lk_program *p, const char *const *at, int lo, int hi, size_t offset, size_t count,
                            lk_dtype type, char *scratch)
{
    lk__leaf_tree t = {p->collectives->subtrees, p->collectives->subtrees_count, at, type};
    return lk__leaf_tree_walk(&t, lo, hi, offset, count, scratch);
}

void lk__leaf_tree_sum(const lk_program *p, char *const *gradients, size_t offset, size_t count, lk_dtype type,
                       char *out, char *scratch)
{
    const lk__run_collectives *x = p->collectives;
    const char                *at[LK__LEAVES_MOST] = {NULL};
    size_t                     size = lk_dtype_size(type);
    int                        owners = lk__plan_owners(p->plan), host = lk__plan_batch_part(p->plan) / owners,
        leaves = p->division.parts / p->plan->parallel.hosts;
    for (int i = 0; i < x->subtrees_count; i++) {
        const lk__run_subtree *s = &x->subtrees[i];
        if (s->rank / owners == host) at[i] = gradients[s->rank % owners] + (size_t)s->set * p->plan->gradient_bytes;
    }
    for (size_t i = 0; i < count; i += BLOCK) {
        size_t      here = count - i < BLOCK ? count - i : BLOCK;
        const char *sum = add_tree(p, at, host * leaves, (host + 1) * leaves, offset + i * size, here, type, scratch);
        memcpy(out + i * size, sum, here * size);
    }
}

/* ---- additions on this rank ---- */

lk_status lk__leaf_tree_add(lk_program *p, lk__leaf_sum made, size_t offset, size_t bytes, lk_dtype type)
{
    int       merges = lk__leaf_merges(p->plan, lk__plan_batch_part(p->plan), made.first, made.count);
    lk_status status = LK_OK;
    for (int i = 0; i < merges && status >= 0; i++) {
        char       *into = lk__gradient_set(p, made.set - i - 1) + offset;
        const void *in[] = {into, lk__gradient_set(p, made.set - i) + offset};
        status = p->device->backend->kernels.add(p->device, p->stream, into, in, 2, bytes / lk_dtype_size(type), type);
    }
    return status;
}

/* Leaves that have a set each: those of every subtree at once, into the set of its first. */
lk_status lk__leaf_tree_add_all(lk_program *p, size_t offset, size_t bytes, lk_dtype type)
{
    const lk__run_collectives *x = p->collectives;
    int                        part = lk__plan_batch_part(p->plan);
    lk_status                  status = LK_OK;
    for (int i = 0; i < x->subtrees_count && status >= 0; i++) {
        const lk__run_subtree *s = &x->subtrees[i];
        const void            *in[LK__LEAVES_MOST] = {NULL};
        int                    n = s->rank == part ? s->last - s->first : 0;
        for (int k = 0; k < n; k++) in[k] = lk__gradient_set(p, s->set + k) + offset;
        if (n > 1)
            status = p->device->backend->kernels.add(p->device, p->stream, (char *)in[0], in, n,
                                                     bytes / lk_dtype_size(type), type);
    }
    return status;
}

/* ---- subtrees that are not aligned ---- */

/* The slice of a bucket that the rank with this part of the batch gets. */
static void slice_of(const lk_program *p, size_t elements, int part, size_t *first, size_t *count)
{
    const lk_plan *plan = p->plan;
    unsigned       axes = lk__plan_shard_axes(plan);
    int            parts = plan->stage ? lk__mesh_extent(&plan->mesh, axes) : lk__plan_batch_parts(plan);
    if (plan->stage) part = lk__mesh_coordinate(&plan->mesh, axes, lk__plan_batch_rank(plan, part));
    lk__range slice = lk__split_part((int64_t)elements, parts, part);
    *first = (size_t)slice.first;
    *count = (size_t)lk__range_count(slice);
}

/* Exchanges subtree number `turn` of every rank that has so many: sends each rank its slice of ours, receives our slice
 * of theirs. */
static lk_status exchange_slices(lk_program *p, const lk__plan_bucket *b, int turn, bool *more)
{
    lk__run_collectives *x = p->collectives;
    int                  parts = lk__plan_batch_parts(p->plan), own = lk__plan_batch_part(p->plan);
    size_t               elements = b->bytes / lk_dtype_size(b->dtype), size = lk_dtype_size(b->dtype), first, mine;
    const char          *send = NULL;
    *more = false;
    slice_of(p, elements, own, &first, &mine);
    memset(x->more_counts, 0, (size_t)parts * sizeof *x->more_counts);
    for (int part = 0; part < parts; part++) {
        int seen = 0;
        for (int i = 0; i < x->subtrees_count; i++) {
            if (x->subtrees[i].rank != part || seen++ != turn) continue;
            x->more_counts[part] = mine;
            x->more_displacements[part] = (size_t)i * x->slice_bytes / size;
            *more = true;
            if (part == own) send = lk__gradient_set(p, x->subtrees[i].set) + b->offset;
        }
    }
    for (int part = 0; part < parts; part++) {
        slice_of(p, elements, part, &x->displacements[part], &x->counts[part]);
        if (!send) x->counts[part] = 0;
    }
    if (!*more) return LK_OK;
    return lk_comm_all_to_allv(x->bulk, send ? lk__exchanged(p, send) : x->slices, x->counts, x->displacements,
                               x->slices, x->more_counts, x->more_displacements, b->dtype, NULL);
}

lk_status lk__leaf_tree_reduce(lk_program *p, const lk__plan_bucket *b)
{
    lk__run_collectives *x = p->collectives;
    int                  parts = lk__plan_batch_parts(p->plan);
    size_t               elements = b->bytes / lk_dtype_size(b->dtype), size = lk_dtype_size(b->dtype), first, mine;
    const char          *at[LK__LEAVES_MOST] = {NULL}; /* at most as many subtrees as leaves */
    char                *bucket = lk__exchanged(p, lk__gradient_set(p, 0) + b->offset);
    bool                 more = true;
    for (int turn = 0; more; turn++) {
        lk_status status = exchange_slices(p, b, turn, &more);
        if (status < 0) return status;
    }
    slice_of(p, elements, lk__plan_batch_part(p->plan), &first, &mine);
    for (int i = 0; i < x->subtrees_count; i++) at[i] = x->slices + (size_t)i * x->slice_bytes;
    for (size_t i = 0; i < mine; i += BLOCK) {
        size_t count = mine - i < BLOCK ? mine - i : BLOCK;
        memcpy(bucket + (first + i) * size,
               add_tree(p, at, 0, p->division.parts, i * size, count, b->dtype, x->scratch), count * size);
    }
    if (p->plan->stage) /* through the host, where the group does not reach the device */
        return lk__exchanged(p, p->memory.gradients) == p->memory.gradients
                   ? LK_OK
                   : lk__device_write(p->device, p->stream, lk__gradient_set(p, 0) + b->offset + first * size,
                                      bucket + first * size, mine * size);
    for (int part = 0; part < parts; part++) slice_of(p, elements, part, &x->displacements[part], &x->counts[part]);
    return lk_comm_all_gatherv(x->bulk, bucket + first * size, bucket, x->counts, x->displacements, b->dtype, NULL);
}
