/* test_shard_hosts.c - ranks along shard of which several are on a host gather parameters once there: with any number
 * of hosts they train as one rank does, with the bits of data parallel ranks, and the ranks of a host have one copy of
 * what is gathered, as the plan says to the byte. Hosts are simulated.
 *
 * ctest: timeout 300, ranks 6 */
#include "parallel.h"

enum { STEPS = SANITIZED ? 2 : 4 };

typedef struct layout {
    const char *mesh;
    int         world, each; /* ranks; on each host */
    int         sharers;     /* of a copy */
} layout;

static const layout layouts[] = {
    {"shard=4", 4, 2, 2}, {"shard=4", 4, 4, 4}, {"data=2,shard=2", 4, 2, 2}, {"shard=2,data=2", 4, 4, 2},
    {"shard=6", 6, 3, 3}, {"shard=6", 6, 2, 2}, {"shard=2,data=2", 4, 2, 0}, {"shard=3,data=2", 6, 3, 0},
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static job job_of(const layout *l)
{
    return (job){.model = "cnn",
                 .real = LK_F64,
                 .side = 16,
                 .steps = STEPS,
                 .batch = 24,
                 .world = l ? l->world : 1,
                 .each = l ? l->each : 0,
                 .mesh = l ? l->mesh : NULL,
                 .stage = 3,
                 .state = LK_STATE_REPLICATED,
                 .optimizer = LK_ADAM};
}

static report *run_of(job *j)
{
    j->out = new_report();
    run_job(j);
    for (int i = 1; i < j->world; i++)
        CHECK(j->out->hashes[i] == j->out->hashes[0], "%s: rank %d's weights are not rank 0's", j->mesh, i);
    return j->out;
}

static void every_layout_of_hosts_trains_like_one_rank_f64(void)
{
    job one = job_of(NULL);
    one.clip = 0.1;
    one.odd = 2;
    report *whole = run_of(&one);
    for (int i = 0; i < LAYOUTS; i++) {
        job j = job_of(&layouts[i]);
        j.clip = one.clip;
        j.odd = one.odd;
        j.micro_batches = 1 + i % 3;
        report *r = run_of(&j);
        double  off = losses_apart(r, whole, j.steps);
        CHECK(off <= 1e-12, "%s on hosts of %d: losses differ by %g", j.mesh, j.each, off);
        free_report(r);
    }
    free_report(whole);
}

static void they_have_the_bits_of_data_parallel(void)
{
    for (int i = 0; i < 2; i++) {
        job data = job_of(&layouts[0]), shard = job_of(&layouts[0]);
        data.mesh = NULL;
        data.stage = 0;
        data.real = shard.real = LK_F32;
        data.policy = shard.policy = i ? LK_POLICY_BF16 : LK_POLICY_RECORDED;
        report *a = run_of(&data), *b = run_of(&shard);
        CHECK(a->hashes[0] == b->hashes[0] && memcmp(a->losses, b->losses, sizeof(double) * STEPS) == 0,
              "%s: other bits than data parallel", i ? "bf16" : "f32");
        free_report(a);
        free_report(b);
    }
}

/* ---- memory ---- */

static lk_plan *plan_of(rig *r, const layout *l, int hosts)
{
    lk_parallel    parallel = {.shard_stage = 3, .state = LK_STATE_REPLICATED, .hosts = hosts};
    lk_mesh       *mesh = NULL;
    lk_mesh_config grid = {.size = sizeof grid, .axes = l->mesh, .world = l->world};
    REQUIRE(lk_mesh_create(r->context, &grid, &mesh) == LK_OK, "%s", lk_context_error(r->context));
    int64_t             capacity = lk_mesh_capacity(mesh, &parallel, 24);
    lk_tensor           x = lk_input(r->graph, "x", LK_F32, 4, ((int64_t[]){capacity, 3, 16, 16}));
    lk_tensor           y = lk_input(r->graph, "y", LK_I32, 1, ((int64_t[]){capacity}));
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    config.loss = lk_cross_entropy(lk_model_find("cnn")(x, (lk_model_options){0}), y);
    config.optimizer = &optimizer;
    config.parallel = parallel;
    config.mesh = mesh;
    REQUIRE(lk_plan_create(r->graph, &config, &r->plan) == LK_OK, "%s", lk_context_error(r->context));
    lk_mesh_free(mesh);
    return r->plan;
}

static size_t largest_unit(const lk_plan *p)
{
    size_t most = 0;
    for (size_t i = 0; i < p->units_count; i++) {
        size_t bytes = (size_t)p->units[i].elements * lk_dtype_size(p->units[i].dtype);
        if (bytes > most) most = bytes;
    }
    return most;
}

/* The copy of a host has whole units, and its ranks have equal shares of it, which are all that they have more than
 * their gradients. */
static void ranks_of_a_host_have_shares_of_one_copy(void)
{
    const char *device = getenv("LOCKSTEP_DEVICE");
    if (device && strcmp(device, "cpu") != 0) return; /* each rank gathers in its device's memory */
    for (int i = 0; i < LAYOUTS; i++) {
        const layout *l = &layouts[i];
        rig           a = rig_open(LK_F32, 1), b = rig_open(LK_F32, 1);
        lk_plan      *own = plan_of(&a, l, 0), *host = plan_of(&b, l, l->world / l->each);
        size_t        sharers = (size_t)host->host.sharers, share = lk__plan_host_share(host);
        CHECK((int)sharers == l->sharers && own->host.sharers == 0, "%s on hosts of %d: %zu sharers", l->mesh, l->each,
              sharers);
        size_t with = lk_plan_memory(host, LK_MEMORY_STAGING), without = lk_plan_memory(own, LK_MEMORY_STAGING);
        if (!sharers) {
            CHECK(with == without, "%s on hosts of %d: %zu bytes instead of %zu", l->mesh, l->each, with, without);
        } else {
            size_t copy = host->host.bytes;
            CHECK(copy >= largest_unit(host) && copy <= own->gathered, "a copy of %zu bytes", copy);
            CHECK(share * sharers >= copy && (share - 1) * sharers < copy, "shares of %zu bytes", share);
            CHECK(with - share - host->gathered == without - own->gathered && with < without,
                  "%s on hosts of %d: %zu bytes, and %zu without sharing", l->mesh, l->each, with, without);
        }
        rig_close(&a);
        rig_close(&b);
    }
}

static int measure_as(int rank, void *user)
{
    const job *j = user;
    check_failures = 0;
    rank_program p = enrol_rank(j, rank);
    check_planned_memory(&p, j);
    train_rank(&p, j, rank, 1); /* with it the group's buffers have their size */
    size_t before = lk_context_memory(p.rig.context, LK_MEMORY_OTHER);
    for (int step = 2; step <= 3; step++) train_rank(&p, j, rank, step);
    CHECK(lk_context_memory(p.rig.context, LK_MEMORY_OTHER) == before, "%s: steps allocate", j->mesh);
    dismiss_rank(&p);
    return check_result();
}

static void a_rank_has_what_the_plan_says(void)
{
    for (int i = 0; i < LAYOUTS; i++) {
        job             j = job_of(&layouts[i]);
        lk_spawn_result result;
        j.out = new_report();
        check_ranks_announced(j.world);
        CHECK(lk_spawn(j.world, measure_as, &j, &result) == LK_OK, "%s", result.text);
        free_report(j.out);
    }
}

/* ---- mistakes ---- */

static int mistake_as(int rank, void *user)
{
    const layout  *l = user;
    lk_parallel    parallel = {.shard_stage = 3, .state = LK_STATE_REPLICATED, .hosts = 1};
    rig            r = rig_open(LK_F32, 1);
    lk_mesh       *mesh = NULL;
    lk_mesh_config grid = {.size = sizeof grid, .axes = l->mesh, .world = l->world, .rank = rank};
    lk_comm       *comm = l->each ? join_hosts(r.context, rank / l->each) : join_group(r.context, "tcp");
    check_failures = 0;
    REQUIRE(lk_mesh_create(r.context, &grid, &mesh) == LK_OK);
    lk_tensor           x = lk_input(r.graph, "x", LK_F32, 2, ((int64_t[]){4, 8}));
    lk_tensor           y = lk_input(r.graph, "y", LK_I32, 1, ((int64_t[]){4}));
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    config.loss = lk_cross_entropy(lk_linear(x, "fc", 10), y);
    config.optimizer = &optimizer;
    config.parallel = parallel;
    config.mesh = mesh;
    REQUIRE(lk_plan_create(r.graph, &config, &r.plan) == LK_OK, "%s", lk_context_error(r.context));
    REQUIRE(lk_store_create_shared(r.plan, 1, comm, &r.store) == LK_OK, "%s", lk_context_error(r.context));
    CHECK(lk_program_create(r.plan, r.store, comm, &r.program) == (l->each ? LK_EMISMATCH : LK_EUNSUPPORTED) &&
              strstr(lk_context_error(r.context), "set lk_parallel.hosts to lk_comm_hosts"),
          "%s", lk_context_error(r.context));
    lk_store_free(r.store);
    lk_plan_free(r.plan);
    lk_graph_free(r.graph);
    lk_mesh_free(mesh);
    lk_comm_free(comm);
    lk_context_free(r.context);
    return check_result();
}

static void another_number_of_hosts_is_refused(void)
{
    const char     *device = getenv("LOCKSTEP_DEVICE");
    layout          wrong[] = {{"shard=4", 4, 2, 0}, {"shard=2", 2, 0, 0}};
    lk_spawn_result result;
    if (device && strcmp(device, "cpu") != 0) return;
    for (int i = 0; i < 2; i++) {
        check_ranks_announced(wrong[i].world);
        CHECK(lk_spawn(wrong[i].world, mistake_as, &wrong[i], &result) == LK_OK, "%s", result.text);
    }
}

int main(void)
{
    RUN(every_layout_of_hosts_trains_like_one_rank_f64);
    RUN(they_have_the_bits_of_data_parallel);
    RUN(ranks_of_a_host_have_shares_of_one_copy);
    RUN(a_rank_has_what_the_plan_says);
    RUN(another_number_of_hosts_is_refused);
    return check_result();
}
