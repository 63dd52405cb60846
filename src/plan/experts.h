/* plan/experts.h - experts that are split over the ranks of an axis which also splits the batch.
 *
 * A value with a row for each assignment of a token to an expert has two forms. By source: the rows of this rank's
 * tokens, in the order of their experts, as they were recorded. By expert: the rows of all ranks' tokens that are
 * assigned to this rank's experts, ordered by expert, rank and assignment, which is the order that they have on a
 * single rank. The capacity of this form is the maximum that all ranks may send; the number of rows is known only when
 * the step runs.
 *
 *     by source ──exchange_rows──▶ by rank, then expert ──gather_rows──▶ by expert, and the reverse
 *
 * Operations on groups of rows (lk__graph_op.grouped) run by expert, with this rank's part of the weights; so do those
 * between them that compute each row by itself. Everything else runs by source. What ranks send to each other follows
 * from the offsets of all of them, which are gathered once for each grouping. */
#ifndef LK__PLAN_EXPERTS_H
#define LK__PLAN_EXPERTS_H

#include "plan/plan.h"

/* Splits the weights of experts over plan->expert_axes. Fails with a sentence if the model has no experts, or a number
 * that the ranks do not divide. */
lk_status lk__plan_split_experts(lk_plan *plan);
/* Whether ranks have different experts' parts of a state: its gradient needs no sum over them. */
bool lk__plan_is_expert(const lk_plan *plan, size_t state);
/* experts.c: rewrites the list's graph to what this rank computes. *forward: where the nodes of forward end. */
lk_status lk__pass_experts(lk_plan *plan, lk__plan_list *list, size_t *forward);

#endif
