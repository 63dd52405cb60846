/* tcp.c - bulk data over TCP: separate connections between every two ranks, read directly into the receive buffers and
 * written directly from the send buffers. The thread that waits for a flight reads and writes.
 *
 * Exchanges need no header: all ranks begin them in one order and know their sizes. Messages have one, since their
 * order may differ. Ranks never have both in flight, because a collective moves no data before all have entered it. A
 * large part is divided over the streams between two hosts. */
#define _GNU_SOURCE
#include "comm/net/net.h"
#include "comm/socket.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
    /* Between hosts: a lost packet halves one window, not all (1.8 times as fast with cubic and 1 % of loss; equal at
     * 1 Gbit/s; a little slower on an unlimited link). On one host one is faster. */
    STREAMS = 2,
    DIVIDED = 256 << 10, /* bytes from which on a part is divided over all streams */
    AT_ONCE = 256 << 10, /* bytes per system call: the copy stays in the cache, and connections take turns */
};

typedef struct header {
    uint64_t id, bytes;
} header;

/* The part of a flight that one stream moves in one direction. */
typedef struct item {
    lk__net_transfer_state *flight;
    struct item            *next;
    char                   *data;
    size_t                  bytes, done;
    header                  header;
    bool                    headed, sends;
    int                     peer, stream;
} item;

struct lk__net_transfer_state {
    int                     count, left; /* items; items that are not done */
    int                     room;
    lk__net_transfer_state *next; /* among the spare ones */
    item                    items[];
};

typedef struct queue {
    item *first, **last;
} queue;

typedef struct stream {
    lk__net_handler handler;
    int             fd, peer;
    atomic_bool     readable, writable; /* as far as is known */
    bool            broken;
    queue           sending, receiving, awaited; /* awaited: messages, in no order */
    size_t          sent_header, have_header;
    header          header; /* of the message that is being received */
    item           *coming;
} stream;

typedef struct tcp {
    stream                 *streams; /* by rank, then number */
    int                     count;   /* per rank */
    lk__net_transfer_state *spare;   /* finished, to be reused: repeated calls allocate nothing */
} tcp;

static stream *stream_of(lk__net *net, int peer, int which)
{
    tcp *t = net->transport_state;
    return &t->streams[peer * t->count + which];
}

/* ---- queues ---- */

static void enqueue(queue *q, item *i)
{
    *q->last = i;
    q->last = &i->next;
}

static void remove_item(queue *q, item *i)
{
    item **at = &q->first;
    while (*at && *at != i) at = &(*at)->next;
    if (!*at) return;
    if (!(*at = i->next)) q->last = at;
    i->next = NULL;
}

static void complete_item(queue *q, item *i)
{
    remove_item(q, i);
    i->flight->left--;
}

/* ---- moving ---- */

static void on_ready(lk__net_handler *handler, uint32_t events)
{
    stream *s = (stream *)handler; /* its first member */
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) atomic_store(&s->readable, true);
    if (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) atomic_store(&s->writable, true);
}

/* error: of the socket; 0: its peer closed it, or violated the protocol. */
static void mark_broken(lk__net *net, stream *s, int error)
{
    lk__net_peer *peer = &net->peers[s->peer];
    s->broken = true;
    if (lk__error_is_cut_off(error) && !atomic_exchange(&peer->cut_off, true)) atomic_store(&peer->lost_at, lk__now());
    atomic_store(&peer->drained, true);
}

/* True when bytes moved. */
static bool advance_send(lk__net *net, stream *s)
{
    item        *i = s->sending.first;
    struct iovec parts[2];
    int          n = 0;
    if (i->headed && s->sent_header < sizeof(header))
        parts[n++] = (struct iovec){(char *)&i->header + s->sent_header, sizeof(header) - s->sent_header};
    size_t left = i->bytes - i->done, chunk = left < AT_ONCE ? left : AT_ONCE;
    if (chunk) parts[n++] = (struct iovec){i->data + i->done, chunk};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)n};
    atomic_store(&s->writable, false); /* before sendmsg: a new event may set it at any time */
    ssize_t moved = sendmsg(s->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (moved < 0) {
        if (errno == EINTR) atomic_store(&s->writable, true);
        if (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK) mark_broken(net, s, errno);
        return false;
    }
    size_t bytes = (size_t)moved;
    atomic_store(&s->writable, true);
    if (i->headed && s->sent_header < sizeof(header)) {
        size_t head = sizeof(header) - s->sent_header < bytes ? sizeof(header) - s->sent_header : bytes;
        s->sent_header += head;
        bytes -= head;
    }
    i->done += bytes;
    if (i->done == i->bytes && (!i->headed || s->sent_header == sizeof(header))) {
        s->sent_header = 0;
        complete_item(&s->sending, i);
    }
    return true;
}

/* Bytes received; 0: none. */
static size_t receive_bytes(lk__net *net, stream *s, void *into, size_t bytes)
{
    atomic_store(&s->readable, false);
    ssize_t n = recv(s->fd, into, bytes < AT_ONCE ? bytes : AT_ONCE, MSG_DONTWAIT);
    if (n > 0 || (n < 0 && errno == EINTR)) atomic_store(&s->readable, true);
    if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK))
        mark_broken(net, s, n < 0 ? errno : 0);
    return n > 0 ? (size_t)n : 0;
}

/* The awaited item of the next message. NULL: its header is incomplete, or nothing awaits it yet. */
static item *next_message(lk__net *net, stream *s, bool *moved)
{
    if (s->have_header < sizeof s->header) {
        size_t n = receive_bytes(net, s, (char *)&s->header + s->have_header, sizeof s->header - s->have_header);
        s->have_header += n;
        *moved |= n > 0;
        if (s->have_header < sizeof s->header) return NULL;
    }
    for (item *i = s->awaited.first; i; i = i->next)
        if (i->header.id == s->header.id) {
            if (i->bytes == s->header.bytes) return i;
            mark_broken(net, s, 0); /* sizes differ: a protocol violation that no control message reports */
            return NULL;
        }
    return NULL;
}

static bool advance_receive(lk__net *net, stream *s)
{
    bool  moved = false;
    item *i = s->receiving.first;
    if (!i) {
        if (!s->coming) s->coming = next_message(net, s, &moved);
        if (!(i = s->coming)) return moved;
    }
    if (i->done < i->bytes) {
        size_t n = receive_bytes(net, s, i->data + i->done, i->bytes - i->done);
        i->done += n;
        moved |= n > 0;
    }
    if (i->done < i->bytes) return moved;
    if (i == s->coming) {
        s->coming = NULL;
        s->have_header = 0;
        complete_item(&s->awaited, i);
    } else {
        complete_item(&s->receiving, i);
    }
    return true;
}

static bool advance_streams(lk__net *net)
{
    tcp *t = net->transport_state;
    bool any = false;
    for (int k = 0; k < net->size * t->count; k++) {
        stream *s = &t->streams[k];
        if (s->fd < 0 || s->broken) continue;
        if (s->sending.first && atomic_load_explicit(&s->writable, memory_order_relaxed)) any |= advance_send(net, s);
        if ((s->receiving.first || s->awaited.first) && !s->broken &&
            atomic_load_explicit(&s->readable, memory_order_relaxed))
            any |= advance_receive(net, s);
    }
    if (any) atomic_fetch_add_explicit(&net->progress, 1, memory_order_relaxed);
    return any;
}

/* ---- flights ---- */

static size_t flight_bytes(int room) { return sizeof(lk__net_transfer_state) + (size_t)room * sizeof(item); }

static lk__net_transfer_state *make_flight(lk__net *net, int room)
{
    tcp *t = net->transport_state;
    for (lk__net_transfer_state **at = &t->spare; *at; at = &(*at)->next) {
        lk__net_transfer_state *f = *at;
        if (f->room < room) continue;
        *at = f->next;
        f->count = 0;
        return f;
    }
    lk__net_transfer_state *f = lk__alloc(net->comm->context, LK_MEMORY_OTHER, flight_bytes(room));
    if (f) f->room = room;
    return f;
}

/* Divides a part over the streams of its peer. */
static void add_items(lk__net *net, lk__net_transfer_state *f, int peer, void *data, size_t bytes, const uint64_t *id,
                      bool sends)
{
    tcp   *t = net->transport_state;
    bool   here = strcmp(net->mesh.ranks[peer].host_id, net->mesh.ranks[net->rank].host_id) == 0;
    size_t streams = bytes >= DIVIDED && !here ? (size_t)t->count : 1, each = (bytes / streams + 63) / 64 * 64, at = 0;
    if (sends) atomic_fetch_add_explicit(&net->sent, bytes, memory_order_relaxed);
    for (size_t k = 0; k < streams; k++) {
        stream *s = stream_of(net, peer, (int)k);
        size_t  n = k + 1 < streams ? each : bytes - at;
        item   *i = &f->items[f->count++];
        *i = (item){.flight = f,
                    .data = (char *)data + at,
                    .bytes = n,
                    .headed = id != NULL,
                    .sends = sends,
                    .header = {id ? *id : 0, n},
                    .peer = peer,
                    .stream = (int)k};
        f->left++;
        enqueue(sends ? &s->sending : id ? &s->awaited : &s->receiving, i);
        at += n;
    }
}

static lk_status exchange(lk__net *net, const lk__net_part *parts, lk__net_transfer_state **flight)
{
    tcp                    *t = net->transport_state;
    lk__net_transfer_state *f = *flight = make_flight(net, 2 * net->size * t->count);
    if (!f) return LK_ENOMEM;
    for (int k = 1; k < net->size; k++) {
        int i = (net->rank + k) % net->size;
        if (parts[i].send_bytes) add_items(net, f, i, (void *)parts[i].send, parts[i].send_bytes, NULL, true);
        if (parts[i].recv_bytes) add_items(net, f, i, parts[i].recv, parts[i].recv_bytes, NULL, false);
    }
    advance_streams(net);
    return LK_OK;
}

static lk_status begin_message(lk__net *net, int peer, uint64_t id, void *data, size_t bytes, bool sends,
                               lk__net_transfer_state **flight)
{
    lk__net_transfer_state *f = *flight = make_flight(net, ((tcp *)net->transport_state)->count);
    if (!f) return LK_ENOMEM;
    add_items(net, f, peer, data, bytes, &id, sends);
    advance_streams(net);
    return LK_OK;
}

static lk_status send_message(lk__net *net, int peer, uint64_t id, const void *data, size_t bytes,
                              lk__net_transfer_state **flight)
{
    return begin_message(net, peer, id, (void *)data, bytes, true, flight);
}

static lk_status recv_message(lk__net *net, int peer, uint64_t id, void *data, size_t bytes,
                              lk__net_transfer_state **flight)
{
    return begin_message(net, peer, id, data, bytes, false, flight);
}

static lk_status wait_flight(lk__net *net, lk__net_transfer_state *f, double seconds)
{
    while (f->left > 0 && advance_streams(net)) {}
    if (f->left > 0 && seconds > 0) {
        lk__net_pump(net, seconds);
        while (f->left > 0 && advance_streams(net)) {}
    }
    return f->left > 0 ? LK_END : LK_OK;
}

/* A stream whose item is cancelled halfway is unusable. */
static void finish_flight(lk__net *net, lk__net_transfer_state *f)
{
    tcp *t = net->transport_state;
    if (!f) return;
    for (int k = 0; k < f->count && f->left > 0; k++) {
        item   *i = &f->items[k];
        stream *s = stream_of(net, i->peer, i->stream);
        if (i->done == i->bytes && i->bytes > 0 && !(i->sends && i->headed && s->sending.first == i)) continue;
        remove_item(i->sends ? &s->sending : &s->receiving, i);
        remove_item(&s->awaited, i);
        if (s->coming == i) s->coming = NULL;
        s->broken = true;
        shutdown(s->fd, SHUT_RDWR);
    }
    f->left = 0;
    f->next = t->spare;
    t->spare = f;
}

static bool is_pending(lk__net *net, lk__net_transfer_state *f, int peer)
{
    (void)net;
    for (int k = 0; k < f->count; k++) {
        const item *i = &f->items[k];
        if (i->peer == peer && (i->done < i->bytes || i->bytes == 0)) return true;
    }
    return false;
}

/* ---- open and close ---- */

static size_t stream_bytes(const lk__net *net, const tcp *t)
{
    return (size_t)net->size * (size_t)t->count * sizeof *t->streams;
}

static lk_status open_streams(lk__net *net)
{
    tcp *t = lk__alloc(net->comm->context, LK_MEMORY_OTHER, sizeof *t);
    if (!t) return LK_ENOMEM;
    net->transport_state = t;
    t->count = net->mesh.streams;
    if (!(t->streams = lk__alloc(net->comm->context, LK_MEMORY_OTHER, stream_bytes(net, t)))) return LK_ENOMEM;
    lk_status status = LK_OK;
    for (int i = 0; i < net->size; i++)
        for (int k = 0; k < t->count; k++) {
            stream *s = stream_of(net, i, k);
            queue  *queues[] = {&s->sending, &s->receiving, &s->awaited};
            s->handler.ready = on_ready;
            s->peer = i;
            s->fd = -1;
            for (int q = 0; q < 3; q++) queues[q]->last = &queues[q]->first;
            if (i == net->rank || status < 0) continue;
            int *fd = &net->mesh.ranks[i].fds[1 + k];
            s->fd = *fd;
            *fd = -1;
            status = lk__net_watch(net, s->fd, &s->handler);
        }
    return status;
}

static size_t count_unconfirmed(lk__net *net, int peer)
{
    const tcp *t = net->transport_state;
    size_t     bytes = 0;
    for (int k = 0; k < t->count; k++) {
        const stream *s = stream_of(net, peer, k);
        if (s->fd >= 0 && !s->broken) bytes += lk__socket_unconfirmed(s->fd);
    }
    return bytes;
}

static void free_streams(lk__net *net)
{
    tcp *t = net->transport_state;
    if (!t) return;
    for (lk__net_transfer_state *f = t->spare, *next; f; f = next) {
        next = f->next;
        lk__free(net->comm->context, LK_MEMORY_OTHER, f, flight_bytes(f->room));
    }
    for (int k = 0; t->streams && k < net->size * t->count; k++)
        if (t->streams[k].fd >= 0) close(t->streams[k].fd);
    lk__free(net->comm->context, LK_MEMORY_OTHER, t->streams, stream_bytes(net, t));
    lk__free(net->comm->context, LK_MEMORY_OTHER, t, sizeof *t);
    net->transport_state = NULL;
}

static const lk__net_transport transport = {.name = "tcp",
                                            .streams = STREAMS,
                                            .open = open_streams,
                                            .exchange = exchange,
                                            .send = send_message,
                                            .recv = recv_message,
                                            .wait = wait_flight,
                                            .finish = finish_flight,
                                            .pending = is_pending,
                                            .unconfirmed = count_unconfirmed,
                                            .free = free_streams};

static lk_status create(lk_comm *c, const struct lk__rendezvous_identity *place)
{
    return lk__net_open(c, place, &transport);
}

const lk__comm_backend lk__backend_tcp = LK__NET_TABLE("tcp", create, lk__net_prepare, lk__net_split);
