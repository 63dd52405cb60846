/* plan/pipeline.h - a model that is cut into stages, one for each rank along the pipeline axis.
 *
 * The recorded nodes are divided into segments: each layer (a block with a number for its name, such as h.0, or as
 * lk_plan_config.stages says), each other block around or between them, and each run of nodes between blocks. A run
 * becomes a block without a name, so that nodes of backward and those that passes add, which have the block of the node
 * they belong to, are in the segment of that. A stage is a run of segments. Nodes that read only inputs and constants
 * belong to no stage: every rank that needs their results runs them.
 *
 * Every rank plans the whole model; lk__pass_pipeline then keeps the nodes of its stage. A value that another stage
 * reads is sent after the node that computes it and received before the first node that reads it. For each value and
 * stage there is one pair of nodes, with one number.
 *
 * A state is held by the stages that read it (lk__plan_splits.held). Tied weights are held by several stages: each
 * computes the gradient of its own uses, and before the update the first of these stages adds the gradients and sends
 * the sum to the others. With one result in every layout, and where ranks share states or have slices of them, one
 * stage holds them and sends them to the others. */
#ifndef LK__PLAN_PIPELINE_H
#define LK__PLAN_PIPELINE_H

#include "plan/plan.h"

typedef struct lk__plan_segment {
    int    block; /* of the plan's graph, with all its nodes */
    bool   layer; /* its block is numbered for the user */
    int    stage;
    size_t first; /* node of the plan's graph */
} lk__plan_segment;

struct lk__plan_pipeline {
    lk__plan_segment *segments; /* in the order of their nodes */
    size_t            segments_count, segments_capacity;
    int              *stage_of_block; /* by block of the plan's graph; -1: it is around several segments */
    size_t            blocks_count;
    int               pairs;   /* numbers of sends and receives: of the list that has the most */
    bool             *trained; /* by state: some stage makes its gradient */
    int              *tied;    /* by state: value of the training list with its whole gradient; -1: it is held once */
    size_t            states_count;
    /* of the lists as they were before they were cut, and of what they are trained with: equal in all stages */
    uint64_t                 hash;
    struct lk__stages_costs *costs; /* plan/stages.h */
};

/* pipeline_segments.c: finds segments, assigns them to stages and states to those that hold them. Before any list is
 * copied from the plan's graph. `like`: a plan with the same states, which are to be held by the same stages; NULL:
 * none. */
lk_status lk__plan_make_stages(lk_plan *plan, const lk_plan_config *config, const lk_plan *like);
void      lk__plan_free_stages(lk_plan *plan);
/* Whether this rank's stage holds a state; and the first stage that does. */
bool lk__plan_holds(const lk_plan *plan, size_t state);
int  lk__plan_first_holder(const lk_plan *plan, size_t state);
/* Whether several stages hold it. */
bool lk__plan_is_tied(const lk_plan *plan, size_t state);
/* Whether it is trained, by this stage or another. */
bool lk__plan_trains(const lk_plan *plan, size_t state);

/* pipeline.c: keeps the nodes of this rank's stage. *forward: where the nodes of forward end. */
lk_status lk__pass_pipeline(lk_plan *plan, lk__plan_list *list, size_t *forward);
/* pipeline_tied.c, before that: of gradients that several stages make together, what follows their sum in each of
 * them. */
lk_status lk__tied_divide_forms(lk_plan *plan, lk__plan_list *list);
/* At the beginning of the section update: the whole gradients of states that several stages hold. */
lk_status lk__pass_tied(lk_plan *plan);

/* postpone.c: with the schedule zero-bubble, nodes of backward that no other stage waits for come last; then, after
 * layout, where they begin (lk__plan_list.weights_begin). Between the two that is a node of the graph. */
lk_status lk__pass_postpone(const lk_plan *plan, lk__plan_list *list, size_t forward);
void      lk__plan_find_postponed(lk__plan_list *list);

/* cost_pipeline.c: runs the schedules of all stages against each other, before anything is created. */
lk_status lk__plan_check_schedule(const lk_plan *plan);

#endif
