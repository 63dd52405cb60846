/* plan/expert_leaves.h - gradients of experts that are split over ranks (experts.h), where the batch has leaves
 * (leaf_stack.h). A run computes with the rows of one leaf of every rank along expert. These ranks are its sources, and
 * the run computes gradients for each of their leaves. Each source has its own sets, in which its leaves are added as
 * they would be on that rank: this rank's sets are those of the plan, and the sets of other sources come after
 * everything else in the region of gradients. These sums are completed when the bucket is reduced
 * (run/expert_tree.c). */
#ifndef LK__PLAN_EXPERT_LEAVES_H
#define LK__PLAN_EXPERT_LEAVES_H

#include "plan/leaf_stack.h"

static inline bool lk__plan_expert_leaves(const lk_plan *p) { return p->expert_axes && p->parallel.leaves; }

/* Whether a bucket has sets of sources. */
static inline bool lk__bucket_has_sources(const lk_plan *p, const lk__plan_bucket *b)
{
    return b->experts && lk__plan_expert_leaves(p);
}

static inline int lk__plan_sources(const lk_plan *p) { return lk__mesh_extent(&p->mesh, p->expert_axes); }
static inline int lk__plan_own_source(const lk_plan *p)
{
    return lk__mesh_coordinate(&p->mesh, p->expert_axes, lk__plan_rank(p));
}
/* The part of the batch that a source has, of those with which `rank` exchanges rows. */
static inline int lk__source_part(const lk_plan *p, int rank, int source)
{
    return lk__plan_batch_part_of(p, lk__mesh_member(&p->mesh, p->expert_axes, rank, source));
}

/* The leaf of a source whose rows are in the run that has this rank's leaves part … part + each - 1, and the set in
 * which its gradients are made. count 0: it has none there (schedule.c, leaves_of_run). */
lk__leaf_sum lk__source_leaf(const lk_plan *plan, int source, int part, int each);

/* Where a bucket of a source's set is in the region of gradients; and the bytes after the plan's own sets. */
size_t lk__source_set(const lk_plan *plan, const lk__plan_bucket *bucket, int source, int set);
size_t lk__source_bytes(const lk_plan *plan);

/* The state of experts whose gradient the node makes, leaf by leaf; -1: none. */
int lk__source_gradient(const lk_plan *plan, const lk__plan_list *list, const lk__graph_node *node);
/* evaluation.c: statistics of the batch that the model recorded, such as how many tokens experts have, become
 * statistics of each leaf. */
void lk__pass_leaf_statistics(lk__plan_list *list);
/* The bucket that contains the gradient of a state. */
const lk__plan_bucket *lk__gradient_bucket(const lk_plan *plan, size_t state);

#endif
