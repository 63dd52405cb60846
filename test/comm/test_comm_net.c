/* test_comm_net.c - every collective over a network: tcp between threads of one process; mixed between processes on
 * simulated hosts; and, when mpirun starts it with the argument mpi or mixed, as one rank of that world.
 * ctest: timeout 400, ranks 11, label threaded */
#define _GNU_SOURCE
#include "comm_cases.h"

#include "comm/net/net.h"

#include <sys/wait.h>

enum { SLICE = 256 << 10 }; /* as in net/pipeline.c */

static size_t chunk(lk__comm_kind kind, int size)
{
    bool cut = kind == LK__ALL_REDUCE || kind == LK__REDUCE || kind == LK__BROADCAST;
    return cut ? (size_t)size * SLICE : kind == LK__REDUCE_SCATTER ? (size_t)size * 65536 : 65536;
}

/* ---- tcp: threads ---- */

static void run_tcp(int size, void (*function)(rank_test *t))
{
    lk_comm_config config = LK_COMM_CONFIG_INIT;
    config.backend = "tcp";
    run_ranks(size, &config, function, NULL);
}

/* ---- allocations of a step ---- */

static lk_status run_step(rank_test *t, float *x)
{
    lk_work  *works[3] = {NULL};
    lk_status status = lk_comm_all_reduce(t->comm, x, x, 5, LK_F32, LK_SUM, NULL);
    for (int i = 0; i < 3 && status >= 0; i++)
        status = lk_comm_all_reduce(t->comm, x + (i << 18), x + (i << 18), 1 << 18, LK_F32, LK_MAX, &works[i]);
    for (int i = 0; i < 3 && status >= 0; i++) status = lk_work_wait(works[i]);
    if (status >= 0) status = lk_comm_broadcast(t->comm, x, 1 << 18, LK_F32, 1, NULL);
    return status < 0 ? status : lk_comm_barrier(t->comm, NULL);
}

static void count_allocations(rank_test *t)
{
    float *x = calloc(3 << 18, sizeof *x);
    REQUIRE(x && lk_comm_reserve(t->comm, 3) == LK_OK);
    for (int i = 0; i < 3; i++) REQUIRE(run_step(t, x) == LK_OK, "%s", lk_comm_error(t->comm));
    uint64_t before = lk_context_allocations(t->context);
    for (int i = 0; i < 10; i++) REQUIRE(run_step(t, x) == LK_OK, "%s", lk_comm_error(t->comm));
    CHECK(lk_context_allocations(t->context) == before, "rank %d: %llu allocations", t->rank,
          (unsigned long long)(lk_context_allocations(t->context) - before));
    free(x);
}

static void repeated_calls_allocate_nothing(void)
{
    run_tcp(2, count_allocations);
    run_tcp(3, count_allocations);
}

/* ---- mixed: processes, some of them on each simulated host ---- */

static const int *layout; /* hosts of ranks; NULL: `each` consecutive ranks per host */
static int        each;

static void check_local_ranks(rank_test *t)
{
    if (t->size == 1) return;
    int host = layout ? layout[t->rank] : t->rank / each, local_rank = 0, here = 0;
    for (int i = 0; i < t->size; i++) {
        if ((layout ? layout[i] : i / each) != host) continue;
        local_rank += i < t->rank;
        here++;
    }
    CHECK(lk_comm_local_rank(t->comm) == local_rank && lk_comm_local_size(t->comm) == here,
          "rank %d: %d of %d on this host", t->rank, lk_comm_local_rank(t->comm), lk_comm_local_size(t->comm));
    CHECK(strcmp(lk_comm_backend(t->comm), "mixed") == 0);
}

static void (*inner_function)(rank_test *t);

static void check_and_run(rank_test *t)
{
    check_local_ranks(t);
    inner_function(t);
}

static int run_rank(int rank, int size, void (*function)(rank_test *t))
{
    rank_test t = {.rank = rank, .size = size, .function = check_and_run, .config = LK_COMM_CONFIG_INIT};
    char      host[32];
    inner_function = function;
    snprintf(host, sizeof host, "host-%d", layout ? layout[rank] : rank / each);
    setenv("LOCKSTEP_HOST_ID", host, 1);
    t.config.rank = rank;
    t.config.world = size;
    t.config.backend = "mixed";
    t.config.join_ms = 60000;
    rank_main(&t);
    return check_result();
}

static void run_mixed(int size, void (*function)(rank_test *t))
{
    static int jobs;
    char       job[64];
    pid_t      ranks[16];
    check_ranks_announced(size);
    snprintf(job, sizeof job, "mixed-%ld-%d", (long)getpid(), jobs++);
    setenv("LOCKSTEP_JOB", job, 1);
    fflush(stdout);
    for (int i = 0; i < size; i++) {
        ranks[i] = fork();
        REQUIRE(ranks[i] >= 0);
        if (ranks[i] == 0) {
            int status = run_rank(i, size, function);
            fflush(NULL);
            _exit(status); /* rank_main has compared the memory held: no leak check of seconds in each process */
        }
    }
    for (int i = 0; i < size; i++) {
        int status = -1;
        waitpid(ranks[i], &status, 0);
        CHECK(status == 0, "rank %d of %d exited with status %x", i, size, status);
    }
}

/* ---- under mpirun: this process is one rank ---- */

static const char *launched_backend;

static void run_launched(int size, void (*function)(rank_test *t))
{
    const char *ompi = getenv("OMPI_COMM_WORLD_SIZE"), *pmi = getenv("PMI_SIZE"), *world = ompi ? ompi : pmi;
    const char *rank = getenv(ompi ? "OMPI_COMM_WORLD_RANK" : "PMI_RANK");
    REQUIRE(world && rank, "not started by mpirun");
    if (atoi(world) != size) return;
    rank_test t = {.rank = atoi(rank), .size = size, .function = function, .config = LK_COMM_CONFIG_INIT};
    char      host[32];
    snprintf(host, sizeof host, "host-%d", t.rank / 2);
    if (strcmp(launched_backend, "mixed") == 0) setenv("LOCKSTEP_HOST_ID", host, 1);
    t.config.backend = launched_backend;
    t.config.join_ms = 60000;
    rank_main(&t);
}

int main(int count, char **arguments)
{
    static const backend_case tcp = {run_tcp, LK__NET_SMALL, chunk, 2, false},
                              mixed = {run_mixed, LK__NET_SMALL, chunk, 2, false},
                              more_cases = {run_mixed, LK__NET_SMALL, chunk, 2, true},
                              launched = {run_launched, LK__NET_SMALL, chunk, 2, false};
    static const int scattered[] = {0, 1, 0, 1, 1, 2, 0, 0, 2, 1, 0};
    const char      *which = count > 1 ? arguments[1] : "";
    int              result = 0;
    if (strcmp(which, "mpi") == 0 || (count > 2 && strcmp(arguments[2], "launched") == 0)) {
        launched_backend = which;
        return run_cases(&launched);
    }
    if (!*which || strcmp(which, "tcp") == 0) {
        RUN(repeated_calls_allocate_nothing);
        result |= run_cases(&tcp);
    }
    if (!*which || strcmp(which, "mixed") == 0) {
        each = 2;
        result |= run_cases(&mixed);
        each = 4;
        the_case = &more_cases;
        RUN(every_collective_matches_the_oracle_at_every_world_size);
        layout = scattered;
        RUN(every_collective_matches_the_oracle_at_every_world_size);
        result |= check_result();
    }
    return result;
}
