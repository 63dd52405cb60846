/* tcp.c - bulk data over TCP: separate connections between every two ranks (stream.c), read directly into the receive
 * buffers and written directly from the send buffers. The thread that waits for a flight reads and writes. A large part
 * is divided over the streams between two hosts. */
#define _GNU_SOURCE
#include "comm/net/stream.h"
#include "comm/socket.h"
#include "comm/transports.h"

#include <string.h>

enum {
    /* Between hosts: a lost packet halves one window, not all (1.8 times as fast with cubic and 1 % of loss; equal at
     * 1 Gbit/s; a little slower on an unlimited link). On one host one is faster. */
    STREAMS = 2,
    DIVIDED = 256 << 10, /* bytes from which on a part is divided over all streams */
};

/* The streams of all groups. */
typedef struct shared_streams {
    lk__net_stream *all;   /* by connection, then number */
    int             count; /* per connection */
} shared_streams;

typedef struct tcp {
    lk__net_transfer_state *spare;           /* finished, to be reused: repeated calls allocate nothing */
    uint64_t               *sent, *received; /* by rank: parts of exchanges so far; both sides count the same */
} tcp;

static const uint64_t EXCHANGE = (uint64_t)1 << 63; /* ids of parts of exchanges; those of messages are below */

static lk__net_stream *stream_of(const lk__net *net, int peer, int which)
{
    const shared_streams *t = net->connections->streams;
    return &t->all[net->members[peer] * t->count + which];
}

static int streams_per_peer(const lk__net *net) { return ((const shared_streams *)net->connections->streams)->count; }

static bool advance_streams(lk__net *net)
{
    int  count = streams_per_peer(net);
    bool any = false;
    for (int i = 0; i < net->size; i++)
        for (int k = 0; k < count && i != net->rank; k++) any |= lk__net_stream_advance(stream_of(net, i, k), net);
    return any;
}

/* ---- flights ---- */

static size_t flight_bytes(int room)
{
    return sizeof(lk__net_transfer_state) + (size_t)room * sizeof(lk__net_stream_item);
}

static lk__net_transfer_state *make_flight(lk__net *net, int room)
{
    tcp                    *t = net->transport_state;
    lk__net_transfer_state *f = NULL;
    for (lk__net_transfer_state **at = &t->spare; *at && !f; at = &(*at)->next)
        if ((*at)->room >= room) {
            f = *at;
            *at = f->next;
            break;
        }
    if (!f && (f = lk__alloc(net->comm->context, LK_MEMORY_OTHER, flight_bytes(room)))) f->room = room;
    if (!f) return NULL;
    f->count = 0;
    atomic_store_explicit(&f->left, 0, memory_order_relaxed);
    atomic_fetch_add(&net->flights, 1);
    return f;
}

static lk_status reserve_flights(lk__net *net, int count)
{
    tcp *t = net->transport_state;
    int  room = streams_per_peer(net);
    for (int i = 0; i < count; i++) {
        lk__net_transfer_state *f = lk__alloc(net->comm->context, LK_MEMORY_OTHER, flight_bytes(room));
        if (!f) return LK_ENOMEM;
        f->room = room;
        f->next = t->spare;
        t->spare = f;
    }
    return LK_OK;
}

/* Divides a part over the streams of its peer. */
static void add_items(lk__net *net, lk__net_transfer_state *f, int peer, void *data, size_t bytes, uint64_t id,
                      bool sends)
{
    bool   here = strcmp(net->mesh.ranks[peer].host_id, net->mesh.ranks[net->rank].host_id) == 0;
    size_t streams = bytes >= DIVIDED && !here ? (size_t)streams_per_peer(net) : 1,
           each = (bytes / streams + 63) / 64 * 64, at = 0;
    if (sends) atomic_fetch_add_explicit(&net->sent, bytes, memory_order_relaxed);
    atomic_fetch_add(&f->left, (int)streams);
    for (size_t k = 0; k < streams; k++) {
        size_t               n = k + 1 < streams ? each : bytes - at;
        lk__net_stream_item *i = &f->items[f->count++];
        *i = (lk__net_stream_item){.net = net,
                                   .flight = f,
                                   .data = (char *)data + at,
                                   .bytes = n,
                                   .id = id,
                                   .group = net->id,
                                   .sends = sends,
                                   .peer = peer,
                                   .stream = (int)k};
        lk__net_stream_enqueue(stream_of(net, peer, (int)k), i);
        at += n;
    }
}

static lk_status exchange(lk__net *net, const lk__net_part *parts, lk__net_transfer_state **flight)
{
    tcp                    *t = net->transport_state;
    lk__net_transfer_state *f = *flight = make_flight(net, 2 * net->size * streams_per_peer(net));
    if (!f) return LK_ENOMEM;
    for (int k = 1; k < net->size; k++) {
        int                 i = (net->rank + k) % net->size;
        const lk__net_part *p = &parts[i];
        if (p->send_bytes) add_items(net, f, i, (void *)p->send, p->send_bytes, EXCHANGE | t->sent[i]++, true);
        if (p->recv_bytes) add_items(net, f, i, p->recv, p->recv_bytes, EXCHANGE | t->received[i]++, false);
    }
    advance_streams(net);
    return LK_OK;
}

static lk_status begin_message(lk__net *net, int peer, uint64_t id, void *data, size_t bytes, bool sends,
                               lk__net_transfer_state **flight)
{
    lk__net_transfer_state *f = *flight = make_flight(net, streams_per_peer(net));
    if (!f) return LK_ENOMEM;
    add_items(net, f, peer, data, bytes, id, sends);
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

/* Whether it is complete once nothing more can be moved without waiting. */
static bool complete_flight(lk__net *net, lk__net_transfer_state *f)
{
    while (atomic_load(&f->left) > 0)
        if (!advance_streams(net)) return atomic_load(&f->left) == 0;
    return true;
}

static lk_status wait_flight(lk__net *net, lk__net_transfer_state *f, double seconds)
{
    uint32_t seen = atomic_load(&net->events);
    if (complete_flight(net, f)) return LK_OK;
    if (seconds <= 0) return LK_END;
    lk__net_pump(net, seen, seconds);
    return complete_flight(net, f) ? LK_OK : LK_END;
}

static void finish_flight(lk__net *net, lk__net_transfer_state *f)
{
    tcp *t = net->transport_state;
    if (!f) return;
    for (int k = 0; k < f->count && atomic_load(&f->left) > 0; k++)
        lk__net_stream_cancel(stream_of(net, f->items[k].peer, f->items[k].stream), &f->items[k]);
    f->next = t->spare;
    t->spare = f;
    atomic_fetch_sub(&net->flights, 1);
}

static bool is_pending(lk__net *net, lk__net_transfer_state *f, int peer)
{
    bool pending = false;
    for (int k = 0; k < f->count && !pending; k++) {
        const lk__net_stream_item *i = &f->items[k];
        lk__net_stream            *s = stream_of(net, i->peer, i->stream);
        if (i->peer != peer) continue;
        pthread_mutex_lock(&s->lock);
        pending = !i->complete;
        pthread_mutex_unlock(&s->lock);
    }
    return pending;
}

/* ---- open and close ---- */

static size_t stream_bytes(const lk__net_connections *cs, const shared_streams *t)
{
    return (size_t)cs->size * (size_t)t->count * sizeof *t->all;
}

/* With the first group, which has the connections. */
static lk_status open_streams(lk__net *net)
{
    lk__net_connections *cs = net->connections;
    shared_streams      *t = lk__alloc(cs->context, LK_MEMORY_OTHER, sizeof *t);
    if (!t) return LK_ENOMEM;
    cs->streams = t;
    t->count = net->mesh.streams;
    if (!(t->all = lk__alloc(cs->context, LK_MEMORY_OTHER, stream_bytes(cs, t)))) return LK_ENOMEM;
    lk_status status = LK_OK;
    for (int i = 0; i < cs->size; i++)
        for (int k = 0; k < t->count; k++) {
            int      *fd = &net->mesh.ranks[i].fds[1 + k];
            lk_status opened = lk__net_stream_open(&t->all[i * t->count + k], cs, i, *fd);
            if (status >= 0) status = opened;
            *fd = -1;
        }
    return status;
}

static void close_streams(lk__net_connections *cs)
{
    shared_streams *t = cs->streams;
    if (!t) return;
    for (int k = 0; t->all && k < cs->size * t->count; k++) lk__net_stream_close(&t->all[k]);
    lk__free(cs->context, LK_MEMORY_OTHER, t->all, stream_bytes(cs, t));
    lk__free(cs->context, LK_MEMORY_OTHER, t, sizeof *t);
    cs->streams = NULL;
}

static size_t list_bytes(const lk__net *net) { return (size_t)net->size * sizeof(uint64_t); }

static lk_status open_group(lk__net *net)
{
    lk_context *context = net->comm->context;
    tcp        *t = net->transport_state = lk__alloc(context, LK_MEMORY_OTHER, sizeof *t);
    if (!t) return LK_ENOMEM;
    t->sent = lk__alloc(context, LK_MEMORY_OTHER, list_bytes(net));
    t->received = lk__alloc(context, LK_MEMORY_OTHER, list_bytes(net));
    if (!t->sent || !t->received) return LK_ENOMEM;
    return net->connections->streams ? LK_OK : open_streams(net);
}

static void free_group(lk__net *net)
{
    lk_context *context = net->comm->context;
    tcp        *t = net->transport_state;
    if (!t) return;
    for (int i = 0; net->connections->streams && i < net->size; i++)
        for (int k = 0; k < streams_per_peer(net) && i != net->rank; k++)
            lk__net_stream_forget(stream_of(net, i, k), net->id);
    for (lk__net_transfer_state *f = t->spare, *next; f; f = next) {
        next = f->next;
        lk__free(context, LK_MEMORY_OTHER, f, flight_bytes(f->room));
    }
    lk__free(context, LK_MEMORY_OTHER, t->sent, list_bytes(net));
    lk__free(context, LK_MEMORY_OTHER, t->received, list_bytes(net));
    lk__free(context, LK_MEMORY_OTHER, t, sizeof *t);
    net->transport_state = NULL;
}

static size_t count_unconfirmed(const lk__net_connections *cs, int peer)
{
    const shared_streams *t = cs->streams;
    size_t                bytes = 0;
    for (int k = 0; t && k < t->count; k++) {
        const lk__net_stream *s = &t->all[peer * t->count + k];
        if (s->fd >= 0 && !atomic_load(&s->broken)) bytes += lk__socket_unconfirmed(s->fd);
    }
    return bytes;
}

static const lk__net_transport transport = {.name = "tcp",
                                            .streams = STREAMS,
                                            .open = open_group,
                                            .exchange = exchange,
                                            .send = send_message,
                                            .recv = recv_message,
                                            .reserve = reserve_flights,
                                            .wait = wait_flight,
                                            .finish = finish_flight,
                                            .pending = is_pending,
                                            .unconfirmed = count_unconfirmed,
                                            .free = free_group,
                                            .close = close_streams};

static lk_status create(lk_comm *c, const struct lk__rendezvous_identity *place)
{
    return lk__net_open(c, place, &transport);
}

const lk__comm_backend lk__backend_tcp =
    LK__NET_TABLE(create, lk__net_split, .name = "tcp", .text = "TCP connections", .preference = 1);
