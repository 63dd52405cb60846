/* plan/pipeline_schedule.h - the order in which the stages of a pipeline compute the micro-batches of a step, and its
 * simulation: the lists of all stages are simulated together, with their slots, before the first step. A
 * list that would deadlock or overwrite what is still needed is refused. */
#ifndef LK__PLAN_PIPELINE_SCHEDULE_H
#define LK__PLAN_PIPELINE_SCHEDULE_H

#include "base/base.h"

#include <lockstep/plan.h>

typedef enum lk__pipeline_schedule_kind {
    LK__PIPELINE_FORWARD,
    LK__PIPELINE_BACKWARD, /* all of it, or without the gradients that WEIGHTS computes */
    LK__PIPELINE_WEIGHTS,
    LK__PIPELINE_KINDS
} lk__pipeline_schedule_kind;

typedef struct lk__pipeline_schedule_run {
    lk__pipeline_schedule_kind kind;
    int                        micro_batch, slot;
} lk__pipeline_schedule_run;

enum { LK__PIPELINE_PARTS = 1 << 16 }; /* micro-batches of a step, at most: with a value's number they are a tag */

typedef struct lk__pipeline_schedule_shape {
    int                  stages, micro_batches;
    lk_pipeline_schedule schedule;
    bool                 early; /* 1f1b is one forward more ahead, which hides the time of messages */
} lk__pipeline_schedule_shape;

const char *lk__pipeline_kind_name(lk__pipeline_schedule_kind kind); /* "forward" */

/* Micro-batches whose activations a stage has at once. */
int lk__pipeline_slots(const lk__pipeline_schedule_shape *shape, int stage);
/* How many runs a stage has, and the runs themselves. Backward runs are in the order of micro-batches, whatever the
 * schedule, and with them the sums of gradients. */
int  lk__pipeline_count(const lk__pipeline_schedule_shape *shape);
void lk__pipeline_list(const lk__pipeline_schedule_shape *shape, int stage, lk__pipeline_schedule_run *runs);

/* ---- pipeline_simulate.c ---- */

typedef struct lk__pipeline_schedule_stage {
    const lk__pipeline_schedule_run *runs;
    int                              count, slots;
    double                           seconds[LK__PIPELINE_KINDS]; /* of one run */
} lk__pipeline_schedule_stage;

/* With every run of this kind of stage `from`, values of its micro-batch go to the run of that kind of stage `to`. */
typedef struct lk__pipeline_schedule_transfer {
    int                        from, to;
    lk__pipeline_schedule_kind kind;
    double                     seconds;
} lk__pipeline_schedule_transfer;

typedef struct lk__pipeline_schedule_event {
    int                       stage;
    lk__pipeline_schedule_run run;
    double                    begin, end;
} lk__pipeline_schedule_event;

typedef struct lk__pipeline_schedule_job {
    const lk__pipeline_schedule_stage    *stages;
    int                                   count, micro_batches;
    const lk__pipeline_schedule_transfer *transfers;
    int                                   transfers_count;
} lk__pipeline_schedule_job;

/* Fails where a list does not have each micro-batch once, where two stages wait for each other, where a slot is
 * overwritten that is still read, and where two stages disagree on the order of messages; the error names the runs.
 * *seconds: from the first run to the end of the last. events: NULL, or room for all runs, in the order of stages. */
lk_status lk__pipeline_simulate(lk_context *context, const lk__pipeline_schedule_job *job,
                                lk__pipeline_schedule_event *events, double *seconds);

#endif
