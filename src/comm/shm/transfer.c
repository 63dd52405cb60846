/* transfer.c - send and receive: a ring buffer for each direction between two ranks; it holds messages one after
 * another, each with a header. Messages without a matching receive are buffered in ordinary memory, so that tags may be
 * received in any order. */
#define _GNU_SOURCE
#include "comm/shm/shm.h"

#include <stdio.h>
#include <string.h>

typedef struct header {
    int32_t  tag, type, line, reserved;
    uint64_t count;
    char     file[LK__FILE_NAME];
} header;

/* A message that is being read from a ring, or buffered until it is received. */
typedef struct lk__shm_message {
    header                  header;
    size_t                  bytes, have; /* of the header, then of the data */
    bool                    headed;      /* the header is complete */
    char                   *data;        /* buffered here … */
    lk_work                *receiver;    /* … or read directly into this receive's buffer */
    struct lk__shm_message *next;        /* older ones first; only the last can be incomplete */
} message;

static lk__shm_ring *ring_between(const lk__shm *s, int from, int to)
{
    return (lk__shm_ring *)(s->rings +
                            ((size_t)from * (size_t)s->size + (size_t)to) * (sizeof(lk__shm_ring) + s->ring_bytes));
}

/* Copies between the ring's bytes from `at` on and memory; the ring's end wraps. */
static void ring_copy(const lk__shm *s, lk__shm_ring *r, uint32_t at, void *memory, size_t bytes, bool into)
{
    char  *data = (char *)(r + 1);
    size_t begin = at & (s->ring_bytes - 1), first = s->ring_bytes - begin < bytes ? s->ring_bytes - begin : bytes;
    if (into) {
        memcpy(data + begin, memory, first);
        memcpy(data, (char *)memory + first, bytes - first);
    } else {
        memcpy(memory, data + begin, first);
        memcpy((char *)memory + first, data, bytes - first);
    }
}

/* Writes as much of [*done, total) as the ring has room for; at most half a ring before the peer is woken, so that both
 * sides work concurrently. */
static bool write_ring(lk__shm *s, int to, const void *from, size_t total, size_t *done)
{
    lk__shm_ring *r = ring_between(s, s->rank, to);
    uint32_t      head = atomic_load_explicit(&r->head, memory_order_relaxed),
             tail = atomic_load_explicit(&r->tail, memory_order_acquire);
    size_t room = s->ring_bytes - (head - tail), n = total - *done;
    if (n > room) n = room;
    if (n > s->ring_bytes / 2) n = s->ring_bytes / 2;
    if (n == 0) return false;
    ring_copy(s, r, head, (char *)from + *done, n, true);
    atomic_store_explicit(&r->head, head + (uint32_t)n, memory_order_release);
    *done += n;
    s->sent += n;
    lk__shm_ring_doorbell(s, to);
    return true;
}

static bool read_ring(lk__shm *s, int from, void *to, size_t total, size_t *done)
{
    lk__shm_ring *r = ring_between(s, from, s->rank);
    uint32_t      head = atomic_load_explicit(&r->head, memory_order_acquire),
             tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
    size_t ready = head - tail, n = total - *done;
    if (n > ready) n = ready;
    if (n == 0) return false;
    ring_copy(s, r, tail, (char *)to + *done, n, false);
    atomic_store_explicit(&r->tail, tail + (uint32_t)n, memory_order_release);
    *done += n;
    lk__shm_ring_doorbell(s, from);
    return true;
}

/* ---- sending ---- */

static size_t operation_bytes(const lk__comm_call *o) { return o->count * lk_dtype_size(o->type); }

/* True when bytes moved. Header and data are one sequence of bytes, `moved` of which are written. */
static bool advance_send(lk__shm *s, lk_work *w, bool *done)
{
    const lk__comm_call *o = &w->operation;
    bool                 moved = false;
    if (!w->announced) {
        header h = {.tag = o->tag, .type = (int32_t)o->type, .line = o->site.line, .count = o->count};
        size_t length = o->site.file ? strlen(o->site.file) : 0,
               skip = length > LK__FILE_NAME - 1 ? length - (LK__FILE_NAME - 1) : 0;
        snprintf(h.file, sizeof h.file, "%s", o->site.file ? o->site.file + skip : "?");
        while (write_ring(s, o->root, &h, sizeof h, &w->moved)) moved = true;
        if (w->moved < sizeof h) return moved;
        w->announced = true;
        w->moved = 0;
    }
    while (write_ring(s, o->root, o->send, operation_bytes(o), &w->moved)) moved = true;
    *done = w->moved == operation_bytes(o);
    return moved;
}

/* ---- receiving ---- */

static lk_status raise_type_mismatch(lk__shm *s, const lk_work *w, const message *m)
{
    const header   *h = &m->header;
    lk__comm_record sent = {.type = h->type, .count = h->count, .tag = h->tag, .line = h->line};
    lk__comm_report report = {.used = 0};
    lk__verdict_type_mismatch(&w->operation, s->rank, &sent, h->file, &report);
    return lk__shm_raise(s, LK_EMISMATCH, report.text);
}

static bool matches_type(const lk_work *w, const message *m)
{
    return m->header.type == (int32_t)w->operation.type && m->header.count == w->operation.count;
}

static void drop_message(lk__shm *s, message **at)
{
    message *m = *at;
    *at = m->next;
    lk__free(s->comm->context, LK_MEMORY_OTHER, m->data, m->bytes);
    *m = (message){.next = s->spare};
    s->spare = m;
}

static message *take_message(lk__shm *s)
{
    message *m = s->spare;
    if (!m) return lk__alloc(s->comm->context, LK_MEMORY_OTHER, sizeof *m);
    s->spare = m->next;
    m->next = NULL;
    return m;
}

/* One of each rank may be incomplete: where none has to be buffered, transfers allocate nothing but these. */
static lk_status make_spare(lk__shm *s)
{
    for (int i = 0; i < s->size && !s->has_spare; i++) {
        message *m = lk__alloc(s->comm->context, LK_MEMORY_OTHER, sizeof *m);
        if (!m) return lk__shm_raise(s, LK_ENOMEM, "out of memory: cannot allocate messages");
        m->next = s->spare;
        s->spare = m;
    }
    s->has_spare = true;
    return LK_OK;
}

/* The first receive in progress for this message, unless an older message of its tag is buffered. */
static lk_work *find_receiver(const lk__shm *s, lk_work *in_progress, int from, const message *m)
{
    for (const message *older = s->messages[from]; older != m; older = older->next)
        if (older->header.tag == m->header.tag) return NULL;
    for (lk_work *w = in_progress; w; w = w->next)
        if (w->operation.kind == LK__RECV && w->operation.root == from && w->operation.tag == m->header.tag &&
            !w->announced)
            return w;
    return NULL;
}

/* Once the header is complete: chooses where the data goes. */
static lk_status choose_destination(lk__shm *s, int from, message *m, lk_work *in_progress)
{
    m->headed = true;
    m->have = 0;
    m->bytes = m->header.count * lk_dtype_size((lk_dtype)m->header.type);
    if ((m->receiver = find_receiver(s, in_progress, from, m))) {
        m->receiver->announced = true;
        if (!matches_type(m->receiver, m)) return raise_type_mismatch(s, m->receiver, m);
    } else if (m->bytes && !(m->data = lk__alloc(s->comm->context, LK_MEMORY_OTHER, m->bytes))) {
        char text[128];
        snprintf(text, sizeof text,
                 "rank %d is out of memory: cannot buffer %zu bytes that rank %d sent before the matching receive",
                 s->rank, m->bytes, from);
        return lk__shm_raise(s, LK_ENOMEM, text);
    }
    return LK_OK;
}

static bool awaits_message(const lk_work *in_progress, int from)
{
    for (const lk_work *w = in_progress; w; w = w->next)
        if (w->operation.kind == LK__RECV && w->operation.root == from && !w->announced) return true;
    return false;
}

/* Reads what rank `from` has written into its ring. */
static lk_status read_messages(lk__shm *s, int from, lk_work *in_progress, bool *moved)
{
    for (;;) {
        message **last = &s->messages[from];
        while (*last && ((*last)->next || ((*last)->headed && !(*last)->receiver && (*last)->have == (*last)->bytes)))
            last = &(*last)->next;
        message *m = *last;
        if (!m && !awaits_message(in_progress, from)) return LK_OK; /* it stays in the ring until it is received */
        if (!m) { /* no incomplete message: does a new one begin? */
            lk__shm_ring *r = ring_between(s, from, s->rank);
            if (atomic_load_explicit(&r->head, memory_order_acquire) ==
                atomic_load_explicit(&r->tail, memory_order_relaxed))
                return LK_OK;
            if (!(m = *last = take_message(s)))
                return lk__shm_raise(s, LK_ENOMEM, "out of memory: cannot allocate a message's header");
        }
        if (!m->headed) {
            *moved |= read_ring(s, from, &m->header, sizeof m->header, &m->have);
            if (m->have < sizeof m->header) return LK_OK;
            lk_status status = choose_destination(s, from, m, in_progress);
            if (status < 0) return status;
        }
        *moved |= read_ring(s, from, m->receiver ? m->receiver->operation.recv : m->data, m->bytes, &m->have);
        if (m->have < m->bytes) return LK_OK;
        if (m->receiver) {
            m->receiver->complete = true;
            m->receiver = NULL;
            drop_message(s, last);
        }
    }
}

/* Matches a receive to a buffered message. True: the receive is complete. */
static bool match_buffered(lk__shm *s, lk_work *w, lk_status *status)
{
    for (message **at = &s->messages[w->operation.root]; *at; at = &(*at)->next) {
        message *m = *at;
        if (!m->headed || m->receiver || m->header.tag != w->operation.tag) continue;
        if (!matches_type(w, m)) {
            *status = raise_type_mismatch(s, w, m);
            return true;
        }
        if (m->have < m->bytes)
            return false; /* incomplete; no other receive can match it before, since it is the oldest of its tag */
        if (m->bytes) memcpy(w->operation.recv, m->data, m->bytes);
        drop_message(s, at);
        return true;
    }
    return false;
}

/* ---- all transfers in progress ---- */

/* A send progresses only when no older one to the same rank is in progress. */
static bool may_send(const lk_work *in_progress, const lk_work *w)
{
    for (const lk_work *o = in_progress; o != w; o = o->next)
        if (o->operation.kind == LK__SEND && o->operation.root == w->operation.root) return false;
    return true;
}

/* An older receive of the same tag matches first. */
static bool may_match(const lk_work *in_progress, const lk_work *w)
{
    for (const lk_work *o = in_progress; o != w; o = o->next)
        if (o->operation.kind == LK__RECV && o->operation.root == w->operation.root &&
            o->operation.tag == w->operation.tag && !o->announced)
            return false;
    return true;
}

static lk_status advance_transfers(lk__shm *s, lk_work **in_progress, bool *moved)
{
    for (lk_work *w = *in_progress; w; w = w->next) {
        if (w->complete) continue;
        bool      done = false;
        lk_status status = LK_OK;
        if (w->operation.kind == LK__SEND) {
            if (may_send(*in_progress, w)) *moved |= advance_send(s, w, &done);
        } else {
            if (!w->announced && may_match(*in_progress, w)) done = w->announced = match_buffered(s, w, &status);
            if (!done && status >= 0) status = read_messages(s, w->operation.root, *in_progress, moved);
        }
        if (status < 0) return status;
        if (done) w->complete = true;
    }
    return LK_OK;
}

/* Each in turn, so that every awaited peer is checked. */
static const lk_work *next_in_turn(const lk_work *in_progress, unsigned *turn)
{
    const lk_work *w = in_progress;
    for (unsigned i = 0; i < *turn && w; i++) w = w->next;
    *turn = w ? *turn + 1 : 1;
    return w ? w : in_progress;
}

static bool is_ahead(const lk__shm *s, int peer)
{
    lk__shm_rank_slot *rank_slot = &s->rank_slots[peer];
    for (int k = 0; k < 2; k++)
        if ((int32_t)(atomic_load_explicit(&rank_slot->arrivals[k].number, memory_order_acquire) - s->arrivals) > 0)
            return true;
    return false;
}

/* A rank that has entered a collective which this one has not can neither send, nor receive, nor leave: waiting for it
 * would never end, once the ring between them is empty, or full. */
static lk_status check_crossed(lk__shm *s, const lk_work *in_progress)
{
    lk_comm *c = s->comm;
    for (const lk_work *w = in_progress; w; w = w->next) {
        int  peer = w->operation.root;
        bool sends = w->operation.kind == LK__SEND, here = is_ahead(s, peer);
        if (w->complete || (!here && !(c->crossed && c->crossed(c->outer, peer, NULL) == LK_END))) continue;
        const lk__shm_ring *r = sends ? ring_between(s, s->rank, peer) : ring_between(s, peer, s->rank);
        uint32_t            held =
            atomic_load_explicit(&r->head, memory_order_acquire) - atomic_load_explicit(&r->tail, memory_order_acquire);
        if (held != (sends ? s->ring_bytes : 0)) continue;
        return here ? lk__shm_crossed(s, &w->operation) : c->crossed(c->outer, peer, &w->operation);
    }
    return LK_OK;
}

void lk__shm_transfer(lk_comm *comm, lk_work *first)
{
    lk__shm           *s = comm->state;
    lk_work           *in_progress = first;
    lk_status          status = LK_OK;
    lk__shm_wait_state wait_state = {0};
    unsigned           turn = 0;
    if (atomic_load_explicit(&s->header->failure, memory_order_relaxed)) status = lk__shm_failure(s);
    if (status >= 0) status = make_spare(s);
    lk__shm_enter(s, &first->operation, 0);
    s->slow = true;
    while (status >= 0) {
        uint32_t seen = atomic_load(&s->me->doorbell);
        bool     moved = lk__works_take_next(comm, &in_progress);
        if ((status = advance_transfers(s, &in_progress, &moved)) < 0 || lk__works_complete(in_progress)) break;
        lk__works_finish_complete(&in_progress, LK_OK);
        if (moved)
            wait_state = (lk__shm_wait_state){0};
        else
            status = lk__shm_sleep(s, next_in_turn(in_progress, &turn)->operation.root, seen, &wait_state);
        if (LK__CHECKED && status >= 0 && wait_state.begun > 0) status = check_crossed(s, in_progress);
        if (status >= 0 && atomic_load_explicit(&s->header->failure, memory_order_relaxed)) status = lk__shm_failure(s);
    }
    lk__shm_leave(s, status); /* before the last work is done: then the group may be used from another thread */
    lk__works_finish_complete(&in_progress, status);
}

void lk__shm_transfer_free(lk__shm *s)
{
    for (int i = 0; s->messages && i < s->size; i++)
        while (s->messages[i]) drop_message(s, &s->messages[i]);
    for (message *m = s->spare, *next; m; m = next) {
        next = m->next;
        lk__free(s->comm->context, LK_MEMORY_OTHER, m, sizeof *m);
    }
    s->spare = NULL;
}
