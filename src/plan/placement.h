/* plan/placement.h - how values are placed along one axis of the mesh that does not split the batch: every rank has all
 * of a value (replicated), a part of it (split along a dimension), or a summand of it (partial). The pass has two
 * halves: one finds placements along the factors of operations (graph/factor.h), the other rewrites the list's graph
 * to what one rank computes, with local shapes and with collectives between placements that do not fit. */
#ifndef LK__PLAN_PLACEMENT_H
#define LK__PLAN_PLACEMENT_H

#include "plan/plan.h"

typedef enum lk__placement_kind { LK__PLACE_REPLICATED, LK__PLACE_SPLIT, LK__PLACE_PARTIAL } lk__placement_kind;

/* The placement of a value along one axis. A dimension that is split consists of `outer` repetitions, each of which is
 * cut into as many equal parts as the axis has ranks: 1, but where dimensions were merged, such as (batch tokens) with
 * the tokens cut, or where several things lie side by side, such as queries, keys and values. Where the dimension has
 * the run-time count, the repetitions are its samples, and `outer` is their capacity. */
typedef struct lk__placement_value {
    lk__placement_kind kind;
    int                dim;
    int64_t            outer;
    /* Above 0, the axis is factored: this many neighbours have copies of each part, and there are extent / copies
     * parts. PARTIAL: each part is a sum over its copies that is still to be made. */
    int copies;
    /* Not 0: things of unequal extents side by side, each of which is cut, as lk__plan_cut has them; `outer` is 1. */
    int64_t segment[LK__CUT_SEGMENTS];
} lk__placement_value;

/* What a node reads and makes. Where that differs from how the value is held, the rewriter inserts a collective or a
 * local cut. */
enum {
    LK__PLACE_NO_FACTOR = -1, /* every rank computes all of it */
    /* A slice of one of several things side by side, each of which is cut: so are start and length; or what puts them
     * side by side. */
    LK__PLACE_SLICE = -2
};
typedef struct lk__placement_node {
    int factor; /* of its operation's line, which is cut; LK__PLACE_NO_FACTOR: all operands are replicated */
    /* Above 0: it is cut into extent / copies parts, and where `second` is not LK__PLACE_NO_FACTOR that factor into
     * `copies`. */
    int copies, second;
    /* out PARTIAL: a sum over the axis is still to be made. Inputs that are added after the sum, once (lk__factors'
     * `added`), then come in the form in which the sum is held, and the rewriter adds them after the collective. */
    lk__placement_value in[LK__MAX_IN], out[LK__MAX_OUT];
} lk__placement_node;

typedef struct lk__placements {
    unsigned axis;
    int      extent;
    /* How each value is held between nodes: never PARTIAL. Inputs, numbers and outputs that the caller reads are
     * replicated; the gradient of a state is held as the state is. */
    lk__placement_value *values;
    size_t               values_count;
    lk__placement_node  *nodes; /* of those that are not dead */
    size_t               nodes_count;
} lk__placements;

/* Whether both are cut at the same places, if they are: one may have copies. */
static inline bool lk__placement_alike(const lk__placement_value *a, const lk__placement_value *b)
{
    for (int i = 0; i < LK__CUT_SEGMENTS; i++)
        if (a->segment[i] != b->segment[i]) return false;
    return a->dim == b->dim && a->outer == b->outer;
}

static inline bool lk__placement_equal(const lk__placement_value *a, const lk__placement_value *b)
{
    bool cut = a->kind == LK__PLACE_SPLIT || a->copies;
    return a->kind == b->kind && a->copies == b->copies && (!cut || lk__placement_alike(a, b));
}

/* The ranks among which parts are distributed: those along the axis, or across groups of copies. */
static inline unsigned lk__placement_axes(const lk__placement_value *place, unsigned axis)
{
    return place->copies ? lk__axes_across(axis, place->copies) : axis;
}

typedef struct lk__placement_rules {
    unsigned    axis;
    bool        placed;          /* states are split as plan->states says; otherwise what is found is written there */
    bool        whole_sequences; /* what lies between products is not split */
    const char *tactics;         /* NULL: none */
} lk__placement_rules;

/* placement.c: finds placements for a list whose gradients are made. Nodes that nothing reads die, and fused ones are
 * divided where a sum must come between their parts. *forward: where the nodes of forward end. Fails with a
 * sentence. */
lk_status lk__placements_find(lk_plan *plan, lk__plan_list *list, const lk__placement_rules *rules, size_t *forward,
                              lk__placements *placements);
void      lk__placements_free(lk_context *context, lk__placements *places);
/* placement_coupled.c: divides nodes along coupled factors, so that these can be cut: before placements are found.
 * Then, of those none of whose nodes makes a list of parts that are cut (by node), makes one node again; false: there
 * were none. */
lk_status lk__placement_divide_coupled(const lk_plan *plan, lk_graph *graph, const lk__placement_rules *rules,
                                       size_t *forward);
bool      lk__placement_join_coupled(lk_graph *graph, const bool *cut);
/* placement_packed.c: lets attention read slices of what is packed, where it has fewer heads of keys than ranks. */
lk_status lk__placement_divide_packed(lk_graph *graph, int extent, size_t *forward);
/* placement_rewrite.c: rewrites the list's graph to what this rank computes. */
lk_status lk__placements_apply(lk_plan *plan, lk__plan_list *list, const lk__placements *places, size_t *forward);
/* merge_sums.c: then adds summands of one value before their collective, not after it. */
lk_status lk__plan_merge_sums(lk_plan *plan, lk__plan_list *list, size_t *forward);

#endif
