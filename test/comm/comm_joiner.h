/* comm_joiner.h - shared by the tests of the rendezvous: a rank that tries to join, as a thread of this process, and
 * its result. Needs _GNU_SOURCE, LOCKSTEP_TOKEN=token and src/ among the include directories. */
#ifndef COMM_JOINER_H
#define COMM_JOINER_H

#include "comm_ranks.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <time.h>

static const char token[] = "0123456789abcdef";

/* A rank that tries to join. */
typedef struct joiner {
    int         rank, world, port;
    int         join_ms; /* 0: this test's own default; negative: the library's */
    const char *address;
    int         sum; /* of all ranks, once joined */
    lk_status   status;
    char        text[1024], log[4096];
} joiner;

SHARED double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

SHARED void add_log(void *user, lk_log_level level, const char *text)
{
    joiner *j = user;
    size_t  used = strlen(j->log);
    (void)level;
    snprintf(j->log + used, sizeof j->log - used, "%s\n", text);
}

SHARED void *join_thread(void *argument)
{
    joiner           *j = argument;
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_comm_config    comm_config = LK_COMM_CONFIG_INIT;
    lk_context       *context;
    lk_comm          *comm = NULL;
    config.threads = 1;
    config.log = add_log;
    config.log_user = j;
    comm_config.rank = j->rank;
    comm_config.world = j->world;
    comm_config.join_ms = j->join_ms < 0 ? 0 : j->join_ms ? j->join_ms : 20000;
    comm_config.address = j->address;
    comm_config.port = j->port;
    comm_config.backend = "tcp";
    REQUIRE(lk_context_create(&config, &context) == LK_OK);
    size_t  before = lk_context_memory(context, LK_MEMORY_OTHER);
    int32_t x = j->rank + 1;
    j->status = lk_comm_create(context, &comm_config, &comm);
    snprintf(j->text, sizeof j->text, "%s", lk_context_error(context));
    CHECK((comm != NULL) == (j->status == LK_OK));
    if (comm) {
        CHECK(lk_comm_all_reduce(comm, &x, &x, 1, LK_I32, LK_SUM, NULL) == LK_OK, "%s", lk_comm_error(comm));
        CHECK(lk_comm_local_size(comm) == j->world && lk_comm_local_rank(comm) == j->rank);
        CHECK(lk_comm_barrier(comm, NULL) == LK_OK);
    }
    j->sum = x;
    lk_comm_free(comm);
    CHECK(lk_context_memory(context, LK_MEMORY_OTHER) == before, "rank %d does not free all memory", j->rank);
    lk_context_free(context);
    return NULL;
}

SHARED void join_all(joiner *joiners, int count)
{
    pthread_t threads[16];
    check_ranks_announced(count);
    for (int i = 0; i < count; i++) REQUIRE(pthread_create(&threads[i], NULL, join_thread, &joiners[i]) == 0);
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
}

SHARED int free_port(int family)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    struct sockaddr_in  four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr    *address = family == AF_INET6 ? (struct sockaddr *)&six : (struct sockaddr *)&four;
    socklen_t           length = family == AF_INET6 ? sizeof six : sizeof four;
    int                 fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), port = 0;
    if (fd >= 0 && bind(fd, address, length) == 0 && getsockname(fd, address, &length) == 0)
        port = ntohs(family == AF_INET6 ? six.sin6_port : four.sin_port);
    if (fd >= 0) close(fd);
    return port;
}

SHARED void expect_sum(const joiner *joiners, int count)
{
    for (int i = 0; i < count; i++)
        CHECK(joiners[i].status == LK_OK && joiners[i].sum == count * (count + 1) / 2, "rank %d: %s %s sum %d", i,
              lk_status_name(joiners[i].status), joiners[i].text, joiners[i].sum);
}

SHARED int connect_to(int port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    for (int i = 0; i < 1000; i++) {
        if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
        usleep(2000);
    }
    close(fd);
    return -1;
}

#endif
