/* plan/schedule.h - schedules: the runs of sections of which a step, an evaluation or a step of generation consists. Known before anything
 * runs, so that they can be verified, printed and compared. */
#ifndef LK__PLAN_SCHEDULE_H
#define LK__PLAN_SCHEDULE_H

#include "plan/instruction.h"

/* One run of a section of a list. */
typedef struct lk__schedule_run {
    const lk__plan_list *list;
    lk_section           section, through; /* from the first to the last of them: usually the same */
    int                  slots;            /* that advance together, from 0 on */
    int                  part;  /* what slot 0 computes: micro-batch, or leaf of this rank; the others the next */
    int                  set;   /* of slot 0's gradients; the others have the next */
    unsigned             flags; /* conditions: instruction.h */
} lk__schedule_run;

typedef struct lk__plan_schedule {
    lk__schedule_run *runs;
    size_t            count;
} lk__plan_schedule;

typedef enum lk__schedule_kind {
    LK__SCHEDULE_STEP,   /* forward and backward of all micro-batches or leaves, sync, update */
    LK__SCHEDULE_HELD,   /* the same by hand, with no_sync: buckets are reduced in the section sync */
    LK__SCHEDULE_QUEUED, /* a step that is queued without waiting for its results */
    LK__SCHEDULE_EVALUATION,
    LK__SCHEDULE_GENERATION, /* a step of it that is queued */
    LK__SCHEDULE_WEIGHTS,    /* of several losses, of one micro-batch */
    LK__SCHEDULE_COUNT
} lk__schedule_kind;

const char *lk__schedule_name(lk__schedule_kind kind);
/* Without runs where the plan has none of that kind. */
lk_status lk__plan_schedule_make(const lk_plan *plan, lk__schedule_kind kind, lk__plan_schedule *schedule);
void      lk__plan_schedule_free(lk_context *context, lk__plan_schedule *schedule);

/* The only run of the evaluation's list, or of the list of weights. */
lk__schedule_run lk__schedule_run_of(const lk__plan_list *list, unsigned flags);

#endif
