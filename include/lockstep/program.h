/* program.h - what one rank runs: sections of instructions over a store. After creation nothing is allocated. */
#ifndef LOCKSTEP_PROGRAM_H
#define LOCKSTEP_PROGRAM_H

#include <lockstep/comm.h>
#include <lockstep/store.h>

LK_BEGIN_DECLS

typedef struct lk_program lk_program; /* use from one thread */

typedef enum lk_section {
    LK_FORWARD, /* training mode; loss and metrics */
    LK_BACKWARD, /* gradients of the sum of the loss over the samples; with micro_batches a second one adds to the first, until an
                  * update or a LK_SYNC; else it replaces it */
    LK_SYNC,     /* gradients and metrics become those of all ranks and of every backward since the last update */
    LK_UPDATE,   /* clipping and the optimizer's step, by the mean gradient; synchronises first if nobody did */
    LK_EVALUATE, /* evaluation mode; loss, metrics and outputs */
    LK_SECTION_COUNT
} lk_section;

/* What changes from step to step. */
typedef struct lk_step {
    int64_t step LK_ZERO;  /* this update's number, from 1 */
    int64_t epoch LK_ZERO; /* from 0 */
    /* Samples of this rank: 0 … capacity (times the micro-batches or leaves, for lk_program_compute). */
    int64_t count LK_ZERO;
    /* Samples of the global batch: asked for with leaves, which are cut by it; else 0 will do. */
    int64_t  total LK_ZERO;
    uint64_t seed LK_ZERO; /* of dropout */
    double   rate LK_ZERO; /* learning rate */
    /* Of the batch, for dropout, whose numbers follow from (seed, epoch, id), and for errors that name a sample: borrowed while
     * sections run. NULL: 0, 1, 2, …, and the step takes the epoch's place. */
    const int64_t *sample_ids LK_ZERO;
} lk_step;

typedef struct lk_metrics {
    double loss;   /* mean: sum over weight */
    double sum;    /* over samples */
    double weight; /* what the sum is divided by. cross_entropy: the count, less what is ignored, or the samples' weights;
                       * mse: elements; any other loss: 1 */
    double correct;   /* samples whose label is on top; 0 for losses that know none */
    double grad_norm; /* after LK_UPDATE with clipping; else 0 */
} lk_metrics;

/* The store may be of another plan, if that has the same states, laid out alike. comm is the group whose ranks share every
 * step, NULL where the plan is for one rank; borrowed. The ranks compare what they are about to run and what they start from:
 * LK_EMISMATCH names the first line or tensor in which two differ. */
LK_API lk_status lk_program_create(lk_plan *plan, lk_store *store, lk_comm *comm, lk_program **program);
LK_API void      lk_program_free(lk_program *program);

/* The data of an input, borrowed until it is bound anew: dense, capacity rows of which the first count are read. */
LK_API lk_status lk_program_bind(lk_program *program, const char *input, const void *data);
LK_API lk_status lk_program_step(lk_program *program, const lk_step *step); /* sets the step block for the runs to come */
/* The order of a step is LK_FORWARD, LK_BACKWARD, LK_UPDATE; LK_EINVAL says so where it is another: LK_BACKWARD without a
 * LK_FORWARD of its own, or with a LK_EVALUATE in between (all sections share one arena), LK_UPDATE without gradients.
 * A label or id out of range is LK_EINVAL as well: input, row, sample (lk_step.sample_ids) and value are named, the gradients of
 * this update are dropped, and LK_UPDATE is refused. LK_FORWARD and LK_EVALUATE say it at once; with other ranks, training says
 * it at LK_SYNC (or LK_UPDATE, which does that), on all ranks alike, so that none waits for one that left. */
LK_API lk_status lk_program_run(lk_program *program, lk_section section);
/* FORWARD, BACKWARD and SYNC of all that this rank has of the global batch: one micro-batch or leaf after the other, cut from
 * the inputs, which hold the samples of all of them. */
LK_API lk_status lk_program_compute(lk_program *program, const lk_step *step);
LK_API lk_status lk_program_train(lk_program *program, const lk_step *step); /* the same, and UPDATE */

/* Rank 0's parameters, optimizer state and buffers to all ranks: after it alone has read them. Collective. */
LK_API lk_status lk_program_broadcast(lk_program *program);
/* Compares all ranks' parameters. LK_EMISMATCH names the rank and the tensor that differ, and `step`. Collective. */
LK_API lk_status lk_program_verify(lk_program *program, int64_t step);

/* While true, LK_BACKWARD adds up gradients and starts no communication: the next one after it, or LK_SYNC, does it all. To
 * what was sent to other ranks nothing can be added: with them, all backward runs of an update but the last ask for this. */
LK_API void lk_no_sync(lk_program *program, bool enable);

/* Of the latest FORWARD or EVALUATE here; after SYNC, of all ranks. */
LK_API void lk_program_metrics(const lk_program *program, lk_metrics *metrics);
/* Output i of the plan after LK_EVALUATE, valid until the next run. Row-major. */
LK_API const void *lk_program_output(const lk_program *program, int i);
/* The gradient of the sum of the loss with respect to a parameter, after LK_BACKWARD; NULL: it has none. */
LK_API const void *lk_program_gradient(const lk_program *program, const char *parameter);

/* Gradients of your own: reduced over ranks by hand, or changed before LK_UPDATE. They are copied, row-major, in the graph's type;
 * bytes must be the parameter's. Not while they travel: with other ranks after LK_SYNC, or before it under lk_no_sync.
 *
 * A gradient is that of the *sum* of the loss over samples, and LK_UPDATE divides it by a weight: lk_metrics.weight of what this
 * program has run since the last update (of all ranks after LK_SYNC), for cross_entropy the number of samples. So, in a program
 * that was planned for one rank, with gradients reduced by hand over `world` ranks:
 *   - gradients averaged (the sum over ranks, divided by world), all ranks having had the same number of samples: write them,
 *     and the weight stays as it is;
 *   - gradients summed: write them, and set the weight to the sum of the ranks' weights. Right for any numbers of samples, 0 too;
 *   - gradients of the mean loss of the whole batch: write them, and set the weight to 1.
 * Written without a LK_BACKWARD since the last update, they count as one: those not written are 0, and the weight is 1. All ranks
 * of a group must write the same. */
LK_API lk_status lk_program_gradient_read(lk_program *program, const char *parameter, void *data, size_t bytes);
LK_API lk_status lk_program_gradient_write(lk_program *program, const char *parameter, const void *data, size_t bytes);
/* Multiplies the gradient of a parameter; NULL: all gradients. */
LK_API lk_status lk_program_gradient_scale(lk_program *program, const char *parameter, double factor);
/* What the next LK_UPDATE divides all gradients by, before clipping; above 0. */
LK_API lk_status lk_program_gradient_weight(lk_program *program, double weight);

/* Time spent per instruction while enabled; the listing says where a step's time went. */
LK_API void lk_program_profile(lk_program *program, bool enable);
/* The same as numbers: mean seconds by position in the training order, 0 where nothing runs; at most `count`. */
LK_API void lk_program_profile_seconds(const lk_program *program, double *seconds, size_t count);
LK_API void lk_program_profile_print(const lk_program *program, lk_write write, void *user);

LK_END_DECLS
#endif
