/* train/trainer.h - the inside of a trainer: one loop on every rank, which take the same turns. */
#ifndef LK__TRAINER_H
#define LK__TRAINER_H

#include "run/program.h"
#include "train/checkpoint.h"

#include <lockstep/trainer.h>

struct lk_trainer {
    lk_context       *context;
    lk_trainer_config config;
    lk_graph         *graph;
    lk_plan          *plan;
    lk_store         *store;
    lk_program       *program;
    lk_loader        *train, *test;
    lk__train_saver   saver;
    lk__lock          lock; /* of config.save, on rank 0 */
    lk_progress       progress;
    int64_t           steps;   /* in all */
    int64_t           saved;   /* step of the latest checkpoint, or of the one being written; -1: none */
    int64_t           checked; /* step at which replicas were last compared */
    bool              wish;    /* an event of this rank asked to stop */
    bool              stop;    /* all ranks agreed to */
    int               rank, world;
    int               culprit; /* the rank whose failure all were told of; -1: none */
    lk__trace        *trace;
    int64_t           trace_first; /* step before which it begins */

    /* Since the epoch began: this rank's own samples, and all ranks'. */
    lk__run_sums own, all;
    double *late; /* seconds a step that each rank comes later than the first, and that its data took; smoothed, side by side */
    double data; /* seconds that this step's batch took */
};

/* The parts that batches are cut into for evaluation: one a leaf, or one a rank. */
static inline int lk__evaluation_parts(const lk_trainer_config *f, int world) { return f->leaves ? f->leaves : world; }

void lk__trainer_tell(lk_trainer *trainer, lk_event event);
/* Rank `rank` did something that may have failed, and says so: all ranks have its status, and its sentence. */
lk_status lk__trainer_share(lk_trainer *trainer, int rank, lk_status status);

/* ---- tracing.c ---- */
lk_status lk__trainer_trace_open(lk_trainer *trainer);
lk_status lk__trainer_trace_step(lk_trainer *trainer); /* before each step: begins or ends the window */
lk_status lk__trainer_trace_write(lk_trainer *trainer);

/* ---- agree.c ---- */
lk_status lk__trainer_compare_options(
    lk_context *context, const lk_trainer_config *config); /* all ranks have the same options, or none starts */

/* ---- evaluate.c ---- */
lk_status lk__trainer_evaluate(lk_trainer *trainer); /* and tells */

/* ---- resume.c ---- */
lk_status lk__trainer_lock(lk_trainer *trainer); /* rank 0 has the checkpoint directory to itself, or no rank starts */
lk_status lk__trainer_load(lk_trainer *trainer); /* what init and resume say: read by rank 0, sent to all */
lk_status lk__trainer_save(lk_trainer *trainer, bool last); /* by rank 0, in the background unless it is the last */
/* Tells of a save that is done meanwhile; when it failed, training stops with its failure. */
void lk__trainer_look_at_save(lk_trainer *trainer);

#endif
