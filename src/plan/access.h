/* plan/access.h - what an instruction reads and writes in a run: which bytes of which memory, what they must hold
 * before, and what they hold after. The accesses follow from the plan alone and can be computed for any rank: nothing
 * is allocated, and no group is needed. */
#ifndef LK__PLAN_ACCESS_H
#define LK__PLAN_ACCESS_H

#include "plan/contents.h"
#include "plan/leaf_stack.h"
#include "plan/schedule.h"

/* A space of memory with its own addresses. Offsets are bytes; where it says "numbers", each is one byte long. */
enum {
    LK__SPACE_PARAMETERS,
    LK__SPACE_MASTER,
    LK__SPACE_OPTIMIZER,
    LK__SPACE_BUFFERS,
    LK__SPACE_CONSTANTS,
    LK__SPACE_GRADIENTS, /* all sets, then what is rounded for the reduction */
    LK__SPACE_EXCHANGED, /* the host's copy of them, where the device has its own memory */
    LK__SPACE_NUMBERS,   /* numbers: of the loss, by leaf */
    LK__SPACE_REPORT,    /* a number: the weight of all ranks, and whether their losses are finite */
    LK__SPACE_SUMS,      /* a number: the device's sums of the loss's numbers, of a step that is queued */
    LK__SPACE_SQUARES,   /* numbers, by state: squares of this rank's slices */
    LK__SPACE_PEERS,     /* a number: what the other ranks of a host that shares its state have of the gradients */
    LK__SPACE_GATHERED,  /* of plan/shard.h */
    LK__SPACE_HOST,      /* the same: what the ranks of a host gather once */
    LK__SPACE_COMMON,    /* activations that all slots of a pipeline have in the same place */
    LK__SPACE_LEAF_SUMS, /* numbers, by value and leaf: what collectives add over leaves that run as one batch */
    LK__SPACE_SLOTS      /* from here on of each slot: activations; numbers, by value: inputs */
};
static inline int lk__space_activations(int slot) { return LK__SPACE_SLOTS + 2 * slot; }
static inline int lk__space_inputs(int slot) { return LK__SPACE_SLOTS + 2 * slot + 1; }
static inline int lk__space_count(const lk_plan *p) { return LK__SPACE_SLOTS + 2 * p->slots; }

typedef enum lk__plan_access_kind {
    LK__READS,
    LK__READS_AT_ONCE, /* of a start: not while it is in flight */
    LK__READS_IN_PLACE, /* and may write the same bytes */
    LK__LENDS,          /* read here and, until the barrier after the update, by other ranks */
    LK__WRITES,
    LK__COPIES /* what is at the same offset of `from`, whatever it is */
} lk__plan_access_kind;

typedef struct lk__plan_access {
    lk__plan_access_kind kind;
    int                  space, from;
    size_t               begin, end;
    lk__plan_content     content;
} lk__plan_access;

/* The accesses of one instruction at a time, with what is known of the list. */
typedef struct lk__plan_accesses {
    const lk_plan        *plan;
    const lk__plan_list  *list;
    const lk__plan_owned *pieces; /* of this rank, of a state that is shared */
    size_t                pieces_count;
    lk__plan_group        group;
    bool                  late;   /* lk__plan_sums_late */
    int                   slot;   /* the first of the run: those below are counted from it */
    int                   parts;  /* micro-batches or leaves of this rank in a step */
    int                  *root;   /* by value: the value whose bytes it has: the one that it is a view of, or itself */
    bool                 *scaled; /* by value: a factor of one of several losses */
    size_t                values;
    lk__plan_access      *all;
    size_t                count, capacity;
    lk__plan_access       unused; /* of values without bytes */
    lk_status             status;
} lk__plan_accesses;

lk_status lk__accesses_create(const lk_plan *plan, const lk__plan_list *list, lk__plan_group group,
                              const lk__plan_owned *pieces, size_t pieces_count, lk__plan_accesses *accesses);
/* Replaces the accesses with the accesses of this instruction, reads first. */
lk_status lk__accesses_find(lk__plan_accesses *accesses, const lk__schedule_run *run,
                            const lk__plan_instruction *instruction);
/* The same for what is there before the first run, and for what must be there after the last. */
lk_status lk__accesses_before(lk__plan_accesses *accesses, const lk__schedule_run *first);
lk_status lk__accesses_after(lk__plan_accesses *accesses, const lk__schedule_run *last);
void      lk__accesses_free(lk__plan_accesses *accesses);

/* ---- access_bucket.c: accesses of instructions on gradients; for access.c ---- */
void lk__access_bucket(lk__plan_accesses *accesses, const lk__schedule_run *run,
                       const lk__plan_instruction *instruction);
void lk__access_shared(lk__plan_accesses *accesses, const lk__schedule_run *run,
                       const lk__plan_instruction *instruction);
/* What a kernel makes of the gradient of experts: the gradient of one leaf of each source (expert_leaves.h). */
void lk__access_sources(lk__plan_accesses *accesses, const lk__schedule_run *run, size_t state);
/* All gradients of a step, as the other ranks of the host read them. */
void lk__access_lent(lk__plan_accesses *accesses);
/* ---- access_shard.c: accesses to state that ranks have slices of; for access.c ---- */
void lk__access_unit(lk__plan_accesses *accesses, lk__plan_access_kind kind, int unit, bool slice,
                     lk__plan_stage stage);
void lk__access_start_shard(lk__plan_accesses *accesses, const lk__schedule_run *run, int bucket);
void lk__access_widened(lk__plan_accesses *accesses, size_t state); /* this rank's part of its gradient */
/* Whether it rounds the gradients of a bucket, or widens a slice of their sum; if so, its accesses. */
bool lk__access_rounding(lk__plan_accesses *accesses, const lk__schedule_run *run, const lk__graph_node *node);
void lk__access_add_slices(lk__plan_accesses *accesses, const lk__schedule_run *run, int bucket);
void lk__access_sum_slices(lk__plan_accesses *accesses, int bucket);
void lk__access_made_slices(lk__plan_accesses *accesses, int bucket); /* over all leaves and ranks */
void lk__access_fetch_parts(lk__plan_accesses *accesses);
void lk__access_square_parts(lk__plan_accesses *accesses, const lk__graph_node *node);
void lk__access_add_squares(lk__plan_accesses *accesses);
void lk__access_slice(lk__plan_accesses *accesses, const lk__graph_node *node);
/* Adds one; its content may be changed until the next. */
lk__plan_content *lk__access_put(lk__plan_accesses *accesses, lk__plan_access access);
lk__plan_content *lk__access_number(lk__plan_accesses *accesses, lk__plan_access_kind kind, int space, size_t number,
                                    int first, int count);
/* A value of the list in a slot, of a part; with LK__PART_ALL a gradient is the reduced gradient of all parts. */
lk__plan_content *lk__access_value(lk__plan_accesses *accesses, lk__plan_access_kind kind, int value, int slot,
                                   int part, int set);
/* What is on the stack of sums (leaf_stack.h) before and after `count` leaves of this rank from `first` on; of both the
 * first `same` are the same. */
typedef struct lk__plan_leaf_change {
    lk__leaf_sum before[LK__LEAVES_MOST], after[LK__LEAVES_MOST];
    int          before_count, after_count, same;
} lk__plan_leaf_change;
lk__plan_leaf_change lk__access_leaves(const lk__plan_accesses *accesses, int first, int count);
lk__plan_leaf_change lk__access_leaves_of(const lk__plan_accesses *accesses, int part, int first, int count);

#endif
