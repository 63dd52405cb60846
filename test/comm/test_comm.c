/* test_comm.c - every collective over shared memory, and of one rank alone.
 * ctest: timeout 300, ranks 17, label threaded */
#define _GNU_SOURCE
#include "comm_cases.h"

#include "comm/shm/shm.h"

#include <lockstep/collective.h>
#include <lockstep/transport.h>
#include <sys/wait.h>

static void   run(int size, void (*function)(rank_test *t)) { run_ranks(size, NULL, function, NULL); }
static size_t chunk(lk__comm_kind kind, int size) { return (void)kind, (void)size, LK__SHM_CHUNK; }

/* A buffer that exceeds this rank's symmetric memory would overlap the next rank's. */
static void exceed_memory(rank_test *t)
{
    enum { COUNT = 100000 };
    void *memory;
    REQUIRE(lk_comm_alloc(t->comm, COUNT * sizeof(float), &memory) == LK_OK);
    float *x = memory;
    for (size_t n = 2; n < 2 * COUNT; n *= 100) {
        size_t at = n < COUNT ? COUNT - n / 2 : 1;
        CHECK(lk_comm_all_reduce(t->comm, x + at, x + at, n, LK_F32, LK_SUM, NULL) == LK_EINVAL, "%zu from %zu", n, at);
        CHECK(strstr(lk_context_error(t->context), "test_comm.c:") &&
                  strstr(lk_context_error(t->context), "the 400000 bytes allocated by lk_comm_alloc"),
              "%s", lk_context_error(t->context));
    }
    CHECK(lk_comm_all_gather(t->comm, x, x, COUNT / (size_t)t->size + 1, LK_F32, NULL) == LK_EINVAL);
    x[COUNT - 1] = 1;
    REQUIRE(lk_comm_all_reduce(t->comm, x, x, COUNT, LK_F32, LK_SUM, NULL) == LK_OK, "%s", lk_comm_error(t->comm));
    CHECK(x[COUNT - 1] == (float)t->size);
}

static void symmetric_memory_cannot_be_exceeded(void) { run(3, exceed_memory); }

/* 64 TiB a rank: refused before a page is allocated, and the group goes on. */
static void ask_for_too_much(rank_test *t)
{
    void *memory = t;
    CHECK(lk_comm_alloc(t->comm, (size_t)1 << 46, &memory) == LK_ETOOLARGE, "%s", lk_context_error(t->context));
    CHECK(strstr(lk_context_error(t->context), "available"), "%s", lk_context_error(t->context));
    CHECK(lk_comm_barrier(t->comm, NULL) == LK_OK, "%s", lk_comm_error(t->comm));
}

static void memory_that_the_machine_lacks_is_refused(void) { run(3, ask_for_too_much); }

/* A child that a rank forks is not a rank: freeing the group there has no effect. */
static void free_in_child(rank_test *t)
{
    if (t->rank == 0) {
        pid_t child = fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            lk_comm_free(t->comm);
            _exit(0);
        }
        int status = -1;
        waitpid(child, &status, 0);
        CHECK(status == 0, "the child ended with %x", status);
    }
    CHECK(lk_comm_barrier(t->comm, NULL) == LK_OK, "%s", lk_comm_error(t->comm));
}

static void freeing_in_a_forked_child_has_no_effect(void) { run(2, free_in_child); }

/* Ranks and their parts, in numbers: what each collective must give rank r from x[part] = 100 sender + part. */
static void run_by_name(rank_test *t)
{
    lk_collective c = LK_COLLECTIVE_INIT;
    double        x[4], y[4] = {0};
    int           found = 0, size = t->size;
    for (int i = 0; lk_collective_at(i, &c) == LK_OK; i++, found++) {
        size_t count = c.sends_parts || c.receives_parts ? 1 : (size_t)size;
        for (int k = 0; k < size; k++) x[k] = c.root_sends && t->rank ? -1 : 100 * t->rank + k, y[k] = -1;
        bool  broadcast = c.root_sends && !c.sends_parts;
        void *recv = broadcast ? x : y;
        REQUIRE(lk_comm_run(t->comm, c.name, x, recv, count, LK_F64, LK_SUM, 0, NULL) == LK_OK, "%s: %s", c.name,
                lk_context_error(t->context));
        if (c.root_receives && t->rank) continue;
        for (int k = 0; k < (c.sends_parts && !c.receives_parts ? 1 : size); k++) {
            int    part = c.sends_parts ? t->rank : c.receives_parts ? 0 : k, from = c.receives_parts ? k : 0;
            double sum = 50.0 * size * (size - 1) + size * part, expected = c.reduces ? sum : 100 * from + part;
            CHECK(((double *)recv)[k] == expected, "%s: element %d of rank %d is %g instead of %g", c.name, k, t->rank,
                  ((double *)recv)[k], expected);
        }
    }
    CHECK(found == 8, "%d", found);
    CHECK(lk_comm_run(t->comm, "all_reduced", x, y, 1, LK_F64, LK_SUM, 0, NULL) == LK_EINVAL &&
              strstr(lk_context_error(t->context), "'all_reduced' is not a collective"),
          "%s", lk_context_error(t->context));
}

static void collectives_run_by_their_names(void)
{
    for (int size = 1; size <= 3; size++) run(size, run_by_name);
}

static void transports_are_listed(void)
{
    lk_transport t = LK_TRANSPORT_INIT;
    int          found = 0, alone = 0;
    for (; lk_transport_at(found, &t) == LK_OK; found++) {
        CHECK(t.name && *t.name && t.text && *t.text, "%d", found);
        alone += t.one_rank;
    }
    CHECK(found >= 5 && alone == 1 && lk_transport_at(-1, &t) == LK_END, "%d, %d", found, alone);
}

/* Counts that differ from call to call: nothing, all to one rank, parts in the arrivals, several chunks. */
static void exchange_rows_of_many(rank_test *t)
{
    enum { MOST = 17, EACH = 5000 };
    static const size_t counts[] = {0, 1, 9, EACH};
    size_t              sends[MOST], recvs[MOST], at[MOST];
    uint64_t            before = 0;
    int32_t            *send = malloc(MOST * EACH * sizeof *send), *recv = malloc(MOST * EACH * sizeof *recv);
    REQUIRE(send && recv && t->size <= MOST);
    for (int i = 0; i < 12; i++) {
        size_t each = counts[i % 4];
        int    only = i % 3 == 1 ? i % t->size : -1; /* everything goes to it */
        for (int r = 0; r < t->size; r++) {
            sends[r] = only < 0 || only == r ? each : 0;
            recvs[r] = only < 0 || only == t->rank ? each : 0;
            at[r] = (size_t)r * EACH;
            for (size_t k = 0; k < each; k++) send[at[r] + k] = t->rank * 1000000 + r * 10000 + (int)k;
        }
        if (i == 4) before = lk_context_allocations(t->context);
        REQUIRE(lk_comm_all_to_allv(t->comm, send, sends, at, recv, recvs, at, LK_I32, NULL) == LK_OK, "%s",
                lk_comm_error(t->comm));
        for (int r = 0; r < t->size; r++)
            for (size_t k = 0; k < recvs[r]; k++)
                if (recv[at[r] + k] != r * 1000000 + t->rank * 10000 + (int)k) {
                    CHECK(false, "call %d, rank %d: element %zu from rank %d", i, t->rank, k, r);
                    break;
                }
    }
    CHECK(lk_context_allocations(t->context) == before, "rank %d: %llu allocations", t->rank,
          (unsigned long long)(lk_context_allocations(t->context) - before));
    free(send);
    free(recv);
}

static void all_to_allv_of_many_ranks_allocates_nothing(void)
{
    run(17, exchange_rows_of_many);
    run(2, exchange_rows_of_many);
}

int main(void)
{
    static const backend_case shm = {run, LK__SMALL, chunk, 4, false};
    RUN(symmetric_memory_cannot_be_exceeded);
    RUN(memory_that_the_machine_lacks_is_refused);
    RUN(freeing_in_a_forked_child_has_no_effect);
    RUN(collectives_run_by_their_names);
    RUN(transports_are_listed);
    RUN(all_to_allv_of_many_ranks_allocates_nothing);
    return run_cases(&shm);
}
