/* plan/verify_schedule.h - verifies a schedule: walks its runs, instruction by instruction, and tracks what every byte
 * holds. No instruction reads what is not there (another value, another micro-batch, a sum that lacks a part or the
 * other ranks'), nor what a collective in flight writes; none writes what such a collective reads or writes, nor a
 * slice that another rank owns; every start has one wait; every trained state is updated once, after the report of all
 * ranks. And all ranks have the same order of collectives.
 *
 * It runs where LOCKSTEP_VERIFY_SCHEDULE=1 is set, as in every test, and in debug builds. */
#ifndef LK__PLAN_VERIFY_SCHEDULE_H
#define LK__PLAN_VERIFY_SCHEDULE_H

#include "plan/access.h"

typedef struct lk__plan_checked {
    const lk_plan               *plan;
    lk__plan_group               group;
    const lk__plan_list         *list; /* of all runs */
    const lk__plan_instructions *instructions;
    const lk__plan_schedule     *schedule;
    const lk__plan_owned        *pieces; /* that this rank updates of a shared state */
    size_t                       pieces_count;
    const char                  *name; /* of the schedule */
} lk__plan_checked;

/* LK_EMISMATCH: `text` is a sentence that names run, instruction and value, and what is wrong. */
lk_status lk__schedule_verify(const lk__plan_checked *check, char *text, size_t bytes);
/* All schedules of a plan, as its programs make them. A failure is an internal error, set on the context. */
lk_status lk__plan_verify(const lk_plan *plan, lk__plan_group group);
/* Whether programs verify their schedules: in debug builds, or where the environment asks for it. */
bool lk__schedule_verifies(const lk_context *context);

/* ---- collective_order.c ---- */

/* What a collective of a schedule is to the ranks that take part in it. */
typedef struct lk__plan_collective {
    lk__plan_action action;
    lk__op          op;       /* of a start */
    int             bucket;   /* -1: none */
    int64_t         elements; /* of its operand; 0: known when it runs */
    lk_dtype        type;
    int             group; /* lk__op_group of a node, 0 for all ranks */
    unsigned        axes;  /* of the mesh, along which the group of a node is */
    bool            queued; /* on the device's streams, where it is not compared when it runs */
} lk__plan_collective;

typedef struct lk__plan_order_list {
    lk__plan_collective *all;
    size_t               count, capacity;
} lk__plan_order_list;

/* Appends the collectives of a schedule to `order`. */
lk_status lk__collective_order(const lk__plan_checked *check, lk__plan_order_list *order);
/* The same for a kind of schedule of a plan; does nothing if the plan has none. */
lk_status lk__collective_order_of(const lk_plan *plan, lk__plan_group group, lk__schedule_kind kind,
                                  lk__plan_order_list *order);
void      lk__collective_order_free(lk_context *context, lk__plan_order_list *order);
/* One of them as text; "none" after the last. */
void lk__collective_text(const lk__plan_order_list *order, size_t index, char *text, size_t bytes);
/* LK_EMISMATCH: the first difference of two ranks, as a sentence. */
lk_status lk__collective_order_compare(const lk__plan_order_list *a, int rank_a, const lk__plan_order_list *b,
                                       int rank_b, char *text, size_t bytes);

#endif
