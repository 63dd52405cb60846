/* control.c - control messages over the mesh: sending, which never waits, and handling received ones. All of it under
 * net->lock, except the notes at the end. */
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
static void queue_bytes(lk__net *net, lk__net_peer *peer, const char *data, size_t bytes)
{
    if (lk__grow(net->comm->context, (void **)&peer->out, &peer->out_room, peer->out_bytes + bytes, 1) < 0) {
        lk__log(net->comm->context, LK_LOG_WARNING, "no memory for messages to rank %d: closing the connection",
                peer->rank);
        shutdown(peer->fd, SHUT_RDWR);
        return;
    }
    memcpy(peer->out + peer->out_bytes, data, bytes);
    peer->out_bytes += bytes;
}

static void flush_queue(lk__net_peer *peer)
{
    while (peer->out_bytes > 0) {
        ssize_t n = send(peer->fd, peer->out, peer->out_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return; /* full, or broken, which reading detects */
        memmove(peer->out, peer->out + n, peer->out_bytes - (size_t)n);
        peer->out_bytes -= (size_t)n;
    }
}

void lk__net_send_message(lk__net *net, int peer, const void *message, size_t bytes, const void *data, size_t data_bytes)
{
    lk__net_peer *p = &net->peers[peer];
    if (p->fd < 0) return;
    size_t done = 0;
    if (p->out_bytes == 0) {
        struct iovec  parts[2] = {{(void *)message, bytes}, {(void *)data, data_bytes}};
        struct msghdr header = {.msg_iov = parts, .msg_iovlen = data_bytes ? 2 : 1};
        ssize_t       n;
        do n = sendmsg(p->fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
        while (n < 0 && errno == EINTR);
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return;
        done = n > 0 ? (size_t)n : 0;
    }
    if (done < bytes) queue_bytes(net, p, (const char *)message + done, bytes - done);
    size_t rest = done > bytes ? done - bytes : 0;
    if (rest < data_bytes) queue_bytes(net, p, (const char *)data + rest, data_bytes - rest);
}

void lk__net_send_state(lk__net *net, int peer)
{
    lk__net_message_state message = {.head = {sizeof message, LK__MESSAGE_STATE, 0}, .state = net->mine};
    message.state.since_us = (int64_t)((lk__now() - net->since) * 1e6);
    if (message.state.since_us < 0) message.state.since_us = 0;
    lk__net_send_message(net, peer, &message, sizeof message, NULL, 0);
}

/* ---- receiving ---- */

static void close_lost_peer(lk__net *net, lk__net_peer *peer, int why)
{
    if (peer->fd < 0) return;
    close(peer->fd);
    peer->fd = -1;
    if (atomic_load(&peer->gone)) return;
    atomic_store(&peer->lost_at, lk__now());
    atomic_store(lk__error_is_cut_off(why) ? &peer->cut_off : &peer->dead, true);
    atomic_fetch_add(&net->events, 1);
}

static bool handle_arrival(lk__net *net, lk__net_peer *peer, const lk__net_message *message)
{
    uint64_t         last = atomic_load_explicit(&peer->arrived, memory_order_relaxed);
    lk__net_arrival *a = &peer->arrivals[message->number & 1];
    if (message->number != last + 1 || message->number > net->number + 1) return false;
    if (message->bytes && !a->payload && !(a->payload = lk__alloc(net->comm->context, LK_MEMORY_OTHER, LK__NET_SMALL)))
        return false;
    a->number = message->number;
    a->signature = message->signature;
    a->bytes = message->bytes;
    if (message->bytes) memcpy(a->payload, message->data, message->bytes);
    peer->state.entered = message->entered;
    peer->state.left = message->entered - 1;
    peer->state.calls[message->entered & 1] = message->call;
    peer->state.since_us = 0;
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
    lk__net_note_entry *note = lk__alloc(net->comm->context, LK_MEMORY_OTHER, sizeof *note + message->bytes);
    if (!note) return false;
    note->bytes = message->bytes;
    memcpy(note->data, message->data, message->bytes);
    *peer->last_note = note;
    peer->last_note = &note->next;
    return true;
}

/* False: the peer violates the protocol. */
static bool handle_message(lk__net *net, lk__net_peer *peer, const lk__net_message *message)
{
    switch (message->kind) {
    case LK__MESSAGE_ARRIVE: return handle_arrival(net, peer, message);
    case LK__MESSAGE_STATE:
        peer->state = message->state;
        peer->stated = lk__now();
        peer->only_arrived = false;
        atomic_store(&peer->busy, message->state.busy != 0);
        return true;
    case LK__MESSAGE_ASK: lk__net_send_state(net, peer->rank); return true;
    case LK__MESSAGE_FAIL: handle_failure(net, peer, message); return true;
    case LK__MESSAGE_GONE:
        atomic_store(&peer->lost_at, lk__now());
        atomic_store(&peer->gone, true);
        return true;
    case LK__MESSAGE_NOTE: return handle_note(net, peer, message);
    }
    return false;
}

/* Handles the complete messages at the beginning of `have` bytes; returns their bytes, or -1. */
static long handle_messages(lk__net *net, lk__net_peer *peer, const char *bytes, size_t have)
{
    static _Thread_local lk__net_message message; /* half a kilobyte, not cleared each time */
    size_t                               at = 0;
    while (at < have) {
        long length = lk__message_length(bytes + at, have - at);
        if (length < 0) return -1;
        if (length == 0 || (size_t)length > have - at) break;
        if (!lk__message_parse(bytes + at, (size_t)length, &message) || !handle_message(net, peer, &message)) return -1;
        at += (size_t)length;
        atomic_fetch_add(&net->events, 1);
    }
    return (long)at;
}

static void read_messages(lk__net *net, lk__net_peer *peer, bool ending)
{
    while (peer->fd >= 0) {
        size_t had = peer->in_bytes;
        if (had) memcpy(net->inbox, peer->in, had);
        ssize_t n = recv(peer->fd, net->inbox + had, LK__NET_INBOX - had, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n <= 0) {
            close_lost_peer(net, peer, n == 0 ? 0 : errno);
            return;
        }
        size_t have = had + (size_t)n;
        peer->heartbeats = 0;
        long   taken = handle_messages(net, peer, net->inbox, have);
        size_t left = taken < 0 ? 0 : have - (size_t)taken;
        if (taken < 0) {
            lk__log(net->comm->context, LK_LOG_WARNING, "rank %d sent an invalid message: closing its connection",
                    peer->rank);
            close_lost_peer(net, peer, EPROTO);
            return;
        }
        if (left) memcpy(peer->in, net->inbox + taken, left);
        peer->in_bytes = left;
        /* There was no more; later data is a new event. But the end of the connection is reported only once. */
        if (have < LK__NET_INBOX && !ending) return;
    }
}

void lk__net_receive(lk__net_handler *handler, uint32_t events)
{
    lk__net_peer *peer = (lk__net_peer *)handler; /* its first member */
    if (peer->fd < 0) return;
    if (events & EPOLLOUT) flush_queue(peer);
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP)) {
        read_messages(peer->net, peer, events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP));
    }
}

/* ---- notes ---- */

lk_status lk__net_send_note(lk__net *net, int peer, const void *data, size_t bytes)
{
    lk__net_message_header message = {(uint32_t)(sizeof message + bytes), LK__MESSAGE_NOTE, 0};
    pthread_mutex_lock(&net->lock);
    lk__net_send_message(net, peer, &message, sizeof message, data, bytes);
    pthread_mutex_unlock(&net->lock);
    return lk__net_failure(net);
}

void lk__net_forget_note(lk__net *net, lk__net_peer *peer)
{
    lk__net_note_entry *note = peer->notes;
    if (!(peer->notes = note->next)) peer->last_note = &peer->notes;
    lk__free(net->comm->context, LK_MEMORY_OTHER, note, sizeof *note + note->bytes);
}

size_t lk__net_take_note(lk__net *net, int peer, void *into)
{
    lk__net_peer *p = &net->peers[peer];
    size_t        bytes = 0;
    pthread_mutex_lock(&net->lock);
    if (p->notes) {
        bytes = p->notes->bytes;
        memcpy(into, p->notes->data, bytes);
        lk__net_forget_note(net, p);
    }
    pthread_mutex_unlock(&net->lock);
    return bytes;
}
