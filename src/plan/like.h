/* plan/like.h - a plan whose states are split in the same way as the states of another plan, so that programs of both
 * can use one store. */
#ifndef LK__PLAN_LIKE_H
#define LK__PLAN_LIKE_H

#include "plan/plan.h"

/* For evaluation. The graphs have the same states in the same order, also those that this one does not read. */
lk_status lk__plan_create_like(lk_graph *graph, const lk_plan_config *config, const lk_plan *like, lk_plan **plan);

/* How lk__plan_create_placed knows it: the `place` of a placement whose `user` is the other plan. */
void lk__plan_place_like(void *user, const lk_plan *plan, size_t state, lk__plan_array array, lk__plan_splits *splits);
static inline bool lk__plan_is_like(const lk__plan_placement *placement)
{
    return placement && placement->place == lk__plan_place_like;
}
void lk__plan_copy_splits(lk_plan *plan, const lk_plan *like);

#endif
