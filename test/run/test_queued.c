/* test_queued.c - programs whose collectives are queued on the device's streams, over a transport of the test
 * (queueing.h): they train to the bits of programs that exchange copies of the host's. On the emulated CUDA; elsewhere
 * no transport queues.
 *
 * ctest: timeout 300, ranks 4 */
#include "queued_training.h"
#include "queueing.h"
#include "run/program.h"

enum { STEPS = 5 };
static job job_of(int world) { return make_job("shm", STEPS, world); }

static void use_queueing(lk_comm *comm) { queueing_begin(comm); }

/* Trains, and checks what was planned and queued. */
static int train(int rank, void *user)
{
    const job *j = user;
    check_failures = 0;
    rank_program p = enrol_rank(j, rank);
    check_planned_memory(&p, j);
    CHECK(p.rig.program->group.queued == !!j->use_group && p.rig.program->group.staged == !j->use_group);
    CHECK(p.rig.plan->buckets_count > 1 || j->stage); /* small units are joined */
    train_steps(&p, j, rank);
    CHECK(!j->use_group || (queueing.queued > 0 && queueing.ran >= queueing.queued), "%d queued, %d ran",
          queueing.queued, queueing.ran);
    CHECK(queueing_side_streams(p.rig.program->stream) == !!j->use_group);
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
    compare_reports(&j, staged, queued);
    free_report(staged);
    free_report(queued);
}

static void training_gives_the_bits_of_copies_through_the_host(void)
{
    compare_plain_steps(compare_with_copies, "shm", STEPS);
}

static void micro_batches_clipping_and_narrow_gradients(void)
{
    compare_narrow_gradients(compare_with_copies, "shm", STEPS);
}

static void slices_of_the_state(void) { compare_slices(compare_with_copies, "shm", STEPS); }

static void values_along_the_axis_tensor(void) { compare_along_tensor(compare_with_copies, "shm", STEPS); }

/* ---- whole steps ---- */

/* The instructions of the runs of a queued step. */
static int count_actions(const lk_program *p, lk__plan_action_kind kind)
{
    lk__plan_schedule   s;
    const lk__run_list *list = &p->slots[0].train;
    int                 count = 0;
    REQUIRE(lk__plan_schedule_make(p->plan, LK__SCHEDULE_QUEUED, &s) == LK_OK && s.count > 0);
    for (size_t r = 0; r < s.count; r++)
        for (size_t i = lk__schedule_begin(&list->at, &s.runs[r]); i < lk__schedule_end(&list->at, &s.runs[r]); i++)
            count += !(list->instructions[i].when & ~s.runs[r].flags) &&
                     lk__action_kind_of(list->instructions[i].action) == kind;
    lk__plan_schedule_free(p->context, &s);
    return count;
}

/* The first step of a kind runs as it is, the second is recorded, and all others are runs of the recording: nothing is
 * queued by the host then. */
static int record_steps(int rank, void *user)
{
    const job *j = user;
    check_failures = 0;
    rank_program p = enrol_rank(j, rank);
    int          buckets = (int)p.rig.plan->buckets_count;
    CHECK(lk__program_queues(p.rig.program));
    CHECK(count_actions(p.rig.program, LK__IS_COPY) == 0 && count_actions(p.rig.program, LK__IS_HOST) == 0);
    CHECK(count_actions(p.rig.program, LK__IS_START) == buckets &&
          count_actions(p.rig.program, LK__IS_WAIT) == buckets);
    for (int step = 1; step <= 6; step++) {
        int queued = queueing.queued, ran = queueing.ran;
        train_step(&p, j, rank, step);
        CHECK(queueing.queued - queued == (step <= 2 ? buckets + 1 : 0), "step %d: %d", step, queueing.queued - queued);
        CHECK(queueing.ran - ran == buckets + 1, "step %d: %d", step, queueing.ran - ran);
    }
    dismiss_rank(&p);
    return check_result();
}

static void a_step_is_one_graph_with_its_collectives(void)
{
    lk_spawn_result result;
    job             j = job_of(2);
    j.odd = 0;
    j.use_group = use_queueing;
    CHECK(lk_spawn(j.world, record_steps, &j, &result) == LK_OK, "%s", result.text);
}

/* Two steps ahead: the bits of steps that are waited for. */
static int train_ahead(int rank, void *user)
{
    const job *j = user;
    check_failures = 0;
    rank_program p = enrol_rank(j, rank);
    for (int step = 1; step <= j->steps; step++) {
        int64_t first = first_row(j, j->batch, rank), count = first_row(j, j->batch, rank + 1) - first;
        fill_rows(p.images, j->real, p.labels, j->side, first, count, step);
        lk_step s = {.step = step, .count = count, .total = j->batch, .rate = 1e-3};
        REQUIRE(lk_program_queue(p.rig.program, &s) == LK_OK, "%s", lk_context_error(p.rig.context));
        if (step == 1) continue;
        REQUIRE(lk_program_result(p.rig.program) == LK_OK, "%s", lk_context_error(p.rig.context));
        if (rank == 0) j->out->losses[step - 2] = rig_metrics(&p.rig).loss;
    }
    REQUIRE(lk_program_result(p.rig.program) == LK_OK, "%s", lk_context_error(p.rig.context));
    if (rank == 0) j->out->losses[j->steps - 1] = rig_metrics(&p.rig).loss;
    j->out->hashes[rank] = lk_store_hash(p.rig.store);
    dismiss_rank(&p);
    return check_result();
}

static void steps_are_queued_ahead(void)
{
    lk_spawn_result result;
    report         *waited = new_report(), *ahead = new_report();
    job             j = job_of(3);
    j.odd = 0;
    train_ranks(&j, waited, NULL);
    j.out = ahead;
    j.use_group = use_queueing;
    CHECK(lk_spawn(j.world, train_ahead, &j, &result) == LK_OK, "%s", result.text);
    compare_reports(&j, waited, ahead);
    free_report(waited);
    free_report(ahead);
}

/* ---- failures ---- */

/* Trains two steps, then one that must fail on all ranks and change nothing, then one more. */
static int fail_third(int rank, void *user, void (*spoil)(rank_program *p, const job *j), lk_status expected,
                      const char *text)
{
    const job *j = user;
    check_failures = 0;
    rank_program p = enrol_rank(j, rank);
    for (int step = 1; step <= 2; step++) train_step(&p, j, rank, step);
    uint64_t before = lk_store_hash(p.rig.store);
    int64_t  first = first_row(j, j->batch, rank), count = first_row(j, j->batch, rank + 1) - first;
    fill_rows(p.images, j->real, p.labels, j->side, first, count, 3);
    if (rank == 1) spoil(&p, j);
    lk_step   s = {.step = 3, .count = count, .total = j->batch, .rate = 1e-3};
    lk_status status = lk_program_train(p.rig.program, &s);
    CHECK(status == expected, "rank %d: %d, %s", rank, (int)status, lk_context_error(p.rig.context));
    CHECK(strstr(lk_context_error(p.rig.context), text), "rank %d: %s", rank, lk_context_error(p.rig.context));
    CHECK(lk_store_hash(p.rig.store) == before, "rank %d", rank);
    CHECK(train_step(&p, j, rank, 4) > 0);
    CHECK(lk_store_hash(p.rig.store) != before);
    dismiss_rank(&p);
    return check_result();
}

static void spoil_image(rank_program *p, const job *j)
{
    (void)j;
    ((float *)p->images)[0] = NAN;
}
static void spoil_label(rank_program *p, const job *j)
{
    (void)j;
    p->labels[1] = 77;
}

static int fail_loss(int rank, void *user)
{
    return fail_third(rank, user, spoil_image, LK_ENAN,
                      "step 3: the loss of rank 1 is nan: the update was skipped, and no state has changed");
}
static int fail_label(int rank, void *user)
{
    return fail_third(
        rank, user, spoil_label, LK_EINVAL,
        "rank 1: input \"y\", row 1 of the batch: label 77 is out of range: the loss has 10 classes, 0 to 9");
}

static void one_ranks_failure_stops_all_before_the_update(void)
{
    lk_spawn_result result;
    for (int micro_batches = 1; micro_batches <= 2; micro_batches++) {
        job j = job_of(3);
        j.odd = 0;
        j.micro_batches = micro_batches;
        j.use_group = use_queueing;
        CHECK(lk_spawn(j.world, fail_loss, &j, &result) == LK_OK, "%s", result.text);
        CHECK(lk_spawn(j.world, fail_label, &j, &result) == LK_OK, "%s", result.text);
    }
}

/* The last rank leaves its third step to the others: a collective of theirs fails on the device, and what follows it
 * there changes nothing. */
static int leave_third(int rank, void *user)
{
    const job *j = user;
    check_failures = 0;
    rank_program p = enrol_rank(j, rank);
    for (int step = 1; step <= 2; step++) train_step(&p, j, rank, step);
    uint64_t before = lk_store_hash(p.rig.store);
    (void)lk_comm_barrier(p.comm, NULL);
    if (rank == j->world - 1) {
        lk_comm_abort(queueing_find(p.comm)->inner, "the test asked for it");
    } else {
        int64_t first = first_row(j, j->batch, rank), count = first_row(j, j->batch, rank + 1) - first;
        lk_step s = {.step = 3, .count = count, .total = j->batch, .rate = 1e-3};
        CHECK(lk_program_train(p.rig.program, &s) < 0);
        CHECK(strstr(lk_context_error(p.rig.context), "the test asked for it"), "%s", lk_context_error(p.rig.context));
    }
    CHECK(lk_store_hash(p.rig.store) == before, "rank %d", rank);
    dismiss_rank(&p);
    return check_result();
}

static void a_collective_that_fails_leaves_the_last_complete_step(void)
{
    lk_spawn_result result;
    job             j = job_of(3);
    j.odd = 0;
    j.use_group = use_queueing;
    CHECK(lk_spawn(j.world, leave_third, &j, &result) == LK_OK, "%s", result.text);
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
    CHECK(strstr(lk_context_error(r.context), "backend queueing adds in a different order"), "%s",
          lk_context_error(r.context));
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
    RUN(slices_of_the_state);
    RUN(a_step_is_one_graph_with_its_collectives);
    RUN(steps_are_queued_ahead);
    RUN(one_ranks_failure_stops_all_before_the_update);
    RUN(a_collective_that_fails_leaves_the_last_complete_step);
    RUN(leaves_need_the_canonical_order);
    RUN(ranks_compare_what_they_queue);
    return check_result();
}
