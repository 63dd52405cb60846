/* network.c - the rendezvous over several hosts. Rank 0 listens at MASTER_ADDR and the port; the others connect,
 * authenticate, and get the endpoints of all ranks once all have joined. Errors name the addresses that were tried and
 * what answered. */
#define _GNU_SOURCE
#include "base/entropy.h"
#include "comm/rendezvous/connect.h"
#include "comm/socket.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ADDRESSES = 8 };

/* Seconds: for an earlier run to release the port; for one attempt to connect, with several addresses and with one; for
 * processes at later and at earlier ports of a range to say whether they are rank 0. */
static const double port_wait = 5, quick_attempt = 1, attempt = 5, quick_question = 0.25, question = 1;

/* The addresses of a host name. */
typedef struct address_list {
    struct sockaddr_storage addresses[ADDRESSES];
    int                     count;
} address_list;

typedef struct rendezvous {
    lk_context                    *context;
    const lk_comm                 *comm;
    const lk__rendezvous_identity *identity;
    int                            rank, size;
    double                         begun, end;
    lk__rendezvous_waiting         waiting;
    lk__rendezvous_listener       *listener;
    lk__rendezvous_endpoint       *endpoints;
    lk__net_mesh                  *mesh;
    address_list                   master, local; /* of rank 0; where this rank listens, if given */
    char other_job[LK__ADDRESS_TEXT];             /* in the range of ports, with another token; "": none */
} rendezvous;

static void read_addresses(const struct addrinfo *found, address_list *into)
{
    for (; found && into->count < ADDRESSES; found = found->ai_next)
        if (found->ai_addrlen <= sizeof into->addresses[0] &&
            (found->ai_family == AF_INET || found->ai_family == AF_INET6))
            memcpy(&into->addresses[into->count++], found->ai_addr, found->ai_addrlen);
}

static lk_status resolve_master(rendezvous *m)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC}, *found = NULL;
    int             why;
    do {
        why = getaddrinfo(m->identity->address, NULL, &hints, &found);
        if (why == 0) break;
        if (lk__waiting_due(&m->waiting)) lk__waiting_for_master(&m->waiting, m->identity->address, gai_strerror(why));
        usleep(lk__now() < m->begun + 5 ? 100000 : 1000000); /* the name may be registered later */
    } while (why != 0 && why != EAI_FAMILY && why != EAI_MEMORY && lk__now() < m->end);
    if (why != 0)
        return lk__fail(m->context, LK_ENOENT, "rank %d of %d cannot find rank 0: the name '%s' does not resolve: %s",
                        m->rank, m->size, m->identity->address, gai_strerror(why));
    read_addresses(found, &m->master);
    freeaddrinfo(found);
    return LK_OK;
}

/* LOCKSTEP_LOCAL_ADDR is an address of this host: no retries. */
static lk_status resolve_local(rendezvous *m)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC}, *found = NULL;
    if (!m->identity->local[0]) return LK_OK;
    int why = getaddrinfo(m->identity->local, NULL, &hints, &found);
    if (why != 0)
        return lk__fail(m->context, LK_EINVAL, "rank %d of %d: LOCKSTEP_LOCAL_ADDR '%s' does not resolve: %s", m->rank,
                        m->size, m->identity->local, gai_strerror(why));
    read_addresses(found, &m->local);
    freeaddrinfo(found);
    return LK_OK;
}

/* 0.0.0.0, :: and ::ffff:0.0.0.0 stand for every interface. */
static bool is_any(const struct sockaddr_storage *address)
{
    static const unsigned char mapped[16] = {[10] = 0xff, [11] = 0xff};
    if (address->ss_family == AF_INET) return ((const struct sockaddr_in *)address)->sin_addr.s_addr == INADDR_ANY;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)address)->sin6_addr;
    return IN6_IS_ADDR_UNSPECIFIED(six) || memcmp(six, mapped, sizeof mapped) == 0;
}

/* A listener binds one interface only, and other ranks cannot connect to "any". */
static lk_status refuse_any(const rendezvous *m, const char *name, const address_list *list)
{
    for (int i = 0; i < list->count; i++)
        if (is_any(&list->addresses[i]))
            return lk__fail(
                m->context, LK_EINVAL,
                "rank %d of %d: '%s' means all interfaces, but rank 0 listens on only one: set MASTER_ADDR or "
                "lk_comm_config.address to the name or address at which the other ranks reach rank 0's host",
                m->rank, m->size, name);
    return LK_OK;
}

static void show_ports(const lk__rendezvous_identity *identity, char *out, size_t bytes)
{
    if (identity->master.first == identity->master.last)
        snprintf(out, bytes, "%d", identity->master.first);
    else
        snprintf(out, bytes, "%d-%d", identity->master.first, identity->master.last);
}

static bool has_range(const rendezvous *m) { return m->identity->master.last > m->identity->master.first; }

static void set_port(struct sockaddr_storage *address, int port)
{
    *(address->ss_family == AF_INET6 ? &((struct sockaddr_in6 *)address)->sin6_port
                                     : &((struct sockaddr_in *)address)->sin_port) = htons((uint16_t)port);
}

static int connect_until(const struct sockaddr_storage *to, double end)
{
    int fd = socket(to->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), why = 0;
    if (fd < 0) return -1;
    if (connect(fd, (const struct sockaddr *)to, lk__address_length(to)) != 0) {
        struct pollfd one = {.fd = fd, .events = POLLOUT};
        socklen_t     length = sizeof why;
        why = errno;
        if (why == EINPROGRESS) {
            why = ETIMEDOUT;
            if (lk__poll_until(&one, 1, end) > 0) getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &length);
        }
    }
    if (why) {
        close(fd);
        errno = why;
        return -1;
    }
    lk__socket_probe(fd, true); /* others may join minutes later, and rank 0's host may be lost by then */
    return fd;
}

/* ---- rank 0 ---- */

/* Asks as rank 0 would join. Only another rank 0 with the same token can sign the reply, a refusal. */
static lk_status ask_listener(const rendezvous *m, int fd, double end)
{
    lk__rendezvous_challenge challenge;
    lk__rendezvous_request   request = {.purpose = LK__TO_JOIN, .size = m->size};
    lk__rendezvous_reply     reply;
    struct sockaddr_storage  there = {0};
    socklen_t                length = sizeof there;
    char                     where[LK__ADDRESS_TEXT];
    lk__endpoint_make(m->context, &request.endpoint);
    request.endpoint.address = m->listener->address;
    if (!lk__read_whole(fd, &challenge, sizeof challenge, end) || !lk__challenge_valid(&challenge) ||
        !lk__request_sign(&request, &challenge, m->identity->token) ||
        !lk__write_whole(fd, &request, sizeof request, end) || !lk__read_whole(fd, &reply, sizeof reply, end) ||
        lk__reply_verify(&reply, &request, m->identity->token) != LK__TRUSTED ||
        getpeername(fd, (struct sockaddr *)&there, &length) != 0)
        return LK_OK;
    lk__address_show(&there, where, sizeof where);
    return lk__fail(m->context, LK_EINVAL,
                    "another job with this token waits for its ranks at %s (%s): end it, or use another token", where,
                    reply.text);
}

/* All ports are asked at the same time, because most that are taken do not answer. */
static lk_status ask_ports(const rendezvous *m, lk__rendezvous_ports ports, double seconds)
{
    if (ports.first > ports.last) return LK_OK;
    size_t                  bytes = (size_t)(ports.last - ports.first + 1) * sizeof(struct pollfd);
    struct pollfd          *polls = lk__alloc(m->context, LK_MEMORY_OTHER, bytes);
    struct sockaddr_storage to = m->listener->bound;
    double                  end = lk__now() + seconds;
    lk_status               status = polls ? LK_OK : LK_ENOMEM;
    int                     count = 0, open;
    for (int port = ports.first; port <= ports.last && status >= 0; port++) {
        set_port(&to, port);
        int fd = connect_until(&to, end);
        if (fd >= 0) polls[count++] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    for (open = count; open > 0 && status >= 0 && lk__poll_until(polls, (nfds_t)count, end) > 0;)
        for (int i = 0; i < count && status >= 0; i++) {
            if (polls[i].fd < 0 || !polls[i].revents) continue;
            status = ask_listener(m, polls[i].fd, end);
            close(polls[i].fd);
            polls[i].fd = -1;
            open--;
        }
    for (int i = 0; i < count; i++)
        if (polls[i].fd >= 0) close(polls[i].fd);
    lk__free(m->context, LK_MEMORY_OTHER, polls, bytes);
    return status;
}

/* The other ranks try the ports of a range one after the other, and join the first rank 0 with their token: there must
 * be only one. Of two that ask each other, the one at the earlier port stops waiting first, and answers. */
static lk_status refuse_second_job(const rendezvous *m)
{
    lk__rendezvous_ports range = m->identity->master;
    int                  own = m->listener->address.port;
    lk_status            status = ask_ports(m, (lk__rendezvous_ports){own + 1, range.last}, quick_question);
    return status < 0 ? status : ask_ports(m, (lk__rendezvous_ports){range.first, own - 1}, question);
}

/* Sends all ranks that joined the endpoints, or the failure. */
static void reply_to_all(rendezvous *m, const lk__rendezvous_server *server, lk_status status,
                         const unsigned char *secret)
{
    lk__rendezvous_reply reply = {.status = status};
    memcpy(reply.secret, secret, sizeof reply.secret);
    if (status < 0) snprintf(reply.text, sizeof reply.text, "%s", lk_context_error(m->context));
    for (int i = 1; i < m->size; i++) {
        unsigned char           mac[LK__MAC];
        lk__rendezvous_pending *connection = lk__server_peer(server, i);
        if (connection) lk__acceptor_reply(&server->acceptor, connection, &reply);
        if (!connection || status < 0) continue;
        lk__endpoints_sign(m->endpoints, m->size, &connection->request, m->identity->token, mac);
        /* One second for some hundred kilobytes. A rank that does not read is reported when ranks connect. */
        double end = lk__now() + 1;
        (void)(lk__write_whole(connection->fd, m->endpoints, (size_t)m->size * sizeof *m->endpoints, end) &&
               lk__write_whole(connection->fd, mac, sizeof mac, end));
    }
}

/* An earlier run may be about to end: it is given some time to release the port. */
static lk_status listen_at(rendezvous *m, const struct sockaddr_storage *address)
{
    double until = m->begun + port_wait < m->end ? m->begun + port_wait : m->end;
    for (;;) {
        lk_status status = lk__listen(m->context, address, m->identity->master, m->listener);
        bool      taken = status < 0 && errno == EADDRINUSE, second = false;
        if (status >= 0 && has_range(m)) second = (status = refuse_second_job(m)) < 0;
        if (second) {
            lk__listener_close(m->listener);
            errno = EADDRINUSE;
        }
        if ((!taken && !second) || lk__now() >= until) return status;
        usleep(second ? 200000 : 20000);
    }
}

static lk_status open_listener(rendezvous *m)
{
    lk_status           status = LK_EIO;
    const address_list *own = m->local.count ? &m->local : &m->master;
    for (int i = 0; i < own->count && status == LK_EIO; i++) status = listen_at(m, &own->addresses[i]);
    if (status < 0)
        return lk__fail_prefix(m->context, status, "rank 0 of %d (%s %s, port %s%s): ", m->size,
                               m->local.count ? "LOCKSTEP_LOCAL_ADDR" : "MASTER_ADDR",
                               m->local.count ? m->identity->local : m->identity->address, m->identity->port_from,
                               errno == EADDRNOTAVAIL ? "; rank 0 must run on the host that has this address" : "");
    return LK_OK;
}

static lk_status serve_ranks(rendezvous *m)
{
    lk__rendezvous_server server;
    unsigned char         secret[LK__NONCE] = {0};
    lk_status             status = open_listener(m);
    if (status < 0) return status;
    lk__endpoint_make(m->context, &m->endpoints[0]);
    m->endpoints[0].address = m->listener->address;
    status = lk__server_open(&server, m->context, m->listener, m->identity->token, LK__TO_JOIN, m->size);
    if (status >= 0 && !lk__entropy(secret, sizeof secret))
        status = lk__fail(m->context, LK_EIO, "cannot get random numbers from the system");
    if (status >= 0) {
        status = lk__server_receive(&server, &m->waiting, m->identity->port_from);
        if (status < 0) lk__server_note_failure(&server, m->comm);
        for (int i = 1; i < m->size && status >= 0; i++) m->endpoints[i] = server.ranks[i]->request.endpoint;
        reply_to_all(m, &server, status, secret);
    }
    lk__token_derive(m->identity->token, secret, sizeof secret, m->mesh->token);
    memcpy(&m->mesh->secret, secret, sizeof m->mesh->secret);
    lk__server_close(&server);
    return status;
}

/* ---- the others ---- */

/* Unless LOCKSTEP_LOCAL_ADDR gives another, a rank listens on the interface of its route to rank 0. */
static lk_status listen_for_ranks(rendezvous *m, int fd)
{
    struct sockaddr_storage own = {0};
    socklen_t               length = sizeof own;
    if (m->listener->fd >= 0) return LK_OK;
    if (m->local.count) return lk__listen(m->context, &m->local.addresses[0], m->identity->ports, m->listener);
    if (getsockname(fd, (struct sockaddr *)&own, &length) != 0)
        return lk__fail(m->context, LK_EIO, "rank %d cannot find its own address: %s", m->rank, strerror(errno));
    return lk__listen(m->context, &own, m->identity->ports, m->listener);
}

typedef enum outcome { JOINED, RETRY, REFUSED, NO_REPLY } outcome;

/* One attempt on a connection. RETRY: rank 0 was not ready, or something else listens there. */
static outcome request_endpoints(rendezvous *m, int fd, const char *where, char *problem, size_t problem_bytes,
                                 lk_status *status)
{
    lk__rendezvous_challenge challenge;
    lk__rendezvous_request   request = {.purpose = LK__TO_JOIN, .rank = m->rank, .size = m->size};
    lk__rendezvous_reply     reply;
    unsigned char            mac[LK__MAC];
    /* Rank 0 has the same deadline, and knows which ranks are missing: wait a little longer for its report. */
    double soon = lk__now() + 2, end = m->end + 0.5;
    if (!lk__read_whole(fd, &challenge, sizeof challenge, soon < end ? soon : end)) {
        snprintf(problem, problem_bytes, "something listens there and %s",
                 errno == ETIMEDOUT ? "sends nothing" : "closes the connection at once");
        return RETRY;
    }
    if (!lk__challenge_valid(&challenge)) {
        snprintf(problem, problem_bytes, "something listens there that does not speak rank 0's protocol");
        return RETRY;
    }
    if ((*status = listen_for_ranks(m, fd)) < 0) return REFUSED;
    lk__endpoint_make(m->context, &request.endpoint);
    request.endpoint.address = m->listener->address;
    if (!lk__request_sign(&request, &challenge, m->identity->token) ||
        !lk__write_whole(fd, &request, sizeof request, end))
        return RETRY;
    if (!lk__read_whole(fd, &reply, sizeof reply, end)) {
        bool late = errno == ETIMEDOUT && lk__now() >= end; /* probes that fail give the same error */
        snprintf(problem, problem_bytes,
                 late ? "it answered, but did not report that all ranks have joined"
                      : "it answered, then closed the connection");
        return late ? NO_REPLY : RETRY;
    }
    lk__rendezvous_trust trust = lk__reply_verify(&reply, &request, m->identity->token);
    if (trust == LK__FOREIGN) {
        snprintf(problem, problem_bytes, "something listens there that does not speak rank 0's protocol");
        return RETRY;
    }
    if (trust == LK__WRONG_TOKEN && has_range(m)) {
        snprintf(m->other_job, sizeof m->other_job, "%s", where);
        snprintf(problem, problem_bytes, "wrong token");
        return RETRY;
    }
    if ((*status = lk__reply_check(m->context, &reply, trust, &request, where)) < 0) return REFUSED;
    size_t bytes = (size_t)m->size * sizeof *m->endpoints;
    if (!lk__read_whole(fd, m->endpoints, bytes, end) || !lk__read_whole(fd, mac, sizeof mac, end) ||
        !lk__endpoints_verify(m->endpoints, m->size, &request, m->identity->token, mac)) {
        *status = lk__fail(m->context, LK_EIO,
                           "rank %d of %d: rank 0 (%s) closed the connection while sending the list of ranks", m->rank,
                           m->size, where);
        return REFUSED;
    }
    lk__token_derive(m->identity->token, reply.secret, sizeof reply.secret, m->mesh->token);
    memcpy(&m->mesh->secret, reply.secret, sizeof m->mesh->secret);
    return JOINED;
}

/* NULL: use strerror. */
static const char *explain_error(int why)
{
    switch (why) {
    case ECONNREFUSED: return "connection refused: nothing listens there";
    case EHOSTUNREACH:
    case ENETUNREACH: return "no route to that host";
    case ETIMEDOUT: return "no answer: the host is down, or a firewall drops the packets";
    default: return NULL;
    }
}

/* The last attempt's, and what another port of the range may have shown before. */
static void describe_problem(const rendezvous *m, const char *problem, char *out, size_t bytes)
{
    int used = snprintf(out, bytes, "%s", problem[0] ? problem : "no answer");
    if (m->other_job[0])
        snprintf(out + used, bytes - (size_t)used,
                 "; the process that listens on %s has another token (LOCKSTEP_TOKEN, or the file LOCKSTEP_TOKEN_FILE)",
                 m->other_job);
}

static lk_status join_rank_0(rendezvous *m)
{
    lk_status  status = LK_OK;
    char       problem[256] = "", why[512] = "no answer", where[LK__ADDRESS_TEXT] = "", ports[32];
    int        attempts = m->master.count * (m->identity->master.last - m->identity->master.first + 1);
    useconds_t pause = 500;
    do {
        for (int i = 0; i < attempts && lk__now() < m->end; i++) {
            struct sockaddr_storage to = m->master.addresses[i % m->master.count];
            char                    at[LK__ADDRESS_TEXT];
            double                  soon = lk__now() + (attempts > 1 ? quick_attempt : attempt);
            set_port(&to, m->identity->master.first + i / m->master.count);
            lk__address_show(&to, at, sizeof at);
            int     fd = connect_until(&to, soon < m->end ? soon : m->end);
            outcome result = RETRY;
            if (fd < 0) {
                const char *explanation = explain_error(errno);
                snprintf(problem, sizeof problem, "%s", explanation ? explanation : lk__comm_reason_of(errno).text);
            } else {
                result = request_endpoints(m, fd, at, problem, sizeof problem, &status);
                close(fd);
            }
            snprintf(where, sizeof where, "%s", at);
            if (result == JOINED) return LK_OK;
            if (result == REFUSED) return status;
            if (result == NO_REPLY) m->end = 0;
        }
        describe_problem(m, problem, why, sizeof why);
        if (lk__now() < m->end && lk__waiting_due(&m->waiting)) lk__waiting_for_master(&m->waiting, where, why);
        usleep(pause);
        if (pause < 20000) pause *= 2;
    } while (lk__now() < m->end);
    show_ports(m->identity, ports, sizeof ports);
    return lk__fail(m->context, LK_ETIMEOUT,
                    "rank 0 of %d is not reachable: rank %d tried %s port %s (%s) for %.1f s, last at %s: %s", m->size,
                    m->rank, m->identity->address, ports, m->identity->port_from, lk__now() - m->begun, where, why);
}

lk_status lk__rendezvous_join(lk_comm *c, const lk__rendezvous_identity *identity, lk__rendezvous_listener *listener,
                              lk__rendezvous_endpoint *endpoints, lk__net_mesh *mesh, double end)
{
    rendezvous m = {.context = c->context,
                    .comm = c,
                    .identity = identity,
                    .rank = c->rank,
                    .size = c->size,
                    .begun = lk__now(),
                    .end = end,
                    .listener = listener,
                    .endpoints = endpoints,
                    .mesh = mesh};
    lk__waiting_begin(&m.waiting, c->context, identity, c->rank, c->size, end);
    if (!identity->address[0])
        return lk__fail(
            c->context, LK_EINVAL,
            "rank %d of %d: the ranks are on several hosts (%s), and rank 0's address is not known: set MASTER_ADDR",
            c->rank, c->size, identity->tried);
    if (!identity->master.first)
        return lk__fail(c->context, LK_EINVAL,
                        "rank %d of %d: the ranks are on several hosts (%s), and rank 0's port is not known: set "
                        "LOCKSTEP_PORT to a free port (the launcher's own store uses MASTER_PORT)",
                        c->rank, c->size, identity->tried);
    lk_status status = resolve_master(&m);
    if (status >= 0) status = resolve_local(&m);
    if (status >= 0) status = refuse_any(&m, identity->address, &m.master);
    if (status >= 0) status = refuse_any(&m, identity->local, &m.local);
    if (status < 0) return status;
    status = c->rank == 0 ? serve_ranks(&m) : join_rank_0(&m);
    if (status == LK_ETIMEOUT && c->rank != 0) lk__comm_join_failed(c, 0, LK__CAUSE_LATE);
    return status;
}
