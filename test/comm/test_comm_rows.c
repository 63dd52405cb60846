/* test_comm_rows.c - all_gather and reduce_scatter whose parts lie side by side in rows: over shared memory, from
 * ordinary and from symmetric memory, over tcp and over simulated hosts, in sizes of every algorithm.
 * ctest: timeout 200, ranks 4 */
#define _GNU_SOURCE
#include "comm_ranks.h"

#include "comm/comm.h"

#include <sys/wait.h>

typedef struct backend {
    const char *name;
    int         each; /* ranks of a simulated host; 0: all on this one */
} backend;

/* Rows, and elements of a part in each: small ones; some of several chunks, which end within rows; one row. */
static const size_t sizes[][2] = {{2, 3},   {3, 1},     {5, 7},      {16, 100},  {8, 2048},
                                  {7, 999}, {3, 40001}, {1000, 301}, {1, 70001}, {200000, 1}};
enum { SIZES = sizeof sizes / sizeof *sizes, MOST = 4 * 301000 };

static lk_status run_call(rank_test *t, lk__comm_kind kind, size_t which, lk_dtype type, const void *send, void *recv)
{
    lk__comm_call call = {.kind = kind,
                          .type = type,
                          .reduce = LK_SUM,
                          .count = sizes[which][0] * sizes[which][1],
                          .rows = sizes[which][0],
                          .send = send,
                          .recv = recv,
                          .site = LK_HERE};
    return lk__comm_run(t->comm, &call, NULL);
}

/* Where element `at` of rank `part`'s part is in what all have. */
static size_t place_in_rows(rank_test *t, size_t which, int part, size_t at)
{
    size_t width = sizes[which][1];
    return (at / width * (size_t)t->size + (size_t)part) * width + at % width;
}

static void check_gather(rank_test *t, size_t which, char *send, char *recv)
{
    size_t   count = sizes[which][0] * sizes[which][1], wrong = 0;
    int32_t *own = (int32_t *)(void *)send, *all = (int32_t *)(void *)recv;
    for (size_t i = 0; i < count; i++) own[i] = (int32_t)(i * 8 + (size_t)t->rank);
    memset(recv, 0xAB, count * 4 * (size_t)t->size + 4);
    REQUIRE(run_call(t, LK__ALL_GATHER, which, LK_I32, send, recv) == LK_OK, "%s", lk_context_error(t->context));
    for (int part = 0; part < t->size; part++)
        for (size_t i = 0; i < count; i++)
            wrong += all[place_in_rows(t, which, part, i)] != (int32_t)(i * 8 + (size_t)part);
    CHECK(wrong == 0, "%zu × %zu: %zu elements", sizes[which][0], sizes[which][1], wrong);
    CHECK((unsigned char)recv[count * 4 * (size_t)t->size] == 0xAB);
    REQUIRE(lk_comm_barrier(t->comm, NULL) == LK_OK);
}

static void check_scatter(rank_test *t, size_t which, lk_dtype type, char *send, char *recv)
{
    size_t count = sizes[which][0] * sizes[which][1], size = lk_dtype_size(type), wrong = 0;
    fill(send, which + 3, t->rank, count * (size_t)t->size, type, LK_SUM);
    memset(recv, 0xAB, count * size + 1);
    REQUIRE(run_call(t, LK__REDUCE_SCATTER, which, type, send, recv) == LK_OK, "%s", lk_context_error(t->context));
    for (size_t i = 0; i<count; i += count> 20000 ? 13 : 1) { /* the oracle is slow */
        char want[8];
        save(want, type, 0, reduced(which + 3, t->size, place_in_rows(t, which, t->rank, i), type, LK_SUM));
        wrong += memcmp(want, recv + i * size, size) != 0;
    }
    CHECK(wrong == 0, "%zu × %zu %s: %zu elements", sizes[which][0], sizes[which][1], lk_dtype_name(type), wrong);
    CHECK((unsigned char)recv[count * size] == 0xAB);
    REQUIRE(lk_comm_barrier(t->comm, NULL) == LK_OK);
}

static void run_sizes(rank_test *t)
{
    char  *send = malloc(MOST * 4 + 64), *recv = malloc(MOST * 4 + 64);
    void  *symmetric[2];
    size_t bytes = MOST * 4 + 64;
    REQUIRE(send && recv && lk_comm_alloc(t->comm, bytes, &symmetric[0]) == LK_OK &&
            lk_comm_alloc(t->comm, bytes, &symmetric[1]) == LK_OK);
    for (size_t i = 0; i < SIZES; i++) {
        check_gather(t, i, send, recv);
        check_gather(t, i, symmetric[0], symmetric[1]);
        check_gather(t, i, symmetric[0], recv);
        check_scatter(t, i, LK_F32, send, recv);
        check_scatter(t, i, LK_BF16, send, recv);
        check_scatter(t, i, LK_F32, symmetric[0], symmetric[1]);
    }
    lk_comm_release(t->comm, symmetric[0]);
    lk_comm_release(t->comm, symmetric[1]);
    free(send);
    free(recv);
}

/* Ranks that are processes: each has its own name of the host. */
static void run_processes(const backend *b, int size)
{
    static int jobs;
    char       job[64], host[32];
    pid_t      pids[4];
    check_ranks_announced(size);
    snprintf(job, sizeof job, "rows-%ld-%d", (long)getpid(), jobs++);
    setenv("LOCKSTEP_JOB", job, 1);
    fflush(NULL);
    for (int i = 0; i < size; i++) {
        REQUIRE((pids[i] = fork()) >= 0);
        if (pids[i]) continue;
        rank_test t = {.rank = i, .size = size, .function = run_sizes, .config = LK_COMM_CONFIG_INIT};
        alarm(150);
        check_failures = 0;
        snprintf(host, sizeof host, "host-%d", b->each ? i / b->each : 0);
        setenv("LOCKSTEP_HOST_ID", host, 1);
        t.config.backend = b->name;
        t.config.rank = i;
        t.config.world = size;
        t.config.join_ms = t.config.timeout_ms = 60000;
        rank_main(&t);
        fflush(NULL);
        _exit(check_result());
    }
    for (int i = 0; i < size; i++) {
        int status = -1;
        waitpid(pids[i], &status, 0);
        CHECK(status == 0, "%s: rank %d of %d ended with %x", b->name, i, size, status);
    }
}

static void parts_in_rows_arrive_in_their_rows(void)
{
    static const backend backends[] = {{"shm", 0}, {"tcp", 0}, {"mixed", 2}};
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
        for (int size = backends[i].each ? 4 : 2; size <= 4; size++) run_processes(&backends[i], size);
}

/* Ranks whose rows differ have made different calls. */
static void make_different_calls(rank_test *t)
{
    float         x[8] = {0}, y[32];
    lk__comm_call call = {.kind = LK__ALL_GATHER,
                          .type = LK_F32,
                          .count = 8,
                          .rows = t->rank ? 4 : 2,
                          .send = x,
                          .recv = y,
                          .site = LK_HERE};
    CHECK(lk__comm_run(t->comm, &call, NULL) == LK_EMISMATCH, "%s", lk_context_error(t->context));
}

static void other_rows_are_another_call(void) { run_ranks(2, NULL, make_different_calls, NULL); }

int main(void)
{
    RUN(parts_in_rows_arrive_in_their_rows);
    RUN(other_rows_are_another_call);
    return check_result();
}
