/* placed_program.h - shared by the tests of nodes that communicate along axes of a mesh: the program of a hand-made
 * graph, of ranks as threads, over shared memory and sockets. */
#ifndef PLACED_PROGRAM_H
#define PLACED_PROGRAM_H

#include "comm/mesh.h"
#include "comm_ranks.h"
#include "copies.h"
#include "plan/plan.h"

#include <lockstep.h>

typedef struct placed_program {
    lk_graph   *graph;
    lk_plan    *plan;
    lk_store   *store;
    lk_program *program;
} placed_program;

SHARED lk__mesh_grid grid_of(const rank_test *r, const char *axes)
{
    lk__mesh_grid grid;
    REQUIRE(lk__mesh_parse(r->context, axes, &grid) == LK_OK && grid.size == r->size);
    grid.rank = r->rank;
    return grid;
}

/* Of a graph whose nodes are those of this rank; x: its input "x". */
SHARED void make_placed(const rank_test *r, placed_program *p, const lk__mesh_grid *grid, lk_plan_config *config,
                        const double *x)
{
    lk__plan_placement placement = {.mesh = grid};
    REQUIRE(lk__plan_create_placed(p->graph, config, false, &placement, &p->plan) == LK_OK, "%s",
            lk_context_error(r->context));
    REQUIRE(lk_store_create(p->plan, 3, &p->store) == LK_OK);
    REQUIRE(lk_program_create(p->plan, p->store, r->comm, &p->program) == LK_OK, "%s", lk_context_error(r->context));
    REQUIRE(lk_program_bind(p->program, "x", x) == LK_OK);
}

SHARED void free_placed(placed_program *p)
{
    lk_program_free(p->program);
    lk_store_free(p->store);
    lk_plan_free(p->plan);
    lk_graph_free(p->graph);
}

SHARED void evaluate_rows(const rank_test *r, placed_program *p, int rows)
{
    lk_step step = {.step = 1, .count = rows};
    REQUIRE(lk_program_step(p->program, &step) == LK_OK && lk_program_run(p->program, LK_EVALUATE) == LK_OK, "%s",
            lk_context_error(r->context));
}

SHARED void run_on_two_and_four_ranks(void (*two)(rank_test *r), void (*four)(rank_test *r))
{
    lk_comm_config tcp = LK_COMM_CONFIG_INIT;
    tcp.backend = "tcp";
    run_ranks(2, NULL, two, NULL);
    run_ranks(4, NULL, four, NULL);
    run_ranks(2, &tcp, two, NULL);
    run_ranks(4, &tcp, four, NULL);
}

#endif
