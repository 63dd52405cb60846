/* test_context.c - a failure's message belongs to the thread and the context of the call that failed, and is passed on to a thread
 * that gets the failure of another.
 *
 * ctest: label threaded */
#include "check.h"

#include "base/base.h"

#include <lockstep.h>
#include <pthread.h>

static lk_context *open_context(void)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_context       *context;
    config.threads = 1;
    REQUIRE(lk_context_create(&config, &context) == LK_OK);
    return context;
}

/* ---- threads ---- */

typedef struct other {
    lk_context *context;
    int         number;
    char        seen[64], own[64];
} other;

static void *fail_elsewhere(void *argument)
{
    other *o = argument;
    snprintf(o->seen, sizeof o->seen, "%.60s", lk_context_error(o->context));
    for (int i = 0; i < 1000; i++) lk__fail(o->context, LK_EIO, "thread %d, failure %d", o->number, i);
    lk__fail_prefix(o->context, LK_EIO, "again: ");
    snprintf(o->own, sizeof o->own, "%.60s", lk_context_error(o->context));
    return NULL;
}

static void each_thread_has_its_own_message(void)
{
    enum { THREADS = 5 };
    lk_context *context = open_context();
    pthread_t   threads[THREADS];
    other       others[THREADS];
    CHECK(strcmp(lk_context_error(context), "") == 0, "before any failure: %s", lk_context_error(context));
    lk__fail(context, LK_EINVAL, "mine");
    for (int i = 0; i < THREADS; i++) {
        others[i] = (other){.context = context, .number = i};
        REQUIRE(pthread_create(&threads[i], NULL, fail_elsewhere, &others[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        char expected[64];
        pthread_join(threads[i], NULL);
        snprintf(expected, sizeof expected, "again: thread %d, failure 999", i);
        CHECK(strcmp(others[i].seen, "") == 0, "thread %d got \"%s\"", i, others[i].seen);
        CHECK(strcmp(others[i].own, expected) == 0, "thread %d: \"%s\"", i, others[i].own);
    }
    CHECK(strcmp(lk_context_error(context), "mine") == 0, "\"%s\"", lk_context_error(context));
    lk_context_free(context);
}

/* ---- contexts ---- */

static void contexts_of_a_thread_keep_their_messages(void)
{
    lk_context *contexts[4];
    for (int i = 0; i < 4; i++) contexts[i] = open_context();
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < 4; i++) lk__fail(contexts[i], LK_EIO, "context %d, turn %d", i, turn);
        for (int i = 0; i < 4; i++) {
            char expected[64];
            snprintf(expected, sizeof expected, "context %d, turn %d", i, turn);
            CHECK(strcmp(lk_context_error(contexts[i]), expected) == 0, "\"%s\"", lk_context_error(contexts[i]));
        }
    }
    for (int i = 0; i < 4; i++) lk_context_free(contexts[i]);
}

/* An allocator that returns the same block again, so that a second context has the address of the first. */
static char  block[1 << 16] __attribute__((aligned(64)));
static bool  taken;
static void *alloc_block(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    if (taken || bytes > sizeof block) return aligned_alloc(alignment, lk__round_up(bytes, alignment));
    taken = true;
    return block;
}

static void free_block(void *user, void *memory, size_t bytes)
{
    (void)user, (void)bytes;
    if (memory == block)
        taken = false;
    else
        free(memory);
}

static void a_new_context_at_an_old_address_has_no_message(void)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_context       *first, *second;
    config.threads = 1;
    config.allocator = (lk_allocator){alloc_block, free_block, NULL};
    REQUIRE(lk_context_create(&config, &first) == LK_OK);
    lk__fail(first, LK_EIO, "of the first");
    CHECK(strcmp(lk_context_error(first), "of the first") == 0);
    lk_context_free(first);
    REQUIRE(lk_context_create(&config, &second) == LK_OK && second == first);
    CHECK(strcmp(lk_context_error(second), "") == 0, "\"%s\"", lk_context_error(second));
    lk_context_free(second);
}

/* ---- failures of another thread ---- */

static void a_failure_in_a_groups_thread_is_reported_to_the_waiter(void)
{
    lk_context *context = open_context();
    lk_comm    *comm;
    lk_work    *work = NULL;
    int32_t     from[4] = {1, 2, 3, 4}, to[4];
    size_t      three = 3, four = 4, none = 0;
    REQUIRE(lk_comm_create(context, NULL, &comm) == LK_OK, "%s", lk_context_error(context));
    for (int way = 0; way < 2; way++) { /* tested, then waited for */
        lk__fail(context, LK_EIO, "something else");
        REQUIRE(lk_comm_all_to_allv(comm, from, &three, &none, to, &four, &none, LK_I32, &work) == LK_OK);
        while (way && lk_work_test(work) == LK_END) {}
        if (way) CHECK(strstr(lk_context_error(context), "expects 4"), "tested: \"%s\"", lk_context_error(context));
        CHECK(lk_work_wait(work) == LK_EMISMATCH);
        CHECK(strstr(lk_context_error(context), "sends 3 elements to itself and expects 4"), "waited for: \"%s\"",
              lk_context_error(context));
    }
    lk_comm_free(comm);
    lk_context_free(context);
}

int main(void)
{
    RUN(each_thread_has_its_own_message);
    RUN(contexts_of_a_thread_keep_their_messages);
    RUN(a_new_context_at_an_old_address_has_no_message);
    RUN(a_failure_in_a_groups_thread_is_reported_to_the_waiter);
    return check_result();
}
