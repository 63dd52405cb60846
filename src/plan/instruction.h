/* plan/instruction.h - what a program does, instruction by instruction. A list of nodes becomes instructions in
 * sections: the nodes' kernels and collectives, and between them what depends on how gradients are added, reduced and
 * updated: sums of micro-batches and leaves, rounding, copies for a group that does not reach the device's memory, the
 * report, barriers. The interpreter (run/interpreter.c) knows nothing else.
 *
 * A run of a section satisfies certain conditions, such as "no other backward follows before the update"; an
 * instruction is skipped if it requires a condition that the run does not satisfy. So one list serves a single batch,
 * micro-batches, leaves, no_sync, sections run by hand, and steps that are queued. */
#ifndef LK__PLAN_INSTRUCTION_H
#define LK__PLAN_INSTRUCTION_H

#include "plan/plan.h"

/* X(id, name, kind) */
#define LK__ACTIONS(X)                                                                                               \
    X(INPUTS, "inputs to the device", COPY)          /* and the step block */                                        \
    X(BOUND, "inputs of the caller", HOST)           /* on the CPU: kernels read them, and the step block, there */  \
    X(STEP_BLOCK, "step block to the device", COPY)                                                                  \
    X(READ_IDS, "ids out of range from the device", COPY)                                                            \
    X(KERNEL, "kernel", KERNEL)                                                                                      \
    X(LEAVES, "kernel leaf by leaf", HOST)           /* whose numbers the host reads after each leaf */              \
    X(SOURCES, "kernel source by source", KERNEL)    /* gradients of experts of each rank's leaf (expert_leaves.h) */ \
    X(START, "start", START)                         /* a collective over values of all ranks */                     \
    X(START_STAGED, "start through the host", START) /* the same, of a group that does not reach the device */       \
    X(START_EXCHANGE, "start with counts", START)    /* the same, of which ranks send as much as offsets say */      \
    X(START_EXCHANGE_STAGED, "start with counts through the host", START)                                            \
    X(START_HOST, "start once on every host", START) /* the same, to memory that the ranks of a host have in common */ \
    X(START_ALONE, "start of one rank", START)       /* the same without other ranks: a kernel */                    \
    X(START_LEAVES, "start over leaves", START)      /* the same of all leaves, each in a slot */                    \
    X(START_LEAF_BATCH, "start over leaves of a batch", START) /* the same of leaves that run as one batch */        \
    X(REFUSE_LEAVES, "start over leaves that do not exist", START) /* in evaluation: an error */                     \
    X(START_BUCKET, "start of a bucket", START)      /* all_reduce */                                                \
    X(START_SCATTER, "start of slices", START)       /* reduce_scatter: each rank of a host gets its slice of a */   \
                                                     /* bucket */                                                    \
    X(START_SLICES, "exchange of slices", START)     /* of a bucket whose subtrees of leaves are not aligned */      \
    X(START_SOURCES, "exchange of experts' sums", START) /* the same, of what leaves of all ranks have made */      \
    X(START_SHARD, "start of a unit's slices", START) /* reduce_scatter: each rank along shard gets its slice */     \
    X(START_SHARD_STAGED, "start of a unit's slices through the host", START)                                        \
    X(WAIT, "wait", WAIT)                                                                                            \
    X(START_SEND, "send", START)                     /* to another stage of the pipeline */                          \
    X(START_RECEIVE, "receive", START)               /* from another stage */                                        \
    X(WAIT_RECEIVED, "wait for a receive", WAIT)                                                                     \
    X(WAIT_SENT, "wait for sends", WAIT)             /* of the run's slot; in the section sync, of all slots */      \
    X(START_SEND_STAGED, "send through the host", START)                                                             \
    X(START_RECEIVE_STAGED, "receive to the host", START)                                                            \
    X(WAIT_RECEIVED_STAGED, "wait for a receive to the host", WAIT) /* and its copy to the device */                 \
    X(LOSS_SCALES, "scales of several losses", HOST) /* a small collective, once in a step */                        \
    X(ADD_SETS, "sum of gradients", KERNEL)          /* a bucket of the second set to the first */                   \
    X(ADD_SLICES, "sum of slices", KERNEL)           /* the same of this rank's slice of a bucket */                 \
    X(ADD_LEAVES, "sum of leaves", KERNEL)           /* a bucket of a leaf to its subtree's (leaf_stack.h) */        \
    X(ROUND, "rounding", KERNEL)                     /* a bucket to the type in which it is reduced */               \
    X(WIDEN, "widening", KERNEL)                     /* and back */                                                  \
    X(WIDEN_SLICE, "widening of a slice", KERNEL)                                                                    \
    X(COPY_OUT, "copy to the host", COPY)            /* a bucket, for a group that does not reach the device */      \
    X(COPY_OUT_SETS, "copy of all sets to the host", COPY) /* the same of each leaf's set, or the subtree's that */  \
                                                           /* was added */                                           \
    X(COPY_IN, "copy from the host", COPY)                                                                           \
    X(LOSSES, "loss of a batch", HOST)               /* metrics, and ids out of range, after forward */              \
    X(NUMBERS, "numbers of a batch", HOST)           /* the loss's sums of what backward has added */                \
    X(LEAF_NUMBERS, "numbers of all leaves", HOST)   /* several losses: what does not depend on samples */           \
    X(LEND, "lending of cores", HOST)                                                                                \
    X(BARRIER_BUFFERS, "barrier buffers", COLLECTIVE) /* until the rank that writes shared ones has */               \
    X(REPORT, "report", COLLECTIVE)                  /* of all ranks: loss, ids out of range, stop requests */       \
    X(REPORT_SHARED, "report of sharers", COLLECTIVE) /* the same, after which owners may sum and update slices */   \
    X(EXCHANGE, "sums of slices between hosts", COLLECTIVE)                                                          \
    X(CHECK_LOSS, "check of the loss", HOST)         /* the update is not made where one is not finite */            \
    X(WEIGHT, "weight", COPY)                        /* of all ranks, to where the update reads it */                \
    X(DIVIDE, "division by the weight", KERNEL)      /* of gradients whose update reads none */                      \
    X(DIVIDE_SHARED, "division of shared sums", COLLECTIVE) /* the same, once every rank has the whole sum */        \
    X(BARRIER_BEGIN, "barrier update begins", COLLECTIVE)                                                            \
    X(WAIT_SLICES, "barrier slices", COLLECTIVE)                                                                     \
    X(SQUARE_SLICES, "squares of slices", KERNEL)    /* of all instructions with this action that follow */          \
    X(BARRIER_NORM, "barrier norm", COLLECTIVE)      /* then the sum of each tensor's squares */                     \
    X(UPDATE_SLICES, "update of this rank's slices", KERNEL) /* as SQUARE_SLICES */                                  \
    X(BARRIER_UPDATE, "barrier update", COLLECTIVE)                                                                  \
    X(SLICE, "kernel on this rank's part", KERNEL)   /* of a state */                                                \
    X(FETCH_PARTS, "parts of the norm", COLLECTIVE)  /* gradients of other slices, of parts that begin in this rank's */ \
    X(SQUARE_PARTS, "squares of parts", KERNEL)      /* as SQUARE_SLICES */                                          \
    X(ADD_SQUARES, "sum of squares", COLLECTIVE)     /* of all ranks' parts, as one rank adds them */                \
    X(NORM, "norm of the gradient", HOST)                                                                            \
    X(BATCH_BEGIN, "beginning of a queued batch", KERNEL)                                                            \
    X(BATCH_NUMBERS, "numbers of the step", KERNEL)                                                                  \
    X(SUM_NUMBERS, "numbers of all ranks", COLLECTIVE) /* of a queued step: on the device, before the update */      \
    X(STEP_END, "numbers, update and result", KERNEL) /* a launch group; the instructions of it follow, for where */ \
                                                      /* it is not run */                                            \
    X(STEP_RESULT, "result of the step", KERNEL)                                                                     \
    X(TOKENS, "choice of tokens", KERNEL)                                                                            \
    X(OUTPUTS, "metrics of an evaluation", HOST)

typedef enum lk__plan_action {
#define LK__ACTION_ENUM(id, name, kind) LK__DO_##id,
    LK__ACTIONS(LK__ACTION_ENUM)
#undef LK__ACTION_ENUM
        LK__ACTION_COUNT
} lk__plan_action;

typedef enum lk__plan_action_kind {
    LK__IS_KERNEL, /* queued on the device's stream */
    LK__IS_COPY,   /* between host and device */
    LK__IS_START,  /* of a collective, in flight until its wait */
    LK__IS_WAIT,
    LK__IS_COLLECTIVE, /* that is waited for at once */
    LK__IS_HOST        /* a function of the host, which may wait for the device */
} lk__plan_action_kind;

const char          *lk__action_name(lk__plan_action action);
lk__plan_action_kind lk__action_kind_of(lk__plan_action action);
/* Whether it starts a send or a receive: between two stages, not of a whole group. */
static inline bool lk__action_transfers(lk__plan_action action)
{
    return action == LK__DO_START_SEND || action == LK__DO_START_SEND_STAGED || action == LK__DO_START_RECEIVE ||
           action == LK__DO_START_RECEIVE_STAGED;
}

/* Conditions of a run. */
enum {
    LK__IF_ADDS = 1 << 0, /* gradients were made since the last update: this run's are added to them */
    /* of a backward: none follows before the update, so that buckets are reduced; of an update: always */
    LK__IF_LAST = 1 << 1,
    LK__IF_MORE = 1 << 2,   /* the opposite */
    LK__IF_HELD = 1 << 3,   /* of a sync: no backward has reduced the buckets */
    LK__IF_SEPARATE = 1 << 4,  /* of an update: a rank may have read the state since the report */
    LK__IF_WAITED = 1 << 5, /* the host waits for the results */
    LK__IF_QUEUED = 1 << 6, /* it does not: they stay in the device's memory */
    LK__IF_BY_HAND = 1 << 7 /* of a forward: the caller may read what it has made before the next run */
};

typedef struct lk__plan_instruction {
    lk__plan_action action;
    lk_section      section;
    unsigned        when;       /* conditions */
    int             node;       /* of the list's graph; -1: none */
    int             bucket;     /* -1: none */
    int             collective; /* of a start, and of its wait: the number among the list's starts; -1: none */
    const char     *how;        /* of a start: the operation that carries it out, for traces; NULL: its node's */
    int             launch;     /* the list's launch group that begins here, or is a STEP_END; -1: none */
} lk__plan_instruction;

/* Where the sections are among the instructions. */
typedef struct lk__plan_ranges {
    /* the starts of a section's receives from other stages are in front of it: from `receives` to `begin` */
    size_t receives[LK_SECTION_COUNT], begin[LK_SECTION_COUNT], end[LK_SECTION_COUNT];
    /* in LK_BACKWARD: after what other stages wait for; the end of the section, if nothing is left for later */
    size_t weights;
} lk__plan_ranges;

typedef struct lk__plan_instructions {
    lk__plan_instruction *all;
    size_t                count, capacity;
    lk__plan_ranges       at;
    int                   collectives; /* starts of nodes, sends and receives too */
} lk__plan_instructions;

/* What is known about the group when a program is created, and decides which instructions exist. */
typedef struct lk__plan_group {
    bool overlaps;       /* collectives run while kernels do */
    bool staged;         /* they do not reach the device's memory: the host's copies are exchanged */
    bool queued;         /* they are queued on the device's streams, in its memory (comm/queue.h) */
    bool awaits_buffers; /* one rank writes the buffers that ranks share */
} lk__plan_group;

/* The axes of the mesh along which a collective's group extends. */
static inline unsigned lk__node_axes(const lk__graph_node *n)
{
    return n->attrs.mesh ? n->attrs.mesh : (unsigned)LK__PLAN_BATCH_AXES;
}

/* Whether a bucket is reduced by exchanging slices of it, since the subtrees of the leaves of the ranks, or of the
 * ranks along shard, are not aligned. */
bool lk__plan_by_slices(const lk_plan *plan);
bool lk__bucket_by_slices(const lk_plan *plan, const lk__plan_bucket *bucket); /* or the bucket has sets of sources */
/* With shared state: whether gradients are summed in the update or by LK__DO_EXCHANGE, not by collectives while
 * backward runs. */
bool lk__plan_sums_late(const lk_plan *plan, lk__plan_group group);

lk_status lk__plan_instruct(const lk_plan *plan, const lk__plan_list *list, lk__plan_group group,
                            lk__plan_instructions *instructions);
void      lk__plan_instructions_free(lk_context *context, lk__plan_instructions *instructions);

#endif
