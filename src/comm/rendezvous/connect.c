/* mesh.c - connects each rank with each: the higher rank goes to the lower, all at the same time, on both sides with a
 * handshake. Nobody waits for one connection while another is ready. */
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

/* A connection to a lower rank, on its way. */
typedef struct line {
    enum { IDLE, CONNECTING, GREETED, SAID, DONE } stage;
    int    fd, poll, rank, stream, why; /* poll: its place in what is polled; why: errno of the last failure */
    double again;                       /* IDLE: when to try */
    size_t have;
    lk__rendezvous_challenge greeting;
    lk__rendezvous_request   hello;
    lk__rendezvous_reply     answer;
} line;

typedef struct building {
    lk__net_mesh              *mesh;
    const lk__rendezvous_card *cards;
    lk__rendezvous_listener   *listener;
    line                      *lines;
    int                        line_count, missing; /* missing: higher ranks' connections */
    lk__rendezvous_acceptor    acceptor;
    struct pollfd             *polls;
} building;

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

static void settle(int fd, int stream)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (!stream) lk__socket_probe(fd);
}

/* ---- to the lower ranks ---- */

static void give_up(line *l, int why)
{
    if (l->fd >= 0) close(l->fd);
    l->fd = -1;
    l->why = why;
    l->stage = IDLE;
    l->again = lk__now() + 0.02;
}

static void begin(building *b, line *l)
{
    struct sockaddr_storage to;
    socklen_t               length = lk__address_give(&b->cards[l->rank].address, b->listener->scope, &to);
    l->have = 0;
    l->fd = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0 || (connect(l->fd, (struct sockaddr *)&to, length) != 0 && errno != EINPROGRESS))
        give_up(l, errno);
    else
        l->stage = CONNECTING;
}

/* As much of a message as there is: true once it is whole. */
static bool gather(line *l, void *message, size_t bytes)
{
    ssize_t n = recv(l->fd, (char *)message + l->have, bytes - l->have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (n <= 0) {
        give_up(l, n == 0 ? ECONNRESET : errno);
        return false;
    }
    l->have += (size_t)n;
    if (l->have < bytes) return false;
    l->have = 0;
    return true;
}

static void introduce(building *b, line *l)
{
    lk__net_mesh *m = b->mesh;
    l->hello = (lk__rendezvous_request){
        .purpose = LK__TO_CONNECT, .rank = m->rank, .size = m->size, .stream = l->stream, .card = b->cards[m->rank]};
    if (!lk__challenge_valid(&l->greeting) || !lk__request_sign(&l->hello, &l->greeting, m->token) ||
        send(l->fd, &l->hello, sizeof l->hello, MSG_NOSIGNAL) != sizeof l->hello)
        give_up(l, EPROTO);
    else
        l->stage = SAID;
}

static void advance(building *b, line *l)
{
    int       why = 0;
    socklen_t length = sizeof why;
    if (l->stage == CONNECTING) {
        if (getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &why, &length) != 0 || why)
            give_up(l, why);
        else
            l->stage = GREETED;
    } else if (l->stage == GREETED) {
        if (gather(l, &l->greeting, sizeof l->greeting)) introduce(b, l);
    } else if (l->stage == SAID && gather(l, &l->answer, sizeof l->answer)) {
        if (lk__reply_verify(&l->answer, &l->hello, b->mesh->token) != LK__TRUSTED || l->answer.status != LK_OK) {
            give_up(l, EPROTO);
            return;
        }
        settle(l->fd, l->stream);
        b->mesh->ranks[l->rank].fds[l->stream] = l->fd;
        l->fd = -1;
        l->stage = DONE;
    }
}

/* ---- from the higher ranks ---- */

static void came(lk__rendezvous_acceptor *p, lk__rendezvous_pending *v, void *user)
{
    building     *b = user;
    lk__net_mesh *m = b->mesh;
    int           rank = v->hello.rank, stream = v->hello.stream;
    if (v->hello.purpose != LK__TO_CONNECT || v->hello.size != m->size || rank <= m->rank || stream > m->streams) {
        lk__acceptor_drop(p, v, "it is of another group");
        return;
    }
    int *seat = &m->ranks[rank].fds[stream];
    if (*seat >= 0) { /* it gave an earlier attempt up */
        close(*seat);
        b->missing++;
    }
    lk__acceptor_reply(p, v, &(lk__rendezvous_reply){.status = LK_OK});
    settle(v->fd, stream);
    *seat = v->fd;
    v->fd = -1;
    b->missing--;
}

/* ---- all together ---- */

static lk_status say_unreached(const building *b, const line *l, double seconds)
{
    struct sockaddr_storage    to;
    char                       text[LK__ADDRESS_TEXT];
    const lk__rendezvous_card *card = &b->cards[l->rank];
    lk__address_give(&card->address, b->listener->scope, &to);
    lk__address_show(&to, text, sizeof text);
    if (l->why == EMFILE || l->why == ENFILE) /* nobody else's fault */
        return lk__fail(b->mesh->context, LK_EIO, "rank %d of %d cannot connect to rank %d (%s, pid %lld) at %s: %s",
                        b->mesh->rank, b->mesh->size, l->rank, card->host, (long long)card->pid, text,
                        lk__comm_reason_of(l->why).text);
    return lk__fail(
        b->mesh->context, LK_ETIMEOUT,
        "rank %d of %d cannot reach rank %d (%s, pid %lld) at %s within %.1f s: %s; LOCKSTEP_PORT=4000-4100 "
        "would tell ranks which ports to listen on, if a firewall is between them",
        b->mesh->rank, b->mesh->size, l->rank, card->host, (long long)card->pid, text, seconds,
        l->stage == CONNECTING ? "nothing answers"
        : l->why == EPROTO     ? "what listens there is of another job"
        : l->why               ? strerror(l->why)
                               : "it does not say anything");
}

static lk_status say_missing(const building *b, double seconds)
{
    const lk__net_mesh *m = b->mesh;
    char                text[LK__ADDRESS_TEXT];
    for (int i = 0; i < b->line_count; i++)
        if (b->lines[i].stage != DONE) return say_unreached(b, &b->lines[i], seconds);
    lk__address_show(&b->listener->bound, text, sizeof text);
    for (int i = m->rank + 1; i < m->size; i++)
        for (int s = 0; s <= m->streams; s++)
            if (m->ranks[i].fds[s] < 0 && b->acceptor.why)
                return lk__fail(m->context, LK_EIO,
                                "rank %d of %d could not let rank %d (%s, pid %lld) in at %s for %.1f s: %s", m->rank,
                                m->size, i, b->cards[i].host, (long long)b->cards[i].pid, text, seconds,
                                lk__comm_reason_of(b->acceptor.why).text);
            else if (m->ranks[i].fds[s] < 0)
                return lk__fail(m->context, LK_ETIMEOUT,
                                "rank %d of %d (%s, pid %lld) never came to rank %d at %s within %.1f s", i, m->size,
                                b->cards[i].host, (long long)b->cards[i].pid, m->rank, text, seconds);
    return LK_EIO;
}

static bool finished(const building *b)
{
    for (int i = 0; i < b->line_count; i++)
        if (b->lines[i].stage != DONE) return false;
    return b->missing == 0;
}

static lk_status build(building *b, double seconds)
{
    double end = lk__now() + seconds;
    while (!finished(b)) {
        double now = lk__now();
        if (now > end) return say_missing(b, seconds);
        int    n = lk__acceptor_watch(&b->acceptor, b->polls);
        double wait = 0.05;
        for (int i = 0; i < b->line_count; i++) {
            line *l = &b->lines[i];
            if (l->stage == IDLE && now >= l->again) begin(b, l);
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
        for (int i = 0; i < b->line_count; i++)
            if (b->lines[i].poll >= 0 && b->polls[b->lines[i].poll].revents) advance(b, &b->lines[i]);
    }
    return LK_OK;
}

lk_status lk__mesh_connect(lk__net_mesh *m, const lk__rendezvous_card *cards, lk__rendezvous_listener *listener,
                           double seconds)
{
    int      streams = m->streams + 1;
    building b = {.mesh = m,
                  .cards = cards,
                  .listener = listener,
                  .line_count = m->rank * streams,
                  .missing = (m->size - 1 - m->rank) * streams};
    m->bound = listener->bound;
    size_t line_bytes = (size_t)b.line_count * sizeof *b.lines, poll_bytes = 0;
    for (int i = 0; i < m->size; i++) {
        snprintf(m->ranks[i].host, sizeof m->ranks[i].host, "%s", cards[i].host);
        snprintf(m->ranks[i].host_id, sizeof m->ranks[i].host_id, "%s", cards[i].host_id);
        m->ranks[i].pid = cards[i].pid;
    }
    lk_status status = lk__acceptor_open(&b.acceptor, m->context, listener, m->token, b.missing);
    b.acceptor.came = came;
    b.acceptor.user = &b;
    if (line_bytes && !(b.lines = lk__alloc(m->context, LK_MEMORY_OTHER, line_bytes))) status = LK_ENOMEM;
    if (status >= 0) {
        poll_bytes = (size_t)(b.acceptor.most + 1 + b.line_count) * sizeof *b.polls;
        if (!(b.polls = lk__alloc(m->context, LK_MEMORY_OTHER, poll_bytes))) status = LK_ENOMEM;
    }
    for (int i = 0; b.lines && i < b.line_count; i++)
        b.lines[i] = (line){.fd = -1, .rank = i / streams, .stream = i % streams};
    if (status >= 0) status = build(&b, seconds);
    for (int i = 0; b.lines && i < b.line_count; i++)
        if (b.lines[i].fd >= 0) close(b.lines[i].fd);
    lk__acceptor_close(&b.acceptor);
    lk__free(m->context, LK_MEMORY_OTHER, b.lines, line_bytes);
    lk__free(m->context, LK_MEMORY_OTHER, b.polls, poll_bytes);
    return status;
}

/* ---- on one host: cards are exchanged in memory that all share for a moment ---- */

typedef struct table {
    unsigned char secret[LK__NONCE];
    struct {
        atomic_int          written;
        lk__rendezvous_card card;
    } ranks[];
} table;

static lk_status meet_here(lk_comm *c, const lk__rendezvous_identity *place, lk__rendezvous_listener *listener,
                           lk__rendezvous_card *cards, lk__net_mesh *m, double end)
{
    lk__rendezvous_local    meeting = {c->context, place->key, place->token, c->rank, c->size, (double)c->join_ms / 1e3,
                                       place,      c};
    size_t                  bytes = sizeof(table) + (size_t)c->size * sizeof((table *)0)->ranks[0];
    void                   *memory = NULL;
    struct sockaddr_storage loopback = {0};
    *(struct sockaddr_in *)&loopback =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    lk_status status = lk__listen(c->context, &loopback, place->ports, listener);
    if (status >= 0) status = lk__rendezvous_share(&meeting, bytes, &memory);
    if (status < 0) return status;
    table *t = memory;
    lk__card_make(&t->ranks[c->rank].card);
    t->ranks[c->rank].card.address = listener->address;
    if (c->rank == 0 && !lk__entropy(t->secret, sizeof t->secret))
        status = lk__fail(c->context, LK_EIO, "the system gives no random numbers");
    if (status >= 0) atomic_store(&t->ranks[c->rank].written, 1);
    for (int i = 0; i < c->size && status >= 0; i++) {
        while (!atomic_load(&t->ranks[i].written) && lk__now() < end) usleep(50);
        if (!atomic_load(&t->ranks[i].written))
            status =
                lk__fail(c->context, LK_ETIMEOUT, "rank %d of %d came to the meeting, then said nothing", i, c->size);
        cards[i] = t->ranks[i].card;
    }
    lk__token_derive(place->token, t->secret, sizeof t->secret, m->token);
    memcpy(&m->secret, t->secret, sizeof m->secret);
    lk__rendezvous_unmap(memory, bytes);
    return status;
}

lk_status lk__mesh_join(lk_comm *c, const struct lk__rendezvous_identity *place, int streams, lk__net_mesh *m)
{
    double                  end = lk__now() + (double)c->join_ms / 1e3;
    size_t                  bytes = (size_t)c->size * sizeof(lk__rendezvous_card);
    lk__rendezvous_listener listener = {.fd = -1};
    lk__rendezvous_card    *cards = lk__alloc(c->context, LK_MEMORY_OTHER, bytes);
    lk_status               status = lk__mesh_make(m, c->context, c->rank, c->size, streams);
    if (!cards) status = LK_ENOMEM;
    m->first_port = place->ports.first;
    m->last_port = place->ports.last;
    if (status >= 0)
        status = place->many_hosts ? lk__rendezvous_join(c, place, &listener, cards, m, end)
                                   : meet_here(c, place, &listener, cards, m, end);
    if (status >= 0) {
        double seconds = (double)c->connect_ms / 1e3;
        status = lk__mesh_connect(m, cards, &listener, seconds > 1 ? seconds : 1);
    }
    lk__listener_close(&listener);
    lk__free(c->context, LK_MEMORY_OTHER, cards, bytes);
    if (status < 0) lk__mesh_close(m);
    return status;
}
