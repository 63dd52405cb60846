/* plan/placement.h - how values are placed along one axis of the mesh that does not split the batch: every rank has all
 * of a value (replicated), a part of it (split along a dimension), or a summand of it (partial). The pass has two
 * halves: one finds placements along the factors of operations (graph/factors.h), the other rewrites the list's graph
 * to what one rank computes, with local shapes and with collectives between placements that do not fit. */
#ifndef LK__PLAN_PLACEMENT_H
#define LK__PLAN_PLACEMENT_H

#include "plan/plan.h"

typedef enum lk__place_kind { LK__PLACE_REPLICATED, LK__PLACE_SPLIT, LK__PLACE_PARTIAL } lk__place_kind;

enum { LK__PLACE_SEGMENTS = 3 };

/* Of a value along one axis. The parts of a split are equal. */
typedef struct lk__place {
    lk__place_kind kind;
    int            dim; /* SPLIT: the dimension */
    /* The dimension consists of so many repetitions, each of which is cut: 1, but where dimensions were merged, such as
     * (batch tokens) with the tokens cut. */
    int64_t outer;
    /* of a repetition, each cut by itself: 1, or 3 of packed queries, keys, values */
    int     segments;
    int64_t segment[LK__PLACE_SEGMENTS]; /* whole extents; their sum times outer is that of the dimension */
} lk__place;

/* What a node reads and makes. Where that differs from how the value is held, the rewriter inserts a collective or a
 * local cut. */
typedef struct lk__place_node {
    int       factor; /* of its operation's line, which is cut; -1: every rank computes all of it */
    lk__place in[LK__MAX_IN], out[LK__MAX_OUT]; /* out PARTIAL: a sum over the axis is still to be made */
} lk__place_node;

typedef struct lk__places {
    unsigned        axis;
    int             extent;
    lk__place      *values; /* how each value is held between nodes: never PARTIAL */
    size_t          values_count;
    lk__place_node *nodes;
    size_t          nodes_count;
} lk__places;

/* placement.c: finds them for a list whose gradients are made. Fails with a sentence that names operation, line and
 * axis. */
lk_status lk__places_find(const lk_plan *plan, const lk__plan_list *list, unsigned axis, lk__places *places);
void      lk__places_free(lk_context *context, lk__places *places);
/* placement_rewrite.c: rewrites the list's graph to what this rank computes. */
lk_status lk__places_apply(lk_plan *plan, lk__plan_list *list, const lk__places *places);

#endif
