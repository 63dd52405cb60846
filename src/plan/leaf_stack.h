/* plan/leaf_stack.h - the sets of gradients in which a rank adds the gradients of its leaves, in their tree. Leaves are
 * pushed one after the other onto a stack of partial sums, each of a whole subtree, and the top two are added as soon
 * as they are the two halves of one subtree: the number of sets is the depth of the tree, not the number of leaves. In
 * the end the stack has the largest subtrees that the rank's leaves hold whole, the first of them in set 0. Where a
 * batch has many leaves, a kernel may add the leaves of a subtree itself and push their sum onto the stack.
 *
 * Leaves that advance together, from one sum over all of them to the next, each have a set, because all of them are
 * active at once.
 *
 * Leaves are numbered within a part of the batch, from its first leaf. */
#ifndef LK__PLAN_LEAF_STACK_H
#define LK__PLAN_LEAF_STACK_H

#include "base/tree.h"
#include "plan/plan.h"

/* A partial sum on the stack. */
typedef struct lk__leaf_sum {
    int first, count; /* leaves */
    int set;
} lk__leaf_sum;

static inline bool lk__plan_leaves_together(const lk_plan *p)
{
    return p->parallel.leaves && p->syncs && !p->batch_leaves;
}

/* Leaves of the largest subtree that begins with `leaf` and ends before `end`. */
static inline int lk__leaf_subtree_of(const lk_plan *p, int part, int leaf, int end)
{
    int first = (int)lk__plan_leaves(p, part).first;
    return lk__tree_subtree(p->parallel.leaves, first + leaf, first + end);
}

/* The stack once the leaves before `end` are on it, at most LK__LEAVES_MOST sums; returns how many. sums NULL: only
 * counts. */
static inline int lk__leaf_stack(const lk_plan *p, int part, int end, lk__leaf_sum *sums)
{
    bool together = lk__plan_leaves_together(p);
    int  height = 0;
    for (int leaf = 0, count; leaf < end; leaf += count, height++) {
        count = lk__leaf_subtree_of(p, part, leaf, end);
        if (sums) sums[height] = (lk__leaf_sum){leaf, count, together ? leaf : height};
    }
    return height;
}

/* The set in which a leaf's gradients are made, or the sum of a subtree that begins with it. */
static inline int lk__leaf_set(const lk_plan *p, int part, int leaf)
{
    return lk__plan_leaves_together(p) ? leaf : lk__leaf_stack(p, part, leaf, NULL);
}

/* How often the top two sums are added once the sum of leaves `leaf` … leaf + count - 1 is on the stack. */
static inline int lk__leaf_merges(const lk_plan *p, int part, int leaf, int count)
{
    return lk__leaf_stack(p, part, leaf, NULL) + 1 - lk__leaf_stack(p, part, leaf + count, NULL);
}

/* Sets that a rank needs: the same number on all ranks, since their memory is shared. */
static inline int lk__leaf_sets(const lk_plan *p)
{
    int most = 1;
    for (int part = 0; part < lk__plan_batch_parts(p); part++)
        for (int leaf = 0, here = (int)lk__range_count(lk__plan_leaves(p, part)); leaf < here; leaf++) {
            int set = lk__leaf_set(p, part, leaf);
            if (set + 1 > most) most = set + 1;
        }
    return most;
}

/* ---- runs ---- */

/* The most leaves that a rank has. */
static inline int lk__plan_most_leaves(const lk_plan *p)
{
    int parts = lk__plan_batch_parts(p);
    return (p->parallel.leaves + parts - 1) / parts;
}

/* Whether ranks that have different samples exchange anything but gradients while they compute (parameters of stage 3),
 * so that all of them must run equally often. */
bool lk__plan_runs_alike(const lk_plan *plan);
/* Forward runs of a step, where leaves run one after the other or as micro-batches of leaves; on the ranks that have
 * the most. Without leaves: the micro-batches. */
int lk__plan_runs(const lk_plan *plan);

#endif
