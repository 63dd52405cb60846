/* plan/fuse.h - nodes that are computed by the kernel of a neighbour: the pass that fuses them, and the parts of a
 * fused node. */
#ifndef LK__PLAN_FUSE_H
#define LK__PLAN_FUSE_H

#include "plan/plan.h"

/* Fuses nodes by the patterns of their descriptors: those for which backward is derived from the fused node, or, with
 * `late`, the others. without: bits of lk__fusion_kind that are left out. */
lk_status lk__pass_fuse(lk__plan_list *list, bool late, unsigned without);

/* split.c: whether a node is fused of parts that can be computed one after the other; a fused max pool cannot, since
 * its index serves backward as the fused kernel writes it. */
bool lk__plan_is_fused(const lk__graph_node *node);
/* Divides the nodes for which `wants` returns true into their parts: the operation by itself, a sum, a function.
 * Readers read the same values as before, so it may run after the gradients are made, and fusion after it. */
typedef bool (*lk__plan_wants_split)(const lk_graph *graph, const lk__graph_node *node, void *user);
lk_status lk__plan_split_fused(lk_graph *graph, lk__plan_wants_split wants, void *user);

#endif
