/* base/tree.h - the pairwise tree: the one order in which the values of ranks and of leaves are combined, so that every
 * backend, kernel and number of ranks gives the same bits. Over 8 leaves it is ((0 1)(2 3))((4 5)(6 7)). Where n is not
 * a power of two, the left subtree has the largest power of two below n and the right one the rest, split in the same
 * way: 0…3 and 4…6 for 7. test_tree.c compares these functions with that definition. */
#ifndef LK__TREE_H
#define LK__TREE_H

#include <stdbool.h>

/* Leaves of the left subtree of n leaves; n is 2 or more. */
static inline int lk__tree_left(int n) { return 1 << (31 - __builtin_clz((unsigned)n - 1)); }

/* For leaves that come one after the other, from 0 to n-1, onto a stack of partial results: how often the top two
 * results are to be combined into one once leaf `leaf` is on it. After the last leaf one result remains. The stack
 * holds at most lk__tree_depth. */
static inline int lk__tree_merges(int leaf, int n)
{
    int pairs = __builtin_ctz((unsigned)leaf + 1);
    return leaf + 1 < n ? pairs : pairs + __builtin_popcount((unsigned)n) - 1;
}

static inline int lk__tree_depth(int n) { return n < 2 ? 1 : 33 - __builtin_clz((unsigned)n - 1); }

/* Leaves of the largest subtree of the tree over n leaves that begins with leaf `first` and has none from `end` on. */
static inline int lk__tree_subtree(int n, int first, int end)
{
    int low = 0, high = n;
    while (low != first || high > end) {
        int middle = low + lk__tree_left(high - low);
        if (first < middle)
            high = middle;
        else
            low = middle;
    }
    return high - low;
}

/* Whether n leaves in `parts` equal parts make every part a whole subtree: the tree over each, then the tree over the
 * parts, is the tree over all. */
static inline bool lk__tree_nests(int n, int parts)
{
    int each = n / parts;
    return n % parts == 0 && (each & (each - 1)) == 0;
}

#endif
