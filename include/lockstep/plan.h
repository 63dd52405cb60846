/* plan.h - what a program runs and where each value is stored, to the byte, before anything is allocated. */
#ifndef LOCKSTEP_PLAN_H
#define LOCKSTEP_PLAN_H

#include <lockstep/graph.h>
#include <lockstep/mesh.h>
#include <lockstep/optimizer.h>

LK_BEGIN_DECLS

/* copies what it needs of the graph, which may be freed; must outlive its programs and stores */
typedef struct lk_plan lk_plan;

/* Where the ranks of a group keep parameters, master copies and optimizer state. The results are the same, bit for
 * bit. */
typedef enum lk_state_mode {
    LK_STATE_AUTO,       /* of a plan: replicated. Of a trainer: shared where that is possible */
    LK_STATE_REPLICATED, /* every rank has its own, and updates all of it */
    /* Once on every host, in memory that its ranks map; each of them sums and updates a slice. On CPUs, in a group
     * whose ranks are on one host, or on several (lk_parallel.hosts), with a store that was created with that group
     * (lk_store_create_shared). With one rank it is the same as replicated. */
    LK_STATE_SHARED
} lk_state_mode;

/* In which order the stages of a mesh with a pipeline axis compute the micro-batches of a step. The gradients are the
 * same bits. X(constant, name) */
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

/* How the ranks of a group share every step. The graph is recorded with the capacity that lk_parallel_capacity gives:
 * that of one micro-batch of a rank or, with leaves, of all leaves of it. */
typedef struct lk_parallel {
    int world LK_ZERO,
        /* the short form of a mesh with one axis, data; 0 and 0: one rank alone, or lk_plan_config.mesh */
        rank LK_ZERO;
    /* Backward runs that may be accumulated before an update; above 1, there are two sets of gradients. 0: 1. With
     * leaves each of them is of one or more whole leaves, and changes no bits. */
    int micro_batches LK_ZERO;
    /* Above 0: reproducible. The global batch is split into this many leaves, whose results are added in one fixed
     * tree, so that any number of ranks up to it gives the same bits. A rank has as many sets of gradients as the
     * tree over its leaves is deep. The plan lets all leaves of a micro-batch run as one batch, of which only
     * operations that add over samples run leaf by leaf: the same bits, faster. Where the model adds over samples
     * between its layers, as batch norm does, they run one after the other, and the plan reduces its capacity to that
     * of one leaf. */
    int           leaves LK_ZERO;
    size_t        bucket_bytes LK_ZERO; /* of gradients that are reduced together; 0: 25 MiB, the first 1 MiB */
    lk_state_mode state LK_ZERO;
    /* With LK_STATE_SHARED: the number of hosts, with the same number of ranks each, numbered host by host:
     * lk_comm_hosts returns it. The ranks of a host, or with leaves its leaves, must be a whole subtree of the order of
     * sums: their number a power of two. 0: 1.
     * Also used with a shard axis and shard_stage 3: ranks along it on the same host gather parameters once, into
     * memory that they share. 0: every rank gathers its own copy. */
    int hosts LK_ZERO;
    /* With LK_STATE_SHARED: 1: a rank that waits for others of its host at LK_SYNC leaves its cores idle. 0: it lends
     * them: threads of a rank that still computes run part of its work there. The bits are the same. */
    int keep_cores LK_ZERO;
    /* For a mesh with a shard axis and LK_STATE_REPLICATED: what is sharded over the ranks along that axis. 1: master
     * copies and optimizer state; 2: gradients too; 3: parameters too, which are gathered block by block
     * (lk_block_begin) before use and freed afterwards. 0 means 3. The store is created with
     * lk_store_create_shared. */
    int shard_stage LK_ZERO;
    int blocks_in_flight LK_ZERO; /* stage 3: the most blocks whose parameters a rank has at a time; 0: 2 */
    /* With leaves, not 0: every layout of the ranks gives the same bits, whatever the axes of their mesh. Each sum that
     * some axis could split is made of fixed parts, which are added in one fixed tree, on one rank, too. A split that
     * does not fall on boundaries of parts is refused, and so is batch norm that is not synchronised. */
    int reproducible_layout LK_ZERO;
    /* Of reproducible_layout: such a sum has 8 parts, or 4 or 2, so that each has at least this many elements; 0: 96 */
    int                  sum_part_minimum LK_ZERO;
    lk_pipeline_schedule pipeline_schedule LK_ZERO; /* of a mesh with a pipeline axis */
} lk_parallel;

/* The capacity to record a graph with, for global batches of up to `batch` samples; the same on all ranks. */
LK_API int64_t lk_parallel_capacity(const lk_parallel *parallel, int64_t batch);
/* The same where the ranks are those of a mesh, of which the axes that split the batch count. mesh NULL: those of
 * parallel. */
LK_API int64_t lk_mesh_capacity(const lk_mesh *mesh, const lk_parallel *parallel, int64_t batch);

/* In which types values are stored. The graph is recorded once, in f32 or f64.
 *
 * Mixed precision, of a graph recorded in f32: weights and activations in a narrower type; master weights, optimizer
 * state, gradients of parameters, statistics of norms, softmax, losses and all sums in f32 at least. What the caller
 * reads keeps its type. X(constant, type, name) */
#define LK_POLICY_LIST(X) X(LK_POLICY_BF16, LK_BF16, "bf16")

typedef enum lk_policy {
    LK_POLICY_RECORDED, /* each in the type that it was recorded in */
#define LK_POLICY_ENUM(constant, type, name) constant,
    LK_POLICY_LIST(LK_POLICY_ENUM)
#undef LK_POLICY_ENUM
        LK_POLICY_COUNT
} lk_policy;
LK_API const char *lk_policy_name(lk_policy policy); /* "recorded", "bf16" */
/* The type in which weights and activations are stored of a graph that is recorded in f32 or f64. */
LK_API lk_dtype lk_policy_dtype(lk_policy policy, lk_dtype recorded);
/* "f32" and "f64": LK_POLICY_RECORDED with that type; "bf16": LK_POLICY_BF16 with a graph recorded in f32. False for
 * any other name. */
LK_API bool lk_policy_parse(const char *name, lk_policy *policy, lk_dtype *recorded);

/* How products of f32 are computed, on CPUs: those of linear, matmul, linear_cross_entropy and experts, and of their
 * gradients. Convolutions and attention are not changed. X(constant, type of operands, name) */
#define LK_MATMUL_PRECISION_LIST(X)                                                                                   \
    X(LK_MATMUL_HIGHEST, LK_F32, "highest") /* in f32 */                                                               \
    /* operands are rounded to bf16 and sums are f32, as in PyTorch with                                               \
     * set_float32_matmul_precision("medium"); what is stored stays f32 */                                             \
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
    lk_tensor                  loss LK_ZERO;    /* a single number; missing for inference */
    const lk_tensor           *outputs LK_ZERO; /* values to read after LK_EVALUATE, e.g. the logits */
    int                        outputs_count LK_ZERO;
    const lk_optimizer_config *optimizer LK_ZERO; /* NULL: evaluation only, no gradients, no optimizer state */
    bool                       no_fusion LK_ZERO; /* run each operation as recorded: for numerical checks */
    lk_parallel                parallel LK_ZERO;
    bool      sync_batch_norm LK_ZERO; /* statistics of the global batch; an error without batch norm */
    lk_policy policy LK_ZERO;
    /* the type of a policy: gradients are rounded for the all_reduce, and half the bytes are sent; not with leaves */
    lk_dtype gradient_dtype LK_ZERO;
    int      unused LK_ZERO; /* was padding, which a caller leaves undefined */
    /* The ranks, and this one's place among them; copied. NULL: parallel's. */
    const lk_mesh *mesh LK_ZERO;
    /* Overrides how the plan splits states: lines of the form "PATTERN: FACTOR@AXIS", such as
     * "blocks.*.mlp.up.weight: out@tensor"; # starts a comment. PATTERN is matched with the names of states, as
     * fnmatch does, and the first line that matches a state decides. FACTOR is the name of a dimension in the operation
     * that uses the state (out and in of a linear layer), the dimension's number, or "whole": every rank has all of
     * it. "out/3" is cut in each of 3 repetitions, and of "out*2" each part is on 2 ranks. NULL: the plan's own
     * choice. */
    const char *tactics LK_ZERO;
    /* Not 0: between the parts of a block that are split over the tensor axis, every rank along it has all tokens.
     * Otherwise they are split there, too, and take less memory. */
    int no_sequence_parallel LK_ZERO;
    /* Above 1, with a tensor axis: collectives of forward are cut into so many pieces of the batch, at most
     * 8. A product then begins with the rows that have arrived, and its rows leave while the others are computed. The
     * results are the same bits. LK_PIECES_ESTIMATED: where, and into as many, as is estimated to save time over a
     * network. It costs time where nothing is sent while kernels run, as between ranks that share their cores. Nothing
     * is cut with leaves, nor where the device has memory of its own. 0 or 1: none. */
    int pieces LK_ZERO;
    /* With a pipeline axis: the layers of each stage, "0-5,6-11", numbered from 0 in the order in which the
     * model records them; "-" for a first or last stage with none of them, which has what precedes or follows them all.
     * Layers are the blocks (lk_block_begin) whose name is a number after its last dot ("h.0", "blocks.3"); if there
     * are none, enclosing blocks whose name ends with a number ("block0"); otherwise the outermost blocks. If a model
     * has fewer parts than there are stages, it is cut between others, which are numbered instead; `lockstep plan`
     * lists them. NULL: the plan cuts by estimated time and memory. */
    const char *stages LK_ZERO;
    /* Of a graph that was recorded in f32, on CPUs. */
    lk_matmul_precision matmul_precision LK_ZERO;
    /* Not 0: ranks evaluate parts of the same batches, each as often as the others, with count 0 where a part is empty.
     * What the model adds over the batch (lk_moe_balance) is then of all parts in LK_EVALUATE, too. Otherwise, and with
     * leaves, it is of what a rank evaluates in one run. */
    int joint_evaluation LK_ZERO;
} lk_plan_config;
#define LK_PLAN_CONFIG_INIT {.size = sizeof(lk_plan_config)}

/* Fails with the graph's first failure, or if no plan is possible; lk_context_error returns the reason. config may be
 * NULL for all defaults: an evaluation-only plan without outputs. */
LK_API lk_status lk_plan_create(lk_graph *graph, const lk_plan_config *config, lk_plan **plan);
LK_API void      lk_plan_free(lk_plan *plan);

/* Exact bytes of each kind that a store and a program of this plan will use. */
LK_API size_t lk_plan_memory(const lk_plan *plan, lk_memory kind);
/* LK_STATE_SHARED or LK_STATE_REPLICATED. */
LK_API lk_state_mode lk_plan_state(const lk_plan *plan);
/* How many cores of waiting ranks a rank can use (lk_parallel.keep_cores); each takes some workspace. */
LK_API int lk_plan_helpers(const lk_plan *plan);
/* Who holds one copy of a kind of memory: every rank; the ranks of a memory node (NUMA) together; or all ranks of a
 * host. */
typedef enum lk_holder { LK_HELD_BY_RANK, LK_HELD_BY_NODE, LK_HELD_BY_HOST } lk_holder;
LK_API lk_holder lk_plan_holder(const lk_plan *plan, lk_memory kind);
/* A hash of everything that will run; equal for equal plans. Where algorithms are autotuned (GPUs), they are part of it
 * once a program has been created. */
LK_API uint64_t lk_plan_fingerprint(const lk_plan *plan);
/* The most samples that one run of a section can have: the graph's capacity, or that of one leaf where leaves run one
 * after the other. */
LK_API int64_t lk_plan_capacity(const lk_plan *plan);
/* Lists the sections: each instruction with its operands, shapes and place in memory. */
LK_API void lk_plan_print(const lk_plan *plan, lk_text_callback write, void *user);

/* How states are split along the tensor axis, as lines that lk_plan_config.tactics takes; nothing where it has one
 * rank. */
LK_API void lk_plan_tactics(const lk_plan *plan, lk_text_callback write, void *user);

/* What one rank sends in a step to others along some axes of its mesh; it receives as much. */
typedef struct lk_traffic {
    unsigned axes;        /* of the groups: LK_AXIS_TENSOR, or LK_AXIS_DATA | LK_AXIS_SHARD */
    int      collectives; /* of one step, with all micro-batches; along pipeline: messages to other stages */
    double   bytes;       /* of full batches; ranks that share their state read as much of each other's memory */
} lk_traffic;
/* Writes up to `most` of them, one for each set of axes along which ranks communicate in training, and returns how many
 * there are. Not the small exchange of losses and metrics, nor evaluations and checkpoints. */
LK_API int lk_plan_traffic(const lk_plan *plan, lk_traffic *traffic, int most);

/* The machine's rates, to estimate the time of a step. */
typedef struct lk_rates {
    double        flops LK_ZERO, memory LK_ZERO; /* of one rank: operations per second, bytes per second */
    double        link LK_ZERO, latency LK_ZERO; /* between ranks: bytes per second each way, seconds */
    const double *seconds LK_ZERO; /* measured times instead, by position in the training order; NULL: none */
    size_t        seconds_count LK_ZERO;
} lk_rates;

/* Prints the estimate of a step: its sections, each collective with its size and what it overlaps with, and the
 * critical path, whose seconds it returns. write may be NULL. */
LK_API double lk_plan_step(const lk_plan *plan, const lk_rates *rates, lk_text_callback write, void *user);
/* Number of instructions in the training order: the length of lk_rates.seconds. */
LK_API size_t lk_plan_instructions(const lk_plan *plan);

/* A stage of a mesh with a pipeline axis; times are estimates of one micro-batch. */
typedef struct lk_stage {
    int    first_block, last_block; /* as in lk_plan_config.stages; last_block below first_block: none */
    int    slots;                   /* micro-batches whose activations it has at once */
    double forward, backward, weights; /* seconds; weights: of the schedule zero-bubble, else part of backward */
} lk_stage;
/* Writes up to `most` stages and returns how many there are; 0: there is no such axis. */
LK_API int lk_plan_stages(const lk_plan *plan, const lk_rates *rates, lk_stage *stages, int most);
/* A run of a stage in the estimated timeline of a step, which begins at 0. */
typedef struct lk_stage_run {
    int         stage, micro_batch;
    const char *kind; /* "forward", "backward", "weight gradient" */
    double      begin, end;
} lk_stage_run;
/* The same for all runs of all stages, one stage after the other. */
LK_API size_t lk_plan_timeline(const lk_plan *plan, const lk_rates *rates, lk_stage_run *runs, size_t most);

/* Estimates of this plan then use times that were measured with another plan of the same model, such as that of one
 * rank with as many samples: `count` seconds by position in that plan's training order (lk_program_profile_seconds). */
LK_API lk_status lk_plan_calibrate(lk_plan *plan, const lk_plan *measured, const double *seconds, size_t count);

LK_END_DECLS
#endif
