/* test_rendezvous.c - the rendezvous over a network, on this host's loopback: joining, missing and foreign ranks, and
 * the errors for a wrong address, port or token.
 *   ctest: timeout 200, ranks 5, label slow, label threaded */
#define _GNU_SOURCE
#include "base/environment.h"
#include "comm_joiner.h"

#include "comm/rendezvous/handshake.h"
#include "comm/rendezvous/identity.h"

#include <fcntl.h>
#include <netdb.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

static bool resolves(const char *name)
{
    struct addrinfo *list;
    if (getaddrinfo(name, NULL, NULL, &list) != 0) return false;
    freeaddrinfo(list);
    return true;
}

static void ranks_join_over_ipv4_ipv6_and_by_name(void)
{
    static const struct {
        const char *address;
        int         family;
    } addresses[] = {{"127.0.0.1", AF_INET}, {"localhost", AF_INET}, {"::1", AF_INET6}};
    for (int w = 0; w < 3; w++) {
        joiner joiners[5];
        int    port = free_port(addresses[w].family);
        if (!port) {
            printf("     no %s here: skipped\n", addresses[w].address);
            continue;
        }
        if (!resolves(addresses[w].address)) continue; /* main reports it */
        for (int i = 0; i < 5; i++)
            joiners[i] = (joiner){.rank = i, .world = 5, .address = addresses[w].address, .port = port};
        join_all(joiners, 5);
        expect_sum(joiners, 5);
    }
}

/* In a range: rank 0 takes the first that is free, and the others connect to it. */
static void ranks_listen_within_the_range_of_ports(void)
{
    int                first = free_port(AF_INET), one = 1;
    char               range[32];
    joiner             joiners[3];
    struct sockaddr_in taken = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (first > 65500) first -= 64;
    taken.sin_port = htons((uint16_t)first);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    REQUIRE(bind(fd, (struct sockaddr *)&taken, sizeof taken) == 0 && listen(fd, 8) == 0);
    snprintf(range, sizeof range, "%d-%d", first, first + 12);
    setenv("LOCKSTEP_PORT", range, 1);
    for (int i = 0; i < 3; i++) joiners[i] = (joiner){.rank = i, .world = 3, .address = "127.0.0.1"};
    join_all(joiners, 3);
    expect_sum(joiners, 3);
    close(fd);
    setenv("LOCKSTEP_PORT", "70000", 1);
    joiner wrong = {.rank = 0, .world = 2, .address = "127.0.0.1"};
    join_thread(&wrong);
    CHECK(wrong.status == LK_EINVAL && strstr(wrong.text, "'70000'"), "%s", wrong.text);
    unsetenv("LOCKSTEP_PORT");
}

static void errors_name_the_address_and_the_answer(void)
{
    /* A label of a name is at most 63 characters long (RFC 1035): so no server is queried for this one. */
    static const char name[] = "a-name-of-more-than-sixty-three-characters-which-no-server-is-asked-about.invalid";
    joiner            unknown = {.rank = 1, .world = 2, .join_ms = 300, .address = name, .port = 4000};
    join_thread(&unknown);
    CHECK(unknown.status == LK_ENOENT && strstr(unknown.text, "asked-about.invalid' does not resolve"), "%s",
          unknown.text);

    joiner refused = {.rank = 1, .world = 2, .join_ms = 300, .address = "127.0.0.1", .port = free_port(AF_INET)};
    char   where[64];
    snprintf(where, sizeof where, "127.0.0.1:%d: connection refused", refused.port);
    join_thread(&refused);
    CHECK(refused.status == LK_ETIMEOUT && strstr(refused.text, "rank 0 of 2 is not reachable") &&
              strstr(refused.text, where),
          "%s", refused.text);

    /* An address for documentation (RFC 5737): no host has it, so rank 0 cannot listen on it; nothing is sent. */
    joiner elsewhere = {.rank = 0, .world = 2, .join_ms = 300, .address = "192.0.2.7", .port = 4000};
    join_thread(&elsewhere);
    CHECK(elsewhere.status == LK_EIO && strstr(elsewhere.text, "rank 0 must run on the host that has this address"),
          "%s", elsewhere.text);

    joiner nowhere = {.rank = 1, .world = 2, .address = "127.0.0.1"};
    join_thread(&nowhere);
    CHECK(nowhere.status == LK_EINVAL && strstr(nowhere.text, "LOCKSTEP_PORT"), "%s", nowhere.text);
}

/* Something else listens where rank 0 should, and sends other data. */
static void a_foreign_listener_is_reported(void)
{
    int                port = free_port(AF_INET), one = 1;
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    REQUIRE(bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 8) == 0);
    pid_t other = fork();
    if (other == 0) {
        alarm(20);
        for (;;) {
            int accepted = accept(fd, NULL, NULL);
            (void)!write(accepted, "220 mail.example.org ESMTP ready when you are, please speak up\r\n", 64);
            close(accepted);
        }
    }
    joiner lost = {.rank = 1, .world = 2, .join_ms = 400, .address = "127.0.0.1", .port = port};
    join_thread(&lost);
    CHECK(lost.status == LK_ETIMEOUT && strstr(lost.text, "does not speak rank 0's protocol"), "%s", lost.text);
    kill(other, SIGKILL);
    waitpid(other, NULL, 0);
    close(fd);
}

static void missing_ranks_are_named(void)
{
    int    port = free_port(AF_INET);
    joiner two[2] = {{.rank = 0, .world = 4, .join_ms = 700, .address = "127.0.0.1", .port = port},
                     {.rank = 2, .world = 4, .join_ms = 700, .address = "127.0.0.1", .port = port}};
    join_all(two, 2);
    for (int i = 0; i < 2; i++)
        CHECK(two[i].status == LK_ETIMEOUT && strstr(two[i].text, "ranks 1, 3 of 4 did not join") &&
                  strstr(two[i].text, "127.0.0.1:"),
              "%s", two[i].text);
}

/* The token comes from the environment, so this joiner is a process. */
static int join_with_token(const char *wrong, joiner *j, const char *expected)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        setenv("LOCKSTEP_TOKEN", wrong, 1);
        join_thread(j);
        if (!strstr(j->text, expected)) fprintf(stderr, "the error was: %s\n", j->text);
        _exit(j->status == LK_EINVAL && strstr(j->text, expected) ? 0 : 1);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    return status;
}

typedef struct intruder {
    int port, reached;
} intruder;

/* Garbage, a huge length, a valid magic with nothing after it, a request with another token, and nothing at all. */
static void *send_invalid_requests(void *argument)
{
    intruder                *s = argument;
    char                     garbage[8192];
    lk__rendezvous_challenge challenge;
    lk__rendezvous_request   request = {.purpose = LK__TO_JOIN, .rank = 1, .size = 2};
    int                      fds[100], count = 0;
    memset(garbage, 0xff, sizeof garbage);
    for (int i = 0; i < 100; i++) {
        int fd = connect_to(s->port);
        if (fd < 0) break;
        fds[count++] = fd;
        s->reached++;
        switch (i % 5) {
        case 0: (void)!send(fd, garbage, sizeof garbage, MSG_NOSIGNAL); break;
        case 1: (void)!send(fd, "\xff\xff\xff\x7f\xff\xff\xff\x7f", 8, MSG_NOSIGNAL); break;
        case 2: (void)!send(fd, "lknet03", 8, MSG_NOSIGNAL); break;
        case 3:
            if (recv(fd, &challenge, sizeof challenge, MSG_WAITALL) != sizeof challenge) break;
            lk__endpoint_make(NULL, &request.endpoint);
            request.endpoint.address = (lk__rendezvous_address){.family = 4, .port = 9};
            lk__request_sign(&request, &challenge, "another token, of the right length");
            (void)!send(fd, &request, sizeof request, MSG_NOSIGNAL);
            break;
        default: break;
        }
    }
    usleep(300000);
    for (int i = 0; i < count; i++) close(fds[i]);
    return NULL;
}

static void foreign_connections_are_dropped_without_effect(void)
{
    int      port = free_port(AF_INET);
    intruder s = {.port = port};
    joiner   late[2] = {{.rank = 1, .world = 3, .address = "127.0.0.1", .port = port},
                        {.rank = 2, .world = 3, .address = "127.0.0.1", .port = port}},
           first = {.rank = 0, .world = 3, .address = "127.0.0.1", .port = port};
    pthread_t threads[2];
    REQUIRE(pthread_create(&threads[0], NULL, join_thread, &first) == 0);
    REQUIRE(pthread_create(&threads[1], NULL, send_invalid_requests, &s) == 0);
    usleep(200000); /* while they are connected */
    join_all(late, 2);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    CHECK(s.reached > 10, "only %d connections were made", s.reached);
    joiner all[3] = {first, late[0], late[1]};
    expect_sum(all, 3);
    CHECK(strstr(first.log, "from 127.0.0.1:") && strstr(first.log, "does not speak this protocol") &&
              strstr(first.log, "wrong token"),
          "the log is: %s", first.log);
}

static void ranks_of_another_job_are_refused(void)
{
    int       port = free_port(AF_INET);
    joiner    first = {.rank = 0, .world = 2, .address = "127.0.0.1", .port = port};
    joiner    other = {.rank = 1, .world = 3, .address = "127.0.0.1", .port = port};
    joiner    wrong = {.rank = 1, .world = 2, .address = "127.0.0.1", .port = port};
    joiner    right = {.rank = 1, .world = 2, .address = "127.0.0.1", .port = port};
    pthread_t thread;
    /* Before there are threads: a child is forked. */
    fflush(NULL);
    pid_t host = fork();
    if (host == 0) {
        alarm(60);
        join_thread(&first);
        _exit(first.status == LK_OK && first.sum == 3 && strstr(first.log, "wrong token") ? 0 : 1);
    }
    CHECK(join_with_token("fedcba9876543210", &wrong, "wrong token") == 0);
    REQUIRE(pthread_create(&thread, NULL, join_thread, &other) == 0);
    pthread_join(thread, NULL);
    CHECK(other.status == LK_EMISMATCH && strstr(other.text, "world size of 2, but this rank has 3"), "%s", other.text);
    join_thread(&right);
    CHECK(right.status == LK_OK && right.sum == 3, "%s", right.text);
    int status = -1;
    waitpid(host, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank 0 ended with %x", status);
}

/* ---- jobs that share a range of ports ---- */

/* Sets LOCKSTEP_PORT to a range, and starts a process that is rank 0 of two at its first port: another job, which ends
 * successfully once its rank 1 joins. */
static pid_t start_other_job(const char *its_token, int *port)
{
    joiner first = {.rank = 0, .world = 2, .address = "127.0.0.1"};
    char   range[32];
    *port = free_port(AF_INET);
    if (*port > 65500) *port -= 64;
    snprintf(range, sizeof range, "%d-%d", *port, *port + 12);
    setenv("LOCKSTEP_PORT", range, 1);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        setenv("LOCKSTEP_TOKEN", its_token, 1);
        join_thread(&first);
        if (first.status < 0) fprintf(stderr, "the other job's rank 0: %s\n", first.text);
        _exit(first.status == LK_OK && first.sum == 3 ? 0 : 1);
    }
    close(connect_to(*port)); /* it listens */
    return pid;
}

static void end_other_job(pid_t pid, const char *its_token)
{
    joiner rank_1 = {.rank = 1, .world = 2, .address = "127.0.0.1"};
    int    status = -1;
    fflush(NULL);
    pid_t other = fork();
    if (other == 0) {
        setenv("LOCKSTEP_TOKEN", its_token, 1);
        join_thread(&rank_1);
        _exit(rank_1.status == LK_OK && rank_1.sum == 3 ? 0 : 1);
    }
    waitpid(other, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "its rank 1 ended with %x", status);
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "its rank 0 ended with %x", status);
    unsetenv("LOCKSTEP_PORT");
}

static void ranks_pass_over_a_job_with_another_token(void)
{
    static const char theirs[] = "fedcba9876543210";
    int               port;
    char              where[64];
    joiner            lost = {.rank = 1, .world = 2, .join_ms = 700, .address = "127.0.0.1"}, two[2];
    pid_t             pid = start_other_job(theirs, &port);
    join_thread(&lost); /* its rank 0 is not there */
    snprintf(where, sizeof where, "the process that listens on 127.0.0.1:%d has another token", port);
    CHECK(lost.status == LK_ETIMEOUT && strstr(lost.text, "rank 0 of 2 is not reachable") && strstr(lost.text, where),
          "%s", lost.text);
    for (int i = 0; i < 2; i++) two[i] = (joiner){.rank = i, .world = 2, .address = "127.0.0.1"};
    join_all(two, 2);
    expect_sum(two, 2);
    end_other_job(pid, theirs);
}

/* Its ranks would join the first job. */
static void a_second_job_with_the_same_token_is_refused(void)
{
    int    port;
    char   where[128];
    joiner second = {.rank = 0, .world = 3, .join_ms = 1500, .address = "127.0.0.1"};
    pid_t  pid = start_other_job(token, &port);
    join_thread(&second);
    snprintf(where, sizeof where, "another job with this token waits for its ranks at 127.0.0.1:%d (process %d ", port,
             (int)pid);
    CHECK(second.status == LK_EINVAL && strstr(second.text, where) && strstr(second.text, "LOCKSTEP_PORT"), "%s",
          second.text);
    /* Also where an earlier port has become free since the first job began to wait. */
    char range[32];
    snprintf(range, sizeof range, "%d-%d", port - 3, port + 12);
    setenv("LOCKSTEP_PORT", range, 1);
    join_thread(&second);
    CHECK(second.status == LK_EINVAL && strstr(second.text, where), "%s", second.text);
    snprintf(range, sizeof range, "%d-%d", port, port + 12);
    setenv("LOCKSTEP_PORT", range, 1);
    end_other_job(pid, token);
}

static void write_file(const char *path, const char *text, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    REQUIRE(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && fchmod(fd, mode) == 0);
    close(fd);
}

static void a_token_file_is_required_and_checked(void)
{
    char   path[64];
    joiner one = {.rank = 0, .world = 2, .join_ms = 200, .address = "127.0.0.1", .port = 4000}, two[2];
    snprintf(path, sizeof path, "/tmp/lockstep-token-%ld", (long)getpid());
    unsetenv("LOCKSTEP_TOKEN");
    join_thread(&one);
    CHECK(one.status == LK_EINVAL && strstr(one.text, "LOCKSTEP_TOKEN_FILE"), "%s", one.text);
    setenv("LOCKSTEP_TOKEN_FILE", path, 1);
    join_thread(&one);
    CHECK(one.status == LK_ENOENT && strstr(one.text, path), "%s", one.text);
    write_file(path, "a secret of some length\n", 0644);
    join_thread(&one);
    CHECK(one.status == LK_EINVAL && strstr(one.text, "can be read or written by others"), "%s", one.text);
    write_file(path, "a secret of some length\n", 0620);
    join_thread(&one);
    CHECK(one.status == LK_EINVAL && strstr(one.text, "620"), "%s", one.text);
    write_file(path, "a secret of some length\n", 0600);
    if (geteuid() == 0 && chown(path, 12345, (gid_t)-1) == 0) {
        join_thread(&one);
        CHECK(one.status == LK_EINVAL && strstr(one.text, "belongs to user 12345, but this process runs as user 0"),
              "%s", one.text);
        REQUIRE(chown(path, 0, (gid_t)-1) == 0);
    } else {
        printf("     not root: another user's token file was not tried\n");
    }
    write_file(path, "a secret in two\nlines of text\n", 0600);
    join_thread(&one);
    CHECK(one.status == LK_EINVAL && strstr(one.text, "one line"), "%s", one.text);
    write_file(path, "short\n", 0600);
    join_thread(&one);
    CHECK(one.status == LK_EINVAL && strstr(one.text, "16 to"), "%s", one.text);
    write_file(path, "a secret of some length\n", 0600);
    for (int i = 0, port = free_port(AF_INET); i < 2; i++)
        two[i] = (joiner){.rank = i, .world = 2, .address = "127.0.0.1", .port = port};
    join_all(two, 2);
    expect_sum(two, 2);
    unlink(path);
    unsetenv("LOCKSTEP_TOKEN_FILE");
    setenv("LOCKSTEP_TOKEN", token, 1);
}

/* torchrun's store listens on MASTER_PORT: rank 0 must not use it. */
static void a_foreign_launchers_port_is_not_used(void)
{
    lk__rendezvous_identity identity;
    lk_context             *context;
    lk_comm_config          config = LK_COMM_CONFIG_INIT;
    lk_context_config       context_config = LK_CONTEXT_CONFIG_INIT;
    context_config.threads = 1;
    REQUIRE(lk_context_create(&context_config, &context) == LK_OK);
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "4", 1);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", "29500", 1);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    lk__context_read_environment(context);
    CHECK(lk__identity_find(context, &config, &identity) == LK_OK && identity.many_hosts && identity.master.first == 0,
          "%s", lk_context_error(context));
    setenv("TORCHELASTIC_USE_AGENT_STORE", "False", 1);
    lk__context_read_environment(context);
    CHECK(lk__identity_find(context, &config, &identity) == LK_OK && identity.master.first == 29500);
    setenv("LOCKSTEP_PORT", "4000-4010", 1);
    lk__context_read_environment(context);
    CHECK(lk__identity_find(context, &config, &identity) == LK_OK && identity.master.first == 4000 &&
          identity.master.last == 4010 && identity.ports.last == 4010);
    static const char *const names[] = {"RANK",         "WORLD_SIZE",  "LOCAL_WORLD_SIZE",
                                        "MASTER_ADDR",  "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE",
                                        "LOCKSTEP_PORT"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
    lk_context_free(context);
}

/* With the library's default timeout, as when a user starts a second host by hand: the first waits for more than 5
 * s. */
static void a_rank_that_waits_for_rank_0_logs_it(void)
{
    int       port = free_port(AF_INET);
    joiner    early = {.rank = 1, .world = 2, .join_ms = -1, .address = "127.0.0.1", .port = port};
    joiner    late = {.rank = 0, .world = 2, .join_ms = -1, .address = "127.0.0.1", .port = port};
    pthread_t thread;
    setenv("LOCKSTEP_JOIN_COMMAND", "lockstep run --node-rank {node} a {node}", 1);
    REQUIRE(pthread_create(&thread, NULL, join_thread, &early) == 0);
    usleep(8000000);
    join_thread(&late);
    pthread_join(thread, NULL);
    joiner both[2] = {late, early};
    expect_sum(both, 2);
    CHECK(strstr(early.log, "rank 1 of 2 has waited ") && strstr(early.log, " s for rank 0 at 127.0.0.1:") &&
              strstr(early.log, "connection refused") &&
              strstr(early.log, "start its host with: lockstep run --node-rank 0 a {node}"),
          "the log is: %s", early.log);
    CHECK(!late.log[0], "the log is: %s", late.log);
    unsetenv("LOCKSTEP_JOIN_COMMAND");
}

/* Five ranks per host; only ranks 0 and 3, both of the first host, join. */
static void rank_0_logs_which_hosts_are_missing_and_how_to_start_them(void)
{
    int    port = free_port(AF_INET);
    joiner two[2] = {{.rank = 0, .world = 15, .join_ms = 7000, .address = "127.0.0.1", .port = port},
                     {.rank = 3, .world = 15, .join_ms = 7000, .address = "127.0.0.1", .port = port}};
    setenv("GROUP_WORLD_SIZE", "3", 1);
    setenv("LOCAL_WORLD_SIZE", "5", 1);
    setenv("LOCKSTEP_JOIN_COMMAND", "lockstep run --node-rank {node} train.py", 1);
    join_all(two, 2);
    CHECK(strstr(two[0].log, "rank 0 of 15 has waited ") && strstr(two[0].log, " s for ranks 1-2, 4-14 to join") &&
              strstr(two[0].log,
                     "; hosts 0-2 of 3 are missing, start the first with: lockstep run --node-rank 0 train.py"),
          "the log is: %s", two[0].log);
    CHECK(!two[1].log[0], "the log is: %s", two[1].log);
    CHECK(two[0].status == LK_ETIMEOUT && strstr(two[0].text, "did not join"), "%s", two[0].text);
    unsetenv("GROUP_WORLD_SIZE");
    unsetenv("LOCAL_WORLD_SIZE");
    unsetenv("LOCKSTEP_JOIN_COMMAND");
}

static void the_join_timeout_may_come_from_the_environment(void)
{
    joiner one = {.rank = 0, .world = 2, .join_ms = -1, .address = "127.0.0.1", .port = free_port(AF_INET)};
    setenv("LOCKSTEP_JOIN_TIMEOUT", "0.3", 1);
    join_thread(&one);
    CHECK(one.status == LK_ETIMEOUT && strstr(one.text, "did not join within"), "%s", one.text);
    setenv("LOCKSTEP_JOIN_TIMEOUT", "soon", 1);
    join_thread(&one);
    CHECK(one.status == LK_EINVAL && strstr(one.text, "LOCKSTEP_JOIN_TIMEOUT is 'soon'"), "%s", one.text);
    unsetenv("LOCKSTEP_JOIN_TIMEOUT");
}

/* Whether a socket listens on an address of this host, written as in /proc/net/tcp. */
static bool is_listening(const char *address)
{
    char  line[256];
    bool  found = false;
    FILE *file = fopen("/proc/net/tcp", "re");
    while (file && !found && fgets(line, sizeof line, file)) found = strstr(line, address) && strstr(line, ":0000 0A ");
    if (file) fclose(file);
    return found;
}

static void a_rank_listens_on_its_local_address(void)
{
    int       port = free_port(AF_INET);
    joiner    others[3] = {{.rank = 0}, {.rank = 1}, {.rank = 2}};
    pthread_t thread;
    for (int i = 0; i < 3; i++) {
        others[i].world = 3;
        others[i].address = "127.0.0.1";
        others[i].port = port;
    }
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(100);
        setenv("LOCKSTEP_LOCAL_ADDR", "127.9.8.7", 1);
        join_thread(&others[1]);
        _exit(others[1].status == LK_OK && others[1].sum == 6 ? 0 : 1);
    }
    REQUIRE(pthread_create(&thread, NULL, join_thread, &others[0]) == 0);
    for (int i = 0; i < 1500 && !is_listening("0708097F:"); i++) usleep(10000);
    CHECK(is_listening("0708097F:"), "rank 1 does not listen on 127.9.8.7");
    join_thread(&others[2]);
    pthread_join(thread, NULL);
    int status = -1;
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0 && others[0].sum == 6 && others[2].sum == 6, "%x: %s", status,
          others[0].text);
    setenv("LOCKSTEP_LOCAL_ADDR", "192.0.2.7", 1);
    joiner elsewhere = {.rank = 0, .world = 2, .join_ms = 300, .address = "127.0.0.1", .port = port};
    join_thread(&elsewhere);
    CHECK(elsewhere.status == LK_EIO && strstr(elsewhere.text, "LOCKSTEP_LOCAL_ADDR 192.0.2.7"), "%s", elsewhere.text);
    unsetenv("LOCKSTEP_LOCAL_ADDR");
}

static void a_wildcard_address_is_refused(void)
{
    static const char *const addresses[] = {"0.0.0.0", "0", "::", "::ffff:0.0.0.0"};
    for (int i = 0; i < 8; i++) {
        joiner any = {
            .rank = i % 2, .world = 2, .join_ms = 300, .address = addresses[i / 2], .port = free_port(AF_INET)};
        join_thread(&any);
        CHECK(any.status == LK_EINVAL && strstr(any.text, "means all interfaces") && strstr(any.text, "MASTER_ADDR"),
              "%s: %s", addresses[i / 2], any.text);
    }
}

int main(void)
{
    int before = open_descriptors();
    setenv("LOCKSTEP_JOB", "rendezvous", 1);
    setenv("LOCKSTEP_TOKEN", token, 1);
    RUN(ranks_of_another_job_are_refused);
    RUN(a_foreign_listener_is_reported);
    RUN(a_rank_listens_on_its_local_address);
    RUN(ranks_join_over_ipv4_ipv6_and_by_name);
    RUN(a_rank_that_waits_for_rank_0_logs_it);
    RUN(rank_0_logs_which_hosts_are_missing_and_how_to_start_them);
    RUN(the_join_timeout_may_come_from_the_environment);
    RUN(ranks_listen_within_the_range_of_ports);
    RUN(ranks_pass_over_a_job_with_another_token);
    RUN(a_second_job_with_the_same_token_is_refused);
    RUN(errors_name_the_address_and_the_answer);
    RUN(missing_ranks_are_named);
    RUN(foreign_connections_are_dropped_without_effect);
    RUN(a_wildcard_address_is_refused);
    RUN(a_token_file_is_required_and_checked);
    RUN(a_foreign_launchers_port_is_not_used);
    CHECK(open_descriptors() == before, "%d descriptors are open, %d were", open_descriptors(), before);
    if (check_failures || resolves("localhost")) return check_result();
    printf("skipped: the name localhost does not resolve: is it in /etc/hosts? The rest passed\n");
    return SKIPPED;
}
