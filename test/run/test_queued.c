/* test_queued.c - programs whose collectives are queued on the device's streams, over a transport of the test
 * (queueing.h): they train to the bits of programs that exchange copies of the host's. On the emulated CUDA; elsewhere
 * no transport queues.
 *
 * ctest: timeout 300, ranks 4 */
#include "parallel.h"
#include "queueing.h"
#include "run/program.h"

static job job_of(int world)
{
    return (job){.model = "mlp",
                 .backend = "shm",
                 .real = LK_F32,
                 .side = 8,
                 .steps = 5,
                 .batch = 12,
                 .odd = 5,
                 .world = world,
                 .micro_batches = 1,
                 .bucket_bytes = 8192,
                 .optimizer = LK_ADAM};
}

static void use_queueing(lk_comm *comm) { queueing_begin(comm); }

/* Ranks along tensor, where there is one, have the same samples. */
static double train_step(rank_program *p, const job *j, int rank, int step)
{
    int     together = j->mesh ? 2 : 1, parts = j->world / together, part = rank / together;
    int64_t total = total_of(j, step), first = total * part / parts, count = total * (part + 1) / parts - first;
    fill_rows(p->images, j->real, p->labels, j->side, first, count, step);
    lk_step s = {.step = step, .count = count, .total = total, .rate = 1e-3};
    REQUIRE(lk_program_train(p->rig.program, &s) == LK_OK, "rank %d, step %d: %s", rank, step,
            lk_context_error(p->rig.context));
    return rig_metrics(&p->rig).loss;
}

/* Trains, and checks what was planned and queued. */
static int train(int rank, void *user)
{
    const job *j = user;
    check_failures = 0;
    rank_program p = enrol_rank(j, rank);
    check_planned_memory(&p, j);
    CHECK(p.rig.program->group.queued == !!j->use_group && p.rig.program->group.staged == !j->use_group);
    CHECK(p.rig.plan->buckets_count > 1);
    for (int step = 1; step <= j->steps; step++) {
        double loss = train_step(&p, j, rank, step);
        if (rank == 0) j->out->losses[step - 1] = loss;
    }
    CHECK(!j->use_group || (queueing.queued > 0 && queueing.ran >= queueing.queued), "%d queued, %d ran",
          queueing.queued, queueing.ran);
    j->out->hashes[rank] = lk_store_hash(p.rig.store);
    dismiss_rank(&p);
    return check_result();
}

static void train_ranks(job *j, report *out, void (*use_group)(lk_comm *comm))
{
    lk_spawn_result result;
    j->out = out;
    j->use_group = use_group;
    check_ranks_announced(j->world);
    CHECK(lk_spawn(j->world, train, j, &result) == LK_OK, "%d ranks: %s", j->world, result.text);
}

static void compare_with_copies(job j)
{
    report *staged = new_report(), *queued = new_report();
    train_ranks(&j, staged, NULL);
    train_ranks(&j, queued, use_queueing);
    for (int i = 0; i < j.steps; i++)
        CHECK(staged->losses[i] == queued->losses[i] && staged->losses[i] > 0, "step %d: %.17g, %.17g", i + 1,
              staged->losses[i], queued->losses[i]);
    for (int i = 0; i < j.world; i++)
        CHECK(staged->hashes[i] == queued->hashes[i] && staged->hashes[i] != 0, "rank %d", i);
    free_report(staged);
    free_report(queued);
}

static void training_gives_the_bits_of_copies_through_the_host(void)
{
    compare_with_copies(job_of(2));
    compare_with_copies(job_of(3));
}

static void micro_batches_clipping_and_narrow_gradients(void)
{
    job j = job_of(2);
    j.micro_batches = 3;
    j.clip = 0.5;
    j.gradient_dtype = LK_BF16;
    compare_with_copies(j);
}

static void values_along_the_axis_tensor(void)
{
    job j = job_of(4);
    j.mesh = "data=2,tensor=2";
    compare_with_copies(j);
}

/* ---- what is refused ---- */

static lk_status create_with(const job *j, lk_comm *comm, rig *r, int rank)
{
    lk_tensor           x = lk_input(r->graph, "x", j->real, 4, ((int64_t[]){j->batch, 3, j->side, j->side}));
    lk_tensor           y = lk_input(r->graph, "y", LK_I32, 1, ((int64_t[]){j->batch}));
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    config.loss = lk_cross_entropy(lk_model_find(j->model)(x, (lk_model_options){0}), y);
    config.optimizer = &optimizer;
    config.parallel = (lk_parallel){.world = j->world, .rank = rank, .micro_batches = 1, .leaves = j->leaves};
    REQUIRE(lk_plan_create(r->graph, &config, &r->plan) == LK_OK, "%s", lk_context_error(r->context));
    REQUIRE(lk_store_create(r->plan, 1, &r->store) == LK_OK, "%s", lk_context_error(r->context));
    return lk_program_create(r->plan, r->store, comm, &r->program);
}

static void close_rig(rig *r, lk_comm *comm)
{
    lk_program_free(r->program);
    lk_store_free(r->store);
    lk_plan_free(r->plan);
    lk_graph_free(r->graph);
    lk_comm_free(comm);
    lk_context_free(r->context);
}

static int refuse_another_order(int rank, void *user)
{
    const job *j = user;
    check_failures = 0;
    queueing.not_canonical = true;
    rig      r = rig_open(j->real, 1);
    lk_comm *comm = join_group(r.context, j->backend);
    queueing_begin(comm);
    CHECK(create_with(j, comm, &r, rank) == LK_EUNSUPPORTED && !r.program);
    CHECK(strstr(lk_context_error(r.context), "backend queueing adds in another"), "%s", lk_context_error(r.context));
    close_rig(&r, comm);
    return check_result();
}

static void leaves_need_the_canonical_order(void)
{
    lk_spawn_result result;
    job             j = job_of(2);
    j.leaves = 2;
    CHECK(lk_spawn(j.world, refuse_another_order, &j, &result) == LK_OK, "%s", result.text);
}

/* Rank 1's transport does not record, so that it would copy through the host and wait for rank 0 there. */
static int refuse_another_schedule(int rank, void *user)
{
    const job *j = user;
    check_failures = 0;
    queueing.not_recorded = rank == 1;
    rig      r = rig_open(j->real, 1);
    lk_comm *comm = join_group(r.context, j->backend);
    queueing_begin(comm);
    CHECK(create_with(j, comm, &r, rank) == LK_EMISMATCH && !r.program);
    CHECK(strstr(lk_context_error(r.context), "the ranks would not run their collectives in the same order"), "%s",
          lk_context_error(r.context));
    CHECK(strstr(lk_context_error(r.context), ", queued\n  rank 1: "), "%s", lk_context_error(r.context));
    close_rig(&r, comm);
    return check_result();
}

static void ranks_compare_what_they_queue(void)
{
    lk_spawn_result result;
    job             j = job_of(2);
    CHECK(lk_spawn(j.world, refuse_another_schedule, &j, &result) == LK_OK, "%s", result.text);
}

int main(void)
{
    if (!find_queue_call()) {
        printf("skipped: no transport queues calls on this device\n");
        return SKIPPED;
    }
    RUN(training_gives_the_bits_of_copies_through_the_host);
    RUN(micro_batches_clipping_and_narrow_gradients);
    RUN(values_along_the_axis_tensor);
    RUN(leaves_need_the_canonical_order);
    RUN(ranks_compare_what_they_queue);
    return check_result();
}
