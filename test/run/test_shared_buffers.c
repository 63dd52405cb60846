/* test_shared_buffers.c - buffers that the ranks of a host hold once, because all compute the same: which plans have
 * them, the bits of replicated training, no wait more in a step, running statistics that are read right behind
 * LK_FORWARD, and what is refused.
 *
 * ctest: timeout 300, ranks 3 */
#define _GNU_SOURCE
#include "comm/abort.h"
#include "comm/shm/shm.h"
#include "one_core.h"
#include "parallel.h"
#include "run/shared.h"

#include <unistd.h>

static job norm_job(int world)
{
    return (job){.model = "resnet20",
                 .real = LK_F32,
                 .side = 8,
                 .steps = 3,
                 .batch = 24,
                 .world = world,
                 .sync = true,
                 .optimizer = LK_ADAM};
}

/* ---- which plans ---- */

typedef enum shape { NO_NORM, ONE_NORM, TWICE, FIRST } shape;

/* x → [norm] → linear → norm → linear: `TWICE` both norms have the same running statistics; `FIRST` only the one in
 * front, whose input needs no gradient. */
static bool plan_shares(shape what, bool sync)
{
    rig                 r = rig_open(LK_F32, 1);
    lk_tensor           x = lk_input(r.graph, "x", LK_F32, 2, ((int64_t[]){8, 16}));
    lk_tensor           y = lk_input(r.graph, "y", LK_I32, 1, ((int64_t[]){8})), none = {0};
    lk_tensor           mean = lk_buffer(r.graph, "mean", LK_F32, 1, ((int64_t[]){16}), 0);
    lk_tensor           var = lk_buffer(r.graph, "var", LK_F32, 1, ((int64_t[]){16}), 1);
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    if (what == FIRST || what == TWICE) x = lk_f_batch_norm(x, none, none, mean, var, none);
    x = lk_linear(x, "a", 16);
    if (what == ONE_NORM || what == TWICE) x = lk_f_batch_norm(x, none, none, mean, var, none);
    if (what == NO_NORM) x = lk_add(x, mean);
    config.loss = lk_cross_entropy(lk_linear(x, "b", 10), y);
    config.optimizer = &optimizer;
    config.sync_batch_norm = sync;
    config.parallel = (lk_parallel){.world = 2, .state = LK_STATE_SHARED};
    REQUIRE(lk_plan_create(r.graph, &config, &r.plan) == LK_OK, "%s", lk_context_error(r.context));
    bool shares = lk_plan_holder(r.plan, LK_MEMORY_BUFFERS) == LK_HELD_BY_NODE;
    CHECK(lk_plan_holder(r.plan, LK_MEMORY_PARAMETERS) == LK_HELD_BY_NODE &&
          lk_plan_holder(r.plan, LK_MEMORY_OPTIMIZER) == LK_HELD_BY_HOST &&
          lk_plan_holder(r.plan, LK_MEMORY_GRADIENTS) == LK_HELD_BY_RANK);
    rig_close(&r);
    return shares;
}

static void buffers_are_shared_where_all_ranks_compute_the_same(void)
{
    CHECK(plan_shares(NO_NORM, false), "nothing writes the buffers");
    CHECK(plan_shares(ONE_NORM, true), "synchronised batch norm");
    CHECK(!plan_shares(ONE_NORM, false), "each rank has statistics of its own samples");
    CHECK(!plan_shares(TWICE, true), "the second norm reads what the first one writes, on another rank");
    CHECK(!plan_shares(FIRST, true), "no collective is between the write and the next micro-batch's read");
}

/* ---- bits ---- */

static void compare(job j, int (*run)(int rank, void *user), const char *what)
{
    report         *r[2] = {new_report(), new_report()};
    lk_spawn_result result;
    check_ranks_announced(j.world);
    for (int i = 0; i < 2; i++) {
        j.state = i ? LK_STATE_SHARED : LK_STATE_REPLICATED;
        j.out = r[i];
        CHECK(lk_spawn(j.world, run, &j, &result) == LK_OK, "%s: %s", what, result.text);
    }
    for (int i = 0; i < j.world; i++)
        CHECK(r[1]->hashes[i] == r[0]->hashes[0] && r[0]->hashes[0] != 0,
              "%d ranks, %s: rank %d's parameters or statistics differ from the replicated ones", j.world, what, i);
    free_report(r[0]);
    free_report(r[1]);
}

static void shared_buffers_have_the_bits_of_replicated_ones(void)
{
    for (int world = 2; world <= 3; world++) {
        job j = norm_job(world);
        compare(j, train_as, "one micro-batch");
        j.micro_batches = 3;
        compare(j, train_as, "three micro-batches");
        j.micro_batches = 0;
        j.leaves = 6;
        compare(j, train_as, "leaves");
    }
}

/* Rank 0, which writes, is last to leave LK_FORWARD, if it takes a while; the others read and run it again at once. */
static int run_forwards(int rank, void *user)
{
    const job *j = user;
    check_failures = 0;
    rank_program p = enrol_rank(j, rank);
    uint64_t     hash = 1;
    for (int step = 1; step <= 4; step++) {
        int64_t first = first_row(j, j->batch, rank), count = first_row(j, j->batch, rank + 1) - first;
        lk_step s = {.step = step, .count = count, .total = j->batch, .rate = 1e-3};
        fill_rows(p.images, j->real, p.labels, j->side, first, count, step);
        REQUIRE(lk_program_step(p.rig.program, &s) == LK_OK && lk_program_run(p.rig.program, LK_FORWARD) == LK_OK, "%s",
                lk_context_error(p.rig.context));
        hash = hash * 31 + lk_store_hash(p.rig.store);
    }
    j->out->hashes[rank] = hash;
    dismiss_rank(&p);
    return check_result();
}

static void statistics_are_read_right_behind_forward(void)
{
    compare(norm_job(2), run_forwards, "LK_FORWARD by hand");
    compare(norm_job(3), run_forwards, "LK_FORWARD by hand");
}

/* ---- waits, and who has which memory ---- */

static uint64_t waits_so_far(const lk_comm *comm) { return ((const lk__shm *)comm->state)->number; }

static int inspect(int rank, void *user)
{
    job j = *(const job *)user;
    check_failures = 0;
    keep_one_core();
    for (int variant = 0; variant < 2; variant++) {
        j.sync = variant == 0;
        rank_program    p = enrol_rank(&j, rank);
        const lk_store *s = p.rig.store;
        size_t          bytes = p.rig.plan->memory[LK_MEMORY_BUFFERS];
        const char     *base = lk__comm_peer(p.comm, s->symmetric, 0);
        bool inside = s->buffers >= base && s->buffers < s->optimizer + p.rig.plan->memory[LK_MEMORY_OPTIMIZER] + bytes;
        CHECK(bytes > 0 && inside == j.sync, "buffers are %s symmetric memory", inside ? "in" : "not in");
        (void)train_rank(&p, &j, rank, 1);
        uint64_t before = waits_so_far(p.comm);
        for (int step = 2; step <= 4; step++) (void)train_rank(&p, &j, rank, step);
        int each = (int)((waits_so_far(p.comm) - before) / 3);
        CHECK(each == p.rig.plan->syncs + 2, "%d waits in a step with %d sums within it", each, p.rig.plan->syncs);
        CHECK(lk_program_verify(p.rig.program, 4) == LK_OK, "%s", lk_context_error(p.rig.context));
        dismiss_rank(&p);
    }
    return check_result();
}

static void a_step_has_no_wait_more(void)
{
    lk_spawn_result result;
    job             j = norm_job(2);
    j.state = LK_STATE_SHARED;
    CHECK(lk_spawn(2, inspect, &j, &result) == LK_OK, "%s", result.text);
}

/* ---- what is refused ---- */

static int refuse(int rank, void *user)
{
    const job *j = user;
    check_failures = 0;
    rank_program        p = enrol_rank(j, rank);
    lk_program         *program = NULL;
    lk_plan            *plan;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    config.loss = (lk_tensor){p.rig.graph, p.rig.plan->train.numbers[LK__NUMBER_SUM]};
    config.optimizer = &optimizer;
    config.parallel = p.rig.plan->parallel;
    REQUIRE(lk_plan_create(p.rig.graph, &config, &plan) == LK_OK, "%s", lk_context_error(p.rig.context));
    CHECK(lk_program_create(plan, p.rig.store, p.comm, &program) == LK_EMISMATCH, "a program that is not synchronised");
    CHECK(strstr(lk_context_error(p.rig.context), "sync_batch_norm"), "%s", lk_context_error(p.rig.context));
    lk_program_free(program);
    lk_plan_free(plan);
    dismiss_rank(&p);
    return check_result();
}

static void a_program_that_is_not_synchronised_cannot_use_the_store(void)
{
    lk_spawn_result result;
    job             j = norm_job(2);
    j.state = LK_STATE_SHARED;
    CHECK(lk_spawn(2, refuse, &j, &result) == LK_OK, "%s", result.text);
}

int main(void)
{
    RUN(buffers_are_shared_where_all_ranks_compute_the_same);
    RUN(shared_buffers_have_the_bits_of_replicated_ones);
    RUN(statistics_are_read_right_behind_forward);
    RUN(a_step_has_no_wait_more);
    RUN(a_program_that_is_not_synchronised_cannot_use_the_store);
    return check_result();
}
