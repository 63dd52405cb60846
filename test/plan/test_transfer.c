/* test_transfer.c - sends and receives between the stages of a pipeline in a hand-made graph: what the next stage gets,
 * at every count of samples, in both directions at once, over shared memory and sockets, and on a device whose memory
 * the group does not reach.
 *
 * ctest: timeout 300, label threaded, ranks 4 */
#include "placed_program.h"

enum { ROWS = 5, WIDTH = 50000 }; /* more than a ring between two ranks holds */

static double number(int rank, int i) { return rank * 1000 + i * 0.125 + 1; }

/* Every stage sends 2 x to the next and 3 x to the one before, and adds what it gets: both first send, then receive. */
static void make(const rank_test *r, placed_program *n, const char *axes, const double *x)
{
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    lk__mesh_grid  grid = grid_of(r, axes);
    memset(n, 0, sizeof *n);
    int stages = lk__mesh_extent(&grid, LK_AXIS_PIPELINE),
        stage = lk__mesh_coordinate(&grid, LK_AXIS_PIPELINE, r->rank);
    REQUIRE(lk_graph_create(r->context, LK_F64, &n->graph) == LK_OK);
    lk_tensor input = lk_input(n->graph, "x", LK_F64, 2, ((int64_t[]){ROWS, WIDTH}));
    lk_tensor twice = lk_scale(input, 2), thrice = lk_scale(input, 3), sum = lk_scale(input, 0);
    for (int way = 0; way < 2; way++) {
        int          to = way ? stage - 1 : stage + 1, from = way ? stage + 1 : stage - 1;
        lk__op_attrs out = {.mesh = LK_AXIS_PIPELINE, .transfer = {.stage = to, .number = way}}, in = out;
        in.transfer.stage = from;
        if (to >= 0 && to < stages) REQUIRE(lk__emit_send(n->graph, LK_HERE, &out, way ? thrice.id : twice.id) >= 0);
        if (from < 0 || from >= stages) continue;
        lk_tensor got = {n->graph, lk__emit_receive(n->graph, LK_HERE, &in, input.id)};
        REQUIRE(got.id >= 0, "%s", n->graph->error);
        sum = lk_add(sum, got);
    }
    config.outputs = &sum;
    config.outputs_count = 1;
    make_placed(r, n, &grid, &config, x);
}

static void check_mesh(rank_test *r, const char *axes)
{
    double        *x = calloc(ROWS * WIDTH, sizeof *x), *sum = malloc(ROWS * WIDTH * sizeof *sum);
    placed_program n;
    lk__mesh_grid  grid;
    make(r, &n, axes, x);
    grid = n.plan->mesh;
    int stages = lk__mesh_extent(&grid, LK_AXIS_PIPELINE),
        stage = lk__mesh_coordinate(&grid, LK_AXIS_PIPELINE, r->rank);
    int before = stage ? lk__mesh_member(&grid, LK_AXIS_PIPELINE, r->rank, stage - 1) : -1;
    int behind = stage + 1 < stages ? lk__mesh_member(&grid, LK_AXIS_PIPELINE, r->rank, stage + 1) : -1;
    for (int i = 0; i < ROWS * WIDTH; i++) x[i] = number(r->rank, i);
    for (int rows = ROWS; rows >= 0; rows--) {
        size_t bytes = (size_t)rows * WIDTH * sizeof *sum;
        evaluate_rows(r, &n, rows);
        REQUIRE(lk_program_output_read(n.program, 0, sum, bytes) == LK_OK);
        int wrong = 0;
        for (int i = 0; i < rows * WIDTH; i++)
            wrong += sum[i] != (before >= 0 ? 2 * number(before, i) : 0) + (behind >= 0 ? 3 * number(behind, i) : 0);
        CHECK(wrong == 0, "%s, rank %d, %d rows: %d elements", axes, r->rank, rows, wrong);
    }
    free_placed(&n);
    free(x);
    free(sum);
}

static void check_two(rank_test *r) { check_mesh(r, "pipeline=2"); }

static void check_four(rank_test *r)
{
    check_mesh(r, "pipeline=4");
    check_mesh(r, "pipeline=2,data=2");
    check_mesh(r, "data=2,pipeline=2");
}

static void stages_get_what_their_neighbours_send(void) { run_on_two_and_four_ranks(check_two, check_four); }

/* ---- a stage that expects another value ---- */

static void check_count(rank_test *r)
{
    static double  x[ROWS * WIDTH];
    placed_program n;
    make(r, &n, "pipeline=2", x);
    lk_step   step = {.step = 1, .count = 2 + r->rank};
    lk_status status = lk_program_step(n.program, &step);
    if (status >= 0) status = lk_program_run(n.program, LK_EVALUATE);
    CHECK(status == LK_EMISMATCH, "%d: %s", status, lk_context_error(r->context));
    CHECK(strstr(lk_context_error(r->context), "rank"), "%s", lk_context_error(r->context));
    free_placed(&n);
}

static void a_stage_with_another_count_is_refused(void) { run_ranks(2, NULL, check_count, NULL); }

int main(void)
{
    RUN(stages_get_what_their_neighbours_send);
    RUN(a_stage_with_another_count_is_refused);
    return check_result();
}
