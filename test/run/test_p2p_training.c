/* test_p2p_training.c - training over the transport p2p, on the emulated CUDA with a GPU for each rank: it has the bits
 * of training over shared memory, and where a rank dies or stops, the others name it and keep the last complete step.
 * Elsewhere no transport queues.
 *
 * With LK_TEST_GPU=1 on a real GPU, which the ranks share under MPS (test/device/peers.sh): without what only the
 * emulation shows, and without deaths, which end the contexts of all there.
 *
 * ctest: timeout 600, ranks 4 */
#include "base/hash.h"
#include "comm/comm.h"
#include "queued_training.h"
#include "run/program.h"
#include "run/store.h"

#include <dlfcn.h>
#include <signal.h>

enum { STEPS = 4 };
static job job_of(int world) { return make_job("p2p", STEPS, world); }

/* ---- the bits of shared memory ---- */

static int train(int rank, void *user)
{
    const job *j = user;
    check_failures = 0;
    rank_program p = enrol_rank(j, rank);
    check_planned_memory(&p, j);
    CHECK(p.rig.program->group.queued == (strcmp(j->backend, "p2p") == 0), "%s", lk_comm_backend(p.comm));
    train_steps(&p, j, rank);
    dismiss_rank(&p);
    return check_result();
}

static void compare_with_shared_memory(job j)
{
    report *reports[] = {new_report(), new_report()};
    for (int i = 0; i < 2; i++) {
        lk_spawn_result result;
        j.backend = i == 0 ? "shm" : "p2p";
        j.out = reports[i];
        check_ranks_announced(j.world);
        CHECK(lk_spawn(j.world, train, &j, &result) == LK_OK, "%s, %d ranks: %s", j.backend, j.world, result.text);
    }
    compare_reports(&j, reports[0], reports[1]);
    for (int i = 0; i < 2; i++) free_report(reports[i]);
}

static void training_has_the_bits_of_shared_memory(void)
{
    compare_plain_steps(compare_with_shared_memory, "p2p", STEPS);
}

static void micro_batches_clipping_and_narrow_gradients(void)
{
    compare_narrow_gradients(compare_with_shared_memory, "p2p", STEPS);
}

static void slices_of_the_state(void) { compare_slices(compare_with_shared_memory, "p2p", STEPS); }

static void values_along_the_axis_tensor(void) { compare_along_tensor(compare_with_shared_memory, "p2p", STEPS); }

/* Sums of values within forward and backward have a group and a stream of their own. The emulation runs one kernel at a
 * time: a rank whose batch is new, so that its step is no graph yet, must take them in a graph's order. */
static void synchronised_batch_norm(void)
{
    job j = job_of(2);
    j.model = "resnet20";
    j.batch = 4;
    j.odd = 3;
    j.steps = 3;
    j.sync = true;
    j.bucket_bytes = 1 << 20;
    setenv("LK_CUDA_EMULATED_EAGER", "1", 1);
    compare_with_shared_memory(j);
    j.mesh = "shard=2";
    j.stage = 1;
    compare_with_shared_memory(j);
    unsetenv("LK_CUDA_EMULATED_EAGER");
}

static void narrow_types(void)
{
    job j = job_of(2);
    j.policy = LK_POLICY_BF16;
    compare_with_shared_memory(j);
}

/* ---- what a step is ---- */

/* Of the emulation's module; NULL: there is none. */
static void *find_in_module(const char *name)
{
    char        path[512];
    const char *folder = getenv("LOCKSTEP_MODULES"), *device = getenv("LOCKSTEP_DEVICE");
    snprintf(path, sizeof path, "%s/liblockstep-cuda.so", folder ? folder : ".");
    void *module = folder && device && strcmp(device, "cuda") == 0 ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    return module ? dlsym(module, name) : NULL;
}

/* The second step is recorded: kernels, fills and copies within the device. */
static int walk_graph(int rank, void *user)
{
    const job *j = user;
    int        nodes[5];
    void (*count)(int counts[5]) = NULL;
    check_failures = 0;
    rank_program p = enrol_rank(j, rank);
    void        *found = find_in_module("lk__emulated_count_nodes");
    memcpy(&count, &found, sizeof count);
    CHECK(lk__program_queues(p.rig.program));
    train_step(&p, j, rank, 1);
    count(nodes);
    CHECK(nodes[0] == 0, "%d kernels", nodes[0]);
    train_step(&p, j, rank, 2);
    count(nodes);
    /* A call over ranks has a kernel at least. */
    CHECK(nodes[0] > 10 + (int)p.rig.plan->buckets_count, "%d kernels", nodes[0]);
    CHECK(nodes[3] == 0 && nodes[4] == 0, "%d copies from or to the host, %d functions of the host", nodes[3],
          nodes[4]);
    dismiss_rank(&p);
    return check_result();
}

static void a_step_is_one_graph_that_needs_no_host(void)
{
    lk_spawn_result result;
    job             j = job_of(2);
    j.odd = 0;
    CHECK(lk_spawn(j.world, walk_graph, &j, &result) == LK_OK, "%s", result.text);
    j = job_of(3);
    j.odd = 0;
    j.clip = 0.5;
    CHECK(lk_spawn(j.world, walk_graph, &j, &result) == LK_OK, "%s", result.text);
    for (j.stage = 1; j.stage <= 3; j.stage++) {
        j.mesh = "shard=3";
        CHECK(lk_spawn(j.world, walk_graph, &j, &result) == LK_OK, "stage %d: %s", j.stage, result.text);
    }
}

/* ---- ranks that die or stop ---- */

static struct {
    _Atomic int32_t pids[MOST_RANKS], done[MOST_RANKS], failures;
} * common;

/* As under MPS where another client dies. */
static void lose_context(void)
{
    void (*lose)(void) = NULL;
    void *found = find_in_module("lk__emulated_lose_context");
    REQUIRE(found != NULL);
    memcpy(&lose, &found, sizeof lose);
    lose();
}

/* Of the others after the last rank has gone: all of them name it, and nobody else. */
static void check_verdict(rank_program *p, const job *j, int rank, const char *what)
{
    char        name[64];
    const char *text = lk_context_error(p->rig.context), *first = strstr(text, "rank ");
    snprintf(name, sizeof name, "rank %d of %d", j->world - 1, j->world);
    if (j->mesh) snprintf(name, sizeof name, "rank %d, data 1 %s 1", j->world - 1, j->stage ? "shard" : "tensor");
    CHECK(first && strncmp(first, name, strlen(name)) == 0 && strstr(text, what), "rank %d: %s", rank, text);
    CHECK(lk_comm_status(p->comm) < 0 && p->comm->cause.rank == j->world - 1, "rank %d blames rank %d: %s", rank,
          (int)p->comm->cause.rank, lk_comm_error(p->comm));
}

static int lose_last(int rank, void *user)
{
    const job *j = user;
    check_failures = 0;
    rank_program p = enrol_rank(j, rank);
    for (int step = 1; step <= 3; step++) train_step(&p, j, rank, step);
    if (rank == j->world - 1) raise(SIGKILL);
    lose_context();
    lk_step s = make_step(&p, j, rank, 4);
    CHECK(lk_program_train(p.rig.program, &s) < 0);
    check_verdict(&p, j, rank, " died ");
    atomic_fetch_add(&common->failures, check_failures);
    atomic_store(&common->done[rank], 1);
    _exit(0); /* memory of a context that is lost cannot be used */
}

/* Between two steps, and with a program that has groups of its own for buckets. */
static void a_rank_whose_death_took_the_context_is_named(void)
{
    lk_spawn_result result;
    job             j = job_of(3);
    j.odd = 0;
    memset(common, 0, sizeof *common);
    (void)lk_spawn(j.world, lose_last, &j, &result);
    CHECK(result.signal == SIGKILL && result.rank == j.world - 1, "%s", result.text);
    for (int i = 0; i < j.world - 1; i++) CHECK(atomic_load(&common->done[i]), "rank %d", i);
    CHECK(atomic_load(&common->failures) == 0);
}

/* Of what this rank has of parameters and optimizer state: without the other ranks, unlike lk_store_hash. */
static uint64_t hash_own(const rank_program *p)
{
    size_t parameters = lk_plan_memory(p->rig.plan, LK_MEMORY_PARAMETERS);
    size_t optimizer = lk_plan_memory(p->rig.plan, LK_MEMORY_OPTIMIZER);
    char  *copy = malloc(parameters + optimizer);
    REQUIRE(copy && parameters && optimizer);
    lk__device *device = p->rig.store->device;
    REQUIRE(lk__device_read(device, NULL, copy, p->rig.store->parameters, parameters) == LK_OK);
    REQUIRE(lk__device_read(device, NULL, copy + parameters, p->rig.store->optimizer, optimizer) == LK_OK);
    uint64_t hash = lk__hash64(copy, parameters + optimizer, 0);
    free(copy);
    return hash;
}

enum { DEADLINE_MS = 5000 };
static void shorten_deadline(lk_comm *comm) { comm->timeout_ms = DEADLINE_MS; } /* of groups that are split from it */

static int stop_last(int rank, void *user)
{
    const job *j = user;
    check_failures = 0;
    rank_program p = enrol_rank(j, rank);
    for (int step = 1; step <= 3; step++) train_step(&p, j, rank, step);
    uint64_t before = hash_own(&p);
    atomic_store(&common->pids[rank], (int32_t)getpid());
    (void)lk_comm_barrier(p.comm, NULL);
    if (rank == j->world - 1) raise(SIGSTOP);
    if (rank == j->world - 2)
        usleep(300000); /* rank 0's wait for this one has its deadline first, but is not its fault */
    double  begin = lk__now();
    lk_step s = make_step(&p, j, rank, 4);
    CHECK(lk_program_train(p.rig.program, &s) < 0);
    CHECK(lk__now() - begin < DEADLINE_MS / 1e3 + 20, "rank %d: %g s", rank, lk__now() - begin);
    check_verdict(&p, j, rank, "stopped by a signal");
    CHECK(hash_own(&p) == before, "rank %d has changed", rank);
    CHECK((lk__store_check(p.rig.store) < 0) == (j->stage == 1), "stage %d", j->stage); /* it might have */
    atomic_fetch_add(&common->failures, check_failures);
    atomic_store(&common->done[rank], 1);
    for (int i = 0; rank == 0 && i < j->world - 1; i++)
        while (!atomic_load(&common->done[i])) usleep(1000);
    if (rank == 0) kill((pid_t)atomic_load(&common->pids[j->world - 1]), SIGKILL);
    dismiss_rank(&p);
    return 0;
}

/* Each rank waits in another group, with deadlines of 5 s and, in the group of all, of 120 s. */
static void stop_one(const char *mesh, int stage)
{
    lk_spawn_result result;
    job             j = job_of(4);
    j.odd = 0;
    j.mesh = mesh;
    j.stage = stage;
    j.use_group = shorten_deadline;
    memset(common, 0, sizeof *common);
    (void)lk_spawn(j.world, stop_last, &j, &result);
    CHECK(result.signal == SIGKILL && result.rank == j.world - 1, "%s", result.text);
    for (int i = 0; i < j.world - 1; i++) CHECK(atomic_load(&common->done[i]), "rank %d", i);
    CHECK(atomic_load(&common->failures) == 0);
}

static void a_rank_that_stops_is_named_by_the_ranks_of_all_groups(void) { stop_one("data=2,tensor=2", 0); }

/* The numbers of all ranks are exchanged before the first slice is updated. */
static void a_rank_that_stops_leaves_the_slices_of_the_others(void)
{
    stop_one("data=2,shard=2", 1);
    stop_one("data=2,shard=2", 3);
}

/* Sections by hand: the last rank dies in front of one whose collectives need it. */
static lk_section without_last;

static int run_without_last(int rank, void *user)
{
    const job *j = user;
    check_failures = 0;
    rank_program p = enrol_rank(j, rank);
    lk_program  *program = p.rig.program;
    train_step(&p, j, rank, 1);
    lk_step s = make_step(&p, j, rank, 2);
    REQUIRE(lk_program_step(program, &s) == LK_OK);
    for (lk_section i = LK_FORWARD; i < LK_UPDATE && without_last == LK_UPDATE; i++)
        REQUIRE(lk_program_run(program, i) == LK_OK, "%s", lk_context_error(p.rig.context));
    REQUIRE(lk_comm_barrier(p.comm, NULL) == LK_OK);
    if (rank == j->world - 1) raise(SIGKILL);
    CHECK(lk_program_run(program, without_last) < 0, "rank %d, section %d", rank, without_last);
    const char *text = lk_context_error(p.rig.context);
    CHECK(strstr(text, "rank 1 of 2 ") && strstr(text, " died "), "%s", text);
    CHECK((lk__store_check(p.rig.store) < 0) == (j->stage == 1), "%s", lk_context_error(p.rig.context));
    atomic_fetch_add(&common->failures, check_failures);
    atomic_store(&common->done[rank], 1);
    dismiss_rank(&p);
    return 0;
}

static void a_section_without_a_rank_fails(void)
{
    lk_spawn_result result;
    job             j = job_of(2);
    j.mesh = "shard=2";
    for (int i = 0; i < 3; i++) { /* parameters after the update, the norm before it, parameters before their use */
        j.stage = i ? 3 : 1;
        j.clip = i == 1 ? 0.5 : 0;
        without_last = i < 2 ? LK_UPDATE : LK_EVALUATE;
        memset(common, 0, sizeof *common);
        (void)lk_spawn(j.world, run_without_last, &j, &result);
        CHECK(result.signal == SIGKILL && result.rank == 1, "%s", result.text);
        CHECK(atomic_load(&common->done[0]) && atomic_load(&common->failures) == 0, "case %d", i);
    }
}

int main(void)
{
    bool on_gpu = getenv("LK_TEST_GPU") != NULL;
    if (!on_gpu && !find_in_module("lk__emulated_lose_context")) {
        printf("skipped: no emulated GPUs\n");
        return SKIPPED;
    }
    common = mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(common != MAP_FAILED);
    if (!on_gpu) setenv("LK_CUDA_EMULATED_GPUS", "8", 1);
    RUN(training_has_the_bits_of_shared_memory);
    RUN(micro_batches_clipping_and_narrow_gradients);
    RUN(values_along_the_axis_tensor);
    RUN(slices_of_the_state);
    RUN(narrow_types);
    RUN(synchronised_batch_norm);
    RUN(a_rank_that_stops_is_named_by_the_ranks_of_all_groups);
    RUN(a_rank_that_stops_leaves_the_slices_of_the_others);
    if (on_gpu) return check_result();
    RUN(a_step_is_one_graph_that_needs_no_host);
    RUN(a_section_without_a_rank_fails);
    RUN(a_rank_whose_death_took_the_context_is_named);
    return check_result();
}
