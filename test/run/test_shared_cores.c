/* test_shared_cores.c - ranks that wait lend their cores to one that still computes: it uses them, the bits are those
 * of ranks that keep them, and a rank that stops or dies while it is helped is reported as it is without help.
 *
 * ctest: timeout 300, ranks 4, label threaded */
#define _GNU_SOURCE
#include "one_core.h"
#include "run/lend.h"
#include "shared_state.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { SLOW_RUNS = SANITIZED ? 4 : 12 };

static job long_job(int world)
{
    return (job){.model = "cnn",
                 .real = LK_F32,
                 .side = 32,
                 .steps = 4,
                 .batch = 16 * world,
                 .world = world,
                 .optimizer = LK_ADAM,
                 .state = LK_STATE_SHARED};
}

/* Its running statistics depend on how often forward runs. */
static bool counts_forwards(const job *j) { return strcmp(j->model, "resnet20") == 0; }

static void set_step(rank_program *p, const job *j, int rank, int step)
{
    int64_t first = first_row(j, j->batch, rank), count = first_row(j, j->batch, rank + 1) - first;
    lk_step s = {.step = step, .count = count, .total = j->batch, .rate = 1e-3};
    fill_rows(p->images, j->real, p->labels, j->side, first, count, step);
    REQUIRE(lk_program_step(p->rig.program, &s) == LK_OK);
}

/* Rank 0 runs forward many times before its backward, which changes no parameters, only the time that it takes: until
 * it is helped, if others are to do so, for two seconds at most. */
static lk_status run_step(rank_program *p, const job *j, int rank, int step, bool until_helped)
{
    lk__run_lend *l = p->rig.program->lend;
    uint64_t      before = l ? atomic_load(&l->helped) : 0;
    double        limit = lk__now() + 2;
    lk_status     status = LK_OK;
    set_step(p, j, rank, step);
    for (int i = 0; status >= 0 && (i == 0 || rank == 0); i++) {
        if (i >= SLOW_RUNS && (!until_helped || atomic_load(&l->helped) > before || lk__now() > limit)) break;
        status = lk_program_run(p->rig.program, LK_FORWARD);
    }
    if (status >= 0) status = lk_program_run(p->rig.program, LK_BACKWARD);
    return status < 0 ? status : lk_program_run(p->rig.program, LK_UPDATE);
}

static int train_unevenly(int rank, void *user)
{
    const job *j = user;
    check_failures = 0;
    rank_program p = enrol_rank(j, rank);
    bool         lends = j->state == LK_STATE_SHARED && !j->keep_cores;
    CHECK((p.rig.program->lend != NULL) == lends);
    for (int step = 1; step <= j->steps; step++) {
        REQUIRE(run_step(&p, j, rank, step, lends && step > 1 && !counts_forwards(j)) == LK_OK, "rank %d, step %d: %s",
                rank, step, lk_context_error(p.rig.context));
        if (lends) p.rig.program->lend->crowded = false; /* also where there are fewer cores than ranks */
    }
    if (lends) j->out->losses[rank] = (double)atomic_load(&p.rig.program->lend->helped);
    for (int kind = 0; kind < LK_MEMORY_OTHER; kind++)
        CHECK(kind == LK_MEMORY_LOADER || kind == LK_MEMORY_CHECKPOINT ||
                  lk_context_memory(p.rig.context, (lk_memory)kind) == lk_plan_memory(p.rig.plan, (lk_memory)kind),
              "memory of kind %d is not as planned", kind);
    j->out->hashes[rank] = lk_store_hash(p.rig.store);
    dismiss_rank(&p);
    return check_result();
}

static report *train(job j)
{
    lk_spawn_result result;
    j.out = new_report();
    check_ranks_announced(j.world);
    lk_status status = lk_spawn(j.world, train_unevenly, &j, &result);
    CHECK(status == LK_OK, "%d ranks: %s", j.world, result.text);
    return j.out;
}

static void compare_lent(job j, const char *what)
{
    report *lent = train(j), *kept, *replicated;
    /* Only where every rank has its cores: elsewhere the slow rank may end before another one waits. */
    bool required = !counts_forwards(&j) && lk_default_threads() >= j.world * (j.threads ? j.threads : 1);
    j.keep_cores = true;
    kept = train(j);
    j.state = LK_STATE_REPLICATED;
    replicated = train(j);
    CHECK(!required || lent->losses[0] > 0, "%d ranks, %s: no rank lent a core in %d steps", j.world, what, j.steps);
    for (int i = 0; i < j.world; i++)
        CHECK(lent->hashes[i] == kept->hashes[i] && lent->hashes[i] == replicated->hashes[i] && lent->hashes[i] != 0,
              "%d ranks, %s: rank %d's state differs", j.world, what, i);
    free_report(lent);
    free_report(kept);
    free_report(replicated);
}

static void a_slow_rank_is_helped_and_the_bits_are_the_same(void)
{
    for (int world = 2; world <= 4; world++) compare_lent(long_job(world), "f32");
    job j = long_job(3);
    j.threads = 2;
    j.clip = 0.05;
    compare_lent(j, "2 threads, clipping");
    j = long_job(2);
    j.policy = LK_POLICY_BF16;
    compare_lent(j, "bf16");
    j = long_job(2);
    j.model = "resnet20";
    compare_lent(j, "batch norm");
}

/* ---- helpers that are not started ---- */

enum { SHORT_STEPS, CROWDED, NO_THREADS }; /* why */

/* From here on this process can start no thread: also root's, as another user. False: not permitted. */
static bool forbid_threads(void)
{
    struct rlimit none = {0, 0};
    return setrlimit(RLIMIT_NPROC, &none) == 0 && (geteuid() != 0 || setresuid(65534, 65534, 65534) == 0);
}

static int train_without_helpers(int rank, void *user)
{
    const job *j = user;
    check_failures = 0;
    rank_program  p = enrol_rank(j, rank);
    lk__run_lend *l = p.rig.program->lend;
    REQUIRE(l && l->started == 0 && !l->tried, "a helper was started before a step was long");
    bool skip = false;
    for (int step = 1; step <= j->steps; step++) {
        l->crowded = j->odd == CROWDED; /* as it is found in the first step */
        l->takes_long = j->odd != SHORT_STEPS && step > 1;
        if (step == 2 && j->odd == NO_THREADS) skip = !forbid_threads(); /* the first starts those that a step needs */
        if (step == 1) l->steps = 1;
        REQUIRE(run_step(&p, j, rank, step, false) == LK_OK, "rank %d, step %d: %s", rank, step,
                lk_context_error(p.rig.context));
    }
    CHECK(skip || l->started == 0, "%d helpers were started", l->started);
    CHECK(skip || l->tried == (j->odd == NO_THREADS), "helpers were %stried", l->tried ? "" : "not ");
    j->out->hashes[rank] = lk_store_hash(p.rig.store);
    dismiss_rank(&p);
    return check_result();
}

static void helpers_are_optional_and_only_started_where_they_can_work(void)
{
    uint64_t hashes[3];
    for (int why = SHORT_STEPS; why <= NO_THREADS; why++) {
        lk_spawn_result result;
        job             j = long_job(2);
        j.steps = 3;
        j.odd = why;
        j.out = new_report();
        check_ranks_announced(j.world);
        CHECK(lk_spawn(j.world, train_without_helpers, &j, &result) == LK_OK, "case %d: %s", why, result.text);
        CHECK(j.out->hashes[0] == j.out->hashes[1] && j.out->hashes[0] != 0);
        hashes[why] = j.out->hashes[0];
        free_report(j.out);
    }
    CHECK(hashes[0] == hashes[1] && hashes[0] == hashes[2], "results depend on helpers");
}

/* ---- a rank that is helped stops, or dies ---- */

enum { HELPED, PID }; /* of the report's losses: whether other ranks have come to where they lend; rank 0's process */

/* Rank 0 computes until others lend it their cores and, if it is to be killed, until it is. */
static int be_interrupted(int rank, void *user)
{
    const job       *j = user;
    bool             killed = j->odd;
    volatile double *helped = &j->out->losses[HELPED];
    check_failures = 0;
    rank_program p = enrol_rank(j, rank);
    REQUIRE(run_step(&p, j, rank, 1, false) == LK_OK, "%s", lk_context_error(p.rig.context));
    p.rig.program->lend->crowded = false;
    set_step(&p, j, rank, 2);
    if (rank == 0) j->out->losses[PID] = (double)getpid();
    lk_status status = LK_OK;
    for (int i = 0; status >= 0 && (i == 0 || (rank == 0 && (killed || *helped == 0 || i < SLOW_RUNS))); i++)
        status = lk_program_run(p.rig.program, LK_FORWARD);
    if (status >= 0) status = lk_program_run(p.rig.program, LK_BACKWARD);
    if (status >= 0 && rank) *helped = 1;
    if (status >= 0) status = lk_program_run(p.rig.program, LK_UPDATE);
    if (killed)
        CHECK(status < 0 && strstr(lk_context_error(p.rig.context), "rank 0"), "%s", lk_context_error(p.rig.context));
    else
        CHECK(status == LK_OK, "%s", lk_context_error(p.rig.context));
    j->out->hashes[rank] = status < 0 ? 1 : lk_store_hash(p.rig.store);
    dismiss_rank(&p);
    return check_result();
}

/* Sends the signal to rank 0 while it is helped. Stopped, it stays so for longer than others wait for a helper without
 * progress. */
static pid_t start_interrupter(const report *r, int signal)
{
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid) return pid;
    volatile const double *helped = &r->losses[HELPED], *victim = &r->losses[PID];
    for (int i = 0; i < 60000 && *helped == 0; i++) usleep(1000);
    usleep(5000);
    if (*helped == 0 || kill((pid_t)*victim, signal) != 0) _exit(1);
    usleep(700000);
    if (signal == SIGSTOP) kill((pid_t)*victim, SIGCONT);
    _exit(0);
}

static lk_status run_interrupted(job *j, int signal, lk_spawn_result *result)
{
    int ended;
    j->out = new_report();
    j->odd = signal == SIGKILL;
    check_ranks_announced(j->world);
    pid_t     interrupter = start_interrupter(j->out, signal);
    lk_status status = lk_spawn(j->world, be_interrupted, j, result);
    REQUIRE(waitpid(interrupter, &ended, 0) == interrupter);
    CHECK(WIFEXITED(ended) && WEXITSTATUS(ended) == 0, "rank 0 was not interrupted");
    return status;
}

static void a_rank_that_is_killed_while_it_is_helped_is_named(void)
{
    job             j = long_job(3);
    lk_spawn_result result;
    CHECK(run_interrupted(&j, SIGKILL, &result) == LK_ECANCELED && result.rank == 0 && result.signal == SIGKILL, "%s",
          result.text);
    CHECK(j.out->hashes[1] == 1 && j.out->hashes[2] == 1, "the others did not end with its failure");
    free_report(j.out);
}

static void a_rank_that_is_stopped_while_it_is_helped_continues(void)
{
    job             j = long_job(2);
    lk_spawn_result result;
    CHECK(run_interrupted(&j, SIGSTOP, &result) == LK_OK, "%s", result.text);
    CHECK(j.out->hashes[0] == j.out->hashes[1] && j.out->hashes[0] > 1);
    free_report(j.out);
}

/* ---- ranks with different numbers of cores ---- */

/* One core more than threads for the last rank alone: it could reduce buckets while backward runs, and the others could
 * not. */
static int train_with_other_cores(int rank, void *user)
{
    const job *j = user;
    cpu_set_t  all;
    check_failures = 0;
    CPU_ZERO(&all);
    for (int i = 0; i < CPU_SETSIZE; i++) CPU_SET(i, &all);
    if (rank == j->world - 1) REQUIRE(sched_setaffinity(0, sizeof all, &all) == 0);
    rank_program p = enrol_rank(j, rank);
    CHECK(p.rig.program->group.overlaps == false);
    for (int step = 1; step <= j->steps; step++) (void)train_rank(&p, j, rank, step);
    j->out->hashes[rank] = lk_store_hash(p.rig.store);
    dismiss_rank(&p);
    return check_result();
}

static void ranks_with_other_numbers_of_cores_have_the_same_collectives(void)
{
    cpu_set_t       before;
    job             j = long_job(2);
    lk_spawn_result result;
    REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
    if (CPU_COUNT(&before) < 2) {
        printf("     not on one core\n");
        return;
    }
    j.out = new_report();
    j.steps = 2;
    keep_one_core(); /* as the ranks do, unless they take more */
    CHECK(lk_spawn(2, train_with_other_cores, &j, &result) == LK_OK, "%s", result.text);
    REQUIRE(sched_setaffinity(0, sizeof before, &before) == 0);
    CHECK(j.out->hashes[0] == j.out->hashes[1] && j.out->hashes[0]);
    free_report(j.out);
}

int main(void)
{
    RUN(a_slow_rank_is_helped_and_the_bits_are_the_same);
    RUN(helpers_are_optional_and_only_started_where_they_can_work);
    RUN(a_rank_that_is_killed_while_it_is_helped_is_named);
    RUN(a_rank_that_is_stopped_while_it_is_helped_continues);
    RUN(ranks_with_other_numbers_of_cores_have_the_same_collectives);
    return check_result();
}
