/* plan/plan.h - the internals of a plan: two instruction lists (training, evaluation) over one set of states, and the
 * passes that create them. Order of the passes: evaluation → precision → fuse → sync norm → grad → sum parts →
 * placement → experts → pipeline → fuse residual → pieces → postpone → overlap → buckets → shard gather → update →
 * layout → leaf batch → launch groups → memory. */
#ifndef LK__PLAN_H
#define LK__PLAN_H

#include "base/split.h"
#include "comm/mesh.h"
#include "device/batch.h"
#include "device/device.h"
#include "graph/op.h"
#include "plan/shard.h"
#include "plan/state_slices.h"

#include <lockstep/plan.h>
#include <lockstep/program.h>

typedef enum lk__plan_region {
    LK__IN_INPUT, /* the caller's memory, bound before a run */
    LK__IN_PARAMETERS,
    LK__IN_BUFFERS,
    LK__IN_CONSTANTS, /* after the buffers of the store, or the program's own: from the first constant on */
    LK__IN_MASTER,
    LK__IN_OPTIMIZER,
    LK__IN_GRADIENTS,
    LK__IN_ACTIVATIONS, /* the arena; each slot has its own */
    LK__IN_COMMON,      /* after them: what a pipeline's slots need only while a section runs */
    LK__IN_GATHERED,    /* of plan/shard.h: parameters that were gathered, and gradients until they are reduced */
    LK__IN_HOST,        /* of plan/shard.h: parameters that were gathered once for the ranks of a host */
    LK__REGION_COUNT
} lk__plan_region;

typedef struct lk__plan_place {
    lk__plan_region region;
    size_t          offset; /* bytes; for LK__IN_INPUT the input's value id */
} lk__plan_place;

/* What a program adds over samples, leaves and ranks: the loss's sum, weight and correct, then two numbers of each
 * metric. */
enum {
    LK__NUMBER_SUM,
    LK__NUMBER_WEIGHT,
    LK__NUMBER_CORRECT,
    LK__NUMBER_METRICS,
    LK__NUMBER_MOST = LK__NUMBER_METRICS + 2 * LK_MAX_METRICS, /* without several losses */
    LK__PLAN_NUMBERS = LK__NUMBER_MOST + 2 * LK_MAX_LOSSES
};

/* Nodes that the device runs in one launch (launch_group.c). */
typedef struct lk__plan_launch {
    lk__device_group_kind kind;
    size_t first, last; /* positions in the order; between them are its nodes, and others that run nothing */
    int    count;       /* nodes that run something */
    int    role[LK__GROUP_ROLES];
} lk__plan_launch;

/* One instruction list: nodes in the order in which they run, divided into sections. */
typedef struct lk__plan_list {
    lk_graph *graph;
    int      *order; /* nodes that were not removed, in the order in which they run */
    size_t    order_count, order_capacity;
    size_t    end[LK_SECTION_COUNT]; /* where each section ends in order; it begins where the previous one ends */
    size_t    weights_begin; /* in LK_BACKWARD, of gradients that no other stage waits for; 0: they are not separate */
    lk__plan_place *places;  /* by value */
    size_t          places_count;
    size_t          arena, workspace; /* bytes */
    size_t          common;           /* of LK__IN_COMMON */
    size_t          gathered, host;   /* of LK__IN_GATHERED and LK__IN_HOST */
    /* Values: the loss's, then sum and weight of each metric, then of each of several losses that are added; -1: none.
     * In the list of weights: the weight of each loss. */
    int              numbers[LK__PLAN_NUMBERS];
    int              numbers_count;
    int              norm;      /* value: the norm of the gradient; -1: none */
    int             *gradients; /* by state: value or -1; NULL: no backward */
    bool            *by_leaf;   /* by node: runs once for each leaf; NULL: nothing does (leaf_batch.c) */
    size_t           by_leaf_count;
    int             *outputs; /* values that the caller reads */
    int              outputs_count;
    lk__plan_launch *launches; /* groups of nodes, by their first positions within each section */
    size_t           launches_count, launches_capacity;
} lk__plan_list;

typedef struct lk__plan_state {
    lk__plan_place place;
    size_t         bytes;      /* as stored */
    size_t         wide_bytes; /* of its master copy, its gradient, and each of its moments: in the type of sums */
    bool           master;     /* it is stored in a narrower type than it is updated in, and has a master copy */
    size_t         master_offset;
    int            moments; /* optimizer state, one after the other */
    size_t         moment_offset[LK_MAX_MOMENTS];
    size_t         gradient_offset;
    /* of its arrays over ranks; `bytes` and `wide_bytes` are sizes of the whole */
    lk__plan_splits splits[LK__ARRAY_COUNT];
    bool            trained;
    int             unit;                   /* of plan/shard.h; -1: every rank has all of it */
    int64_t         unit_at, unit_elements; /* where it begins in the unit; how many it has there */
    int             gradient_slice;         /* value of the training graph: this rank's part of its gradient */
} lk__plan_state;

/* One of several losses that are added, each divided by its own weight in the global batch (losses.c). */
typedef enum lk__plan_weigh {
    LK__WEIGH_RUNS,     /* a number that does not depend on samples: 1 for each micro-batch or leaf of a rank */
    LK__WEIGH_ELEMENTS, /* the elements of a value at the count of samples */
    LK__WEIGH_COMPUTED  /* a number of the list `weights` */
} lk__plan_weigh;
typedef struct lk__plan_loss {
    double          factor;
    int             sum, weight; /* values of the recorded graph; weight -1: 1 */
    lk__plan_weigh  weigh;
    lk__graph_shape elements; /* LK__WEIGH_ELEMENTS */
    int             scale;    /* value of the training graph: factor over weight, written by the host before backward */
} lk__plan_loss;

/* Gradients that are reduced together: one value of the training graph, LK__VALUE_BUCKET. */
typedef struct lk__plan_bucket {
    size_t   offset, bytes; /* in the region of gradients */
    lk_dtype dtype;         /* of its gradients */
    bool     experts;       /* these are of experts that other ranks do not have (experts.h) */
    bool     postponed;     /* they are computed from weights_begin on, possibly after another micro-batch's backward */
    int      states;
    int      unit; /* of plan/shard.h: that whose gradients it has */
    /* the same, of stages 2 and 3, where it is rounded for its reduction: that, and the slice which is received */
    int    rounded, received;
    int    summed; /* the same: the slice that is added over the ranks along data */
    size_t slice;  /* the same: where this rank's slice of the sum is in the region of gradients */
    /* of the training graph; result: what its collective makes, this rank's slice with shared state */
    int value, result;
} lk__plan_bucket;

/* Where inputs come from: the caller binds them, or the device makes them (device/batch.h). */
typedef enum lk__plan_inputs {
    LK__INPUTS_BOUND,
    LK__INPUTS_BY_ID, /* from a set in its memory */
    LK__INPUTS_BY_ROW /* from samples that the host sends as they are stored */
} lk__plan_inputs;
typedef struct lk__plan_source {
    lk__plan_inputs train, evaluate;
    size_t          row_bytes[LK__DEVICE_FIELDS]; /* of those that are sent by row: bytes of a sample, by field */
    int             count;                        /* fields */
} lk__plan_source;

/* An array of the optimizer's state that every trained parameter has: its name in files, and its numbers before the
 * first step. */
typedef struct lk__plan_moment {
    const char *name;
    double      initial;
} lk__plan_moment;

/* For an operation that was measured (cost_measured.c): its amount of work, and the time that it took. */
typedef struct lk__plan_cost_time {
    lk__op op;
    double work, seconds;
} lk__plan_cost_time;

struct lk_plan {
    lk_context     *context;
    lk__device     *device; /* the context's */
    lk_graph       *graph;  /* as recorded */
    lk__plan_list   train, evaluate;
    lk__plan_list   weights; /* of several losses: computes the weights that are not known from the count; else empty */
    lk__plan_loss   losses[LK_MAX_LOSSES];
    int             losses_count; /* 0: one loss */
    lk__plan_state *states;       /* graph->states_count of them */
    size_t         *constants;    /* graph->constants_count offsets, among the buffers */
    size_t          memory[LK_MEMORY_COUNT];
    bool            trains;
    double          lr;                      /* the optimizer's; 0: it does not train */
    lk__plan_moment moments[LK_MAX_MOMENTS]; /* the optimizer's */
    lk_policy       policy;
    lk_dtype        gradient_dtype; /* of the all_reduce of gradients */

    lk_matmul_precision matmul_precision;

    struct lk__plan_pipeline *pipeline; /* plan/pipeline.h; NULL: there is one stage */
    lk__mesh_grid             mesh;     /* the ranks, and this one: asked by the calls below */
    lk_parallel      parallel; /* hosts and micro_batches at least 1; not its world and rank, which `mesh` has */
    bool             shared;   /* the state is held once on every host, and each rank updates a slice of it (slice.c) */
    int              stage;    /* above 0: ranks along shard have slices of the state (plan/shard.h) */
    size_t           gathered; /* bytes of LK__IN_GATHERED, part of LK_MEMORY_STAGING */
    lk__plan_host    host;     /* LK__IN_HOST, of which a rank's share is part of LK_MEMORY_STAGING, too */
    lk__plan_unit   *units;
    size_t           units_count, units_capacity;
    int              helpers;        /* threads that can run on cores of other ranks while these wait (run/lend.h) */
    bool             writes_buffers; /* training, or a cache, changes some */
    bool             receives_early; /* stages are on several hosts (lk__pipeline_schedule_shape.early) */
    bool             shares_buffers; /* all ranks of a host hold them once, too (shared_buffers.c) */
    bool             own_buffers;    /* ranks may compute different ones: rank 0's are saved */
    bool             splits;         /* some rank has only slices of some array (state_slices.h) */
    unsigned         placed_axes;    /* along which the placement pass splits values (placement.h); 0: none */
    unsigned         expert_axes;    /* along which experts are split (experts.h); 0: none */
    unsigned         split_axes;     /* over which: ranks with the same coordinates along them have the same slices */
    lk__plan_bucket *buckets;        /* in the order in which backward fills them */
    size_t           buckets_count, buckets_capacity;
    bool             reduces; /* each bucket has a collective in the training list, and a wait in its section sync */
    size_t           gradient_bytes;   /* of one set of gradients */
    int              sets;             /* of gradients */
    size_t           leaf_sums_offset; /* in the workspace: lk__kernel_leaves' sums */
    bool             batch_leaves;     /* the leaves of a rank run as one batch */
    int              couples;          /* node of the training graph because of which they do not; -1: none */
    int              slots;            /* micro-batches whose activations are held at once */
    int              syncs;            /* collectives within forward and backward: synchronised batch norm */
    lk__plan_source  source;           /* of its inputs */
    bool             queued;           /* collectives are queued on the device's streams: lk__plan_use_group */

    lk__plan_cost_time *times; /* lk_plan_calibrate; NULL: estimates are made from rates */
    size_t              times_count, times_bytes;

    /* The algorithms that its kernels use, where the device measures them: lines of text (device/kernels.h,
     * list_tuned). Before a program is made, those that it is to use; NULL: none. */
    char  *algorithms;
    size_t algorithms_bytes; /* of the allocation */
};

/* Where the constants are among the buffers, and their bytes; none: both 0. */
static inline size_t lk__plan_constants_begin(const lk_plan *p)
{
    return p->graph->constants_count ? p->constants[0] : 0;
}
static inline size_t lk__plan_constants_bytes(const lk_plan *p)
{
    return p->graph->constants_count ? p->memory[LK_MEMORY_BUFFERS] - p->constants[0] : 0;
}

uint64_t lk__plan_hash(const lk_plan *plan); /* the fingerprint without the algorithms */
/* Copies the list; length 0: there is none. */
lk_status lk__plan_set_algorithms(lk_plan *plan, const char *text, size_t length);

/* ---- what passes and the executor ask the mesh ---- */

/* mesh.c: the mesh of a config: the one that it names, or the one axis of its lk_parallel. */
lk_status lk__plan_mesh(lk_context *context, const lk_plan_config *config, lk__mesh_grid *mesh);
/* check_config.c: whether all settings are possible; gives the mesh. */
lk_status lk__plan_check(lk_graph *graph, const lk_plan_config *config, lk__mesh_grid *mesh);

/* All ranks, and this one: who reports losses that are not finite, ids out of range and stop requests, and compares
 * programs. */
static inline int lk__plan_ranks(const lk_plan *p) { return p->mesh.size; }
static inline int lk__plan_rank(const lk_plan *p) { return p->mesh.rank; }

/* The axes along which ranks have different rows of the batch. Losses, counts, metrics and gradients are added over
 * them. */
enum { LK__PLAN_BATCH_AXES = LK_AXIS_DATA | LK_AXIS_SHARD | LK_AXIS_EXPERT };
/* The one of these axes along which they also have different experts (experts.h). */
enum { LK__PLAN_EXPERT_AXES = LK_AXIS_EXPERT };
/* The axes along which ranks have the same rows, and parts of values that the placement pass cuts (placement.h). */
enum { LK__PLAN_PLACED_AXES = LK_AXIS_TENSOR };
/* The axis along which they have the same rows, and different nodes (pipeline.h). */
enum { LK__PLAN_STAGE_AXES = LK_AXIS_PIPELINE };
static inline int lk__plan_stages(const lk_plan *p) { return lk__mesh_extent(&p->mesh, LK__PLAN_STAGE_AXES); }
static inline int lk__plan_own_stage(const lk_plan *p)
{
    return lk__mesh_coordinate(&p->mesh, LK__PLAN_STAGE_AXES, p->mesh.rank);
}
/* The axes along which a rank computes with a part of a state. */
static inline unsigned lk__plan_cut_axes(const lk_plan *p) { return p->placed_axes | p->expert_axes; }
/* Into how many parts the batch is split over ranks, and which this rank has. With leaves, each part is a run of
 * them. */
static inline int lk__plan_batch_parts(const lk_plan *p) { return lk__mesh_extent(&p->mesh, LK__PLAN_BATCH_AXES); }
static inline int lk__plan_batch_part(const lk_plan *p)
{
    return lk__mesh_coordinate(&p->mesh, LK__PLAN_BATCH_AXES, p->mesh.rank);
}
/* The ranks along shard, and this one's place among them. */
static inline int lk__plan_shards(const lk_plan *p) { return lk__mesh_extent(&p->mesh, LK_AXIS_SHARD); }
static inline int lk__plan_shard(const lk_plan *p)
{
    return lk__mesh_coordinate(&p->mesh, LK_AXIS_SHARD, p->mesh.rank);
}
/* The axes over which states that all ranks use are sliced, if states are sliced: states of experts are split along
 * them already. */
static inline unsigned lk__plan_shard_axes(const lk_plan *p) { return LK_AXIS_SHARD | p->expert_axes; }
/* The part that `rank` has; and a rank that has `part`: of those, the one in this rank's group. */
static inline int lk__plan_batch_part_of(const lk_plan *p, int rank)
{
    return lk__mesh_coordinate(&p->mesh, LK__PLAN_BATCH_AXES, rank);
}
static inline int lk__plan_batch_rank(const lk_plan *p, int part)
{
    return lk__mesh_member(&p->mesh, LK__PLAN_BATCH_AXES, p->mesh.rank, part);
}

/* How a batch is split, for the rank that has `part`. */
static inline lk__split_job lk__plan_split(const lk_plan *p, int part)
{
    return (lk__split_job){lk__plan_batch_parts(p), part, p->parallel.leaves, p->parallel.micro_batches};
}

/* The leaves of a part; without leaves the part itself. */
static inline lk__range lk__plan_leaves(const lk_plan *p, int part)
{
    lk__split_job job = lk__plan_split(p, part);
    return lk__split_own(&job);
}
static inline int lk__plan_all_leaves(const lk_plan *p)
{
    return (int)lk__plan_leaves(p, lk__plan_batch_parts(p) - 1).end;
}
/* The leaves of this rank. */
static inline lk__range lk__plan_own_leaves(const lk_plan *p) { return lk__plan_leaves(p, lk__plan_batch_part(p)); }

static inline bool lk__plan_is_number(const lk__plan_list *list, int v)
{
    for (int i = 0; i < list->numbers_count; i++)
        if (list->numbers[i] == v) return true;
    return false;
}

/* Whether v is a gradient of a state, or the value that a gradient is a view of. */
bool lk__plan_is_gradient(const lk__plan_list *list, int v);

static inline bool lk__plan_by_leaf(const lk__plan_list *list, int node)
{
    return (size_t)node < list->by_leaf_count && list->by_leaf[node];
}

/* Whether a node runs even if nothing reads its outputs. */
static inline bool lk__plan_has_effect(const lk__graph_node *n)
{
    lk__graph_effect effect = lk__op_find(n->op)->effect;
    return effect == LK__EFFECT_STATE || effect == LK__EFFECT_CACHE || effect == LK__EFFECT_SENDS ||
           (effect == LK__EFFECT_IF_UPDATE && n->attrs.update);
}

/* losses.c: the numbers of a list, of one loss or several. Then those of several: finds them; the factors of their
 * gradients, at the end of forward; the gradients; the list of weights. */
void      lk__plan_find_numbers(const lk_plan *plan, lk__plan_list *list, int loss);
lk_status lk__plan_find_losses(lk_plan *plan, lk_graph *recorded, int loss);
lk_status lk__pass_loss_scales(lk_plan *plan, lk__plan_list *list);
lk_status lk__pass_loss_gradients(lk_plan *plan, lk__plan_list *list);
lk_status lk__plan_weights(lk_plan *plan);
/* The number of several losses in a list: the sum of the first, then its weight, and so on. */
static inline int lk__number_losses(const lk_plan *p) { return LK__NUMBER_METRICS + 2 * (int)p->graph->metrics_count; }
/* What a number is where there is no value: 1 for weights, in one of the stages. */
static inline double lk__number_otherwise(const lk_plan *p, int i)
{
    int first = lk__number_losses(p);
    if (lk__plan_own_stage(p) > 0) return 0;
    return i == LK__NUMBER_WEIGHT || (i >= first && (i - first) % 2 == 1);
}
/* The mean loss of these numbers. */
double lk__plan_mean_loss(const lk_plan *plan, const double *numbers);

/* plan.c: states of frozen groups, and what then needs no gradient. */
void lk__plan_freeze_groups(lk_graph *graph, const lk_optimizer_config *optimizer);

/* place_states.c: what this rank has of each state, and where; then the same for the optimizer state, when the moments
 * are known. */
lk_status lk__plan_place_states(lk_plan *plan, const lk__plan_placement *placement,
                                const lk_optimizer_config *optimizer);
void      lk__plan_place_moments(lk_plan *plan);

/* placement_pass.c: values are split over the ranks along plan->placed_axes; *forward: where the nodes of forward
 * end. */
lk_status lk__pass_placement(lk_plan *plan, lk__plan_list *list, const lk_plan_config *config, size_t *forward);
lk_status lk__pass_overlap(const lk_plan *plan, lk__plan_list *list, size_t forward); /* within backward */

/* evaluation.c: batch norm uses its running statistics, dropout is removed. */
void lk__pass_evaluation(lk__plan_list *list, bool joint);
/* rebuild.c: rebuilds the list of nodes: rewrite appends a node, and others before it, and returns the index of the one
 * that has its outputs; -1: failure. Nodes that were removed are kept as they are. */
typedef int (*lk__plan_rewrite)(lk_graph *graph, const lk__graph_node *node, void *user);
lk_status lk__plan_rebuild(lk_graph *graph, lk__plan_rewrite rewrite, void *user);
/* The same for passes that know the nodes by their numbers in the list before: rewrite appends what takes the place of
 * node `index`. *forward, where backward begins, is a position in the new list. */
typedef bool (*lk__plan_rewrite_at)(void *user, const lk__graph_node *node, size_t index);
lk_status lk__plan_rebuild_at(lk_graph *graph, lk__plan_rewrite_at rewrite, void *user, size_t *forward);
int       lk__plan_append(lk_graph *graph, const lk__graph_node *node); /* unchanged; its index or -1 */
void      lk__plan_set_producers(lk_graph *graph); /* of values, from the nodes that are not dead */
/* precision.c: the policy that stores values in `type`. The types of the parameters, the same for all lists; then casts
 * in one list. */
void      lk__precision_states(lk_graph *graph, lk_dtype type);
lk_status lk__pass_precision(lk__plan_list *list, const lk_graph *recorded, lk_dtype type);
/* matmul_precision.c: rounds what products multiply. *forward: where the nodes of forward end. */
lk_status lk__pass_matmul_precision(const lk_plan *plan, lk__plan_list *list, size_t *forward);
/* sync_norm.c: batch norm with the statistics of all ranks and leaves. */
lk_status lk__pass_sync_norm(lk__plan_list *list, lk__op_order order);
/* update.c: clipping and the optimizer; sets the plan's and the states' moments. */
lk_status lk__pass_update(lk_plan *plan, const lk_optimizer_config *optimizer);
/* layout.c: removes what nothing reads; stores images channels last where kernels need it; sets order and end. */
lk_status lk__pass_layout(lk__plan_list *list, size_t forward_nodes, size_t backward_nodes, size_t sync_nodes);
/* bucket.c: places gradients, groups them into buckets, and adds these and the collectives that reduce them: starts in
 * backward, and waits after it. *backward: where the nodes of backward end. Before layout. */
lk_status lk__pass_buckets(lk_plan *plan, size_t *backward);
void      lk__plan_gradient_memory(lk_plan *plan);                /* once the number of sets is known */
size_t    lk__bucket_complete(const lk_plan *plan, size_t index); /* position in the order of its collective's start */
/* Whether the node makes, reduces or waits for a bucket; `index`: it starts the collective of that bucket. */
static inline bool lk__plan_is_bucket(const lk_graph *g, const lk__graph_node *n)
{
    return n->outputs > 0 && n->out[0] >= 0 && g->values[n->out[0]].kind == LK__VALUE_BUCKET;
}
/* Whether it writes a unit of parameters. */
static inline bool lk__plan_is_unit(const lk_graph *g, const lk__graph_node *n)
{
    return n->outputs > 0 && n->out[0] >= 0 && g->values[n->out[0]].kind == LK__VALUE_UNIT;
}
static inline bool lk__plan_starts_bucket(const lk_graph *g, const lk__graph_node *n, int index)
{
    return lk__plan_is_bucket(g, n) && lk__op_find(n->op)->runs == LK__RUNS_COLLECTIVE &&
           g->values[n->in[0]].state == index;
}
/* shard_bucket.c: the same for a plan whose ranks have slices of the state. */
lk_status lk__pass_shard_buckets(lk_plan *plan, size_t *backward);
/* shard_gather.c. Of stages 1 and 2, in the section update, once all nodes of its states are there: the start that
 * makes a unit's new parameters whole; then the waits of all. */
lk_status lk__shard_gather_updated(lk_plan *plan, size_t unit);
lk_status lk__shard_wait_updated(lk_plan *plan);
/* For stage 3: gathers parameters before their use in a list. forward, backward: where the nodes of these end. */
lk_status lk__pass_shard_gather(lk_plan *plan, lk__plan_list *list, size_t *forward, size_t *backward);
/* leaf_batch.c: with leaves, decides whether the leaves of a rank run as one batch and which nodes run leaf by leaf;
 * otherwise reduces the capacity of the plan to one leaf. After layout, before anything depends on sizes. */
lk_status lk__pass_leaf_batch(lk_plan *plan);
void      lk__plan_reduce_capacity(lk_plan *plan);
/* memory.c: a place for every value, the size of the arena and of the workspace. */
lk_status lk__pass_memory(lk__plan_list *list, const lk_plan *plan);

/* What the leaves of the plan's reductions are. */
static inline lk__op_order lk__plan_order(const lk_plan *plan)
{
    return plan->parallel.leaves ? LK__ORDER_LEAVES : LK__ORDER_RANKS;
}

/* lk_plan_create; `one_by_one`: leaves do not run as one batch, for comparisons of the two. */
lk_status lk__plan_create(lk_graph *graph, const lk_plan_config *config, bool one_by_one, lk_plan **plan);
/* The same, with states placed by a strategy; NULL: every rank has all of them. The passes do not know split states
 * yet: such a plan serves stores, not programs. */
lk_status lk__plan_create_placed(lk_graph *graph, const lk_plan_config *config, bool one_by_one,
                                 const lk__plan_placement *placement, lk_plan **plan);

/* The type in which a bucket is reduced, its bytes then, and where it is in the region of gradients: after all sets if
 * it is rounded for that. */
static inline lk_dtype lk__bucket_type(const lk_plan *p, const lk__plan_bucket *b)
{
    bool narrow = lk__plan_batch_parts(p) > 1 && p->gradient_dtype != p->graph->real;
    return narrow && !lk__plan_scatters(p) ? p->gradient_dtype
                                           : b->dtype; /* stages 2 and 3 round by nodes (shard_bucket.c) */
}
static inline size_t lk__bucket_sent(const lk_plan *p, size_t index)
{
    const lk__plan_bucket *b = &p->buckets[index];
    return b->bytes / lk_dtype_size(b->dtype) * lk_dtype_size(lk__bucket_type(p, b));
}
static inline size_t lk__bucket_place(const lk_plan *p, const lk__plan_bucket *b)
{
    lk_dtype type = lk__bucket_type(p, b);
    if (type == b->dtype) return b->offset;
    return p->gradient_bytes * (size_t)p->sets + b->offset / lk_dtype_size(b->dtype) * lk_dtype_size(type);
}

/* shared_buffers.c: sets writes_buffers and shares_buffers. Before the buckets' collectives are there. */
void lk__plan_share_buffers(lk_plan *plan);

/* With shared state, the slices of the ranks. Every bucket is divided into one slice for each rank of a host, all of
 * one size, across the tensors in it; on every host the rank with the same index, from 0, owns the same slice.
 * Gradients begin at multiples of LK__SLICE_ALIGN, and so do slices: a boundary is that many bytes of gradients, 32
 * elements in f32, from the beginning of a tensor, and no cache line of what is updated has two owners, also of
 * parameters in bf16. */
enum { LK__SLICE_ALIGN = 128 };
/* slice.c: copies of the state, if it is shared: one for the ranks of a host that have the same slices of it. How many
 * there are, which one a rank has, how many ranks have that one, and the rank's index among them. */
int lk__plan_copies(const lk_plan *plan);
int lk__plan_copy(const lk_plan *plan, int rank);
int lk__plan_sharers(const lk_plan *plan, int rank);
int lk__plan_sharer(const lk_plan *plan, int rank);
/* The same for ranks that also have the same coordinates along `apart`: axes along which ranks have different parts of
 * one copy (lk__plan_slices.apart). */
int lk__plan_sharers_apart(const lk_plan *plan, unsigned apart, int rank);
int lk__plan_sharer_apart(const lk_plan *plan, unsigned apart, int rank);
/* The owners of this rank's copy, and its index among them. */
static inline int lk__plan_owners(const lk_plan *p)
{
    return p->stage ? lk__plan_shards(p) : lk__plan_sharers(p, lk__plan_rank(p));
}
static inline int lk__plan_own(const lk_plan *p)
{
    return p->stage ? lk__plan_shard(p) : lk__plan_sharer(p, lk__plan_rank(p));
}
/* The same for a bucket. */
static inline int lk__bucket_owners(const lk_plan *p, const lk__plan_bucket *b)
{
    if (p->shared && b->experts) return lk__plan_sharers_apart(p, p->expert_axes, lk__plan_rank(p));
    return p->stage ? lk__unit_shards(p, &p->units[b->unit]) : lk__plan_owners(p);
}
static inline int lk__bucket_own(const lk_plan *p, const lk__plan_bucket *b)
{
    if (p->shared && b->experts) return lk__plan_sharer_apart(p, p->expert_axes, lk__plan_rank(p));
    return p->stage ? lk__unit_shard(p, &p->units[b->unit]) : lk__plan_own(p);
}
/* The most helpers of a rank: more would need more workspace, and smaller tiles. */
enum { LK__HELPERS = 3 };
/* The most threads of a kernel of forward or backward: the context's, and threads of other ranks that wait
 * (run/lend.h). */
static inline int lk__plan_workers(const lk_plan *p) { return lk_context_threads(p->context) + p->helpers; }
/* Of `bytes` of a bucket, an owner's. */
static inline size_t lk__slice_bytes(const lk_plan *p, const lk__plan_bucket *b, size_t bytes)
{
    return bytes / (size_t)lk__bucket_owners(p, b);
}
/* slice.c: whether these ranks can hold their state once on each of `hosts`; those with other parts of it along axes
 * that place values, once for each part. If not, `why` continues "the ranks". */
bool lk__plan_hosts_share(const lk__mesh_grid *mesh, int leaves, int hosts, char *why, size_t bytes);

/* staging.c: off the CPU, the device's copies of the step block, the samples' ids and the inputs of one slot, in this
 * order: bytes and, by value, offsets; after the last value, the offset of the ids. offsets NULL: only measures. */
size_t lk__plan_stage_inputs(const lk_plan *plan, size_t *offsets);
size_t lk__plan_staging_bytes(const lk_plan *plan); /* all of LK_MEMORY_STAGING */
/* Before the program is made: how the ranks' group moves what is in the device's memory. Where its transport queues
 * calls on the device's streams and records them, and the plan allows it, nothing is copied through the host, and
 * LK_MEMORY_STAGING is less. With leaves, a transport that does not add in the canonical order is refused.
 * comm NULL: one rank. */
lk_status lk__plan_use_group(lk_plan *plan, const lk_comm *comm);
/* How many ids of samples are copied at most: the capacity, or a fixed number where no input has a batch. */
static inline int64_t lk__plan_staged_ids(int64_t capacity) { return capacity == INT64_MAX ? 4096 : capacity; }
/* Whether training steps are queued without waiting for their results (run/step.c): one slot, a device that records,
 * and one rank, or ranks that only split the batch and whose collectives are queued. */
bool lk__plan_queues(const lk_plan *plan);
/* The memory that this takes in addition: of the device and of the host. */
typedef struct lk__plan_queue_bytes {
    size_t input;  /* what the host sends for a micro-batch: step block, ids and, unless the device has them, samples */
    int    pinned; /* this many of these in pinned memory, and … */
    int    device_staging; /* … this many in the device's */
    size_t numbers;        /* the device's: sums, the number of micro-batches, and the word that halts updates */
    size_t results;        /* pinned: of two steps */
} lk__plan_queue_bytes;
lk__plan_queue_bytes lk__plan_queue(const lk_plan *plan);
/* Where field i of the samples that are sent by row begins after a step block and ids; after the last field: the
 * end. */
size_t lk__plan_sent_offset(const lk_plan *plan, int i);
/* of the device's memory for them, where steps are not queued; 0: none */
size_t lk__plan_sent_bytes(const lk_plan *plan);
/* Before the program is made: for training steps and for evaluations. NULL: inputs are bound. */
void lk__plan_set_source(lk_plan *plan, const lk__device_gather *train, const lk__device_gather *evaluate);
enum {
    LK__STAGED_REPORT = 64,           /* bytes: lk__kernel_invalid_id, before the slots */
    LK__STAGED_STEP = LK__DEVICE_IDS, /* bytes: lk__kernel_step, before the ids and the inputs of a slot */
    LK__STAGING_CHUNK = 1 << 20,      /* bytes that are copied at a time where whole regions are sent */
};
_Static_assert(sizeof(lk__kernel_invalid_id) <= LK__STAGED_REPORT, "the report of ids out of range");
_Static_assert((int)LK__NUMBER_MOST == (int)LK__DEVICE_NUMBERS, "the numbers of a step");
_Static_assert(sizeof(lk__kernel_step) <= LK__STAGED_STEP, "the step block");

void lk__cost_free_times(lk_plan *plan); /* cost_measured.c */
/* cost.c: the estimated time of a node at its capacity, from the machine's operations and bytes per second. */
double lk__node_seconds(const lk_graph *graph, const lk__graph_node *node, double flops, double memory);

/* The node's call at the capacity's shapes, with operands that are present but have no data. */
void lk__plan_call_at_capacity(const lk_graph *graph, const lk__graph_node *node, lk__kernel_call *call);
/* The same, and the device's kernel for it; run NULL: it has none. */
lk__device_kernel lk__plan_kernel(const lk_graph *graph, const lk__graph_node *node, lk__kernel_call *call);

#endif
