/* meet_net.c - the rendezvous over several hosts. Rank 0 listens where MASTER_ADDR and the port say; the others go
 * there, prove themselves, and get everyone's card once all have come. What goes wrong is told with what was tried and
 * what answered. */
#define _GNU_SOURCE
#include "comm/meet.h"
#include "comm/mesh.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { ADDRESSES = 8 };

typedef struct meeting {
    lk_context      *context;
    const lk__place *place;
    int              rank, size;
    double           begun, end;
    lk__listener    *listener;
    lk__card        *cards;
    lk__mesh        *mesh;
    /* what the master's name stands for */
    struct sockaddr_storage addresses[ADDRESSES];
    int                     address_count;
} meeting;

static lk_status resolve(meeting *m)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC}, *found = NULL;
    int             why;
    do {
        why = getaddrinfo(m->place->address, NULL, &hints, &found);
        if (why != 0) usleep(100000); /* a name server may be about to learn it */
    } while (why != 0 && why != EAI_FAMILY && why != EAI_MEMORY && lk__now() < m->end);
    if (why != 0)
        return lk__fail(m->context, LK_ENOENT, "rank %d of %d cannot find rank 0: the name '%s' does not resolve: %s",
                        m->rank, m->size, m->place->address, gai_strerror(why));
    for (struct addrinfo *a = found; a && m->address_count < ADDRESSES; a = a->ai_next)
        if (a->ai_addrlen <= sizeof m->addresses[0] && (a->ai_family == AF_INET || a->ai_family == AF_INET6))
            memcpy(&m->addresses[m->address_count++], a->ai_addr, a->ai_addrlen);
    freeaddrinfo(found);
    return LK_OK;
}

static void show_ports(const lk__place *place, char *out, size_t bytes)
{
    if (place->master.first == place->master.last)
        snprintf(out, bytes, "%d", place->master.first);
    else
        snprintf(out, bytes, "%d-%d", place->master.first, place->master.last);
}

/* ---- rank 0 ---- */

typedef struct party {
    meeting       *m;
    lk__porch      porch;
    lk__visitor  **seats; /* by rank: who of the visitors it is; they stay on the porch */
    struct pollfd *polls;
} party;

static bool seated(const party *p, int rank)
{
    const lk__visitor *v = p->seats[rank];
    return v && v->fd >= 0 && v->known && v->hello.rank == rank;
}

static void came(lk__porch *porch, lk__visitor *v, void *user)
{
    party     *p = user;
    meeting   *m = p->m;
    int        rank = v->hello.rank;
    lk__answer no = {.status = LK_EMISMATCH};
    if (v->hello.purpose != LK__TO_MEET)
        snprintf(no.text, sizeof no.text, "rank %d comes to connect, and the meeting is not over", rank);
    else if (v->hello.size != m->size)
        snprintf(no.text, sizeof no.text, "rank 0 is in a world of %d, and this rank in one of %d", m->size,
                 v->hello.size);
    else if (rank == 0)
        snprintf(no.text, sizeof no.text, "there is a rank 0 already, as process %d of %.60s", getpid(),
                 m->cards[0].host);
    else if (seated(p, rank))
        snprintf(no.text, sizeof no.text, "rank %d is there already, as process %lld of %.60s", rank,
                 (long long)p->seats[rank]->hello.card.pid, p->seats[rank]->hello.card.host);
    else {
        p->seats[rank] = v;
        return;
    }
    lk__porch_answer(porch, v, &no);
    lk__porch_drop(porch, v, no.text);
}

static int count_seated(const party *p)
{
    int count = 0;
    for (int i = 1; i < p->m->size; i++) count += seated(p, i);
    return count;
}

static lk_status say_missing(const party *p)
{
    const meeting *m = p->m;
    char           names[200] = "", where[64];
    size_t         used = 0;
    int            missing = m->size - 1 - count_seated(p);
    for (int i = 1; i < m->size && used + 16 < sizeof names; i++)
        if (!seated(p, i)) used += (size_t)snprintf(names + used, sizeof names - used, "%s%d", used ? ", " : "", i);
    lk__address_show(&m->listener->bound, where, sizeof where);
    return lk__fail(m->context, LK_ETIMEOUT,
                    "rank%s %s of %d never came within %.1f s; rank 0 listened on %s (%s), %d of %d came%s%s%s",
                    missing > 1 ? "s" : "", names, m->size, m->end - m->begun, where, m->place->port_from,
                    m->size - 1 - missing, m->size - 1,
                    p->porch.dropped ? ", and others who were dropped (see the log)" : "", p->porch.why ? "; " : "",
                    p->porch.why ? strerror(p->porch.why) : "");
}

/* Yes and the cards, or no and why, to all who came. */
static void tell_all(party *p, lk_status status, const unsigned char *secret)
{
    meeting   *m = p->m;
    lk__answer answer = {.status = status};
    memcpy(answer.secret, secret, sizeof answer.secret);
    if (status < 0) snprintf(answer.text, sizeof answer.text, "%s", lk_context_error(m->context));
    for (int i = 1; i < m->size; i++) {
        unsigned char mac[LK__MAC];
        if (!seated(p, i)) continue;
        lk__visitor *v = p->seats[i];
        lk__porch_answer(&p->porch, v, &answer);
        if (status < 0) continue;
        lk__cards_sign(m->cards, m->size, &v->hello, m->place->token, mac);
        struct timeval patience = {.tv_sec = 1}; /* for some hundred kilobytes to a rank that reads */
        setsockopt(v->fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
        int flags = MSG_NOSIGNAL;
        for (size_t at = 0, all = (size_t)m->size * sizeof *m->cards; at < all;) {
            struct pollfd one = {.fd = v->fd, .events = POLLOUT};
            ssize_t       n = poll(&one, 1, 1000) > 0 ? send(v->fd, (char *)m->cards + at, all - at, flags) : -1;
            if (n <= 0) break; /* it is found missing when ranks connect */
            at += (size_t)n;
        }
        (void)!send(v->fd, mac, sizeof mac, flags);
    }
}

static lk_status receive_all(party *p)
{
    meeting *m = p->m;
    while (count_seated(p) < m->size - 1) {
        if (lk__now() > m->end) return say_missing(p);
        int n = lk__porch_watch(&p->porch, p->polls);
        if (poll(p->polls, (nfds_t)n, 20) > 0) lk__porch_serve(&p->porch, p->polls);
    }
    for (int i = 1; i < m->size; i++) m->cards[i] = p->seats[i]->hello.card;
    return LK_OK;
}

static lk_status open_house(meeting *m)
{
    lk_status status = LK_EIO;
    for (int i = 0; i < m->address_count && status < 0; i++) do {
            status = lk__listen(m->context, &m->addresses[i], m->place->master, m->listener);
            if (status < 0 && errno == EADDRINUSE && m->place->master.first) usleep(20000); /* of an earlier run */
        } while (status < 0 && errno == EADDRINUSE && lk__now() < m->end);
    if (status < 0)
        return lk__fail_prefix(m->context, status, "rank 0 of %d (MASTER_ADDR %s, port %s%s): ", m->size,
                               m->place->address, m->place->port_from,
                               errno == EADDRNOTAVAIL ? "; rank 0 must run on the host that has this address" : "");
    return LK_OK;
}

static lk_status host(meeting *m)
{
    party         p = {.m = m};
    size_t        seat_bytes = (size_t)m->size * sizeof *p.seats, poll_bytes = 0;
    unsigned char secret[LK__NONCE] = {0};
    lk_status     status = open_house(m);
    if (status < 0) return status;
    lk__card_make(&m->cards[0]);
    m->cards[0].address = m->listener->address;
    status = lk__porch_open(&p.porch, m->context, m->listener, m->place->token, m->size);
    p.porch.came = came;
    p.porch.user = &p;
    poll_bytes = (size_t)(p.porch.most + 1) * sizeof *p.polls;
    p.seats = lk__alloc(m->context, LK_MEMORY_OTHER, seat_bytes);
    p.polls = lk__alloc(m->context, LK_MEMORY_OTHER, poll_bytes);
    if (!p.seats || !p.polls) status = LK_ENOMEM;
    if (status >= 0 && getrandom(secret, sizeof secret, 0) != sizeof secret)
        status = lk__fail(m->context, LK_EIO, "the system gives no random numbers");
    if (status >= 0) {
        status = receive_all(&p);
        tell_all(&p, status, secret);
    }
    lk__token_derive(m->place->token, secret, sizeof secret, m->mesh->token);
    memcpy(&m->mesh->secret, secret, sizeof m->mesh->secret);
    lk__porch_close(&p.porch);
    lk__free(m->context, LK_MEMORY_OTHER, p.seats, seat_bytes);
    lk__free(m->context, LK_MEMORY_OTHER, p.polls, poll_bytes);
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
        int           left = (int)((end - lk__now()) * 1000) + 1;
        why = errno;
        if (why == EINPROGRESS) {
            why = ETIMEDOUT;
            if (poll(&one, 1, left > 0 ? left : 0) > 0) getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &length);
        }
    }
    if (why) {
        close(fd);
        errno = why;
        return -1;
    }
    return fd;
}

/* The interface that leads to rank 0 is the one on which this rank can be reached. */
static lk_status listen_beside(meeting *m, int fd)
{
    struct sockaddr_storage own = {0};
    socklen_t               length = sizeof own;
    if (m->listener->fd >= 0) return LK_OK;
    if (getsockname(fd, (struct sockaddr *)&own, &length) != 0)
        return lk__fail(m->context, LK_EIO, "rank %d: %s", m->rank, strerror(errno));
    return lk__listen(m->context, &own, m->place->ports, m->listener);
}

typedef enum outcome { MET, AGAIN, REFUSED, SILENT } outcome;

/* One attempt on a connection. AGAIN: rank 0 was not ready, or it was something else that listens. */
static outcome talk(meeting *m, int fd, const char *where, char *heard, size_t heard_bytes, lk_status *status)
{
    lk__greeting  greeting;
    lk__hello     hello = {.purpose = LK__TO_MEET, .rank = m->rank, .size = m->size};
    lk__answer    answer;
    unsigned char mac[LK__MAC];
    double        soon = lk__now() + 2;
    if (!lk__read_whole(fd, &greeting, sizeof greeting, soon < m->end ? soon : m->end) ||
        !lk__greeting_good(&greeting)) {
        snprintf(heard, heard_bytes, "something listens there that does not speak as rank 0 does");
        return AGAIN;
    }
    if ((*status = listen_beside(m, fd)) < 0) return REFUSED;
    lk__card_make(&hello.card);
    hello.card.address = m->listener->address;
    if (!lk__hello_sign(&hello, &greeting, m->place->token) ||
        send(fd, &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello)
        return AGAIN;
    /* Rank 0 waits for the others as long as this rank would: it, not we, should say who is missing. */
    if (!lk__read_whole(fd, &answer, sizeof answer, m->end + 0.5)) {
        snprintf(heard, heard_bytes, "it answered, then went away (%s)", strerror(errno));
        return errno == ETIMEDOUT ? SILENT : AGAIN;
    }
    switch (lk__answer_judge(&answer, &hello, m->place->token)) {
    case LK__FOREIGN:
        snprintf(heard, heard_bytes, "something listens there that does not speak as rank 0 does");
        return AGAIN;
    case LK__WRONG_TOKEN:
        *status = lk__fail(m->context, LK_EINVAL,
                           "rank %d of %d cannot join: wrong token, says who listens on %s: LOCKSTEP_TOKEN or the file "
                           "LOCKSTEP_TOKEN_FILE differs between this host and that one",
                           m->rank, m->size, where);
        return REFUSED;
    case LK__TRUE: break;
    }
    if (answer.status != LK_OK) {
        *status = lk__fail(m->context, (lk_status)answer.status, "rank %d of %d cannot join: rank 0 says: %s", m->rank,
                           m->size, answer.text);
        return REFUSED;
    }
    size_t bytes = (size_t)m->size * sizeof *m->cards;
    if (!lk__read_whole(fd, m->cards, bytes, m->end + 0.5) || !lk__read_whole(fd, mac, sizeof mac, m->end + 0.5) ||
        !lk__cards_judge(m->cards, m->size, &hello, m->place->token, mac)) {
        *status = lk__fail(m->context, LK_EIO, "rank %d of %d: rank 0 (%s) went away while it said who is there",
                           m->rank, m->size, where);
        return REFUSED;
    }
    lk__token_derive(m->place->token, answer.secret, sizeof answer.secret, m->mesh->token);
    memcpy(&m->mesh->secret, answer.secret, sizeof m->mesh->secret);
    return MET;
}

static const char *in_words(int why)
{
    switch (why) {
    case ECONNREFUSED: return "connection refused: nobody listens there";
    case EHOSTUNREACH:
    case ENETUNREACH: return "no route to that host";
    case ETIMEDOUT: return "nothing answers: the host is down, or a firewall drops what is sent";
    default: return strerror(why);
    }
}

static lk_status join(meeting *m)
{
    lk_status  status = LK_OK;
    char       heard[256] = "", where[64] = "", ports[32];
    int        turns = m->address_count * (m->place->master.last - m->place->master.first + 1);
    useconds_t pause = 500;
    do {
        for (int i = 0; i < turns && lk__now() < m->end; i++) {
            struct sockaddr_storage to = m->addresses[i % m->address_count];
            uint16_t                port = htons((uint16_t)(m->place->master.first + i / m->address_count));
            *(to.ss_family == AF_INET6 ? &((struct sockaddr_in6 *)&to)->sin6_port
                                       : &((struct sockaddr_in *)&to)->sin_port) = port;
            char   at[64];
            double soon = turns > 1 ? lk__now() + 1 : m->end;
            lk__address_show(&to, at, sizeof at);
            int     fd = knock(&to, soon < m->end ? soon : m->end);
            outcome o = AGAIN;
            if (fd < 0) {
                snprintf(heard, sizeof heard, "%s", in_words(errno));
            } else {
                o = talk(m, fd, at, heard, sizeof heard, &status);
                close(fd);
            }
            snprintf(where, sizeof where, "%s", at);
            if (o == MET) return LK_OK;
            if (o == REFUSED) return status;
            if (o == SILENT) m->end = 0;
        }
        usleep(pause);
        if (pause < 20000) pause *= 2;
    } while (lk__now() < m->end);
    show_ports(m->place, ports, sizeof ports);
    return lk__fail(m->context, LK_ETIMEOUT,
                    "rank 0 of %d was not found: rank %d tried %s port %s (%s) for %.1f s, the last time at %s: %s",
                    m->size, m->rank, m->place->address, ports, m->place->port_from, lk__now() - m->begun, where,
                    heard[0] ? heard : "nothing came");
}

lk_status lk__meet_net(lk_comm *c, const lk__place *place, lk__listener *listener, lk__card *cards, lk__mesh *mesh,
                       double end)
{
    meeting m = {.context = c->context,
                 .place = place,
                 .rank = c->rank,
                 .size = c->size,
                 .begun = lk__now(),
                 .end = end,
                 .listener = listener,
                 .cards = cards,
                 .mesh = mesh};
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
    if (status < 0) return status;
    return c->rank == 0 ? host(&m) : join(&m);
}
