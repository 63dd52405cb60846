/* plan/cost.h - what the two estimates of a step share: cost.c for ranks that only split the batch, cost_mesh.c for
 * ranks that also exchange values within forward and backward, or have slices of the state. */
#ifndef LK__PLAN_COST_H
#define LK__PLAN_COST_H

#include "plan/plan.h"

typedef struct lk__plan_cost_output {
    lk_text_callback write; /* NULL: nothing is printed */
    void            *user;
} lk__plan_cost_output;

__attribute__((format(printf, 2, 3))) void lk__cost_print(const lk__plan_cost_output *output, const char *format, ...);

/* cost_measured.c: a node of the training graph; an operation with that amount of work, in seconds by the device's
 * typical rates, where times were measured. */
double lk__cost_node(const lk_plan *plan, const lk_rates *rates, const lk_graph *graph, const lk__graph_node *node);
double lk__cost_of_work(const lk_plan *plan, lk__op op, double work);
/* Seconds for this many bytes, read and written, in the memory of gradients and states. */
double lk__cost_of_bytes(const lk_plan *plan, const lk_rates *rates, double bytes);
/* Seconds of the instruction at a position of the training order; 0 for collectives. */
double lk__cost_instruction(const lk_plan *plan, const lk_rates *rates, size_t position);
/* Seconds of all instructions from `begin` up to, but not including, `end`. */
double lk__cost_section(const lk_plan *plan, const lk_rates *rates, size_t begin, size_t end);

/* Seconds of adding the gradients of a micro-batch to the earlier ones; 0: there is one micro-batch, or leaves. */
double lk__cost_add_sets(const lk_plan *plan, const lk_rates *rates);

/* How many ranks each update a part of the same states. */
static inline double lk__cost_owners(const lk_plan *plan)
{
    return plan->shared || plan->stage ? lk__plan_owners(plan) : 1;
}

/* cost_mesh.c: whether the plan needs it, and its critical path in seconds. */
bool   lk__cost_has_axes(const lk_plan *plan);
double lk__cost_mesh(const lk_plan *plan, const lk_rates *rates, const lk__plan_cost_output *output);

/* cost_pipeline.c: seconds in which all micro-batches pass the stages; own: seconds of one micro-batch on this rank. */
double lk__cost_pipeline(const lk_plan *plan, const lk_rates *rates, double own, const lk__plan_cost_output *output);

#endif
