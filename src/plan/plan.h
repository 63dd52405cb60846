/* plan/plan.h - the inside of a plan: two timelines (training, evaluation) over one set of states, and the passes that make
 * them. Order of the passes: mode → fuse → grad → update → prune → layout → memory. */
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
} lk__state_plan;

struct lk_plan {
    lk_context     *context;
    lk_graph       *graph; /* as recorded */
    lk__timeline    train, evaluate;
    lk__state_plan *states; /* graph->states_count of them */
    size_t          memory[LK_MEMORY_COUNT];
    bool            trains;
};

/* mode.c: evaluation: batch norm reads its running statistics, dropout goes. */
void lk__pass_evaluation(lk__timeline *timeline);
/* fuse.c: relu and pooling into the convolution, relu into linear and batch norm. */
lk_status lk__pass_fuse(lk__timeline *timeline);
/* update.c: clipping and the optimizer; fills the states' moments. */
lk_status lk__pass_update(lk__timeline *timeline, const lk_optimizer_config *optimizer, lk__state_plan *states);
/* layout.c: what nothing reads goes; images are stored channels last where kernels want it; fills order and end. */
lk_status lk__pass_layout(lk__timeline *timeline, size_t forward_nodes, size_t backward_nodes);
/* memory.c: a place for every value, the size of the arena and of the workspace. */
lk_status lk__pass_memory(lk__timeline *timeline, const lk__state_plan *states);

/* The node's call at the capacity's shapes, operands present but without data. */
void lk__call_at_capacity(const lk_graph *graph, const lk__node *node, lk__call *call);

#endif
