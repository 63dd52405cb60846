/* meet_net.c - the rendezvous over several hosts. Rank 0 listens where MASTER_ADDR and the port say; the others go
 * there, prove themselves, and get everyone's card once all have come. What goes wrong is told with what was tried and
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

/* Seconds: for an earlier run to give the port up; for one attempt to connect, where there are several addresses and where there
 * is one. */
static const double port_patience = 5, quick_attempt = 1, attempt = 5;

/* What a name stands for. */
typedef struct names {
    struct sockaddr_storage addresses[ADDRESSES];
    int                     count;
} names;

typedef struct meeting {
    lk_context                    *context;
    const lk_comm                 *comm;
    const lk__rendezvous_identity *place;
    int                            rank, size;
    double                         begun, end;
    lk__rendezvous_waiting         waiting;
    lk__rendezvous_listener       *listener;
    lk__rendezvous_card           *cards;
    lk__net_mesh                  *mesh;
    names                          master, local; /* where rank 0 is; where this rank listens, if it was told */
} meeting;

static void read_addresses(const struct addrinfo *found, names *into)
{
    for (; found && into->count < ADDRESSES; found = found->ai_next)
        if (found->ai_addrlen <= sizeof into->addresses[0] &&
            (found->ai_family == AF_INET || found->ai_family == AF_INET6))
            memcpy(&into->addresses[into->count++], found->ai_addr, found->ai_addrlen);
}

static lk_status resolve(meeting *m)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC}, *found = NULL;
    int             why;
    do {
        why = getaddrinfo(m->place->address, NULL, &hints, &found);
        if (why == 0) break;
        if (lk__waiting_due(&m->waiting)) lk__waiting_for_master(&m->waiting, m->place->address, gai_strerror(why));
        usleep(lk__now() < m->begun + 5 ? 100000 : 1000000); /* a name server may be about to learn it */
    } while (why != 0 && why != EAI_FAMILY && why != EAI_MEMORY && lk__now() < m->end);
    if (why != 0)
        return lk__fail(m->context, LK_ENOENT, "rank %d of %d cannot find rank 0: the name '%s' does not resolve: %s",
                        m->rank, m->size, m->place->address, gai_strerror(why));
    read_addresses(found, &m->master);
    freeaddrinfo(found);
    return LK_OK;
}

/* LOCKSTEP_LOCAL_ADDR: one of this host's own, so there is nothing to wait for. */
static lk_status resolve_local(meeting *m)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC}, *found = NULL;
    if (!m->place->local[0]) return LK_OK;
    int why = getaddrinfo(m->place->local, NULL, &hints, &found);
    if (why != 0)
        return lk__fail(m->context, LK_EINVAL, "rank %d of %d: LOCKSTEP_LOCAL_ADDR '%s' does not resolve: %s", m->rank,
                        m->size, m->place->local, gai_strerror(why));
    read_addresses(found, &m->local);
    freeaddrinfo(found);
    return LK_OK;
}

/* 0.0.0.0, :: and ::ffff:0.0.0.0 stand for every interface there is. */
static bool is_any(const struct sockaddr_storage *address)
{
    static const unsigned char mapped[16] = {[10] = 0xff, [11] = 0xff};
    if (address->ss_family == AF_INET) return ((const struct sockaddr_in *)address)->sin_addr.s_addr == INADDR_ANY;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)address)->sin6_addr;
    return IN6_IS_ADDR_UNSPECIFIED(six) || memcmp(six, mapped, sizeof mapped) == 0;
}

/* What listens binds one interface only, and the others could not go to "any". */
static lk_status refuse_any(const meeting *m, const char *name, const names *addresses)
{
    for (int i = 0; i < addresses->count; i++)
        if (is_any(&addresses->addresses[i]))
            return lk__fail(m->context, LK_EINVAL,
                            "rank %d of %d: '%s' stands for every interface, and rank 0 listens on one only: give the "
                            "name or the address of rank 0's host at which the others reach it, as MASTER_ADDR or "
                            "lk_comm_config.address",
                            m->rank, m->size, name);
    return LK_OK;
}

static void show_ports(const lk__rendezvous_identity *place, char *out, size_t bytes)
{
    if (place->master.first == place->master.last)
        snprintf(out, bytes, "%d", place->master.first);
    else
        snprintf(out, bytes, "%d-%d", place->master.first, place->master.last);
}

/* ---- rank 0 ---- */

/* Yes and the cards, or no and why, to all who came. */
static void tell_all(meeting *m, const lk__rendezvous_server *p, lk_status status, const unsigned char *secret)
{
    lk__rendezvous_reply answer = {.status = status};
    memcpy(answer.secret, secret, sizeof answer.secret);
    if (status < 0) snprintf(answer.text, sizeof answer.text, "%s", lk_context_error(m->context));
    for (int i = 1; i < m->size; i++) {
        unsigned char           mac[LK__MAC];
        lk__rendezvous_pending *v = lk__server_peer(p, i);
        if (v) lk__acceptor_reply(&p->acceptor, v, &answer);
        if (!v || status < 0) continue;
        lk__cards_sign(m->cards, m->size, &v->hello, m->place->token, mac);
        /* A second, for some hundred kilobytes to a rank that reads. Who does not is found missing when ranks connect. */
        double end = lk__now() + 1;
        (void)(lk__write_whole(v->fd, m->cards, (size_t)m->size * sizeof *m->cards, end) &&
               lk__write_whole(v->fd, mac, sizeof mac, end));
    }
}

static lk_status open_house(meeting *m)
{
    lk_status    status = LK_EIO;
    double       until = m->begun + port_patience;
    const names *own = m->local.count ? &m->local : &m->master;
    if (until > m->end) until = m->end;
    for (int i = 0; i < own->count && status < 0; i++) do {
            status = lk__listen(m->context, &own->addresses[i], m->place->master, m->listener);
            if (status < 0 && errno == EADDRINUSE && m->place->master.first) usleep(20000); /* of an earlier run */
        } while (status < 0 && errno == EADDRINUSE && lk__now() < until);
    if (status < 0)
        return lk__fail_prefix(m->context, status, "rank 0 of %d (%s %s, port %s%s): ", m->size,
                               m->local.count ? "LOCKSTEP_LOCAL_ADDR" : "MASTER_ADDR",
                               m->local.count ? m->place->local : m->place->address, m->place->port_from,
                               errno == EADDRNOTAVAIL ? "; rank 0 must run on the host that has this address" : "");
    return LK_OK;
}

static lk_status host(meeting *m)
{
    lk__rendezvous_server p;
    unsigned char         secret[LK__NONCE] = {0};
    lk_status             status = open_house(m);
    if (status < 0) return status;
    lk__card_make(&m->cards[0]);
    m->cards[0].address = m->listener->address;
    status = lk__server_open(&p, m->context, m->listener, m->place->token, LK__TO_JOIN, m->size);
    if (status >= 0 && !lk__entropy(secret, sizeof secret))
        status = lk__fail(m->context, LK_EIO, "the system gives no random numbers");
    if (status >= 0) {
        status = lk__server_receive(&p, &m->waiting, m->place->port_from);
        if (status < 0) lk__server_note_failure(&p, m->comm);
        for (int i = 1; i < m->size && status >= 0; i++) m->cards[i] = p.ranks[i]->hello.card;
        tell_all(m, &p, status, secret);
    }
    lk__token_derive(m->place->token, secret, sizeof secret, m->mesh->token);
    memcpy(&m->mesh->secret, secret, sizeof m->mesh->secret);
    lk__server_close(&p);
    return status;
}

/* ---- the others ---- */

static int knock(const struct sockaddr_storage *to, double end)
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
    lk__socket_probe(fd); /* others may come minutes later, and rank 0's host be gone by then */
    return fd;
}

/* Unless it was told another, the interface that leads to rank 0 is the one on which this rank can be reached. */
static lk_status listen_beside(meeting *m, int fd)
{
    struct sockaddr_storage own = {0};
    socklen_t               length = sizeof own;
    if (m->listener->fd >= 0) return LK_OK;
    if (m->local.count) return lk__listen(m->context, &m->local.addresses[0], m->place->ports, m->listener);
    if (getsockname(fd, (struct sockaddr *)&own, &length) != 0)
        return lk__fail(m->context, LK_EIO, "rank %d: %s", m->rank, strerror(errno));
    return lk__listen(m->context, &own, m->place->ports, m->listener);
}

typedef enum outcome { MET, AGAIN, REFUSED, SILENT } outcome;

/* One attempt on a connection. AGAIN: rank 0 was not ready, or it was something else that listens. */
static outcome talk(meeting *m, int fd, const char *where, char *heard, size_t heard_bytes, lk_status *status)
{
    lk__rendezvous_challenge greeting;
    lk__rendezvous_request   hello = {.purpose = LK__TO_JOIN, .rank = m->rank, .size = m->size};
    lk__rendezvous_reply     answer;
    unsigned char            mac[LK__MAC];
    /* Rank 0 waits for the others as long as this rank would: it, not we, should say who is missing and why. */
    double soon = lk__now() + 2, end = m->end + 0.5;
    if (!lk__read_whole(fd, &greeting, sizeof greeting, soon < end ? soon : end)) {
        snprintf(heard, heard_bytes, "something listens there and %s",
                 errno == ETIMEDOUT ? "says nothing" : "hangs up without a word");
        return AGAIN;
    }
    if (!lk__challenge_valid(&greeting)) {
        snprintf(heard, heard_bytes, "something listens there that does not speak as rank 0 does");
        return AGAIN;
    }
    if ((*status = listen_beside(m, fd)) < 0) return REFUSED;
    lk__card_make(&hello.card);
    hello.card.address = m->listener->address;
    if (!lk__request_sign(&hello, &greeting, m->place->token) || !lk__write_whole(fd, &hello, sizeof hello, end))
        return AGAIN;
    if (!lk__read_whole(fd, &answer, sizeof answer, end)) {
        bool late = errno == ETIMEDOUT && lk__now() >= end; /* probes that fail give the same error */
        snprintf(heard, heard_bytes,
                 late ? "it answered, but did not say that all ranks have joined" : "it answered, then went away");
        return late ? SILENT : AGAIN;
    }
    lk__rendezvous_trust belief = lk__reply_verify(&answer, &hello, m->place->token);
    if (belief == LK__FOREIGN) {
        snprintf(heard, heard_bytes, "something listens there that does not speak as rank 0 does");
        return AGAIN;
    }
    if ((*status = lk__reply_check(m->context, &answer, belief, &hello, where)) < 0) return REFUSED;
    size_t bytes = (size_t)m->size * sizeof *m->cards;
    if (!lk__read_whole(fd, m->cards, bytes, end) || !lk__read_whole(fd, mac, sizeof mac, end) ||
        !lk__cards_verify(m->cards, m->size, &hello, m->place->token, mac)) {
        *status = lk__fail(m->context, LK_EIO, "rank %d of %d: rank 0 (%s) went away while it said who is there",
                           m->rank, m->size, where);
        return REFUSED;
    }
    lk__token_derive(m->place->token, answer.secret, sizeof answer.secret, m->mesh->token);
    memcpy(&m->mesh->secret, answer.secret, sizeof m->mesh->secret);
    return MET;
}

/* NULL: the system has a word for it. */
static const char *in_words(int why)
{
    switch (why) {
    case ECONNREFUSED: return "connection refused: nobody listens there";
    case EHOSTUNREACH:
    case ENETUNREACH: return "no route to that host";
    case ETIMEDOUT: return "nothing answers: the host is down, or a firewall drops what is sent";
    default: return NULL;
    }
}

static lk_status join(meeting *m)
{
    lk_status  status = LK_OK;
    char       heard[256] = "", where[LK__ADDRESS_TEXT] = "", ports[32];
    int        turns = m->master.count * (m->place->master.last - m->place->master.first + 1);
    useconds_t pause = 500;
    do {
        for (int i = 0; i < turns && lk__now() < m->end; i++) {
            struct sockaddr_storage to = m->master.addresses[i % m->master.count];
            uint16_t                port = htons((uint16_t)(m->place->master.first + i / m->master.count));
            *(to.ss_family == AF_INET6 ? &((struct sockaddr_in6 *)&to)->sin6_port
                                       : &((struct sockaddr_in *)&to)->sin_port) = port;
            char   at[LK__ADDRESS_TEXT];
            double soon = lk__now() + (turns > 1 ? quick_attempt : attempt);
            lk__address_show(&to, at, sizeof at);
            int     fd = knock(&to, soon < m->end ? soon : m->end);
            outcome o = AGAIN;
            if (fd < 0) {
                const char *words = in_words(errno);
                snprintf(heard, sizeof heard, "%s", words ? words : lk__comm_reason_of(errno).text);
            } else {
                o = talk(m, fd, at, heard, sizeof heard, &status);
                close(fd);
            }
            snprintf(where, sizeof where, "%s", at);
            if (o == MET) return LK_OK;
            if (o == REFUSED) return status;
            if (o == SILENT) m->end = 0;
        }
        if (lk__now() < m->end && lk__waiting_due(&m->waiting)) lk__waiting_for_master(&m->waiting, where, heard);
        usleep(pause);
        if (pause < 20000) pause *= 2;
    } while (lk__now() < m->end);
    show_ports(m->place, ports, sizeof ports);
    return lk__fail(m->context, LK_ETIMEOUT,
                    "rank 0 of %d was not found: rank %d tried %s port %s (%s) for %.1f s, the last time at %s: %s",
                    m->size, m->rank, m->place->address, ports, m->place->port_from, lk__now() - m->begun, where,
                    heard[0] ? heard : "nothing came");
}

lk_status lk__rendezvous_join(lk_comm *c, const lk__rendezvous_identity *place, lk__rendezvous_listener *listener,
                              lk__rendezvous_card *cards, lk__net_mesh *mesh, double end)
{
    meeting m = {.context = c->context,
                 .comm = c,
                 .place = place,
                 .rank = c->rank,
                 .size = c->size,
                 .begun = lk__now(),
                 .end = end,
                 .listener = listener,
                 .cards = cards,
                 .mesh = mesh};
    lk__waiting_begin(&m.waiting, c->context, place, c->rank, c->size, end);
    if (!place->address[0])
        return lk__fail(c->context, LK_EINVAL,
                        "rank %d of %d: the ranks are on several hosts (%s), and nobody says where rank 0 is: set "
                        "MASTER_ADDR",
                        c->rank, c->size, place->tried);
    if (!place->master.first)
        return lk__fail(c->context, LK_EINVAL,
                        "rank %d of %d: the ranks are on several hosts (%s), and nobody says on which port they meet: "
                        "set LOCKSTEP_PORT to a free port (MASTER_PORT is held by the launcher's own store)",
                        c->rank, c->size, place->tried);
    lk_status status = resolve(&m);
    if (status >= 0) status = resolve_local(&m);
    if (status >= 0) status = refuse_any(&m, place->address, &m.master);
    if (status >= 0) status = refuse_any(&m, place->local, &m.local);
    if (status < 0) return status;
    status = c->rank == 0 ? host(&m) : join(&m);
    if (status == LK_ETIMEOUT && c->rank != 0) lk__comm_join_failed(c, 0, LK__CAUSE_LATE);
    return status;
}
