/* plan/schedule.h - schedules: the runs of sections of which a step, an evaluation or a step of generation consists.
 * They are known before anything runs, so that they can be verified, printed and compared. */
#ifndef LK__PLAN_SCHEDULE_H
#define LK__PLAN_SCHEDULE_H

#include "plan/instruction.h"

/* What a run of LK_BACKWARD computes: all of it, what other stages wait for, or the gradients of weights that can wait
 * (lk__plan_ranges.weights). */
typedef enum lk__schedule_half { LK__HALF_BOTH, LK__HALF_INPUTS, LK__HALF_WEIGHTS } lk__schedule_half;

/* Whether a run starts the receives of its section from other stages: first, before, or alone. */
typedef enum lk__schedule_receives {
    LK__RECEIVES_FIRST,
    LK__RECEIVES_STARTED,
    LK__RECEIVES_ALONE
} lk__schedule_receives;

/* One run of a section of a list. */
typedef struct lk__schedule_run {
    const lk__plan_list  *list;
    lk_section            section, through; /* from the first to the last of them: usually the same */
    lk__schedule_half     half;
    lk__schedule_receives receives;
    int                   slot;  /* the first: that which says "slot 0" below */
    int                   slots; /* that advance together, from there on */
    int                   part;  /* what slot 0 computes: micro-batch, or leaf of this rank; the others the next */
    int                   each;  /* how many of them a slot computes: of leaves that are one batch several; else 1, */
                                 /* or 0 where other ranks have more leaves */
    int      set;                /* of slot 0's gradients; the others have the next */
    int      row;                /* the same of slot 0's numbers (lk__plan_division) */
    int      number;             /* of slot 0 among the parts of all ranks: lk__kernel_step.part */
    bool     writes_buffers;     /* slot 0 writes running statistics, unless another rank writes them for this one */
    unsigned flags;              /* conditions: instruction.h */
} lk__schedule_run;

/* The instructions of a run: from the first up to, and without, the second. */
static inline size_t lk__schedule_begin(const lk__plan_ranges *at, const lk__schedule_run *run)
{
    if (run->half == LK__HALF_WEIGHTS) return at->weights;
    return run->receives == LK__RECEIVES_STARTED ? at->begin[run->section] : at->receives[run->section];
}
static inline size_t lk__schedule_end(const lk__plan_ranges *at, const lk__schedule_run *run)
{
    if (run->receives == LK__RECEIVES_ALONE) return at->begin[run->section];
    return run->half == LK__HALF_INPUTS ? at->weights : at->end[run->through];
}

/* How the samples of a rank are divided into parts: micro-batches of its own batch, or its leaves of the global one.
 * This is known from the plan, so code that runs a schedule does not distinguish them. */
typedef struct lk__plan_division {
    int  parts, first, here; /* of what is divided, all parts; those of this rank */
    bool global;             /* the global batch is divided, not this rank's */
    /* of numbers: one for each part of this rank, or one in which the numbers of all its parts are added */
    int  rows;
    bool adds;    /* gradients are added to the gradients of earlier backward runs, without a set for each */
    bool several; /* several backward runs may precede an update */
    bool by_hand; /* callers may run forward and backward themselves */
} lk__plan_division;

typedef struct lk__plan_schedule {
    lk__schedule_run *runs;
    size_t            count, capacity;
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

lk__plan_division lk__plan_divide(const lk_plan *plan);
/* Micro-batches or leaves whose activations a rank has at once: lk_plan.slots. */
int lk__plan_count_slots(const lk_plan *plan);

/* The run of a section that the caller runs without a schedule, with these conditions in addition to the conditions of
 * its results. */
lk__schedule_run lk__schedule_by_hand(const lk_plan *plan, lk_section section, unsigned flags);
/* A run of a forward or backward that is not the first since the last update: its gradients are added to the existing
 * ones. */
lk__schedule_run lk__schedule_behind(const lk_plan *plan, const lk__schedule_run *run);
/* The only run of the evaluation's list, or of the list of weights. */
lk__schedule_run lk__schedule_run_of(const lk__plan_list *list, unsigned flags);

#endif
