/* plan/stages.h - how a model is divided into the stages of a mesh with a pipeline axis. Its segments, in the order of
 * forward, are the blocks of the model (lk_block_begin), and the nodes that are recorded before, between and after
 * them; a stage is a run of segments. */
#ifndef LK__PLAN_STAGES_H
#define LK__PLAN_STAGES_H

#include "base/base.h"
#include "base/op.h"
#include "plan/pipeline_schedule.h"

#include <lockstep/plan.h>

typedef struct lk__stages_segment {
    double seconds;     /* estimated, of one micro-batch: forward and backward */
    double state;       /* bytes: parameters, gradients, optimizer state */
    double activations; /* bytes that a micro-batch keeps between forward and backward */
    int    block;       /* its number among the model's blocks; -1: it is outside all of them */
} lk__stages_segment;

typedef struct lk__stages_request {
    lk__pipeline_schedule_shape shape;
    const char                 *text; /* lk_plan_config.stages; NULL: by time and memory */
} lk__stages_request;

/* first[i]: the first segment of stage i; `stages` of them. By time and memory: the slowest stage takes as little time
 * as possible; of cuts that are at most a 64th slower than that, the one whose largest stage has the fewest bytes. */
lk_status lk__stages_cut(lk_context *context, const lk__stages_segment *segments, int count,
                         const lk__stages_request *cut, int *first);

/* ---- what the parts of a step cost, by segment: stage_costs.c ---- */

typedef enum lk__stages_phase {
    LK__STAGES_FORWARD,
    LK__STAGES_BACKWARD, /* gradients of what other segments compute, and what they need */
    LK__STAGES_WEIGHTS,  /* gradients of parameters, which nothing else reads */
    LK__STAGES_UPDATE,   /* once in a step */
    LK__STAGES_PHASES
} lk__stages_phase;

/* A node of the whole model, before axes split it. */
typedef struct lk__stages_price {
    lk__op           op;
    int              segment;
    lk__stages_phase phase;
    double           arithmetic, bytes;
} lk__stages_price;

/* A value that one segment computes and another reads: a later one in forward, an earlier one in backward. */
typedef struct lk__stages_crossing {
    int    value, from, to; /* segments */
    double bytes;
} lk__stages_crossing;

typedef struct lk__stages_costs {
    int                  segments;
    lk__stages_price    *prices;
    size_t               prices_count, prices_capacity;
    lk__stages_crossing *crossings;
    size_t               crossings_count, crossings_capacity;
    double              *state, *activations; /* bytes, by segment */
    lk_pipeline_schedule schedule;
} lk__stages_costs;

void lk__stages_costs_free(lk_context *context, lk__stages_costs *costs); /* NULL is fine */
/* Finds the costs of the plan's segments (plan/pipeline.h) and assigns these to stages. */
lk_status lk__plan_cut_stages(lk_plan *plan, const lk_plan_config *config);
/* Seconds of a phase in a stage, by operations and bytes per second; of the update, of a step. */
double lk__stages_seconds(const lk_plan *plan, int stage, lk__stages_phase phase, const lk_rates *rates);
/* Bytes that a stage sends to another in forward (to > from) or backward, of one micro-batch. */
double lk__stages_sent(const lk_plan *plan, int from, int to);

#endif
