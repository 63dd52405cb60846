/* test_slices.c - stores of which every rank has slices, against the store of one rank that has everything.
 * test_slice_lists.c checks which elements are whose.
 *
 * ctest: timeout 300, ranks 4 */
#include "slices.h"
#include "train/checkpoint.h"
#include "train/load_group.h"

/* ---- split stores, against the store of one rank ---- */

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

int main(void)
{
    RUN_APART(one_rank_has_all_slices); /* a process that has started CUDA cannot fork ranks */
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
