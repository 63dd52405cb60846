/* program.h - what one rank runs: sections of instructions over a store. Nothing is allocated after creation. */
#ifndef LOCKSTEP_PROGRAM_H
#define LOCKSTEP_PROGRAM_H

#include <lockstep/comm.h>
#include <lockstep/store.h>

LK_BEGIN_DECLS

typedef struct lk_program lk_program; /* use from one thread */

typedef enum lk_section {
    LK_FORWARD, /* training mode; loss and metrics */
    /* gradients of the loss summed over the samples; with micro_batches, further runs add to them until an update or
     * LK_SYNC, otherwise each run replaces them. For a sum of losses: gradients of its mean over the step, see below */
    LK_BACKWARD,
    LK_SYNC, /* combines gradients and metrics over all ranks and over all backward runs since the last update */
    /* clipping and the optimizer's step with the mean gradient; runs LK_SYNC first if it has not run. LK_ENAN: a rank's
     * loss is not finite; no state was changed, and the gradients are discarded */
    LK_UPDATE,
    LK_EVALUATE, /* evaluation mode; loss, metrics and outputs */
    LK_SECTION_COUNT
} lk_section;

/* What changes from step to step. Start from LK_STEP_INIT: step 1, with the optimizer's learning rate. A rate of 0
 * means 0, even in a zeroed struct: such a step does not change parameters. */
typedef struct lk_step {
    int64_t step LK_ZERO;  /* this update's number, from 1 */
    int64_t epoch LK_ZERO; /* from 0 */
    /* Number of samples on this rank: 0 … lk_plan_capacity; for lk_program_compute, the total over all its
     * micro-batches or leaves. */
    int64_t count LK_ZERO;
    /* Number of samples of the global batch; required with leaves, into which the batch is split; otherwise it may be
     * 0. */
    int64_t  total LK_ZERO;
    uint64_t seed LK_ZERO; /* of dropout */
    double   rate LK_ZERO; /* learning rate, at least 0; LK_RATE_OF_OPTIMIZER: the plan's lk_optimizer_config.lr */
    /* The samples' ids, used in dropout, whose random numbers are a function of (seed, epoch, id), and in errors that
     * name a sample; borrowed while sections run. NULL: 0, 1, 2, …, and dropout uses the step instead of the epoch. */
    const int64_t *sample_ids LK_ZERO;
} lk_step;
#define LK_RATE_OF_OPTIMIZER (-1.0)
#define LK_STEP_INIT                            \
    {                                           \
        .step = 1, .rate = LK_RATE_OF_OPTIMIZER \
    }

/* A metric that the model recorded with lk_metric. */
typedef struct lk_named_metric {
    const char *name;
    double      sum, weight;
    double      value; /* sum / weight; 0 if the weight is 0 */
} lk_named_metric;

typedef struct lk_metrics {
    double loss; /* the mean: sum / weight */
    double sum;  /* over samples */
    /* the divisor of the sum. cross_entropy: the number of labels that are not ignored, or the sum of their weights;
     * mse: the number of elements; lk_loss: its weight; any other scalar: 1. A sum of losses: 1, and `sum` is the mean;
     * to see each loss, record it with lk_metric */
    double                 weight;
    double                 correct;   /* number of labels with the largest logit; 0 for losses without labels */
    double                 grad_norm; /* after LK_UPDATE with clipping; otherwise 0 */
    const lk_named_metric *named;     /* in the order in which they were recorded; valid until the next run */
    int                    named_count;
} lk_metrics;

/* The store may belong to a plan of another graph with the same states in the same order; constants may differ, and the
 * program then has its own copies. comm is the group whose ranks divide every step, or NULL if the plan is for one
 * rank; borrowed. The ranks compare their programs and their initial parameters: on LK_EMISMATCH, the message names the
 * first line or tensor that differs. */
LK_API lk_status lk_program_create(lk_plan *plan, lk_store *store, lk_comm *comm, lk_program **program);
LK_API void      lk_program_free(lk_program *program);

/* Sets the data of an input, borrowed until the input is bound again: dense, with `capacity` rows, of which the first
 * `count` are read. On devices other than the CPU, they are copied to the device when LK_FORWARD or LK_EVALUATE
 * starts. */
LK_API lk_status lk_program_bind(lk_program *program, const char *input, const void *data);
/* sets the values of the step for the following runs */
LK_API lk_status lk_program_step(lk_program *program, const lk_step *step);
/* A step must run LK_FORWARD, LK_BACKWARD and LK_UPDATE, in this order. LK_EINVAL: LK_BACKWARD without an LK_FORWARD
 * before it, or with an LK_EVALUATE in between (all sections share one memory arena); or LK_UPDATE without gradients. A
 * label or id out of range also gives LK_EINVAL: the error names the input, row, sample (lk_step.sample_ids) and value,
 * the gradients of this update are dropped, and LK_UPDATE fails. LK_FORWARD and LK_EVALUATE report it at once; with
 * several ranks, training reports it at LK_SYNC (or at LK_UPDATE, which runs LK_SYNC), on all ranks, so that no rank
 * waits for one that has failed. If the loss is a sum of losses (graph.h), each loss is divided by its own weight in
 * the whole step, which must be known before the first LK_BACKWARD: with micro_batches, let lk_program_compute or
 * lk_program_train run the sections; if you run them yourself, only the samples of one LK_FORWARD are counted. With
 * several ranks, LK_BACKWARD then begins with a small collective. */
LK_API lk_status lk_program_run(lk_program *program, lk_section section);
/* Runs FORWARD, BACKWARD and SYNC over this rank's part of the global batch, one micro-batch or leaf after the other.
 * The bound inputs hold the samples of all micro-batches or leaves. */
LK_API lk_status lk_program_compute(lk_program *program, const lk_step *step);
LK_API lk_status lk_program_train(lk_program *program, const lk_step *step); /* the same, and UPDATE */
/* The same as lk_program_train, but on a device that can run the step without the host (a GPU), the call does not wait
 * for the step to finish. With several ranks, this requires that their collectives are queued on the device too
 * (backend p2p). Otherwise the step is complete when the call returns. The ranks of a group must queue the same steps,
 * and read their results, in the same order. The bound inputs and the sample ids may be reused once the call returns.
 * Two steps may be queued before their results are read: queue one, then read the result of the previous one.
 * lk_program_result waits for the oldest step whose result has not been read; lk_program_metrics then returns its
 * metrics. On a device that queues steps, a step whose loss is not finite (LK_ENAN) or that has an id out of range
 * (LK_EINVAL) changes no state, and neither does the step queued after it; if this happens on one rank, the step is
 * stopped on all ranks. */
LK_API lk_status lk_program_queue(lk_program *program, const lk_step *step);
LK_API lk_status lk_program_result(lk_program *program);

/* Copies rank 0's parameters, optimizer state and buffers to all ranks, for example after rank 0 has loaded them.
 * Collective. */
LK_API lk_status lk_program_broadcast(lk_program *program);
/* Compares all ranks' parameters. LK_EMISMATCH: the message names the differing rank and tensor, and `step`.
 * Collective. */
LK_API lk_status lk_program_verify(lk_program *program, int64_t step);

/* While this is enabled, LK_BACKWARD accumulates gradients and starts no communication; the first LK_BACKWARD after it
 * is disabled, or LK_SYNC, reduces them all. Nothing can be added to gradients that have been sent: with several ranks,
 * enable it for all backward runs of an update except the last. */
LK_API void lk_program_no_sync(lk_program *program, bool enable);

/* The metrics of the latest LK_FORWARD or LK_EVALUATE on this rank; after LK_SYNC, over all ranks. */
LK_API void lk_program_metrics(const lk_program *program, lk_metrics *metrics);
/* Copies output i of the plan after LK_EVALUATE, before the next run. Row-major, dense; bytes must be the output's size
 * at the step's count. */
LK_API lk_status lk_program_output_read(lk_program *program, int i, void *data, size_t bytes);
/* The same without copying; valid until the next run. NULL: there is no such output, or its memory is not the
 * host's. */
LK_API const void *lk_program_output(const lk_program *program, int i);
/* The gradient of the summed loss with respect to a parameter, after LK_BACKWARD. NULL: the parameter has no gradient;
 * its memory is not the host's; or ranks share their state, so that no rank has the whole sum (lk_program_gradient_read
 * can read it on every rank). */
LK_API const void *lk_program_gradient(const lk_program *program, const char *parameter);

/* Read and write gradients, to reduce them by other means or to change them before LK_UPDATE. The gradients are copied,
 * row-major, in the graph's type; bytes must be the parameter's size. They must not be accessed while they are being
 * reduced: with several ranks, call these functions only after LK_SYNC or under lk_program_no_sync.
 *
 * These are gradients of the loss *summed* over samples (for a sum of losses, of its mean), and LK_UPDATE divides them
 * by a weight: lk_metrics.weight over everything that this program (after LK_SYNC, all ranks) has run since the last
 * update; for cross_entropy, the number of samples. So, in a program planned for one rank whose gradients are reduced
 * by other means over `world` ranks:
 *   - gradients averaged (the sum over ranks, divided by world), if all ranks had the same number of samples:
 *     write them, and leave the weight as it is;
 *   - gradients summed: write them, and set the weight to the sum of the ranks' weights. This is correct for any number
 *     of samples per rank, including 0;
 *   - gradients of the mean loss of the whole batch: write them, and set the weight to 1.
 * Gradients written when no LK_BACKWARD has run since the last update count as the result of one: gradients that are
 * not written are 0, and the weight is 1. All ranks of a group must write the same values. If they share their state,
 * gradients must be read before LK_UPDATE; the first call after LK_SYNC that changes gradients is a collective, and so
 * is LK_UPDATE.
 *
 * In a pipeline, the ranks of a stage can read the gradients of the parameters that they hold, and get LK_ENOENT for
 * others. Weights that several stages use have one gradient, the sum over all uses: reading it after LK_SYNC is a
 * collective over these stages, all of which must write and scale it in the same way. */
LK_API lk_status lk_program_gradient_read(lk_program *program, const char *parameter, void *data, size_t bytes);
LK_API lk_status lk_program_gradient_write(lk_program *program, const char *parameter, const void *data, size_t bytes);
/* Multiplies the gradient of a parameter; NULL: all gradients. */
LK_API lk_status lk_program_gradient_scale(lk_program *program, const char *parameter, double factor);
/* Sets the weight (above 0) by which the next LK_UPDATE divides all gradients, before clipping. */
LK_API lk_status lk_program_gradient_weight(lk_program *program, double weight);

/* While enabled, measures the time of each instruction; lk_program_profile_print lists the times. On a GPU they are
 * measured by its own clock, as reported by CUPTI; without CUPTI they are measured with events, and CUDA graphs are not
 * used. */
LK_API void lk_program_profile(lk_program *program, bool enable);
/* Writes the mean time in seconds for each position in training order, at most `count` values; 0 where nothing runs. If
 * several instructions run in one launch, the first gets the time of all. */
LK_API void lk_program_profile_seconds(const lk_program *program, double *seconds, size_t count);
/* On the CPU, lists the instructions in order; on a GPU, lists the rows described below, with what bounds each. */
LK_API void lk_program_profile_print(const lk_program *program, lk_text_callback write, void *user);

/* What bounds the time of an operation, at the speeds that lk_device_measure returns. */
typedef enum lk_bound {
    LK_BOUND_UNKNOWN,    /* no speed was measured (on the CPU), or the operation copies between host and device */
    LK_BOUND_BYTES,      /* reading and writing its operands once */
    LK_BOUND_ARITHMETIC, /* its multiplications and additions */
    LK_BOUND_LATENCY,    /* both would take less time than an empty kernel */
} lk_bound;
LK_API const char *lk_bound_name(lk_bound bound); /* "bytes" */

/* All instructions of a step with the same operation, type and shapes; times are means over the runs of a
 * micro-batch. */
typedef struct lk_profile_row {
    char     operation[40], shapes[104];
    lk_dtype dtype;
    /* number of instructions; several in one launch, such as the updates of all parameters, count once */
    int      calls;
    double   seconds, bytes, flops; /* of all calls: measured time; minimum bytes and operations needed */
    double   bound_seconds;         /* the least time that all calls can take; 0: unknown */
    lk_bound bound;
} lk_profile_row;

/* Writes at most `count` rows, most expensive first, and returns how many there are. The first call measures the
 * device's speed. */
LK_API size_t      lk_program_profile_rows(const lk_program *program, lk_profile_row *rows, size_t count);
LK_API const char *lk_program_profile_clock(const lk_program *program); /* "CUPTI", "events", "the host's clock" */

LK_END_DECLS
#endif
