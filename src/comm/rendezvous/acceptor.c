/* acceptor.c - listens and authenticates incoming connections. One that sends anything but a valid request, or nothing,
 * is dropped and logged, and does not delay the ranks. */
#define _GNU_SOURCE
#include "comm/rendezvous/acceptor.h"

#include "comm/socket.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { UNAUTHENTICATED_MOST = 64, LOGGED = 16 };

socklen_t lk__address_length(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

static void set_port(struct sockaddr_storage *address, int port)
{
    if (address->ss_family == AF_INET6)
        ((struct sockaddr_in6 *)address)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)address)->sin_port = htons((uint16_t)port);
}

static int bind_one(const struct sockaddr_storage *address, bool reuse)
{
    int one = 1, fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    if (reuse) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one); /* past connections do not hold the port */
    if (bind(fd, (const struct sockaddr *)address, lk__address_length(address)) == 0 && listen(fd, 4096) == 0)
        return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

lk_status lk__listen(lk_context *context, const struct sockaddr_storage *where, lk__rendezvous_ports ports,
                     lk__rendezvous_listener *l)
{
    struct sockaddr_storage address = *where;
    char                    text[LK__ADDRESS_TEXT];
    *l = (lk__rendezvous_listener){.fd = -1};
    for (int port = ports.first; l->fd < 0 && port <= ports.last; port++) {
        set_port(&address, port);
        l->fd = bind_one(&address, port != 0);
        if (l->fd < 0 && errno != EADDRINUSE && errno != EACCES) break;
    }
    int       why = errno;
    socklen_t length = sizeof l->bound;
    if (l->fd >= 0 && getsockname(l->fd, (struct sockaddr *)&l->bound, &length) == 0 &&
        lk__address_from_socket(&l->address, &l->bound)) {
        if (l->bound.ss_family == AF_INET6) l->scope = ((struct sockaddr_in6 *)&l->bound)->sin6_scope_id;
        return LK_OK;
    }
    lk__listener_close(l);
    lk__address_show(&address, text, sizeof text);
    if (ports.last > ports.first)
        lk__fail(context, LK_EIO, "cannot listen on any port from %d to %d of %s: %s", ports.first, ports.last, text,
                 lk__comm_reason_of(why).text);
    else
        lk__fail(context, LK_EIO, "cannot listen on %s: %s", text, lk__comm_reason_of(why).text);
    errno = why; /* the caller may retry */
    return LK_EIO;
}

void lk__listener_close(lk__rendezvous_listener *l)
{
    if (l->fd >= 0) close(l->fd);
    l->fd = -1;
}

lk_status lk__acceptor_open(lk__rendezvous_acceptor *acceptor, lk_context *context, lk__rendezvous_listener *listener,
                            const char *token, int expected)
{
    *acceptor = (lk__rendezvous_acceptor){
        .context = context, .token = token, .listener = listener, .most = UNAUTHENTICATED_MOST + expected};
    acceptor->pending = lk__alloc(context, LK_MEMORY_OTHER, (size_t)acceptor->most * sizeof *acceptor->pending);
    if (!acceptor->pending) return LK_ENOMEM;
    for (int i = 0; i < acceptor->most; i++) acceptor->pending[i].fd = acceptor->pending[i].poll = -1;
    return LK_OK;
}

void lk__acceptor_close(lk__rendezvous_acceptor *acceptor)
{
    for (int i = 0; acceptor->pending && i < acceptor->most; i++)
        if (acceptor->pending[i].fd >= 0) close(acceptor->pending[i].fd);
    lk__free(acceptor->context, LK_MEMORY_OTHER, acceptor->pending, (size_t)acceptor->most * sizeof *acceptor->pending);
    acceptor->pending = NULL;
    if (acceptor->dropped > LOGGED)
        lk__log(acceptor->context, LK_LOG_WARNING, "dropped %d more connections to the rendezvous",
                acceptor->dropped - LOGGED);
}

void lk__acceptor_drop(lk__rendezvous_acceptor *acceptor, lk__rendezvous_pending *connection, const char *why)
{
    if (why && ++acceptor->dropped <= LOGGED)
        lk__log(acceptor->context, LK_LOG_WARNING, "dropped a connection to the rendezvous from %s: %s",
                connection->from, why);
    close(connection->fd);
    connection->fd = -1;
}

int lk__acceptor_watch(lk__rendezvous_acceptor *acceptor, struct pollfd *polls)
{
    double now = lk__now();
    int    n = 0;
    for (int i = 0; i < acceptor->most; i++) {
        lk__rendezvous_pending *connection = &acceptor->pending[i];
        if (connection->fd >= 0 && !connection->authenticated && now - connection->since > 1)
            lk__acceptor_drop(acceptor, connection, "it sent no request within a second");
        connection->poll = connection->fd >= 0 ? n++ : -1;
        if (connection->fd >= 0) polls[connection->poll] = (struct pollfd){.fd = connection->fd, .events = POLLIN};
    }
    /* When accept failed, the listener is not polled for one round: it would be ready again at once. */
    acceptor->listener_poll =
        acceptor->listener->fd >= 0 && !(acceptor->why && acceptor->listener_poll >= 0) ? n++ : -1;
    if (acceptor->listener_poll >= 0)
        polls[acceptor->listener_poll] = (struct pollfd){.fd = acceptor->listener->fd, .events = POLLIN};
    return n;
}

void lk__acceptor_reply(const lk__rendezvous_acceptor *acceptor, const lk__rendezvous_pending *connection,
                        const lk__rendezvous_reply *reply)
{
    lk__rendezvous_reply signed_reply = *reply;
    lk__reply_sign(&signed_reply, &connection->request, acceptor->token);
    /* A rank that does not receive it is reported as missing later. */
    (void)!send(connection->fd, &signed_reply, sizeof signed_reply, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* False: there is no connection to accept, or accept failed. */
static bool accept_connection(lk__rendezvous_acceptor *acceptor)
{
    struct sockaddr_storage from = {0};
    socklen_t               length = sizeof from;
    lk__rendezvous_pending  incoming = {.since = lk__now(), .poll = -1}, *unused = NULL;
    long                    pid;
    bool                    own_user = true;
    incoming.fd = accept4(acceptor->listener->fd, (struct sockaddr *)&from, &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (incoming.fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) acceptor->why = errno;
        return errno == ECONNABORTED; /* that client disconnected */
    }
    acceptor->why = 0;
    if (acceptor->listener->bound.ss_family == AF_UNIX) {
        own_user = lk__peer_is_own_user(incoming.fd, &pid);
        snprintf(incoming.from, sizeof incoming.from, "process %ld", pid);
    } else {
        lk__address_show(&from, incoming.from, sizeof incoming.from);
        lk__socket_probe(incoming.fd, true);
    }
    for (int i = 0; i < acceptor->most && !unused; i++)
        if (acceptor->pending[i].fd < 0) unused = &acceptor->pending[i];
    if (!own_user)
        lk__acceptor_drop(acceptor, &incoming, "it belongs to another user");
    else if (!unused || !lk__challenge_make(&incoming.challenge))
        lk__acceptor_drop(acceptor, &incoming, "too many connections at once");
    else if (send(incoming.fd, &incoming.challenge, sizeof incoming.challenge, MSG_NOSIGNAL) !=
             sizeof incoming.challenge)
        lk__acceptor_drop(acceptor, &incoming, "it disconnected at once");
    else
        *unused = incoming;
    return true;
}

static void receive_request(lk__rendezvous_acceptor *acceptor, lk__rendezvous_pending *connection)
{
    char byte;
    if (connection->authenticated) { /* it waits for a reply: all it may do is disconnect */
        ssize_t n = recv(connection->fd, &byte, 1, MSG_DONTWAIT);
        if (n >= 0 || (errno != EAGAIN && errno != EINTR)) lk__acceptor_drop(acceptor, connection, NULL);
        return;
    }
    ssize_t n = recv(connection->fd, (char *)&connection->request + connection->have,
                     sizeof connection->request - connection->have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        lk__acceptor_drop(acceptor, connection,
                          connection->have ? "it disconnected in the middle of its request"
                                           : "it disconnected without a request");
        return;
    }
    if ((connection->have += (size_t)n) < sizeof connection->request) {
        /* A wrong magic is enough to drop it, without the rest of the request. */
        lk__rendezvous_challenge begin;
        if (connection->have < sizeof begin.magic) return;
        memcpy(begin.magic, connection->request.magic, sizeof begin.magic);
        if (!lk__challenge_valid(&begin)) lk__acceptor_drop(acceptor, connection, "it does not speak this protocol");
        return;
    }
    switch (lk__request_verify(&connection->request, &connection->challenge, acceptor->token)) {
    case LK__FOREIGN: lk__acceptor_drop(acceptor, connection, "it does not speak this protocol"); return;
    case LK__WRONG_TOKEN:
        lk__acceptor_reply(acceptor, connection, &(lk__rendezvous_reply){.status = LK_EINVAL, .text = "wrong token"});
        lk__acceptor_drop(acceptor, connection, "wrong token");
        return;
    case LK__TRUSTED: connection->authenticated = true; acceptor->accepted(acceptor, connection, acceptor->user);
    }
}

void lk__acceptor_serve(lk__rendezvous_acceptor *acceptor, const struct pollfd *polls)
{
    for (int i = 0; i < acceptor->most; i++) {
        lk__rendezvous_pending *connection = &acceptor->pending[i];
        if (connection->fd >= 0 && connection->poll >= 0 && polls[connection->poll].revents)
            receive_request(acceptor, connection);
    }
    if (acceptor->listener_poll >= 0 && polls[acceptor->listener_poll].revents)
        for (int i = 0; i < 16 && accept_connection(acceptor); i++) {}
}
