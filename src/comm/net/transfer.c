/* net_transfer.c - send and receive over a network. A send is announced by a note; what is short comes with it. For the
 * rest the receiver says where to begin: when it has a receive for it, or when it waits for another message of the same
 * rank, in which case it is kept aside in ordinary memory, so that tags may be taken in any order. */
#include "comm/net/net.h"

#include <stdio.h>
#include <string.h>

typedef enum note_kind { ANNOUNCE = 1, READY } note_kind;

typedef struct header {
    uint32_t kind;
    int32_t  tag, type, line;
    uint64_t count, id;
    char     file[LK__FILE_NAME];
} header;

enum { INLINE = LK__NET_NOTE - (int)sizeof(header) };

/* A message to this rank, from its announcement until its receive has it. */
typedef struct message {
    struct message         *next; /* older ones first */
    header                  header;
    size_t                  bytes;
    char                   *data;   /* kept here … */
    lk_work                *taker;  /* … or coming straight into this receive's buffer */
    lk__net_transfer_state *flight; /* on its way */
    bool                    here;   /* in data, whole */
} message;

/* A send that was announced and is not over. */
typedef struct sending {
    struct sending         *next;
    lk_work                *work;
    uint64_t                id;
    lk__net_transfer_state *flight; /* once the receiver is ready */
} sending;

typedef struct desk {
    message **messages; /* by rank */
    sending  *sends;
    uint64_t  ids;
    bool     *needed;
    unsigned  turn;
} desk;

static size_t operation_bytes(const lk__comm_call *o) { return o->count * lk_dtype_size(o->type); }

static desk *open_desk(lk__net *net)
{
    lk_context *context = net->comm->context;
    desk       *d = net->transfer_state;
    if (d) return d;
    if (!(d = net->transfer_state = lk__alloc(context, LK_MEMORY_OTHER, sizeof *d))) return NULL;
    d->messages = lk__alloc(context, LK_MEMORY_OTHER, (size_t)net->size * sizeof *d->messages);
    d->needed = lk__alloc(context, LK_MEMORY_OTHER, (size_t)net->size * sizeof *d->needed);
    if (d->messages && d->needed) return d;
    lk__net_transfer_free(net);
    return NULL;
}

static void forget(lk__net *net, message **at)
{
    message *m = *at;
    *at = m->next;
    if (m->flight) net->transport->finish(net, m->flight);
    /* A transport that cannot be stopped may still write what a failed group had asked for. */
    if (!m->flight || !net->abandoned) lk__free(net->comm->context, LK_MEMORY_OTHER, m->data, m->bytes);
    lk__free(net->comm->context, LK_MEMORY_OTHER, m, sizeof *m);
}

static void end_sending(lk__net *net, sending **at)
{
    sending *s = *at;
    *at = s->next;
    if (s->flight) net->transport->finish(net, s->flight);
    lk__free(net->comm->context, LK_MEMORY_OTHER, s, sizeof *s);
}

void lk__net_transfer_free(lk__net *net)
{
    desk *d = net->transfer_state;
    if (!d) return;
    for (int i = 0; d->messages && i < net->size; i++)
        while (d->messages[i]) forget(net, &d->messages[i]);
    while (d->sends) end_sending(net, &d->sends);
    lk__free(net->comm->context, LK_MEMORY_OTHER, d->messages, (size_t)net->size * sizeof *d->messages);
    lk__free(net->comm->context, LK_MEMORY_OTHER, d->needed, (size_t)net->size * sizeof *d->needed);
    lk__free(net->comm->context, LK_MEMORY_OTHER, d, sizeof *d);
    net->transfer_state = NULL;
}

/* ---- sending ---- */

static lk_status announce(lk__net *net, desk *d, lk_work *w)
{
    const lk__comm_call *o = &w->operation;
    size_t               bytes = operation_bytes(o);
    char                 note[LK__NET_NOTE];
    header h = {.kind = ANNOUNCE, .tag = o->tag, .type = (int32_t)o->type, .line = o->site.line, .count = o->count};
    h.id = ++d->ids * 2 + (net->rank > o->root); /* unlike those in the other direction too */
    snprintf(h.file, sizeof h.file, "%s", lk__file_tail(o->site.file));
    memcpy(note, &h, sizeof h);
    w->announced = true;
    if (bytes <= INLINE) {
        if (bytes) memcpy(note + sizeof h, o->send, bytes);
        w->complete = true;
        return lk__net_send_note(net, o->root, note, sizeof h + bytes);
    }
    sending *s = lk__alloc(net->comm->context, LK_MEMORY_OTHER, sizeof *s), **end = &d->sends;
    if (!s) return lk__net_raise(net, LK_ENOMEM, "no memory for a send");
    *s = (sending){.work = w, .id = h.id};
    while (*end) end = &(*end)->next;
    *end = s;
    return lk__net_send_note(net, o->root, note, sizeof h);
}

static lk_status begin_send(lk__net *net, desk *d, int peer, uint64_t id)
{
    for (sending *s = d->sends; s; s = s->next)
        if (s->id == id && s->work->operation.root == peer && !s->flight)
            return net->transport->send(net, peer, id, s->work->operation.send, operation_bytes(&s->work->operation),
                                        &s->flight);
    return lk__net_raise(net, LK_EMISMATCH, "a rank is ready for a message that this rank never announced");
}

static lk_status look_after_sends(lk__net *net, desk *d, bool *moved)
{
    for (sending **at = &d->sends; *at;) {
        sending  *s = *at;
        lk_status status = s->flight ? net->transport->wait(net, s->flight, 0) : LK_END;
        if (status < 0) return status;
        if (status == LK_OK) {
            s->work->complete = *moved = true;
            end_sending(net, at);
        } else {
            at = &s->next;
        }
    }
    return LK_OK;
}

/* ---- receiving ---- */

static lk_status disagree(lk__net *net, const lk_work *w, const message *m)
{
    const header   *h = &m->header;
    lk__comm_record sent = {.type = h->type, .count = h->count, .tag = h->tag, .line = h->line};
    lk__comm_page   p = {.used = 0};
    lk__verdict_unlike(&w->operation, net->rank, &sent, h->file, &p);
    return lk__net_raise(net, LK_EMISMATCH, p.text);
}

/* A note of `peer`, who may say anything. */
static lk_status hear(lk__net *net, desk *d, int peer, const char *note, size_t length)
{
    header h;
    if (length < sizeof h) return lk__net_raise(net, LK_EIO, "a rank's note is cut short");
    memcpy(&h, note, sizeof h);
    h.file[sizeof h.file - 1] = 0;
    if (h.kind == READY) return begin_send(net, d, peer, h.id);
    size_t size = h.kind == ANNOUNCE ? lk_dtype_size((lk_dtype)h.type) : 0;
    if (size == 0 || h.count > SIZE_MAX / 4 / size) return lk__net_raise(net, LK_EIO, "a rank's note makes no sense");
    size_t   bytes = h.count * size;
    message *m = lk__alloc(net->comm->context, LK_MEMORY_OTHER, sizeof *m), **end = &d->messages[peer];
    if (!m) return lk__net_raise(net, LK_ENOMEM, "no memory for a message's header");
    while (*end) end = &(*end)->next;
    *end = m;
    *m = (message){.header = h};
    if (bytes > INLINE) {
        m->bytes = bytes;
        return LK_OK;
    }
    if (length != sizeof h + bytes) return lk__net_raise(net, LK_EIO, "a rank's note is not as long as it says");
    if (bytes && !(m->data = lk__alloc(net->comm->context, LK_MEMORY_OTHER, bytes)))
        return lk__net_raise(net, LK_ENOMEM, "no memory for a message");
    m->bytes = bytes;
    m->here = true;
    if (bytes) memcpy(m->data, note + sizeof h, bytes);
    return LK_OK;
}

static lk_status begin_receive(lk__net *net, int from, message *m, void *into)
{
    header    h = {.kind = READY, .id = m->header.id};
    lk_status status = net->transport->recv(net, from, h.id, into, m->bytes, &m->flight);
    return status < 0 ? status : lk__net_send_note(net, from, &h, sizeof h);
}

/* The oldest message for this receive that nobody has. LK_END: it is not announced yet. */
static lk_status take(lk__net *net, desk *d, lk_work *w, bool *moved)
{
    const lk__comm_call *o = &w->operation;
    message            **at = &d->messages[o->root];
    while (*at && ((*at)->taker || (*at)->header.tag != o->tag)) at = &(*at)->next;
    message *m = *at;
    if (!m) return LK_END;
    if (m->header.type != (int32_t)o->type || m->header.count != o->count) return disagree(net, w, m);
    if (m->flight) return LK_OK; /* it is being kept; the rest comes */
    w->announced = *moved = true;
    if (m->here) {
        if (m->bytes) memcpy(o->recv, m->data, m->bytes);
        w->complete = true;
        forget(net, at);
        return LK_OK;
    }
    m->taker = w;
    return begin_receive(net, o->root, m, o->recv);
}

/* A receive waits for a message that stands behind these. */
static lk_status keep_others(lk__net *net, desk *d, int from)
{
    for (message *m = d->messages[from]; m; m = m->next) {
        if (m->here || m->flight) continue;
        if (!(m->data = lk__alloc(net->comm->context, LK_MEMORY_OTHER, m->bytes))) {
            char text[160];
            snprintf(text, sizeof text,
                     "rank %d has no memory to keep %zu bytes that rank %d sent before they were asked for", net->rank,
                     m->bytes, from);
            return lk__net_raise(net, LK_ENOMEM, text);
        }
        lk_status status = begin_receive(net, from, m, m->data);
        if (status < 0) return status;
    }
    return LK_OK;
}

static lk_status look_after_messages(lk__net *net, desk *d, int from, bool *moved)
{
    for (message **at = &d->messages[from]; *at;) {
        message  *m = *at;
        lk_status status = m->flight ? net->transport->wait(net, m->flight, 0) : LK_END;
        if (status < 0) return status;
        if (status == LK_OK) {
            net->transport->finish(net, m->flight);
            m->flight = NULL;
            m->here = *moved = true;
            if (m->taker) {
                m->taker->complete = true;
                forget(net, at);
                continue;
            }
        }
        at = &m->next;
    }
    return LK_OK;
}

/* ---- all that are under way ---- */

static lk_status progress(lk__net *net, desk *d, lk_work *under_way, bool *moved)
{
    char      note[LK__NET_NOTE];
    lk_status status = LK_OK;
    memset(d->needed, 0, (size_t)net->size * sizeof *d->needed);
    for (lk_work *w = under_way; w && status >= 0; w = w->next) {
        if (!w->complete) d->needed[w->operation.root] = true;
        if (w->operation.kind == LK__SEND && !w->announced) status = announce(net, d, w), *moved = true;
    }
    for (int i = 0; i < net->size && status >= 0; i++)
        for (size_t length; d->needed[i] && status >= 0 && (length = lk__net_take_note(net, i, note)); *moved = true)
            status = hear(net, d, i, note, length);
    for (lk_work *w = under_way; w && status >= 0; w = w->next) {
        if (w->operation.kind != LK__RECV || w->announced) continue;
        status = take(net, d, w, moved);
        if (status == LK_END) status = keep_others(net, d, w->operation.root);
    }
    if (status >= 0) status = look_after_sends(net, d, moved);
    for (int i = 0; i < net->size && status >= 0; i++)
        if (d->messages[i]) status = look_after_messages(net, d, i, moved);
    for (int i = 0; i < net->size; i++) d->needed[i] = false;
    for (lk_work *w = under_way; w; w = w->next)
        if (!w->complete) d->needed[w->operation.root] = true;
    return status;
}

/* Whether something is on its way here that was begun: it has to be in before a collective uses the same connections,
 * and its sender is at it. */
static bool still_coming(const lk__net *net, desk *d)
{
    bool any = false;
    for (int i = 0; i < net->size; i++)
        for (const message *m = d->messages[i]; m; m = m->next)
            if (m->flight) any = d->needed[i] = true;
    return any;
}

/* Each flight in turn, so that a transport which has to be asked is asked about all. NULL: none is under way. */
static lk__net_transfer_state *one_of(const lk__net *net, desk *d)
{
    unsigned                n = 0;
    lk__net_transfer_state *first = NULL;
    for (const sending *s = d->sends; s; s = s->next) {
        if (!s->flight) continue;
        if (!first) first = s->flight;
        if (n++ == d->turn) return d->turn++, s->flight;
    }
    for (int i = 0; i < net->size; i++)
        for (const message *m = d->messages[i]; m; m = m->next) {
            if (!m->flight) continue;
            if (!first) first = m->flight;
            if (n++ == d->turn) return d->turn++, m->flight;
        }
    d->turn = 1;
    return first;
}

static lk_status rest(lk__net *net, desk *d)
{
    lk__net_transfer_state *flight = one_of(net, d);
    if (!flight) {
        (void)lk__net_pump(net, 0.1);
        return LK_OK;
    }
    lk_status status = net->transport->wait(net, flight, 0.02);
    return status < 0 ? status : LK_OK;
}

static bool is_announced(const desk *d, const lk__comm_call *o)
{
    const message *m = d->messages[o->root];
    while (m && (m->taker || m->header.tag != o->tag)) m = m->next;
    return m != NULL;
}

static bool is_wanted(const desk *d, const lk_work *w)
{
    const sending *s = d->sends;
    while (s && s->work != w) s = s->next;
    return s && s->flight;
}

/* A rank that has come to a collective which this one has not come to can neither announce anything, nor ask for what was
 * announced to it, nor leave: whoever waits here for it to do so waits for ever. */
static lk_status look_for_crossed(lk__net *net, const desk *d, const lk_work *under_way)
{
    for (const lk_work *w = under_way; w; w = w->next) {
        const lk__comm_call *o = &w->operation;
        if (w->complete || !lk__net_ahead(net, o->root)) continue;
        if (o->kind == LK__SEND ? !is_wanted(d, w) : !w->announced && !is_announced(d, o))
            return lk__net_crossed(net, o);
    }
    return LK_OK;
}

/* Receives and sends that a failure ends are no longer pointed at. */
static void give_up(lk__net *net, desk *d)
{
    while (d->sends) end_sending(net, &d->sends);
    for (int i = 0; i < net->size; i++)
        while (d->messages[i]) forget(net, &d->messages[i]);
}

void lk__net_transfer(lk_comm *comm, lk_work *first)
{
    lk__net           *net = comm->state;
    lk_work           *under_way = first, *inside = first;
    lk__net_wait_state wait_state = {0};
    bool               queued = first->queued;
    lk_status          status = lk__net_failure(net);
    desk              *d = open_desk(net);
    if (!d && status >= 0) status = lk__net_raise(net, LK_ENOMEM, "no memory for sends and receives");
    lk__net_enter_transfer(net, &first->operation);
    while (status >= 0) {
        bool     moved = false;
        lk_work *more;
        while (queued && (more = lk__work_next_transfer(comm, inside))) {
            lk_work **end = &under_way;
            while (*end) end = &(*end)->next;
            *end = more;
            moved = true;
        }
        if ((status = progress(net, d, under_way, &moved)) < 0) break;
        bool coming = still_coming(net, d), complete = lk__works_complete(under_way);
        if (complete && !coming) break;
        if (!complete)
            lk__works_sweep(&under_way, LK_OK); /* the last ones are told in the end: then others may use the group */
        inside = under_way;
        if (moved) {
            wait_state = (lk__net_wait_state){0};
            continue;
        }
        if ((status = rest(net, d)) >= 0) status = lk__net_check(net, d->needed, &wait_state);
        if (LK__CHECKED && status >= 0) status = look_for_crossed(net, d, under_way);
    }
    if (status < 0 && d) give_up(net, d);
    lk__net_leave(net, status); /* before the last work is told done: then the group may be used from another thread */
    lk__works_sweep(&under_way, status);
}
