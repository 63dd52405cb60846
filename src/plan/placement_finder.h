/* plan/placement_finder.h - the state of the search for placements along one axis, for placement.c. */
#ifndef LK__PLACEMENT_FINDER_H
#define LK__PLACEMENT_FINDER_H

#include "plan/placement_factor.h"

/* An operand of a node. */
typedef struct lk__placement_use {
    int  node, operand;
    bool output;
} lk__placement_use;

/* What a trial has changed: the choice of a node, or, with node -1, how a value is held. It was without placement
 * before. */
typedef struct lk__placement_change {
    int node, value;
} lk__placement_change;

typedef struct lk__placement_finder {
    lk_plan               *plan;
    lk__plan_list         *list;
    lk_graph              *g;
    int                    extent;
    size_t                 nodes, values, forward;
    lk__placement_factors *factors; /* by node */
    lk__placement_choice  *choice;  /* by node */
    lk__placement_value   *held;    /* by value: REPLICATED or SPLIT */
    bool                  *pinned;  /* by value: it stays as it is */
    int                   *twin;    /* by value: the gradient of a state, and the state of a gradient; -1 */
    lk__placement_use     *uses;    /* by value, from first_use[v] to first_use[v + 1] */
    size_t                *first_use, uses_count;
    lk__placement_change  *changes; /* of this trial; values from `next` on have not been propagated */
    size_t                 changes_count, changes_capacity, next;
    lk__placement_value   *paid;         /* by value, and section: a form in which a reader needed it */
    int                    blocked;      /* readers that need the whole value, of which this trial has parts */
    double                 arithmetic;   /* of nodes that this trial cuts */
    int                    chosen;       /* nodes that this trial cuts */
    bool                   cuts_state;   /* it splits the weight of a product */
    bool                   keeps_states; /* no state is split from now on */
} lk__placement_finder;

lk_status lk__placement_finder_init(lk__placement_finder *finder);
void      lk__placement_finder_free(lk__placement_finder *finder);

/* Whether states that a node writes would be written as they are held, and sums have the bits that they must have. */
bool lk__placement_is_allowed(const lk__placement_finder *finder, int node, lk__placement_choice choice);

/* A trial: places the node, or the value, and all that follows from it. */
lk_status lk__placement_try_node(lk__placement_finder *finder, int node, lk__placement_choice choice);
lk_status lk__placement_try_value(lk__placement_finder *finder, int value, const lk__placement_value *place);
lk_status lk__placement_try_alone(lk__placement_finder *finder, int node,
                                  lk__placement_choice choice);          /* the values stay */
/* A state, and its gradient, stay as they are placed here; nothing follows before lk__placement_follow_states. */
void      lk__placement_hold_state(lk__placement_finder *finder, size_t state, const lk__placement_value *place);
lk_status lk__placement_follow_states(lk__placement_finder *finder);
void      lk__placement_undo(lk__placement_finder *finder);
void      lk__placement_keep(lk__placement_finder *finder);

/* placement_recorded.c: places what the model places itself. */
lk_status lk__placement_recorded(lk__placement_finder *finder, unsigned axis);

/* What the node reads and makes as placed so far. */
void   lk__placement_of_node(const lk__placement_finder *finder, int node, lk__placement_node *places);
double lk__placement_bytes(lk__placement_finder *finder); /* that are moved, in units of (extent - 1) / extent */

#endif
