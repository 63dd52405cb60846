/* test_mesh_collectives.c - collectives along the axes of a mesh, of values with a run-time count: what each rank gets,
 * for ranks as threads, over shared memory and sockets, against sums and parts that the test computes by itself.
 *
 * ctest: timeout 300, label threaded, ranks 4 */
#include "placed_program.h"

enum { ROWS = 5, WIDTH = 4, MOST = 4 };

/* What rank `rank` has at row i, column k. */
static double number(int rank, int i, int k) { return (double)(rank * 1000 + i * 10 + k) * 0.125 + 1; }

typedef struct net {
    placed_program of;
    double         x[ROWS * WIDTH];
} net;

enum { REDUCED, GATHERED, SCATTERED, CUT, OUTPUTS };

/* x (rows, width), then all four of it: the sum, the parts of all ranks, their sum's part of this rank, a column's. */
static void make(const rank_test *r, net *n, const lk__mesh_grid *grid, unsigned axes)
{
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    int            parts = lk__mesh_extent(grid, axes), own = lk__mesh_coordinate(grid, axes, grid->rank);
    lk__op_attrs   sum = {.mesh = axes}, all = {.mesh = axes, .parts = parts};
    memset(n, 0, sizeof *n);
    REQUIRE(lk_graph_create(r->context, LK_F64, &n->of.graph) == LK_OK);
    lk_tensor x = lk_input(n->of.graph, "x", LK_F64, 2, ((int64_t[]){ROWS, WIDTH}));
    int       twice = lk_scale(x, 2).id, out[OUTPUTS];
    out[REDUCED] = lk__emit_all_reduce(n->of.graph, LK_HERE, &sum, twice);
    out[GATHERED] = lk__emit_all_gather(n->of.graph, LK_HERE, &all, twice);
    out[SCATTERED] = lk__emit_reduce_scatter(n->of.graph, LK_HERE, &all, out[GATHERED]);
    lk__op_attrs    cut = {.mesh = axes, .parts = parts, .axis = 1, .start = own, .length = 1};
    lk__graph_shape column = n->of.graph->values[twice].shape;
    column.dims[1] = 1;
    int node = lk__emit_shaped(n->of.graph, LK_HERE, LK__OP_own_part, &cut, &twice, 1, &column, 1);
    REQUIRE(node >= 0 && out[SCATTERED] >= 0, "%s", n->of.graph->error);
    out[CUT] = n->of.graph->nodes[node].out[0];
    CHECK(n->of.graph->values[out[GATHERED]].shape.count_axis == 1);
    CHECK(n->of.graph->values[out[SCATTERED]].shape.count_axis == 0);
    lk_tensor outputs[OUTPUTS];
    for (int i = 0; i < OUTPUTS; i++) outputs[i] = (lk_tensor){n->of.graph, out[i]};
    config.outputs = outputs;
    config.outputs_count = OUTPUTS;
    make_placed(r, &n->of, grid, &config, n->x);
}

static const double *output(const rank_test *r, const net *n, int i, int64_t elements)
{
    double *copy = copy_room((size_t)elements * sizeof *copy);
    REQUIRE(lk_program_output_read(n->of.program, i, copy, (size_t)elements * sizeof *copy) == LK_OK, "%s",
            lk_context_error(r->context));
    return copy;
}

static void check_axes(rank_test *r, const char *mesh, unsigned axes)
{
    lk__mesh_grid grid = grid_of(r, mesh);
    int           parts = lk__mesh_extent(&grid, axes), own = lk__mesh_coordinate(&grid, axes, grid.rank);
    net           n;
    make(r, &n, &grid, axes);
    for (int rows = ROWS; rows >= 0; rows--) {
        for (int i = 0; i < rows * WIDTH; i++) n.x[i] = number(r->rank, i / WIDTH, i % WIDTH);
        evaluate_rows(r, &n.of, rows);
        const double *sum = output(r, &n, REDUCED, (int64_t)rows * WIDTH);
        const double *all = output(r, &n, GATHERED, (int64_t)parts * rows * WIDTH);
        const double *scattered = output(r, &n, SCATTERED, (int64_t)rows * WIDTH);
        const double *cut = output(r, &n, CUT, rows);
        for (int i = 0; i < rows * WIDTH; i++) {
            double expected = 0, mine = 2 * number(r->rank, i / WIDTH, i % WIDTH);
            for (int k = 0; k < parts; k++) {
                double part = 2 * number(lk__mesh_member(&grid, axes, grid.rank, k), i / WIDTH, i % WIDTH);
                CHECK(all[k * rows * WIDTH + i] == part, "%s, %d rows: part %d, element %d", mesh, rows, k, i);
                expected += part;
            }
            CHECK(sum[i] == expected, "%s, %d rows: element %d of the sum", mesh, rows, i);
            CHECK(scattered[i] == parts * mine, "%s, %d rows: element %d", mesh, rows, i);
        }
        for (int i = 0; i < rows; i++) CHECK(cut[i] == 2 * number(r->rank, i, own), "%s: row %d", mesh, i);
    }
    free_placed(&n.of);
}

static void check_two(rank_test *r)
{
    check_axes(r, "tensor=2", LK_AXIS_TENSOR);
    check_axes(r, "data=1,tensor=2", LK_AXIS_TENSOR);
}

static void check_four(rank_test *r)
{
    check_axes(r, "tensor=4", LK_AXIS_TENSOR);
    check_axes(r, "data=2,tensor=2", LK_AXIS_TENSOR);
    check_axes(r, "tensor=2,data=2", LK_AXIS_TENSOR);
    check_axes(r, "shard=2,tensor=2", LK_AXIS_SHARD);
    check_axes(r, "data=2,tensor=2", LK_AXIS_DATA | LK_AXIS_TENSOR);
}

static void every_rank_gets_what_the_ranks_along_the_axis_have(void)
{
    run_on_two_and_four_ranks(check_two, check_four);
}

/* ---- listings and orders ---- */

static void check_text(rank_test *r)
{
    lk__mesh_grid grid = grid_of(r, "data=2,tensor=2");
    char          text[512];
    bool          found = false;
    net           n;
    make(r, &n, &grid, LK_AXIS_TENSOR);
    const lk__plan_list *list = &n.of.plan->evaluate;
    for (size_t i = 0; i < list->order_count; i++) {
        lk__node_text(list->graph, &list->graph->nodes[list->order[i]], text, sizeof text);
        found |= strstr(text, "all_reduce sum over ranks, along tensor(") != NULL;
    }
    CHECK(found, "%s", text);
    /* Ranks whose parts begin elsewhere list the same program. */
    uint64_t own = lk_plan_fingerprint(n.of.plan), least = own, most = own;
    REQUIRE(lk_comm_all_reduce(r->comm, &own, &least, 1, LK_I64, LK_MIN, NULL) == LK_OK);
    REQUIRE(lk_comm_all_reduce(r->comm, &own, &most, 1, LK_I64, LK_MAX, NULL) == LK_OK);
    CHECK(least == most, "rank %d", r->rank);
    free_placed(&n.of);
}

static void listings_name_the_axis_and_are_the_same_on_all_ranks(void) { run_ranks(4, NULL, check_text, NULL); }

/* A rank whose collectives are along another axis is found before the first of them. */
static void check_refusal(rank_test *r)
{
    lk__mesh_grid      grid = grid_of(r, "data=2,tensor=2");
    lk__plan_placement placement = {.mesh = &grid};
    lk_plan_config     config = LK_PLAN_CONFIG_INIT;
    unsigned           axes = r->rank == 3 ? LK_AXIS_DATA : LK_AXIS_TENSOR;
    net                n = {0};
    REQUIRE(lk_graph_create(r->context, LK_F64, &n.of.graph) == LK_OK);
    lk_tensor x = lk_input(n.of.graph, "x", LK_F64, 2, ((int64_t[]){ROWS, WIDTH}));
    lk_tensor y = {n.of.graph, lk__emit_all_reduce(n.of.graph, LK_HERE, &(lk__op_attrs){.mesh = axes}, x.id)};
    config.outputs = &y;
    config.outputs_count = 1;
    REQUIRE(lk__plan_create_placed(n.of.graph, &config, false, &placement, &n.of.plan) == LK_OK);
    REQUIRE(lk_store_create(n.of.plan, 3, &n.of.store) == LK_OK);
    CHECK(lk_program_create(n.of.plan, n.of.store, r->comm, &n.of.program) == LK_EMISMATCH && !n.of.program);
    CHECK(strstr(lk_context_error(r->context), "rank 3"), "%s", lk_context_error(r->context));
    free_placed(&n.of);
}

static void ranks_with_different_groups_are_refused(void) { run_ranks(4, NULL, check_refusal, NULL); }

int main(void)
{
    RUN(every_rank_gets_what_the_ranks_along_the_axis_have);
    RUN(listings_name_the_axis_and_are_the_same_on_all_ranks);
    RUN(ranks_with_different_groups_are_refused);
    return check_result();
}
