/* plan/plan.h - the inside of a plan: two timelines (training, evaluation) over one set of states, and the passes that make
 * them. Order of the passes: mode → fuse → sync norm → grad → update → layout → buckets → memory. */
#ifndef LK__PLAN_H
#define LK__PLAN_H

#include "graph/graph.h"

#include <lockstep/plan.h>
#include <lockstep/program.h>

typedef enum lk__region {
    LK__IN_INPUT, /* the caller's memory, bound before a run */
    LK__IN_PARAMETERS,
    LK__IN_BUFFERS,
    LK__IN_OPTIMIZER,
    LK__IN_GRADIENTS,
    LK__IN_ACTIVATIONS, /* the arena */
    LK__REGION_COUNT
} lk__region;

typedef struct lk__place {
    lk__region region;
    size_t     offset; /* bytes; for LK__IN_INPUT the input's value id */
} lk__place;

/* One run from start to end: nodes in order, cut into sections. */
typedef struct lk__timeline {
    lk_graph  *graph;
    int       *order; /* nodes that are left, as they run */
    size_t     order_count, order_capacity;
    size_t     end[LK_SECTION_COUNT]; /* where each section ends in order; it begins where the one before it ends */
    lk__place *places;                /* by value */
    size_t     places_count;
    size_t     arena, workspace; /* bytes */
    int        sum, weight, correct, norm; /* values of the metrics; -1: none */
    int       *gradients;                  /* by state: value or -1; NULL: no backward */
    bool      *by_shard; /* by position in order: run once for each shard; NULL: nothing is (wide.c) */
    int       *outputs;                    /* values that the caller reads */
    int        outputs_count;
} lk__timeline;

typedef struct lk__state_plan {
    lk__place place;
    size_t    bytes;
    int       moments; /* optimizer state, one after the other */
    size_t    moment_offset[2];
    size_t    gradient_offset;
    bool      trained;
    bool      in_parts; /* wide shards: its gradient is added over them where it is made */
} lk__state_plan;

/* Gradients that travel together. */
typedef struct lk__bucket {
    size_t offset, bytes; /* in the region of gradients */
    size_t after;         /* position in the training order whose node makes it whole */
    int    states;
} lk__bucket;

struct lk_plan {
    lk_context     *context;
    lk_graph       *graph; /* as recorded */
    lk__timeline    train, evaluate;
    lk__state_plan *states; /* graph->states_count of them */
    size_t          memory[LK_MEMORY_COUNT];
    bool            trains;

    lk_parallel parallel; /* world at least 1, micro_batches at least 1 */
    lk__bucket *buckets;  /* in the order in which backward fills them */
    size_t      buckets_count, buckets_capacity;
    size_t      gradient_bytes; /* of one set of gradients */
    int         sets;           /* of gradients */
    size_t      parts_offset;   /* in the workspace: lk__parts' sums */
    int         lanes;          /* micro-batches whose activations are held at once */
    int         syncs;          /* sums over all ranks within forward and backward: synchronised batch norm */
};

/* Which shards of the global batch are a rank's: first … first of the next rank. */
static inline int lk__first_shard(int shards, int world, int rank) { return (int)((int64_t)shards * rank / world); }

/* mode.c: evaluation: batch norm reads its running statistics, dropout goes. */
void lk__pass_evaluation(lk__timeline *timeline);
/* fuse.c: relu and pooling into the convolution, relu into linear and batch norm. */
lk_status lk__pass_fuse(lk__timeline *timeline);
/* sync_norm.c: batch norm by the statistics of all ranks and micro-shards. */
lk_status lk__pass_sync_norm(lk__timeline *timeline);
/* update.c: clipping and the optimizer; fills the states' moments. */
lk_status lk__pass_update(lk__timeline *timeline, const lk_optimizer_config *optimizer, lk__state_plan *states);
/* layout.c: what nothing reads goes; images are stored channels last where kernels want it; fills order and end. */
lk_status lk__pass_layout(lk__timeline *timeline, size_t forward_nodes, size_t backward_nodes);
/* bucket.c: where gradients live, and which travel together; after layout. */
lk_status lk__pass_buckets(lk_plan *plan);
/* wide.c: with wide shards, which nodes run shard by shard; LK_EUNSUPPORTED where the model does not allow it. */
lk_status lk__pass_wide(lk_plan *plan);
/* memory.c: a place for every value, the size of the arena and of the workspace. */
lk_status lk__pass_memory(lk__timeline *timeline, const lk__state_plan *states);

/* cost.c: what a node takes at its capacity on a machine of so many operations and bytes a second. */
double lk__node_seconds(const lk_graph *graph, const lk__node *node, double flops, double memory);

/* The node's call at the capacity's shapes, operands present but without data. */
void lk__call_at_capacity(const lk_graph *graph, const lk__node *node, lk__call *call);

#endif
