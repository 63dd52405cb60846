/* net_words.c - what ranks say to each other over the mesh: sending without ever waiting, and what each word does
 * when it comes. All of it under net->lock, but for the notes at the end. */
#define _GNU_SOURCE
#include "comm/net/net.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

/* ---- saying ---- */

/* What the socket did not take waits here; a peer that does not read is soon found missing, so it stays small. */
static void keep(lk__net *net, lk__net_peer *p, const char *data, size_t bytes)
{
    if (lk__grow(net->comm->context, (void **)&p->out, &p->out_room, p->out_bytes + bytes, 1) < 0) {
        lk__log(net->comm->context, LK_LOG_WARNING, "no memory for words to rank %d: the connection is given up",
                p->rank);
        shutdown(p->fd, SHUT_RDWR);
        return;
    }
    memcpy(p->out + p->out_bytes, data, bytes);
    p->out_bytes += bytes;
}

static void flush(lk__net_peer *p)
{
    while (p->out_bytes > 0) {
        ssize_t n = send(p->fd, p->out, p->out_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return; /* full, or broken: then reading tells */
        memmove(p->out, p->out + n, p->out_bytes - (size_t)n);
        p->out_bytes -= (size_t)n;
    }
}

void lk__net_send_message(lk__net *net, int peer, const void *word, size_t bytes, const void *data, size_t data_bytes)
{
    lk__net_peer *p = &net->peers[peer];
    if (p->fd < 0) return;
    size_t done = 0;
    if (p->out_bytes == 0) {
        struct iovec  parts[2] = {{(void *)word, bytes}, {(void *)data, data_bytes}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = data_bytes ? 2 : 1};
        ssize_t       n;
        do n = sendmsg(p->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        while (n < 0 && errno == EINTR);
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return;
        done = n > 0 ? (size_t)n : 0;
    }
    if (done < bytes) keep(net, p, (const char *)word + done, bytes - done);
    size_t rest = done > bytes ? done - bytes : 0;
    if (rest < data_bytes) keep(net, p, (const char *)data + rest, data_bytes - rest);
}

void lk__net_send_state(lk__net *net, int peer)
{
    lk__net_message_state word = {.head = {sizeof word, LK__MESSAGE_STATE, 0}, .state = net->mine};
    word.state.since_us = (int64_t)((lk__now() - net->since) * 1e6);
    if (word.state.since_us < 0) word.state.since_us = 0;
    lk__net_send_message(net, peer, &word, sizeof word, NULL, 0);
}

/* ---- hearing ---- */

static void lose(lk__net *net, lk__net_peer *p, int why)
{
    if (p->fd < 0) return;
    close(p->fd);
    p->fd = -1;
    if (atomic_load(&p->gone)) return;
    bool cut = why == ETIMEDOUT || why == EHOSTUNREACH || why == ENETUNREACH || why == ENETDOWN || why == EHOSTDOWN;
    atomic_store(&p->lost_at, lk__now());
    atomic_store(cut ? &p->cut_off : &p->dead, true);
    atomic_fetch_add(&net->events, 1);
}

static bool hear_arrival(lk__net *net, lk__net_peer *p, const lk__net_message *w)
{
    uint64_t         last = atomic_load_explicit(&p->arrived, memory_order_relaxed);
    lk__net_arrival *a = &p->arrivals[w->number & 1];
    if (w->number != last + 1 || w->number > net->number + 1) return false;
    if (w->bytes && !a->payload && !(a->payload = lk__alloc(net->comm->context, LK_MEMORY_OTHER, LK__NET_SMALL)))
        return false;
    a->number = w->number;
    a->signature = w->signature;
    a->bytes = w->bytes;
    if (w->bytes) memcpy(a->payload, w->data, w->bytes);
    p->state.entered = w->entered;
    p->state.left = w->entered - 1;
    p->state.calls[w->entered & 1] = w->call;
    p->state.since_us = 0;
    p->stated = lk__now();
    p->only_came = true;
    atomic_store_explicit(&p->arrived, w->number, memory_order_release);
    return true;
}

static void hear_failure(lk__net *net, const lk__net_peer *p, const lk__net_message *w)
{
    char text[LK__COMM_TEXT];
    snprintf(text, sizeof text, "%.*s", (int)w->bytes, w->data);
    lk__message_clean_text(text);
    if (w->proposed)
        lk__net_decide(net, (lk_status)w->status, text, w->cause, p->rank);
    else
        lk__comm_note(net->comm, (lk_status)w->status, text, w->cause);
}

static bool hear_note(lk__net *net, lk__net_peer *p, const lk__net_message *w)
{
    lk__net_note_entry *note = lk__alloc(net->comm->context, LK_MEMORY_OTHER, sizeof *note + w->bytes);
    if (!note) return false;
    note->bytes = w->bytes;
    memcpy(note->data, w->data, w->bytes);
    *p->last_note = note;
    p->last_note = &note->next;
    return true;
}

/* False: the peer does not keep to the rules. */
static bool hear_word(lk__net *net, lk__net_peer *p, const lk__net_message *w)
{
    switch (w->kind) {
    case LK__MESSAGE_ARRIVE: return hear_arrival(net, p, w);
    case LK__MESSAGE_STATE:
        p->state = w->state;
        p->stated = lk__now();
        p->only_came = false;
        atomic_store(&p->busy, w->state.busy != 0);
        return true;
    case LK__MESSAGE_ASK: lk__net_send_state(net, p->rank); return true;
    case LK__MESSAGE_FAIL: hear_failure(net, p, w); return true;
    case LK__MESSAGE_GONE:
        atomic_store(&p->lost_at, lk__now());
        atomic_store(&p->gone, true);
        return true;
    case LK__MESSAGE_NOTE: return hear_note(net, p, w);
    }
    return false;
}

/* Takes the whole words off the front of `have` bytes; gives how many bytes that were, or -1. */
static long hear_words(lk__net *net, lk__net_peer *p, const char *bytes, size_t have)
{
    static _Thread_local lk__net_message word; /* half a kilobyte that need not be cleared each time */
    size_t                               at = 0;
    while (at < have) {
        long length = lk__message_length(bytes + at, have - at);
        if (length < 0) return -1;
        if (length == 0 || (size_t)length > have - at) break;
        if (!lk__message_parse(bytes + at, (size_t)length, &word) || !hear_word(net, p, &word)) return -1;
        at += (size_t)length;
        atomic_fetch_add(&net->events, 1);
    }
    return (long)at;
}

static void read_words(lk__net *net, lk__net_peer *p, bool ending)
{
    while (p->fd >= 0) {
        size_t had = p->in_bytes;
        if (had) memcpy(net->inbox, p->in, had);
        ssize_t n = recv(p->fd, net->inbox + had, LK__NET_INBOX - had, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n <= 0) {
            lose(net, p, n == 0 ? 0 : errno);
            return;
        }
        size_t have = had + (size_t)n;
        p->beats = 0;
        long   taken = hear_words(net, p, net->inbox, have);
        size_t left = taken < 0 ? 0 : have - (size_t)taken;
        if (taken < 0) {
            lk__log(net->comm->context, LK_LOG_WARNING, "rank %d says what no rank says: its connection is closed",
                    p->rank);
            lose(net, p, EPROTO);
            return;
        }
        if (left) memcpy(p->in, net->inbox + taken, left);
        p->in_bytes = left;
        /* There was no more; if more has come since, the set says so again. But it says only once that all is over. */
        if (have < LK__NET_INBOX && !ending) return;
    }
}

void lk__net_receive(lk__net_handler *handler, uint32_t events)
{
    lk__net_peer *p = (lk__net_peer *)handler; /* its first member */
    if (p->fd < 0) return;
    if (events & EPOLLOUT) flush(p);
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP)) {
        read_words(p->net, p, events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP));
    }
}

/* ---- notes ---- */

lk_status lk__net_send_note(lk__net *net, int peer, const void *data, size_t bytes)
{
    lk__net_message_header word = {(uint32_t)(sizeof word + bytes), LK__MESSAGE_NOTE, 0};
    pthread_mutex_lock(&net->lock);
    lk__net_send_message(net, peer, &word, sizeof word, data, bytes);
    pthread_mutex_unlock(&net->lock);
    return lk__net_failure(net);
}

void lk__net_forget_note(lk__net *net, lk__net_peer *p)
{
    lk__net_note_entry *note = p->notes;
    if (!(p->notes = note->next)) p->last_note = &p->notes;
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
