/* net_wait.c - how an operation over a mesh comes, waits for others and leaves, and what can end a wait. */
#include "comm/net/net.h"

#include <stdio.h>
#include <string.h>

static void record(lk__net *net, const lk__comm_call *o, uint64_t number)
{
    lk__net_call *call = &net->mine.calls[++net->mine.entered & 1];
    if (!LK__CHECKED) return;
    net->since = lk__now();
    net->untold = true;
    lk__comm_record_make(&call->record, o, number);
    snprintf(call->file, sizeof call->file, "%s", lk__file_tail(o->site.file));
}

static void drive(lk__net *net)
{
    atomic_fetch_add(&net->drivers, 1);
    atomic_store_explicit(&net->driven, net->since, memory_order_relaxed);
}

lk_status lk__net_enter(lk__net *net, const lk__comm_call *o, const lk__net_part *parts)
{
    lk__net_message_arrive word = {.head = {sizeof word, LK__MESSAGE_ARRIVE, 0}};
    pthread_mutex_lock(&net->lock);
    net->number++;
    net->signature = word.signature = lk__call_signature(o, net->size);
    record(net, o, net->number);
    drive(net);
    word.number = net->number;
    word.entered = net->mine.entered;
    word.call = net->mine.calls[word.entered & 1];
    for (int k = 1; k < net->size; k++) {
        int    i = (net->rank + k) % net->size;
        size_t bytes = parts ? parts[i].send_bytes : 0;
        word.head.bytes = (uint32_t)(sizeof word + bytes);
        lk__net_send_message(net, i, &word, sizeof word, bytes ? parts[i].send : NULL, bytes);
        if (bytes) atomic_fetch_add_explicit(&net->sent, bytes, memory_order_relaxed);
    }
    net->untold = false;
    pthread_mutex_unlock(&net->lock);
    return lk__net_failure(net);
}

void lk__net_enter_transfer(lk__net *net, const lk__comm_call *o)
{
    pthread_mutex_lock(&net->lock);
    record(net, o, 0);
    drive(net);
    pthread_mutex_unlock(&net->lock);
}

lk_status lk__net_leave(lk__net *net, lk_status status)
{
    pthread_mutex_lock(&net->lock);
    net->mine.left = net->mine.entered;
    net->mine.failed = status < 0;
    net->since = lk__now();
    net->untold = true;
    atomic_store_explicit(&net->driven, net->since, memory_order_relaxed);
    atomic_fetch_sub(&net->drivers, 1);
    pthread_mutex_unlock(&net->lock);
    return status;
}

static bool has_come(const lk__net *net, int peer)
{
    return peer == net->rank || atomic_load_explicit(&net->peers[peer].arrived, memory_order_acquire) >= net->number;
}

/* Whoever has come to this collective, has it come to the same call? */
static lk_status compare_calls(lk__net *net)
{
    for (int i = 0; i < net->size; i++)
        if (i != net->rank && has_come(net, i) && net->peers[i].arrivals[net->number & 1].signature != net->signature)
            return lk__net_mismatch(net, i);
    return LK_OK;
}

lk_status lk__net_await(lk__net *net, int peer)
{
    lk__net_wait_state wait_state = {0};
    int                next = peer < 0 ? 0 : peer, end = peer < 0 ? net->size : peer + 1;
    for (;;) {
        uint64_t events = atomic_load(&net->events);
        while (next < end && has_come(net, next)) next++;
        lk_status status = compare_calls(net);
        if (status < 0 || next == end) return status;
        /* Looked before it waits, not after: once all have come it does not matter what became of them since. */
        if ((status = lk__net_check(net, NULL, &wait_state)) < 0) return status;
        if (atomic_load(&net->events) == events) lk__net_pump(net, LK__NET_SLICE_MS / 1e3);
    }
}

bool lk__net_ahead(lk__net *net, int peer)
{
    const lk__net_peer *p = &net->peers[peer];
    pthread_mutex_lock(&net->lock);
    bool ahead = atomic_load(&p->arrived) > net->number && !p->notes;
    pthread_mutex_unlock(&net->lock);
    return ahead;
}

const void *lk__net_payload(const lk__net *net, int peer, size_t *bytes)
{
    const lk__net_arrival *a = &net->peers[peer].arrivals[net->number & 1];
    *bytes = a->bytes;
    return a->payload;
}

enum { PROBE_MS = 500, SILENT_MS = 1000 };

/* Whether a rank that declared long work still answers: one that was stopped amid it is not waited for. */
static bool still_busy(lk__net *net, lk__net_peer *p, double now)
{
    lk__net_message_header ask = {sizeof ask, LK__MESSAGE_ASK, 0};
    if (atomic_load(&p->gone) || atomic_load(&p->dead) || atomic_load(&p->cut_off)) return false;
    pthread_mutex_lock(&net->lock);
    bool answered = p->stated >= p->probed;
    bool silent = !answered && now - p->probed > SILENT_MS / 1e3;
    if (answered && now - p->stated > PROBE_MS / 1e3) {
        p->probed = now;
        lk__net_send_message(net, p->rank, &ask, sizeof ask, NULL, 0);
    }
    pthread_mutex_unlock(&net->lock);
    return !silent;
}

static bool is_missing(const lk__net *net, int rank, const bool *needed)
{
    return rank != net->rank && (needed ? needed[rank] : !has_come(net, rank));
}

static bool is_outside(lk__net *net, const lk__net_peer *p)
{
    pthread_mutex_lock(&net->lock);
    bool outside = p->state.entered == p->state.left;
    pthread_mutex_unlock(&net->lock);
    return outside;
}

/* Whether all who are missing are busy, or wait themselves while someone is. */
static bool excused(lk__net *net, const bool *needed, double now)
{
    bool any = false, idle = false;
    for (int i = 0; i < net->size; i++) {
        lk__net_peer *p = &net->peers[i];
        if (i == net->rank) continue;
        if (atomic_load_explicit(&p->busy, memory_order_relaxed) && still_busy(net, p, now))
            any = true;
        else
            idle |= is_missing(net, i, needed) && is_outside(net, p);
    }
    return any && !idle;
}

static lk_status look_for_lost(lk__net *net, const bool *needed, const lk__net_wait_state *wait_state, double now)
{
    for (int i = 0; i < net->size; i++) {
        lk__net_peer *p = &net->peers[i];
        if (!is_missing(net, i, needed)) continue;
        bool lost = atomic_load(&p->gone) || atomic_load(&p->dead) || atomic_load(&p->cut_off);
        bool drained = needed && atomic_load(&p->drained);
        if (!lost && !drained) continue;
        double last =
            lost && atomic_load(&p->lost_at) > wait_state->moved ? atomic_load(&p->lost_at) : wait_state->moved;
        /* What it sent before it went may still be on its way, but not from a host that is cut off; and where only the
         * transport's connection ended, the words are likely to say in a moment why. */
        double grace = !lost ? 0.5 : atomic_load(&p->cut_off) ? 0.1 : 2;
        if (needed && lost != drained && now - last < grace) continue;
        return lk__net_lost(net, i);
    }
    return LK_OK;
}

/* Says who is missing, once or for good. */
static lk_status tell(lk__net *net, const bool *needed, double waited, bool late)
{
    bool     *missing = lk__alloc(net->comm->context, LK_MEMORY_OTHER, (size_t)net->size);
    lk_status status = LK_OK;
    if (!missing) return LK_ENOMEM;
    for (int i = 0; i < net->size; i++) missing[i] = is_missing(net, i, needed);
    if (late)
        status = lk__net_late(net, missing, waited);
    else
        lk__net_stalled(net, missing, waited);
    lk__free(net->comm->context, LK_MEMORY_OTHER, missing, (size_t)net->size);
    return status;
}

lk_status lk__net_check(lk__net *net, const bool *needed, lk__net_wait_state *p)
{
    double    now = lk__now();
    uint64_t  progress = atomic_load_explicit(&net->progress, memory_order_relaxed);
    lk_status status = lk__net_failure(net);
    if (status < 0) return status;
    if (atomic_load(&net->comm->closing)) return LK_ECANCELED;
    if (p->begun == 0 || progress != p->progress) {
        p->progress = progress;
        p->since = p->begun = p->looked = p->moved = now;
    }
    if (excused(net, needed, now)) p->begun += now - p->looked; /* declared work stops the clock */
    p->looked = now;
    if ((status = look_for_lost(net, needed, p, now)) < 0) return status;
    double waited = now - p->begun;
    if (waited * 1000 >= (double)net->comm->timeout_ms) return tell(net, needed, waited, true);
    if (p->told || (now - p->since) * 1000 < (double)net->comm->stall_ms) return LK_OK;
    p->told = true;
    return tell(net, needed, now - p->since, false);
}

lk_status lk__net_flight_wait(lk__net *net, lk__net_transfer_state *flight, const bool *needed)
{
    lk__net_wait_state wait_state = {0};
    lk_status          status = net->transport->wait(net, flight, 0);
    if (status != LK_END) return status;
    bool *pending = net->pending;
    while ((status = net->transport->wait(net, flight, LK__NET_SLICE_MS / 1e3)) == LK_END) {
        for (int i = 0; i < net->size; i++)
            pending[i] = i != net->rank && (!needed || needed[i]) &&
                         (!net->transport->pending || net->transport->pending(net, flight, i));
        if ((status = lk__net_check(net, pending, &wait_state)) < 0) break;
    }
    return status;
}
