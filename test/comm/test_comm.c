/* test_comm.c - every collective over shared memory, and of one rank alone.   ctest: timeout 300, ranks 11, label threaded */
#define _GNU_SOURCE
#include "comm_cases.h"

#include "comm/shm/shm.h"

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
                  strstr(lk_context_error(t->context), "the 400000 bytes of lk_comm_alloc"),
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

int main(void)
{
    static const backend_case shm = {run, LK__SMALL, chunk, 4, false};
    RUN(symmetric_memory_cannot_be_exceeded);
    RUN(memory_that_the_machine_lacks_is_refused);
    RUN(freeing_in_a_forked_child_has_no_effect);
    return run_cases(&shm);
}
