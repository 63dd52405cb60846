/* test_slice_lists.c - state of which every rank has slices: which elements are whose, against the definition. */
#include "slices.h"

/* Whether part `part` of the list has the element at these coordinates, by floor(n·i / parts) alone. */
static int part_in_segment(const lk__plan_cut *cut, int extent, int64_t at)
{
    int i = 0;
    for (; at >= cut->segment[i]; i++) at -= cut->segment[i];
    return (int)(at * extent / cut->segment[i]);
}

static bool has_element(const lk__plan_slices *s, int part, const int64_t *at)
{
    int64_t first[LK__SLICES_RANK] = {0}, count[LK__SLICES_RANK];
    int     flats = s->splits.flat.axes ? lk__mesh_extent(s->mesh, s->splits.flat.axes) : 1;
    int     number[LK__SPLITS], rest = part / flats;
    memcpy(count, s->dims, sizeof count);
    for (int i = s->splits.count - 1; i >= 0; i--) {
        int extent = lk__mesh_extent(s->mesh, s->splits.split[i].axes);
        number[i] = rest % extent;
        rest /= extent;
    }
    for (int i = 0; i < s->splits.count; i++) {
        int dim = s->splits.split[i].dim, extent = lk__mesh_extent(s->mesh, s->splits.split[i].axes);
        if (s->splits.split[i].segment[0]) {
            if (part_in_segment(&s->splits.split[i], extent, at[dim]) != number[i]) return false;
            continue;
        }
        int64_t begin = count[dim] * number[i] / extent, end = count[dim] * (number[i] + 1) / extent;
        first[dim] += begin;
        count[dim] = end - begin;
    }
    for (int i = 0; i < s->rank; i++)
        if (at[i] < first[i] || at[i] >= first[i] + count[i]) return false;
    int64_t inside = 0; /* of what these cuts leave, row by row */
    for (int i = 0; i < s->rank; i++) inside = inside * count[i] + at[i] - first[i];
    return flats == 1 || (s->splits.flat.at + inside) / s->splits.flat.each == part % flats;
}

static void check_list(const lk__plan_slices *s)
{
    int64_t elements = 1, *place;
    int    *owner;
    for (int i = 0; i < s->rank; i++) elements *= s->dims[i];
    REQUIRE((owner = malloc((size_t)elements * sizeof *owner)) && (place = malloc((size_t)elements * sizeof *place)));
    for (int64_t e = 0; e < elements; e++) owner[e] = -1;
    for (int part = 0; part < s->parts; part++) {
        int64_t used = 0;
        for (int64_t e = 0; e < elements; e++) {
            int64_t at[LK__SLICES_RANK], rest = e;
            for (int i = s->rank - 1; i >= 0; rest /= s->dims[i], i--) at[i] = rest % s->dims[i];
            if (!has_element(s, part, at)) continue;
            CHECK(owner[e] < 0, "element %lld is in slices %d and %d", (long long)e, owner[e], part);
            owner[e] = part;
            place[e] = used++;
        }
        CHECK(used == lk__slices_elements(s, part), "slice %d has %lld elements", part, (long long)used);
    }
    for (int64_t e = 0; e < elements; e++) {
        lk__plan_run run = lk__slices_find(s, e), back = lk__slices_run(s, run.part, run.at);
        int64_t      end = e + 1;
        while (end < elements && owner[end] == owner[e] && place[end] == place[end - 1] + 1) end++;
        CHECK(run.part == owner[e] && run.at == place[e] && run.first == e && run.count >= 1 && run.count <= end - e,
              "element %lld: part %d at %lld, %lld", (long long)e, run.part, (long long)run.at, (long long)run.count);
        /* A run ends where its owner's elements do, or where a row of the slice does. */
        CHECK(run.count == end - e || s->parts > 1);
        CHECK(back.first == e && back.part == run.part && back.at == run.at && back.count == run.count);
    }
    for (int rank = 0; rank < s->mesh->size; rank++)
        for (int part = 0; part < s->parts; part++) {
            int holder = lk__slices_holder(s, part, rank);
            CHECK(lk__slices_part(s, holder) == part, "rank %d reads slice %d from rank %d", rank, part, holder);
            CHECK(lk__slices_part(s, rank) != part || holder == rank);
        }
    free(owner);
    free(place);
}

static void every_element_of_a_segment_is_in_one_slice(void)
{
    lk__mesh_grid         grid = grid_of("data=2,shard=3,tensor=2", 0);
    const lk__plan_splits lists[] = {
        {.count = 1, .split = {{.dim = 1, .axes = LK_AXIS_TENSOR, .outer = 1, .segment = {6, 2, 4}}}},
        {.count = 1, .split = {{.dim = 1, .axes = LK_AXIS_SHARD, .outer = 1, .segment = {9, 3}}}},
        {.count = 2,
         .split = {{.dim = 1, .axes = LK_AXIS_SHARD, .outer = 1, .segment = {6, 3, 3}}, CUT(0, LK_AXIS_DATA, 1)}},
        {.count = 2,
         .split = {CUT(2, LK_AXIS_DATA, 1), {.dim = 1, .axes = LK_AXIS_TENSOR, .outer = 1, .segment = {8, 2, 2}}}},
    };
    const int64_t shapes[][3] = {{3, 12, 5}, {1, 12, 1}, {4, 12, 2}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t k = 0; k < sizeof lists / sizeof *lists; k++) {
            lk__plan_slices s = {.mesh = &grid, .rank = 3, .splits = lists[k], .parts = 1};
            memcpy(s.dims, shapes[i], sizeof shapes[i]);
            for (int n = 0; n < s.splits.count; n++) s.parts *= lk__mesh_extent(&grid, s.splits.split[n].axes);
            check_list(&s);
        }
}

static void every_element_is_in_one_slice(void)
{
    lk__mesh_grid         grid = grid_of("data=2,shard=3,tensor=2", 0);
    const int64_t         shapes[][3] = {{7, 5, 3}, {2, 2, 2}, {1, 4, 9}, {13, 1, 1}};
    const lk__plan_splits lists[] = {
        {0},
        {.count = 1, .split = {CUT(0, LK_AXIS_DATA, 1)}},
        {.count = 1, .split = {CUT(1, LK_AXIS_SHARD, 1)}},
        {.count = 1, .split = {CUT(2, LK_AXIS_TENSOR, 1)}},
        {.count = 1, .split = {CUT(0, LK_AXIS_PIPELINE, 1)}}, /* an axis that the mesh does not name */
        {.count = 1, .split = {CUT(0, LK_AXIS_DATA | LK_AXIS_TENSOR, 1)}},
        {.count = 2, .split = {CUT(0, LK_AXIS_TENSOR, 1), CUT(0, LK_AXIS_SHARD, 1)}},
        {.count = 2, .split = {CUT(1, LK_AXIS_TENSOR, 1), CUT(0, LK_AXIS_SHARD, 1)}},
        {.count = 3, .split = {CUT(2, LK_AXIS_DATA, 1), CUT(0, LK_AXIS_SHARD, 1), CUT(1, LK_AXIS_TENSOR, 1)}},
        {.flat = {LK_AXIS_SHARD, 0, 40}},
        {.flat = {LK_AXIS_SHARD, 7, 64}}, /* of which the last part may be empty */
        {.count = 1, .split = {CUT(1, LK_AXIS_TENSOR, 1)}, .flat = {LK_AXIS_SHARD, 5, 24}},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t k = 0; k < sizeof lists / sizeof *lists; k++) {
            lk__plan_slices s = {.mesh = &grid, .rank = 3, .splits = lists[k], .parts = 1};
            memcpy(s.dims, shapes[i], sizeof shapes[i]);
            for (int n = 0; n < s.splits.count; n++) s.parts *= lk__mesh_extent(&grid, s.splits.split[n].axes);
            if (s.splits.flat.axes) s.parts *= lk__mesh_extent(&grid, s.splits.flat.axes);
            check_list(&s);
        }
}

/* Three things side by side, each of which is cut: of 12 columns, rank 1 of 2 has 2, 3, 6, 7, 10 and 11. */
static void repetitions_are_cut_one_by_one(void)
{
    rig                  r = rig_open(LK_F32, 1);
    lk_optimizer_config  optimizer = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config       config = LK_PLAN_CONFIG_INIT;
    lk__mesh_grid        grid = grid_of("tensor=2", 1);
    lk_tensor            x = lk_input(r.graph, "x", LK_F32, 2, ((int64_t[]){4, 2}));
    lk_tensor            w = lk_parameter(r.graph, "w", 2, ((int64_t[]){2, 12}));
    static const placing p = {.splits = {{.count = 1, .split = {CUT(1, LK_AXIS_TENSOR, 3)}}}};
    lk__plan_placement   placement = {place_array, (void *)&p, &grid};
    config.loss = lk_sum(lk_matmul(x, w));
    config.optimizer = &optimizer;
    REQUIRE(lk__plan_create_placed(r.graph, &config, false, &placement, &r.plan) == LK_OK, "%s",
            lk_context_error(r.context));
    lk__plan_slices s = lk__plan_state_slices(r.plan, 0, LK__ARRAY_STORED);
    const int64_t   want[] = {2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23};
    CHECK(lk__slices_elements(&s, 1) == 12);
    for (int i = 0; i < 12; i++) CHECK(lk__slices_run(&s, 1, i).first == want[i], "element %d", i);
    check_list(&s);
    lk_plan_free(r.plan);
    lk_graph_free(r.graph);
    lk_context_free(r.context);
}

int main(void)
{
    RUN(every_element_is_in_one_slice);
    RUN(every_element_of_a_segment_is_in_one_slice);
    RUN(repetitions_are_cut_one_by_one);
    return check_result();
}
