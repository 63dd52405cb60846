/* slices.h - shared by tests of state by slices: a model with states of awkward shapes, what of a store is compared,
 * and placements of states. */
#ifndef SLICES_H
#define SLICES_H

#include "parallel.h"
#include "run/exchange.h"

#include "base/bf16.h"

enum { BIG_ROWS = 501, BIG_COLUMNS = 801, SEED = 5 }; /* of 1.6 MB: several windows */

/* Shapes that no number of ranks divides, fewer rows than ranks, a frozen state, buffers of two types, and a second
 * name. */
SHARED lk_tensor record_states(lk_graph *g)
{
    lk_tensor x = lk_input(g, "x", LK_F32, 2, ((int64_t[]){4, 5}));
    lk_tensor w = lk_parameter(g, "w", 2, ((int64_t[]){7, 5}), .init = LK_INIT_UNIFORM, .a = 1);
    lk_tensor b = lk_parameter(g, "b", 1, ((int64_t[]){7}), .init = LK_INIT_CONSTANT, .a = 3);
    lk_tensor fixed = lk_parameter(g, "fixed", 2, ((int64_t[]){1, 7}), .init = LK_INIT_NORMAL, .a = 2, .frozen = true);
    lk_tensor cube = lk_parameter(g, "cube", 3, ((int64_t[]){3, 2, 7}), .init = LK_INIT_NORMAL, .a = 1);
    lk_tensor big = lk_parameter(g, "big", 2, ((int64_t[]){BIG_ROWS, BIG_COLUMNS}), .init = LK_INIT_NORMAL, .a = 0.1);
    lk_tie(w, "second");
    lk_tensor out = lk_add(lk_linear(lk_batch_norm(x, "bn"), "fc", 7, .weight = w), lk_add(fixed, b));
    lk_tensor rest = lk_add(lk_sum(cube), lk_sum(big));
    return lk_add(lk_sum(lk_mul(out, out)), rest);
}

SHARED lk_plan_config config_of(rig *r, lk_optimizer_config *adam, lk_policy policy)
{
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    *adam = (lk_optimizer_config)LK_OPTIMIZER_CONFIG_INIT;
    config.loss = record_states(r->graph);
    config.optimizer = adam;
    config.policy = policy;
    return config;
}

SHARED int last_part(const lk_state *s) { return s->moments; }

/* Under bf16: this rank's slice of the stored copy is the value, rounded. */
SHARED void compare_stored(const char *name, const rig *split, const rig *whole, const char *when)
{
    for (size_t i = 0; i < lk_store_count(whole->store); i++) {
        lk_state        s = lk_store_at(whole->store, i);
        lk__plan_slices slices = lk__plan_state_slices(split->plan, i, LK__ARRAY_STORED);
        int64_t         count = lk__slices_elements(&slices, slices.own);
        if (s.dtype == s.stored || count == 0) continue;
        const float *values = state_copy(whole->store, s.name);
        lk__bf16    *stored = copy_room((size_t)count * sizeof *stored);
        REQUIRE(lk__device_read(split->store->device, NULL, stored,
                                lk__store_array_memory(split->store, i, LK__ARRAY_STORED),
                                (size_t)count * sizeof *stored) == LK_OK);
        bool same = true;
        for (int64_t k = 0; k < count; k++) {
            lk__bf16 want = lk__to_bf16(values[lk__slices_run(&slices, slices.own, k).first]);
            same &= memcmp(&stored[k], &want, sizeof want) == 0;
        }
        CHECK(same, "%s, %s: the stored copy of %s", name, when, s.name);
    }
}

SHARED size_t list_bytes(const lk__exchange_list *list)
{
    size_t bytes = 0;
    for (size_t i = 0; i < list->count; i++) bytes += list->ranges[i].bytes;
    return bytes;
}

/* ---- placements of states ---- */

#define CUT(at, along, repetitions) {.dim = at, .axes = along, .outer = repetitions}

typedef struct placing {
    const char     *name;
    lk__plan_splits splits[LK__ARRAY_COUNT]; /* dimension -1: the last */
    const char     *axes;                    /* NULL: data */
    lk_policy       policy;
    const char     *backend, *directory;
    int             ranks;
    lk_state_mode   state;
    int             hosts; /* simulated, with as many ranks each; 0: this one */
    bool            three; /* moments, of RMSprop; else Adam's two */
    bool            begun; /* Adagrad, whose moment does not begin with 0 */
} placing;

SHARED lk__mesh_grid grid_of(const char *axes, int rank)
{
    lk_context   *context;
    lk__mesh_grid grid;
    REQUIRE(lk_context_create(NULL, &context) == LK_OK);
    REQUIRE(lk__mesh_parse(context, axes, &grid) == LK_OK, "%s", lk_context_error(context));
    grid.rank = rank;
    lk_context_free(context);
    return grid;
}

/* The last segment takes the rest of the dimension; parts must be equal, else there are none. */
SHARED void fit_segments(lk__plan_cut *cut, int64_t extent, int parts)
{
    int     last = 0;
    int64_t before = 0;
    if (!cut->segment[0]) return;
    while (last + 1 < LK__CUT_SEGMENTS && cut->segment[last + 1]) before += cut->segment[last++];
    cut->segment[last] = extent - before;
    if (cut->segment[last] <= 0 || cut->segment[last] % parts) memset(cut->segment, 0, sizeof cut->segment);
}

SHARED void place_array(void *user, const lk_plan *plan, size_t state, lk__plan_array array, lk__plan_splits *splits)
{
    const placing *p = user;
    int            rank = plan->graph->values[plan->graph->states[state].value].shape.rank;
    if (rank == 0) return; /* a single number has no dimension to split */
    const int64_t *dims = plan->graph->values[plan->graph->states[state].value].shape.dims;
    *splits = p->splits[array];
    for (int i = 0; i < splits->count; i++) {
        lk__plan_cut *cut = &splits->split[i];
        if (cut->dim < 0) cut->dim = rank - 1;
        if (dims[cut->dim] % cut->outer) cut->outer = 1;
        fit_segments(cut, dims[cut->dim], lk__mesh_extent(&plan->mesh, cut->axes));
    }
}

#endif
