/* wait.c - entering and leaving an operation over a mesh, waiting for other ranks in it, and what can end a wait. */
#include "comm/flight_recorder.h"
#include "comm/net/net.h"

#include <stdio.h>

static void record_call(lk__net *net, const lk__comm_call *o, uint64_t number)
{
    lk__net_call *call = &net->mine.calls[++net->mine.entered & 1];
    if (!LK__CHECKED) return;
    net->since = lk__now();
    net->unreported = true;
    lk__comm_record_make(&call->record, o, number);
    snprintf(call->file, sizeof call->file, "%s", lk__file_tail(o->site.file));
}

static void begin_driving(lk__net *net)
{
    atomic_fetch_add(&net->connections->waiting, 1);
    atomic_fetch_add(&net->connections->drivers, 1);
    atomic_store_explicit(&net->connections->driven, net->since, memory_order_relaxed);
}

lk_status lk__net_enter(lk__net *net, const lk__comm_call *o, const lk__net_part *parts)
{
    lk__net_message_arrive message = {.head = lk__net_head(net, LK__MESSAGE_ARRIVE, sizeof message)};
    pthread_mutex_lock(&net->connections->lock);
    net->number++;
    net->signature = message.signature = lk__call_signature(o, net->size);
    record_call(net, o, net->number);
    lk__flight_recorder_number(net->comm->numbered, net->number);
    begin_driving(net);
    message.number = net->number;
    message.entered = net->mine.entered;
    message.call = net->mine.calls[message.entered & 1];
    for (int k = 1; k < net->size; k++) {
        int    i = (net->rank + k) % net->size;
        size_t bytes = parts ? parts[i].send_bytes : 0;
        message.head.bytes = (uint32_t)(sizeof message + bytes);
        lk__net_send_message(net, i, &message, sizeof message, bytes ? parts[i].send : NULL, bytes);
        if (bytes) atomic_fetch_add_explicit(&net->sent, bytes, memory_order_relaxed);
    }
    net->unreported = false;
    pthread_mutex_unlock(&net->connections->lock);
    return lk__net_failure(net);
}

void lk__net_enter_transfer(lk__net *net, const lk__comm_call *o)
{
    pthread_mutex_lock(&net->connections->lock);
    record_call(net, o, 0);
    begin_driving(net);
    pthread_mutex_unlock(&net->connections->lock);
}

lk_status lk__net_leave(lk__net *net, lk_status status)
{
    pthread_mutex_lock(&net->connections->lock);
    net->mine.left = net->mine.entered;
    net->mine.failed = status < 0;
    net->since = lk__now();
    net->unreported = true;
    atomic_store_explicit(&net->connections->driven, net->since, memory_order_relaxed);
    atomic_fetch_sub(&net->connections->drivers, 1);
    if (status >= 0 || atomic_load(&net->comm->closing)) atomic_fetch_sub(&net->connections->waiting, 1);
    pthread_mutex_unlock(&net->connections->lock);
    return status;
}

static bool has_entered(const lk__net *net, int peer)
{
    return peer == net->rank || atomic_load_explicit(&net->peers[peer].arrived, memory_order_acquire) >= net->number;
}

/* Whether all ranks that have entered this collective made the same call. */
static lk_status compare_calls(lk__net *net)
{
    for (int i = 0; i < net->size; i++)
        if (i != net->rank && has_entered(net, i) &&
            net->peers[i].arrivals[net->number & 1].signature != net->signature)
            return lk__net_mismatch(net, i);
    return LK_OK;
}

lk_status lk__net_await(lk__net *net, int peer)
{
    lk__net_wait_state wait_state = {0};
    int                next = peer < 0 ? 0 : peer, end = peer < 0 ? net->size : peer + 1;
    for (;;) {
        uint32_t events = atomic_load(&net->events);
        while (next < end && has_entered(net, next)) next++;
        lk_status status = compare_calls(net);
        if (status < 0 || next == end) return status;
        /* Checked before waiting, not after: once all have entered, it does not matter whether one was lost since. */
        if ((status = lk__net_check(net, NULL, &wait_state)) < 0) return status;
        if (atomic_load(&net->events) == events) lk__net_pump(net, events, LK__NET_SLICE_MS / 1e3);
    }
}

bool lk__net_ahead(lk__net *net, int peer)
{
    const lk__net_peer *p = &net->peers[peer];
    pthread_mutex_lock(&net->connections->lock);
    bool ahead = atomic_load(&p->arrived) > net->number && !p->notes;
    pthread_mutex_unlock(&net->connections->lock);
    return ahead;
}

const void *lk__net_payload(const lk__net *net, int peer, size_t *bytes)
{
    const lk__net_arrival *a = &net->peers[peer].arrivals[net->number & 1];
    *bytes = a->bytes;
    return a->payload;
}

enum { PROBE_MS = 500, SILENT_MS = 1000 };

/* Whether a rank that declared long work still answers: one that was stopped meanwhile is not excused. */
static bool still_busy(lk__net *net, lk__net_peer *peer, double now)
{
    if (atomic_load(&peer->gone) || atomic_load(&peer->dead) || atomic_load(&peer->cut_off)) return false;
    pthread_mutex_lock(&net->connections->lock);
    bool answered = peer->stated >= peer->probed;
    bool silent = !answered && now - peer->probed > SILENT_MS / 1e3;
    if (answered && now - peer->stated > PROBE_MS / 1e3) {
        peer->probed = now;
        lk__net_send_ask(net, peer->rank);
    }
    pthread_mutex_unlock(&net->connections->lock);
    return !silent;
}

static bool is_missing(const lk__net *net, int rank, const bool *needed)
{
    return rank != net->rank && (needed ? needed[rank] : !has_entered(net, rank));
}

static bool is_outside(lk__net *net, const lk__net_peer *peer)
{
    pthread_mutex_lock(&net->connections->lock);
    bool outside = peer->state.entered == peer->state.left;
    pthread_mutex_unlock(&net->connections->lock);
    return outside;
}

/* Whether all missing ranks are busy, or wait themselves while another is busy. */
static bool excused(lk__net *net, const bool *needed, double now)
{
    bool any = false, idle = false;
    for (int i = 0; i < net->size; i++) {
        lk__net_peer *peer = &net->peers[i];
        if (i == net->rank) continue;
        if (atomic_load_explicit(&peer->busy, memory_order_relaxed) && still_busy(net, peer, now))
            any = true;
        else
            idle |= is_missing(net, i, needed) && is_outside(net, peer);
    }
    return any && !idle;
}

static lk_status check_lost(lk__net *net, const bool *needed, const lk__net_wait_state *wait_state, double now)
{
    for (int i = 0; i < net->size; i++) {
        lk__net_peer *peer = &net->peers[i];
        if (!is_missing(net, i, needed)) continue;
        bool lost = atomic_load(&peer->gone) || atomic_load(&peer->dead) || atomic_load(&peer->cut_off);
        bool drained = needed && atomic_load(&peer->drained);
        if (!lost && !drained) continue;
        double last =
            lost && atomic_load(&peer->lost_at) > wait_state->moved ? atomic_load(&peer->lost_at) : wait_state->moved;
        /* What it sent before it was lost may still arrive, but not from a host that is cut off; and where only the
         * transport's connection ended, control messages are likely to report the reason soon. */
        double grace = !lost ? 0.5 : atomic_load(&peer->cut_off) ? 0.1 : 2;
        if (needed && lost != drained && now - last < grace) continue;
        return lk__net_lost(net, i);
    }
    return LK_OK;
}

/* Reports the missing ranks: a warning, or with `late` the failure. */
static lk_status report_missing(lk__net *net, const bool *needed, double waited, bool late)
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

/* Whether all missing ranks answer that they wait in another group. */
static bool all_elsewhere(lk__net *net, const bool *needed)
{
    bool elsewhere = true;
    lk__net_query_states(net, LK__NET_ASK_MS / 1e3);
    pthread_mutex_lock(&net->connections->lock);
    for (int i = 0; i < net->size; i++) {
        const lk__net_peer *peer = &net->peers[i];
        if (is_missing(net, i, needed)) elsewhere &= peer->stated >= peer->asked && peer->state.elsewhere;
    }
    pthread_mutex_unlock(&net->connections->lock);
    return elsewhere;
}

/* At the deadline, asked once. */
static bool put_off(lk__net *net, const bool *needed, lk__net_wait_state *wait_state, double now)
{
    if (wait_state->late_end == 0)
        wait_state->late_end = now + (all_elsewhere(net, needed) ? (double)lk__verdict_put_off_ms(net->comm) / 1e3 : 0);
    return now < wait_state->late_end;
}

lk_status lk__net_check(lk__net *net, const bool *needed, lk__net_wait_state *wait_state)
{
    double    now = lk__now();
    uint64_t  progress = atomic_load_explicit(&net->progress, memory_order_relaxed);
    lk_status status = lk__net_failure(net);
    if (status < 0) return status;
    if (atomic_load(&net->comm->closing)) return LK_ECANCELED;
    if (wait_state->begun == 0 || progress != wait_state->progress) {
        wait_state->progress = progress;
        wait_state->since = wait_state->begun = wait_state->checked = wait_state->moved = now;
        wait_state->late_end = 0;
    }
    if (excused(net, needed, now)) wait_state->begun += now - wait_state->checked; /* declared work does not count */
    wait_state->checked = now;
    if ((status = check_lost(net, needed, wait_state, now)) < 0) return status;
    double waited = now - wait_state->begun;
    if (waited * 1000 >= (double)net->comm->timeout_ms)
        return put_off(net, needed, wait_state, now) ? LK_OK : report_missing(net, needed, waited, true);
    if (wait_state->reported || (now - wait_state->since) * 1000 < (double)net->comm->stall_ms) return LK_OK;
    wait_state->reported = true;
    return report_missing(net, needed, now - wait_state->since, false);
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
