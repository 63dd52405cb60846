/* test_comm_net_faults.c - the faults of test_comm_faults over tcp: ranks that make different calls, are late, die, are
 * stopped, lose a connection or leave. The argument is the number of rounds of killing, stopping and closing.
 *   ctest: timeout 300, ranks 5, label slow, label threaded */
#define _GNU_SOURCE
#include "comm_faults.h"

#include <dirent.h>
#include <sys/socket.h>

/* ---- a connection is closed ---- */

typedef struct closer {
    uint64_t seed;
    int      delay_us;
} closer;

/* Connections to other ranks, of this process. */
static int find_connections(int *fds, int most)
{
    DIR           *folder = opendir("/proc/self/fd");
    struct dirent *entry;
    int            count = 0;
    while ((entry = readdir(folder)) && count < most) {
        struct sockaddr_storage peer;
        socklen_t               length = sizeof peer;
        int                     fd = atoi(entry->d_name);
        if (fd > 2 && getpeername(fd, (struct sockaddr *)&peer, &length) == 0 && peer.ss_family == AF_INET)
            fds[count++] = fd;
    }
    closedir(folder);
    return count;
}

static void *close_one(void *argument)
{
    closer *c = argument;
    int     fds[64], count = find_connections(fds, 64);
    usleep((useconds_t)c->delay_us);
    if (count > 0) shutdown(fds[number_bits(c->seed, 5) % (uint64_t)count], SHUT_RDWR);
    return NULL;
}

/* A rank's process: 0 when it got the expected error. */
static int run_closing_rank(int rank, int ranks, bool victim, uint64_t seed)
{
    enum { BYTES = 1 << 20 };
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_comm_config    comm_config = LK_COMM_CONFIG_INIT;
    lk_context       *context;
    lk_comm          *comm;
    void             *symmetric;
    char             *ordinary = calloc(2, BYTES);
    pthread_t         thread;
    closer            c = {seed, (int)(number_bits(seed, 77) % 60000)};
    config.threads = 1;
    comm_config.rank = rank;
    comm_config.world = ranks;
    comm_config.join_ms = 30000;
    comm_config.timeout_ms = 30000;
    comm_config.backend = fault_backend;
    if (lk_context_create(&config, &context) < 0 || lk_comm_create(context, &comm_config, &comm) < 0) return 10;
    if (lk_comm_alloc(comm, 2 * BYTES, &symmetric) < 0) return 11;
    if (victim && pthread_create(&thread, NULL, close_one, &c) != 0) return 12;
    lk_status   status = run_random_calls(comm, ordinary, symmetric, BYTES, seed);
    const char *text = lk_comm_error(comm);
    bool        right = status == LK_EIO && strstr(text, "rank ") &&
                 (strstr(text, "died") || strstr(text, "closed a connection") || strstr(text, "left the group"));
    if (!right)
        fprintf(stderr, "rank %d, seed %llu: %s: %s\n", rank, (unsigned long long)seed, lk_status_name(status), text);
    if (victim) pthread_join(thread, NULL);
    if (lk_comm_barrier(comm, NULL) != LK_EIO) right = false;
    lk_comm_free(comm);
    lk_context_free(context);
    free(ordinary);
    return right ? 0 : 13;
}

static void a_closed_connection_fails_the_group_on_every_rank(void)
{
    for (int i = 0; i < rounds; i++) {
        int   ranks = 2 + i % 3, victim = i % ranks;
        pid_t pids[4];
        char  job[64];
        check_ranks_announced(ranks);
        snprintf(job, sizeof job, "closing-%ld-%d", (long)getpid(), i);
        setenv("LOCKSTEP_JOB", job, 1);
        fflush(NULL);
        for (int r = 0; r < ranks; r++) {
            REQUIRE((pids[r] = fork()) >= 0);
            if (pids[r] == 0) {
                alarm(100);
                _exit(run_closing_rank(r, ranks, r == victim, (uint64_t)i + 1000));
            }
        }
        for (int r = 0; r < ranks; r++) {
            int status = -1;
            waitpid(pids[r], &status, 0);
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "round %d: rank %d of %d ended with %x", i, r, ranks,
                  status);
        }
    }
}

/* ---- a rank is stopped during declared work ---- */

/* A rank's process: 0 when it did not wait for the one that was stopped. */
static int run_with_stopped_rank(int rank, int victim)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_comm_config    comm_config = LK_COMM_CONFIG_INIT;
    lk_context       *context;
    lk_comm          *comm;
    char              named[64];
    config.threads = 1;
    comm_config.rank = rank;
    comm_config.world = 2;
    comm_config.join_ms = 30000;
    comm_config.timeout_ms = 500;
    comm_config.backend = fault_backend;
    if (lk_context_create(&config, &context) < 0 || lk_comm_create(context, &comm_config, &comm) < 0) return 10;
    if (rank == victim) {
        lk_comm_busy_begin(comm, "saving a checkpoint");
        raise(SIGSTOP);
    }
    lk_status   status = lk_comm_barrier(comm, NULL);
    const char *text = lk_comm_error(comm);
    snprintf(named, sizeof named, "rank %d of 2", victim);
    bool right = status == LK_ETIMEOUT && strstr(text, named) && strstr(text, stopped_text()) &&
                 strstr(text, "busy with saving a checkpoint");
    if (!right) fprintf(stderr, "rank %d, with rank %d stopped: %s: %s\n", rank, victim, lk_status_name(status), text);
    lk_comm_free(comm);
    lk_context_free(context);
    return right ? 0 : 13;
}

static void a_rank_that_is_stopped_during_declared_work_is_not_waited_for(void)
{
    for (int victim = 0; victim < 2; victim++) {
        pid_t pids[2];
        char  job[64];
        int   status = -1;
        snprintf(job, sizeof job, "stopped-%ld-%d", (long)getpid(), victim);
        setenv("LOCKSTEP_JOB", job, 1);
        fflush(NULL);
        for (int r = 0; r < 2; r++) {
            REQUIRE((pids[r] = fork()) >= 0);
            if (pids[r] == 0) {
                alarm(60); /* ends it if it would wait without limit */
                _exit(run_with_stopped_rank(r, victim));
            }
        }
        waitpid(pids[!victim], &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "with rank %d stopped: ended with %x", victim, status);
        kill(pids[victim], SIGKILL);
        waitpid(pids[victim], NULL, 0);
    }
}

/* ---- a rank is stopped during a transfer, and continued ---- */

/* STOPPED_S: longer than it takes to detect a host that is cut off. */
enum { STOPPED_S = 5, TRANSFERS = 40, TRANSFER_BYTES = 64 << 20 };

/* A rank's process: `receiver` stops itself before the first transfer, so that the parent knows when they begin. */
static int run_with_paused_receiver(int rank, int receiver)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_comm_config    comm_config = LK_COMM_CONFIG_INIT;
    lk_context       *context;
    lk_comm          *comm;
    char             *data = malloc(TRANSFER_BYTES);
    config.threads = 1;
    comm_config.rank = rank;
    comm_config.world = 2;
    comm_config.join_ms = 30000;
    comm_config.backend = fault_backend;
    if (!data || lk_context_create(&config, &context) < 0 || lk_comm_create(context, &comm_config, &comm) < 0)
        return 10;
    memset(data, rank == receiver ? 0 : 42, TRANSFER_BYTES);
    lk_status status = lk_comm_barrier(comm, NULL);
    if (rank == receiver) raise(SIGSTOP);
    for (int i = 0; i < TRANSFERS && status >= 0; i++)
        status = rank == receiver ? lk_comm_recv(comm, data, TRANSFER_BYTES, LK_U8, !rank, 0, NULL)
                                  : lk_comm_send(comm, data, TRANSFER_BYTES, LK_U8, receiver, 0, NULL);
    size_t same = 0;
    while (same < TRANSFER_BYTES && data[same] == 42) same++;
    bool right = status == LK_OK && same == TRANSFER_BYTES;
    if (!right)
        fprintf(stderr, "rank %d, %zu bytes: %s: %s\n", rank, same, lk_status_name(status), lk_comm_error(comm));
    lk_comm_free(comm);
    lk_context_free(context);
    free(data);
    return right ? 0 : 13;
}

static void a_rank_that_was_stopped_during_a_transfer_completes_it(void)
{
    for (int receiver = 0; receiver < 2; receiver++) { /* the lower rank accepts the connections of the higher */
        pid_t pids[2];
        char  job[64];
        int   status = -1;
        snprintf(job, sizeof job, "paused-%ld-%d", (long)getpid(), receiver);
        setenv("LOCKSTEP_JOB", job, 1);
        fflush(NULL);
        for (int r = 0; r < 2; r++) {
            REQUIRE((pids[r] = fork()) >= 0);
            if (pids[r] == 0) {
                alarm(60);
                _exit(run_with_paused_receiver(r, receiver));
            }
        }
        waitpid(pids[receiver], &status, WUNTRACED);
        CHECK(WIFSTOPPED(status), "rank %d ended with %x", receiver, status);
        kill(pids[receiver], SIGCONT);
        usleep(100000);
        kill(pids[receiver], SIGSTOP);
        sleep(STOPPED_S);
        kill(pids[receiver], SIGCONT);
        for (int r = 0; r < 2; r++) {
            waitpid(pids[r], &status, 0);
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank %d was stopped: rank %d ended with %x", receiver,
                  r, status);
        }
    }
}

/* ---- a rank leaves while another has not read its messages ---- */

enum { MESSAGES = 3000, MESSAGE_BYTES = 64 }; /* so short that each is sent without waiting for its receiver */

/* So that they hold a small part of the messages. */
static void shrink_buffers(void)
{
    int fds[16], count = find_connections(fds, 16);
    for (int i = 0; i < count; i++) {
        setsockopt(fds[i], SOL_SOCKET, SO_SNDBUF, &(int){32768}, sizeof(int));
        setsockopt(fds[i], SOL_SOCKET, SO_RCVBUF, &(int){32768}, sizeof(int));
    }
}

/* A rank's process: rank 1 stops itself, rank 0 sends it all messages, reports that on `sent`, and leaves. */
static int run_leaving_rank(int rank, int sent)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_comm_config    comm_config = LK_COMM_CONFIG_INIT;
    lk_context       *context;
    lk_comm          *comm;
    char              data[MESSAGE_BYTES];
    config.threads = 1;
    comm_config.rank = rank;
    comm_config.world = 2;
    comm_config.join_ms = 30000;
    comm_config.backend = fault_backend;
    if (lk_context_create(&config, &context) < 0 || lk_comm_create(context, &comm_config, &comm) < 0) return 10;
    shrink_buffers();
    lk_status status = lk_comm_barrier(comm, NULL);
    if (rank == 1) raise(SIGSTOP);
    for (int i = 0; i < MESSAGES && status >= 0; i++) {
        memset(data, rank == 0 ? i & 127 : -1, sizeof data);
        status = rank == 1 ? lk_comm_recv(comm, data, sizeof data, LK_U8, 0, 0, NULL)
                           : lk_comm_send(comm, data, sizeof data, LK_U8, 1, 0, NULL);
        if (status < 0) fprintf(stderr, "rank %d, message %d: %s\n", rank, i, lk_comm_error(comm));
        if (data[0] != (i & 127) || data[MESSAGE_BYTES - 1] != (i & 127)) status = LK_EIO;
    }
    if (rank == 0 && write(sent, "s", 1) != 1) status = LK_EIO;
    lk_comm_free(comm);
    lk_context_free(context);
    return status < 0 ? 13 : 0;
}

static void start_leaving_ranks(const char *name, pid_t *pids, int *sent)
{
    char job[64];
    int  ends[2], status = -1;
    snprintf(job, sizeof job, "%s-%ld", name, (long)getpid());
    setenv("LOCKSTEP_JOB", job, 1);
    REQUIRE(pipe(ends) == 0);
    fflush(NULL);
    for (int r = 0; r < 2; r++) {
        REQUIRE((pids[r] = fork()) >= 0);
        if (pids[r] == 0) {
            alarm(60);
            if (r == 1) close(ends[1]); /* so that its end shows that rank 0 has ended */
            _exit(run_leaving_rank(r, ends[1]));
        }
    }
    close(ends[1]);
    *sent = ends[0];
    waitpid(pids[1], &status, WUNTRACED);
    CHECK(WIFSTOPPED(status), "rank 1 ended with %x", status);
}

static void messages_of_a_rank_that_leaves_arrive_at_one_that_reads_them_later(void)
{
    pid_t pids[2];
    int   sent, status = -1;
    char  byte;
    start_leaving_ranks("reads-later", pids, &sent);
    bool all = read(sent, &byte, 1) == 1;
    CHECK(all, "rank 0 did not send its messages");
    usleep(200000); /* it leaves meanwhile */
    kill(pids[1], all ? SIGCONT : SIGKILL);
    for (int r = 0; r < 2; r++) {
        waitpid(pids[r], &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank %d ended with %x", r, status);
    }
    close(sent);
}

static void leaving_a_group_does_not_wait_without_limit_for_a_stopped_rank(void)
{
    pid_t pids[2];
    int   sent, status = -1;
    start_leaving_ranks("never-reads", pids, &sent);
    waitpid(pids[0], &status, 0); /* a minute would be too late */
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank 0 ended with %x", status);
    kill(pids[1], SIGKILL);
    waitpid(pids[1], NULL, 0);
    close(sent);
}

int main(int argc, char **argv)
{
    if (argc > 1) rounds = atoi(argv[1]);
    fault_backend = "tcp";
    int before = open_descriptors();
    RUN(survivors_of_a_killed_or_stopped_rank_name_it);
    RUN(a_closed_connection_fails_the_group_on_every_rank);
    if (argc <= 1) {
        RUN(a_rank_that_is_stopped_during_declared_work_is_not_waited_for);
        RUN(a_rank_that_was_stopped_during_a_transfer_completes_it);
        RUN(messages_of_a_rank_that_leaves_arrive_at_one_that_reads_them_later);
        RUN(leaving_a_group_does_not_wait_without_limit_for_a_stopped_rank);
        RUN(a_mismatch_fails_on_every_rank_with_one_table);
        RUN(a_transfer_of_another_size_is_a_mismatch);
        RUN(a_transfer_against_a_collective_is_a_mismatch_before_the_deadline);
        RUN(a_message_may_be_received_after_a_collective);
        RUN(a_rank_that_misses_a_deadline_is_named_on_every_rank);
        RUN(declared_work_does_not_count_towards_the_deadline);
        RUN(declared_work_of_one_excuses_no_other);
        RUN(a_death_outside_any_operation_is_reported_as_such);
        RUN(a_table_names_the_file_of_each_call);
        RUN(a_flight_record_has_the_cause_and_the_failed_call);
        RUN(abort_from_any_thread_ends_every_wait);
        RUN(a_rank_that_leaves_is_not_waited_for);
    }
    CHECK(open_descriptors() == before, "%d descriptors are open, %d were", open_descriptors(), before);
    return check_result();
}
