/* plan/launch_group.h - which nodes of a list the device runs in one launch: found by patterns over the graph, before
 * the memory pass. */
#ifndef LK__PLAN_LAUNCH_GROUP_H
#define LK__PLAN_LAUNCH_GROUP_H

#include "plan/plan.h"

/* Finds the groups for which the device has kernels: groups of the update; of forward and backward, where steps are
 * queued; of a step of generation. After layout, and once the number of slots is known. */
lk_status lk__pass_launch_groups(lk__plan_list *list, const lk_plan *plan);

/* The calls and operations of a group, for a device. `call` returns the call of a node of the list. */
typedef struct lk__plan_group_calls {
    lk__device_group        group;
    const lk__kernel_call **calls;
    lk__op                 *ops;
    size_t                  bytes; /* of both arrays */
} lk__plan_group_calls;
typedef const lk__kernel_call *(*lk__plan_call_of)(void *user, int node);
lk_status lk__plan_group_gather(const lk__plan_list *list, const lk__plan_launch *launch, lk__plan_call_of call,
                                void *user, lk__plan_group_calls *calls);
void      lk__plan_group_free(lk_context *context, lk__plan_group_calls *calls);

/* For the memory pass. Until which position an operand or a result of the node at `position` must be kept: the end of
 * its group, some nodes more where it starts early, or `position`. Whether its result may replace an operand. After the
 * pass: removes groups of which some result overlaps what another node of the group reads or writes, in places that the
 * memory pass does not choose. */
size_t lk__launch_group_keeps(const lk__plan_list *list, size_t position);
bool   lk__launch_group_in_place(const lk__plan_list *list, size_t position);
void   lk__launch_group_check(lk__plan_list *list);

/* The group whose first node is at this position; -1: none. STEP_END: see lk__launch_group_step_end. */
int lk__launch_group_at(const lk__plan_list *list, size_t position);
int lk__launch_group_step_end(const lk__plan_list *list); /* -1: none */

#endif
