/* stream.c - frames of bulk data over one connection. A thread that waits also moves data of other groups when it is
 * next on the connection.
 *
 * A part that arrives before its receive is posted stays in the socket. Only when another group waits for data that
 * follows it is it read into separate memory: two ranks may run the operations of two groups in different orders, and
 * must not wait for each other. A rank sends at most a few chunks ahead of its peers' receives (pipeline.c); longer
 * parts belong to exchanges that all ranks post as soon as all have entered, so the wait for them is short. */
#define _GNU_SOURCE
#include "comm/net/stream.h"

#include "comm/socket.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    FRAME = 1 << 20,     /* bytes of data in a frame, at most: what is sent in vain when a part is cancelled */
    AT_ONCE = 256 << 10, /* bytes per system call: the copy stays in the cache, and connections take turns */
    EARLY_MOST = 8 << 20 /* bytes of a part that is received before its receive is posted */
};

_Static_assert(sizeof(lk__net_frame) == 32 && FRAME >= AT_ONCE, "no padding");

/* ---- queues ---- */

static void append_item(lk__net_stream_queue *q, lk__net_stream_item *i)
{
    i->next = NULL;
    *q->last = i;
    q->last = &i->next;
    atomic_fetch_add_explicit(&q->count, 1, memory_order_relaxed);
}

static bool remove_item(lk__net_stream_queue *q, lk__net_stream_item *i)
{
    lk__net_stream_item **at = &q->first;
    while (*at && *at != i) at = &(*at)->next;
    if (!*at) return false;
    if (!(*at = i->next)) q->last = at;
    i->next = NULL;
    atomic_fetch_sub_explicit(&q->count, 1, memory_order_relaxed);
    return true;
}

static lk__net_stream_item *find_item(const lk__net_stream_queue *q, uint64_t group, uint64_t id)
{
    lk__net_stream_item *i = q->first;
    while (i && (i->id != id || i->group != group)) i = i->next;
    return i;
}

/* Once the last item of a flight is complete its group's thread may reuse it: nothing of it may be used after. The
 * group itself is not freed before its thread has had this stream's lock (lk__net_stream_forget). */
static void complete_item(lk__net_stream_queue *q, lk__net_stream_item *i, const lk__net *caller)
{
    lk__net *net = i->net;
    remove_item(q, i);
    i->complete = true;
    atomic_fetch_sub(&i->flight->left, 1);
    if (net != caller) lk__net_notify(net);
}

static void count_progress(lk__net *net) { atomic_fetch_add_explicit(&net->progress, 1, memory_order_relaxed); }

static void free_early(lk__net_stream *s, lk__net_stream_item *i)
{
    remove_item(&s->early, i);
    if (s->coming == i) s->coming = NULL;
    lk__free(s->connections->context, LK_MEMORY_OTHER, i, sizeof *i + i->bytes);
}

/* error: of the socket; 0: its peer closed it, or violated the protocol. */
static void mark_broken(lk__net_stream *s, int error)
{
    atomic_store(&s->broken, true);
    lk__connections_drained(s->connections, s->rank, lk__error_is_cut_off(error));
}

/* ---- sending ---- */

static void begin_frame(lk__net_stream *s, const lk__net_stream_item *i)
{
    size_t left = i->bytes - i->done, bytes = left < FRAME ? left : FRAME;
    s->out = (lk__net_frame){i->group, i->id, i->bytes, (uint32_t)bytes, LK__FRAME_DATA};
    s->trailer = (lk__net_frame){i->group, i->id, i->bytes, 0, LK__FRAME_END};
    s->last = bytes == left;
    s->out_at = 0;
    s->sends_frame = true;
}

static const char zeros[64 << 10];

/* The next bytes of the frame, in up to three parts. */
static int list_parts(const lk__net_stream *s, const lk__net_stream_item *i, struct iovec parts[3])
{
    size_t head = sizeof s->out, at = s->out_at, end = head + s->out.bytes;
    int    n = 0;
    if (at < head) parts[n++] = (struct iovec){(char *)&s->out + at, head - at};
    size_t from = at > head ? at : head, most = s->fills ? sizeof zeros : AT_ONCE;
    size_t chunk = from < end ? end - from : 0;
    if (chunk > most) chunk = most;
    if (chunk) parts[n++] = (struct iovec){s->fills ? (char *)zeros : i->data + i->done, chunk};
    if (s->last && from + chunk >= end) {
        size_t sent = at > end ? at - end : 0;
        parts[n++] = (struct iovec){(char *)&s->trailer + sent, sizeof s->trailer - sent};
    }
    return n;
}

/* How many of the bytes that follow `at` are data. */
static size_t data_in(const lk__net_stream *s, size_t at, size_t moved)
{
    size_t begin = sizeof s->out, end = begin + s->out.bytes, to = at + moved;
    size_t from = at < begin ? begin : at;
    if (to > end) to = end;
    return to > from ? to - from : 0;
}

static bool advance_send(lk__net_stream *s, const lk__net *caller)
{
    lk__net_stream_item *i = s->fills ? NULL : s->sending.first;
    struct iovec         parts[3];
    if (!s->sends_frame) begin_frame(s, i);
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)list_parts(s, i, parts)};
    atomic_store(&s->writable, false); /* before sendmsg: a new event may set it at any time */
    ssize_t moved = sendmsg(s->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (moved < 0) {
        if (errno == EINTR) atomic_store(&s->writable, true);
        if (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK) mark_broken(s, errno);
        return false;
    }
    atomic_store(&s->writable, true);
    if (i) {
        i->done += data_in(s, s->out_at, (size_t)moved);
        count_progress(i->net);
    }
    s->out_at += (size_t)moved;
    if (s->out_at < sizeof s->out + s->out.bytes + (s->last ? sizeof s->trailer : 0)) return true;
    s->sends_frame = s->fills = false;
    if (i && s->last) complete_item(&s->sending, i, caller);
    return true;
}

/* ---- receiving ---- */

/* Bytes received into the parts; 0: none. */
static size_t receive_parts(lk__net_stream *s, struct iovec *parts, int count)
{
    if (s->unread_at < s->unread_bytes) {
        size_t taken = 0;
        for (int k = 0; k < count && s->unread_at < s->unread_bytes; k++) {
            size_t left = s->unread_bytes - s->unread_at, n = parts[k].iov_len < left ? parts[k].iov_len : left;
            memcpy(parts[k].iov_base, s->unread + s->unread_at, n);
            s->unread_at += n;
            taken += n;
        }
        return taken;
    }
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
    atomic_store(&s->readable, false);
    ssize_t n = recvmsg(s->fd, &message, MSG_DONTWAIT);
    if (n > 0 || (n < 0 && errno == EINTR)) atomic_store(&s->readable, true);
    if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK))
        mark_broken(s, n < 0 ? errno : 0);
    return n > 0 ? (size_t)n : 0;
}

/* Bytes that were received are to be received again. */
static void put_back(lk__net_stream *s, const char *data, size_t bytes)
{
    lk_context *context = s->connections->context;
    size_t      left = s->unread_bytes - s->unread_at;
    if (bytes == 0) return;
    if (bytes > s->unread_at && /* otherwise they came from there */
        lk__grow(context, (void **)&s->unread, &s->unread_room, bytes + left, 1) < 0) {
        mark_broken(s, 0);
        return;
    }
    if (bytes > s->unread_at) {
        memmove(s->unread + bytes, s->unread + s->unread_at, left);
        s->unread_at = bytes;
        s->unread_bytes = bytes + left;
    }
    s->unread_at -= bytes;
    memcpy(s->unread + s->unread_at, data, bytes);
}

/* Whether the group exists and works: then its receive will be posted. */
static bool awaits(lk__net_stream *s, uint64_t group)
{
    lk__net_connections *cs = s->connections;
    pthread_mutex_lock(&cs->lock);
    const lk__net *net = cs->groups;
    while (net && net->id != group) net = net->next;
    bool works = net && atomic_load(&net->comm->failed) == LK_OK;
    pthread_mutex_unlock(&cs->lock);
    return works;
}

static bool others_wait(const lk__net_stream *s, uint64_t group)
{
    const lk__net_stream_item *i = s->posted.first;
    while (i && i->group == group) i = i->next;
    return i != NULL;
}

static lk__net_stream_item *make_early(lk__net_stream *s)
{
    lk__net_stream_item *i = lk__alloc(s->connections->context, LK_MEMORY_OTHER, sizeof *i + s->in.total);
    if (!i) return NULL;
    *i = (lk__net_stream_item){.data = (char *)(i + 1), .bytes = s->in.total, .id = s->in.id, .group = s->in.group};
    append_item(&s->early, i);
    return i;
}

/* Where the data of the frame goes. False: it has to wait, or the peer violates the protocol. */
static bool begin_data(lk__net_stream *s, lk__net_stream_item *i)
{
    if (s->in.bytes > FRAME || s->in.bytes > s->in.total || (s->in.bytes == 0 && s->in.total > 0)) {
        mark_broken(s, 0);
        return false;
    }
    if (!i && awaits(s, s->in.group)) {
        s->stalled = s->in.total > EARLY_MOST || !others_wait(s, s->in.group) || !(i = make_early(s));
        if (s->stalled) return false;
    }
    if (i && (i->bytes != s->in.total || s->in.bytes > i->bytes - i->done)) {
        mark_broken(s, 0); /* sizes differ: a violation that no control message reports */
        return false;
    }
    s->coming = i;
    s->left = s->in.bytes;
    s->have = 0;
    return true;
}

/* A header is complete. False: its frame has to wait. */
static bool handle_header(lk__net_stream *s, const lk__net *caller)
{
    lk__net_stream_item *i = find_item(&s->posted, s->in.group, s->in.id);
    lk__net_stream_item *early = i ? NULL : find_item(&s->early, s->in.group, s->in.id);
    if (s->in.kind == LK__FRAME_DATA) return begin_data(s, i ? i : early);
    bool ends = s->in.kind == LK__FRAME_END;
    if ((!ends && s->in.kind != LK__FRAME_CANCEL) || (ends && i && i->done < i->bytes)) {
        mark_broken(s, 0);
        return false;
    }
    s->have = 0;
    if (i && ends)
        complete_item(&s->posted, i, caller);
    else if (i)
        remove_item(&s->posted, i); /* never complete: the failure of its group ends the wait */
    else if (early && ends)
        early->complete = true;
    else if (early)
        free_early(s, early);
    return true;
}

/* With the header the first data is read, into the buffer of the receive that is next most likely; and with all of it
 * the header that follows. So a short part takes one call. */
static bool receive_header(lk__net_stream *s)
{
    lk__net_stream_item *likely = s->posted.first;
    lk__net_frame        next;
    size_t               need = sizeof s->in - s->have, most = likely ? likely->bytes - likely->done : 0;
    bool                 whole = most > 0 && most <= AT_ONCE;
    if (most > AT_ONCE) most = AT_ONCE;
    struct iovec parts[3] = {
        {(char *)&s->in + s->have, need}, {most ? likely->data + likely->done : NULL, most}, {&next, sizeof next}};
    size_t n = receive_parts(s, parts, whole ? 3 : most ? 2 : 1);
    if (n <= need) {
        s->have += n;
        return n > 0;
    }
    size_t data = n - need < most ? n - need : most, after = n - need - data;
    if (s->in.kind == LK__FRAME_DATA && s->in.group == likely->group && s->in.id == likely->id &&
        s->in.total == likely->bytes && s->in.bytes >= data && s->in.bytes <= likely->bytes - likely->done) {
        s->coming = likely;
        s->left = s->in.bytes - data;
        likely->done += data;
        count_progress(likely->net);
        s->have = after;
        memcpy(&s->in, &next, after);
    } else {
        s->have = sizeof s->in;
        put_back(s, (const char *)&next, after);
        put_back(s, parts[1].iov_base, data);
    }
    return true;
}

/* With the last data of a frame the next header is read. */
static bool receive_data(lk__net_stream *s)
{
    lk__net_stream_item *i = s->coming;
    char                 dropped[4096];
    size_t               most = i ? AT_ONCE : sizeof dropped, chunk = s->left < most ? s->left : most;
    struct iovec         parts[2] = {{i ? i->data + i->done : dropped, chunk}, {&s->in, sizeof s->in}};
    size_t               n = receive_parts(s, parts, chunk == s->left ? 2 : 1), data = n < chunk ? n : chunk;
    s->left -= data;
    s->have = n - data;
    if (i) i->done += data;
    if (i && i->net && n) count_progress(i->net);
    return n > 0;
}

static bool advance_receive(lk__net_stream *s, const lk__net *caller)
{
    bool moved = false;
    if (s->left > 0)
        moved = receive_data(s);
    else if (s->have < sizeof s->in)
        moved = receive_header(s);
    if (s->left == 0 && s->have == sizeof s->in) moved |= handle_header(s, caller);
    return moved;
}

bool lk__net_stream_advance(lk__net_stream *s, const lk__net *caller)
{
    bool any = false;
    if (s->fd < 0 || atomic_load_explicit(&s->broken, memory_order_relaxed)) return false;
    bool sends = atomic_load_explicit(&s->sending.count, memory_order_relaxed) &&
                 atomic_load_explicit(&s->writable, memory_order_relaxed);
    bool receives = atomic_load_explicit(&s->posted.count, memory_order_relaxed) &&
                    atomic_load_explicit(&s->readable, memory_order_relaxed);
    if (!sends && !receives) return false;
    pthread_mutex_lock(&s->lock);
    if (s->sending.first && !atomic_load(&s->broken) && atomic_load(&s->writable)) any |= advance_send(s, caller);
    if (s->posted.first && !atomic_load(&s->broken) && atomic_load(&s->readable)) any |= advance_receive(s, caller);
    pthread_mutex_unlock(&s->lock);
    return any;
}

/* ---- items ---- */

/* The part, or its beginning, has arrived already. */
static void take_early(lk__net_stream *s, lk__net_stream_item *i, lk__net_stream_item *early)
{
    if (early->bytes != i->bytes) {
        mark_broken(s, 0);
        return;
    }
    memcpy(i->data, early->data, early->done);
    i->done = early->done;
    bool complete = early->complete;
    if (s->coming == early) s->coming = i;
    lk__net_stream_item *coming = s->coming;
    free_early(s, early);
    s->coming = coming;
    if (complete) complete_item(&s->posted, i, i->net);
}

void lk__net_stream_enqueue(lk__net_stream *s, lk__net_stream_item *i)
{
    pthread_mutex_lock(&s->lock);
    append_item(i->sends ? &s->sending : &s->posted, i);
    lk__net_stream_item *early = i->sends ? NULL : find_item(&s->early, i->group, i->id);
    if (early) take_early(s, i, early);
    bool stalled = s->stalled && !i->sends;
    if (stalled) s->stalled = false;
    pthread_mutex_unlock(&s->lock);
    if (!stalled) return;
    pthread_mutex_lock(&s->connections->lock); /* those who wait for what is behind its frame */
    lk__connections_notify_flights(s->connections);
    pthread_mutex_unlock(&s->connections->lock);
}

void lk__net_stream_cancel(lk__net_stream *s, lk__net_stream_item *i)
{
    pthread_mutex_lock(&s->lock);
    bool first = i->sends && !i->complete && s->sending.first == i && s->sends_frame && !s->fills;
    if (!i->complete) (void)(remove_item(&s->sending, i) || remove_item(&s->posted, i));
    if (s->coming == i) s->coming = NULL; /* what is still to come of its frame is dropped */
    if (first && s->out_at == 0) {
        s->sends_frame = false;
    } else if (first) {
        s->fills = true;
        if (s->out_at <= sizeof s->out + s->out.bytes)
            s->trailer.kind = LK__FRAME_CANCEL; /* the trailer is not begun */
        s->last = true;
    }
    pthread_mutex_unlock(&s->lock);
}

void lk__net_stream_forget(lk__net_stream *s, uint64_t group)
{
    pthread_mutex_lock(&s->lock);
    for (lk__net_stream_item *i = s->early.first, *next; i; i = next) {
        next = i->next;
        if (i->group == group) free_early(s, i);
    }
    pthread_mutex_unlock(&s->lock);
}

/* ---- open and close ---- */

/* Under the connections' lock. */
static void on_ready(lk__net_handler *handler, uint32_t events)
{
    lk__net_stream *s = (lk__net_stream *)handler; /* its first member */
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) atomic_store(&s->readable, true);
    if (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) atomic_store(&s->writable, true);
    lk__connections_notify_flights(s->connections);
}

lk_status lk__net_stream_open(lk__net_stream *s, lk__net_connections *cs, int rank, int fd)
{
    lk__net_stream_queue *queues[] = {&s->sending, &s->posted, &s->early};
    *s = (lk__net_stream){.handler = {on_ready}, .connections = cs, .fd = fd, .rank = rank};
    pthread_mutex_init(&s->lock, NULL);
    for (int q = 0; q < 3; q++) queues[q]->last = &queues[q]->first;
    return fd < 0 ? LK_OK : lk__connections_watch(cs, fd, &s->handler);
}

void lk__net_stream_close(lk__net_stream *s)
{
    if (s->fd >= 0) close(s->fd);
    while (s->early.first) free_early(s, s->early.first);
    lk__free(s->connections->context, LK_MEMORY_OTHER, s->unread, s->unread_room);
    pthread_mutex_destroy(&s->lock);
}
