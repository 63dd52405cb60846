/* test_rendezvous_limits.c - the rendezvous of one host and of several under adverse conditions: few descriptors,
 * signals, a rank 0 that sends nothing, many foreign connections, ranks that leave and join again.
 *   ctest: timeout 200, ranks 3, label threaded */
#define _GNU_SOURCE
#include "comm_joiner.h"

#include "comm/rendezvous/handshake.h"
#include "comm/rendezvous/local.h"
#include "comm/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>

/* ---- descriptors ---- */

static void too_few_descriptors_are_reported(void)
{
    int    port = free_port(AF_INET);
    joiner j = {.rank = 1, .world = 2, .join_ms = 1500, .address = "127.0.0.1", .port = port};
    joiner other = {.rank = 0, .world = 2, .join_ms = 1500, .address = "127.0.0.1", .port = port};
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit limit = {6, 6};
        alarm(60);
        for (int i = 0; i < 3; i++) (void)!open("/dev/null", O_RDONLY | O_CLOEXEC);
        setrlimit(RLIMIT_NOFILE, &limit);
        join_thread(&j);
        if (!strstr(j.text, "Too many open files")) fprintf(stderr, "the error was: %s\n", j.text);
        _exit(j.status < 0 && strstr(j.text, "Too many open files") ? 0 : 1);
    }
    join_thread(&other);
    CHECK(other.status < 0 && strstr(other.text, "rank 1 of 2"), "%s", other.text);
    int status = -1;
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "ended with %x", status);
}

/* Limits the process to `limit` descriptors, and opens all but `left` of them (-1: none). */
static void limit_descriptors(rlim_t limit, int left)
{
    struct rlimit r = {limit, limit};
    int           last = -1, fd;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &r) == 0);
    while (left >= 0 && (fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) last = fd;
    for (int i = 0; i < left; i++) close(last - i);
}

static void forty_descriptors_are_enough_for_two(void)
{
    for (int unix_socket = 0; unix_socket < 2; unix_socket++) {
        joiner two[2];
        int    status = -1, port = unix_socket ? 0 : free_port(AF_INET);
        fflush(NULL);
        for (int i = 0; i < 2; i++)
            two[i] = (joiner){.rank = i, .world = 2, .address = unix_socket ? NULL : "127.0.0.1", .port = port};
        pid_t pid = fork();
        if (pid == 0) {
            check_failures = 0;
            alarm(60);
            limit_descriptors(40, -1);
            join_all(two, 2);
            expect_sum(two, 2);
            _exit(check_result());
        }
        waitpid(pid, &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "ended with %x", status);
    }
}

/* Rank 0 listens and cannot accept: its error names that, not the other ranks. */
static void rank_0_reports_that_its_own_descriptors_ran_out(void)
{
    for (int unix_socket = 0; unix_socket < 2; unix_socket++) {
        int    status = -1, port = unix_socket ? 0 : free_port(AF_INET);
        joiner host = {.rank = 0,
                       .world = 2,
                       .join_ms = 1500,
                       .address = unix_socket ? NULL : "127.0.0.1",
                       .port = port},
               other = host;
        other.rank = 1;
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
            alarm(60);
            limit_descriptors(100, unix_socket ? 2 : 1); /* for the listeners */
            join_thread(&host);
            bool right = host.status == LK_EIO &&
                         strstr(host.text, "rank 0 of 2 could not accept a connection from rank 1") &&
                         strstr(host.text, "limit 100") && strstr(host.text, "ulimit -n");
            if (!right) fprintf(stderr, "the error was: %s\n", host.text);
            _exit(right ? 0 : 1);
        }
        join_thread(&other);
        CHECK(other.status == LK_ETIMEOUT, "%s", other.text);
        waitpid(pid, &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "ended with %x", status);
    }
}

/* ---- signals ---- */

static volatile sig_atomic_t ticks;

static void tick(int signal)
{
    (void)signal;
    ticks++;
}

/* A timer like a profiler's; microseconds 0: stops it. Restartable calls are restarted; poll is not. */
static void tick_every(int microseconds)
{
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    struct itimerval timer = {{0, microseconds}, {0, microseconds}};
    REQUIRE(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

/* A process that accepts where rank 0 should, sends `message`, then nothing, until it is killed. */
static pid_t start_silent_listener(int listener, const void *message, size_t bytes)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid != 0) return pid;
    alarm(60);
    for (;;) {
        int accepted = accept(listener, NULL, NULL);
        (void)!send(accepted, message, bytes, MSG_NOSIGNAL);
    }
}

/* The socket of this test's job, LOCKSTEP_JOB=odds, on one host. */
static socklen_t own_address(struct sockaddr_un *address)
{
    int n =
        snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "lockstep/%u/job-odds-0", (unsigned)geteuid());
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static int listen_as(bool unix_socket, int port)
{
    struct sockaddr_un near = {.sun_family = AF_UNIX};
    struct sockaddr_in far = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    int       fd = socket(unix_socket ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t length = unix_socket ? own_address(&near) : sizeof far;
    REQUIRE(bind(fd, unix_socket ? (struct sockaddr *)&near : (struct sockaddr *)&far, length) == 0 &&
            listen(fd, 8) == 0);
    return fd;
}

/* The exit status; -1: it had to be killed. */
static int wait_for(pid_t pid, int seconds)
{
    int status = -1;
    for (int i = 0; i < seconds * 100; i++) {
        if (waitpid(pid, &status, WNOHANG) == pid) return status;
        usleep(10000);
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return -1;
}

static void the_deadline_holds_with_a_silent_rank_0_and_signals(void)
{
    lk__rendezvous_challenge challenge;
    REQUIRE(lk__challenge_make(&challenge));
    for (int round = 0; round < 4; round++) {
        bool   unix_socket = round & 1, challenges = round & 2;
        int    port = unix_socket ? 0 : free_port(AF_INET), fd = listen_as(unix_socket, port);
        joiner lost = {
            .rank = 1, .world = 2, .join_ms = 800, .address = unix_socket ? NULL : "127.0.0.1", .port = port};
        pid_t silent = start_silent_listener(fd, &challenge, challenges ? sizeof challenge : 0), pid = fork();
        if (pid == 0) {
            tick_every(100000);
            join_thread(&lost);
            bool right = lost.status == LK_ETIMEOUT && ticks > 2;
            if (!right) fprintf(stderr, "after %d ticks the error was: %s\n", (int)ticks, lost.text);
            _exit(right ? 0 : 1);
        }
        CHECK(wait_for(pid, 20) == 0, "%s, %s", unix_socket ? "unix" : "tcp",
              challenges ? "with a challenge" : "without a challenge");
        kill(silent, SIGKILL);
        waitpid(silent, NULL, 0);
        close(fd);
    }
}

/* A process that listens where rank 0 should, receives a request, and dies. */
static pid_t start_dying_listener(const lk__rendezvous_challenge *challenge)
{
    lk__rendezvous_request request;
    fflush(NULL);
    pid_t pid = fork();
    if (pid != 0) return pid;
    alarm(60);
    int listener = listen_as(true, 0),
        accepted = accept(listener, NULL, NULL); /* the process that listens is the peer that others see */
    (void)!send(accepted, challenge, sizeof *challenge, MSG_NOSIGNAL);
    (void)!recv(accepted, &request, sizeof request, MSG_WAITALL);
    raise(SIGKILL);
    _exit(1);
}

static void a_rank_0_that_dies_during_the_rendezvous_is_not_waited_for(void)
{
    lk__rendezvous_challenge challenge;
    joiner                   left = {.rank = 1, .world = 2, .join_ms = 100000};
    REQUIRE(lk__challenge_make(&challenge));
    pid_t dying = start_dying_listener(&challenge), pid = fork();
    if (pid == 0) {
        join_thread(&left);
        bool right = left.status == LK_EIO && strstr(left.text, "rank 0 of 2 (process ") &&
                     strstr(left.text, " died before all ranks had joined");
        if (!right) fprintf(stderr, "the error was: %s\n", left.text);
        _exit(right ? 0 : 1);
    }
    CHECK(wait_for(pid, 50) == 0, "the rank waited on");
    waitpid(dying, NULL, 0);
}

/* With a full backlog, connect itself would block. */
static void the_deadline_holds_with_a_full_backlog(void)
{
    int    fd = listen_as(true, 0);
    joiner lost = {.rank = 1, .world = 2, .join_ms = 400};
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        struct sockaddr_un address;
        socklen_t          length = sizeof address;
        getsockname(fd, (struct sockaddr *)&address, &length);
        for (int full = 0; !full;)
            full = connect(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0), (struct sockaddr *)&address, length) != 0;
        join_thread(&lost);
        if (!strstr(lost.text, "accepts no connections")) fprintf(stderr, "the error was: %s\n", lost.text);
        _exit(lost.status == LK_ETIMEOUT && strstr(lost.text, "accepts no connections") ? 0 : 1);
    }
    CHECK(wait_for(pid, 20) == 0);
    close(fd);
}

static atomic_bool interrupting, slow;

/* Replaces the C library's, and behaves as in older kernels: a signal ends and undoes the call, and only short ones
 * complete between two ticks; or as on a machine that has to free memory first. */
int fallocate(int fd, int mode, off_t at, off_t bytes)
{
    static atomic_int calls;
    if (slow) usleep(100000);
    if (interrupting && (bytes > 4 << 20 || atomic_fetch_add(&calls, 1) % 3 == 0)) {
        errno = EINTR;
        return -1;
    }
    return (int)syscall(SYS_fallocate, fd, mode, at, bytes);
}

static void *read_slowly(void *argument)
{
    int   *fd = argument;
    char   part[4096];
    size_t total = 0;
    for (ssize_t n; (n = read(*fd, part, sizeof part)) != 0;) {
        if (n > 0) total += (size_t)n;
        usleep(100);
    }
    return (void *)total;
}

static void signals_lose_no_bytes_and_no_memory(void)
{
    enum { BYTES = 4 << 20, SHARED_BYTES = 33 << 20 };
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        int               pair[2];
        pthread_t         reader;
        void             *total, *memory;
        char             *bytes = calloc(1, BYTES);
        sigset_t          alarms;
        lk_context_config config = LK_CONTEXT_CONFIG_INIT;
        lk_context       *context;
        check_failures = 0;
        config.threads = 1;
        REQUIRE(bytes && lk_context_create(&config, &context) == LK_OK);
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
        sigemptyset(&alarms);
        sigaddset(&alarms, SIGALRM);
        pthread_sigmask(SIG_BLOCK, &alarms, NULL); /* in the reader: all signals go to the writer */
        REQUIRE(pthread_create(&reader, NULL, read_slowly, &pair[1]) == 0);
        pthread_sigmask(SIG_UNBLOCK, &alarms, NULL);
        tick_every(2000);
        CHECK(lk__write_whole(pair[0], bytes, BYTES, seconds_now() + 60), "%s", strerror(errno));
        shutdown(pair[0], SHUT_WR);
        pthread_join(reader, &total);
        CHECK((size_t)total == BYTES, "%zu bytes were received", (size_t)total);
        tick_every(0);
        interrupting = true;
        lk__rendezvous_local alone = {context, "alone", token, 0, 1, 60, NULL, NULL, NULL, NULL, NULL};
        CHECK(lk__rendezvous_share(&alone, SHARED_BYTES, &memory) == LK_OK, "%s", lk_context_error(context));
        CHECK(ticks > 5, "%d ticks", (int)ticks);
        lk__rendezvous_unmap(memory, SHARED_BYTES);
        lk_context_free(context);
        free(bytes);
        _exit(check_result());
    }
    CHECK(wait_for(pid, 90) == 0);
}

typedef struct sharer {
    lk__rendezvous_local rendezvous;
    size_t               bytes;
    lk_status            status;
    char                 text[512];
} sharer;

static void *share_memory(void *argument)
{
    sharer           *s = argument;
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    void             *memory;
    config.threads = 1;
    REQUIRE(lk_context_create(&config, &s->rendezvous.context) == LK_OK);
    s->status = lk__rendezvous_share(&s->rendezvous, s->bytes, &memory);
    snprintf(s->text, sizeof s->text, "%s", lk_context_error(s->rendezvous.context));
    lk__rendezvous_unmap(memory, s->bytes);
    lk_context_free(s->rendezvous.context);
    return NULL;
}

/* The deadline is for ranks to join: 40 MiB in 20 pieces take 2 s at least, and the ranks wait as long as rank 0 works
 * on them. */
static void time_to_allocate_memory_does_not_count_towards_the_deadline(void)
{
    sharer    sharers[3];
    pthread_t threads[3];
    char      key[32];
    snprintf(key, sizeof key, "slow-%ld", (long)getpid());
    slow = true;
    for (int i = 0; i < 3; i++) {
        sharers[i] =
            (sharer){.bytes = 40 << 20, .rendezvous = {.key = key, .token = token, .rank = i, .size = 3, .seconds = 1}};
        REQUIRE(pthread_create(&threads[i], NULL, share_memory, &sharers[i]) == 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        CHECK(sharers[i].status == LK_OK, "rank %d: %s", i, sharers[i].text);
    }
    slow = false;
}

/* ---- connections on one host ---- */

/* Connects to rank 0's Unix socket, once it listens. */
static int connect_here(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t          length = own_address(&address);
    int                fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    for (int i = 0; i < 1000; i++) {
        if (connect(fd, (struct sockaddr *)&address, length) == 0) return fd;
        usleep(2000);
    }
    close(fd);
    return -1;
}

/* Each gets a challenge, and then sends something else. */
static void *send_invalid_requests(void *argument)
{
    int *reached = argument;
    char challenge[8], garbage[400] = "GET / HTTP/1.1\r\n\r\n";
    for (int i = 0; i < 200; i++) {
        int fd = connect_here();
        if (recv(fd, challenge, sizeof challenge, 0) > 0)
            *reached += send(fd, garbage, sizeof garbage, MSG_NOSIGNAL) > 0;
        close(fd);
    }
    return NULL;
}

static int count_lines(const char *text, const char *with)
{
    int count = 0;
    for (; (text = strstr(text, with)); text++) count++;
    return count;
}

static void log_lines_about_foreign_connections_are_limited(void)
{
    joiner    two[2] = {{.rank = 0, .world = 2}, {.rank = 1, .world = 2}};
    pthread_t threads[2];
    int       reached = 0;
    REQUIRE(pthread_create(&threads[0], NULL, join_thread, &two[0]) == 0);
    REQUIRE(pthread_create(&threads[1], NULL, send_invalid_requests, &reached) == 0);
    pthread_join(threads[1], NULL);
    join_thread(&two[1]);
    pthread_join(threads[0], NULL);
    expect_sum(two, 2);
    CHECK(reached == 200, "only %d connections were made", reached);
    CHECK(count_lines(two[0].log, "from process") == 16 && count_lines(two[0].log, " more connections") == 1,
          "the log is: %s", two[0].log);
}

/* Joins as a rank does, is authenticated, and disconnects before all have joined. */
static void join_and_disconnect(int port)
{
    lk__rendezvous_challenge challenge;
    lk__rendezvous_request   request = {.purpose = port ? LK__TO_JOIN : LK__TO_SHARE, .rank = 1, .size = 3};
    int                      fd = port ? connect_to(port) : connect_here();
    REQUIRE(fd >= 0 && lk__read_whole(fd, &challenge, sizeof challenge, seconds_now() + 20));
    lk__endpoint_make(NULL, &request.endpoint);
    request.endpoint.address = (lk__rendezvous_address){.family = 4, .port = 9};
    REQUIRE(lk__request_sign(&request, &challenge, token) &&
            lk__write_whole(fd, &request, sizeof request, seconds_now() + 20));
    usleep(100000);
    close(fd);
    usleep(100000);
}

static void a_rank_that_disconnected_may_join_again(void)
{
    for (int unix_socket = 0; unix_socket < 2; unix_socket++) {
        int       port = unix_socket ? 0 : free_port(AF_INET);
        joiner    all[3];
        pthread_t thread;
        for (int i = 0; i < 3; i++)
            all[i] = (joiner){.rank = i, .world = 3, .address = unix_socket ? NULL : "127.0.0.1", .port = port};
        REQUIRE(pthread_create(&thread, NULL, join_thread, &all[0]) == 0);
        join_and_disconnect(port);
        join_all(all + 1, 2);
        pthread_join(thread, NULL);
        expect_sum(all, 3);
    }
}

int main(void)
{
    int before = open_descriptors();
    setenv("LOCKSTEP_JOB", "odds", 1);
    setenv("LOCKSTEP_TOKEN", token, 1);
    RUN(too_few_descriptors_are_reported);
    RUN(forty_descriptors_are_enough_for_two);
    RUN(rank_0_reports_that_its_own_descriptors_ran_out);
    RUN(a_rank_0_that_dies_during_the_rendezvous_is_not_waited_for);
    RUN(the_deadline_holds_with_a_silent_rank_0_and_signals);
    RUN(the_deadline_holds_with_a_full_backlog);
    RUN(signals_lose_no_bytes_and_no_memory);
    RUN(time_to_allocate_memory_does_not_count_towards_the_deadline);
    RUN(log_lines_about_foreign_connections_are_limited);
    RUN(a_rank_that_disconnected_may_join_again);
    CHECK(open_descriptors() == before, "%d descriptors are open, %d were", open_descriptors(), before);
    return check_result();
}
