/* acceptor.c - listens, and finds out who came: strangers who send something else, or nothing, are dropped and logged, and
 * whoever waits for ranks does not notice. */
#define _GNU_SOURCE
#include "comm/rendezvous/acceptor.h"

#include "comm/socket.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { STRANGERS = 64, LOGGED = 16 };

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

static int bind_one(const struct sockaddr_storage *address, bool again)
{
    int one = 1, fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    if (again) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one); /* past connections do not hold the port */
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
        lk__address_take(&l->address, &l->bound)) {
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
    errno = why; /* the caller may try again */
    return LK_EIO;
}

void lk__listener_close(lk__rendezvous_listener *l)
{
    if (l->fd >= 0) close(l->fd);
    l->fd = -1;
}

lk_status lk__acceptor_open(lk__rendezvous_acceptor *p, lk_context *context, lk__rendezvous_listener *listener,
                            const char *token, int expected)
{
    *p = (lk__rendezvous_acceptor){
        .context = context, .token = token, .listener = listener, .most = STRANGERS + expected};
    p->pending = lk__alloc(context, LK_MEMORY_OTHER, (size_t)p->most * sizeof *p->pending);
    if (!p->pending) return LK_ENOMEM;
    for (int i = 0; i < p->most; i++) p->pending[i].fd = p->pending[i].poll = -1;
    return LK_OK;
}

void lk__acceptor_close(lk__rendezvous_acceptor *p)
{
    for (int i = 0; p->pending && i < p->most; i++)
        if (p->pending[i].fd >= 0) close(p->pending[i].fd);
    lk__free(p->context, LK_MEMORY_OTHER, p->pending, (size_t)p->most * sizeof *p->pending);
    p->pending = NULL;
    if (p->dropped > LOGGED)
        lk__log(p->context, LK_LOG_WARNING, "and %d more, who came and were dropped", p->dropped - LOGGED);
}

void lk__acceptor_drop(lk__rendezvous_acceptor *p, lk__rendezvous_pending *v, const char *why)
{
    if (why && ++p->dropped <= LOGGED)
        lk__log(p->context, LK_LOG_WARNING, "dropped %s, who came to where the ranks meet: %s", v->from, why);
    close(v->fd);
    v->fd = -1;
}

int lk__acceptor_watch(lk__rendezvous_acceptor *p, struct pollfd *polls)
{
    double now = lk__now();
    int    n = 0;
    for (int i = 0; i < p->most; i++) {
        lk__rendezvous_pending *v = &p->pending[i];
        if (v->fd >= 0 && !v->known && now - v->since > 1) lk__acceptor_drop(p, v, "it said nothing for a second");
        v->poll = v->fd >= 0 ? n++ : -1;
        if (v->fd >= 0) polls[v->poll] = (struct pollfd){.fd = v->fd, .events = POLLIN};
    }
    /* Where nobody can be let in the door stays shut for one round: it would be ready again at once. */
    p->door = p->listener->fd >= 0 && !(p->why && p->door >= 0) ? n++ : -1;
    if (p->door >= 0) polls[p->door] = (struct pollfd){.fd = p->listener->fd, .events = POLLIN};
    return n;
}

void lk__acceptor_reply(const lk__rendezvous_acceptor *p, const lk__rendezvous_pending *v,
                        const lk__rendezvous_reply *answer)
{
    lk__rendezvous_reply a = *answer;
    lk__reply_sign(&a, &v->hello, p->token);
    (void)!send(v->fd, &a, sizeof a, MSG_NOSIGNAL | MSG_DONTWAIT); /* who cannot take a kilobyte is found missing */
}

/* False: nobody is at the door, or the system lets nobody in. */
static bool welcome(lk__rendezvous_acceptor *p)
{
    struct sockaddr_storage from = {0};
    socklen_t               length = sizeof from;
    lk__rendezvous_pending  unknown = {.since = lk__now(), .poll = -1}, *free_one = NULL;
    long                    pid;
    bool                    ours = true;
    unknown.fd = accept4(p->listener->fd, (struct sockaddr *)&from, &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (unknown.fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) p->why = errno;
        return errno == ECONNABORTED; /* that one is gone */
    }
    p->why = 0;
    if (p->listener->bound.ss_family == AF_UNIX) {
        ours = lk__own_peer(unknown.fd, &pid);
        snprintf(unknown.from, sizeof unknown.from, "process %ld", pid);
    } else {
        lk__address_show(&from, unknown.from, sizeof unknown.from);
        lk__socket_probe(unknown.fd);
    }
    for (int i = 0; i < p->most && !free_one; i++)
        if (p->pending[i].fd < 0) free_one = &p->pending[i];
    if (!ours)
        lk__acceptor_drop(p, &unknown, "it belongs to another user");
    else if (!free_one || !lk__challenge_make(&unknown.greeting))
        lk__acceptor_drop(p, &unknown, "too many came at once");
    else if (send(unknown.fd, &unknown.greeting, sizeof unknown.greeting, MSG_NOSIGNAL) != sizeof unknown.greeting)
        lk__acceptor_drop(p, &unknown, "it left at once");
    else
        *free_one = unknown;
    return true;
}

static void hear(lk__rendezvous_acceptor *p, lk__rendezvous_pending *v)
{
    char byte;
    if (v->known) { /* it waits for an answer: all it can do is leave */
        ssize_t n = recv(v->fd, &byte, 1, MSG_DONTWAIT);
        if (n >= 0 || (errno != EAGAIN && errno != EINTR)) lk__acceptor_drop(p, v, NULL);
        return;
    }
    ssize_t n = recv(v->fd, (char *)&v->hello + v->have, sizeof v->hello - v->have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        lk__acceptor_drop(p, v, v->have ? "it left in the middle of a word" : "it said nothing");
        return;
    }
    if ((v->have += (size_t)n) < sizeof v->hello) {
        /* Who says something else from the first byte on need not be heard to the end. */
        lk__rendezvous_challenge begin;
        if (v->have < sizeof begin.magic) return;
        memcpy(begin.magic, v->hello.magic, sizeof begin.magic);
        if (!lk__challenge_valid(&begin)) lk__acceptor_drop(p, v, "it does not speak as a rank does");
        return;
    }
    switch (lk__request_verify(&v->hello, &v->greeting, p->token)) {
    case LK__FOREIGN: lk__acceptor_drop(p, v, "it does not speak as a rank does"); return;
    case LK__WRONG_TOKEN:
        lk__acceptor_reply(p, v, &(lk__rendezvous_reply){.status = LK_EINVAL, .text = "wrong token"});
        lk__acceptor_drop(p, v, "wrong token");
        return;
    case LK__TRUSTED: v->known = true; p->came(p, v, p->user);
    }
}

void lk__acceptor_serve(lk__rendezvous_acceptor *p, const struct pollfd *polls)
{
    for (int i = 0; i < p->most; i++) {
        lk__rendezvous_pending *v = &p->pending[i];
        if (v->fd >= 0 && v->poll >= 0 && polls[v->poll].revents) hear(p, v);
    }
    if (p->door >= 0 && polls[p->door].revents)
        for (int i = 0; i < 16 && welcome(p); i++) {}
}
