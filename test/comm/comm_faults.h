/* comm_faults.h - ranks that make different calls, are late, die or are stopped, with any backend: every survivor
 * returns the right error, which names the cause. */
#ifndef COMM_FAULTS_H
#define COMM_FAULTS_H

#include "comm_ranks.h"

#include "comm/comm.h"
#include "comm/flight_recorder.h"

#include <signal.h>
#include <sys/wait.h>

static int rounds = 4;

static const char *fault_backend; /* NULL: the default for one host, which is shm */

static void run_faulty(int size, const lk_comm_config *config, void (*function)(rank_test *t), void *user)
{
    lk_comm_config with = LK_COMM_CONFIG_INIT;
    if (config) with = *config;
    with.backend = fault_backend;
    run_ranks(size, &with, function, user);
}

/* ---- calls that differ ---- */

static char texts[8][LK__COMM_TEXT];

static void make_different_calls(rank_test *t)
{
    float     x[100] = {0};
    int       how = *(int *)t->user;
    lk_status status;
    REQUIRE(lk_comm_barrier(t->comm, NULL) == LK_OK);
    if (t->rank == 1 && how == 0)
        status = lk_comm_broadcast(t->comm, x, 10, LK_F32, 0, NULL);
    else if (t->rank == 1 && how == 1)
        status = lk_comm_all_reduce(t->comm, x, x, 11, LK_F32, LK_SUM, NULL);
    else if (t->rank == 1 && how == 2)
        status = lk_comm_all_reduce(t->comm, x, x, 10, LK_I32, LK_SUM, NULL);
    else if (t->rank == 1 && how == 3)
        status = lk_comm_all_reduce(t->comm, x, x, 10, LK_F32, LK_MAX, NULL);
    else if (t->rank == 1 && how == 4)
        status = lk_comm_barrier(t->comm, NULL);
    else
        status = lk_comm_all_reduce(t->comm, x, x, 10, LK_F32, LK_SUM, NULL);
    CHECK(status == LK_EMISMATCH, "rank %d, way %d: %s", t->rank, how, lk_status_name(status));
    snprintf(texts[t->rank], sizeof texts[0], "%s", lk_comm_error(t->comm));
    CHECK(lk_comm_barrier(t->comm, NULL) == LK_EMISMATCH && lk_comm_status(t->comm) == LK_EMISMATCH);
    lk_work *work = NULL;
    CHECK(lk_comm_all_reduce(t->comm, x, x, 1, LK_F32, LK_SUM, &work) == LK_EMISMATCH && !work);
    CHECK(strcmp(texts[t->rank], lk_comm_error(t->comm)) == 0);
}

static void a_mismatch_fails_on_every_rank_with_one_table(void)
{
    static const char *const theirs[] = {"broadcast f32 × 10 root 0", "all_reduce f32 × 11 sum",
                                         "all_reduce i32 × 10 sum", "all_reduce f32 × 10 max", "barrier"};
    for (int how = 0; how < 5; how++) {
        run_faulty(2 + how % 3, NULL, make_different_calls, &how);
        CHECK(strstr(texts[0], theirs[how]) && strstr(texts[0], "all_reduce f32 × 10 sum") &&
                  strstr(texts[0], "comm_faults.h:"),
              "%s", texts[0]);
        for (int r = 1; r < 2 + how % 3; r++)
            CHECK(strcmp(texts[0], texts[r]) == 0, "rank %d reports: %s", r, texts[r]);
    }
}

static void wrong_transfer(rank_test *t)
{
    float  x[10] = {0}, y[10];
    size_t counts[] = {1, 2}, at[] = {0, 4}, wrong[] = {1, 3};
    if (t->user) { /* rank 0 expects more from rank 1 than it sends */
        lk_status status =
            lk_comm_all_to_allv(t->comm, x, counts, at, y, t->rank ? (size_t[]){2, 2} : wrong, at, LK_F32, NULL);
        CHECK(status == LK_EMISMATCH, "%s", lk_status_name(status));
        CHECK(strstr(lk_comm_error(t->comm), "rank 1 sends 1 elements to rank 0, which expects 3"), "%s",
              lk_comm_error(t->comm));
        return;
    }
    lk_status status =
        t->rank ? lk_comm_send(t->comm, x, 5, LK_F32, 0, 1, NULL) : lk_comm_recv(t->comm, x, 6, LK_F32, 1, 1, NULL);
    if (t->rank == 0) {
        CHECK(status == LK_EMISMATCH, "%s", lk_status_name(status));
        CHECK(strstr(lk_comm_error(t->comm), "rank 1 sent f32 × 5 (tag 1)") &&
                  strstr(lk_comm_error(t->comm), "recv f32 × 6"),
              "%s", lk_comm_error(t->comm));
    }
}

static void a_transfer_of_another_size_is_a_mismatch(void)
{
    int yes = 1;
    run_faulty(2, NULL, wrong_transfer, NULL);
    run_faulty(2, NULL, wrong_transfer, &yes);
}

enum { MANY = 4 << 20 };

/* Rank 1 is in a send or receive with a rank that is in a collective. */
static void transfer_against_collective(rank_test *t)
{
    int       how = *(int *)t->user, with = t->size - 1 == 1 ? 0 : t->size - 1;
    char     *x = calloc(MANY, 1);
    lk_work  *work = NULL;
    lk_status status = lk_comm_barrier(t->comm, NULL);
    REQUIRE(x && status == LK_OK);
    if (t->rank != 1) {
        status = lk_comm_all_reduce(t->comm, x, x, 10, LK_F32, LK_SUM, NULL);
    } else {
        usleep(how & 2 ? 100000 : 0); /* either order */
        if (how & 1)
            status = lk_comm_send(t->comm, x, MANY, LK_U8, with, 7, &work);
        else
            status = lk_comm_recv(t->comm, x, 10, LK_F32, with, 7, &work);
        if (status >= 0) status = lk_work_wait(work);
    }
    CHECK(status == LK_EMISMATCH, "rank %d, way %d: %s", t->rank, how, lk_status_name(status));
    snprintf(texts[t->rank], sizeof texts[0], "%s", lk_comm_error(t->comm));
    free(x);
}

/* Found while the deadline, 10 minutes, is far off: at the deadline the status would be LK_ETIMEOUT. */
static void a_transfer_against_a_collective_is_a_mismatch_before_the_deadline(void)
{
    for (int how = 0; how < 4; how++) {
        int ranks = 2 + how % 2;
        run_faulty(ranks, NULL, transfer_against_collective, &how);
        const char *mine = how & 1 ? "send u8 × 4194304 to rank" : "recv f32 × 10 from rank";
        CHECK(strstr(texts[0], mine) && strstr(texts[0], "all_reduce f32 × 10 sum at ") &&
                  strstr(texts[0], "rank 1 waits for rank"),
              "%s", texts[0]);
        for (int r = 1; r < ranks; r++) CHECK(strcmp(texts[0], texts[r]) == 0, "rank %d reports: %s", r, texts[r]);
    }
}

/* A short message is sent before its sender goes on: receiving it after the collective is no mismatch. */
static void receive_later(rank_test *t)
{
    float x[10] = {0}, y = 1;
    for (int i = 0; i < 20; i++) {
        if (t->rank == 0) {
            if (i % 4 == 0) usleep(120000);
            x[0] = (float)i;
            REQUIRE(lk_comm_send(t->comm, x, 10, LK_F32, 1, 3, NULL) == LK_OK);
            REQUIRE(lk_comm_all_reduce(t->comm, &y, &y, 1, LK_F32, LK_MAX, NULL) == LK_OK, "%s",
                    lk_comm_error(t->comm));
        } else {
            bool     first = i % 4 < 2;
            lk_work *work = NULL;
            if (first) REQUIRE(lk_comm_recv(t->comm, x, 10, LK_F32, 0, 3, i % 2 ? &work : NULL) == LK_OK);
            REQUIRE(lk_comm_all_reduce(t->comm, &y, &y, 1, LK_F32, LK_MAX, NULL) == LK_OK, "%s",
                    lk_comm_error(t->comm));
            if (!first) REQUIRE(lk_comm_recv(t->comm, x, 10, LK_F32, 0, 3, i % 2 ? &work : NULL) == LK_OK);
            REQUIRE(lk_work_wait(work) == LK_OK && x[0] == (float)i, "%s", lk_comm_error(t->comm));
        }
    }
}

static void a_message_may_be_received_after_a_collective(void) { run_faulty(2, NULL, receive_later, NULL); }

/* ---- ranks that are late ---- */

static void be_late(rank_test *t)
{
    int32_t x = 1;
    REQUIRE(lk_comm_all_reduce(t->comm, &x, &x, 1, LK_I32, LK_SUM, NULL) == LK_OK);
    if (t->rank == 1) usleep(1500000);
    lk_status status = lk_comm_barrier(t->comm, NULL);
    CHECK(status == LK_ETIMEOUT, "rank %d: %s", t->rank, lk_status_name(status));
    const char *text = lk_comm_error(t->comm);
    CHECK(strstr(text, "rank 1 of 3") && strstr(text, "<- missing") &&
              strstr(text, "last finished #2 all_reduce i32 × 1 sum at ") && strstr(text, "outside any operation"),
          "%s", text);
    if (t->rank != 1)
        CHECK(strstr(t->log, "has been missing for") && strstr(t->log, "rank 1"), "the log is: %s", t->log);
    snprintf(texts[t->rank], sizeof texts[0], "%s", text);
}

static void a_rank_that_misses_a_deadline_is_named_on_every_rank(void)
{
    lk_comm_config config = LK_COMM_CONFIG_INIT;
    config.timeout_ms = 500;
    config.stall_ms = 100;
    run_faulty(3, &config, be_late, NULL);
    CHECK(strcmp(texts[0], texts[1]) == 0 && strcmp(texts[0], texts[2]) == 0);
}

static void be_busy(rank_test *t)
{
    REQUIRE(lk_comm_barrier(t->comm, NULL) == LK_OK);
    if (t->rank == 2) {
        lk_comm_busy_begin(t->comm, "saving");
        usleep(900000);
        lk_comm_busy_end(t->comm);
    }
    CHECK(lk_comm_barrier(t->comm, NULL) == LK_OK, "%s", lk_comm_error(t->comm));
    if (t->rank == 0) CHECK(!strstr(t->log, "did not"), "%s", t->log);
}

static void declared_work_does_not_count_towards_the_deadline(void)
{
    lk_comm_config config = LK_COMM_CONFIG_INIT;
    config.timeout_ms = 400;
    run_faulty(3, &config, be_busy, NULL);
}

/* Rank 1 is busy and rank 2 is not, but late: the deadline still holds for it, and the stall is logged. Both stay away
 * until rank 0 has returned, so it would wait for ever if rank 1's work excused rank 2. */
static atomic_bool rank_0_returned;

static void await_rank_0(void)
{
    while (!atomic_load(&rank_0_returned)) usleep(1000);
}

static void busy_and_late(rank_test *t)
{
    REQUIRE(lk_comm_barrier(t->comm, NULL) == LK_OK);
    if (t->rank == 1) {
        lk_comm_busy_begin(t->comm, "saving");
        await_rank_0();
        lk_comm_busy_end(t->comm);
    }
    if (t->rank == 2) await_rank_0();
    lk_status status = lk_comm_barrier(t->comm, NULL);
    CHECK(status == LK_ETIMEOUT, "rank %d: %s", t->rank, lk_status_name(status));
    if (t->rank != 0) return;
    atomic_store(&rank_0_returned, true);
    CHECK(strstr(t->log, "has been missing for") && strstr(t->log, "busy with saving"), "%s", t->log);
}

static void declared_work_of_one_excuses_no_other(void)
{
    lk_comm_config config = LK_COMM_CONFIG_INIT;
    config.timeout_ms = 600;
    config.stall_ms = 200;
    atomic_store(&rank_0_returned, false);
    run_faulty(3, &config, busy_and_late, NULL);
}

/* A rank dies outside any operation, soon after its last: no table reports it as inside. */
static void a_death_outside_any_operation_is_reported_as_such(void)
{
    char  job[64];
    pid_t pids[2];
    snprintf(job, sizeof job, "outside-%ld", (long)getpid());
    fflush(NULL);
    for (int rank = 0; rank < 2; rank++) {
        pids[rank] = fork();
        REQUIRE(pids[rank] >= 0);
        if (pids[rank]) continue;
        lk_context    *context;
        lk_comm       *comm;
        lk_comm_config config = LK_COMM_CONFIG_INIT;
        float          x = 1;
        alarm(60);
        setenv("LOCKSTEP_JOB", job, 1);
        config.rank = rank;
        config.world = 2;
        config.join_ms = 30000;
        config.backend = fault_backend;
        if (lk_context_create(NULL, &context) < 0 || lk_comm_create(context, &config, &comm) < 0) _exit(10);
        for (int i = 0; i < 3; i++)
            if (lk_comm_all_reduce(comm, &x, &x, 1, LK_F32, LK_SUM, NULL) < 0) _exit(11);
        if (rank == 1) {
            usleep(150000);
            raise(SIGKILL);
        }
        lk_status   status = lk_comm_barrier(comm, NULL);
        const char *line = strstr(lk_comm_error(comm), "rank 1  ");
        bool        right = status == LK_EIO && line &&
                     (strstr(line, "it was outside any operation") || strstr(line, " s ago, when it entered #"));
        if (!right) fprintf(stderr, "%s: %s\n", lk_status_name(status), lk_comm_error(comm));
        _exit(right ? 0 : 12);
    }
    int status = -1;
    waitpid(pids[0], &status, 0);
    waitpid(pids[1], NULL, 0);
    CHECK(status == 0, "rank 0 ended with %x", status);
}

/* ---- file names in tables ---- */

/* Two names 8 MiB apart: a small table hashed by address would confuse them. */
enum { APART = 8 << 20 };
static char site_names[APART + 16];

/* Rank 0 waits for rank 1 in a call from one file after a call from another: the logged table has both. */
static void call_from_two_files(rank_test *t)
{
    const char *first = site_names, *second = site_names + APART;
    REQUIRE(lk_comm_barrier_at((lk_site){first, 1}, t->comm, NULL) == LK_OK);
    if (t->rank == 1) usleep(300000);
    REQUIRE(lk_comm_barrier_at((lk_site){second, 2}, t->comm, NULL) == LK_OK);
    if (t->rank != 0) return;
    char *mine = strstr(t->log, "\n  rank 0  "), *end = mine ? strchr(mine + 1, '\n') : NULL;
    REQUIRE(end, "%s", t->log);
    *end = 0;
    CHECK(strstr(mine, " barrier at second.c:2 for ") && strstr(mine, " barrier at first.c:1"), "%s", mine);
}

static void a_table_names_the_file_of_each_call(void)
{
    lk_comm_config config = LK_COMM_CONFIG_INIT;
    config.stall_ms = 20;
    snprintf(site_names, 16, "first.c");
    snprintf(site_names + APART, 16, "second.c");
    run_faulty(2, &config, call_from_two_files, NULL);
}

/* ---- the flight record ---- */

typedef struct end {
    int            victim, how; /* a signal; 0: it aborts the group */
    lk__comm_cause cause;
    const char    *text;
} end;

/* Rank 0 of 3 stays outside. Ranks 1 and 2 form a group in which rank 2 is rank 0; the victim leaves it as in `e`. */
static int end_in_a_group(const end *e, int rank)
{
    lk_context    *context;
    lk_comm       *comm, *group;
    lk_comm_config config = LK_COMM_CONFIG_INIT;
    alarm(60);
    config.rank = rank;
    config.world = 3;
    config.join_ms = 30000;
    config.timeout_ms = 1500;
    config.backend = fault_backend;
    if (lk_context_create(NULL, &context) < 0 || lk_comm_create(context, &config, &comm) < 0) return 10;
    if (lk_comm_split(comm, rank > 0, -rank, &group) < 0 || lk_comm_barrier(group, NULL) < 0) return 11;
    if (rank == e->victim && e->how) raise(e->how);
    if (rank == e->victim) lk_comm_abort(group, "the disk is full");
    lk_status status = rank ? lk_comm_barrier(group, NULL) : LK_OK;
    if (status < 0) lk_comm_abort(comm, lk_context_error(context)); /* as a program does with its other groups */
    lk_comm_free(group);
    lk_comm_free(comm);
    lk_context_free(context);
    return rank == 0 ? status != LK_OK : status >= 0;
}

static void check_record(const end *e, const char *path)
{
    char           text[512] = "";
    lk__comm_cause cause = {0, 0};
    int64_t        pid;
    uint64_t       started;
    CHECK(lk__flight_recorder_look(path, &cause, &pid, &started) && cause.kind == e->cause.kind &&
              cause.rank == e->cause.rank,
          "way %d: the cause is rank %d with %d, not rank %d with %d", e->how, cause.rank, cause.kind, e->cause.rank,
          e->cause.kind);
    CHECK(lk__flight_recorder_read(path, text, sizeof text) && strstr(text, e->text), "way %d: not '%s': %s", e->how,
          e->text, text);
}

static void check_end(const end *e)
{
    char  path[64], job[64];
    pid_t pids[3];
    int   status = -1;
    snprintf(path, sizeof path, "/tmp/lockstep-record-%ld", (long)getpid());
    snprintf(job, sizeof job, "record-%ld-%d", (long)getpid(), e->how);
    fflush(NULL);
    for (int rank = 0; rank < 3; rank++) {
        pids[rank] = fork();
        REQUIRE(pids[rank] >= 0);
        if (pids[rank]) continue;
        setenv("LOCKSTEP_JOB", job, 1);
        if (rank == 1) setenv("LOCKSTEP_FLIGHT_RECORDER", path, 1);
        _exit(end_in_a_group(e, rank));
    }
    waitpid(pids[1], &status, 0);
    CHECK(status == 0, "way %d: rank 1 ended with %x", e->how, status);
    check_record(e, path);
    unlink(path);
    for (int rank = 0; rank < 3; rank++) {
        if (rank == 1) continue;
        kill(pids[rank], SIGKILL);
        waitpid(pids[rank], NULL, 0);
    }
}

static void a_flight_record_has_the_cause_and_the_failed_call(void)
{
    int       stopped = fault_backend ? LK__CAUSE_LATE : LK__CAUSE_STOPPED;
    const end ends[] = {{2, SIGKILL, {LK__CAUSE_DEAD, 2}, "it had failed in #3 barrier at "},
                        {2, SIGSTOP, {stopped, 2}, "it had failed in #3 barrier at "},
                        {2, 0, {LK__CAUSE_OWN, 2}, " barrier at "}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) check_end(&ends[i]);
}

static void *abort_later(void *comm)
{
    usleep(100000);
    lk_comm_abort(comm, "the disk is full");
    return NULL;
}

static void wait_for_abort(rank_test *t)
{
    pthread_t thread;
    lk_status status;
    if (t->rank == 0) REQUIRE(pthread_create(&thread, NULL, abort_later, t->comm) == 0);
    if (t->rank < 2) { /* each waits for the other; and rank 2, in a collective, for both */
        lk_work *work;
        float    x;
        status = lk_comm_recv(t->comm, &x, 1, LK_F32, 1 - t->rank, 0, &work);
        if (status >= 0) status = lk_work_wait(work);
    } else {
        status = lk_comm_barrier(t->comm, NULL);
    }
    CHECK(status == LK_ECANCELED, "rank %d: %s", t->rank, lk_status_name(status));
    CHECK(strstr(lk_comm_error(t->comm), "rank 0 of 3 aborted the group: the disk is full"), "%s",
          lk_comm_error(t->comm));
    CHECK(lk_context_error_rank(t->context) == 0, "of rank %d", lk_context_error_rank(t->context));
    if (t->rank == 0) pthread_join(thread, NULL);
}

static void abort_from_any_thread_ends_every_wait(void) { run_faulty(3, NULL, wait_for_abort, NULL); }

static void leave_group(rank_test *t)
{
    lk_comm *group;
    REQUIRE(lk_comm_split(t->comm, 0, 0, &group) == LK_OK);
    if (t->rank == 1) {
        lk_comm_free(group);
    } else {
        lk_status status = lk_comm_barrier(group, NULL);
        CHECK(status == LK_EIO, "%s", lk_status_name(status));
        CHECK(strstr(lk_comm_error(group), "rank 1 of 3") && strstr(lk_comm_error(group), "left the group"), "%s",
              lk_comm_error(group));
        lk_comm_free(group);
    }
    REQUIRE(lk_comm_barrier(t->comm, NULL) == LK_OK, "%s", lk_comm_error(t->comm)); /* the world has not failed */
}

static void a_rank_that_leaves_is_not_waited_for(void) { run_faulty(3, NULL, leave_group, NULL); }

/* ---- ranks that die or are stopped ---- */

/* Collectives of all kinds and sizes, until one fails. */
static lk_status run_random_calls(lk_comm *comm, char *ordinary, char *symmetric, size_t bytes, uint64_t seed)
{
    int ranks = lk_comm_size(comm), rank = lk_comm_rank(comm);
    for (uint64_t i = 0;; i++) {
        uint64_t bits = number_bits(seed, i);
        char    *buffer = bits >> 40 & 1 ? symmetric : ordinary,
             *second = bits >> 40 & 1 ? symmetric + bytes : ordinary + bytes;
        size_t    count = (bits >> 8 & 1 ? 100 : bytes / 4) / (size_t)ranks;
        int       root = (int)((bits >> 20) % (uint64_t)ranks);
        lk_work  *work = NULL;
        lk_status status = LK_OK;
        switch (bits % 8) {
        case 0: status = lk_comm_all_reduce(comm, buffer, buffer, count * (size_t)ranks, LK_F32, LK_SUM, NULL); break;
        case 1: status = lk_comm_broadcast(comm, buffer, count, LK_F32, root, NULL); break;
        case 2: status = lk_comm_all_gather(comm, second, buffer, count, LK_F32, NULL); break;
        case 3: status = lk_comm_reduce_scatter(comm, buffer, second, count, LK_F32, LK_SUM, NULL); break;
        case 4: status = lk_comm_all_to_all(comm, buffer, second, count, LK_F32, NULL); break;
        case 5: status = lk_comm_reduce(comm, buffer, second, count, LK_F32, LK_MAX, root, NULL); break;
        case 6:
            status = lk_comm_all_reduce(comm, buffer, buffer, count, LK_F32, LK_SUM, &work);
            if (status >= 0) status = lk_work_wait(work);
            break;
        default:
            status = lk_comm_send(comm, buffer, count, LK_F32, (rank + 1) % ranks, 5, &work);
            if (status >= 0) status = lk_comm_recv(comm, second, count, LK_F32, (rank + ranks - 1) % ranks, 5, NULL);
            if (work) {
                lk_status sent = lk_work_wait(work);
                if (status >= 0) status = sent;
            }
        }
        if (status < 0) return status;
    }
}

typedef struct fault_round {
    int ranks, victim, signal;
    lk_status (*calls)(lk_comm *comm); /* NULL: random ones */
    uint64_t seed;
    char     job[64];
} fault_round;

/* The table's text for a rank that a signal stopped. */
static const char *stopped_text(void)
{
    return fault_backend ? "is not responding, though its host is" : "stopped by a signal";
}

/* A rank's process: 0 when it got the expected error. */
static int run_fault_rank(const fault_round *w, int rank, int ready)
{
    enum { BYTES = 1 << 20 };
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_comm_config    comm_config = LK_COMM_CONFIG_INIT;
    lk_context       *context;
    lk_comm          *comm;
    void             *symmetric;
    char             *ordinary = calloc(2, BYTES), named[64];
    config.threads = 1;
    comm_config.rank = rank;
    comm_config.world = w->ranks;
    comm_config.join_ms = 30000;
    comm_config.backend = fault_backend;
    comm_config.timeout_ms = w->signal == SIGSTOP ? 1000 : 30000;
    setenv("LOCKSTEP_JOB", w->job, 1);
    if (lk_context_create(&config, &context) < 0 || lk_comm_create(context, &comm_config, &comm) < 0) return 10;
    if (lk_comm_alloc(comm, 2 * BYTES, &symmetric) < 0) return 11;
    if (write(ready, "r", 1) != 1) return 12;
    lk_status status = w->calls ? w->calls(comm) : run_random_calls(comm, ordinary, symmetric, BYTES, w->seed),
              want = w->signal == SIGSTOP ? LK_ETIMEOUT : LK_EIO;
    const char *text = lk_comm_error(comm);
    snprintf(named, sizeof named, "rank %d of %d", w->victim, w->ranks);
    /* A stopped rank may not be needed in the operation of the first rank that times out; the table marks it all the
     * same. */
    bool right = status == want && strstr(text, w->signal == SIGSTOP ? stopped_text() : "died") &&
                 (w->signal == SIGSTOP || strstr(text, named));
    if (right && lk_comm_barrier(comm, NULL) != want) right = false;
    if (!right)
        fprintf(stderr, "rank %d, where rank %d got signal %d: %s: %s (%s)\n", rank, w->victim, w->signal,
                lk_status_name(status), text, lk_context_error(context));
    lk_comm_free(comm);
    lk_context_free(context);
    free(ordinary);
    return right ? 0 : 13;
}

static void run_fault_round(const fault_round *w)
{
    pid_t pids[8];
    int   pipes[2];
    char  byte;
    check_ranks_announced(w->ranks);
    REQUIRE(pipe(pipes) == 0);
    fflush(NULL);
    for (int i = 0; i < w->ranks; i++) {
        pids[i] = fork();
        REQUIRE(pids[i] >= 0);
        if (pids[i] == 0) {
            alarm(100); /* no process is left behind, even if this test dies */
            _exit(run_fault_rank(w, i, pipes[1]));
        }
    }
    close(pipes[1]);
    for (int i = 0; i < w->ranks; i++) CHECK(read(pipes[0], &byte, 1) == 1, "a rank did not start its calls");
    usleep((useconds_t)(number_bits(w->seed, 77) % 60000));
    kill(pids[w->victim], w->signal);
    for (int i = 0; i < w->ranks; i++) {
        int status = -1;
        if (i == w->victim) continue;
        waitpid(pids[i], &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0,
              "round %llu: rank %d of %d ended with %x after rank %d got signal %d", (unsigned long long)w->seed, i,
              w->ranks, status, w->victim, w->signal);
    }
    kill(pids[w->victim], SIGKILL);
    waitpid(pids[w->victim], NULL, 0);
    close(pipes[0]);
}

static void survivors_of_a_killed_or_stopped_rank_name_it(void)
{
    for (int i = 0; i < rounds; i++) {
        fault_round w = {.ranks = 2 + i % 4, .signal = i % 4 == 3 ? SIGSTOP : SIGKILL, .seed = (uint64_t)i + 1};
        w.victim = (int)(number_bits(w.seed, 78) % (uint64_t)w.ranks);
        snprintf(w.job, sizeof w.job, "storm-%ld-%d", (long)getpid(), i);
        run_fault_round(&w);
    }
}

#endif
