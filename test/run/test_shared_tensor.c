/* test_shared_tensor.c - ranks along tensor have different parts of the state, and the ranks of a host that have the
 * same part hold it once: with the bits of ranks that each have their own, on one host and on several, and with the
 * memory that the plan says.
 *
 * ctest: timeout 300, ranks 8 */
#include "parallel.h"

#include <string.h>

enum { STEPS = SANITIZED ? 2 : 4 };

static job job_of(const char *mesh, int world, lk_state_mode state)
{
    return (job){.model = "cnn",
                 .real = LK_F32,
                 .side = 8,
                 .steps = STEPS,
                 .batch = 24,
                 .odd = 3, /* some ranks have no sample */
                 .world = world,
                 .mesh = mesh,
                 .state = state,
                 .clip = 0.1,
                 .optimizer = LK_ADAM};
}

/* Trains on the rows of this rank's part of the batch. */
static double train_part(rank_program *p, const job *j, int step)
{
    job     parts = *j;
    int     part = lk__plan_batch_part(p->rig.plan);
    int64_t total = total_of(j, step);
    parts.world = lk__plan_batch_parts(p->rig.plan);
    int64_t first = first_row(&parts, total, part), count = first_row(&parts, total, part + 1) - first;
    fill_rows(p->images, j->real, p->labels, j->side, first, count, step);
    lk_step s = {.step = step, .count = count, .total = total, .rate = 1e-3};
    REQUIRE(lk_program_train(p->rig.program, &s) == LK_OK, "%s, step %d: %s", j->mesh, step,
            lk_context_error(p->rig.context));
    return rig_metrics(&p->rig).loss;
}

/* The sum of a gradient's elements, which all ranks read whole after LK_SYNC. */
static double read_gradient(rank_program *p, const job *j, int step)
{
    lk_state state;
    lk_step  s = {.step = step, .count = 0, .total = 1, .rate = 1e-3};
    float    gradient[1 << 16];
    double   sum = 0;
    int64_t  total = lk__plan_batch_part(p->rig.plan) == 0;
    REQUIRE(lk_store_find(p->rig.store, "conv2.weight", &state) && state_elements(&state) <= 1 << 16);
    fill_rows(p->images, j->real, p->labels, j->side, 0, total, step);
    s.count = total;
    REQUIRE(lk_program_step(p->rig.program, &s) == LK_OK && lk_program_run(p->rig.program, LK_FORWARD) == LK_OK &&
                lk_program_run(p->rig.program, LK_BACKWARD) == LK_OK &&
                lk_program_run(p->rig.program, LK_SYNC) == LK_OK,
            "%s", lk_context_error(p->rig.context));
    REQUIRE(lk_program_gradient_read(p->rig.program, "conv2.weight", gradient,
                                     (size_t)state_elements(&state) * sizeof *gradient) == LK_OK,
            "%s", lk_context_error(p->rig.context));
    for (int64_t i = 0; i < state_elements(&state); i++) sum += gradient[i];
    REQUIRE(lk_program_run(p->rig.program, LK_UPDATE) == LK_OK, "%s", lk_context_error(p->rig.context));
    return sum;
}

static int train_parts_as(int rank, void *user)
{
    const job *j = user;
    check_failures = 0;
    rank_program p = enrol_rank(j, rank);
    CHECK(lk_plan_state(p.rig.plan) == j->state, "%s: the state is not as requested", j->mesh);
    check_planned_memory(&p, j);
    size_t before = lk_context_memory(p.rig.context, LK_MEMORY_OTHER);
    for (int step = 1; step <= j->steps; step++) {
        double loss = train_part(&p, j, step);
        if (rank == 0) j->out->losses[step - 1] = loss;
        if (step == 1 && j->each) before = lk_context_memory(p.rig.context, LK_MEMORY_OTHER); /* of its connections */
    }
    CHECK(lk_context_memory(p.rig.context, LK_MEMORY_OTHER) == before, "%s: steps allocate", j->mesh);
    if (!j->leaves) j->out->gradient[rank] = read_gradient(&p, j, j->steps + 1);
    CHECK(lk_program_verify(p.rig.program, j->steps) == LK_OK, "%s", lk_context_error(p.rig.context));
    j->out->hashes[rank] = lk_store_hash(p.rig.store);
    dismiss_rank(&p);
    return check_result();
}

static report *train_parts(job *j)
{
    lk_spawn_result result;
    check_ranks_announced(j->world);
    j->out = new_report();
    CHECK(lk_spawn(j->world, train_parts_as, j, &result) == LK_OK, "%s: %s", j->mesh, result.text);
    return j->out;
}

static void compare(job shared, const char *what)
{
    job own = shared;
    own.state = LK_STATE_REPLICATED;
    report *a = train_parts(&shared), *b = train_parts(&own);
    for (int i = 0; i < shared.world; i++)
        CHECK(a->hashes[i] == b->hashes[0] && a->gradient[i] == b->gradient[0],
              "%s, %s: rank %d has other bits than without sharing", shared.mesh, what, i);
    CHECK(memcmp(a->losses, b->losses, sizeof(double) * STEPS) == 0, "%s, %s: other losses", shared.mesh, what);
    free_report(a);
    free_report(b);
}

static void sharers_of_a_part_have_the_bits_of_ranks_that_share_nothing(void)
{
    static const char *const meshes[] = {"data=2,tensor=2", "tensor=2,data=2", "shard=2,tensor=2"};
    for (int i = 0; i < 3; i++) compare(job_of(meshes[i], 4, LK_STATE_SHARED), "one host");
    job j = job_of("data=2,tensor=2", 4, LK_STATE_SHARED);
    j.policy = LK_POLICY_BF16;
    compare(j, "bf16");
    j = job_of("data=2,tensor=2", 4, LK_STATE_SHARED);
    j.micro_batches = 2;
    compare(j, "micro-batches");
    j = job_of("data=2,tensor=2", 4, LK_STATE_SHARED);
    j.leaves = 6; /* which are no subtree of their tree */
    compare(j, "leaves");
}

static void each_host_has_every_part_once(void)
{
    job j = job_of("data=4,tensor=2", 8, LK_STATE_SHARED);
    j.each = 4;
    compare(j, "two hosts");
}

static void parts_of_a_state_on_different_hosts_are_not_shared(void)
{
    rig                 r = rig_open(LK_F32, 1);
    lk_mesh            *mesh;
    lk_mesh_config      grid = {.size = sizeof grid, .axes = "tensor=2,data=4", .world = 8};
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    lk_tensor           x = lk_input(r.graph, "x", LK_F32, 4, ((int64_t[]){6, 3, 8, 8}));
    lk_tensor           y = lk_input(r.graph, "y", LK_I32, 1, ((int64_t[]){6}));
    REQUIRE(lk_mesh_create(r.context, &grid, &mesh) == LK_OK);
    config.loss = lk_cross_entropy(lk_model_find("cnn")(x, (lk_model_options){0}), y);
    config.optimizer = &optimizer;
    config.mesh = mesh;
    config.parallel.state = LK_STATE_SHARED;
    config.parallel.hosts = 2;
    CHECK(lk_plan_create(r.graph, &config, &r.plan) == LK_EUNSUPPORTED);
    CHECK(strstr(lk_context_error(r.context), "the ranks along tensor are on several hosts"), "%s",
          lk_context_error(r.context));
    lk_mesh_free(mesh);
    lk_graph_free(r.graph);
    lk_context_free(r.context);
}

int main(void)
{
    RUN(sharers_of_a_part_have_the_bits_of_ranks_that_share_nothing);
    RUN(each_host_has_every_part_once);
    RUN(parts_of_a_state_on_different_hosts_are_not_shared);
    return check_result();
}
