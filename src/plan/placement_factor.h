/* plan/placement_factor.h - the factors of one node as placements of its operands: for placement.c. */
#ifndef LK__PLACEMENT_FACTOR_H
#define LK__PLACEMENT_FACTOR_H

#include "plan/placement.h"

/* An operand of a node, and how it is placed. */
typedef struct lk__placement_operand {
    bool                output;
    int                 index;
    lk__placement_value place;
} lk__placement_operand;

/* Where an operand has a factor. */
typedef struct lk__placement_axis {
    int     dim;      /* -1: nowhere */
    int     segments; /* several: it is the slowest factor of each */
    int64_t before;   /* extent of the slower factors of the dimension */
    int64_t segment[LK__CUT_SEGMENTS]; /* of several, where they have different extents: those */
} lk__placement_axis;

typedef struct lk__placement_factor {
    int                factor;
    int64_t            extent;
    bool               coupled; /* or at several places of an operand: cannot be cut */
    bool               fused;   /* the node must be divided before it is cut: a function is applied to the sum */
    unsigned           partial; /* outputs that are sums over its parts */
    unsigned           lists;   /* outputs that list its parts: every rank needs all of them */
    unsigned           added;   /* inputs that are added after such a sum */
    lk__placement_axis in[LK__MAX_IN], out[LK__MAX_OUT];
} lk__placement_factor;

typedef struct lk__placement_factors {
    lk__placement_factor *factor;
    int                   count;
} lk__placement_factors;

/* Of a node; none where its line does not fit. */
lk_status lk__placement_factors_find(const lk_graph *graph, const lk__graph_node *node, lk__placement_factors *factors);
void      lk__placement_factors_free(lk_context *context, lk__placement_factors *factors);

/* placement_segments.c: whether a node reads or makes what lies side by side, by which it can be cut; and that as a
 * factor. */
bool lk__placement_has_segments(const lk_graph *graph, const lk__graph_node *node);
void lk__placement_read_segments(const lk_graph *graph, const lk__graph_node *node, lk__placement_factor *factor);
/* The segments of unequal extents, with this sum, that an operand of a node has. */
bool lk__placement_find_segments(const lk__placement_factors *factors, int64_t extent,
                                 int64_t segment[LK__CUT_SEGMENTS]);

/* A factor that is cut in each of `repeat` repetitions of it. */
typedef struct lk__placement_choice {
    int     factor; /* index; -1: none */
    int64_t repeat;
    /* Above 0 the axis is factored: this factor is cut into extent / copies parts, and `second`, if it is not -1, into
     * `copies`: the groups of heads, and the heads of each. */
    int copies, second;
    /* Not 0: of the factor, things side by side, each of which is cut. */
    int64_t segment[LK__CUT_SEGMENTS];
} lk__placement_choice;

/* The placements of the node's operands; false: it cannot be cut into `extent` parts in this way. */
bool lk__placement_cut(const lk_graph *graph, const lk__graph_node *node, const lk__placement_factors *factors,
                       lk__placement_choice choice, int extent, lk__placement_node *places);
/* The choice that gives an input, or output, this placement; or, where the placement has copies and the node needs
 * none, the one that cuts each of them further. */
lk__placement_choice lk__placement_match(const lk_graph *graph, const lk__graph_node *node,
                                         const lk__placement_factors *factors, const lk__placement_operand *operand,
                                         int extent);

#endif
