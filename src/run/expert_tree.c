/* expert_tree.c - gradients of experts that this rank computes for the leaves of several ranks (plan/expert_leaves.h).
 * The gradients of each source are added on a separate stack. In the end the subtrees that the leaves of all sources
 * hold whole are added here; ranks that have the same experts exchange slices of these sums, and each completes the
 * tree over its slice. */
#include "run/leaf_tree.h"

#include "base/tree.h"
#include "plan/expert_leaves.h"
#include "run/interpreter.h"

#include <string.h>

enum { OUTER = LK__PLAN_BATCH_AXES & ~LK__PLAN_EXPERT_AXES }; /* along which ranks have the same experts */

/* ---- a leaf of each source ---- */

lk_status lk__expert_tree_add(lk_program *p, const lk__schedule_run *run, const lk__plan_bucket *b)
{
    const lk_plan *plan = p->plan;
    lk_status      status = LK_OK;
    for (int source = 0; source < lk__plan_sources(plan); source++) {
        lk__leaf_sum made = lk__source_leaf(plan, source, run->part, run->each);
        int          part = lk__source_part(plan, lk__plan_rank(plan), source);
        int          merges = made.count ? lk__leaf_merges(plan, part, made.first, made.count) : 0;
        for (int i = 0; i < merges && status >= 0; i++) {
            char       *into = p->memory.gradients + lk__source_set(plan, b, source, made.set - i - 1);
            const void *in[] = {into, p->memory.gradients + lk__source_set(plan, b, source, made.set - i)};
            status = p->device->backend->kernels.add(p->device, p->stream, into, in, 2,
                                                     b->bytes / lk_dtype_size(b->dtype), b->dtype);
        }
    }
    return status;
}

/* ---- the whole tree ---- */

/* Which of the ranks with the same experts has the leaves of a part. */
static int member_of(const lk_plan *plan, int part)
{
    return lk__mesh_coordinate(&plan->mesh, OUTER, lk__plan_batch_rank(plan, part));
}

void lk__expert_tree_join(lk__run_collectives *x, const lk_plan *plan)
{
    int owner[LK__LEAVES_MOST], leaves = lk__plan_all_leaves(plan), count;
    for (int part = 0; part < lk__plan_batch_parts(plan); part++) {
        lk__range own = lk__plan_leaves(plan, part);
        for (int64_t leaf = own.first; leaf < own.end; leaf++) owner[leaf] = member_of(plan, part);
    }
    for (int first = 0; first < leaves; first += count) {
        int end = first + 1;
        while (end < leaves && owner[end] == owner[first]) end++;
        count = lk__tree_subtree(leaves, first, end);
        x->joined[x->joined_count++] = (lk__run_subtree){first, first + count, owner[first], 0};
    }
}

/* Where this rank has the subtrees of its sources; NULL: of other ranks. */
static void find_sources(const lk_program *p, const lk__plan_bucket *b, const char **at)
{
    const lk__run_collectives *x = p->collectives;
    int                        own = lk__mesh_coordinate(&p->plan->mesh, OUTER, lk__plan_rank(p->plan));
    for (int i = 0; i < x->subtrees_count; i++) {
        const lk__run_subtree *s = &x->subtrees[i];
        int                    rank = lk__plan_batch_rank(p->plan, s->rank);
        int                    source = lk__mesh_coordinate(&p->plan->mesh, p->plan->expert_axes, rank);
        at[i] = member_of(p->plan, s->rank) == own ? p->memory.gradients + lk__source_set(p->plan, b, source, s->set)
                                                   : NULL;
    }
}

/* The sum over leaves first … last-1 of elements begin … begin + count - 1. */
static void sum_range(const lk__leaf_tree *t, int first, int last, size_t begin, size_t count, char *to, char *scratch)
{
    size_t size = lk_dtype_size(t->type);
    for (size_t i = 0; i < count; i += LK__LEAF_TREE_BLOCK) {
        size_t      here = count - i < LK__LEAF_TREE_BLOCK ? count - i : LK__LEAF_TREE_BLOCK;
        const char *sum = lk__leaf_tree_walk(t, first, last, (begin + i) * size, here, scratch);
        if (sum != to + i * size) memcpy(to + i * size, sum, here * size);
    }
}

/* Adds what this rank has whole, each subtree in the place of the first that it is made of. joined: where they are. */
static void join_sources(lk_program *p, const lk__plan_bucket *b, const char **joined)
{
    lk__run_collectives *x = p->collectives;
    const char          *at[LK__LEAVES_MOST];
    lk__leaf_tree        t = {x->subtrees, x->subtrees_count, at, b->dtype};
    size_t               elements = b->bytes / lk_dtype_size(b->dtype);
    int                  own = lk__mesh_coordinate(&p->plan->mesh, OUTER, lk__plan_rank(p->plan));
    find_sources(p, b, at);
    for (int k = 0; k < x->joined_count; k++) {
        const lk__run_subtree *s = &x->joined[k];
        int                    i = 0;
        joined[k] = NULL;
        if (s->rank != own) continue;
        while (x->subtrees[i].first != s->first) i++;
        /* all of the tree is where the update reads it */
        bool  whole = s->last - s->first == p->division.parts;
        char *to = whole ? lk__gradient_set(p, 0) + b->offset : (char *)at[i];
        sum_range(&t, s->first, s->last, 0, elements, to, x->scratch);
        joined[k] = to;
    }
}

/* The slice of a bucket that a rank with the same experts gets. */
static lk__range slice_of(const lk_plan *plan, const lk__plan_bucket *b, int member)
{
    int rank = lk__mesh_member(&plan->mesh, OUTER, lk__plan_rank(plan), member);
    int parts = lk__mesh_extent(&plan->mesh, plan->stage ? LK_AXIS_SHARD : OUTER);
    int part = plan->stage ? lk__mesh_coordinate(&plan->mesh, LK_AXIS_SHARD, rank) : member;
    return lk__split_part((int64_t)(b->bytes / lk_dtype_size(b->dtype)), parts, part);
}

static void set_slices(const lk_program *p, const lk__plan_bucket *b, int members, bool sends)
{
    lk__run_collectives *x = p->collectives;
    for (int i = 0; i < members; i++) {
        lk__range slice = slice_of(p->plan, b, i);
        x->displacements[i] = (size_t)slice.first;
        x->counts[i] = sends ? (size_t)lk__range_count(slice) : 0;
    }
}

/* Exchanges subtree number `turn` of every rank that has so many. */
static lk_status exchange_slices(lk_program *p, const lk__plan_bucket *b, int members, int turn,
                                 const char *const *joined, bool *more)
{
    lk__run_collectives *x = p->collectives;
    const char          *send = NULL;
    int                  own = lk__mesh_coordinate(&p->plan->mesh, OUTER, lk__plan_rank(p->plan));
    size_t               mine = (size_t)lk__range_count(slice_of(p->plan, b, own));
    *more = false;
    memset(x->more_counts, 0, (size_t)members * sizeof *x->more_counts);
    memset(x->more_displacements, 0, (size_t)members * sizeof *x->more_displacements);
    for (int member = 0; member < members; member++) {
        int seen = 0;
        for (int k = 0; k < x->joined_count; k++) {
            if (x->joined[k].rank != member || seen++ != turn) continue;
            x->more_counts[member] = mine;
            x->more_displacements[member] = (size_t)k * x->slice_bytes / lk_dtype_size(b->dtype);
            *more = true;
            if (member == own) send = joined[k];
        }
    }
    set_slices(p, b, members, send != NULL);
    if (!*more) return LK_OK;
    return lk_comm_all_to_allv(lk__run_group(p, OUTER), send ? send : x->slices, x->counts, x->displacements, x->slices,
                               x->more_counts, x->more_displacements, b->dtype, NULL);
}

lk_status lk__expert_tree_reduce(lk_program *p, const lk__plan_bucket *b)
{
    lk__run_collectives *x = p->collectives;
    const char          *at[LK__LEAVES_MOST];
    int                  members = lk__mesh_extent(&p->plan->mesh, OUTER);
    lk__leaf_tree        t = {x->joined, x->joined_count, at, b->dtype};
    lk__range slice = slice_of(p->plan, b, lk__mesh_coordinate(&p->plan->mesh, OUTER, lk__plan_rank(p->plan)));
    char     *bucket = lk__gradient_set(p, 0) + b->offset;
    size_t    begin = (size_t)slice.first * lk_dtype_size(b->dtype);
    bool      more = true;
    join_sources(p, b, at);
    if (members == 1) return LK_OK;
    for (int turn = 0; more; turn++) {
        lk_status status = exchange_slices(p, b, members, turn, at, &more);
        if (status < 0) return status;
    }
    for (int k = 0; k < x->joined_count; k++) at[k] = x->slices + (size_t)k * x->slice_bytes;
    sum_range(&t, 0, p->division.parts, 0, (size_t)lk__range_count(slice), bucket + begin, x->scratch);
    if (p->plan->stage) return LK_OK;
    set_slices(p, b, members, true);
    return lk_comm_all_gatherv(lk__run_group(p, OUTER), bucket + begin, bucket, x->counts, x->displacements, b->dtype,
                               NULL);
}
