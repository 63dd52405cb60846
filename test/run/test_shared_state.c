/* test_shared_state.c - ranks of a host that share their state: the bits of replicated training in every combination,
 * who owns what, how often all ranks wait, gradients and writes by hand, and what is left when a rank dies amid an
 * update.
 *
 * ctest: timeout 600, ranks 4, label slow */
#define _GNU_SOURCE
#include "comm/shm/shm.h"
#include "one_core.h"
#include "run/shared.h"
#include "shared_state.h"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the bits of replicated training ---- */

static void check_world(int world)
{
    job j = small_job(world);
    compare(j, "f32");
    j.clip = 0.05;
    compare(j, "clipping");
    j.bucket_bytes = 4096;
    j.micro_batches = 2;
    compare(j, "clipping, accumulation, small buckets");
    j = small_job(world);
    j.policy = LK_POLICY_BF16;
    j.clip = 0.05;
    compare(j, "bf16 with master copies, clipping");
    j = small_job(world);
    j.gradient_dtype = LK_BF16;
    j.clip = 0.05;
    compare(j, "gradients reduced in bf16, clipping");
    j.clip = 0;
    compare(j, "gradients reduced in bf16");
    j = small_job(world);
    j.real = LK_F64;
    j.optimizer = LK_SGD;
    j.odd = 2; /* some ranks have no sample then */
    compare(j, "f64, SGD, batches of 2");
    j = small_job(world);
    j.leaves = 8;
    j.clip = 0.05;
    compare(j, "leaves, clipping");
    j.one_by_one = true;
    compare(j, "leaves one by one, clipping");
    j = small_job(world);
    j.threads = 3;
    j.clip = 0.05;
    compare(j, "3 threads");
}

static void two_ranks_have_the_bits_of_replicated_training(void) { check_world(2); }
static void three_ranks_have_the_bits_of_replicated_training(void) { check_world(3); }
static void four_ranks_have_the_bits_of_replicated_training(void) { check_world(4); }

static void synchronised_batch_norm_has_the_bits_of_replicated_training(void)
{
    for (int world = 2; world <= 3; world++) {
        job j = small_job(world);
        j.model = "resnet20";
        j.side = 8;
        j.sync = true;
        j.steps = 3;
        compare(j, "synchronised batch norm");
        j.leaves = 4;
        compare(j, "synchronised batch norm over leaves");
    }
}

static void reproducible_training_has_one_result_at_any_number_of_ranks(void)
{
    uint64_t first = 0;
    for (int world = 1; world <= 4; world++) {
        report *r = new_report();
        job     j = small_job(world);
        j.leaves = 4;
        j.clip = 0.05;
        j.state = LK_STATE_SHARED;
        j.out = r;
        run_job(&j);
        if (world == 1) first = r->hashes[0];
        CHECK(first != 0 && r->hashes[world - 1] == first, "%d ranks", world);
        free_report(r);
    }
}

/* Where a core is free, buckets are reduced while backward runs. */
static int train_with_free_cores(int rank, void *user)
{
    const job *j = user;
    cpu_set_t  all;
    check_failures = 0;
    CPU_ZERO(&all);
    for (int i = 0; i < CPU_SETSIZE; i++) CPU_SET(i, &all);
    REQUIRE(sched_setaffinity(0, sizeof all, &all) == 0);
    rank_program p = enrol_rank(j, rank);
    if (j->state == LK_STATE_SHARED && !j->micro_batches)
        CHECK(!p.rig.program->shared->lazy, "this process has cores of its own, and one more than threads");
    for (int step = 1; step <= j->steps; step++) (void)train_rank(&p, j, rank, step);
    j->out->hashes[rank] = lk_store_hash(p.rig.store);
    dismiss_rank(&p);
    return check_result();
}

static void overlapping_reductions_have_the_same_bits(void)
{
    cpu_set_t before, one;
    REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
    if (CPU_COUNT(&before) < 2) {
        printf("     not on one core\n");
        return;
    }
    int cpu = 0;
    while (!CPU_ISSET(cpu, &before)) cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    for (int variant = 0; variant < 4; variant++) {
        report         *r = new_report();
        uint64_t        replicated = 0;
        lk_spawn_result result;
        job             j = small_job(2);
        j.out = r;
        j.bucket_bytes = 16384;
        j.clip = variant == 1 ? 0.05 : 0;
        j.gradient_dtype = variant == 2 ? LK_BF16 : LK_F32;
        j.leaves = variant == 3 ? 4 : 0;
        for (lk_state_mode mode = LK_STATE_REPLICATED; mode <= LK_STATE_SHARED; mode++) {
            j.state = mode;
            /* A rank that may use other cores than its parent has them for itself. */
            REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
            CHECK(lk_spawn(2, train_with_free_cores, &j, &result) == LK_OK, "%s", result.text);
            REQUIRE(sched_setaffinity(0, sizeof before, &before) == 0);
            if (mode == LK_STATE_REPLICATED) replicated = r->hashes[0];
            CHECK(r->hashes[0] == replicated && r->hashes[1] == replicated && replicated, "variant %d", variant);
        }
        free_report(r);
    }
}

/* ---- slices ---- */

/* Counts lines with two owners: by a table of lines, which knows nothing of how slices are made. */
static void own_bytes(int *line_owner, size_t lines, size_t from, size_t to, int rank, int *twice)
{
    for (size_t line = from / 64; line < (to + 63) / 64; line++) {
        REQUIRE(line < lines);
        if (line_owner[line] >= 0 && line_owner[line] != rank) ++*twice;
        line_owner[line] = rank;
    }
}

static void check_slices(lk_dtype real, lk_policy policy, int world, size_t bucket)
{
    enum { LINES = 1 << 16 };
    static int     stored[LINES], masters[LINES], moments[LINES];
    static uint8_t seen[1 << 20];
    lk_context    *context;
    lk_graph      *g;
    lk_plan       *plan;
    REQUIRE(lk_context_create(NULL, &context) == LK_OK && lk_graph_create(context, real, &g) == LK_OK);
    lk_tensor x = lk_input(g, "x", real, 2, ((int64_t[]){4, 37})), y = lk_input(g, "y", LK_I32, 1, ((int64_t[]){4}));
    lk_tensor h = lk_relu(lk_linear(x, "a", 131));
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config adam = LK_OPTIMIZER_CONFIG_INIT;
    h = lk_relu(lk_linear(h, "b", 1));
    h = lk_relu(lk_linear(h, "c", 700));
    config.loss = lk_cross_entropy(lk_linear(h, "d", 3), y);
    adam.kind = LK_ADAM;
    config.optimizer = &adam;
    config.policy = policy;
    config.parallel = (lk_parallel){.world = world, .bucket_bytes = bucket, .state = LK_STATE_SHARED};
    REQUIRE(lk_plan_create(g, &config, &plan) == LK_OK, "%s", lk_context_error(context));
    int twice = 0;
    memset(stored, -1, sizeof stored), memset(masters, -1, sizeof masters), memset(moments, -1, sizeof moments);
    memset(seen, 0, sizeof seen);
    size_t most = 0, least = SIZE_MAX, size = lk_dtype_size(real);
    for (int rank = 0; rank < world; rank++) {
        lk__plan_owned pieces[256];
        size_t         count = lk__plan_list_owned(plan, rank, pieces), own = 0;
        REQUIRE(count <= 256);
        for (size_t i = 0; i < count; i++) {
            const lk__plan_state *s = &plan->states[pieces[i].state];
            lk__plan_slices       slices = lk__plan_state_slices(plan, (size_t)pieces[i].state, LK__ARRAY_STORED);
            size_t                narrow = s->bytes / (s->wide_bytes / size), a = (size_t)pieces[i].first,
                   b = a + (size_t)pieces[i].count;
            own += b - a;
            own_bytes(stored, LINES, s->place.offset + a * narrow, s->place.offset + b * narrow, rank, &twice);
            if (s->master)
                own_bytes(masters, LINES, s->master_offset + a * size, s->master_offset + b * size, rank, &twice);
            for (int m = 0; m < s->moments; m++)
                own_bytes(moments, LINES, s->moment_offset[m] + a * size, s->moment_offset[m] + b * size, rank, &twice);
            for (size_t k = a; k < b; k++) {
                size_t    at = s->gradient_offset / size + k;
                lk__range owned;
                REQUIRE(at < sizeof seen);
                seen[at]++;
                CHECK(lk__slices_owner(&slices, (int64_t)k, &owned) == rank && owned.first == (int64_t)a &&
                      owned.end == (int64_t)b);
            }
        }
        if (own > most) most = own;
        if (own < least) least = own;
    }
    for (size_t i = 0; i < plan->graph->states_count; i++)
        for (size_t k = 0; k < plan->states[i].wide_bytes / size; k++)
            CHECK(seen[plan->states[i].gradient_offset / size + k] == 1, "state %zu, element %zu", i, k);
    CHECK(twice == 0, "%d lines have two owners", twice);
    /* Slices differ by padding alone: behind a tensor, and at the end of a bucket. */
    size_t padding = plan->buckets_count * (size_t)world * 32 + plan->graph->states_count * 32;
    CHECK(most - least <= padding, "%d ranks: slices of %zu to %zu elements", world, least, most);
    lk_plan_free(plan);
    lk_graph_free(g);
    lk_context_free(context);
}

static void every_element_has_one_owner_and_no_cache_line_two(void)
{
    for (int world = 2; world <= 7; world++)
        for (size_t bucket = 0; bucket <= 8192; bucket += 4096) {
            check_slices(LK_F32, LK_POLICY_RECORDED, world, bucket);
            check_slices(LK_F32, LK_POLICY_BF16, world, bucket);
            check_slices(LK_F64, LK_POLICY_RECORDED, world, bucket);
        }
}

/* ---- waits ---- */

static uint64_t waits_so_far(const lk_comm *comm) { return ((const lk__shm *)comm->state)->number; }

static int count_waits(int rank, void *user)
{
    job j = *(const job *)user;
    check_failures = 0;
    keep_one_core();
    for (int variant = 0; variant < 3; variant++) {
        j.clip = variant == 1 ? 0.05 : 0;
        j.bucket_bytes = 4096; /* several buckets */
        j.leaves = variant == 2 ? 8 : 0;
        rank_program p = enrol_rank(&j, rank);
        (void)train_rank(&p, &j, rank, 1);
        uint64_t before = waits_so_far(p.comm);
        for (int step = 2; step <= 4; step++) (void)train_rank(&p, &j, rank, step);
        uint64_t each = (waits_so_far(p.comm) - before) / 3;
        CHECK(each == (variant == 1 ? 3 : 2), "variant %d: %d waits for all ranks in a step", variant, (int)each);
        dismiss_rank(&p);
    }
    return check_result();
}

static void a_step_waits_twice_for_all_ranks_and_with_clipping_three_times(void)
{
    lk_spawn_result result;
    job             j = small_job(3);
    j.state = LK_STATE_SHARED;
    CHECK(lk_spawn(3, count_waits, &j, &result) == LK_OK, "%s", result.text);
}

/* ---- by hand ---- */

static void a_hand_written_loop_has_the_bits_of_replicated_training(void)
{
    for (int variant = 0; variant < 4; variant++) {
        report         *r[2] = {new_report(), new_report()};
        lk_spawn_result result;
        job             j = small_job(variant == 1 ? 3 : 2);
        j.clip = variant == 2 ? 0.05 : 0;
        j.bucket_bytes = 16384;
        j.gradient_dtype = variant == 3 ? LK_BF16 : LK_F32;
        for (int i = 0; i < 2; i++) {
            j.state = i ? LK_STATE_SHARED : LK_STATE_REPLICATED;
            j.out = r[i];
            CHECK(lk_spawn(j.world, loop_by_hand, &j, &result) == LK_OK, "%s", result.text);
        }
        CHECK(r[0]->elements > 0 && r[0]->elements == r[1]->elements &&
                  memcmp(r[0]->gradient, r[1]->gradient, (size_t)r[0]->elements * sizeof(double)) == 0,
              "variant %d: the gradients of the first step differ", variant);
        for (int i = 0; i < j.world; i++)
            CHECK(r[1]->hashes[i] == r[0]->hashes[0] && r[0]->hashes[0], "variant %d: the state differs", variant);
        free_report(r[0]);
        free_report(r[1]);
    }
}

/* ---- writes ---- */

static int write_together(int rank, void *user)
{
    const job *j = user;
    check_failures = 0;
    rank_program p = enrol_rank(j, rank);
    lk_state     s;
    float        values[10], read[10];
    REQUIRE(lk_store_find(p.rig.store, "fc2.bias", &s) && state_elements(&s) == 10);
    for (int i = 0; i < 10; i++) values[i] = (float)i;
    REQUIRE(lk_store_write(p.rig.store, s.name, LK_STATE_VALUE, 0, 10, values, sizeof values) == LK_OK, "%s",
            lk_context_error(p.rig.context));
    REQUIRE(lk_store_read(p.rig.store, s.name, LK_STATE_VALUE, 0, 10, read, sizeof read) == LK_OK);
    CHECK(memcmp(read, values, sizeof read) == 0, "rank %d", rank);
    if (rank == 1) values[3] = -1;
    CHECK(lk_store_write(p.rig.store, s.name, LK_STATE_VALUE, 0, 10, values, sizeof values) == LK_EMISMATCH);
    CHECK(strstr(lk_context_error(p.rig.context), "write different values"), "%s", lk_context_error(p.rig.context));
    REQUIRE(lk_store_read(p.rig.store, s.name, LK_STATE_VALUE, 3, 1, read, sizeof *read) == LK_OK);
    CHECK(read[0] == 3, "a refused write changed the state");
    /* By one rank alone, while the others train. */
    lk_status status = rank == 0 ? lk_store_write(p.rig.store, s.name, LK_STATE_VALUE, 0, 10, values, sizeof values)
                                 : lk_program_train(p.rig.program, &(lk_step){.step = 1, .count = 2, .total = 4});
    CHECK(status == LK_EMISMATCH, "rank %d: %d", rank, (int)status);
    dismiss_rank(&p);
    return check_result();
}

static void a_write_is_by_all_ranks_and_the_same(void)
{
    lk_spawn_result result;
    job             j = small_job(2);
    j.state = LK_STATE_SHARED;
    CHECK(lk_spawn(2, write_together, &j, &result) == LK_OK, "%s", result.text);
}

static int refuse(int rank, void *user)
{
    job j = *(const job *)user;
    check_failures = 0;
    rank_program p = enrol_rank(&j, rank);
    lk_store    *store;
    lk_program  *program;
    lk_comm     *other;
    /* A private store for a plan that shares is refused; one call creates the store of every plan. */
    CHECK(lk_store_create(p.rig.plan, 1, &store) == LK_EINVAL && !store);
    CHECK(strstr(lk_context_error(p.rig.context), "lk_store_create_shared"), "%s", lk_context_error(p.rig.context));
    REQUIRE(lk_comm_split(p.comm, 0, rank, &other) == LK_OK);
    CHECK(lk_program_create(p.rig.plan, p.rig.store, other, &program) == LK_EMISMATCH);
    lk_comm_free(other);
    dismiss_rank(&p);
    j.state = LK_STATE_REPLICATED;
    p = enrol_rank(&j, rank);
    REQUIRE(lk_store_create_shared(p.rig.plan, 1, p.comm, &store) == LK_OK, "%s", lk_context_error(p.rig.context));
    CHECK(lk_program_create(p.rig.plan, store, p.comm, &program) == LK_OK, "%s", lk_context_error(p.rig.context));
    lk_program_free(program);
    lk_store_free(store);
    dismiss_rank(&p);
    return check_result();
}

static int refuse_tcp(int rank, void *user)
{
    job j = *(const job *)user;
    check_failures = 0;
    rig       r = rig_open(LK_F32, 1);
    lk_comm  *comm = join_group(r.context, "tcp");
    lk_tensor x = lk_input(r.graph, "x", LK_F32, 2, ((int64_t[]){4, 8})),
              y = lk_input(r.graph, "y", LK_I32, 1, ((int64_t[]){4}));
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config adam = LK_OPTIMIZER_CONFIG_INIT;
    config.loss = lk_cross_entropy(lk_linear(x, "a", 5), y);
    config.optimizer = &adam;
    config.parallel = (lk_parallel){.world = j.world, .rank = rank, .state = LK_STATE_SHARED};
    REQUIRE(lk_plan_create(r.graph, &config, &r.plan) == LK_OK);
    CHECK(lk_store_create_shared(r.plan, 1, comm, &r.store) == LK_EUNSUPPORTED && !r.store);
    CHECK(strstr(lk_context_error(r.context), "do not share memory"), "%s", lk_context_error(r.context));
    lk_plan_free(r.plan);
    lk_graph_free(r.graph);
    lk_comm_free(comm);
    lk_context_free(r.context);
    return check_result();
}

/* A device whose memory is not the host's. */
static void refuse_device(void)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_context       *context;
    lk_graph         *g;
    lk_plan          *plan;
    lk_plan_config    planning = LK_PLAN_CONFIG_INIT;
    config.device = "guarded";
    REQUIRE(lk_context_create(&config, &context) == LK_OK && lk_graph_create(context, LK_F32, &g) == LK_OK);
    lk_tensor x = lk_input(g, "x", LK_F32, 2, ((int64_t[]){4, 8}));
    planning.loss = lk_mse(lk_linear(x, "a", 8), x);
    planning.parallel = (lk_parallel){.world = 2, .state = LK_STATE_SHARED};
    CHECK(lk_plan_create(g, &planning, &plan) == LK_EUNSUPPORTED && !plan);
    CHECK(strstr(lk_context_error(context), "--state replicated"), "%s", lk_context_error(context));
    planning.parallel.state = LK_STATE_AUTO;
    CHECK(lk_plan_create(g, &planning, &plan) == LK_OK && lk_plan_state(plan) == LK_STATE_REPLICATED);
    lk_plan_free(plan);
    lk_graph_free(g);
    lk_context_free(context);
}

static void what_cannot_be_shared_is_refused(void)
{
    refuse_device();
    lk_spawn_result result;
    job             j = small_job(2);
    j.state = LK_STATE_SHARED;
    CHECK(lk_spawn(2, refuse, &j, &result) == LK_OK, "%s", result.text);
    CHECK(lk_spawn(2, refuse_tcp, &j, &result) == LK_OK, "%s", result.text);
}

/* ---- a rank that dies amid an update ---- */

/* Rank 1 cannot touch the moments, which only the update reads, so it dies there; rank 0 has updated its slices by
 * then, or is about to. */
static void die_or_survive(const job *j, int rank, int *survived)
{
    rank_program p = enrol_rank(j, rank);
    lk_state     s;
    float        value;
    (void)train_rank(&p, j, rank, 1);
    run_sections(&p, j, rank, 2);
    REQUIRE(lk_store_find(p.rig.store, "fc1.weight", &s));
    if (rank == 1) {
        size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = state_bytes(&s);
        char  *from = (char *)(((uintptr_t)s.moment[0] + page - 1) / page * page);
        REQUIRE(mprotect(from, (bytes - page) / page * page, PROT_NONE) == 0);
        signal(SIGSEGV, SIG_DFL);
        (void)lk_program_run(p.rig.program, LK_UPDATE);
        _exit(3);
    }
    lk_status status = lk_program_run(p.rig.program, LK_UPDATE);
    CHECK(status < 0, "the update succeeded without rank 1");
    CHECK(strstr(lk_context_error(p.rig.context), "rank 1"), "%s", lk_context_error(p.rig.context));
    CHECK(lk_store_read(p.rig.store, s.name, LK_STATE_VALUE, 0, 1, &value, sizeof value) == status);
    CHECK(strstr(lk_context_error(p.rig.context), "partly updated"), "%s", lk_context_error(p.rig.context));
    CHECK(lk_store_hash(p.rig.store) == 0 && lk_program_run(p.rig.program, LK_EVALUATE) == status);
    CHECK(lk_store_write(p.rig.store, s.name, LK_STATE_VALUE, 0, 1, &value, sizeof value) == status);
    CHECK(lk_program_run(p.rig.program, LK_FORWARD) == status);
    *survived = check_failures == 0;
    dismiss_rank(&p);
}

/* Rank 0, which writes for all, cannot write to the second half. */
static void die_in_a_write(const job *j, int rank, int *survived)
{
    rank_program p = enrol_rank(j, rank);
    lk_state     s;
    REQUIRE(lk_store_find(p.rig.store, "fc1.weight", &s));
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = state_bytes(&s);
    void  *values = calloc(1, bytes);
    REQUIRE(values);
    if (rank == 0) {
        char *from = (char *)(((uintptr_t)s.data + bytes / 2 + page - 1) / page * page);
        REQUIRE(mprotect(from, ((uintptr_t)s.data + bytes - (uintptr_t)from) / page * page, PROT_READ) == 0);
        signal(SIGSEGV, SIG_DFL);
    }
    lk_status status = lk_store_write(p.rig.store, s.name, LK_STATE_VALUE, 0, state_elements(&s), values, bytes);
    if (rank == 0) _exit(3);
    CHECK(status < 0 && strstr(lk_context_error(p.rig.context), "rank 0"), "%s", lk_context_error(p.rig.context));
    CHECK(lk_store_hash(p.rig.store) == 0 && strstr(lk_context_error(p.rig.context), "partly updated"), "%s",
          lk_context_error(p.rig.context));
    *survived = check_failures == 0;
    free(values);
    dismiss_rank(&p);
}

static void run_two_of_which_one_dies(void (*run)(const job *j, int rank, int *survived), int victim)
{
    job  j = small_job(2);
    int *survived = mmap(NULL, sizeof *survived, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char name[64];
    j.state = LK_STATE_SHARED;
    REQUIRE(survived != MAP_FAILED);
    snprintf(name, sizeof name, "shared-%ld-%d", (long)getpid(), victim);
    setenv("LOCKSTEP_JOB", name, 1);
    setenv("WORLD_SIZE", "2", 1);
    pid_t ranks[2];
    for (int i = 0; i < 2; i++) {
        REQUIRE((ranks[i] = fork()) >= 0);
        if (ranks[i]) continue;
        check_failures = 0;
        setenv("RANK", i ? "1" : "0", 1);
        run(&j, i, survived);
        _exit(check_result());
    }
    int status[2];
    for (int i = 0; i < 2; i++) REQUIRE(waitpid(ranks[i], &status[i], 0) == ranks[i]);
    CHECK(WIFSIGNALED(status[victim]) || (SANITIZED && WEXITSTATUS(status[victim]) != 3), "rank %d did not die: %x",
          victim, status[victim]);
    CHECK(WIFEXITED(status[1 - victim]) && WEXITSTATUS(status[1 - victim]) == 0 && *survived, "rank %d: %x", 1 - victim,
          status[1 - victim]);
    unsetenv("RANK"), unsetenv("WORLD_SIZE"), unsetenv("LOCKSTEP_JOB");
    munmap(survived, sizeof *survived);
}

static void a_rank_that_dies_amid_an_update_leaves_no_state(void) { run_two_of_which_one_dies(die_or_survive, 1); }
static void a_rank_that_dies_amid_a_write_leaves_no_state(void) { run_two_of_which_one_dies(die_in_a_write, 0); }

int main(void)
{
    RUN(every_element_has_one_owner_and_no_cache_line_two);
    RUN(two_ranks_have_the_bits_of_replicated_training);
    RUN(three_ranks_have_the_bits_of_replicated_training);
    RUN(four_ranks_have_the_bits_of_replicated_training);
    RUN(synchronised_batch_norm_has_the_bits_of_replicated_training);
    RUN(reproducible_training_has_one_result_at_any_number_of_ranks);
    RUN(overlapping_reductions_have_the_same_bits);
    RUN(a_step_waits_twice_for_all_ranks_and_with_clipping_three_times);
    RUN(a_hand_written_loop_has_the_bits_of_replicated_training);
    RUN(a_write_is_by_all_ranks_and_the_same);
    RUN(what_cannot_be_shared_is_refused);
    RUN(a_rank_that_dies_amid_an_update_leaves_no_state);
    RUN(a_rank_that_dies_amid_a_write_leaves_no_state);
    return check_result();
}
