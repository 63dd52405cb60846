/* run/program.h - the internals of a program: micro-batch slots and their instruction lists: kernels, collectives,
 * waits.
 *
 * A slot is one micro-batch in flight: its activations, its inputs and its step block. Most programs have one. Leaves
 * that are coupled by synchronised batch norm have one each, and advance together. */
#ifndef LK__PROGRAM_H
#define LK__PROGRAM_H

#include "plan/schedule.h"
#include "run/store.h"
#include "run/trainer_interface.h"

typedef struct lk__run_instruction lk__run_instruction;
/* Runs the instruction's kernel: its one call, or one for each leaf. Chosen when the instruction is made. */
typedef lk_status (*lk__run_calls)(lk_program *program, lk__run_instruction *instruction);

struct lk__run_instruction {
    lk__run_calls    issue;
    lk__kernel       run;
    lk__kernel_call  call;
    lk__kernel_call *leaves;     /* one per leaf of this rank, where it is run leaf by leaf; else NULL */
    int              node;       /* -1: none */
    lk__op           op;         /* of the node */
    lk__plan_action  action;     /* what it does */
    unsigned         when;       /* conditions of the runs that it is part of */
    int              bucket;     /* of gradients; -1: none */
    int              collective; /* of a start or a wait: which one, in the order of the list; -1: none */
    int              launch;     /* the launch group that begins here (launch.c); -1: none does */
    const char      *how;        /* of a start: lk__plan_instruction's */
    const char      *name;       /* while tracing */
    double           seconds;    /* while profiling */
    int64_t          runs;
    size_t           together; /* while profiling: how many instructions from this one on ran as one; 0: it ran alone */
};

typedef struct lk__run_launch lk__run_launch; /* launch.c: a launch group */

typedef struct lk__run_list {
    const lk__plan_list *planned;
    lk__run_instruction *instructions;
    lk__run_launch      *launches; /* by number in the plan's list; NULL: none */
    size_t               count, collectives;
    lk__plan_ranges      at;      /* the sections among the instructions */
    bool                 by_leaf; /* some run leaf by leaf, on rows that follow from the samples of the global batch */
    int64_t              samples; /* the count that operands are set for; -1: none yet, or an input was rebound */
    int64_t              total;   /* the same for the samples of the global batch, where by_leaf */
    const char          *gradients;  /* the same for the set of gradients */
    int                  part, each; /* the same for the leaves of the run, where by_leaf */
} lk__run_list;

typedef struct lk__run_slot {
    char           *arena;
    const void    **inputs; /* by value id of the plan's graph; the caller's */
    const int64_t  *ids;    /* of its samples; the caller's */
    int64_t         first;  /* of its rows among those that are bound */
    char           *staged; /* the device's copies of the step block and of both; NULL: it reads the host's */
    lk__kernel_step step;
    lk__kernel_step step_staged; /* the latest that was copied */
    bool            ready;       /* LK_FORWARD has run, and LK_BACKWARD may */
    lk__run_list    train;
} lk__run_slot;

typedef struct lk__run_collectives lk__run_collectives; /* collective.h: buffers and works */
typedef struct lk__run_graphs      lk__run_graphs;      /* graphs.c: work that the device has recorded */
typedef struct lk__run_source      lk__run_source;      /* source.c: inputs that the device makes */
typedef struct lk__digests         lk__digests;         /* digest.c */
typedef struct lk__shard_norm      lk__shard_norm;      /* shard_norm.c: the norm of slices, with leaves */
typedef struct lk__run_shared      lk__run_shared;      /* shared.h: slices of a state that the ranks share */
typedef struct lk__run_lend        lk__run_lend;        /* lend.h: cores that ranks lend to each other */
typedef struct lk__run_queue       lk__run_queue;       /* step.c: steps whose results were not read yet */
typedef struct lk__run_timeline    lk__run_timeline;    /* timeline.h: when work ran on the device */
struct lk__run_tokens;                                  /* tokens.c: steps whose tokens the device chooses */

/* The memory of a program, the device's but where it says otherwise (regions.c, staging.c). */
typedef struct lk__run_memory {
    char *block; /* all regions; NULL: each is its own allocation */
    char *arena, *workspace, *gradients;
    char *common;   /* in the arena, after those of all slots: LK__IN_COMMON */
    char *gathered; /* parameters that were gathered, and gradients until they are reduced (plan/shard.h) */
    /* the same, parameters that the ranks of a host gather once: of all of them, and what this rank has allocated */
    char *host, *host_share;
    /* what collectives reduce: the gradients or, where they do not reach the device, a copy of the host's */
    char   *exchanged;
    char   *constants, *own_constants; /* the store's, or its own where those are others; else NULL */
    char   *leaf_sums;                 /* where leaves run as one batch: sums that collectives read */
    size_t  leaf_sums_bytes;
    char   *device_staging, *queue_numbers; /* of step.c */
    char   *staged;    /* off the CPU: the report of ids out of range, the slots' inputs, then … */
    char   *rows_sent; /* … samples that were sent by row, where steps are not queued; NULL: none are */
    size_t  staged_bytes;
    size_t *input_offsets;         /* in the inputs of a slot, by value id; last: the ids */
    lk__kernel_invalid_id *report; /* off the CPU: where kernels report ids */
    char                  *chunk;  /* off the CPU, with other ranks: LK__STAGING_CHUNK bytes of the host's */
} lk__run_memory;

/* How far a step has progressed: which sections may run, and with which conditions (section.c). */
typedef struct lk__run_progress {
    bool    overwritten; /* an LK_EVALUATE has run since LK_FORWARD */
    int64_t evaluated;   /* samples of the LK_EVALUATE that ran last; -1: another section has run since */
    int     pending;     /* backward runs since the last update; written gradients count as one */
    bool    earlier;     /* the same, before the current step or run by hand: the first of the step adds to them */
    bool    no_sync, synced;
    bool    has_gradients; /* some were made or written since the program was created */
    bool    written;       /* the gradients are the caller's alone: no backward has run */
    bool    sent;          /* the buckets of this update are in flight or reduced */
    double  weight;        /* once synced: what the update divides by */
    /* of the next LK_SYNC: the state is not read before the update, which may begin at once */
    bool allows_update;
    bool update_allowed; /* the same of the latest LK_SYNC, for all ranks */
} lk__run_progress;

/* How the sum of all ranks' gradients is reached, once the program is synced: it is in the gradients of every rank
 * (gradient.c), or divided over ranks that share their state (shared_gradient.c). Chosen when the program is
 * created. */
typedef struct lk__run_gradients {
    bool forgotten; /* after the update nothing can be read */
    lk_status (*read)(lk_program *program, int state, void *data, size_t bytes);
    lk_status (*gather)(lk_program *program); /* makes the gradients of all ranks the whole sum. Collective */
    lk_status (*reuse)(lk_program *program);  /* before they are overwritten. Collective */
    void (*written)(lk_program *program);     /* all ranks have written the same */
} lk__run_gradients;

/* Labels and token ids out of range (ids.c). */
typedef struct lk__run_ids {
    lk__kernel_invalid_id invalid;          /* of the current section */
    bool invalid_forward, invalid_backward; /* with other ranks: in the latest forward; in one whose gradients count */
    char invalid_text[LK__VERIFY_LINE];     /* with other ranks: LK_SYNC's error; "" when all ids are in range */
} lk__run_ids;

/* Several losses that are added (losses.c). */
typedef struct lk__run_losses {
    double *weights;               /* (division.rows, losses), of all its samples of the step */
    double  scales[LK_MAX_LOSSES]; /* factor over the weight of all ranks, once has_scales */
    bool    has_scales;
} lk__run_losses;

struct lk_program {
    lk_context *context;
    lk_plan    *plan;
    lk_store   *store;
    lk_mesh    *mesh; /* NULL: this rank alone, like the next */
    lk_comm    *comm; /* all ranks: reports, comparisons, what is once on every host */
    /* The ranks among which the batch is split: sums of gradients, losses and metrics; NULL: every rank has all of
     * it. */
    lk_comm           *batch;
    lk_comm           *shard; /* those along shard; NULL: they have no slices of the state */
    lk__plan_group     group; /* what is known of the ranks' group: it decides which instructions there are */
    lk__device        *device;
    lk__device_stream *stream; /* of all kernels */
    lk__run_memory     memory;

    lk__plan_division division;
    lk__plan_schedule step_schedule, held_schedule; /* of a step; the same with no_sync */
    lk__run_slot     *slots;                        /* plan->slots of them */
    lk__run_list      evaluate;
    lk__run_list      weights; /* of several losses; of slot 0 */
    const void      **bound;   /* what the caller bound: the samples of all micro-batches or leaves; by value id */
    size_t            values;
    int64_t           capacity; /* samples of a slot */
    lk_step           step;
    lk__run_progress  progress;
    lk__run_ids       ids;
    lk__run_losses    losses;

    lk_metrics       metrics;
    lk_named_metric *named;                    /* of `metrics` */
    double          *numbers;                  /* (division.rows, numbers_count) */
    double           latest[LK__PLAN_NUMBERS]; /* that `metrics` was made of */
    double           stop_request, data;       /* of this rank's next report */

    lk__run_collectives     *collectives;
    char                    *leaf_memory; /* where leaves run as one batch: their calls */
    size_t                   leaf_bytes;
    lk__run_graphs          *graphs; /* NULL: the device records nothing */
    const lk__run_gradients *gradients;
    lk__run_shared          *shared;                /* NULL: every rank has its own state */
    lk__shard_norm          *norm;                  /* NULL: the norm of a gradient is not added part by part */
    int                      tiles_first, tiles_of; /* kernels begin at tile tiles_first / tiles_of of theirs */
    bool                     visible;               /* the device's memory is the host's: callers get addresses in it */
    bool                     visible_gradients;     /* the same of gradients, which are this rank's alone */
    lk__run_lend            *lend;                  /* NULL: ranks that wait keep their cores */
    lk__run_queue           *queue;                 /* NULL: the program waits for each section's results */
    lk__run_source          *sources[2]; /* of training steps and of evaluations; NULL: the caller binds inputs */
    lk__run_source          *source;     /* the one of the current step */
    struct lk__run_tokens   *tokens;     /* NULL: nothing is generated so; the generator's */
    bool first_chooses; /* with other ranks: rank 0's device chooses among algorithms, and sends its list */

    bool              profile;
    bool              waits;       /* for each kernel, and says which one failed: LOCKSTEP_DEVICE_SYNC */
    lk__digests      *digests;     /* NULL: none are written */
    lk__trace        *trace;       /* NULL: nothing is recorded */
    char             *trace_names; /* of the buckets, then of the instructions */
    size_t            trace_names_bytes;
    char             *trace_runs; /* in them: those of the runs of a stage; NULL: there is one stage */
    lk__run_timeline *timeline;   /* NULL: none was asked for, or the host's clock will do */
};

static inline double *lk__row_numbers(const lk_program *p, int row)
{
    return p->numbers + (size_t)row * (size_t)p->plan->evaluate.numbers_count;
}

static inline char *lk__gradient_set(const lk_program *p, int set)
{
    return p->memory.gradients + (size_t)set * p->plan->gradient_bytes;
}

/* The group of a collective along these axes of the mesh; 0: those among whom the batch is split. */
static inline lk_comm *lk__run_group(const lk_program *p, unsigned axes)
{
    lk_comm *group = p->batch;
    if (axes && p->mesh && lk_mesh_group(p->mesh, axes, &group) < 0)
        return p->batch; /* not reached: create.c has made all */
    return group;
}

/* The sample, of those that are bound, with which micro-batch or leaf `part` of this rank begins; part `here`: their
 * number. */
static inline int64_t lk__part_row(const lk_program *p, int part)
{
    const lk__plan_division *d = &p->division;
    int64_t                  total = d->global ? p->step.total : p->step.count;
    return lk__split(total, d->parts, d->first + part) - lk__split(total, d->parts, d->first);
}

/* Where collectives find what is at this address among the gradients. */
static inline char *lk__exchanged(const lk_program *p, const char *gradient)
{
    return p->memory.exchanged + (gradient - p->memory.gradients);
}

/* Bytes of a value with the count of samples applied. */
static inline size_t lk__bytes_at_count(const lk__graph_shape *s, int64_t samples)
{
    size_t bytes = lk_dtype_size(s->dtype);
    for (int i = 0; i < s->rank; i++) bytes *= (size_t)(i == s->count_axis ? samples * s->count_unit : s->dims[i]);
    return bytes;
}

/* ---- regions.c: the device's memory ---- */
lk_status lk__regions_create(lk_program *program);
void      lk__regions_free(lk_program *program);
/* Gradients in memory that other ranks of the host can read, where the group reaches the device's; accounted in the
 * same way. */
lk_status lk__gradients_share(lk_program *program);
void      lk__gradients_release(lk_program *program);

/* ---- gradient_part.c: gradients of which this rank has a part, along the axes of the placement pass ---- */
bool lk__gradient_is_part(const lk_program *program, int state);
/* The whole gradient, from the parts of all ranks along these axes. Collective over them. */
lk_status lk__gradient_gather(lk_program *program, int state, const void *part, void *data);
/* This rank's part from the whole. */
void lk__gradient_cut(const lk_program *program, int state, const void *data, void *part);

/* gradient_tied.c: adds the gradients of other stages that hold the state to this rank's part of its gradient.
 * Collective among these stages; does nothing for a state that one stage holds. */
lk_status lk__gradient_add_stages(lk_program *program, int state, void *part);

/* ---- staging_create.c, staging.c: copies between the host and the device ---- */
lk_status lk__staging_create(lk_program *program); /* after the slots and the gradients */
void      lk__staging_free(lk_program *program);
/* The addresses that kernels read: the step block; input `input` of a slot, and the ids of its samples; NULL: not
 * bound. */
const lk__kernel_step *lk__step_memory(const lk__run_slot *slot);
const void            *lk__input_memory(const lk_program *program, const lk__run_slot *slot, size_t input);
const int64_t         *lk__ids_memory(const lk_program *program, const lk__run_slot *slot);
lk_status lk__stage_inputs(lk_program *program, lk__run_slot *slot); /* before its forward or evaluation runs */
lk_status lk__stage_step(lk_program *program, lk__run_slot *slot);   /* before any section runs: its step block */
/* A range of the gradients, before and after a collective: to lk__exchanged, and back. */
lk_status lk__stage_out(lk_program *program, const char *gradient, size_t bytes);
lk_status lk__stage_in(lk_program *program, char *gradient, size_t bytes);

/* ---- source.c: inputs that the device makes from samples, instead of the caller ---- */
void lk__source_use(lk_program *program, lk__run_source *source); /* for the step that is set next; NULL: none */
/* Whether input `input` is made; if so, slots see a stand-in for its address. */
bool        lk__source_makes(const lk_program *program, size_t input);
const void *lk__bound_memory(const lk_program *program, size_t input);
/* Whether it is made from samples that are sent by row; and the samples of a slot: what the caller bound. */
bool        lk__source_sends(const lk_program *program);
const void *lk__source_samples(const lk_program *program, const lk__run_slot *slot, int field);
/* Where the step block and the ids of a batch are read (device/batch.h). */
typedef struct lk__run_headers {
    const char    *headers;
    const int64_t *ring_slot; /* the device's: which of `slots` headers, `bytes` apart, is read; NULL: the first */
    int            slots;
    size_t         bytes;
    lk__kernel_invalid_id *report; /* is cleared; NULL: nothing is */
} lk__run_headers;
/* Queues what makes the inputs of a slot. by_row: samples are in `sent`, as lk__plan_sent_offset has them; else
 * NULL. */
lk_status lk__source_gather(lk_program *program, const lk__run_slot *slot, const lk__run_headers *headers,
                            const char *sent);
void      lk__sources_free(lk_program *program);

/* ---- graphs.c: work that is recorded when it runs for the second time, and afterwards queued as a whole ---- */

/* What a recording is good for: everything besides the contents of the device's memory that the work depends on. */
typedef struct lk__run_key {
    const lk__run_list *list;
    size_t              begin, end; /* instructions */
    int64_t             samples, total;
    const char         *gradients;
    int64_t             batch; /* step.c: which run of the schedule; otherwise 0 */
    int                 way;   /* tokens.c: how tokens are chosen; otherwise 0 */
} lk__run_key;
typedef lk_status (*lk__run_issue)(lk_program *program, const lk__run_key *key); /* queues kernels on the stream */

lk_status lk__graphs_create(lk_program *program);
void      lk__graphs_free(lk_program *program);
lk_status lk__run_recorded(lk_program *program, const lk__run_key *key, lk__run_issue issue);

/* ---- launch.c: launch groups ---- */
lk_status lk__launch_create(lk_program *program);
void      lk__launch_free(lk_program *program);
/* Launches the group that begins with instruction `at` of a list, if one does, all of it is before `limit` and the
 * device runs it at the current shapes. *launched: it did; *end: after its last instruction. */
lk_status lk__launch_group(lk_program *program, const lk__run_list *list, size_t at, size_t limit, size_t *end,
                           bool *launched);
/* The same for the group of the instruction STEP_END: device/recording.h's end_step. */
lk_status lk__launch_end_step(lk_program *program, const lk__run_list *list, size_t at,
                              const lk__device_numbers *numbers, lk__device_result *results, bool *done);

/* ---- step.c: steps that are queued; those of trainer_interface.h ---- */
lk_status lk__queue_create(lk_program *program);
void      lk__queue_free(lk_program *program);
/* The word of the device's memory that is not 0 where state must not change; NULL: steps are not queued. */
int32_t *lk__queue_halted(const lk_program *program);
/* A whole step, waited for. */
lk_status lk__step_train(lk_program *program, const lk_step *step);

/* ---- leaf_batch_create.c, leaf_batch.c: leaves that run as one batch ---- */
lk_status   lk__leaf_batch_build(lk_program *program);
size_t      lk__leaf_batch_sums_bytes(const lk_program *program); /* of the device's memory */
void        lk__leaf_batch_patch(lk_program *program);            /* after the instructions of the whole batch */
lk_status   lk__leaf_batch_run(lk_program *program, lk__run_instruction *instruction);
const void *lk__leaf_batch_source(const lk_program *program, size_t index, int leaf);
/* Whether a node's kernel adds over leaves itself: it is then called once for each subtree of leaves. */
static inline bool lk__leaf_batch_adds(const lk__graph_node *n)
{
    return lk__op_find(n->op)->leaves == LK__LEAVES_ADDED;
}
/* The leaves of call `call` of a node that runs leaf by leaf, from the first of the run on: one or, where its kernel
 * adds over leaves, the leaves of the subtree that begins there; 0: none does. */
int lk__leaf_batch_count(const lk_program *program, const lk__graph_node *node, int call);

/* ---- program.c ---- */
/* Makes micro-batch slot `index` work on `count` of the bound samples from `first` on. */
lk_status lk__slot_set(lk_program *program, int index, int64_t first, int64_t count);
lk_status lk__step_set(lk_program *program, const lk_step *step);

/* ---- section.c ---- */
/* A run of a step's schedule; and one that the state of the step asks for. */
lk_status lk__section_run(lk_program *program, const lk__schedule_run *run);
lk_status lk__section_by_hand(lk_program *program, lk_section section);
/* No backward may run before its forward has run again. */
void lk__drop_activations(lk_program *program);

/* ---- interpreter.c ---- */
lk_status lk__run_call(lk_program *program, lk__run_instruction *instruction); /* lk__run_calls: its one call */
void *lk__program_resolve(const lk_program *program, const char *arena, const char *gradients, lk__plan_place place);

/* ---- results.c ---- */
void lk__metrics_set(lk_program *program, const double *numbers);
/* A number that the device computed; `otherwise` where there is none. */
lk_status lk__program_number(const lk_program *program, const char *arena, const lk__plan_list *planned, int value,
                             double otherwise, double *number);

/* ---- collective_create.c, collective.c: collectives among the instructions ---- */
lk_status lk__collectives_create(lk_program *program);
void      lk__collectives_free(lk_program *program);
lk_status lk__collectives_drain(lk_program *program); /* waits for all that are in flight */

/* ---- report.c ---- */
lk_status lk__gather_reports(lk_program *program); /* of all ranks, with the numbers of their leaves */
/* results.c: what follows from them, on all ranks alike. */
lk_status lk__use_reports(lk_program *program, const lk__plan_list *planned);
/* Fails where the loss of some rank is not finite, and names it. */
lk_status lk__check_losses(lk_program *program, int64_t step);
/* adds the numbers over all leaves, in the tree */
void lk__add_reports(const lk_program *program, double *numbers);

/* ---- losses.c: several losses, each divided by its own weight ---- */
lk_status lk__losses_create(lk_program *program); /* after the slots */
void      lk__losses_free(lk_program *program);
/* Before the forward runs of a step: sets the weights to the weights of this rank's samples in it: of all micro-batches
 * or leaves, or of those that slot 0 is set to. Nothing where there is one loss. */
lk_status lk__losses_weigh_step(lk_program *program);
lk_status lk__losses_weigh_slot(lk_program *program);
/* The numbers of a leaf that do not depend on samples, where leaves run as one batch. */
lk_status lk__losses_keep_numbers(lk_program *program);

/* ---- tuning.c: the algorithms of kernels; before the first is prepared, and after the last, with the status of
 * that ---- */
lk_status lk__tuning_begin(lk_program *program);
/* Prepares one kernel for each shape, the costliest first, since the time for measuring is limited. */
lk_status lk__tuning_prepare(lk_program *program);
lk_status lk__tuning_end(lk_program *program, lk_status status);

/* ---- verify.c ---- */
/* compares the ranks' orders of collectives, before any runs. Collective */
lk_status lk__verify_order(lk_program *program);

/* ---- ids.c: labels and token ids out of range ---- */
/* After a forward section: fails if one was found; in training with other ranks, leaves that to lk__share_ids. */
lk_status lk__check_ids(lk_program *program, const lk__plan_list *planned);
/* after the rank reports were gathered: fails on all ranks if one found any */
lk_status lk__share_ids(lk_program *program);
void      lk__drop_gradients(lk_program *program);
/* The sentence about program->ids.invalid. */
void lk__describe_invalid(const lk_program *program, const lk__plan_list *planned, char *text, size_t bytes);

/* ---- gradient.c ---- */
extern const lk__run_gradients lk__gradients_of_all; /* each rank has the whole sum */
lk_status                      lk__scale_gradients(lk_program *program, double factor); /* all of them */

/* ---- traced.c ---- */
enum {
    LK__TRACK_STEPS,
    LK__TRACK_COMPUTE,
    LK__TRACK_COLLECTIVES,
    LK__TRACK_KERNELS,
    LK__TRACK_COPIES,
    LK__TRACK_RUNS /* of stages */
};
/* Records a run of a stage's schedule that began then; nothing where there is one stage. */
void lk__traced_run(const lk_program *program, const lk__schedule_run *run, double began);
/* Records a collective; the name is borrowed until the trace is freed. */
void lk__traced(const lk_program *program, const char *name, double began, double ended, size_t bytes);

#endif
