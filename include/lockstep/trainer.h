/* trainer.h - program + data + optimizer + checkpoint + metrics: the loop that people would write. */
#ifndef LOCKSTEP_TRAINER_H
#define LOCKSTEP_TRAINER_H

#include <lockstep/checkpoint.h>
#include <lockstep/comm.h>
#include <lockstep/data.h>
#include <lockstep/program.h>

LK_BEGIN_DECLS

typedef struct lk_trainer lk_trainer; /* use from one thread */

/* STEP, EPOCH, EVALUATED and RESUMED happen on every rank at the same step; SAVED on the one that writes, rank 0. */
typedef enum lk_event_kind {
    LK_EVENT_STEP,
    LK_EVENT_EVALUATED,
    LK_EVENT_SAVED,
    LK_EVENT_RESUMED,
    LK_EVENT_EPOCH
} lk_event_kind;

typedef struct lk_event {
    lk_event_kind kind;
    int64_t       step, steps; /* done (SAVED: then), and in all (this run and what it resumed) */
    int64_t       epoch;       /* from 0 */
    int64_t       samples;     /* STEP: in this global batch; EVALUATED: seen; EPOCH: of this rank in this epoch */
    double        loss;        /* STEP: of this global batch; EVALUATED: of the test set; EPOCH: mean over its steps */
    double        own_loss;    /* EPOCH: the same of this rank's samples alone */
    double        accuracy;    /* EVALUATED: a fraction */
    double        rate;        /* STEP: learning rate */
    double        grad_norm;   /* STEP, with clipping */
    double        seconds;     /* STEP: since the previous one ended; others: what it took */
    const char   *path;        /* SAVED, RESUMED: the checkpoint directory */
    int           late_rank;   /* STEP: the rank that others wait for most, by a mean over recent steps; -1: none */
    double        late;        /* STEP: seconds a step that it comes after the first */
    const char   *late_in;     /* STEP: "compute" or "data": where it spends them */
} lk_event;

typedef struct lk_trainer_config {
    size_t size; /* sizeof this struct; set by LK_TRAINER_CONFIG_INIT */

    lk_tensor (*model)(lk_tensor x); /* features (batch, dims…) → logits (batch, classes); or … */
    lk_tensor (*model_with)(lk_tensor x, void *user); /* … the same with a pointer of yours */
    void             *model_user;
    const lk_dataset *train,
        *test;      /* borrowed; either may be NULL. Without train nothing is held for training: it evaluates */
    lk_dtype dtype; /* LK_F32, or LK_F64 for proofs */

    int64_t             batch; /* the global batch */
    int64_t             epochs;
    int64_t             steps; /* above 0: stop after so many steps instead of epochs */
    lk_optimizer_config optimizer;
    lk_schedule         schedule; /* cosine with total 0 gets the run's own number of steps */
    double              label_smoothing;
    uint64_t            seed;
    lk_transform        transform;  /* of the training data; the test data get its normalisation alone */
    int                 workers;    /* loader threads */
    int64_t             eval_every; /* steps; 0: after each epoch; below 0: never */

    const char *save;        /* checkpoint directory; NULL: none. Rank 0 has it to itself until lk_trainer_free */
    int64_t     save_every;  /* steps; 0: after each epoch. And always at the end */
    int         keep;        /* checkpoints that stay */
    bool        resume;      /* go on from `save` if it holds a checkpoint; without it, such a directory is refused */
    const char *resume_from; /* go on from this checkpoint directory, which must hold one; may be `save` itself */
    const char *init;        /* weights to start from: a safetensors file or checkpoint directory; NULL: random */

    lk_comm *comm;        /* the ranks that train together, all with the same config; NULL: one alone. Borrowed */
    int      plan_world;  /* lk_trainer_plan without a comm: plan for rank 0 of so many */
    int      accumulate;  /* micro-batches a step and rank, one synchronisation; 0: 1 */
    int      leaves;      /* above 0: reproducible, see lk_parallel */
    bool sync_batch_norm; /* statistics of the global batch; else each rank's own in training, rank 0's in evaluation */
    size_t      bucket_bytes; /* see lk_parallel; 0: 25 MiB */
    const char *trace; /* a file for Chrome's and Perfetto's viewers: every rank's kernels and collectives; NULL: none */
    int64_t     trace_steps; /* how many steps it shows, after the first few */
    int64_t     check_every; /* steps after which replicas compare hashes, and at the end; 0: never */

    int (*event)(
        void *user,
        const lk_event *event); /* NULL: none; other than 0 stops after this step (with other ranks: the next), saved if save is set */
    void *event_user;
} lk_trainer_config;
#define LK_TRAINER_CONFIG_INIT                                                                                     \
    {sizeof(lk_trainer_config), NULL, NULL, NULL, NULL, NULL, LK_F32, 64, 1, 0, LK_OPTIMIZER_CONFIG_INIT,          \
     {LK_CONSTANT, 0, 0, 0, 0.1, 0.0}, 0.0, 0, LK_TRANSFORM_INIT, 1, 0, NULL, 0, 2, false, NULL, NULL, NULL, 0, 0, 0, false, 0, NULL, 10, 1000, NULL, NULL}

/* Records the model, plans, allocates, and loads what resume and init say. */
LK_API lk_status lk_trainer_create(lk_context *context, const lk_trainer_config *config, lk_trainer **trainer);
LK_API void      lk_trainer_free(lk_trainer *trainer);

/* Trains to the end. LK_ECANCELED: stopped by an event, of any rank. LK_ENAN: the loss became NaN or infinite; step, rank and
 * samples are named. What is saved is always finite; a group that has failed saves nothing. */
LK_API lk_status lk_trainer_run(lk_trainer *trainer);
/* Mean loss and accuracy of the test set, each sample once. */
LK_API lk_status lk_trainer_evaluate(lk_trainer *trainer, double *loss, double *accuracy, int64_t *samples);

LK_API lk_store          *lk_trainer_store(lk_trainer *trainer);
LK_API const lk_progress *lk_trainer_progress(const lk_trainer *trainer);

/* Samples that one micro-batch or leaf of a rank holds at the most: the capacity of the ranks' plans. */
LK_API int64_t lk_trainer_capacity(const lk_trainer_config *config);

/* The plan alone, nothing allocated: what lk_trainer_create would hold, by kind, loaders and checkpoint staging included.
 * Free plan and graph. */
LK_API lk_status lk_trainer_plan(lk_context *context, const lk_trainer_config *config, lk_graph **graph, lk_plan **plan,
                                 size_t memory[LK_MEMORY_COUNT]);

LK_END_DECLS
#endif
