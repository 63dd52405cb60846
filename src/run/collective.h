/* run/collective.h - the state of a program's collectives besides their operands, shared by collective*.c, leaf_tree.c
 * and report.c. */
#ifndef LK__RUN_COLLECTIVE_H
#define LK__RUN_COLLECTIVE_H

#include "comm/operation.h"
#include "plan/leaf_stack.h"
#include "run/program.h"

/* One collective of the training list, or of the list of evaluation. */
typedef struct lk__run_collective {
    const lk__run_list *list;
    size_t              start;   /* its instruction */
    int                 bucket;  /* of gradients; -1: none */
    bool                at_once; /* its wait follows, or it would not overlap: the start runs it to the end */
    lk_work            *work;    /* in flight, or NULL */
    char               *staged;  /* of a send or receive: the host's copy, where the group does not reach the device */
    lk__device_event   *ended;   /* where collectives are queued on the device: recorded after the latest */
    bool                queued;  /* since its start, until its wait */
} lk__run_collective;

/* An operand whose extent follows from how many rows ranks send (routes.c). */
typedef struct lk__run_routed {
    int    all; /* value: the offsets of all ranks */
    size_t instruction;
    int    operand; /* inputs, then outputs */
} lk__run_routed;

/* Rows that the exchanges of a step have sent to the ranks along expert, added over them. */
typedef struct lk__run_loads {
    double most, mean, own; /* of the rank that has got most; of all; of this one */
    double seconds;         /* of kernels that compute them, when the step began */
} lk__run_loads;

/* A whole subtree of the tree over leaves: leaves first … last-1, all of one rank. */
typedef struct lk__run_subtree {
    int first, last, rank;
    int set; /* of that rank's gradients, which has their sum */
} lk__run_subtree;

enum { LK__RUN_STREAM_BUCKETS, LK__RUN_STREAM_VALUES, LK__RUN_STREAMS };

struct lk__run_collectives {
    lk__run_collective *all; /* of training, by slot where stages have several, then those of evaluation, from */
                             /* evaluate on */
    size_t           count, evaluate, each; /* each: of a slot */
    lk_comm         *bulk;     /* for buckets; a separate group if other sums must not queue behind them */
    bool             split;    /* bulk is a separate group and freed here */
    bool             overlaps; /* the backend runs collectives while kernels run */
    lk__run_subtree *subtrees; /* of all ranks, in order */
    int              subtrees_count;
    /* with experts: gradients of all leaves that a rank's sources have; rank: among those with */
    lk__run_subtree *joined;
    int              joined_count; /* the same experts */
    char   *slices; /* where buckets are reduced by slices (lk__plan_by_slices): this rank's, of every subtree */
    size_t  slice_bytes;
    char   *scratch;                                                   /* the same: a tree's intermediate results */
    size_t  bytes;                                                     /* of this struct and its arrays */
    size_t *counts, *displacements, *more_counts, *more_displacements; /* one per rank */
    char   *gathered, *mine;   /* of small all_gathers: the numbers of all leaves, then all ranks' reports */
    lk__run_report *reports;   /* by rank */
    lk__run_sums   *ranks;     /* by rank: the sums of its leaves */
    double          waited;    /* seconds, since the latest report */
    lk__run_routed *routed[2]; /* of training, and of evaluation */
    size_t          routed_count[2];
    size_t         *route_counts;
    int32_t        *offsets;
    lk__run_loads   loads; /* while a trace records */
    /* where collectives are queued on the device (collective_queue.c); ready: after the kernels before a start */
    lk__device_stream *streams[LK__RUN_STREAMS];
    lk__device_event  *ready;
};

/* collective.c: where an instruction's work in flight is noted; NULL: of the weights of losses, where every collective
 * is waited for at once. */
lk__run_collective *lk__collective_at(const lk_program *program, const lk__schedule_run *run, size_t at);
/* Waits for its work, which is in flight. */
lk_status lk__collective_take(lk_program *program, lk__run_collective *collective);
/* ---- collective_queue.c: collectives that are queued on the device, where the group's transport does so ---- */
lk_status lk__collective_queue_create(lk_program *program);
void      lk__collective_queue_free(lk_program *program);
/* A start, and its wait: on separate streams. collective NULL: it has no wait, and kernels after it are. */
lk_status lk__collective_queue(lk_program *program, lk__run_collective *collective, lk_comm *group,
                               const lk__comm_call *call);
lk_status lk__collective_join(lk_program *program, lk__run_collective *collective);
/* On the program's stream, between its kernels. No collective of the group is in flight. */
lk_status lk__collective_enqueue(lk_program *program, lk_comm *group, const lk__comm_call *call);
/* Nothing where collectives are not queued. The failure of a group with queued calls, as which all of them fail then;
 * the second waits first for the calls that the program's stream waits for; the third is called after a failure, whose
 * status and error it is, and finds out whether the device failed because another rank has died. */
lk_status lk__collective_queue_check(lk_program *program);
lk_status lk__collective_queue_wait(lk_program *program);
lk_status lk__collective_queue_explain(lk_program *program, lk_status status);
/* After a failure that may have come amid an update, whose status it is: where the state may be partly updated then,
 * reading it fails from now on. */
lk_status lk__collective_queue_spoil(lk_program *program, lk_status status);
/* At the end of an update that the host waits for: what it has queued has run. */
lk_status lk__collective_queue_end_update(lk_program *program);

/* transfer.c: bytes of the host's copy of what a send or receive moves, at the capacity; 0: it is neither. */
size_t lk__transfer_bytes(const lk__run_instruction *instruction);
/* routes.c: places what exchanges of rows need after the first `used` bytes of the memory; returns the bytes then
 * used. */
size_t lk__routes_lay_out(const lk_program *program, lk__run_collectives *collectives, char *memory, size_t used);

/* What the step that began then lost to ranks that got more rows than others, into the trace. */
void lk__routes_trace(const lk_program *program, double began);

/* ---- leaf_tree.c ---- */
size_t lk__leaf_tree_scratch_bytes(void);
/* A range of the gradients that leaves `leaf` … leaf + count - 1 of this rank have made, to the sums of the subtrees
 * that end with them (plan/leaf_stack.h). */
lk_status lk__leaf_tree_add(lk_program *program, lk__leaf_sum made, size_t offset, size_t bytes, lk_dtype type);
/* The same for all leaves of this rank, if each has its own set. */
lk_status lk__leaf_tree_add_all(lk_program *program, size_t offset, size_t bytes, lk_dtype type);
/* Completes the tree of a bucket over ranks whose subtrees are not aligned. */
lk_status lk__leaf_tree_reduce(lk_program *program, const lk__plan_bucket *bucket);

/* Completes the tree over this host's leaves of a range of the gradients, into out; at `offset` in a set. gradients: by
 * rank of the host, its first set. scratch: lk__leaf_tree_scratch_bytes. */
void lk__leaf_tree_sum(const lk_program *program, char *const *gradients, size_t offset, size_t count, lk_dtype type,
                       char *out, char *scratch);

/* ---- expert_tree.c: of a bucket that sources have sets of (plan/expert_leaves.h) ---- */
void      lk__expert_tree_join(lk__run_collectives *collectives, const lk_plan *plan); /* finds `joined` */
lk_status lk__expert_tree_add(lk_program *program, const lk__schedule_run *run, const lk__plan_bucket *bucket);
lk_status lk__expert_tree_reduce(lk_program *program, const lk__plan_bucket *bucket);

/* ---- report.c ---- */
/* Gathers the elements of this rank's leaves, contiguous in `mine`, on all ranks: `gathered` then holds the elements of
 * all leaves in order. */
lk_status lk__gather_leaves(lk_program *program, const char *name, const void *mine, size_t elements, lk_dtype type);
/* Reduces the gathered elements in the tree. */
void lk__reduce_gathered(const lk_program *program, size_t elements, lk_dtype type, lk_reduce_op op, void *out);
enum {
    LK__RUN_NUMBERS = LK__PLAN_NUMBERS + 1, /* per leaf, that are gathered at once outside the list of instructions */
    LK__RUN_REPORT = 8                      /* numbers of a rank's report */
};

#endif
