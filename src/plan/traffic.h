/* plan/traffic.h - which ranks a collective of a plan joins, and how much each of them sends. */
#ifndef LK__PLAN_TRAFFIC_H
#define LK__PLAN_TRAFFIC_H

#include "plan/plan.h"

/* The axes of the mesh along which it has several ranks; 0: it has one. */
unsigned lk__plan_collective_axes(const lk_plan *plan, const lk__graph_node *node);
/* Bytes that a rank sends in it at its capacity; it receives the same number. */
double lk__plan_collective_bytes(const lk_plan *plan, const lk_graph *graph, const lk__graph_node *node);

#endif
