/* transfer.c - send and receive over a network. A send is announced by a note, which includes short data. Longer data
 * is sent when the receiver is ready: when it has a matching receive, or when it waits for a later message of the same
 * rank; then it buffers the data in ordinary memory, so that tags may be received in any order. */
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
    char                   *data;     /* buffered here … */
    lk_work                *receiver; /* … or received directly into this receive's buffer */
    lk__net_transfer_state *flight;   /* being received */
    bool                    complete; /* in data */
    char                    short_data[INLINE]; /* came with its announcement: `data` is here */
} message;

/* A send that was announced and is not done. */
typedef struct sending {
    struct sending         *next;
    lk_work                *work;
    uint64_t                id;
    lk__net_transfer_state *flight; /* once the receiver is ready */
} sending;

typedef struct transfers {
    message **messages; /* by rank */
    sending  *sends;
    message  *spare; /* were received, to be used again; the same of sends */
    sending  *spare_sends;
    uint64_t  ids;
    bool     *needed;
    unsigned  turn;
} transfers;

static size_t operation_bytes(const lk__comm_call *o) { return o->count * lk_dtype_size(o->type); }

static transfers *open_transfers(lk__net *net)
{
    lk_context *context = net->comm->context;
    transfers  *t = net->transfer_state;
    if (t) return t;
    if (!(t = net->transfer_state = lk__alloc(context, LK_MEMORY_OTHER, sizeof *t))) return NULL;
    t->messages = lk__alloc(context, LK_MEMORY_OTHER, (size_t)net->size * sizeof *t->messages);
    t->needed = lk__alloc(context, LK_MEMORY_OTHER, (size_t)net->size * sizeof *t->needed);
    if (t->messages && t->needed) return t;
    lk__net_transfer_free(net);
    return NULL;
}

static void free_message(lk__net *net, message **at)
{
    transfers *t = net->transfer_state;
    message   *m = *at;
    *at = m->next;
    if (m->flight) net->transport->finish(net, m->flight);
    /* After a failure, a transport that cannot cancel may still write to it. */
    if (m->data != m->short_data && (!m->flight || !net->abandoned))
        lk__free(net->comm->context, LK_MEMORY_OTHER, m->data, m->bytes);
    m->next = t->spare;
    t->spare = m;
}

static void end_sending(lk__net *net, sending **at)
{
    transfers *t = net->transfer_state;
    sending   *s = *at;
    *at = s->next;
    if (s->flight) net->transport->finish(net, s->flight);
    s->next = t->spare_sends;
    t->spare_sends = s;
}

static message *take_message(lk__net *net, transfers *t)
{
    message *m = t->spare;
    if (!m) return lk__alloc(net->comm->context, LK_MEMORY_OTHER, sizeof *m);
    t->spare = m->next;
    return m;
}

static sending *take_sending(lk__net *net, transfers *t)
{
    sending *s = t->spare_sends;
    if (!s) return lk__alloc(net->comm->context, LK_MEMORY_OTHER, sizeof *s);
    t->spare_sends = s->next;
    return s;
}

lk_status lk__net_reserve_transfers(lk_comm *comm, int count)
{
    lk__net   *net = comm->state;
    transfers *t = open_transfers(net);
    for (int i = 0; i < count && t; i++) {
        message *m = lk__alloc(comm->context, LK_MEMORY_OTHER, sizeof *m);
        if (m) m->next = t->spare, t->spare = m;
        sending *s = lk__alloc(comm->context, LK_MEMORY_OTHER, sizeof *s);
        if (s) s->next = t->spare_sends, t->spare_sends = s;
        if (!m || !s) return LK_ENOMEM;
    }
    if (!t) return LK_ENOMEM;
    lk_status status = lk__net_reserve_notes(net, 2 * count); /* announcements, and answers to them */
    return status >= 0 && net->transport->reserve ? net->transport->reserve(net, count) : status;
}

void lk__net_transfer_free(lk__net *net)
{
    transfers *t = net->transfer_state;
    if (!t) return;
    for (int i = 0; t->messages && i < net->size; i++)
        while (t->messages[i]) free_message(net, &t->messages[i]);
    while (t->sends) end_sending(net, &t->sends);
    for (message *m = t->spare, *next; m; m = next) {
        next = m->next;
        lk__free(net->comm->context, LK_MEMORY_OTHER, m, sizeof *m);
    }
    for (sending *s = t->spare_sends, *next; s; s = next) {
        next = s->next;
        lk__free(net->comm->context, LK_MEMORY_OTHER, s, sizeof *s);
    }
    lk__free(net->comm->context, LK_MEMORY_OTHER, t->messages, (size_t)net->size * sizeof *t->messages);
    lk__free(net->comm->context, LK_MEMORY_OTHER, t->needed, (size_t)net->size * sizeof *t->needed);
    lk__free(net->comm->context, LK_MEMORY_OTHER, t, sizeof *t);
    net->transfer_state = NULL;
}

/* ---- sending ---- */

static lk_status announce_send(lk__net *net, transfers *t, lk_work *w)
{
    const lk__comm_call *o = &w->operation;
    size_t               bytes = operation_bytes(o);
    char                 note[LK__NET_NOTE];
    header h = {.kind = ANNOUNCE, .tag = o->tag, .type = (int32_t)o->type, .line = o->site.line, .count = o->count};
    h.id = ++t->ids * 2 + (net->rank > o->root); /* differs from ids in the other direction too */
    snprintf(h.file, sizeof h.file, "%s", lk__file_tail(o->site.file));
    memcpy(note, &h, sizeof h);
    w->announced = true;
    if (bytes <= INLINE) {
        if (bytes) memcpy(note + sizeof h, o->send, bytes);
        w->complete = true;
        return lk__net_send_note(net, o->root, note, sizeof h + bytes);
    }
    sending *s = take_sending(net, t), **end = &t->sends;
    if (!s) return lk__net_raise(net, LK_ENOMEM, "out of memory: cannot start a send");
    *s = (sending){.work = w, .id = h.id};
    while (*end) end = &(*end)->next;
    *end = s;
    return lk__net_send_note(net, o->root, note, sizeof h);
}

static lk_status begin_send(lk__net *net, transfers *t, int peer, uint64_t id)
{
    for (sending *s = t->sends; s; s = s->next)
        if (s->id == id && s->work->operation.root == peer && !s->flight)
            return net->transport->send(net, peer, id, s->work->operation.send, operation_bytes(&s->work->operation),
                                        &s->flight);
    char text[128];
    snprintf(text, sizeof text, "rank %d requested a message that rank %d did not announce", peer, net->rank);
    return lk__net_raise(net, LK_EMISMATCH, text);
}

static lk_status advance_sends(lk__net *net, transfers *t, bool *moved)
{
    for (sending **at = &t->sends; *at;) {
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

static lk_status raise_type_mismatch(lk__net *net, const lk_work *w, const message *m)
{
    const header   *h = &m->header;
    lk__comm_record sent = {.type = h->type, .count = h->count, .tag = h->tag, .line = h->line};
    lk__comm_report report = {.used = 0};
    lk__verdict_type_mismatch(&w->operation, net->rank, &sent, h->file, &report);
    return lk__net_raise(net, LK_EMISMATCH, report.text);
}

static lk_status raise_invalid(lk__net *net, int peer, const char *how)
{
    char text[128];
    snprintf(text, sizeof text, "a message from rank %d %s", peer, how);
    return lk__net_raise(net, LK_EIO, text);
}

/* Handles a note of `peer`, which may be invalid. */
static lk_status handle_note(lk__net *net, transfers *t, int peer, const char *note, size_t length)
{
    header h;
    if (length < sizeof h) return raise_invalid(net, peer, "is truncated");
    memcpy(&h, note, sizeof h);
    h.file[sizeof h.file - 1] = 0;
    if (h.kind == READY) return begin_send(net, t, peer, h.id);
    size_t size = h.kind == ANNOUNCE ? lk_dtype_size((lk_dtype)h.type) : 0;
    if (size == 0 || h.count > SIZE_MAX / 4 / size) return raise_invalid(net, peer, "is invalid");
    size_t   bytes = h.count * size;
    message *m = take_message(net, t), **end = &t->messages[peer];
    if (!m) return lk__net_raise(net, LK_ENOMEM, "out of memory: cannot allocate a message's header");
    while (*end) end = &(*end)->next;
    *end = m;
    *m = (message){.header = h};
    if (bytes > INLINE) {
        m->bytes = bytes;
        return LK_OK;
    }
    if (length != sizeof h + bytes) return raise_invalid(net, peer, "has the wrong length");
    m->data = m->short_data;
    m->bytes = bytes;
    m->complete = true;
    if (bytes) memcpy(m->data, note + sizeof h, bytes);
    return LK_OK;
}

static lk_status begin_receive(lk__net *net, int from, message *m, void *into)
{
    header    h = {.kind = READY, .id = m->header.id};
    lk_status status = net->transport->recv(net, from, h.id, into, m->bytes, &m->flight);
    return status < 0 ? status : lk__net_send_note(net, from, &h, sizeof h);
}

/* Matches the oldest free message to this receive. LK_END: none is announced yet. */
static lk_status match_receive(lk__net *net, transfers *t, lk_work *w, bool *moved)
{
    const lk__comm_call *o = &w->operation;
    message            **at = &t->messages[o->root];
    while (*at && ((*at)->receiver || (*at)->header.tag != o->tag)) at = &(*at)->next;
    message *m = *at;
    if (!m) return LK_END;
    if (m->header.type != (int32_t)o->type || m->header.count != o->count) return raise_type_mismatch(net, w, m);
    if (m->flight) return LK_OK; /* it is being buffered, not complete yet */
    w->announced = *moved = true;
    if (m->complete) {
        if (m->bytes) memcpy(o->recv, m->data, m->bytes);
        w->complete = true;
        free_message(net, at);
        return LK_OK;
    }
    m->receiver = w;
    return begin_receive(net, o->root, m, o->recv);
}

/* Buffers the announced messages of `from`, because a receive waits for a later one. */
static lk_status buffer_messages(lk__net *net, transfers *t, int from)
{
    for (message *m = t->messages[from]; m; m = m->next) {
        if (m->complete || m->flight) continue;
        if (!(m->data = lk__alloc(net->comm->context, LK_MEMORY_OTHER, m->bytes))) {
            char text[160];
            snprintf(text, sizeof text,
                     "rank %d is out of memory: cannot buffer %zu bytes that rank %d sent before the matching receive",
                     net->rank, m->bytes, from);
            return lk__net_raise(net, LK_ENOMEM, text);
        }
        lk_status status = begin_receive(net, from, m, m->data);
        if (status < 0) return status;
    }
    return LK_OK;
}

static lk_status advance_messages(lk__net *net, transfers *t, int from, bool *moved)
{
    for (message **at = &t->messages[from]; *at;) {
        message  *m = *at;
        lk_status status = m->flight ? net->transport->wait(net, m->flight, 0) : LK_END;
        if (status < 0) return status;
        if (status == LK_OK) {
            net->transport->finish(net, m->flight);
            m->flight = NULL;
            m->complete = *moved = true;
            if (m->receiver) {
                m->receiver->complete = true;
                free_message(net, at);
                continue;
            }
        }
        at = &m->next;
    }
    return LK_OK;
}

/* ---- all transfers in progress ---- */

static lk_status advance_transfers(lk__net *net, transfers *t, lk_work *in_progress, bool *moved)
{
    char      note[LK__NET_NOTE];
    lk_status status = LK_OK;
    memset(t->needed, 0, (size_t)net->size * sizeof *t->needed);
    for (lk_work *w = in_progress; w && status >= 0; w = w->next) {
        if (!w->complete) t->needed[w->operation.root] = true;
        if (w->operation.kind == LK__SEND && !w->announced) status = announce_send(net, t, w), *moved = true;
    }
    for (int i = 0; i < net->size && status >= 0; i++)
        for (size_t length; t->needed[i] && status >= 0 && (length = lk__net_take_note(net, i, note)); *moved = true)
            status = handle_note(net, t, i, note, length);
    for (lk_work *w = in_progress; w && status >= 0; w = w->next) {
        if (w->operation.kind != LK__RECV || w->announced) continue;
        status = match_receive(net, t, w, moved);
        if (status == LK_END) status = buffer_messages(net, t, w->operation.root);
    }
    if (status >= 0) status = advance_sends(net, t, moved);
    for (int i = 0; i < net->size && status >= 0; i++)
        if (t->messages[i]) status = advance_messages(net, t, i, moved);
    for (int i = 0; i < net->size; i++) t->needed[i] = false;
    for (lk_work *w = in_progress; w; w = w->next)
        if (!w->complete) t->needed[w->operation.root] = true;
    return status;
}

/* Whether a message is being received: it has to be complete before a collective uses the same connections, and its
 * sender is sending it. */
static bool receiving_any(const lk__net *net, transfers *t)
{
    bool any = false;
    for (int i = 0; i < net->size; i++)
        for (const message *m = t->messages[i]; m; m = m->next)
            if (m->flight) any = t->needed[i] = true;
    return any;
}

/* Each flight in turn, so that a transport that progresses only in `wait` advances all. NULL: there is none. */
static lk__net_transfer_state *next_flight(const lk__net *net, transfers *t)
{
    unsigned                n = 0;
    lk__net_transfer_state *first = NULL;
    for (const sending *s = t->sends; s; s = s->next) {
        if (!s->flight) continue;
        if (!first) first = s->flight;
        if (n++ == t->turn) return t->turn++, s->flight;
    }
    for (int i = 0; i < net->size; i++)
        for (const message *m = t->messages[i]; m; m = m->next) {
            if (!m->flight) continue;
            if (!first) first = m->flight;
            if (n++ == t->turn) return t->turn++, m->flight;
        }
    t->turn = 1;
    return first;
}

static lk_status wait_for_flight(lk__net *net, transfers *t, uint32_t seen)
{
    lk__net_transfer_state *flight = next_flight(net, t);
    if (!flight) {
        (void)lk__net_pump(net, seen, 0.1);
        return LK_OK;
    }
    lk_status status = net->transport->wait(net, flight, 0.02);
    return status < 0 ? status : LK_OK;
}

static bool is_announced(const transfers *t, const lk__comm_call *o)
{
    const message *m = t->messages[o->root];
    while (m && (m->receiver || m->header.tag != o->tag)) m = m->next;
    return m != NULL;
}

static bool is_wanted(const transfers *t, const lk_work *w)
{
    const sending *s = t->sends;
    while (s && s->work != w) s = s->next;
    return s && s->flight;
}

/* A rank that has entered a collective which this one has not can neither announce a send, nor become ready for one,
 * nor leave: waiting for it to do so would never end. */
static lk_status check_crossed(lk__net *net, const transfers *t, const lk_work *in_progress)
{
    for (const lk_work *w = in_progress; w; w = w->next) {
        const lk__comm_call *o = &w->operation;
        if (w->complete || !lk__net_ahead(net, o->root)) continue;
        if (o->kind == LK__SEND ? !is_wanted(t, w) : !w->announced && !is_announced(t, o))
            return lk__net_crossed(net, o);
    }
    return LK_OK;
}

/* After a failure: drops all references to works. */
static void cancel_all(lk__net *net, transfers *t)
{
    while (t->sends) end_sending(net, &t->sends);
    for (int i = 0; i < net->size; i++)
        while (t->messages[i]) free_message(net, &t->messages[i]);
}

void lk__net_transfer(lk_comm *comm, lk_work *first)
{
    lk__net           *net = comm->state;
    lk_work           *in_progress = first;
    lk__net_wait_state wait_state = {0};
    lk_status          status = lk__net_failure(net);
    transfers         *t = open_transfers(net);
    if (!t && status >= 0)
        status = lk__net_raise(net, LK_ENOMEM, "out of memory: cannot allocate the state of sends and receives");
    lk__net_enter_transfer(net, &first->operation);
    while (status >= 0) {
        uint32_t seen = atomic_load(&net->events);
        bool     moved = lk__works_take_next(comm, &in_progress);
        if ((status = advance_transfers(net, t, in_progress, &moved)) < 0) break;
        bool receiving = receiving_any(net, t), complete = lk__works_complete(in_progress);
        if (complete && !receiving) break;
        if (!complete)
            lk__works_finish_complete(
                &in_progress, LK_OK); /* the last ones are finished at the end: then other threads may use the group */
        if (moved) {
            wait_state = (lk__net_wait_state){0};
            continue;
        }
        if ((status = wait_for_flight(net, t, seen)) >= 0) status = lk__net_check(net, t->needed, &wait_state);
        if (LK__CHECKED && status >= 0) status = check_crossed(net, t, in_progress);
    }
    if (status < 0 && t) cancel_all(net, t);
    lk__net_leave(net, status); /* before the last work is done: then the group may be used from another thread */
    lk__works_finish_complete(&in_progress, status);
}
