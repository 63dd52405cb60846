/* plan/sum_parts.h - one result in every layout (lk_parallel.reproducible_layout): every sum along a factor that an
 * axis of the mesh may cut is made of parts (base/sum_parts.h), which follow from the graph alone. */
#ifndef LK__PLAN_SUM_PARTS_H
#define LK__PLAN_SUM_PARTS_H

#include "plan/placement.h"

/* Gives the nodes of a list their parts. After the gradients are made, before anything is placed, on one rank, too. */
lk_status lk__pass_sum_parts(lk_plan *plan, lk__plan_list *list, size_t *forward); /* forward: where it ends */
/* Whether leaves must run one after the other, since all of them together would have too many logits at once. */
bool lk__sum_parts_needs_leaves(const lk_plan *plan);
/* Whether a node's sums over the ranks that these placements leave to be made have the bits of the whole. */
bool lk__sum_parts_keep(const lk_plan *plan, const lk__plan_list *list, const lk__graph_node *node,
                        const lk__placement_node *place, int extent);
/* The same for all nodes; fails with a sentence. */
lk_status lk__sum_parts_check(const lk_plan *plan, const lk__plan_list *list, const lk__placements *placements);

#endif
