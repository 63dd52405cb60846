/* plan.h - what a program runs and where each value is stored, to the byte, before anything is allocated. */
#ifndef LOCKSTEP_PLAN_H
#define LOCKSTEP_PLAN_H

#include <lockstep/graph.h>
#include <lockstep/mesh.h>
#include <lockstep/optimizer.h>

LK_BEGIN_DECLS

/* copies what it needs from the graph, which may then be freed; must outlive its programs and stores */
typedef struct lk_plan lk_plan;

/* Where the ranks of a group keep parameters, master copies and optimizer state. The choice does not change the bits of
 * the results. */
typedef enum lk_state_mode {
    LK_STATE_AUTO,       /* for a plan: replicated; for a trainer: shared where possible */
    LK_STATE_REPLICATED, /* every rank has its own copy and updates all of it */
    /* One copy on every host, in memory that all its ranks map; each rank sums the gradients of a slice and updates it.
     * Only on CPUs, for a group on one host or on several (lk_parallel.hosts), and with a store created with that group
     * (lk_store_create_shared). With one rank, the same as replicated. */
    LK_STATE_SHARED
} lk_state_mode;

/* The order in which the stages of a mesh with a pipeline axis compute the micro-batches of a step. It does not change
 * the bits of the gradients. X(constant, name) */
#define LK_PIPELINE_SCHEDULE_LIST(X)                                                                              \
    X(LK_PIPELINE_1F1B, "1f1b") /* alternates forward and backward, so that few micro-batches are in flight */     \
    X(LK_PIPELINE_GPIPE, "gpipe") /* forward of all micro-batches, then backward of all */                         \
    X(LK_PIPELINE_ZERO_BUBBLE, "zero-bubble") /* 1f1b that computes weight gradients where a stage would wait */

typedef enum lk_pipeline_schedule {
#define LK_PIPELINE_SCHEDULE_ENUM(constant, name) constant,
    LK_PIPELINE_SCHEDULE_LIST(LK_PIPELINE_SCHEDULE_ENUM)
#undef LK_PIPELINE_SCHEDULE_ENUM
        LK_PIPELINE_SCHEDULE_COUNT
} lk_pipeline_schedule;
LK_API const char *lk_pipeline_schedule_name(lk_pipeline_schedule schedule); /* "1f1b"; NULL if there is none */

/* How the ranks of a group divide every step. Record the graph with the capacity that lk_parallel_capacity returns:
 * enough for one micro-batch of a rank or, with leaves, for all leaves of a micro-batch. */
typedef struct lk_parallel {
    /* shorthand for a mesh with one axis, data; both 0: a single rank, or lk_plan_config.mesh */
    int world LK_ZERO, rank LK_ZERO;
    /* Number of backward runs that may be accumulated before an update; above 1, there are two sets of gradients. 0
     * means 1. With leaves, each micro-batch consists of one or more whole leaves, and the number of micro-batches does
     * not change the results. */
    int micro_batches LK_ZERO;
    /* Above 0, training is reproducible: the global batch is split into this many leaves, whose results are added in
     * one fixed tree, so that any number of ranks up to this number gives the same bits. The number of gradient sets
     * that a rank has is the depth of the tree over its leaves. All leaves of a micro-batch run as one batch, in which
     * only the operations that sum over samples run leaf by leaf: this gives the same bits and is faster. If the model
     * sums over samples between its layers, as batch norm does, the leaves run one after the other, and the plan
     * reduces its capacity to one leaf. */
    int           leaves LK_ZERO;
    size_t        bucket_bytes LK_ZERO; /* of gradients reduced together; 0 means 25 MiB (first bucket: 1 MiB) */
    lk_state_mode state LK_ZERO;
    /* With LK_STATE_SHARED, the number of hosts, as lk_comm_hosts returns it: all must have the same number of ranks,
     * numbered host by host. The ranks of a host (with leaves: its leaves) must form a whole subtree of the summation
     * order, so their number must be a power of two. 0 means 1. Also used with a shard axis and shard_stage 3: ranks
     * along that axis on the same host gather parameters once, into memory that they share; there, 0 means that every
     * rank gathers its own copy. */
    int hosts LK_ZERO;
    /* With LK_STATE_SHARED. 1: a rank's cores stay idle while it waits at LK_SYNC for other ranks of its host. 0: it
     * lends its cores to a rank that is still computing, whose threads then run part of the work there. The results
     * have the same bits. */
    int keep_cores LK_ZERO;
    /* For a mesh with a shard axis and LK_STATE_REPLICATED: what is sharded over the ranks along that axis. 1: master
     * copies and optimizer state; 2: also gradients; 3: also parameters, which are gathered block by block
     * (lk_block_begin) before use and freed afterwards. 0 means 3. The store must be created with
     * lk_store_create_shared. */
    int shard_stage LK_ZERO;
    int blocks_in_flight LK_ZERO; /* stage 3: maximum number of blocks whose parameters a rank has at once; 0 means 2 */
    /* If not 0 (requires leaves), every layout of the ranks gives the same bits, regardless of the axes of their mesh.
     * Each sum that an axis could split is divided into fixed parts, which are added in one fixed tree, even on a
     * single rank. A split that does not fall on the boundaries of these parts is rejected, and so is unsynchronised
     * batch norm. */
    int reproducible_layout LK_ZERO;
    /* With reproducible_layout, a sum has 8, 4 or 2 parts: the largest of these numbers for which each part has at
     * least this many elements; 0 means 96 */
    int                  sum_part_minimum LK_ZERO;
    lk_pipeline_schedule pipeline_schedule LK_ZERO; /* for a mesh with a pipeline axis */
} lk_parallel;

/* The capacity with which to record a graph, for global batches of up to `batch` samples; the same on all ranks. */
LK_API int64_t lk_parallel_capacity(const lk_parallel *parallel, int64_t batch);
/* The same for the ranks of a mesh; only the axes that split the batch matter. mesh NULL: the ranks given in
 * `parallel`. */
LK_API int64_t lk_mesh_capacity(const lk_mesh *mesh, const lk_parallel *parallel, int64_t batch);

/* The types in which values are stored. The graph is recorded once, in f32 or f64.
 *
 * Mixed precision stores the weights and activations of a graph recorded in f32 in a narrower type. Master weights,
 * optimizer state, gradients of parameters, statistics of norms, softmax, losses and all sums are in f32 or wider.
 * Values that the caller reads keep their types. X(constant, type, name) */
#define LK_POLICY_LIST(X) X(LK_POLICY_BF16, LK_BF16, "bf16")

typedef enum lk_policy {
    LK_POLICY_RECORDED, /* each value in the type in which it was recorded */
#define LK_POLICY_ENUM(constant, type, name) constant,
    LK_POLICY_LIST(LK_POLICY_ENUM)
#undef LK_POLICY_ENUM
        LK_POLICY_COUNT
} lk_policy;
LK_API const char *lk_policy_name(lk_policy policy); /* "recorded", "bf16" */
/* The type in which the policy stores the weights and activations of a graph recorded in f32 or f64. */
LK_API lk_dtype lk_policy_dtype(lk_policy policy, lk_dtype recorded);
/* "f32" and "f64": LK_POLICY_RECORDED with that type; "bf16": LK_POLICY_BF16 with a graph recorded in f32. False for
 * any other name. */
LK_API bool lk_policy_parse(const char *name, lk_policy *policy, lk_dtype *recorded);

/* How f32 matrix products are computed on CPUs, in linear, matmul, linear_cross_entropy and experts and in their
 * gradients. It does not change convolutions or attention. X(constant, type of operands, name) */
#define LK_MATMUL_PRECISION_LIST(X)                                                                                   \
    X(LK_MATMUL_HIGHEST, LK_F32, "highest") /* in f32 */                                                               \
    /* operands are rounded to bf16 and sums are f32, as in PyTorch with                                               \
     * set_float32_matmul_precision("medium"); stored values stay f32 */                                               \
    X(LK_MATMUL_BF16, LK_BF16, "bf16")

typedef enum lk_matmul_precision {
#define LK_MATMUL_PRECISION_ENUM(constant, type, name) constant,
    LK_MATMUL_PRECISION_LIST(LK_MATMUL_PRECISION_ENUM)
#undef LK_MATMUL_PRECISION_ENUM
        LK_MATMUL_COUNT
} lk_matmul_precision;
LK_API const char *lk_matmul_precision_name(lk_matmul_precision precision); /* "bf16"; NULL if there is none */
LK_API bool        lk_matmul_precision_parse(const char *name, lk_matmul_precision *precision); /* false: unknown */

enum { LK_PIECES_ESTIMATED = -1 };

typedef struct lk_plan_config {
    size_t                     size LK_ZERO;    /* sizeof this struct; set by LK_PLAN_CONFIG_INIT */
    lk_tensor                  loss LK_ZERO;    /* a scalar; missing for inference */
    const lk_tensor           *outputs LK_ZERO; /* values to read after LK_EVALUATE, e.g. the logits */
    int                        outputs_count LK_ZERO;
    const lk_optimizer_config *optimizer LK_ZERO; /* NULL: evaluation only, no gradients, no optimizer state */
    bool                       no_fusion LK_ZERO; /* run each operation as recorded, for numerical checks */
    lk_parallel                parallel LK_ZERO;
    bool      sync_batch_norm LK_ZERO; /* batch norm uses statistics of the global batch; an error without batch norm */
    lk_policy policy LK_ZERO;
    /* LK_F32: gradients are reduced as they are. A narrower type, such as LK_BF16: gradients are rounded to that type
     * for the all_reduce, which halves the bytes sent; not supported with leaves */
    lk_dtype gradient_dtype LK_ZERO;
    int      unused LK_ZERO; /* ignored: padding in older versions, which left it undefined */
    /* The ranks, and this rank's place among them; copied. NULL: as given in `parallel`. */
    const lk_mesh *mesh LK_ZERO;
    /* Overrides how the plan splits states: lines of the form "PATTERN: FACTOR@AXIS", such as "blocks.*.mlp.up.weight:
     * out@tensor"; # starts a comment. PATTERN is matched against the names of states with fnmatch, and the first line
     * that matches a state applies. FACTOR is the name of a dimension in the operation that uses the state (out or in
     * for a linear layer), the dimension's number, or "whole": every rank has all of the state. "out/3" splits each of
     * 3 repetitions separately; "out*2" puts each part on 2 ranks. NULL: the plan chooses. */
    const char *tactics LK_ZERO;
    /* By default, tokens are split over the tensor axis between the parts of a block that are split over it, which
     * takes less memory. If not 0, every rank along that axis has all tokens there instead. */
    int no_sequence_parallel LK_ZERO;
    /* Above 1, with a tensor axis: forward collectives are cut into this many pieces of the batch, at most 8. A matrix
     * product can then begin with the rows that have arrived, and its finished rows are sent while the others are
     * computed. The results have the same bits. LK_PIECES_ESTIMATED: collectives are cut where this is estimated to
     * save time over a network, into the number of pieces that saves the most. Cutting costs time if nothing can be
     * sent while kernels run, as between ranks that share their cores. Nothing is cut with leaves, or if the device has
     * its own memory. 0 or 1: nothing is cut. */
    int pieces LK_ZERO;
    /* With a pipeline axis, the layers of each stage, such as "0-5,6-11", numbered from 0 in the order in which the
     * model records them. "-" is a first or last stage without layers, which has only the operations before or after
     * all layers. Layers are the blocks (lk_block_begin) whose last name component is a number ("h.0", "blocks.3"); if
     * there are none, enclosing blocks whose names end with a number ("block0"), or else the outermost blocks. If there
     * are fewer layers than stages, other parts of the model are numbered instead, and the model is cut between these;
     * `lockstep plan` lists them. NULL: the plan cuts the model by estimated time and memory. */
    const char *stages LK_ZERO;
    /* For a graph recorded in f32, on CPUs. */
    lk_matmul_precision matmul_precision LK_ZERO;
    /* If not 0, ranks evaluate parts of the same batches. Each must run LK_EVALUATE as often as the others, with count
     * 0 if its part is empty. Sums over the batch in the model (lk_moe_balance) then cover all parts in LK_EVALUATE
     * too. Otherwise, and with leaves, they cover only the samples that a rank evaluates in one run. */
    int joint_evaluation LK_ZERO;
} lk_plan_config;
#define LK_PLAN_CONFIG_INIT {.size = sizeof(lk_plan_config)}

/* Fails with the graph's first failure if it has one, or if no plan is possible; lk_context_error returns the reason.
 * config may be NULL to use all defaults: an evaluation-only plan without outputs. */
LK_API lk_status lk_plan_create(lk_graph *graph, const lk_plan_config *config, lk_plan **plan);
LK_API void      lk_plan_free(lk_plan *plan);

/* The exact number of bytes of this kind that a store and a program of this plan will use. */
LK_API size_t lk_plan_memory(const lk_plan *plan, lk_memory kind);
/* LK_STATE_SHARED or LK_STATE_REPLICATED. */
LK_API lk_state_mode lk_plan_state(const lk_plan *plan);
/* The number of waiting ranks' cores that a rank can use (lk_parallel.keep_cores); each needs some workspace. */
LK_API int lk_plan_helpers(const lk_plan *plan);
/* Which ranks share one copy of a kind of memory: none (each rank has its own copy), the ranks of a NUMA node, or the
 * ranks of a host. */
typedef enum lk_holder { LK_HELD_BY_RANK, LK_HELD_BY_NODE, LK_HELD_BY_HOST } lk_holder;
LK_API lk_holder lk_plan_holder(const lk_plan *plan, lk_memory kind);
/* A hash of everything that will run; equal for equal plans. Where algorithms are autotuned (on GPUs), it covers the
 * algorithms chosen, once a program has been created. */
LK_API uint64_t lk_plan_fingerprint(const lk_plan *plan);
/* The maximum number of samples in one run of a section: the graph's capacity, or the capacity of one leaf if leaves
 * run one after the other. */
LK_API int64_t lk_plan_capacity(const lk_plan *plan);
/* Lists the sections: each instruction with its operands, their shapes and their places in memory. */
LK_API void lk_plan_print(const lk_plan *plan, lk_text_callback write, void *user);

/* Writes how states are split along the tensor axis, as lines for lk_plan_config.tactics; writes nothing if that axis
 * has one rank. */
LK_API void lk_plan_tactics(const lk_plan *plan, lk_text_callback write, void *user);

/* What one rank sends in a step to other ranks along some axes of its mesh; it receives as much. */
typedef struct lk_traffic {
    unsigned axes;        /* along which it communicates: LK_AXIS_TENSOR, or LK_AXIS_DATA | LK_AXIS_SHARD */
    int      collectives; /* in one step, over all micro-batches; along pipeline: messages to other stages */
    double   bytes;       /* for full batches; ranks that share their state read this much of each other's memory */
} lk_traffic;
/* Writes up to `most` entries, one for each set of axes along which ranks communicate in training, and returns how many
 * there are. Evaluations, checkpoints and the small exchange of losses and metrics are not included. */
LK_API int lk_plan_traffic(const lk_plan *plan, lk_traffic *traffic, int most);

/* The machine's speeds, for estimating the time of a step. */
typedef struct lk_rates {
    double        flops LK_ZERO, memory LK_ZERO; /* of one rank: operations per second, bytes per second */
    double        link LK_ZERO, latency LK_ZERO; /* between ranks: bytes per second in each direction; seconds */
    const double *seconds LK_ZERO; /* measured times to use instead, by position in training order; or NULL */
    size_t        seconds_count LK_ZERO;
} lk_rates;

/* Prints the estimate of a step: its sections, each collective with its size and what it overlaps with, and the
 * critical path. Returns the length of the critical path in seconds. write may be NULL. */
LK_API double lk_plan_step(const lk_plan *plan, const lk_rates *rates, lk_text_callback write, void *user);
/* Number of instructions in training order: the length of lk_rates.seconds. */
LK_API size_t lk_plan_instructions(const lk_plan *plan);

/* A stage of a mesh with a pipeline axis; times are estimates for one micro-batch. */
typedef struct lk_stage {
    int    first_block, last_block; /* as in lk_plan_config.stages; last_block < first_block: none */
    int    slots;                   /* maximum number of micro-batches whose activations it holds at once */
    double forward, backward, weights; /* seconds; weights: only with zero-bubble, otherwise part of backward */
} lk_stage;
/* Writes up to `most` stages and returns how many there are; 0 without a pipeline axis. */
LK_API int lk_plan_stages(const lk_plan *plan, const lk_rates *rates, lk_stage *stages, int most);
/* One run of a stage in the estimated timeline of a step, which begins at time 0. */
typedef struct lk_stage_run {
    int         stage, micro_batch;
    const char *kind; /* "forward", "backward", "weight gradient" */
    double      begin, end;
} lk_stage_run;
/* Writes up to `most` runs of all stages, one stage after the other, and returns how many there are. */
LK_API size_t lk_plan_timeline(const lk_plan *plan, const lk_rates *rates, lk_stage_run *runs, size_t most);

/* Makes this plan's estimates use times measured with another plan of the same model, such as a plan for a single rank
 * with the same number of samples: `count` values in seconds, by position in that plan's training order
 * (lk_program_profile_seconds). */
LK_API lk_status lk_plan_calibrate(lk_plan *plan, const lk_plan *measured, const double *seconds, size_t count);

LK_END_DECLS
#endif
