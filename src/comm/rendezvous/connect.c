/* connect.c - connects all ranks with each other: the higher rank connects to the lower, and both sides authenticate.
 * All connections are made at the same time; none waits for another. */
#define _GNU_SOURCE
#include "comm/rendezvous/connect.h"

#include "base/entropy.h"
#include "comm/rendezvous/local.h"
#include "comm/socket.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A connection to a lower rank that is being made. */
typedef struct outgoing_connection {
    enum { IDLE, CONNECTING, CONNECTED, REQUESTED, DONE } stage;
    int    fd, poll, rank, stream, why; /* poll: index among the polled descriptors; why: errno of the last failure */
    double retry_at;                    /* IDLE */
    size_t have;
    lk__rendezvous_challenge challenge;
    lk__rendezvous_request   request;
    lk__rendezvous_reply     reply;
} outgoing_connection;

typedef struct mesh_setup {
    lk__net_mesh                  *mesh;
    const lk__rendezvous_endpoint *endpoints;
    lk__rendezvous_listener       *listener;
    outgoing_connection           *outgoing;
    int                            outgoing_count, missing; /* missing: higher ranks' connections */
    lk__rendezvous_acceptor        acceptor;
    struct pollfd                 *polls;
} mesh_setup;

lk_status lk__mesh_make(lk__net_mesh *m, lk_context *context, int rank, int size, int streams)
{
    *m = (lk__net_mesh){.context = context, .rank = rank, .size = size, .streams = streams};
    m->ranks = lk__alloc(context, LK_MEMORY_OTHER, (size_t)size * sizeof *m->ranks);
    if (!m->ranks) return LK_ENOMEM;
    for (int i = 0; i < size; i++)
        for (int s = 0; s <= LK__STREAMS; s++) m->ranks[i].fds[s] = -1;
    return LK_OK;
}

void lk__mesh_close(lk__net_mesh *m)
{
    for (int i = 0; m->ranks && i < m->size; i++)
        for (int s = 0; s <= LK__STREAMS; s++)
            if (m->ranks[i].fds[s] >= 0) close(m->ranks[i].fds[s]);
    lk__free(m->context, LK_MEMORY_OTHER, m->ranks, (size_t)m->size * sizeof *m->ranks);
    m->ranks = NULL;
}

void lk__mesh_locals(const lk__net_mesh *m, int *local_rank, int *local_size)
{
    *local_rank = *local_size = 0;
    for (int i = 0; i < m->size; i++) {
        if (strcmp(m->ranks[i].host_id, m->ranks[m->rank].host_id) != 0) continue;
        if (i < m->rank) ++*local_rank;
        ++*local_size;
    }
}

static void configure_socket(int fd, int stream)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    lk__socket_probe(fd, stream == 0); /* an accepted one has been probed so far */
}

/* ---- to the lower ranks ---- */

static void retry_later(outgoing_connection *l, int why)
{
    if (l->fd >= 0) close(l->fd);
    l->fd = -1;
    l->why = why;
    l->stage = IDLE;
    l->retry_at = lk__now() + 0.02;
}

static void begin_connect(mesh_setup *b, outgoing_connection *l)
{
    struct sockaddr_storage to;
    socklen_t               length = lk__address_to_socket(&b->endpoints[l->rank].address, b->listener->scope, &to);
    l->have = 0;
    l->fd = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0 || (connect(l->fd, (struct sockaddr *)&to, length) != 0 && errno != EINPROGRESS))
        retry_later(l, errno);
    else
        l->stage = CONNECTING;
}

/* Reads as much of a message as there is: true once it is complete. */
static bool receive_message(outgoing_connection *l, void *message, size_t bytes)
{
    ssize_t n = recv(l->fd, (char *)message + l->have, bytes - l->have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (n <= 0) {
        retry_later(l, n == 0 ? ECONNRESET : errno);
        return false;
    }
    l->have += (size_t)n;
    if (l->have < bytes) return false;
    l->have = 0;
    return true;
}

static void send_request(mesh_setup *b, outgoing_connection *l)
{
    lk__net_mesh *m = b->mesh;
    l->request = (lk__rendezvous_request){.purpose = LK__TO_CONNECT,
                                          .rank = m->rank,
                                          .size = m->size,
                                          .stream = l->stream,
                                          .endpoint = b->endpoints[m->rank]};
    if (!lk__challenge_valid(&l->challenge) || !lk__request_sign(&l->request, &l->challenge, m->token) ||
        send(l->fd, &l->request, sizeof l->request, MSG_NOSIGNAL) != sizeof l->request)
        retry_later(l, EPROTO);
    else
        l->stage = REQUESTED;
}

static void advance_handshake(mesh_setup *b, outgoing_connection *l)
{
    int       why = 0;
    socklen_t length = sizeof why;
    if (l->stage == CONNECTING) {
        if (getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &why, &length) != 0 || why)
            retry_later(l, why);
        else
            l->stage = CONNECTED;
    } else if (l->stage == CONNECTED) {
        if (receive_message(l, &l->challenge, sizeof l->challenge)) send_request(b, l);
    } else if (l->stage == REQUESTED && receive_message(l, &l->reply, sizeof l->reply)) {
        if (lk__reply_verify(&l->reply, &l->request, b->mesh->token) != LK__TRUSTED || l->reply.status != LK_OK) {
            retry_later(l, EPROTO);
            return;
        }
        configure_socket(l->fd, l->stream);
        b->mesh->ranks[l->rank].fds[l->stream] = l->fd;
        l->fd = -1;
        l->stage = DONE;
    }
}

/* ---- from the higher ranks ---- */

static void on_accepted(lk__rendezvous_acceptor *acceptor, lk__rendezvous_pending *connection, void *user)
{
    mesh_setup   *b = user;
    lk__net_mesh *m = b->mesh;
    int           rank = connection->request.rank, stream = connection->request.stream;
    if (connection->request.purpose != LK__TO_CONNECT || connection->request.size != m->size || rank <= m->rank ||
        stream > m->streams) {
        lk__acceptor_drop(acceptor, connection, "it belongs to another group");
        return;
    }
    int *slot = &m->ranks[rank].fds[stream];
    if (*slot >= 0) { /* the peer abandoned an earlier attempt */
        close(*slot);
        b->missing++;
    }
    lk__acceptor_reply(acceptor, connection, &(lk__rendezvous_reply){.status = LK_OK});
    configure_socket(connection->fd, stream);
    *slot = connection->fd;
    connection->fd = -1;
    b->missing--;
}

/* ---- both directions ---- */

static lk_status fail_unreachable(const mesh_setup *b, const outgoing_connection *l, double seconds)
{
    struct sockaddr_storage        to;
    char                           text[LK__ADDRESS_TEXT];
    const lk__rendezvous_endpoint *endpoint = &b->endpoints[l->rank];
    lk__address_to_socket(&endpoint->address, b->listener->scope, &to);
    lk__address_show(&to, text, sizeof text);
    if (l->why == EMFILE || l->why == ENFILE) /* the cause is on this rank */
        return lk__fail(b->mesh->context, LK_EIO, "rank %d of %d cannot connect to rank %d (%s, pid %lld) at %s: %s",
                        b->mesh->rank, b->mesh->size, l->rank, endpoint->host, (long long)endpoint->pid, text,
                        lk__comm_reason_of(l->why).text);
    return lk__fail(
        b->mesh->context, LK_ETIMEOUT,
        "rank %d of %d cannot reach rank %d (%s, pid %lld) at %s within %.1f s: %s; LOCKSTEP_PORT=4000-4100 restricts "
        "the ports that ranks listen on, in case a firewall is between them",
        b->mesh->rank, b->mesh->size, l->rank, endpoint->host, (long long)endpoint->pid, text, seconds,
        l->stage == CONNECTING ? "no answer"
        : l->why == EPROTO     ? "the process that listens there belongs to another job"
        : l->why               ? strerror(l->why)
                               : "it sent nothing");
}

static lk_status fail_missing(const mesh_setup *b, double seconds)
{
    const lk__net_mesh *m = b->mesh;
    char                text[LK__ADDRESS_TEXT];
    for (int i = 0; i < b->outgoing_count; i++)
        if (b->outgoing[i].stage != DONE) return fail_unreachable(b, &b->outgoing[i], seconds);
    lk__address_show(&b->listener->bound, text, sizeof text);
    for (int i = m->rank + 1; i < m->size; i++)
        for (int s = 0; s <= m->streams; s++)
            if (m->ranks[i].fds[s] < 0 && b->acceptor.why)
                return lk__fail(
                    m->context, LK_EIO,
                    "rank %d of %d could not accept a connection from rank %d (%s, pid %lld) at %s for %.1f s: %s",
                    m->rank, m->size, i, b->endpoints[i].host, (long long)b->endpoints[i].pid, text, seconds,
                    lk__comm_reason_of(b->acceptor.why).text);
            else if (m->ranks[i].fds[s] < 0)
                return lk__fail(m->context, LK_ETIMEOUT,
                                "rank %d of %d (%s, pid %lld) did not connect to rank %d at %s within %.1f s", i,
                                m->size, b->endpoints[i].host, (long long)b->endpoints[i].pid, m->rank, text, seconds);
    return LK_EIO;
}

static bool all_connected(const mesh_setup *b)
{
    for (int i = 0; i < b->outgoing_count; i++)
        if (b->outgoing[i].stage != DONE) return false;
    return b->missing == 0;
}

static lk_status connect_all(mesh_setup *b, double seconds)
{
    double end = lk__now() + seconds;
    while (!all_connected(b)) {
        double now = lk__now();
        if (now > end) return fail_missing(b, seconds);
        int    n = lk__acceptor_watch(&b->acceptor, b->polls);
        double wait = 0.05;
        for (int i = 0; i < b->outgoing_count; i++) {
            outgoing_connection *l = &b->outgoing[i];
            if (l->stage == IDLE && now >= l->retry_at) begin_connect(b, l);
            if (l->stage == IDLE) wait = 0.01;
            l->poll = l->fd >= 0 ? n++ : -1;
            if (l->fd >= 0)
                b->polls[l->poll] = (struct pollfd){.fd = l->fd, .events = l->stage == CONNECTING ? POLLOUT : POLLIN};
        }
        int ready = lk__poll_until(b->polls, (nfds_t)n, now + wait);
        if (ready < 0)
            return lk__fail(b->mesh->context, LK_EIO, "rank %d of %d cannot wait for the others: %s", b->mesh->rank,
                            b->mesh->size, lk__comm_reason_of(errno).text);
        if (ready == 0) continue;
        lk__acceptor_serve(&b->acceptor, b->polls);
        for (int i = 0; i < b->outgoing_count; i++)
            if (b->outgoing[i].poll >= 0 && b->polls[b->outgoing[i].poll].revents)
                advance_handshake(b, &b->outgoing[i]);
    }
    return LK_OK;
}

/* Before anything is connected, since all ranks have all endpoints. */
static lk_status check_devices(lk_context *context, const lk__rendezvous_endpoint *endpoints, int count, int rank)
{
    size_t           bytes = (size_t)count * sizeof(lk__comm_device);
    lk__comm_device *devices = lk__alloc(context, LK_MEMORY_OTHER, bytes);
    if (!devices) return LK_ENOMEM;
    for (int i = 0; i < count; i++) devices[i] = endpoints[i].device;
    lk_status status = lk__comm_devices_check(context, devices, count, rank);
    lk__free(context, LK_MEMORY_OTHER, devices, bytes);
    return status;
}

lk_status lk__mesh_connect(lk__net_mesh *m, const lk__rendezvous_endpoint *endpoints, lk__rendezvous_listener *listener,
                           double seconds)
{
    int        streams = m->streams + 1;
    mesh_setup b = {.mesh = m,
                    .endpoints = endpoints,
                    .listener = listener,
                    .outgoing_count = m->rank * streams,
                    .missing = (m->size - 1 - m->rank) * streams};
    size_t     outgoing_bytes = (size_t)b.outgoing_count * sizeof *b.outgoing, poll_bytes = 0;
    for (int i = 0; i < m->size; i++) {
        snprintf(m->ranks[i].host, sizeof m->ranks[i].host, "%s", endpoints[i].host);
        snprintf(m->ranks[i].host_id, sizeof m->ranks[i].host_id, "%s", endpoints[i].host_id);
        m->ranks[i].pid = endpoints[i].pid;
    }
    lk_status status = check_devices(m->context, endpoints, m->size, m->rank);
    if (status < 0) return status;
    status = lk__acceptor_open(&b.acceptor, m->context, listener, m->token, b.missing);
    b.acceptor.accepted = on_accepted;
    b.acceptor.user = &b;
    if (outgoing_bytes && !(b.outgoing = lk__alloc(m->context, LK_MEMORY_OTHER, outgoing_bytes))) status = LK_ENOMEM;
    if (status >= 0) {
        poll_bytes = (size_t)(b.acceptor.most + 1 + b.outgoing_count) * sizeof *b.polls;
        if (!(b.polls = lk__alloc(m->context, LK_MEMORY_OTHER, poll_bytes))) status = LK_ENOMEM;
    }
    for (int i = 0; b.outgoing && i < b.outgoing_count; i++)
        b.outgoing[i] = (outgoing_connection){.fd = -1, .rank = i / streams, .stream = i % streams};
    if (status >= 0) status = connect_all(&b, seconds);
    for (int i = 0; b.outgoing && i < b.outgoing_count; i++)
        if (b.outgoing[i].fd >= 0) close(b.outgoing[i].fd);
    lk__acceptor_close(&b.acceptor);
    lk__free(m->context, LK_MEMORY_OTHER, b.outgoing, outgoing_bytes);
    lk__free(m->context, LK_MEMORY_OTHER, b.polls, poll_bytes);
    return status;
}

/* ---- on one host: endpoints are exchanged in shared memory, which is then unmapped ---- */

typedef struct table {
    unsigned char secret[LK__NONCE];
    struct {
        atomic_int              written;
        lk__rendezvous_endpoint endpoint;
    } ranks[];
} table;

static lk_status exchange_on_host(lk_comm *c, const lk__rendezvous_identity *identity,
                                  lk__rendezvous_listener *listener, lk__rendezvous_endpoint *endpoints,
                                  lk__net_mesh *m, double end)
{
    lk__rendezvous_local rendezvous = {
        c->context, identity->key, identity->token, c->rank, c->size, (double)c->join_ms / 1e3, identity, c, NULL,
        NULL,       NULL};
    size_t                  bytes = sizeof(table) + (size_t)c->size * sizeof((table *)0)->ranks[0];
    void                   *memory = NULL;
    struct sockaddr_storage loopback = {0};
    *(struct sockaddr_in *)&loopback =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    lk_status status = lk__listen(c->context, &loopback, identity->ports, listener);
    if (status >= 0) status = lk__rendezvous_share(&rendezvous, bytes, &memory);
    if (status < 0) return status;
    table *t = memory;
    lk__endpoint_make(c->context, &t->ranks[c->rank].endpoint);
    t->ranks[c->rank].endpoint.address = listener->address;
    if (c->rank == 0 && !lk__entropy(t->secret, sizeof t->secret))
        status = lk__fail(c->context, LK_EIO, "cannot get random numbers from the system");
    if (status >= 0) atomic_store(&t->ranks[c->rank].written, 1);
    for (int i = 0; i < c->size && status >= 0; i++) {
        while (!atomic_load(&t->ranks[i].written) && lk__now() < end) usleep(50);
        if (!atomic_load(&t->ranks[i].written))
            status =
                lk__fail(c->context, LK_ETIMEOUT, "rank %d of %d joined, but did not publish its address", i, c->size);
        endpoints[i] = t->ranks[i].endpoint;
    }
    lk__token_derive(identity->token, t->secret, sizeof t->secret, m->token);
    memcpy(&m->secret, t->secret, sizeof m->secret);
    lk__rendezvous_unmap(memory, bytes);
    return status;
}

lk_status lk__mesh_join(lk_comm *c, const struct lk__rendezvous_identity *identity, int streams, lk__net_mesh *m)
{
    double                   end = lk__now() + (double)c->join_ms / 1e3;
    size_t                   bytes = (size_t)c->size * sizeof(lk__rendezvous_endpoint);
    lk__rendezvous_listener  listener = {.fd = -1};
    lk__rendezvous_endpoint *endpoints = lk__alloc(c->context, LK_MEMORY_OTHER, bytes);
    lk_status                status = lk__mesh_make(m, c->context, c->rank, c->size, streams);
    if (!endpoints) status = LK_ENOMEM;
    if (status >= 0)
        status = identity->many_hosts ? lk__rendezvous_join(c, identity, &listener, endpoints, m, end)
                                      : exchange_on_host(c, identity, &listener, endpoints, m, end);
    if (status >= 0) {
        double seconds = (double)c->connect_ms / 1e3;
        status = lk__mesh_connect(m, endpoints, &listener, seconds > 1 ? seconds : 1);
    }
    lk__listener_close(&listener);
    lk__free(c->context, LK_MEMORY_OTHER, endpoints, bytes);
    if (status < 0) lk__mesh_close(m);
    return status;
}
