/* run/leaf_tree.h - the tree over leaves, for sums that are in several places: shared by leaf_tree.c and
 * expert_tree.c. */
#ifndef LK__RUN_LEAF_TREE_H
#define LK__RUN_LEAF_TREE_H

#include "run/collective.h"

enum { LK__LEAF_TREE_BLOCK = 4096 }; /* elements of a tree's intermediate results */

/* Subtrees that are there, and where each of them is. */
typedef struct lk__leaf_tree {
    const lk__run_subtree *subtrees;
    int                    count;
    const char *const     *at;
    lk_dtype               type;
} lk__leaf_tree;

/* The address of the sum over leaves lo … hi-1 of `count` elements from byte `offset` on, at most LK__LEAF_TREE_BLOCK.
 * A sum computed here is in scratch (lk__leaf_tree_scratch_bytes). */
const char *lk__leaf_tree_walk(const lk__leaf_tree *tree, int lo, int hi, size_t offset, size_t count, char *scratch);

#endif
