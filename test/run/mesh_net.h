/* mesh_net.h - shared by the tests of models that are cut over a mesh, with ranks as threads: what a rank has of such a
 * model, how many ranks a mesh has, and comparisons of numbers and of memory. */
#ifndef MESH_NET_H
#define MESH_NET_H

#include "comm_ranks.h"
#include "copies.h"
#include "run/store.h"

#include <lockstep.h>

typedef struct mesh_net {
    lk_graph   *graph;
    lk_mesh    *mesh;
    lk_plan    *plan;
    lk_store   *store;
    lk_program *program;
} mesh_net;

/* axes NULL: one rank. */
SHARED void make_mesh(const rank_test *r, const char *axes, mesh_net *n)
{
    lk_mesh_config config = LK_MESH_CONFIG_INIT;
    config.axes = axes;
    if (axes) config.comm = r->comm;
    REQUIRE(lk_mesh_create(r->context, &config, &n->mesh) == LK_OK, "%s", lk_context_error(r->context));
}

/* The plan, store and program of n's mesh. */
SHARED void make_program(const rank_test *r, const char *name, lk_plan_config *config, mesh_net *n)
{
    lk_comm *comm = lk_mesh_size(n->mesh) > 1 ? r->comm : NULL;
    config->mesh = n->mesh;
    REQUIRE(lk_plan_create(n->graph, config, &n->plan) == LK_OK, "%s: %s", name, lk_context_error(r->context));
    REQUIRE(lk_store_create_shared(n->plan, 3, comm, &n->store) == LK_OK, "%s: %s", name, lk_context_error(r->context));
    REQUIRE(lk_program_create(n->plan, n->store, comm, &n->program) == LK_OK, "%s: %s", name,
            lk_context_error(r->context));
}

SHARED void free_net(mesh_net *n)
{
    lk_program_free(n->program);
    lk_store_free(n->store);
    lk_plan_free(n->plan);
    lk_graph_free(n->graph);
    lk_mesh_free(n->mesh);
}

/* Which rows of a batch are this rank's; micro_batches 0 is one. */
SHARED lk__split_job split_of(const rank_test *r, const mesh_net *n, int leaves, int micro_batches)
{
    unsigned axes = LK_AXES_BATCH;
    return (lk__split_job){lk_mesh_extent(n->mesh, axes), lk_mesh_coordinate(n->mesh, axes, r->rank), leaves,
                           micro_batches > 1 ? micro_batches : 1};
}

/* Memory of the context by kind, before a program is made. */
typedef struct memory_before {
    size_t bytes[LK_MEMORY_OTHER];
} memory_before;

SHARED memory_before memory_now(const rank_test *r)
{
    memory_before before;
    for (int kind = 0; kind < LK_MEMORY_OTHER; kind++)
        before.bytes[kind] = lk_context_memory(r->context, (lk_memory)kind);
    return before;
}

/* The plan states what the program took since then, to the byte. */
SHARED void check_stated_memory(const rank_test *r, const char *name, const mesh_net *n, const memory_before *before)
{
    for (int kind = 0; kind < LK_MEMORY_OTHER; kind++) {
        size_t stated = lk_plan_memory(n->plan, (lk_memory)kind);
        size_t held = lk_context_memory(r->context, (lk_memory)kind) - before->bytes[kind];
        CHECK(held == stated, "%s, rank %d: %s: %zu stated, %zu held", name, r->rank, lk_memory_name((lk_memory)kind),
              stated, held);
    }
}

static double number_at(const void *data, lk_dtype type, int64_t i)
{
    return type == LK_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

/* Raises *largest to the largest number of `whole`. */
SHARED double largest_difference(const void *own, const void *whole, lk_dtype type, int64_t count, double *largest)
{
    double worst = 0;
    for (int64_t i = 0; i < count; i++) {
        double a = number_at(whole, type, i), b = number_at(own, type, i);
        worst = fmax(worst, fabs(a - b));
        *largest = fmax(*largest, fabs(a));
    }
    return worst;
}

/* Every state of f64, and every gradient that both have, is that of one rank: within 1e-9 of its largest number. */
SHARED void compare_states(const rank_test *r, const char *name, const mesh_net *own, const mesh_net *whole)
{
    for (size_t i = 0; i < lk_store_count(whole->store); i++) {
        lk_state state = lk_store_at(whole->store, i);
        if (state.dtype != LK_F64) continue;
        double        largest = 1e-3;
        const double *a = state_copy(whole->store, state.name), *b = state_copy(own->store, state.name);
        double        worst = largest_difference(b, a, LK_F64, state_elements(&state), &largest);
        CHECK(worst <= 1e-9 * largest, "%s, rank %d: %s differs by %g of %g", name, r->rank, state.name, worst,
              largest);
    }
}

SHARED void compare_gradients(const rank_test *r, const char *name, const mesh_net *own, const mesh_net *whole)
{
    for (size_t i = 0; i < lk_store_count(whole->store); i++) {
        lk_state      state = lk_store_at(whole->store, i);
        double        largest = 1e-3;
        const double *a = gradient_copy(whole->program, whole->store, state.name);
        const double *b = gradient_copy(own->program, own->store, state.name);
        if (!a || !b) continue;
        double worst = largest_difference(b, a, LK_F64, state_elements(&state), &largest);
        CHECK(worst <= 1e-9 * largest, "%s, rank %d: the gradient of %s differs by %g of %g", name, r->rank, state.name,
              worst, largest);
    }
}

SHARED int ranks_of_mesh(const char *axes)
{
    lk__mesh_grid grid;
    lk_context   *context;
    REQUIRE(lk_context_create(NULL, &context) == LK_OK && lk__mesh_parse(context, axes, &grid) == LK_OK);
    lk_context_free(context);
    return grid.size;
}

#endif
