/* run/trainer_interface.h - the internal calls of a program that the trainer uses: the reports that ranks exchange with
 * every step, the trace, sums over ranks outside a step, and comparisons between ranks. Everything else of a program is
 * internal to src/run. */
#ifndef LK__TRAINER_INTERFACE_H
#define LK__TRAINER_INTERFACE_H

#include "device/batch.h"
#include "device/device.h"
#include "run/trace.h"

#include <lockstep/program.h>

/* ---- the small exchange at LK_SYNC ---- */

/* The loss's sums over samples: of one leaf, or of one rank. */
typedef struct lk__run_sums {
    double sum, weight, correct;
} lk__run_sums;

/* A rank's report. */
typedef struct lk__run_report {
    double waited;       /* seconds, for other ranks in the collectives of this step */
    double stop_request; /* lk__program_report */
    double data;         /* seconds that it waited for its batch */
    double invalid;      /* 1: an id of its samples is out of range */
} lk__run_report;

/* This rank's part of the next report: whether its callback asked to stop, and the seconds that it waited for its
 * batch. */
void           lk__program_report(lk_program *program, bool stop_request, double data);
bool           lk__program_stop_requested(const lk_program *program); /* by any rank, at the latest LK_SYNC */
lk__run_report lk__program_rank_report(const lk_program *program, int rank);
/* over its own samples, at the latest LK_SYNC */
lk__run_sums lk__program_rank_sums(const lk_program *program, int rank);

/* What the latest lk_metrics were made of, as the plan numbers it; the rest of several losses, which have no common
 * sum. */
const double *lk__program_numbers(const lk_program *program);

/* Before the next LK_SYNC: after it this rank reads neither state nor gradients before LK_UPDATE, or runs none. Ranks
 * that share their state then update it without another wait. */
void lk__program_allow_update(lk_program *program);

/* ---- steps that are queued (run/step.c) ---- */

/* Whether lk_program_queue returns without waiting: the device runs the whole step without the host, also where it is
 * one of several ranks. */
bool           lk__program_queues(const lk_program *program);
const int64_t *lk__program_result_ids(const lk_program *program); /* of lk_program_result's step; NULL: it had none */

/* Inputs that the device makes: of training steps, as the plan's source says, and of LK_EVALUATE; NULL: they are bound.
 * Copied; the samples are borrowed. Every step then needs sample_ids. */
lk_status lk__program_set_sources(lk_program *program, const lk__device_gather *train,
                                  const lk__device_gather *evaluate);

/* ---- outside a step; collective ---- */

/* Adds numbers of each leaf of this rank (`numbers` per leaf; without leaves once) over all leaves and ranks in the
 * fixed tree. */
lk_status lk__program_add_numbers(lk_program *program, const double *mine, int numbers, double *out);
/* `count` numbers of each rank that has a part of the batch, in the order of parts. */
lk_status lk__program_gather_numbers(lk_program *program, const double *mine, size_t count, double *all);
/* Adds numbers of an evaluation over the stages of a pipeline, each of which is made by one of them; in place. */
lk_status lk__program_add_stages(lk_program *program, double *numbers, size_t count);
/* Copies the buffers of the first rank along the batch to the others. */
lk_status lk__program_broadcast_buffers(lk_program *program);

/* ---- the trace ---- */

int64_t lk__program_trace_events(const lk_program *program); /* that one step records, at most */
/* Starts recording into trace; NULL stops it. The trace borrows names until the program is freed. */
lk_status lk__program_trace(lk_program *program, lk__trace *trace);
/* Records a step, if the program records: the first `data` seconds of it were spent waiting for the batch. */
void lk__program_trace_step(const lk_program *program, double began, double data, double ended);

/* ---- comparisons of ranks ---- */

enum { LK__VERIFY_LINE = 320 }; /* bytes of a line that ranks compare or share */

/* The first rank whose value differs from rank 0's, on all ranks; -1: none differs. */
lk_status lk__find_different(lk_context *context, lk_comm *comm, uint64_t mine, int *different);
/* Fails on all ranks, with rank 0's and that rank's version of a line. */
lk_status lk__report_difference(lk_context *context, lk_comm *comm, const char *mine, int different, const char *what);

#endif
