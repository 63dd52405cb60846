/* test_shared_hosts.c - ranks on several simulated hosts, each of which has one copy of the state: the bits of
 * replicated training on one host, how often ranks wait, gradients and writes by hand, comparison of the hosts' copies,
 * which hosts are refused, and what is left when a rank dies amid an update.
 *
 * ctest: timeout 600, ranks 8, label slow */
#define _GNU_SOURCE
#include "comm/mixed.h"
#include "comm/net/net.h"
#include "comm/shm/shm.h"
#include "run/shared.h"
#include "shared_state.h"

#include <signal.h>
#include <sys/wait.h>

static job hosts_job(int hosts, int each)
{
    job j = small_job(hosts * each);
    j.each = each;
    return j;
}

/* ---- the bits of replicated training ---- */

static void two_hosts_of_two_ranks_have_the_bits_of_replicated_training(void)
{
    job j = hosts_job(2, 2);
    compare(j, "f32");
    j.clip = 0.05;
    compare(j, "clipping");
    j.bucket_bytes = 4096;
    j.micro_batches = 2;
    compare(j, "clipping, accumulation, small buckets");
    j = hosts_job(2, 2);
    j.policy = LK_POLICY_BF16;
    j.clip = 0.05;
    compare(j, "bf16 with master copies, clipping");
    j = hosts_job(2, 2);
    j.gradient_dtype = LK_BF16;
    compare(j, "gradients reduced in bf16");
    j.clip = 0.05;
    j.bucket_bytes = 16384;
    compare(j, "gradients reduced in bf16, clipping");
    j = hosts_job(2, 2);
    j.real = LK_F64;
    j.optimizer = LK_SGD;
    j.odd = 2; /* some ranks have no sample then */
    compare(j, "f64, SGD, batches of 2");
    j = hosts_job(2, 2);
    j.leaves = 8;
    j.clip = 0.05;
    compare(j, "leaves, clipping");
    j.one_by_one = true;
    compare(j, "leaves one by one, clipping");
    j = hosts_job(2, 2);
    j.threads = 3;
    j.clip = 0.05;
    compare(j, "3 threads");
}

static void three_hosts_have_the_bits_of_replicated_training(void)
{
    job j = hosts_job(3, 2);
    j.clip = 0.05;
    compare(j, "3 hosts, clipping");
    j.clip = 0;
    j.gradient_dtype = LK_BF16;
    compare(j, "3 hosts, gradients reduced in bf16");
    j.gradient_dtype = LK_F32;
    j.leaves = 12; /* four of each host, two of each rank */
    compare(j, "3 hosts, 12 leaves");
}

/* Three ranks are no subtree of the order over ranks, but four or eight leaves of a host are one of that over
 * leaves. */
static void hosts_of_three_ranks_have_the_bits_of_replicated_training_over_leaves(void)
{
    for (int leaves = 8; leaves <= 16; leaves += 8) {
        job j = hosts_job(2, 3);
        j.leaves = leaves;
        compare(j, "2 × 3 ranks, leaves");
        j.clip = 0.05;
        j.bucket_bytes = 16384;
        compare(j, "2 × 3 ranks, leaves, clipping, small buckets");
        j.one_by_one = true;
        compare(j, "2 × 3 ranks, leaves one by one, clipping");
    }
}

/* Every node of every host has a copy of the parameters. */
static void hosts_with_two_memory_nodes_have_the_bits_of_replicated_training(void)
{
    job j = hosts_job(2, 2);
    setenv("LOCKSTEP_MEMORY_NODES", "2", 1);
    j.policy = LK_POLICY_BF16;
    j.clip = 0.05;
    compare(j, "2 memory nodes, bf16 with master copies, clipping");
    j = hosts_job(2, 3);
    j.leaves = 8;
    compare(j, "2 memory nodes, 2 × 3 ranks, leaves");
    j = hosts_job(2, 2);
    j.model = "resnet20"; /* with shared buffers */
    j.side = 8;
    j.sync = true;
    j.steps = 3;
    compare(j, "2 memory nodes, synchronised batch norm");
    unsetenv("LOCKSTEP_MEMORY_NODES");
}

static int train_on_uneven_nodes(int rank, void *user)
{
    setenv("LOCKSTEP_MEMORY_NODES", rank < 2 ? "1" : "2", 1);
    return train_as(rank, user);
}

static void hosts_may_have_different_numbers_of_memory_nodes(void)
{
    lk_spawn_result result;
    report         *r = new_report();
    job             j = hosts_job(2, 2);
    j.state = LK_STATE_SHARED;
    j.out = r;
    CHECK(lk_spawn(j.world, train_on_uneven_nodes, &j, &result) == LK_OK, "%s", result.text);
    for (int i = 0; i < j.world; i++) CHECK(r->hashes[i] == r->hashes[0] && r->hashes[0], "rank %d", i);
    free_report(r);
}

static void synchronised_batch_norm_has_the_bits_of_replicated_training(void)
{
    job j = hosts_job(2, 2);
    j.model = "resnet20";
    j.side = 8;
    j.sync = true;
    j.steps = 3;
    compare(j, "synchronised batch norm");
    j.leaves = 4;
    compare(j, "synchronised batch norm over leaves");
}

static void reproducible_training_has_one_result_on_any_hosts(void)
{
    static const int hosts[][2] = {{1, 1}, {1, 3}, {2, 2}, {2, 3}, {4, 2}};
    uint64_t         first = 0;
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        report *r = new_report();
        job     j = hosts_job(hosts[i][0], hosts[i][1]);
        if (hosts[i][0] == 1) j.each = 0;
        j.leaves = 8;
        j.clip = 0.05;
        j.state = LK_STATE_SHARED;
        j.out = r;
        run_job(&j);
        if (i == 0) first = r->hashes[0];
        CHECK(first != 0 && r->hashes[j.world - 1] == first && r->hashes[0] == first, "%d × %d ranks", hosts[i][0],
              hosts[i][1]);
        free_report(r);
    }
}

/* ---- waits ---- */

/* So far: of all ranks of this host, and of all hosts. */
typedef struct waits {
    uint64_t host, all;
} waits;

static waits waits_so_far(const lk_comm *comm)
{
    const lk__comm_mixed *m = comm->state;
    return (waits){((const lk__shm *)m->groups[LK__LOCAL]->state)->number,
                   ((const lk__net *)m->groups[LK__FLAT]->state)->number};
}

/* Besides the exchange of a bucket, which waits for all: the reports, for all; the norm and the update, for the
 * host. */
static int count_waits(int rank, void *user)
{
    job j = *(const job *)user;
    check_failures = 0;
    for (int variant = 0; variant < 2; variant++) {
        j.clip = variant == 1 ? 0.05 : 0;
        j.bucket_bytes = 4096; /* several buckets */
        rank_program p = enrol_rank(&j, rank);
        uint64_t     buckets = p.rig.plan->buckets_count;
        (void)train_rank(&p, &j, rank, 1);
        waits before = waits_so_far(p.comm);
        for (int step = 2; step <= 4; step++) (void)train_rank(&p, &j, rank, step);
        waits after = waits_so_far(p.comm);
        bool  overlaps = !j.leaves; /* or the exchange is behind the reports */
        CHECK(buckets > 1 && (after.all - before.all) / 3 == (overlaps ? buckets : 0) + 1,
              "variant %d, %d leaves: %d waits for all hosts", variant, j.leaves, (int)(after.all - before.all) / 3);
        /* Where leaves are no subtrees of ranks, one more with clipping. */
        CHECK((after.host - before.host) / 3 == (overlaps ? buckets : (uint64_t)variant) + 1 + (uint64_t)variant,
              "variant %d, %d leaves: %d waits for this host", variant, j.leaves, (int)(after.host - before.host) / 3);
        dismiss_rank(&p);
    }
    return check_result();
}

static void a_step_waits_once_for_all_hosts_and_once_for_its_own_besides_the_exchange(void)
{
    lk_spawn_result result;
    job             j = hosts_job(2, 2);
    j.state = LK_STATE_SHARED;
    CHECK(lk_spawn(j.world, count_waits, &j, &result) == LK_OK, "%s", result.text);
    j = hosts_job(2, 3);
    j.state = LK_STATE_SHARED;
    j.leaves = 8;
    CHECK(lk_spawn(j.world, count_waits, &j, &result) == LK_OK, "%s", result.text);
}

/* ---- by hand ---- */

static void a_hand_written_loop_has_the_bits_of_replicated_training(void)
{
    for (int variant = 0; variant < 3; variant++) {
        report         *r[2] = {new_report(), new_report()};
        lk_spawn_result result;
        job             j = hosts_job(2, 2);
        j.clip = variant == 1 ? 0.05 : 0;
        j.bucket_bytes = 16384;
        j.gradient_dtype = variant == 2 ? LK_BF16 : LK_F32;
        for (int i = 0; i < 2; i++) {
            j.state = i ? LK_STATE_SHARED : LK_STATE_REPLICATED;
            j.each = i ? 2 : 0;
            j.out = r[i];
            CHECK(lk_spawn(j.world, loop_by_hand, &j, &result) == LK_OK, "%s", result.text);
        }
        CHECK(r[0]->elements > 0 && r[0]->elements == r[1]->elements &&
                  memcmp(r[0]->gradient, r[1]->gradient, (size_t)r[0]->elements * sizeof(double)) == 0,
              "variant %d: the gradients of the first step differ", variant);
        for (int i = 0; i < j.world; i++)
            CHECK(r[1]->hashes[i] == r[0]->hashes[0] && r[0]->hashes[0], "variant %d: rank %d's state differs", variant,
                  i);
        free_report(r[0]);
        free_report(r[1]);
    }
}

/* Gradients of leaves that are no subtrees of ranks are read between LK_SYNC and LK_UPDATE, by one rank of a host
 * alone. */
static int read_leaves(int rank, void *user)
{
    const job *j = user;
    check_failures = 0;
    rank_program p = enrol_rank(j, rank);
    lk_step      s = {.step = 1, .total = j->batch, .rate = 1e-3};
    int64_t      first = first_row(j, j->batch, rank);
    s.count = first_row(j, j->batch, rank + 1) - first;
    fill_rows(p.images, j->real, p.labels, j->side, first, s.count, 1);
    REQUIRE(lk_program_compute(p.rig.program, &s) == LK_OK, "%s", lk_context_error(p.rig.context));
    if (rank == j->world - 1) keep_gradient(&p, j, j->batch, j->out);
    REQUIRE(lk_program_run(p.rig.program, LK_UPDATE) == LK_OK, "%s", lk_context_error(p.rig.context));
    j->out->hashes[rank] = lk_store_hash(p.rig.store);
    dismiss_rank(&p);
    return check_result();
}

static void gradients_over_leaves_are_read_on_any_rank(void)
{
    report         *r[2] = {new_report(), new_report()};
    lk_spawn_result result;
    for (int i = 0; i < 2; i++) {
        job j = hosts_job(2, 3);
        j.leaves = 8;
        j.state = i ? LK_STATE_SHARED : LK_STATE_REPLICATED;
        j.each = i ? 3 : 0;
        j.out = r[i];
        CHECK(lk_spawn(j.world, read_leaves, &j, &result) == LK_OK, "%s", result.text);
    }
    CHECK(r[0]->elements > 0 && memcmp(r[0]->gradient, r[1]->gradient, (size_t)r[0]->elements * sizeof(double)) == 0);
    for (int i = 0; i < 6; i++) CHECK(r[1]->hashes[i] == r[0]->hashes[0] && r[0]->hashes[0], "rank %d", i);
    free_report(r[0]);
    free_report(r[1]);
}

/* ---- the hosts' copies ---- */

static int write_and_compare(int rank, void *user)
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
    CHECK(memcmp(s.data, values, sizeof values) == 0, "rank %d", rank);
    /* A host that writes something else. */
    if (rank >= 2) values[3] = -1;
    CHECK(lk_store_write(p.rig.store, s.name, LK_STATE_VALUE, 0, 10, values, sizeof values) == LK_EMISMATCH);
    REQUIRE(lk_store_read(p.rig.store, s.name, LK_STATE_VALUE, 3, 1, read, sizeof *read) == LK_OK);
    CHECK(read[0] == 3, "a refused write changed the state");
    /* What rank 0 loads alone is on all hosts behind a broadcast: values, and optimizer state. */
    for (int i = 0; i < 10; i++) values[i] = (float)(i * i);
    REQUIRE(lk_comm_barrier(p.comm, NULL) == LK_OK);
    if (rank == 0) {
        p.rig.store->alone = true;
        for (int part = LK_STATE_VALUE; part <= LK_STATE_MOMENT_1; part++)
            REQUIRE(lk_store_write(p.rig.store, s.name, part, 0, 10, values, sizeof values) == LK_OK);
        p.rig.store->alone = false;
    }
    REQUIRE(lk_program_broadcast(p.rig.program) == LK_OK, "%s", lk_context_error(p.rig.context));
    for (int part = LK_STATE_VALUE; part <= LK_STATE_MOMENT_1; part++) {
        REQUIRE(lk_store_read(p.rig.store, s.name, part, 0, 10, read, sizeof read) == LK_OK);
        CHECK(memcmp(read, values, sizeof read) == 0, "rank %d, part %d", rank, part);
    }
    CHECK(lk_program_verify(p.rig.program, 7) == LK_OK, "%s", lk_context_error(p.rig.context));
    /* One host's copy changes behind the library's back. */
    REQUIRE(lk_comm_barrier(p.comm, NULL) == LK_OK);
    if (rank == 3) ((float *)s.data)[4] += 1;
    REQUIRE(lk_comm_barrier(p.comm, NULL) == LK_OK);
    CHECK(lk_program_verify(p.rig.program, 8) == LK_EMISMATCH);
    const char *text = lk_context_error(p.rig.context);
    CHECK(strstr(text, "at step 8") && strstr(text, "\"fc2.bias\" differs from rank 0's") &&
              (strstr(text, "rank 2's") || strstr(text, "rank 3's")), /* of two memory nodes the second one's copy */
          "%s", text);
    dismiss_rank(&p);
    return check_result();
}

static void writes_broadcasts_and_comparisons_are_of_all_hosts(void)
{
    lk_spawn_result result;
    job             j = hosts_job(2, 2);
    j.state = LK_STATE_SHARED;
    CHECK(lk_spawn(j.world, write_and_compare, &j, &result) == LK_OK, "%s", result.text);
}

/* ---- which hosts cannot ---- */

typedef struct placement {
    int         world, hosts[6];
    int         planned; /* hosts of the plan */
    lk_status   status;  /* of the store */
    const char *text;    /* of its error */
} placement;

static int refuse_hosts(int rank, void *user)
{
    const placement *at = user;
    check_failures = 0;
    rig                 r = rig_open(LK_F32, 1);
    lk_comm            *comm = join_hosts(r.context, at->hosts[rank]);
    lk_tensor           x = lk_input(r.graph, "x", LK_F32, 2, ((int64_t[]){4, 8}));
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config adam = LK_OPTIMIZER_CONFIG_INIT;
    config.loss = lk_mse(lk_linear(x, "a", 8), x);
    config.optimizer = &adam;
    config.parallel = (lk_parallel){.world = at->world, .rank = rank, .state = LK_STATE_SHARED, .hosts = at->planned};
    REQUIRE(lk_plan_create(r.graph, &config, &r.plan) == LK_OK, "%s", lk_context_error(r.context));
    CHECK(lk_store_create_shared(r.plan, 1, comm, &r.store) == at->status && !r.store == (at->status < 0));
    CHECK(at->status >= 0 || strstr(lk_context_error(r.context), at->text), "%s", lk_context_error(r.context));
    CHECK((lk_comm_hosts(comm) > 0) == (at->status != LK_EUNSUPPORTED));
    lk_store_free(r.store);
    lk_plan_free(r.plan);
    lk_graph_free(r.graph);
    lk_comm_free(comm);
    lk_context_free(r.context);
    return check_result();
}

static void check_plan(int world, int hosts, int leaves, const char *text)
{
    lk_context         *context;
    lk_graph           *g;
    lk_plan            *plan;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config adam = LK_OPTIMIZER_CONFIG_INIT;
    REQUIRE(lk_context_create(NULL, &context) == LK_OK && lk_graph_create(context, LK_F32, &g) == LK_OK);
    lk_tensor x = lk_input(g, "x", LK_F32, 2, ((int64_t[]){16, 8}));
    config.loss = lk_mse(lk_linear(x, "a", 8), x);
    config.optimizer = &adam;
    config.parallel = (lk_parallel){.world = world, .state = LK_STATE_SHARED, .hosts = hosts, .leaves = leaves};
    lk_status status = lk_plan_create(g, &config, &plan);
    CHECK(text ? status == LK_EUNSUPPORTED && strstr(lk_context_error(context), text) : status == LK_OK,
          "%d ranks on %d hosts, %d leaves: %s", world, hosts, leaves, lk_context_error(context));
    if (status >= 0) CHECK(lk_plan_state(plan) == LK_STATE_SHARED && lk__plan_owners(plan) == world / hosts);
    lk_plan_free(plan);
    lk_graph_free(g);
    lk_context_free(context);
}

static void hosts_that_cannot_share_are_refused(void)
{
    static const placement all[] = {
        {3, {0, 0, 1}, 1, LK_EUNSUPPORTED, "different numbers of ranks"},
        {4, {0, 1, 0, 1}, 2, LK_EUNSUPPORTED, "not numbered consecutively on each host"},
        {2, {0, 1}, 1, LK_EUNSUPPORTED, "are each on a different host"},
        {4, {0, 0, 1, 1}, 1, LK_EMISMATCH, "lk_comm_hosts"},
        {4, {0, 0, 0, 0}, 2, LK_EMISMATCH, "are on 1"},
        {4, {1, 1, 0, 0}, 2, LK_OK, NULL},
        {3, {0, 0, 0}, 0, LK_OK, NULL},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        lk_spawn_result result;
        placement       at = all[i];
        CHECK(lk_spawn(at.world, refuse_hosts, &at, &result) == LK_OK, "placement %zu: %s", i, result.text);
    }
    check_plan(5, 2, 0, "different numbers");
    check_plan(4, 4, 0, "are each on a different host");
    check_plan(6, 2, 0, "3 on each host");
    check_plan(6, 2, 6, "do not hold a complete subtree of the 6 leaves");
    check_plan(6, 2, 8, NULL);
    check_plan(6, 3, 0, NULL);
    check_plan(16, 2, 0, NULL);
    check_plan(16, 2, 16, NULL);
}

/* ---- a rank that dies amid an update ---- */

/* Rank 3, on the second host, cannot touch the moments, which only the update reads, so it dies there. */
static void die_or_survive(const job *j, int rank, int *survived)
{
    rank_program p = enrol_rank(j, rank);
    lk_state     s;
    float        value;
    (void)train_rank(&p, j, rank, 1);
    run_sections(&p, j, rank, 2);
    REQUIRE(lk_store_find(p.rig.store, "fc1.weight", &s));
    if (rank == 3) {
        size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = state_bytes(&s);
        char  *from = (char *)(((uintptr_t)s.moment[0] + page - 1) / page * page);
        REQUIRE(mprotect(from, (bytes - page) / page * page, PROT_NONE) == 0);
        signal(SIGSEGV, SIG_DFL);
        (void)lk_program_run(p.rig.program, LK_UPDATE);
        _exit(3);
    }
    /* The other host has a whole new state, unless it heard of the failure before its ranks were done. It fails at its
     * next collective. */
    lk_status updated = lk_program_run(p.rig.program, LK_UPDATE), status = updated;
    uint64_t  hash = lk_store_hash(p.rig.store);
    if (rank == 2) CHECK(updated < 0, "the update succeeded without rank 3");
    if (updated >= 0) status = lk_program_train(p.rig.program, &(lk_step){.step = 3, .count = 1, .total = 4});
    CHECK(status < 0 && strstr(lk_context_error(p.rig.context), "rank 3 of 4"), "rank %d: %s", rank,
          lk_context_error(p.rig.context));
    if (updated < 0) {
        CHECK(hash == 0 && lk_store_read(p.rig.store, s.name, LK_STATE_VALUE, 0, 1, &value, sizeof value) == updated);
        CHECK(strstr(lk_context_error(p.rig.context), "partly updated"), "%s", lk_context_error(p.rig.context));
        CHECK(lk_program_run(p.rig.program, LK_EVALUATE) == updated &&
              lk_program_run(p.rig.program, LK_FORWARD) == updated);
    } else {
        CHECK(hash == j->out->hashes[0] && lk_store_hash(p.rig.store) == hash,
              "rank %d: the state is not that of step 2", rank);
    }
    survived[rank] = check_failures == 0;
    dismiss_rank(&p);
}

static int train_two_steps(int rank, void *user)
{
    const job   *j = user;
    rank_program p = enrol_rank(j, rank);
    check_failures = 0;
    (void)train_rank(&p, j, rank, 1);
    run_sections(&p, j, rank, 2);
    REQUIRE(lk_program_run(p.rig.program, LK_UPDATE) == LK_OK);
    j->out->hashes[rank] = lk_store_hash(p.rig.store);
    dismiss_rank(&p);
    return check_result();
}

typedef void member(const job *j, int rank, int *survived);

/* Each rank in a process of its own, of which one dies. */
static void run_members(const job *j, member *run, int victim)
{
    char name[64], number[16];
    int *survived =
        mmap(NULL, MOST_RANKS * sizeof *survived, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t ranks[MOST_RANKS];
    REQUIRE(survived != MAP_FAILED);
    snprintf(name, sizeof name, "hosts-%ld-%d", (long)getpid(), victim);
    setenv("LOCKSTEP_JOB", name, 1);
    snprintf(number, sizeof number, "%d", j->world);
    setenv("WORLD_SIZE", number, 1);
    for (int i = 0; i < j->world; i++) {
        REQUIRE((ranks[i] = fork()) >= 0);
        if (ranks[i]) continue;
        check_failures = 0;
        snprintf(number, sizeof number, "%d", i);
        setenv("RANK", number, 1);
        run(j, i, survived);
        _exit(check_result());
    }
    for (int i = 0; i < j->world; i++) {
        int status;
        REQUIRE(waitpid(ranks[i], &status, 0) == ranks[i]);
        if (i == victim)
            CHECK(WIFSIGNALED(status) || (SANITIZED && WEXITSTATUS(status) != 3), "rank %d did not die: %x", i, status);
        else
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0 && survived[i], "rank %d: %x", i, status);
    }
    unsetenv("RANK"), unsetenv("WORLD_SIZE"), unsetenv("LOCKSTEP_JOB");
    munmap(survived, MOST_RANKS * sizeof *survived);
}

static void a_rank_that_dies_amid_an_update_fails_all_hosts(void)
{
    job             j = hosts_job(2, 2);
    lk_spawn_result result;
    j.state = LK_STATE_SHARED;
    j.out = new_report();
    CHECK(lk_spawn(4, train_two_steps, &j, &result) == LK_OK, "%s", result.text);
    run_members(&j, die_or_survive, 3);
    free_report(j.out);
}

/* Rank 5 cannot read its neighbour's gradients, so it dies behind its report, when it sums its slices. Rank 2 then
 * waits for it in vain, while the others of its host, whose slices are complete, may update. */
static void die_in_the_exchange(const job *j, int rank, int *survived)
{
    rank_program p = enrol_rank(j, rank);
    lk_state     s;
    float        value;
    (void)train_rank(&p, j, rank, 1);
    REQUIRE(lk_store_find(p.rig.store, "fc1.weight", &s));
    if (rank == 5) {
        REQUIRE(mprotect(p.rig.program->shared->gradients[0], p.rig.plan->memory[LK_MEMORY_GRADIENTS], PROT_NONE) == 0);
        signal(SIGSEGV, SIG_DFL);
    }
    lk_status updated = lk_program_train(
        p.rig.program, &(lk_step){.step = 2,
                                  .count = first_row(j, j->batch, rank + 1) - first_row(j, j->batch, rank),
                                  .total = j->batch,
                                  .rate = 1e-3});
    if (rank == 5) _exit(3);
    CHECK(updated < 0 && strstr(lk_context_error(p.rig.context), "rank 5 of 6"), "rank %d: %s", rank,
          lk_context_error(p.rig.context));
    CHECK(lk_store_hash(p.rig.store) == 0 &&
              lk_store_read(p.rig.store, s.name, LK_STATE_VALUE, 0, 1, &value, sizeof value) == updated,
          "rank %d reads a state that others may have updated", rank);
    survived[rank] = check_failures == 0;
    dismiss_rank(&p);
}

static void a_rank_that_dies_before_its_slices_are_complete_leaves_no_state(void)
{
    job j = hosts_job(2, 3);
    j.leaves = 8;
    j.state = LK_STATE_SHARED;
    run_members(&j, die_in_the_exchange, 5);
}

int main(void)
{
    RUN(two_hosts_of_two_ranks_have_the_bits_of_replicated_training);
    RUN(three_hosts_have_the_bits_of_replicated_training);
    RUN(hosts_of_three_ranks_have_the_bits_of_replicated_training_over_leaves);
    RUN(hosts_with_two_memory_nodes_have_the_bits_of_replicated_training);
    RUN(hosts_may_have_different_numbers_of_memory_nodes);
    RUN(synchronised_batch_norm_has_the_bits_of_replicated_training);
    RUN(reproducible_training_has_one_result_on_any_hosts);
    RUN(a_step_waits_once_for_all_hosts_and_once_for_its_own_besides_the_exchange);
    RUN(a_hand_written_loop_has_the_bits_of_replicated_training);
    RUN(gradients_over_leaves_are_read_on_any_rank);
    RUN(writes_broadcasts_and_comparisons_are_of_all_hosts);
    RUN(hosts_that_cannot_share_are_refused);
    RUN(a_rank_that_dies_amid_an_update_fails_all_hosts);
    RUN(a_rank_that_dies_before_its_slices_are_complete_leaves_no_state);
    return check_result();
}
