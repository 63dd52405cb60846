/* plan/shard.h - state that the ranks along the shard axis have slices of (ZeRO, FSDP), where they do not share it in
 * memory.
 *
 * A unit is a list of states, each at an offset in elements, and is cut flat into one slice for each rank along shard,
 * whatever its states' shapes are. Stored values, master copies, moments and gradients have the same layout: one
 * reduce_scatter computes a rank's slice of the gradients, and one all_gather collects whole parameters, both in place.
 *
 *   stage   a rank has all parameters   all gradients            its slices
 *   1       yes                         yes                      master copies, moments
 *   2       yes                         until they are reduced   and gradients
 *   3       while a unit is used        until they are reduced   and parameters
 *
 * Leaves of the batch (lk_parallel.leaves) are added in the order of their tree, which crosses ranks only above each
 * rank's own subtrees. With leaves, every stage keeps whole gradients until the last of this rank's leaves is done.
 *
 * Values that this adds to lists: LK__VALUE_UNIT, a unit of parameters in the store or this rank's slice of it;
 * LK__VALUE_SLICE, this rank's part of the gradient of a state, with the state's shape. */
#ifndef LK__PLAN_SHARD_H
#define LK__PLAN_SHARD_H

#include "base/split.h"

#include <lockstep/plan.h>

typedef struct lk__plan_unit {
    int      block; /* of the graph: the one whose states it has; 0: none */
    unsigned axes;  /* over which it is cut: shard and, for states that are not experts, the axis of experts */
    lk_dtype dtype; /* of its stored values */
    bool     frozen;
    uint64_t held; /* by which stages of a pipeline (lk__plan_splits) */
    int      states;
    int64_t  elements; /* of all slices, with what is between states */
    size_t   stored;   /* where it begins in the parameters: all of it or, of stage 3, this rank's slice */
    size_t   master, moments[LK_MAX_MOMENTS]; /* where this rank's slice begins */
    int      bucket;                          /* of its gradients; -1: it has none */
    int      value, slice; /* of the training graph, of stages 1 and 2: its parameters, and this rank's slice */
} lk__plan_unit;

/* What the ranks of a host gather once, in common memory, where several ranks along shard are on a host: with stage 3,
 * the parameters of a unit. Every rank writes its slice, and fetches the slices of the ranks with its place on the
 * other hosts. No rank writes before all ranks of the host have started the gather, when they no longer read the
 * previous contents. This is the only barrier that the memory needs, and it is part of the collective
 * (comm/hosts.h). */
typedef struct lk__plan_host {
    int    sharers; /* ranks of a host that gather together; 0: every rank gathers for itself */
    int    hosts;   /* on which the ranks of such a group are */
    size_t bytes;   /* of a host's copy */
} lk__plan_host;

/* shard_host.c. Who gathers, of groups along these axes, where the ranks of the mesh are on this many hosts, each with
 * the same number, host by host; 0 hosts: it is not known. */
lk__plan_host lk__plan_find_host(const lk__mesh_grid *mesh, unsigned axes, int hosts);
bool          lk__unit_on_host(const lk_plan *plan, const lk__plan_unit *unit); /* it is gathered once on a host */
/* Bytes of the copy that a rank allocates: the ranks of a host allocate equal shares of it. */
size_t lk__plan_host_share(const lk_plan *plan);

/* When a plan is created: which states are together, and how their arrays are split. */
lk_status lk__plan_make_units(lk_plan *plan, const lk_optimizer_config *optimizer);
/* Whether every backward reduces its gradients, of which only slices are kept: stages 2 and 3, without leaves. */
bool lk__plan_scatters(const lk_plan *plan);
/* Whether the sum along shard and expert, and then along data, is the sum over all parts of the batch in their tree. */
bool lk__plan_shards_nest(const lk_plan *plan);
/* Whether the norm of the gradient is added part by part (lk__square_parts), as one rank adds it: with leaves, on the
 * CPU, unless they have different experts. */
bool lk__plan_squares_by_part(const lk_plan *plan);
/* Whether it is added without rounding (base/exact_sum.h), which has no order: where every layout gives the same bits,
 * on the CPU. */
bool    lk__plan_exact_norm(const lk_plan *plan);
bool    lk__unit_is_held(const lk_plan *plan, const lk__plan_unit *unit); /* by this rank's stage */
int64_t lk__unit_each(const lk_plan *plan, const lk__plan_unit *unit); /* elements of a slice */
/* The ranks that have its slices, and this one's place among them. */
int lk__unit_shards(const lk_plan *plan, const lk__plan_unit *unit);
int lk__unit_shard(const lk_plan *plan, const lk__plan_unit *unit);
/* The elements of a state that this rank has where it is cut, and where they begin in its slice of the unit. */
lk__range lk__plan_piece(const lk_plan *plan, size_t state);
lk__range lk__plan_piece_of(const lk_plan *plan, size_t state, int shard); /* that a rank along shard has */
int64_t   lk__plan_piece_at(const lk_plan *plan, size_t state);
/* Where its gradient is in the first set of gradients, once it is reduced. */
size_t lk__plan_gradient_piece(const lk_plan *plan, size_t state);

#endif
