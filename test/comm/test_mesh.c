/* test_mesh.c - a mesh's text, coordinates and groups, against a search over all ranks; and what plans accept of one.
 *
 * ctest: timeout 120, ranks 6, label threaded */
#define _GNU_SOURCE
#include "comm/mesh.h"
#include "comm_ranks.h"

#include <lockstep.h>

static lk_context *context;

/* ---- the oracle ---- */

/* The coordinates of all ranks, counted like the digits of an odometer; groups are found by comparing all of them. */
enum { AXES = 5, MOST = 1024 };
static const char *const axis_names[AXES] = {"data", "shard", "tensor", "pipeline", "expert"};

typedef struct grid {
    int axis[AXES], extent[AXES], count; /* axis: index in axis_names */
    int size;
    int at[MOST][AXES]; /* by rank and position of the axis */
} grid;

static grid make_grid(const char *text)
{
    grid o = {.size = 1};
    char name[16];
    for (int used; sscanf(text, "%15[a-z]=%d%n", name, &o.extent[o.count], &used) == 2;
         text += used + (text[used] == ',')) {
        while (strcmp(axis_names[o.axis[o.count]], name) != 0) o.axis[o.count]++;
        o.size *= o.extent[o.count++];
    }
    for (int rank = 1; rank < o.size; rank++) {
        memcpy(o.at[rank], o.at[rank - 1], sizeof o.at[rank]);
        for (int i = o.count - 1; ++o.at[rank][i] == o.extent[i]; i--) o.at[rank][i] = 0;
    }
    return o;
}

/* Whether two ranks are in one group along `axes`. */
static bool are_together(const grid *o, unsigned axes, int a, int b)
{
    bool same = true;
    for (int i = 0; i < o->count; i++)
        if (!(axes & 1u << o->axis[i])) same &= o->at[a][i] == o->at[b][i];
    return same;
}

static const char *const meshes[] = {"data=1",
                                     "data=6",
                                     "data=2,tensor=3",
                                     "tensor=3,data=2",
                                     "data=2,shard=1,tensor=2",
                                     "pipeline=3,data=2,tensor=4",
                                     "data=2,shard=2,tensor=2,pipeline=4,expert=2",
                                     "expert=7,shard=5,pipeline=3",
                                     "data=1024"};

static lk_mesh *make_mesh(lk_context *c, const char *text, lk_comm *comm, int rank)
{
    lk_mesh_config config = LK_MESH_CONFIG_INIT;
    lk_mesh       *mesh = NULL;
    config.axes = text;
    config.comm = comm;
    config.rank = rank;
    REQUIRE(lk_mesh_create(c, &config, &mesh) == LK_OK, "%s: %s", text, lk_context_error(c));
    return mesh;
}

static void check_places(const lk_mesh *mesh, const grid *o, unsigned axes, int rank)
{
    int place = 0, members = 0;
    for (int other = 0; other < o->size; other++) {
        if (!are_together(o, axes, rank, other)) continue;
        CHECK(lk_mesh_member(mesh, axes, rank, members) == other, "%s, axes %x: member %d of rank %d's group",
              lk_mesh_text(mesh), axes, members, rank);
        place += other < rank;
        members++;
    }
    CHECK(lk_mesh_extent(mesh, axes) == members && lk_mesh_coordinate(mesh, axes, rank) == place,
          "%s, axes %x, rank %d: place %d of %d", lk_mesh_text(mesh), axes, rank, place, members);
    CHECK(lk_mesh_member(mesh, axes, rank, members) == -1 && lk_mesh_member(mesh, axes, rank, -1) == -1);
}

static void coordinates_are_those_of_a_search(void)
{
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        grid     o = make_grid(meshes[i]);
        lk_mesh *mesh = make_mesh(context, meshes[i], NULL, o.size - 1);
        CHECK(lk_mesh_size(mesh) == o.size && lk_mesh_rank(mesh) == o.size - 1);
        CHECK(strcmp(lk_mesh_text(mesh), meshes[i]) == 0, "%s", lk_mesh_text(mesh));
        for (unsigned axes = 0; axes <= LK_AXES_ALL; axes++)
            for (int rank = 0; rank<o.size; rank += o.size> 100 ? 93 : 1) check_places(mesh, &o, axes, rank);
        CHECK(lk_mesh_coordinate(mesh, LK_AXIS_DATA, o.size) == -1 && lk_mesh_coordinate(mesh, LK_AXIS_DATA, -1) == -1);
        CHECK(lk_mesh_member(mesh, LK_AXIS_DATA, o.size, 0) == -1);
        lk_mesh_free(mesh);
    }
}

/* ---- text ---- */

/* Whether two ranks are in one group along `axes`, one axis that may be factored. */
static bool are_together_along(const grid *o, unsigned axes, int a, int b)
{
    int position = 0, factor = lk__axes_factor(axes);
    while (1u << o->axis[position] != lk__axes_plain(axes)) position++;
    int at = o->at[a][position], other = o->at[b][position];
    if (!are_together(o, lk__axes_plain(axes), a, b)) return false;
    return axes & LK__AXES_ACROSS ? at % factor == other % factor : at / factor == other / factor;
}

static void a_factored_axis_has_groups_of_neighbours_and_across_them(void)
{
    static const char *const texts[] = {"tensor=8", "data=2,tensor=6", "tensor=4,data=3", "data=2,tensor=12,shard=2"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        grid          o = make_grid(texts[i]);
        lk__mesh_grid g;
        REQUIRE(lk__mesh_parse(context, texts[i], &g) == LK_OK);
        for (int k = 0; k < 2 * 4; k++) {
            int factor = 1 + k / 2;
            if (lk__mesh_extent(&g, LK_AXIS_TENSOR) % factor) continue;
            unsigned axes =
                k % 2 ? lk__axes_across(LK_AXIS_TENSOR, factor) : lk__axes_neighbours(LK_AXIS_TENSOR, factor);
            for (int rank = 0; rank < o.size; rank++) {
                int place = 0, members = 0;
                for (int other = 0; other < o.size; other++) {
                    if (!are_together_along(&o, axes, rank, other)) continue;
                    CHECK(lk__mesh_member(&g, axes, rank, members) == other, "%s, %x: member %d of rank %d's group",
                          texts[i], axes, members, rank);
                    place += other < rank;
                    members++;
                }
                CHECK(lk__mesh_extent(&g, axes) == members && lk__mesh_coordinate(&g, axes, rank) == place,
                      "%s, %x, rank %d: place %d of %d", texts[i], axes, rank, place, members);
            }
        }
    }
}

/* Each rank adds its number in groups of factored axes. */
static void add_in_factored_groups(rank_test *t)
{
    lk_mesh *mesh = make_mesh(t->context, "tensor=6", t->comm, 0);
    unsigned axes[] = {lk__axes_neighbours(LK_AXIS_TENSOR, 2), lk__axes_across(LK_AXIS_TENSOR, 2),
                       lk__axes_across(LK_AXIS_TENSOR, 1), lk__axes_neighbours(LK_AXIS_TENSOR, 6)};
    int      expected[] = {t->rank / 2 * 4 + 1, t->rank % 2 ? 9 : 6, 15, 15};
    REQUIRE(lk_mesh_create_groups(mesh, axes, 4) == LK_OK, "%s", lk_context_error(t->context));
    for (int i = 0; i < 4; i++) {
        lk_comm *group = lk__mesh_find_group(mesh, axes[i]);
        double   sum = t->rank;
        REQUIRE(group && lk_comm_all_reduce(group, &sum, &sum, 1, LK_F64, LK_SUM, NULL) == LK_OK);
        CHECK((int)sum == expected[i], "rank %d, group %d: %g, not %d", t->rank, i, sum, expected[i]);
    }
    CHECK(!lk__mesh_find_group(mesh, lk__axes_across(LK_AXIS_TENSOR, 3)));
    lk_mesh_free(mesh);
}

static void factored_groups_add(void) { run_ranks(6, NULL, add_in_factored_groups, NULL); }

static void names_are_those_of_the_axes(void)
{
    for (int i = 0; i < AXES; i++) CHECK(strcmp(lk_axis_name((lk_axis)(1 << i)), axis_names[i]) == 0);
    CHECK(!lk_axis_name((lk_axis)(LK_AXIS_DATA | LK_AXIS_SHARD)) && !lk_axis_name((lk_axis)32));
}

static void a_mesh_of_a_world_is_one_axis(void)
{
    lk_mesh_config config = LK_MESH_CONFIG_INIT;
    lk_mesh       *mesh;
    config.world = 7, config.rank = 3;
    REQUIRE(lk_mesh_create(context, &config, &mesh) == LK_OK);
    CHECK(strcmp(lk_mesh_text(mesh), "data=7") == 0 && lk_mesh_coordinate(mesh, LK_AXIS_DATA, 3) == 3);
    CHECK(lk_mesh_extent(mesh, LK_AXIS_TENSOR) == 1 && lk_mesh_rank(mesh) == 3);
    lk_mesh_free(mesh);
    REQUIRE(lk_mesh_create(context, NULL, &mesh) == LK_OK);
    CHECK(strcmp(lk_mesh_text(mesh), "data=1") == 0);
    lk_mesh_free(mesh);
    mesh = make_mesh(context, " data = 2 ,tensor=04", NULL, 0);
    CHECK(strcmp(lk_mesh_text(mesh), "data=2,tensor=4") == 0, "%s", lk_mesh_text(mesh));
    lk_mesh_free(mesh);
    lk_mesh_free(NULL);
}

static void a_text_that_is_no_mesh_is_explained(void)
{
    static const struct {
        const char *text;
        int         world, rank;
        lk_status   status;
        const char *message;
    } wrong[] = {
        {"", 0, 0, LK_EINVAL, "an axis of the mesh has no name; axes are written as in data=2,tensor=4"},
        {"data=2,", 0, 0, LK_EINVAL, "has no name"},
        {"=2", 0, 0, LK_EINVAL, "has no name"},
        {"data", 0, 0, LK_EINVAL, "the mesh's data axis has no extent: give its number of ranks, as in data=2"},
        {"data=", 0, 0, LK_EINVAL, "the extent of the mesh's data axis is '': expected the number of ranks, 1 or more"},
        {"data=0", 0, 0, LK_EINVAL, "data axis is '0'"},
        {"data=-2", 0, 0, LK_EINVAL, "data axis is '-2'"},
        {"data=2x", 0, 0, LK_EINVAL, "data axis is '2x'"},
        {"data=99999999999999999999", 0, 0, LK_EINVAL, "expected the number of ranks"},
        {"data=2,tensor=4,data=2", 0, 0, LK_EINVAL, "the mesh names the data axis twice"},
        {"tensr=2", 0, 0, LK_EINVAL, "a mesh has no axis 'tensr' (did you mean tensor?)"},
        {"dp=2", 0, 0, LK_EINVAL, "a mesh has no axis 'dp'; its axes are data, shard, tensor, pipeline and expert"},
        {"data=65536,tensor=65536", 0, 0, LK_EINVAL, "the mesh has too many ranks"},
        {"data=2,tensor=4", 6, 0, LK_EMISMATCH,
         "the mesh data=2,tensor=4 has 8 ranks, but there are 6: the product of its extents must be the number of "
         "ranks"},
        {"data=2", 1, 0, LK_EMISMATCH, "has 2 ranks, but there is 1"},
        {"data=2", 0, 2, LK_EINVAL, "rank 2 is out of range in a mesh of 2 ranks"},
        {"data=2", 2, -1, LK_EINVAL, "rank -1 is out of range"},
        {NULL, -3, 0, LK_EINVAL, "out of range"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        lk_mesh_config config = LK_MESH_CONFIG_INIT;
        lk_mesh       *mesh = (lk_mesh *)&config;
        config.axes = wrong[i].text, config.world = wrong[i].world, config.rank = wrong[i].rank;
        lk_status status = lk_mesh_create(context, &config, &mesh);
        CHECK(status == wrong[i].status && !mesh && strstr(lk_context_error(context), wrong[i].message), "'%s': %s: %s",
              wrong[i].text, lk_status_name(status), lk_context_error(context));
    }
    lk_mesh_config unset = {0};
    lk_mesh       *mesh;
    CHECK(lk_mesh_create(context, &unset, &mesh) == LK_EINVAL &&
          strstr(lk_context_error(context), "LK_MESH_CONFIG_INIT"));
}

/* ---- groups ---- */

static void check_group(rank_test *t, const lk_mesh *mesh, const grid *o, unsigned axes)
{
    lk_comm *group;
    double   mine = 1.0 / (1 + t->rank), sum = 0;
    int64_t  number = t->rank + 1, numbers = 0, expected = 0;
    int      members = 0;
    REQUIRE(lk_mesh_group(mesh, axes, &group) == LK_OK, "%s", lk_context_error(t->context));
    CHECK(lk_comm_size(group) == lk_mesh_extent(mesh, axes) &&
              lk_comm_rank(group) == lk_mesh_coordinate(mesh, axes, t->rank),
          "%s, axes %x: rank %d of %d", lk_mesh_text(mesh), axes, lk_comm_rank(group), lk_comm_size(group));
    CHECK((group == t->comm) == (lk_mesh_extent(mesh, axes) == t->size));
    for (int other = 0; other < t->size; other++)
        if (are_together(o, axes, t->rank, other)) expected += other + 1, members++;
    CHECK(lk_comm_all_reduce(group, &number, &numbers, 1, LK_I64, LK_SUM, NULL) == LK_OK && numbers == expected,
          "%s, axes %x: %lld, not %lld; %s", lk_mesh_text(mesh), axes, (long long)numbers, (long long)expected,
          lk_comm_error(group));
    double *all = calloc((size_t)members, sizeof *all);
    CHECK(lk_comm_all_gather(group, &mine, all, 1, LK_F64, NULL) == LK_OK, "%s", lk_comm_error(group));
    for (int i = 0; i < members; i++) /* in the order of their coordinates */
        CHECK(all[i] == 1.0 / (1 + lk_mesh_member(mesh, axes, t->rank, i)), "member %d", i);
    CHECK(lk_comm_all_reduce(group, &mine, &sum, 1, LK_F64, LK_MAX, NULL) == LK_OK && sum == all[0]);
    free(all);
}

static void use_groups(rank_test *t)
{
    const char *text = t->user;
    grid        o = make_grid(text);
    lk_mesh    *mesh = make_mesh(t->context, text, t->comm, 0);
    unsigned    sets[LK_AXES_ALL + 1], few[] = {LK_AXIS_DATA, LK_AXIS_TENSOR};
    lk_comm    *group = t->comm;
    CHECK(lk_mesh_size(mesh) == t->size && lk_mesh_rank(mesh) == t->rank);
    CHECK(lk_mesh_group(mesh, LK_AXIS_TENSOR, &group) == LK_EINVAL && !group &&
              strstr(lk_context_error(t->context), "has no group along tensor: create it with lk_mesh_create_groups"),
          "%s", lk_context_error(t->context));
    REQUIRE(lk_mesh_create_groups(mesh, few, 2) == LK_OK, "%s", lk_context_error(t->context));
    check_group(t, mesh, &o, LK_AXIS_TENSOR);
    for (unsigned i = 0; i <= LK_AXES_ALL; i++) sets[i] = LK_AXES_ALL - i;
    REQUIRE(lk_mesh_group(mesh, LK_AXIS_TENSOR, &group) == LK_OK);
    REQUIRE(lk_mesh_create_groups(mesh, sets, LK_AXES_ALL + 1) == LK_OK, "%s", lk_context_error(t->context));
    lk_comm *kept;
    CHECK(lk_mesh_group(mesh, LK_AXIS_TENSOR, &kept) == LK_OK && kept == group); /* not made again */
    for (unsigned axes = 0; axes <= LK_AXES_ALL; axes++) check_group(t, mesh, &o, axes);
    unsigned without = 0; /* axes of one rank, or that the mesh does not name: they make no difference */
    for (unsigned axis = 1; axis <= LK_AXIS_EXPERT; axis *= 2) without |= lk_mesh_extent(mesh, axis) == 1 ? axis : 0;
    CHECK(lk_mesh_group(mesh, LK_AXIS_TENSOR | without, &kept) == LK_OK && kept == group);
    REQUIRE(lk_comm_barrier(t->comm, NULL) == LK_OK); /* freeing a group that others still use would fail them */
    lk_mesh_free(mesh);
}

static void groups_add_along_their_axes(void)
{
    static const char *const used[] = {"data=2",   "data=2,tensor=1", "data=1,tensor=3", "data=2,shard=1,tensor=2",
                                       "tensor=5", "data=2,tensor=3", "tensor=3,data=2", "shard=3,expert=2"};
    static const char *const backends[] = {"shm", "tcp"};
    for (int b = 0; b < 2; b++)
        for (size_t i = 0; i < sizeof used / sizeof *used; i++) {
            lk_comm_config config = LK_COMM_CONFIG_INIT;
            config.backend = backends[b];
            int before = open_descriptors();
            run_ranks(make_grid(used[i]).size, &config, use_groups, (void *)used[i]);
            CHECK(open_descriptors() == before, "%s over %s leaves descriptors open", used[i], backends[b]);
        }
}

static void differ_in_lists(rank_test *t)
{
    lk_mesh *mesh = make_mesh(t->context, "data=2,tensor=2", t->comm, 0);
    unsigned sets[] = {t->rank == 2 ? LK_AXIS_DATA : LK_AXIS_TENSOR};
    CHECK(lk_mesh_create_groups(mesh, sets, 1) == LK_EMISMATCH &&
              strstr(lk_context_error(t->context),
                     "rank 2 does not have the same mesh as rank 0, or creates different groups") &&
              strstr(lk_context_error(t->context), "test_mesh.c:"),
          "%s", lk_context_error(t->context));
    lk_mesh_free(mesh);
    mesh = make_mesh(t->context, t->rank == 1 ? "tensor=2,data=2" : "data=2,tensor=2", t->comm, 0);
    CHECK(lk_mesh_create_groups(mesh, (unsigned[]){LK_AXIS_DATA}, 1) == LK_EMISMATCH &&
              strstr(lk_context_error(t->context), "rank 1 does not have the same mesh"),
          "%s", lk_context_error(t->context));
    lk_mesh_free(mesh);
    CHECK(lk_comm_barrier(t->comm, NULL) == LK_OK, "%s", lk_comm_error(t->comm)); /* the group goes on */
}

static void ranks_that_make_other_groups_are_told(void) { run_ranks(4, NULL, differ_in_lists, NULL); }

/* Rank 3 does not come: whoever waits names it with its coordinates, and the axis along which it waits. */
static void wait_for_absent(rank_test *r)
{
    static const unsigned axes[] = {LK_AXIS_TENSOR, LK_AXIS_DATA | LK_AXIS_TENSOR};
    const char           *all = "rank 3, data 1 tensor 1";
    lk_mesh              *mesh = make_mesh(r->context, "data=2,tensor=2", r->comm, r->rank);
    lk_comm              *group;
    double                x = 1;
    REQUIRE(lk_mesh_create_groups(mesh, axes, 2) == LK_OK, "%s", lk_context_error(r->context));
    REQUIRE(lk_mesh_group(mesh, LK_AXIS_TENSOR, &group) == LK_OK);
    if (r->rank == 2) {
        CHECK(lk_comm_all_reduce(group, &x, &x, 1, LK_F64, LK_SUM, NULL) == LK_ETIMEOUT);
        const char *text = lk_context_error(r->context);
        CHECK(strstr(text, all) && strstr(text, " along tensor within ") &&
                  strstr(text, " s, reports rank 2, data 1 tensor 0"),
              "%s", text);
        CHECK(!strstr(text, "data 0"), "%s", text); /* the group's ranks alone are listed */
    }
    if (r->rank < 2) {
        CHECK(lk_comm_all_reduce(r->comm, &x, &x, 1, LK_F64, LK_SUM, NULL) < 0);
        CHECK(strstr(lk_context_error(r->context), all), "%s", lk_context_error(r->context));
    }
    if (r->rank == 3) usleep(1200 * 1000);
    lk_mesh_free(mesh);
}

static void verdicts_name_coordinates_and_the_axis(void)
{
    lk_comm_config config = LK_COMM_CONFIG_INIT;
    config.timeout_ms = 600;
    run_ranks(4, &config, wait_for_absent, NULL);
}

static void a_mesh_without_a_communicator_has_no_groups(void)
{
    lk_mesh *mesh = make_mesh(context, "data=4", NULL, 1);
    lk_comm *group;
    unsigned axes = LK_AXIS_DATA;
    CHECK(lk_mesh_create_groups(mesh, &axes, 1) == LK_EINVAL &&
          strstr(lk_context_error(context), "the mesh data=4 has no communicator"));
    CHECK(lk_mesh_group(mesh, LK_AXIS_DATA | LK_AXIS_TENSOR, &group) == LK_EINVAL &&
              strstr(lk_context_error(context), "no group along data × tensor"),
          "%s", lk_context_error(context));
    lk_mesh_free(mesh);
}

/* ---- plans ---- */

static lk_status plan_mlp(const lk_plan_config *given, int64_t capacity, lk_plan **plan)
{
    lk_graph           *graph;
    lk_plan_config      config = *given;
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    REQUIRE(lk_graph_create(context, LK_F32, &graph) == LK_OK);
    lk_tensor x = lk_input(graph, "x", LK_F32, 2, ((int64_t[]){capacity, 8}));
    lk_tensor y = lk_input(graph, "y", LK_I32, 1, ((int64_t[]){capacity}));
    config.loss = lk_cross_entropy(lk_linear(lk_relu(lk_linear(x, "fc1", 16)), "fc2", 4), y);
    config.optimizer = &optimizer;
    lk_status status = lk_plan_create(graph, &config, plan);
    lk_graph_free(graph);
    return status;
}

/* A plan of 1,024 ranks that do not exist, by either form: the same sections in the same memory. */
static void the_short_form_is_a_mesh_of_one_axis(void)
{
    enum { RANKS = 1024, RANK = 700 };
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    lk_plan       *short_form = NULL, *long_form = NULL;
    lk_mesh       *mesh = make_mesh(context, "tensor=1,data=1024", NULL, RANK);
    config.parallel = (lk_parallel){.world = RANKS, .rank = RANK};
    int64_t capacity = lk_parallel_capacity(&config.parallel, 4100);
    CHECK(capacity == 5); /* 4,100 over 1,024 ranks: 4 or 5 each */
    REQUIRE(plan_mlp(&config, capacity, &short_form) == LK_OK, "%s", lk_context_error(context));
    config.parallel = (lk_parallel){0};
    config.mesh = mesh;
    CHECK(lk_mesh_capacity(mesh, &config.parallel, 4100) == capacity);
    REQUIRE(plan_mlp(&config, capacity, &long_form) == LK_OK, "%s", lk_context_error(context));
    lk_mesh_free(mesh); /* the plan has copied it */
    CHECK(lk_plan_fingerprint(short_form) == lk_plan_fingerprint(long_form));
    for (int kind = 0; kind < LK_MEMORY_COUNT; kind++)
        CHECK(lk_plan_memory(short_form, (lk_memory)kind) == lk_plan_memory(long_form, (lk_memory)kind), "kind %d",
              kind);
    lk_plan_free(short_form);
    lk_plan_free(long_form);
}

static void plans_refuse_axes_that_they_cannot_use(void)
{
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    lk_plan       *plan;
    lk_mesh       *mesh = make_mesh(context, "data=2,expert=3", NULL, 0);
    config.mesh = mesh;
    CHECK(plan_mlp(&config, 4, &plan) == LK_EINVAL && !plan &&
              strstr(lk_context_error(context), "the mesh data=2,expert=3 has 3 ranks along expert"),
          "%s", lk_context_error(context));
    lk_mesh_free(mesh);
}

static void a_mesh_and_a_world_must_agree(void)
{
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    lk_plan       *plan = NULL;
    lk_mesh       *mesh = make_mesh(context, "data=4", NULL, 1);
    config.mesh = mesh;
    config.parallel = (lk_parallel){.world = 4, .rank = 2};
    CHECK(plan_mlp(&config, 4, &plan) == LK_EMISMATCH && !plan &&
              strstr(lk_context_error(context), "mesh is for rank 1 of 4, but its lk_parallel is for rank 2 of 4"),
          "%s", lk_context_error(context));
    config.parallel.rank = 1;
    CHECK(plan_mlp(&config, 4, &plan) == LK_OK, "%s", lk_context_error(context));
    lk_plan_free(plan);
    lk_mesh_free(mesh);
}

/* ---- trainers ---- */

static lk_tensor model(lk_tensor x) { return lk_linear(lk_flatten(x), "fc", 10); }

static void trainers_split_batches_along_data(void)
{
    lk_trainer_config config = LK_TRAINER_CONFIG_INIT;
    lk_dataset       *data;
    lk_graph         *graph;
    lk_plan          *plan;
    size_t            memory[LK_MEMORY_COUNT];
    lk_mesh          *mesh = make_mesh(context, "expert=1,data=3", NULL, 1);
    REQUIRE(lk_dataset_open(context, "synthetic:1x8x8,count=100", LK_SPLIT_TRAIN, NULL, &data) == LK_OK);
    config.model = model;
    config.train = data;
    config.batch = 64;
    config.mesh = mesh;
    CHECK(lk_trainer_share(&config) == 21); /* rows 21 to 42 of 64 */
    REQUIRE(lk_trainer_plan(context, &config, &graph, &plan, memory) == LK_OK, "%s", lk_context_error(context));
    CHECK(lk_plan_capacity(plan) == 22);
    lk_plan_free(plan);
    lk_graph_free(graph);
    config.plan_world = 2;
    CHECK(lk_trainer_plan(context, &config, &graph, &plan, memory) == LK_EMISMATCH &&
              strstr(lk_context_error(context), "the mesh expert=1,data=3 has 3 ranks, but plan_world is 2"),
          "%s", lk_context_error(context));
    lk_mesh_free(mesh);
    lk_dataset_free(data);
}

static void train_with_the_mesh_of_another(rank_test *t)
{
    lk_trainer_config config = LK_TRAINER_CONFIG_INIT;
    lk_dataset       *data;
    lk_trainer       *trainer;
    lk_mesh          *mesh = make_mesh(t->context, "data=2", NULL, 0);
    REQUIRE(lk_dataset_open(t->context, "synthetic:1x8x8,count=100", LK_SPLIT_TRAIN, NULL, &data) == LK_OK);
    config.model = model;
    config.train = data;
    config.comm = t->comm;
    config.mesh = mesh;
    if (t->rank == 1) /* rank 0's mesh */
        CHECK(lk_trainer_create(t->context, &config, &trainer) == LK_EMISMATCH && !trainer &&
                  strstr(lk_context_error(t->context), "the mesh data=2 is for rank 0 of 2, but this is rank 1 of 2"),
              "%s", lk_context_error(t->context));
    lk_mesh_free(mesh);
    lk_dataset_free(data);
}

static void a_trainer_needs_the_mesh_of_its_rank(void) { run_ranks(2, NULL, train_with_the_mesh_of_another, NULL); }

int main(void)
{
    REQUIRE(lk_context_create(NULL, &context) == LK_OK);
    RUN(coordinates_are_those_of_a_search);
    RUN(a_factored_axis_has_groups_of_neighbours_and_across_them);
    RUN(factored_groups_add);
    RUN(names_are_those_of_the_axes);
    RUN(a_mesh_of_a_world_is_one_axis);
    RUN(a_text_that_is_no_mesh_is_explained);
    RUN(groups_add_along_their_axes);
    RUN(ranks_that_make_other_groups_are_told);
    RUN(verdicts_name_coordinates_and_the_axis);
    RUN(a_mesh_without_a_communicator_has_no_groups);
    RUN(the_short_form_is_a_mesh_of_one_axis);
    RUN(plans_refuse_axes_that_they_cannot_use);
    RUN(a_mesh_and_a_world_must_agree);
    RUN(trainers_split_batches_along_data);
    RUN(a_trainer_needs_the_mesh_of_its_rank);
    lk_context_free(context);
    return check_result();
}
