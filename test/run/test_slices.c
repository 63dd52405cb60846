/* test_slices.c - state of which every rank has slices: which elements are whose, against the definition; and stores
 * that are split, against the store of one rank that has everything.
 *
 * ctest: timeout 300, ranks 4 */
#include "slices.h"
#include "train/checkpoint.h"
#include "train/load_group.h"

#define CUT(at, along, repetitions) {.dim = at, .axes = along, .outer = repetitions}

/* ---- the lists, against their definition ---- */

static lk__mesh_grid grid_of(const char *axes, int rank)
{
    lk_context   *context;
    lk__mesh_grid grid;
    REQUIRE(lk_context_create(NULL, &context) == LK_OK);
    REQUIRE(lk__mesh_parse(context, axes, &grid) == LK_OK, "%s", lk_context_error(context));
    grid.rank = rank;
    lk_context_free(context);
    return grid;
}

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

/* ---- split stores, against the store of one rank ---- */

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

#define SPLIT(dim) {.count = 1, .split = {CUT(dim, LK_AXIS_DATA, 1)}}

static const placing placings[] = {
    {.name = "moments split", .splits = {[LK__ARRAY_MOMENT_0] = SPLIT(0), [LK__ARRAY_MOMENT_0 + 1] = SPLIT(0)}},
    {.name = "all split along rows", .splits = {SPLIT(0), SPLIT(0), SPLIT(0), SPLIT(0)}},
    {.name = "all split along columns", .splits = {SPLIT(-1), SPLIT(-1), SPLIT(-1), SPLIT(-1)}},
    {.name = "values by columns, one moment by rows", .splits = {SPLIT(-1), SPLIT(-1), {0}, SPLIT(0)}},
    {.name = "bf16, master copies and moments split",
     .splits = {{0}, SPLIT(0), SPLIT(0), SPLIT(0)},
     .policy = LK_POLICY_BF16},
    {.name = "bf16, stored by columns, master copies by rows",
     .splits = {SPLIT(-1), SPLIT(0), SPLIT(0), {0}},
     .policy = LK_POLICY_BF16},
    {.name = "bf16, all by rows", .splits = {SPLIT(0), SPLIT(0), SPLIT(0), SPLIT(0)}, .policy = LK_POLICY_BF16},
    {.name = "three moments", .splits = {SPLIT(0), {0}, SPLIT(0), SPLIT(-1), SPLIT(0)}, .three = true},
    {.name = "moments that begin with a number", .splits = {{0}, {0}, SPLIT(0)}, .begun = true},
};
static const placing grids[] = {
    {.name = "values over one of two axes",
     .splits = {{.count = 1, .split = {CUT(0, LK_AXIS_TENSOR, 1)}},
                {0},
                {.count = 1, .split = {CUT(-1, LK_AXIS_DATA, 1)}}},
     .axes = "data=2,tensor=2"},
    {.name = "repetitions, each of which is split",
     .splits = {{.count = 1, .split = {CUT(0, LK_AXIS_TENSOR, 7)}},
                {0},
                {.count = 1, .split = {CUT(-1, LK_AXIS_TENSOR, 3)}},
                {.count = 2, .split = {CUT(-1, LK_AXIS_TENSOR, 3), CUT(0, LK_AXIS_DATA, 1)}}},
     .axes = "data=2,tensor=2"},
    {.name = "segments, each of which is split",
     .splits = {{.count = 1, .split = {{.dim = 0, .axes = LK_AXIS_TENSOR, .outer = 1, .segment = {2, 2}}}},
                {0},
                {.count = 1, .split = {{.dim = -1, .axes = LK_AXIS_TENSOR, .outer = 1, .segment = {4, 2, 2}}}},
                {.count = 2,
                 .split = {{.dim = -1, .axes = LK_AXIS_TENSOR, .outer = 1, .segment = {2, 4}},
                           CUT(0, LK_AXIS_DATA, 1)}}},
     .axes = "data=2,tensor=2"},
    {.name = "copies that neighbours have",
     .splits = {{.count = 1, .split = {CUT(0, LK_AXIS_TENSOR | LK__AXES_ACROSS | 2 << LK__AXES_SHIFT, 1)}},
                {0},
                {.count = 1, .split = {CUT(-1, LK_AXIS_TENSOR | 2 << LK__AXES_SHIFT, 1)}}},
     .axes = "tensor=4"},
    {.name = "two axes, two dimensions",
     .splits = {{.count = 2, .split = {CUT(0, LK_AXIS_DATA, 1), CUT(-1, LK_AXIS_TENSOR, 1)}},
                {0},
                {.count = 2, .split = {CUT(0, LK_AXIS_TENSOR, 1), CUT(0, LK_AXIS_DATA, 1)}}},
     .axes = "data=2,tensor=2"},
};

/* Both: ranks that have the same slices share one copy of them. */
static const placing shared_grids[] = {
    {.name = "shared, split over one of two axes",
     .splits = {{.count = 1, .split = {CUT(0, LK_AXIS_TENSOR, 1)}},
                {.count = 1, .split = {CUT(0, LK_AXIS_TENSOR, 1)}},
                {.count = 1, .split = {CUT(0, LK_AXIS_TENSOR, 1)}},
                {.count = 1, .split = {CUT(-1, LK_AXIS_TENSOR, 1)}}},
     .axes = "data=2,tensor=2"},
    {.name = "shared values, moments split over the other axis",
     .splits = {{0},
                {0},
                {.count = 1, .split = {CUT(0, LK_AXIS_DATA, 1)}},
                {.count = 1, .split = {CUT(-1, LK_AXIS_DATA, 1)}}},
     .axes = "data=2,tensor=2"},
    {.name = "shared, bf16, stored by columns, master copies by rows",
     .splits = {{.count = 1, .split = {CUT(-1, LK_AXIS_TENSOR, 1)}},
                {.count = 1, .split = {CUT(0, LK_AXIS_TENSOR, 1)}},
                {.count = 1, .split = {CUT(0, LK_AXIS_TENSOR, 1)}}},
     .policy = LK_POLICY_BF16,
     .axes = "data=2,tensor=2"},
    {.name = "shared values, moments that begin with a number split over the other axis",
     .splits = {{0}, {0}, {.count = 1, .split = {CUT(0, LK_AXIS_DATA, 1)}}},
     .axes = "data=2,tensor=2",
     .begun = true},
    {.name = "shared, a copy for each rank",
     .splits = {{.count = 2, .split = {CUT(0, LK_AXIS_DATA, 1), CUT(-1, LK_AXIS_TENSOR, 1)}},
                {0},
                {.count = 1, .split = {CUT(0, LK_AXIS_DATA, 1)}}},
     .axes = "data=2,tensor=2"},
};

/* The last segment takes the rest of the dimension; parts must be equal, else there are none. */
static void fit_segments(lk__plan_cut *cut, int64_t extent, int parts)
{
    int     last = 0;
    int64_t before = 0;
    if (!cut->segment[0]) return;
    while (last + 1 < LK__CUT_SEGMENTS && cut->segment[last + 1]) before += cut->segment[last++];
    cut->segment[last] = extent - before;
    if (cut->segment[last] <= 0 || cut->segment[last] % parts) memset(cut->segment, 0, sizeof cut->segment);
}

static void place_array(void *user, const lk_plan *plan, size_t state, lk__plan_array array, lk__plan_splits *splits)
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

static lk_plan_config config_of_placing(const placing *p, rig *r, lk_optimizer_config *o)
{
    lk_plan_config config = config_of(r, o, p->policy);
    if (p->three) o->kind = LK_RMSPROP, o->centered = true, o->momentum = 0.5;
    if (p->begun) o->kind = LK_ADAGRAD, o->initial_accumulator_value = 0.3;
    return config;
}

/* The store of one rank, in a context of its own, so that the other's memory is counted alone. */
static rig open_whole(const placing *p)
{
    rig                 r = rig_open(LK_F32, 1);
    lk_optimizer_config optimizer;
    lk_plan_config      config = config_of_placing(p, &r, &optimizer);
    REQUIRE(lk_plan_create(r.graph, &config, &r.plan) == LK_OK, "%s", lk_context_error(r.context));
    REQUIRE(lk_store_create(r.plan, SEED, &r.store) == LK_OK);
    return r;
}

static rig open_split(const placing *p, int rank, lk_comm **comm)
{
    rig                 r = rig_open(LK_F32, 2);
    lk_optimizer_config optimizer;
    lk_plan_config      config = config_of_placing(p, &r, &optimizer);
    lk__mesh_grid       grid = grid_of(p->axes ? p->axes : "data=1", rank);
    lk__plan_placement  placement = {place_array, (void *)p, p->axes ? &grid : NULL};
    config.parallel.world = p->ranks;
    config.parallel.rank = rank;
    config.parallel.state = p->state;
    *comm = p->hosts ? join_hosts(r.context, rank / (p->ranks / p->hosts)) : join_group(r.context, p->backend);
    config.parallel.hosts = p->hosts;
    REQUIRE(lk__plan_create_placed(r.graph, &config, false, &placement, &r.plan) == LK_OK, "%s",
            lk_context_error(r.context));
    for (int kind = 0; kind < LK_MEMORY_COUNT; kind++) r.before[kind] = lk_context_memory(r.context, kind);
    REQUIRE(lk_store_create_shared(r.plan, SEED, *comm, &r.store) == LK_OK, "%s", lk_context_error(r.context));
    return r;
}

static void close_split(rig *r, lk_comm *comm)
{
    lk_store_free(r->store);
    for (int kind = 0; kind < LK_MEMORY_OTHER; kind++) /* the group keeps bookkeeping for its next operations */
        CHECK(lk_context_memory(r->context, kind) == r->before[kind], "%s is not freed", lk_memory_name(kind));
    lk_plan_free(r->plan);
    lk_graph_free(r->graph);
    lk_comm_free(comm);
    lk_context_free(r->context);
}

/* All parts of all states, read whole. */
static void compare_all(const placing *p, const rig *split, const rig *whole, const char *when)
{
    for (size_t i = 0; i < lk_store_count(whole->store); i++) {
        lk_state s = lk_store_at(whole->store, i);
        for (int part = 0; part <= last_part(&s); part++) {
            const char *got = part_copy(split->store, s.name, (lk_state_part)part);
            const char *want = part_copy(whole->store, s.name, (lk_state_part)part);
            CHECK(memcmp(got, want, state_bytes(&s)) == 0, "%s, %s: part %d of %s differs", p->name, when, part,
                  s.name);
        }
    }
    CHECK(lk_store_hash(split->store) == lk_store_hash(whole->store), "%s, %s", p->name, when);
}

/* A rank has memory for its slices, in whole cache lines, and not for more; and that is what the plan says. */
static void check_memory(const placing *p, const rig *r)
{
    size_t bytes[LK_MEMORY_COUNT] = {0};
    for (size_t i = 0; i < lk_store_count(r->store); i++)
        for (int a = 0; a < LK__ARRAY_COUNT; a++) {
            if (!lk__plan_has_array(r->plan, i, (lk__plan_array)a)) continue;
            lk__plan_slices s = lk__plan_state_slices(r->plan, i, (lk__plan_array)a);
            lk__plan_slice  slice = lk__slices_at(&s, s.own);
            size_t          size = lk_dtype_size(s.dtype);
            for (int k = 0; k < s.rank; k++) size *= (size_t)slice.count[k];
            bytes[s.memory] += (size + 63) / 64 * 64;
        }
    const lk_memory kinds[] = {LK_MEMORY_PARAMETERS, LK_MEMORY_MASTER, LK_MEMORY_OPTIMIZER, LK_MEMORY_BUFFERS};
    for (int i = 0; i < 4; i++) {
        size_t held = lk_context_memory(r->context, kinds[i]) - r->before[kinds[i]];
        CHECK(held == bytes[kinds[i]] && held == lk_plan_memory(r->plan, kinds[i]), "%s: %zu bytes of %s, not %zu",
              p->name, held, lk_memory_name(kinds[i]), bytes[kinds[i]]);
    }
    if (!r->plan->splits) return;
    size_t held = lk_context_memory(r->context, LK_MEMORY_STAGING) - r->before[LK_MEMORY_STAGING];
    CHECK(held > 0 && held < 10 << 20, "%zu bytes of buffers", held);
    if (lk__device_is_host(r->plan->device)) CHECK(held == lk_plan_memory(r->plan, LK_MEMORY_STAGING)); /* of others */
    size_t moments = lk_plan_memory(r->plan, LK_MEMORY_OPTIMIZER), all = 2 * sizeof(float) * BIG_ROWS * BIG_COLUMNS;
    CHECK(moments < all || p->splits[LK__ARRAY_MOMENT_0].count + p->splits[LK__ARRAY_MOMENT_0 + 1].count < 2);
}

/* Numbers by place, written to both stores, at odd places. */
static void write_both(rig *split, rig *whole, const char *name, lk_state_part part, int64_t first, int64_t count)
{
    float *values = copy_room((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++) values[i] = (float)(2 * number((uint64_t)first + 17 * part, (uint64_t)i) - 1);
    lk_status status = lk_store_write(split->store, name, part, first, count, values, (size_t)count * sizeof *values);
    REQUIRE(status == LK_OK, "%s: %s", name, lk_context_error(split->context));
    REQUIRE(lk_store_write(whole->store, name, part, first, count, values, (size_t)count * sizeof *values) == LK_OK);
}

static int moments_of(const rig *r)
{
    lk_state s;
    REQUIRE(lk_store_find(r->store, "w", &s));
    return s.moments;
}

static void write_some(rig *split, rig *whole)
{
    for (int part = 0; part <= moments_of(whole); part++) {
        write_both(split, whole, "w", (lk_state_part)part, 3, 29);
        write_both(split, whole, "second", (lk_state_part)part, 34, 1);
        write_both(split, whole, "cube", (lk_state_part)part, 0, 42);
        write_both(split, whole, "b", (lk_state_part)part, 6, 1);
        write_both(split, whole, "big", (lk_state_part)part, 1600, (int64_t)BIG_ROWS * BIG_COLUMNS - 3000);
    }
    write_both(split, whole, "fixed", LK_STATE_VALUE, 2, 4);
    write_both(split, whole, "bn.running_mean", LK_STATE_VALUE, 1, 3);
}

/* Each rank reads another range at the same time, one of them nothing. */
static void read_different_ranges(const placing *p, const rig *split, const rig *whole, int rank)
{
    int64_t first = 11 + 1601 * rank, count = rank == 1 ? 0 : 100000 + rank;
    size_t  bytes = (size_t)count * sizeof(float);
    float  *got = copy_room(bytes), *want = copy_room(bytes);
    for (int part = 0; part <= moments_of(whole); part++) {
        REQUIRE(lk_store_read(split->store, "big", (lk_state_part)part, first, count, got, bytes) == LK_OK, "%s",
                lk_context_error(split->context));
        REQUIRE(lk_store_read(whole->store, "big", (lk_state_part)part, first, count, want, bytes) == LK_OK);
        CHECK(memcmp(got, want, bytes) == 0, "%s: rank %d, part %d", p->name, rank, part);
    }
}

/* What a writer of files does: lists of ranges, which begin and end within elements; rank 0 has the longest, and the
 * last none. */
enum { RANGES = 6 };
static lk__exchange_list make_list(const rig *r, int rank, int ranks, bool whole, lk__exchange_range ranges[RANGES])
{
    static const char *const names[RANGES] = {"w", "big", "bn.running_var", "cube", "big", "bn.num_batches_tracked"};
    static const int         parts[RANGES] = {0, 1, 0, 2, 0, 0};
    lk__exchange_list        list = {ranges, 0};
    if (rank == ranks - 1 && ranks > 1) return list;
    for (int i = 0; i < RANGES - rank; i++) {
        lk_state s;
        REQUIRE(lk_store_find(r->store, names[i], &s));
        size_t size = lk_dtype_size(s.dtype), all = state_bytes(&s), from = all / 7 * (size_t)rank / 3;
        if (whole) from = from / size * size;
        size_t bytes = i == 3 ? 0 : whole ? (all - from) / size * size : (all - from) - (all - from) / 9;
        int    part = parts[i] < s.moments ? parts[i] : s.moments;
        ranges[list.count++] =
            (lk__exchange_range){(size_t)lk__find_state(r->plan->graph, names[i]), (lk_state_part)part, from, bytes};
    }
    return list;
}

static void fetch_as_from_one_rank(const placing *p, const rig *split, const rig *whole, lk_comm *comm, int rank)
{
    lk__exchange_range ranges[4][RANGES];
    lk__exchange_list  lists[4];
    for (int i = 0; i < p->ranks; i++) lists[i] = make_list(whole, i, p->ranks, false, ranges[i]);
    char        *got = copy_room(list_bytes(&lists[rank])), *want = copy_room(list_bytes(&lists[rank]));
    lk__exchange with = {comm, copy_room(lk__store_exchange_bytes(p->ranks))};
    REQUIRE(lk__store_fetch(split->store, &with, lists, got) == LK_OK, "%s", lk_context_error(split->context));
    REQUIRE(lk__store_fetch(whole->store, &(lk__exchange){0}, &lists[rank], want) == LK_OK);
    CHECK(memcmp(got, want, list_bytes(&lists[rank])) == 0, "%s: rank %d", p->name, rank);
}

/* What readers of files do: each has other bytes, and afterwards all ranks have what one would have that had read
 * everything. */
static void scatter_to_owners(const placing *p, rig *split, rig *whole, lk_comm *comm, int rank)
{
    lk__exchange_range ranges[4][RANGES];
    lk__exchange_list  lists[4];
    lk__exchange       with = {comm, copy_room(lk__store_exchange_bytes(p->ranks))};
    for (int i = p->ranks - 1; i >= 0; i--) { /* one reader at a time: the lists of ranks overlap */
        for (int k = 0; k < p->ranks; k++) lists[k] = (lk__exchange_list){0};
        lists[i] = make_list(whole, i, p->ranks, true, ranges[i]);
        size_t bytes = list_bytes(&lists[i]);
        float *data = copy_room(bytes);
        for (size_t k = 0; k < bytes / sizeof *data; k++) data[k] = (float)number(77 + (uint64_t)i, k);
        REQUIRE(lk__store_write_begin(split->store) == LK_OK);
        lk_status status = lk__store_scatter(split->store, &with, lists, rank == i ? data : NULL);
        REQUIRE(lk__store_write_end(split->store, status) == LK_OK, "%s", lk_context_error(split->context));
        REQUIRE(lk__store_scatter(whole->store, &(lk__exchange){0}, &lists[i], data) == LK_OK);
    }
}

static void find_what_is_not_finite(rig *split, rig *whole)
{
    int   index = lk__find_state(whole->plan->graph, "w");
    bool  finite = false;
    float nan = NAN, back;
    REQUIRE(lk_store_read(whole->store, "w", LK_STATE_VALUE, 33, 1, &back, sizeof back) == LK_OK);
    CHECK(lk__store_finite(split->store, (size_t)index, &finite) == LK_OK && finite);
    REQUIRE(lk_store_write(split->store, "w", LK_STATE_VALUE, 33, 1, &nan, sizeof nan) == LK_OK);
    CHECK(lk__store_finite(split->store, (size_t)index, &finite) == LK_OK && !finite);
    REQUIRE(lk_store_write(split->store, "w", LK_STATE_VALUE, 33, 1, &back, sizeof back) == LK_OK);
}

static void refuse_what_ranks_do_not_agree_on(const placing *p, rig *r, lk_comm *comm, int rank)
{
    lk_program *program;
    lk_state    s;
    size_t      index = (size_t)lk__find_state(r->plan->graph, "w");
    REQUIRE(lk_store_find(r->store, "w", &s));
    for (int part = 0; part <= s.moments; part++) {
        if (!lk__store_splits(r->store, index, (lk_state_part)part)) continue;
        float different = (float)rank;
        CHECK((part ? lk_store_moment(r->store, index, part - 1) : s.data) == NULL,
              "%s: a pointer to what this rank has not", p->name);
        CHECK(lk_store_write(r->store, "w", (lk_state_part)part, 2, 1, &different, sizeof different) == LK_EMISMATCH);
    }
    if (!r->plan->splits) return;
    CHECK(lk_program_create(r->plan, r->store, comm, &program) == LK_EUNSUPPORTED);
    lk_store *alone;
    CHECK(lk_store_create(r->plan, SEED, &alone) == LK_EINVAL && !alone);
}

static int compare_as(int rank, void *user)
{
    const placing *p = user;
    lk_comm       *comm;
    check_failures = 0;
    rig whole = open_whole(p), split = open_split(p, rank, &comm);
    compare_all(p, &split, &whole, "initialised");
    compare_stored(p->name, &split, &whole, "initialised");
    check_memory(p, &split);
    float begins = *(const float *)part_copy(split.store, "big", LK_STATE_MOMENT_0);
    CHECK(begins == (p->begun ? 0.3f : 0), "%s: a moment begins with %g", p->name, (double)begins);
    write_some(&split, &whole);
    compare_all(p, &split, &whole, "written");
    compare_stored(p->name, &split, &whole, "written");
    read_different_ranges(p, &split, &whole, rank);
    fetch_as_from_one_rank(p, &split, &whole, comm, rank);
    scatter_to_owners(p, &split, &whole, comm, rank);
    compare_all(p, &split, &whole, "scattered");
    compare_stored(p->name, &split, &whole, "scattered");
    find_what_is_not_finite(&split, &whole);
    refuse_what_ranks_do_not_agree_on(p, &split, comm, rank);
    compare_all(p, &split, &whole, "at the end");
    close_split(&split, comm);
    rig_close(&whole);
    return check_result();
}

static void run_placing(placing p, const char *backend, int ranks)
{
    lk_spawn_result result;
    p.backend = backend;
    p.ranks = ranks;
    check_ranks_announced(ranks);
    CHECK(lk_spawn(ranks, compare_as, &p, &result) == LK_OK, "%s, %d ranks over %s: %s", p.name, ranks,
          backend ? backend : "the default", result.text);
}

static void run_placings(int ranks, const char *backend)
{
    for (size_t i = 0; i < sizeof placings / sizeof *placings; i++) run_placing(placings[i], backend, ranks);
}

static void one_rank_has_all_slices(void) { run_placings(1, NULL); }
static void two_ranks_have_what_one_has(void) { run_placings(2, "shm"); }
static void three_ranks_have_what_one_has(void) { run_placings(3, "shm"); }
static void four_ranks_have_what_one_has_over_tcp(void) { run_placings(4, "tcp"); }
/* ---- files ---- */

static void check_same_file(const placing *p, const char *file)
{
    char command[512];
    snprintf(command, sizeof command, "cmp %s/split/step-00000003/%s %s/whole/step-00000003/%s", p->directory, file,
             p->directory, file);
    CHECK(system(command) == 0, "%s", p->name);
}

/* Rank 0 alone reads a file of weights, and every rank keeps its slices of what it sends. */
static void load_what_rank_0_reads(rig *split, const rig *whole, lk_comm *comm, const char *path)
{
    lk__load_group group = {.store = split->store, .comm = comm};
    lk_status      status;
    if (lk_comm_rank(comm) == 0) {
        split->store->alone = true;
        status = lk__weights_load_group(split->store, &group, path);
        split->store->alone = false;
        lk_status ended = lk__load_group_end(&group);
        if (status >= 0) status = ended;
    } else {
        status = lk__load_group_serve(&group);
    }
    REQUIRE(status == LK_OK, "%s", lk_context_error(split->context));
    CHECK(lk_store_hash(split->store) == lk_store_hash(whole->store));
}

/* All ranks write a checkpoint, each some chunks, whose bytes the owners send: it has the bytes of one rank's. And each
 * rank keeps its slices of what it reads. */
static int save_and_load_as(int rank, void *user)
{
    const placing *p = user;
    lk_comm       *comm;
    lk_store      *saved;
    lk_progress    progress = {.step = 3}, found = {0};
    char           split_path[128], whole_path[128];
    check_failures = 0;
    rig whole = open_whole(p), split = open_split(p, rank, &comm);
    snprintf(split_path, sizeof split_path, "%s/split", p->directory);
    snprintf(whole_path, sizeof whole_path, "%s/whole", p->directory);
    write_some(&split, &whole);
    REQUIRE(lk__checkpoint_save_chunks(split.store, comm, &(lk__checkpoint_save){split_path, &progress, 2, NULL, 0},
                                       100000) == LK_OK,
            "%s", lk_context_error(split.context));
    if (rank == 0) {
        REQUIRE(lk_checkpoint_save(whole.store, whole_path, &progress, 2) == LK_OK, "%s",
                lk_context_error(whole.context));
        check_same_file(p, "model.safetensors");
        check_same_file(p, "optimizer.safetensors");
    }
    saved = split.store;
    REQUIRE(lk_store_create_shared(split.plan, SEED + 1, comm, &split.store) == LK_OK);
    REQUIRE(lk_comm_barrier(comm, NULL) == LK_OK);
    REQUIRE(lk_checkpoint_load(split.store, whole_path, &found) == LK_OK && found.step == 3, "%s",
            lk_context_error(split.context));
    compare_all(p, &split, &whole, "loaded");
    compare_stored(p->name, &split, &whole, "loaded");
    lk_store_free(split.store);
    REQUIRE(lk_store_create_shared(split.plan, SEED + 2, comm, &split.store) == LK_OK);
    load_what_rank_0_reads(&split, &whole, comm, whole_path);
    lk_store_free(saved);
    close_split(&split, comm);
    rig_close(&whole);
    return check_result();
}

static void ranks_write_the_files_that_one_rank_writes(void)
{
    const int which[] = {0, 2, 4, 5, 7};
    for (size_t i = 0; i < sizeof which / sizeof *which; i++) {
        lk_spawn_result result;
        placing         p = placings[which[i]];
        char            directory[] = "/tmp/lockstep-slices-XXXXXX", command[64];
        REQUIRE(mkdtemp(directory) != NULL);
        p.directory = directory;
        p.backend = "shm";
        p.ranks = 3;
        CHECK(lk_spawn(3, save_and_load_as, &p, &result) == LK_OK, "%s: %s", p.name, result.text);
        snprintf(command, sizeof command, "rm -r %s", directory);
        CHECK(system(command) == 0);
    }
}

/* A collective read names the rank that does not take part in it. */
static int leave_or_read_as(int rank, void *user)
{
    const placing *p = user;
    lk_comm       *comm;
    float          value;
    check_failures = 0;
    rig r = open_split(p, rank, &comm);
    if (rank == 1) {
        close_split(&r, comm);
        return check_result();
    }
    CHECK(lk_store_read(r.store, "w", LK_STATE_VALUE, 0, 1, &value, sizeof value) < 0 &&
              strstr(lk_context_error(r.context), "rank 1"),
          "%s", lk_context_error(r.context));
    CHECK(lk_store_hash(r.store) == 0);
    close_split(&r, comm);
    return check_result();
}

static void a_rank_that_left_is_named_by_those_that_read(void)
{
    lk_spawn_result result;
    placing         p = placings[1];
    p.ranks = 2;
    CHECK(lk_spawn(2, leave_or_read_as, &p, &result) == LK_OK, "%s", result.text);
}

static void a_grid_of_ranks_has_what_one_has(void)
{
    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++) run_placing(grids[i], "shm", 4);
}

/* A copy is in memory that its ranks map, and they are those with the same coordinates along the axes of the splits, on
 * one host. */
static int share_as(int rank, void *user)
{
    const placing *p = user;
    lk_comm       *comm;
    check_failures = 0;
    rig         r = open_split(p, rank, &comm);
    lk_store   *s = r.store;
    int         sharers = 0, first = -1;
    const char *text = p->axes;
    for (int i = 0; i < p->ranks; i++) {
        lk__mesh_grid grid = grid_of(text, rank);
        bool          host = !p->hosts || i / (p->ranks / p->hosts) == rank / (p->ranks / p->hosts);
        bool          same =
            lk__mesh_coordinate(&grid, r.plan->split_axes, i) == lk__mesh_coordinate(&grid, r.plan->split_axes, rank);
        if (host && same && first < 0) first = i;
        sharers += host && same;
    }
    CHECK(s->sharers == sharers && lk_comm_size(s->comm) == sharers, "%s: %d ranks share a copy, not %d", p->name,
          s->sharers, sharers);
    /* What the first of them writes past the store, the others read. */
    float *memory =
        (float *)lk__store_array_memory(s, (size_t)lk__find_state(r.plan->graph, "big"), LK__ARRAY_MOMENT_0);
    REQUIRE(lk_comm_barrier(comm, NULL) == LK_OK);
    if (rank == first) *memory = 7 + (float)rank;
    REQUIRE(lk_comm_barrier(comm, NULL) == LK_OK);
    CHECK(*memory == 7 + (float)first, "%s: rank %d reads %g of rank %d", p->name, rank, (double)*memory, first);
    REQUIRE(lk_comm_barrier(comm, NULL) == LK_OK);
    close_split(&r, comm);
    return check_result();
}

static void run_shared(placing p)
{
    lk_spawn_result result;
    char            directory[] = "/tmp/lockstep-slices-XXXXXX", command[64];
    p.ranks = 4;
    p.backend = "shm";
    p.state = LK_STATE_SHARED;
    REQUIRE(mkdtemp(directory) != NULL);
    p.directory = directory;
    check_ranks_announced(p.ranks);
    CHECK(lk_spawn(p.ranks, share_as, &p, &result) == LK_OK, "%s: %s", p.name, result.text);
    CHECK(lk_spawn(p.ranks, compare_as, &p, &result) == LK_OK, "%s: %s", p.name, result.text);
    CHECK(lk_spawn(p.ranks, save_and_load_as, &p, &result) == LK_OK, "%s: %s", p.name, result.text);
    snprintf(command, sizeof command, "rm -r %s", directory);
    CHECK(system(command) == 0);
}

static bool can_share(void)
{
    const char *device = getenv("LOCKSTEP_DEVICE");
    return !device || strcmp(device, "cpu") == 0; /* no other has memory that ranks share */
}

static void ranks_of_a_host_share_what_is_split(void)
{
    for (size_t i = 0; i < sizeof shared_grids / sizeof *shared_grids && can_share(); i++) run_shared(shared_grids[i]);
}

/* Over an axis between hosts each has its own slices, which its ranks share; over one within them each host has all. */
static void hosts_share_what_is_split_over_them_or_within_them(void)
{
    for (int between = 0; between < 2 && can_share(); between++) {
        placing p = shared_grids[0];
        p.name = between ? "two hosts, split between them" : "two hosts, split within them";
        p.axes = between ? "tensor=2,data=2" : "data=2,tensor=2";
        p.hosts = 2;
        run_shared(p);
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
    RUN_APART(every_element_is_in_one_slice); /* a process that has started CUDA cannot fork ranks */
    RUN_APART(every_element_of_a_segment_is_in_one_slice);
    RUN_APART(repetitions_are_cut_one_by_one);
    RUN_APART(one_rank_has_all_slices);
    RUN_APART(two_ranks_have_what_one_has);
    RUN_APART(three_ranks_have_what_one_has);
    RUN_APART(four_ranks_have_what_one_has_over_tcp);
    RUN_APART(a_grid_of_ranks_has_what_one_has);
    RUN_APART(ranks_write_the_files_that_one_rank_writes);
    RUN_APART(a_rank_that_left_is_named_by_those_that_read);
    RUN_APART(ranks_of_a_host_share_what_is_split);
    RUN_APART(hosts_share_what_is_split_over_them_or_within_them);
    return check_result();
}
