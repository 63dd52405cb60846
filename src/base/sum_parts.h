/* base/sum_parts.h - sums along a factor that an axis of the mesh may cut, such as the width over which a product sums,
 * in one order for every number of ranks: the whole factor consists of parts, each part is summed by itself, and the
 * parts' sums are added in the pairwise tree of base/tree.h. A rank adds its own parts, which are a subtree, and the
 * collective over the axis adds the ranks in the tree. test_sum_parts.c compares it with that definition. */
#ifndef LK__SUM_PARTS_H
#define LK__SUM_PARTS_H

#include "base/split.h"
#include "base/tree.h"

enum {
    LK__SUM_PARTS = 8,    /* of a factor, at most */
    LK__SUM_SEGMENTS = 3, /* side by side in a dimension, at most */
};

/* An attribute of a node (base/op.h): how it adds along the factor. */
typedef struct lk__op_summation {
    int64_t parts; /* of the whole factor; 0 or 1: it is one sum */
    int64_t unit;  /* elements that no boundary of parts divides, such as a head's width; 0: 1 */
    /* Several things side by side, each of which is cut, such as queries, keys and values: their extents, and 0 past
     * the last. A part consists of that part of each of them. All 0: the factor is one thing. */
    int64_t segment[LK__SUM_SEGMENTS];
} lk__op_summation;

/* Where part i of a thing of this extent begins; i == parts: its end. The parts are as equal as the unit allows. A
 * half, a quarter or an eighth of the units is a run of whole parts where it consists of whole units. */
static inline int64_t lk__sum_part_begin(int64_t whole, int64_t unit, int64_t parts, int64_t i)
{
    if (unit < 1) unit = 1;
    return i == parts ? whole : lk__split(whole / unit, parts, i) * unit;
}

/* The parts that are in an operand. Part i consists of the elements begin[s][i] up to begin[s][i + 1] of each segment
 * s, in this order. */
typedef struct lk__sum_parts {
    int     count; /* 1: all of it is one sum */
    int     segments;
    int64_t begin[LK__SUM_SEGMENTS][LK__SUM_PARTS + 1];
} lk__sum_parts;

/* The parts of an operand with `extent` of the `whole` elements of the dimension, which begins at `first`: with
 * segments, at `first` in the first one, and has the same share of each. False: it does not consist of whole parts. */
bool lk__sum_parts_of(const lk__op_summation *sum, int64_t whole, int64_t first, int64_t extent, lk__sum_parts *parts);
/* Whether every one of `ranks` equal shares of the dimension consists of whole parts that are a subtree, so that the
 * sums of the ranks, added in the tree, are the sums of the whole. */
bool lk__sum_parts_nest(const lk__op_summation *sum, int64_t whole, int ranks);

#endif
