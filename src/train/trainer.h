/* train/trainer.h - the internals of a trainer: every rank runs the same loop with the same steps, evaluations and
 * saves. */
#ifndef LK__TRAINER_H
#define LK__TRAINER_H

#include "data/gather.h"
#include "plan/plan.h"
#include "run/trainer_interface.h"
#include "train/checkpoint.h"

#include <lockstep/trainer.h>

/* Who makes the batches of a set: the host's loader; the device, from the set in its memory; the device, from bytes
 * that the host sends. */
typedef enum lk__trainer_batch_source {
    LK__BATCHES_BY_HOST,
    LK__BATCHES_FROM_SET,
    LK__BATCHES_FROM_BYTES
} lk__trainer_batch_source;

/* Of the training set [0] and of the test set [1]. */
typedef struct lk__trainer_sets {
    lk_loader_config         loaders[2]; /* dataset NULL: there is none */
    lk__trainer_batch_source sources[2];
} lk__trainer_sets;

struct lk_trainer {
    lk_context       *context;
    lk_trainer_config config;
    lk_graph         *graph;
    lk_plan          *plan;
    lk_store         *store;
    lk_program       *program;
    lk_loader        *train, *test;
    lk__trainer_sets  sets;
    lk__gather_memory on_device[2]; /* what the device needs for their batches */
    lk__train_saver   saver;
    lk_load_report   *loaded;  /* by init_partial */
    lk__lock          lock;    /* of config.save, on rank 0 */
    lk__writers       writers; /* the ranks that see config.save; the saver has it once it exists */
    lk_progress       progress;
    int64_t           steps;          /* in total */
    int64_t           saved;          /* step of the latest checkpoint, or of the one being written; -1: none */
    int64_t           checked;        /* step at which replicas were last compared */
    bool              stop_requested; /* an event callback of this rank requested a stop */
    bool              stop;           /* all ranks stop */
    int               rank, world;
    int               failed_rank;               /* the rank whose failure was shared with all; -1: none */
    lk_named_metric   named[LK_MAX_METRICS + 2]; /* of the latest step or evaluation */
    double           *evaluated;                 /* (lk__trainer_evaluation_rows, numbers): of the running evaluation */
    size_t            evaluated_bytes;
    lk__trace        *trace;
    int64_t           trace_first; /* the trace starts after this step */

    /* Since the epoch started: of this rank's samples, and of all ranks'. */
    lk__run_sums own, all;
    /* (world, 2): seconds per step that the rank is later than the first, and that its data took; smoothed */
    double *late;
    int64_t late_steps;   /* over which */
    double  data;         /* seconds that loading this step's batch took */
    double  began, ended; /* when this step began, by its batch, and the one before it ended */
    int64_t evaluated_at; /* step of the latest evaluation; -1: none */
    /* A step that was queued, and whose results were not read yet (lk_program_queue). */
    bool     pending;
    lk_batch queued; /* its arrays are gone */
    double   queued_rate;

    uint64_t fingerprint; /* of the training set, on rank 0 where checkpoints are read or written; 0: not known */
};

void lk__trainer_emit(lk_trainer *trainer, lk_event event); /* calls the event callback */
/* A rank that fails sends its error to the others, so that none waits for it. Nothing for a status of 0 or more. */
void lk__trainer_abort(lk_trainer *trainer, lk_status status);
/* Broadcasts the status of `rank` and its error message: all ranks return them. */
lk_status lk__trainer_share_status(lk_trainer *trainer, int rank, lk_status status);
/* The failure of the first rank that has one, on all ranks. */
lk_status lk__trainer_agree(lk_trainer *trainer, lk_status status);

/* ---- trainer_config.c ---- */
/* The caller's config, which may be of another version; *own gets what it means. Without a context it reports
 * nothing. */
lk_status lk__trainer_read_config(lk_context *context, const lk_trainer_config *given, lk_trainer_config *own);
lk_status lk__trainer_check_config(lk_context *context, const lk_trainer_config *config);
int64_t   lk__trainer_steps(const lk_trainer_config *config); /* of the whole run */
/* The learning rate of a step, counted from 0. */
double lk__trainer_rate(const lk_trainer_config *config, int64_t step, int64_t steps);
void   lk__trainer_loaders(const lk_trainer_config *config, lk_loader_config loaders[2]); /* of lk__trainer_sets */
/* Records the model and plans it. What it made is the caller's to free, also when it fails. */
lk_status lk__trainer_make_plan(lk_context *context, const lk_trainer_config *config, lk_graph **graph, lk_plan **plan);

/* ---- trainer_step.c ---- */
lk_status lk__trainer_train_batch(lk_trainer *trainer, const lk_batch *batch, lk_event *event);
/* The same without waiting: the step before this one is finished meanwhile. */
lk_status lk__trainer_queue_batch(lk_trainer *trainer, const lk_batch *batch);
lk_status lk__trainer_finish_queued(lk_trainer *trainer, lk_event *event);
void      lk__trainer_emit_step(lk_trainer *trainer, const lk_batch *batch, lk_event event, double seconds);
void      lk__trainer_emit_epoch(lk_trainer *trainer, int64_t epoch);

/* ---- state_mode.c ---- */
/* The mesh of all ranks: the config's or, where it has none, one axis. */
lk__mesh_grid lk__trainer_mesh(const lk_trainer_config *config);
/* Fails if the ranks of its mesh differ from its comm or plan_world. */
lk_status lk__trainer_check_mesh(lk_context *context, const lk_trainer_config *config);
/* How the ranks split every batch. */
lk__split_job lk__trainer_split(const lk_trainer_config *config);
/* Where the ranks have their state; why, unless NULL, gets the reason (lk_trainer_state). */
lk_state_mode lk__trainer_state_mode(lk_context *context, const lk_trainer_config *config, char *why, size_t bytes);
/* On how many hosts they can share it; 0: on none, for the reason in why, which may be NULL. */
int lk__trainer_hosts(const lk_trainer_config *config, const char **why);
int lk__trainer_pieces(const lk_trainer_config *config); /* lk_plan_config.pieces */

/* ---- inputs.c ---- */
lk_status lk__trainer_check_fields(lk_context *context, const lk_trainer_config *config); /* of both data sets */
lk_status lk__trainer_record(const lk_trainer_config *config, const lk_inputs *inputs, lk_tensor *loss);

/* ---- on_device.c ---- */
/* Sets the sources, before memory is allocated. LK_EINVAL: data_on_device requests what is not possible. */
lk_status lk__trainer_choose(lk_context *context, const lk_trainer_config *config, const lk_plan *plan,
                             lk__trainer_sets *sets);
/* Tells the plan; before the program is created. */
void lk__trainer_set_source(lk_plan *plan, const lk__trainer_sets *sets);
/* The memory of loaders and data, and the staging that results. */
void      lk__trainer_data_bytes(lk_plan *plan, const lk__trainer_sets *sets, size_t memory[LK_MEMORY_COUNT]);
lk_status lk__trainer_open_data(lk_trainer *trainer); /* loaders, and the device's data */

/* ---- memory.c ---- */
/* Bytes of every kind: of the plan, loaders, data, and saves by one of these writers, of which count and turn are
 * read. It forgets what lk__trainer_set_source told the plan. */
void lk__trainer_memory(const lk_trainer_config *config, lk_plan *plan, const lk__trainer_sets *sets,
                        const lk__writers *writers, size_t memory[LK_MEMORY_COUNT]);
/* LK_ETOOLARGE: the host's ranks would need more than it has available. Collective. */
lk_status lk__trainer_check_memory(lk_trainer *trainer, const size_t memory[LK_MEMORY_COUNT]);

/* ---- metrics.c ---- */
enum { LK__TRAINER_NUMBERS = LK__PLAN_NUMBERS + 1 }; /* the metrics of a program, and the number of samples */
int  lk__trainer_numbers(const lk_trainer *trainer); /* that an evaluation adds, the last being the number of samples */
void lk__trainer_get_numbers(const lk_trainer *trainer, int64_t samples, double *numbers);
/* Sets trainer->named from such numbers; returns how many there are. */
int lk__trainer_set_named(lk_trainer *trainer, const double *numbers);

/* ---- tracing.c ---- */
lk_status lk__trainer_trace_open(lk_trainer *trainer);
lk_status lk__trainer_trace_step(lk_trainer *trainer); /* before each step: starts or ends the trace */
lk_status lk__trainer_trace_write(lk_trainer *trainer);

/* ---- compare_options.c ---- */
/* Fails on all ranks if options differ between ranks. */
lk_status lk__trainer_compare_options(lk_context *context, const lk_trainer_config *config);

/* ---- evaluate.c ---- */
lk_status lk__trainer_evaluate(lk_trainer *trainer); /* emits LK_EVENT_EVALUATED */
/* Rows of trainer->evaluated: one for each leaf here or, of whole batches, those of this rank and of all ranks since
 * they last met. */
size_t lk__trainer_evaluation_rows(const lk_trainer *trainer);

/* ---- resume.c ---- */
/* Rank 0 locks the checkpoint directory, and all find out who sees it; a failure fails all ranks. */
lk_status lk__trainer_lock(lk_trainer *trainer);
/* Before the program is made: it uses the algorithms of the checkpoint that is resumed, where the device chooses among
 * them. */
lk_status lk__trainer_load_algorithms(lk_trainer *trainer);
lk_status lk__trainer_load(lk_trainer *trainer);            /* what init and resume name: read by rank 0, sent to all */
lk_status lk__trainer_save(lk_trainer *trainer, bool last); /* by all ranks, in the background unless it is the last */
/* Emits LK_EVENT_SAVED if a background save has ended; if it failed, training stops with its failure. */
void lk__trainer_poll_save(lk_trainer *trainer);

#endif
