/* control.c - sends control messages, without waiting, and handles received ones. Everything runs under the
 * connections' lock, except the notes at the end. */
#define _GNU_SOURCE
#include "comm/net/net.h"
#include "comm/socket.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

/* ---- sending ---- */

/* Queues what the socket did not accept. A peer that does not read soon times out, so the queue stays small. */
static void queue_bytes(lk__net_connection *c, const char *data, size_t bytes)
{
    lk_context *context = c->connections->context;
    if (lk__grow(context, (void **)&c->out, &c->out_room, c->out_bytes + bytes, 1) < 0) {
        lk__log(context, LK_LOG_WARNING, "out of memory: cannot queue messages to rank %d; closing the connection",
                c->rank);
        shutdown(c->fd, SHUT_RDWR);
        return;
    }
    memcpy(c->out + c->out_bytes, data, bytes);
    c->out_bytes += bytes;
}

static void flush_queue(lk__net_connection *c)
{
    while (c->out_bytes > 0) {
        ssize_t n = send(c->fd, c->out, c->out_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return; /* full, or broken, which reading detects */
        memmove(c->out, c->out + n, c->out_bytes - (size_t)n);
        c->out_bytes -= (size_t)n;
    }
}

void lk__connection_send(lk__net_connection *c, const void *message, size_t bytes, const void *data, size_t data_bytes)
{
    if (c->fd < 0) return;
    size_t done = 0;
    if (c->out_bytes == 0) {
        struct iovec  parts[2] = {{(void *)message, bytes}, {(void *)data, data_bytes}};
        struct msghdr header = {.msg_iov = parts, .msg_iovlen = data_bytes ? 2 : 1};
        ssize_t       n;
        do n = sendmsg(c->fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
        while (n < 0 && errno == EINTR);
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return;
        done = n > 0 ? (size_t)n : 0;
    }
    if (done < bytes) queue_bytes(c, (const char *)message + done, bytes - done);
    size_t rest = done > bytes ? done - bytes : 0;
    if (rest < data_bytes) queue_bytes(c, (const char *)data + rest, data_bytes - rest);
}

lk__net_message_header lk__net_head(const lk__net *net, lk__net_message_kind kind, size_t bytes)
{
    return (lk__net_message_header){.bytes = (uint32_t)bytes, .kind = (uint16_t)kind, .group = net->id};
}

void lk__net_send_message(lk__net *net, int peer, const void *message, size_t bytes, const void *data,
                          size_t data_bytes)
{
    lk__connection_send(net->peers[peer].connection, message, bytes, data, data_bytes);
}

void lk__net_send_ask(lk__net *net, int peer)
{
    lk__net_message_header ask = lk__net_head(net, LK__MESSAGE_ASK, sizeof ask);
    lk__net_send_message(net, peer, &ask, sizeof ask, NULL, 0);
}

void lk__net_send_state(lk__net *net, int peer)
{
    lk__net_message_state message = {.head = lk__net_head(net, LK__MESSAGE_STATE, sizeof message), .state = net->mine};
    message.state.since_us = (int64_t)((lk__now() - net->since) * 1e6);
    if (message.state.since_us < 0) message.state.since_us = 0;
    message.state.elsewhere = net->mine.entered == net->mine.left && atomic_load(&net->connections->waiting) > 0;
    lk__net_send_message(net, peer, &message, sizeof message, NULL, 0);
}

/* ---- receiving ---- */

/* Both at once: which of the two is needed first depends on the calls before, and later steps allocate nothing. */
static bool has_payloads(lk__net *net, lk__net_peer *peer)
{
    for (int i = 0; i < 2; i++) {
        lk__net_arrival *a = &peer->arrivals[i];
        if (!a->payload && !(a->payload = lk__alloc(net->comm->context, LK_MEMORY_OTHER, LK__NET_SMALL))) return false;
    }
    return true;
}

static bool handle_arrival(lk__net *net, lk__net_peer *peer, const lk__net_message *message)
{
    uint64_t         last = atomic_load_explicit(&peer->arrived, memory_order_relaxed);
    lk__net_arrival *a = &peer->arrivals[message->number & 1];
    if (message->number != last + 1 || message->number > net->number + 1) return false;
    if (message->bytes && !has_payloads(net, peer)) return false;
    a->number = message->number;
    a->signature = message->signature;
    a->bytes = message->bytes;
    if (message->bytes) memcpy(a->payload, message->data, message->bytes);
    peer->state.entered = message->entered;
    peer->state.left = message->entered - 1;
    peer->state.calls[message->entered & 1] = message->call;
    peer->state.since_us = 0;
    peer->state.elsewhere = 0;
    peer->stated = lk__now();
    peer->only_arrived = true;
    atomic_store_explicit(&peer->arrived, message->number, memory_order_release);
    return true;
}

static void handle_failure(lk__net *net, const lk__net_peer *peer, const lk__net_message *message)
{
    char text[LK__COMM_TEXT];
    snprintf(text, sizeof text, "%.*s", (int)message->bytes, message->data);
    lk__message_clean_text(text);
    if (message->proposed)
        lk__net_decide(net, (lk_status)message->status, text, message->cause, peer->rank);
    else
        lk__comm_record_failure(net->comm, (lk_status)message->status, text, message->cause);
}

static bool handle_note(lk__net *net, lk__net_peer *peer, const lk__net_message *message)
{
    lk__net_note_entry *note = net->spare_notes;
    if (message->bytes > sizeof note->data) return false;
    if (!note && !(note = lk__alloc(net->comm->context, LK_MEMORY_OTHER, sizeof *note))) return false;
    if (net->spare_notes) net->spare_notes = note->next;
    note->next = NULL;
    note->bytes = message->bytes;
    memcpy(note->data, message->data, message->bytes);
    *peer->last_note = note;
    peer->last_note = &note->next;
    return true;
}

bool lk__net_handle(lk__net *net, int rank, const lk__net_message *message)
{
    lk__net_peer *peer = &net->peers[rank];
    switch (message->kind) {
    case LK__MESSAGE_ARRIVE: return handle_arrival(net, peer, message);
    case LK__MESSAGE_STATE:
        peer->state = message->state;
        peer->stated = lk__now();
        peer->only_arrived = false;
        atomic_store(&peer->busy, message->state.busy != 0);
        return true;
    case LK__MESSAGE_ASK: lk__net_send_state(net, rank); return true;
    case LK__MESSAGE_FAIL: handle_failure(net, peer, message); return true;
    case LK__MESSAGE_GONE:
        atomic_store(&peer->lost_at, lk__now());
        atomic_store(&peer->gone, true);
        return true;
    case LK__MESSAGE_NOTE: return handle_note(net, peer, message);
    }
    return false;
}

/* ---- which group a message belongs to ---- */

/* bytes of a rank's early messages; it sends few before all ranks of the group have joined */
enum { EARLY_MOST = 256 << 10 };

static bool keep_early(lk__net_connection *c, uint64_t group, const char *bytes, size_t length)
{
    lk_context    *context = c->connections->context;
    lk__net_early *early =
        c->early_bytes + length > EARLY_MOST ? NULL : lk__alloc(context, LK_MEMORY_OTHER, sizeof *early + length);
    if (!early) return false;
    early->next = NULL;
    early->group = group;
    early->bytes = length;
    memcpy(early->data, bytes, length);
    c->early_bytes += length;
    *c->last_early = early;
    c->last_early = &early->next;
    return true;
}

/* Of a group that this rank has freed: a rank that leaves it sends nothing more. False: there is no such group. */
static bool handle_retired(lk__net_connection *c, const lk__net_message *message)
{
    lk__net_connections *cs = c->connections;
    lk__net_retired    **at = &cs->retired, *r;
    while ((r = *at) && r->group != message->group) at = &r->next;
    if (!r || !r->expected[c->rank]) return false;
    if (message->kind != LK__MESSAGE_GONE) return true;
    r->expected[c->rank] = false;
    if (--r->left == 0) {
        *at = r->next;
        lk__free(cs->context, LK_MEMORY_OTHER, r, sizeof *r + (size_t)cs->size * sizeof *r->expected);
    }
    return true;
}

/* False: the peer violates the protocol. */
static bool dispatch(lk__net_connection *c, const lk__net_message *message, const char *bytes, size_t length)
{
    lk__net *net = c->connections->groups;
    while (net && net->id != message->group) net = net->next;
    if (!net) return handle_retired(c, message) || keep_early(c, message->group, bytes, length);
    int rank = net->rank_of[c->rank];
    if (rank < 0 || !lk__net_handle(net, rank, message)) return false;
    lk__net_notify(net);
    return true;
}

void lk__connection_replay(lk__net_connection *c, lk__net *net)
{
    lk_context     *context = c->connections->context;
    lk__net_message message;
    bool            valid = true;
    for (lk__net_early **at = &c->early; *at;) {
        lk__net_early *early = *at;
        if (early->group != net->id) {
            at = &early->next;
            continue;
        }
        if (!(*at = early->next)) c->last_early = at;
        c->early_bytes -= early->bytes;
        if (valid)
            valid = lk__message_parse(early->data, early->bytes, &message) &&
                    lk__net_handle(net, net->rank_of[c->rank], &message);
        lk__free(context, LK_MEMORY_OTHER, early, sizeof *early + early->bytes);
    }
    if (!valid) lk__connection_lose(c, EPROTO);
}

/* ---- receiving ---- */

/* Handles the complete messages at the beginning of `have` bytes; returns their bytes, or -1. */
static long handle_messages(lk__net_connection *c, const char *bytes, size_t have)
{
    static _Thread_local lk__net_message message; /* half a kilobyte, not cleared each time */
    size_t                               at = 0;
    while (at < have) {
        long length = lk__message_length(bytes + at, have - at);
        if (length < 0) return -1;
        if (length == 0 || (size_t)length > have - at) break;
        if (!lk__message_parse(bytes + at, (size_t)length, &message) ||
            !dispatch(c, &message, bytes + at, (size_t)length))
            return -1;
        at += (size_t)length;
    }
    return (long)at;
}

static void read_messages(lk__net_connection *c, bool ending)
{
    char *inbox = c->connections->inbox;
    while (c->fd >= 0) {
        size_t had = c->in_bytes;
        if (had) memcpy(inbox, c->in, had);
        ssize_t n = recv(c->fd, inbox + had, LK__NET_INBOX - had, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n <= 0) {
            lk__connection_lose(c, n == 0 ? 0 : errno);
            return;
        }
        size_t have = had + (size_t)n;
        c->heartbeats = 0;
        long   taken = handle_messages(c, inbox, have);
        size_t left = taken < 0 ? 0 : have - (size_t)taken;
        if (taken < 0) {
            lk__log(c->connections->context, LK_LOG_WARNING, "rank %d sent an invalid message: closing its connection",
                    c->rank);
            lk__connection_lose(c, EPROTO);
            return;
        }
        if (left) memcpy(c->in, inbox + taken, left);
        c->in_bytes = left;
        /* There was no more; later data is a new event. But the end of the connection is reported only once. */
        if (have < LK__NET_INBOX && !ending) return;
    }
}

void lk__connection_receive(lk__net_handler *handler, uint32_t events)
{
    lk__net_connection *c = (lk__net_connection *)handler; /* its first member */
    if (c->fd < 0) return;
    if (events & EPOLLOUT) flush_queue(c);
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP))
        read_messages(c, events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP));
}

/* ---- notes ---- */

lk_status lk__net_send_note(lk__net *net, int peer, const void *data, size_t bytes)
{
    lk__net_message_header message = lk__net_head(net, LK__MESSAGE_NOTE, sizeof message + bytes);
    pthread_mutex_lock(&net->connections->lock);
    lk__net_send_message(net, peer, &message, sizeof message, data, bytes);
    pthread_mutex_unlock(&net->connections->lock);
    return lk__net_failure(net);
}

void lk__net_forget_note(lk__net *net, lk__net_peer *peer)
{
    lk__net_note_entry *note = peer->notes;
    if (!(peer->notes = note->next)) peer->last_note = &peer->notes;
    note->next = net->spare_notes;
    net->spare_notes = note;
}

lk_status lk__net_reserve_notes(lk__net *net, int count)
{
    for (int i = 0; i < count; i++) {
        lk__net_note_entry *note = lk__alloc(net->comm->context, LK_MEMORY_OTHER, sizeof *note);
        if (!note) return LK_ENOMEM;
        pthread_mutex_lock(&net->connections->lock);
        note->next = net->spare_notes;
        net->spare_notes = note;
        pthread_mutex_unlock(&net->connections->lock);
    }
    return LK_OK;
}

size_t lk__net_take_note(lk__net *net, int peer, void *into)
{
    lk__net_peer *p = &net->peers[peer];
    size_t        bytes = 0;
    pthread_mutex_lock(&net->connections->lock);
    if (p->notes) {
        bytes = p->notes->bytes;
        memcpy(into, p->notes->data, bytes);
        lk__net_forget_note(net, p);
    }
    pthread_mutex_unlock(&net->connections->lock);
    return bytes;
}
