/* trainer.h - the training loop: program, data, optimizer, checkpoints and metrics. */
#ifndef LOCKSTEP_TRAINER_H
#define LOCKSTEP_TRAINER_H

#include <lockstep/checkpoint.h>
#include <lockstep/comm.h>
#include <lockstep/data.h>
#include <lockstep/mesh.h>
#include <lockstep/program.h>

LK_BEGIN_DECLS

typedef struct lk_trainer lk_trainer; /* use from one thread */

/* The inputs of a program: one for each field of a batch. */
typedef struct lk_inputs {
    lk_graph *graph;
    int       count;
    lk_field  fields[LK_MAX_FIELDS];  /* as returned by lk_loader_field */
    lk_tensor tensors[LK_MAX_FIELDS]; /* (capacity, dims…) */
} lk_inputs;

/* Records the inputs for the batches of a loader. capacity: maximum number of samples in one run, see
 * lk_parallel_capacity. */
LK_API lk_status lk_inputs_record(lk_graph *graph, const lk_loader_config *loader, int64_t capacity, lk_inputs *inputs);
/* The input with that name. If there is none, the graph fails with a message that lists the inputs, and the tensor is
 * invalid. */
LK_API lk_tensor lk_inputs_find(const lk_inputs *inputs, const char *name);
LK_API bool      lk_inputs_has(const lk_inputs *inputs, const char *name);
/* Binds every field of the batch to the input with the same name. */
LK_API lk_status lk_batch_bind(const lk_batch *batch, lk_program *program);

/* STEP, EPOCH, EVALUATED and RESUMED occur on every rank, at the same step; SAVED occurs only on rank 0, once all ranks
 * have written their parts. */
typedef enum lk_event_kind {
    LK_EVENT_STEP,
    LK_EVENT_EVALUATED,
    LK_EVENT_SAVED,
    LK_EVENT_RESUMED,
    LK_EVENT_EPOCH
} lk_event_kind;

typedef struct lk_event {
    lk_event_kind kind;
    int64_t       step, steps; /* completed (SAVED: the step saved) and total steps, including those before a resume */
    int64_t       epoch;       /* from 0 */
    /* STEP: in this global batch; EVALUATED: number evaluated; EPOCH: of this rank in this epoch; RESUMED: trained on
     * so far, in all epochs */
    int64_t samples;
    double  loss;     /* STEP: of this global batch; EVALUATED: of the test set; EPOCH: mean over the epoch */
    double  own_loss; /* EPOCH: the same over this rank's samples alone */
    /* STEP: of this global batch; EVALUATED: of the test set. The metrics that the model recorded and, if the loss is a
     * cross-entropy and the model recorded no metric of this name, "accuracy": the fraction of labels with the largest
     * logit. Valid during the callback. */
    const lk_named_metric *metrics;
    int                    metrics_count;
    double                 rate;      /* STEP: learning rate */
    double                 grad_norm; /* STEP, if gradients are clipped */
    double                 seconds;   /* STEP: since the previous step ended; others: duration */
    const char            *path;      /* SAVED, RESUMED: the checkpoint directory */
    int                    late_rank; /* STEP: the slowest rank, on average over recent steps; -1: none */
    double                 late;      /* STEP: seconds per step by which it is slower than the fastest rank */
    const char            *late_in;   /* STEP: "compute" or "data": where it loses that time */
} lk_event;

/* The metric with that name; NULL if there is none. */
LK_API const lk_named_metric *lk_metrics_find(const lk_named_metric *metrics, int count, const char *name);

/* Where batches are prepared: on a GPU, from a copy of the data set in its memory, or on the host. The GPU can prepare
 * them if the data set is in the host's memory and the only transforms are normalisation, crops, flips and cutout; each
 * step then sends only the indices of its samples to the GPU. The results are the same, bit for bit. */
typedef enum lk_data_place {
    /* on the device, if that is possible and the data sets take at most a quarter of the memory that the plan leaves
     * free. Otherwise the host prepares batches, except that u8 images are sent as bytes and converted on the device */
    LK_DATA_AUTO,
    LK_DATA_ON_DEVICE, /* for the training set and the test set; an error if that is impossible */
    LK_DATA_ON_HOST    /* all batches are prepared by the host */
} lk_data_place;

typedef struct lk_trainer_config {
    size_t size LK_ZERO; /* sizeof this struct; set by LK_TRAINER_CONFIG_INIT */

    /* Set one of these three. A model maps field 0 (batch, dims…) to logits (batch, classes) and is trained with the
     * cross-entropy against the field "label". */
    lk_tensor (*model)(lk_tensor x) LK_ZERO;
    lk_tensor (*model_with)(lk_tensor x, void *user) LK_ZERO;
    /* Records any model and loss on the fields, and metrics (lk_metric). Returns the loss. */
    lk_tensor (*loss)(const lk_inputs *inputs, void *user) LK_ZERO;
    void             *model_user LK_ZERO; /* passed to these as `user` */
    const lk_dataset *train LK_ZERO;      /* borrowed; NULL: evaluation only, without memory for training */
    const lk_dataset *test LK_ZERO;       /* borrowed; NULL: none. At least one of the two sets is required */
    /* the type in which the model is recorded: LK_F32, or LK_F64 for numerical checks */
    lk_dtype  dtype LK_ZERO;
    lk_policy policy LK_ZERO;         /* see plan.h: LK_POLICY_BF16 trains in mixed precision */
    lk_dtype  gradient_dtype LK_ZERO; /* see lk_plan_config */

    int64_t             batch LK_ZERO; /* the global batch */
    int64_t             epochs LK_ZERO;
    int64_t             steps LK_ZERO; /* above 0: number of steps to train, overrides epochs */
    lk_optimizer_config optimizer LK_ZERO;
    lk_schedule         schedule LK_ZERO; /* cosine with total 0 uses the run's number of steps */
    double              label_smoothing LK_ZERO;
    uint64_t            seed LK_ZERO;
    lk_transform        transform LK_ZERO;  /* of training data; test data is only normalised */
    int                 workers LK_ZERO;    /* loader threads */
    int64_t             eval_every LK_ZERO; /* steps; 0: after each epoch; below 0: never */

    const char *save LK_ZERO;       /* checkpoint directory; NULL: none. Rank 0 holds its lock until lk_trainer_free */
    int64_t     save_every LK_ZERO; /* steps; 0: after each epoch. The trainer also saves at the end */
    int         keep LK_ZERO;       /* number of checkpoints to keep */
    /* resume from `save` if it contains a checkpoint; if false, a checkpoint there is an error */
    bool resume LK_ZERO;
    /* resume from this checkpoint directory, which must contain a checkpoint, or from a single step's directory; may be
     * `save` itself, or its newest step */
    const char *resume_from LK_ZERO;
    const char *init LK_ZERO; /* initial weights: a safetensors file or checkpoint directory; NULL: random */

    /* the ranks that train together, all with the same config; NULL: one rank. Borrowed */
    lk_comm *comm LK_ZERO;
    int      plan_world LK_ZERO; /* lk_trainer_plan without a comm: plan for rank 0 of this many ranks */
    int      accumulate LK_ZERO; /* micro-batches per step and rank, with one synchronisation; 0 means 1 */
    int      leaves LK_ZERO;     /* above 0: reproducible, see lk_parallel */
    /* batch norm uses statistics of the global batch; otherwise each rank uses those of its part, and evaluation uses
     * rank 0's */
    bool sync_batch_norm LK_ZERO;

    size_t bucket_bytes LK_ZERO; /* see lk_parallel; 0 means 25 MiB */
    /* file to which a trace of all ranks' kernels and collectives is written, for Chrome or Perfetto; NULL: none */
    const char *trace LK_ZERO;
    int64_t     trace_steps LK_ZERO; /* number of steps to trace, after a warm-up */
    int64_t     check_every LK_ZERO; /* steps between comparisons of the ranks' weights (also at the end); 0: never */

    /* Called for each event; NULL: not called. A nonzero result stops training after this step (with several ranks:
     * after the next one), and a checkpoint is saved if `save` is set. */
    int (*event)(void *user, const lk_event *event) LK_ZERO;
    void *event_user LK_ZERO;

    /* Replaces `schedule`: returns the learning rate of step `step` of `steps`, counted from 0. NULL: `schedule` is
     * used. The rate must depend on the arguments alone: every rank calls this function, and not only for the next
     * step. */
    double (*schedule_callback)(void *user, int64_t step, int64_t steps) LK_ZERO;
    void *schedule_user LK_ZERO;

    /* Instead of init: load the tensors that the file or checkpoint and the model have in common, see
     * lk_weights_load_partial and lk_trainer_load_report. Ignored when resuming. */
    const char *init_partial LK_ZERO;

    /* Options of the run, saved with its checkpoints and returned by lk_checkpoint_describe. Copied. The trainer adds
     * fields, classes and normalisation itself. */
    const lk_record *record LK_ZERO;
    int              record_count LK_ZERO;

    /* Files that every checkpoint in `save` contains in addition to the weights, such as config.json; at most 16.
     * Copied. */
    const lk_checkpoint_file *files LK_ZERO;
    int                       files_count LK_ZERO;

    int           unused LK_ZERO;         /* ignored: padding in older versions, which left it undefined */
    lk_data_place data_on_device LK_ZERO; /* both sets are copied when the trainer is created */
    lk_state_mode state LK_ZERO;          /* see plan.h: where the ranks of comm keep their state */
    /* lk_trainer_plan without a comm: number of hosts over which the plan_world ranks are distributed as evenly as
     * possible; 0 means 1 */
    int plan_hosts LK_ZERO;
    int keep_cores LK_ZERO; /* see lk_parallel */
    /* The mesh (see lk_plan_config) of the ranks of comm or, without a comm, of the ranks for which lk_trainer_plan
     * plans. Borrowed. NULL: one axis, data. Checkpoints record the mesh, and can be resumed with any other. */
    const lk_mesh *mesh LK_ZERO;
    /* If not 0, and without a training set, each rank evaluates whole batches of `batch` samples instead of its share
     * of each batch, and the results are added in the order of the batches. The sum has the same bits as on one rank,
     * and each rank needs as much memory as a single rank would. Not supported with leaves or accumulate. */
    int                  whole_batches LK_ZERO;
    int                  no_sequence_parallel LK_ZERO;                          /* see lk_plan_config */
    int                  shard_stage LK_ZERO, blocks_in_flight LK_ZERO;         /* see lk_parallel */
    const char          *tactics LK_ZERO;                                       /* see lk_plan_config; borrowed */
    int                  reproducible_layout LK_ZERO, sum_part_minimum LK_ZERO; /* see lk_parallel */
    const char          *stages LK_ZERO;                                        /* see lk_plan_config; borrowed */
    lk_pipeline_schedule pipeline_schedule LK_ZERO;                             /* see lk_parallel */
    /* see lk_plan_config. 0 means LK_PIECES_ESTIMATED if the tensor axis spans several hosts, otherwise 1 */
    int                 pieces LK_ZERO;
    lk_matmul_precision matmul_precision LK_ZERO; /* see lk_plan_config */
    int                 reserved LK_ZERO;         /* 0 */
} lk_trainer_config;
#define LK_TRAINER_CONFIG_INIT                                                                               \
    {.size = sizeof(lk_trainer_config), .batch = 64, .epochs = 1, .optimizer = LK_OPTIMIZER_CONFIG_INIT,     \
     .schedule = {.gamma = 0.1}, .transform = LK_TRANSFORM_INIT, .workers = 1, .keep = 2, .trace_steps = 10, \
     .check_every = 1000}

/* ---- The options of training. ----
 *
 * There is one row for each field above that `lockstep train` offers directly as an option: the field, the option's
 * name, the name of its argument, its default and range, its traits, the option to which it belongs (if the user sets
 * that option, a recorded value of this one is ignored; NULL: none), and its help. These rows define the command's
 * options (including --config files, help, man page and completion), what state.json records and resuming restores, and
 * what ranks compare before they start. docs/extending.md shows how to add an option. */
typedef enum lk_option_trait {
    LK_OPTION_RECORDED = 1, /* a resumed run takes it from the checkpoint unless the user sets it */
    LK_OPTION_EQUAL = 2,    /* ranks with different values do not start */
    LK_OPTION_FIXED = 4,    /* a resumed run must not change it */
    LK_OPTION_TRAINING = LK_OPTION_RECORDED | LK_OPTION_EQUAL
} lk_option_trait;
/* LK_OPTION_AXES is another trait: the option needs a mesh with one of these axes. LK_OPTION_AXES_OF returns them. */
#define LK_OPTION_AXES(axes) ((axes) << 8)
#define LK_OPTION_AXES_OF(traits) ((unsigned)(traits) >> 8)

/* INTEGER, NUMBER: (field, name, argument, default, low, high, traits, of, doc); NUMBERS: the same for an array,
 * without a default; FLAG: (field, name, traits, of, doc); TEXT: (field, name, argument, traits, of, doc). */
#define LK_TRAINER_LENGTH_OPTIONS(INTEGER, NUMBER, NUMBERS, FLAG, TEXT)                                                \
    INTEGER(epochs, "epochs", "N", "3", 1, 1e9, LK_OPTION_TRAINING, NULL,                                              \
            "Passes over the training set (default 3). Text in windows has a sample for each token: use --steps")      \
    INTEGER(steps, "steps", "N", "0", 0, 1e15, LK_OPTION_TRAINING, "epochs",                                           \
            "Stop after N steps instead; 0: train for --epochs")

#define LK_TRAINER_LOSS_OPTIONS(INTEGER, NUMBER, NUMBERS, FLAG, TEXT)                                                  \
    NUMBER(label_smoothing, "label-smoothing", "X", "0", 0, 0.999, LK_OPTION_TRAINING, NULL,                           \
           "Share of each label spread over all classes")

#define LK_TRAINER_SCHEDULE_OPTIONS(INTEGER, NUMBER, NUMBERS, FLAG, TEXT)                                              \
    INTEGER(schedule.warmup, "warmup", "N", "0", 0, 1e12, LK_OPTION_TRAINING, NULL,                                    \
            "Steps of linear warmup before any schedule")                                                              \
    INTEGER(schedule.every, "step-size", "N", "1000", 1, 1e12, LK_OPTION_TRAINING, "schedule",                         \
            "schedule step: multiply by --gamma every N steps")                                                        \
    NUMBER(schedule.gamma, "gamma", "X", "0.1", 0, 10, LK_OPTION_TRAINING, "schedule",                                 \
           "schedule step: the factor by which the rate is multiplied")

#define LK_TRAINER_AUGMENTATION_OPTIONS(INTEGER, NUMBER, NUMBERS, FLAG, TEXT)                                          \
    INTEGER(transform.crop_padding, "crop-padding", "N", "0", 0, 64, LK_OPTION_TRAINING, NULL,                         \
            "Augmentation: random crops of the image padded by N pixels")                                              \
    NUMBER(transform.flip, "flip", "P", "0", 0, 1, LK_OPTION_TRAINING, NULL,                                           \
           "Augmentation: probability of a horizontal flip")                                                           \
    NUMBERS(transform.resized_crop, "random-resized-crop", "S[,S]", 1e-6, 1, LK_OPTION_TRAINING, NULL,                 \
            "Augmentation: random crops of S to S (default 1) of the image's area, resized to its size, like "         \
            "RandomResizedCrop")                                                                                       \
    NUMBER(transform.rotate, "rotate", "D", "0", 0, 180, LK_OPTION_TRAINING, NULL,                                     \
           "Augmentation: rotation by up to D degrees in either direction")                                            \
    NUMBERS(transform.color_jitter, "color-jitter", "B,C,S,H", 0, 1000, LK_OPTION_TRAINING, NULL,                      \
            "Augmentation: strength of random brightness, contrast, saturation and hue (at most 0.5), like "           \
            "ColorJitter")                                                                                             \
    INTEGER(transform.cutout, "cutout", "N", "0", 0, 4096, LK_OPTION_TRAINING, NULL,                                   \
            "Augmentation: a random square of N by N pixels is set to the mean")                                       \
    NUMBER(transform.mixup, "mixup", "A", "0", 0, 1000, LK_OPTION_TRAINING, NULL,                                      \
           "Augmentation: each sample is mixed with another; the weight is Beta(A, A)")

#define LK_TRAINER_EVALUATION_OPTIONS(INTEGER, NUMBER, NUMBERS, FLAG, TEXT)                                            \
    INTEGER(eval_every, "eval-every", "N", "0", -1, 1e12, LK_OPTION_TRAINING, NULL,                                    \
            "Evaluate every N steps; 0: after each epoch; -1: never")

/* Of TEXT options, ranks compare only whether they are set: a path may differ between hosts. */
#define LK_TRAINER_CHECKPOINT_OPTIONS(INTEGER, NUMBER, NUMBERS, FLAG, TEXT)                                            \
    TEXT(save, "save", "DIR", LK_OPTION_EQUAL, NULL,                                                                   \
         "Save checkpoints in DIR; DIR/model.safetensors is the newest, readable by PyTorch")                          \
    INTEGER(save_every, "save-every", "N", "0", 0, 1e12, LK_OPTION_TRAINING, NULL,                                     \
            "Save every N steps, and always at the end; 0: after each epoch")                                          \
    INTEGER(keep, "keep", "K", "2", 1, 200, LK_OPTION_RECORDED, NULL, "Number of checkpoints to keep")

#define LK_TRAINER_WEIGHTS_OPTIONS(INTEGER, NUMBER, NUMBERS, FLAG, TEXT)                                               \
    TEXT(init, "init", "FILE", LK_OPTION_EQUAL, NULL,                                                                  \
         "Start from these weights: a .safetensors file, a checkpoint or a Hugging Face directory. Without "           \
         "--tokenizer, a directory's tokenizer is used")                                                               \
    TEXT(init_partial, "init-partial", "FILE", LK_OPTION_EQUAL, NULL,                                                  \
         "Start from the tensors of FILE whose names and shapes match the model's, and print which were loaded; "      \
         "ignored when resuming")

/* Options for the shard axis also apply to ranks along the expert axis, which share the state that does not belong to
 * experts. */
#define LK_OPTION_SHARD (LK_OPTION_TRAINING | LK_OPTION_AXES(LK_AXIS_SHARD | LK_AXIS_EXPERT))
#define LK_OPTION_TENSOR (LK_OPTION_TRAINING | LK_OPTION_AXES(LK_AXIS_TENSOR))
#define LK_TRAINER_MESH_OPTIONS(INTEGER, NUMBER, NUMBERS, FLAG, TEXT)                                                  \
    INTEGER(shard_stage, "shard-stage", "N", "3", 1, 3, LK_OPTION_SHARD, "mesh",                                    \
            "What is divided among the ranks along the shard axis. 1: optimizer state and master weights; 2: also "     \
            "gradients; 3: also parameters, which are gathered block by block")                                         \
    INTEGER(blocks_in_flight, "blocks-in-flight", "N", "2", 1, 1024, LK_OPTION_SHARD, "mesh",                       \
            "shard-stage 3: maximum number of blocks whose full parameters a rank holds at once: the one being "       \
            "computed and those being gathered")                                                                       \
    FLAG(no_sequence_parallel, "no-sequence-parallel", LK_OPTION_TENSOR, "mesh",                                     \
         "Norms, dropout and residuals are computed by every rank along the tensor axis, instead of being split "      \
         "along the sequence: more memory")                                                                            \
    INTEGER(pieces, "pieces", "N", "0", 0, 8, LK_OPTION_TENSOR, "mesh",                                                \
            "Cut forward collectives along the tensor axis into N pieces of the batch, so that products can begin "    \
            "with what has arrived; 1: never; 0: if that axis spans several hosts, where it is estimated to save "     \
            "time. The results are the same")                                                                          \
    INTEGER(sum_part_minimum, "sum-part-minimum", "N", "96", 1, 1e9, LK_OPTION_TRAINING, "reproducible",               \
            "--reproducible layout: sums that a layout may split have 8, 4 or 2 parts of at least N elements each; an "  \
            "axis that splits such a sum can have at most as many ranks as there are parts")

#define LK_TRAINER_CHECK_OPTIONS(INTEGER, NUMBER, NUMBERS, FLAG, TEXT)                                                 \
    INTEGER(check_every, "check-every", "N", "1000", 0, 1e12, LK_OPTION_TRAINING, NULL,                                \
            "Compare the ranks' weights every N steps, and at the end; 0: never")

#define LK_TRAINER_TRACE_OPTIONS(INTEGER, NUMBER, NUMBERS, FLAG, TEXT)                                                 \
    TEXT(trace, "trace", "FILE", LK_OPTION_EQUAL, NULL,                                                                \
         "Write a timeline of all ranks, on GPUs by their own clock, for chrome://tracing or ui.perfetto.dev")         \
    INTEGER(trace_steps, "trace-steps", "N", "10", 1, 100000, LK_OPTION_EQUAL, NULL,                                   \
            "With --trace: number of steps to record, after the first few")

/* All lists, each between BEGIN and END, which receive the list's name. */
#define LK_TRAINER_OPTIONS(BEGIN, END, ...)                                                                            \
    BEGIN(length) LK_TRAINER_LENGTH_OPTIONS(__VA_ARGS__) END(length)                                                   \
    BEGIN(loss) LK_TRAINER_LOSS_OPTIONS(__VA_ARGS__) END(loss)                                                         \
    BEGIN(schedule) LK_TRAINER_SCHEDULE_OPTIONS(__VA_ARGS__) END(schedule)                                             \
    BEGIN(augmentation) LK_TRAINER_AUGMENTATION_OPTIONS(__VA_ARGS__) END(augmentation)                                 \
    BEGIN(evaluation) LK_TRAINER_EVALUATION_OPTIONS(__VA_ARGS__) END(evaluation)                                       \
    BEGIN(checkpoints) LK_TRAINER_CHECKPOINT_OPTIONS(__VA_ARGS__) END(checkpoints)                                     \
    BEGIN(weights) LK_TRAINER_WEIGHTS_OPTIONS(__VA_ARGS__) END(weights)                                                \
    BEGIN(mesh) LK_TRAINER_MESH_OPTIONS(__VA_ARGS__) END(mesh)                                                         \
    BEGIN(check) LK_TRAINER_CHECK_OPTIONS(__VA_ARGS__) END(check)                                                      \
    BEGIN(trace) LK_TRAINER_TRACE_OPTIONS(__VA_ARGS__) END(trace)

/* Records and plans the model, allocates its memory, and loads the weights selected by resume and init. */
LK_API lk_status lk_trainer_create(lk_context *context, const lk_trainer_config *config, lk_trainer **trainer);
LK_API void      lk_trainer_free(lk_trainer *trainer);

/* Trains to the end. LK_ECANCELED: the event callback of a rank requested a stop. LK_ENAN: the loss became NaN or
 * infinite; the message names the step, rank and samples. Weights that are not finite are not saved, and a group that
 * has failed saves nothing. */
LK_API lk_status lk_trainer_run(lk_trainer *trainer);

typedef struct lk_evaluation {
    double                 loss; /* mean */
    int64_t                samples;
    const lk_named_metric *metrics; /* as in lk_event; valid until the trainer is used again */
    int                    metrics_count;
} lk_evaluation;
/* Evaluates the test set; each sample counts once. All ranks get the result. If one rank fails, the group fails, so
 * that no rank waits for it. */
LK_API lk_status lk_trainer_evaluate(lk_trainer *trainer, lk_evaluation *result);

LK_API lk_store          *lk_trainer_store(lk_trainer *trainer);
LK_API const lk_progress *lk_trainer_progress(const lk_trainer *trainer);
/* What init_partial loaded, on rank 0; NULL if it loaded nothing. Valid while the trainer exists. */
LK_API const lk_load_report *lk_trainer_load_report(const lk_trainer *trainer);

/* whether the training set is in the device's memory */
LK_API bool lk_trainer_data_on_device(const lk_trainer *trainer);

/* The number of samples in this rank's share of a full batch. */
LK_API int64_t lk_trainer_share(const lk_trainer_config *config);

/* Where the ranks of this config keep their state: LK_STATE_SHARED or LK_STATE_REPLICATED. `why`, if not NULL, receives
 * the reason: "shared by the 4 ranks of each of 2 hosts", "replicated: the ranks do not share memory". */
LK_API lk_state_mode lk_trainer_state(lk_context *context, const lk_trainer_config *config, char *why, size_t bytes);

/* Only plans: returns the memory that lk_trainer_create would use, by kind, including loaders and checkpoint buffers,
 * without allocating it. The caller frees plan and graph. */
LK_API lk_status lk_trainer_plan(lk_context *context, const lk_trainer_config *config, lk_graph **graph, lk_plan **plan,
                                 size_t memory[LK_MEMORY_COUNT]);

LK_END_DECLS
#endif
