/* verdict.c - queries the state of other ranks for tables, and makes all ranks agree on one failure of the group. */
#define _GNU_SOURCE
#include "comm/net/net.h"

#include <stdio.h>
#include <string.h>

static void view_rank(void *state, int rank, lk__comm_rank_view *v)
{
    lk__net                 *net = state;
    const lk__net_mesh_rank *r = &net->mesh.ranks[rank];
    lk__net_peer            *p = &net->peers[rank];
    double                   now = lk__now();
    bool                     me = rank == net->rank;
    pthread_mutex_lock(&net->connections->lock);
    const lk__net_state *s = me ? &net->mine : &p->state;
    snprintf(v->host, sizeof v->host, "%s", r->host);
    v->pid = r->pid;
    v->entered = s->entered;
    v->left = s->left;
    v->failed = s->failed && s->left > 0 ? s->left : 0;
    v->since = me ? now - net->since : p->stated > 0 ? now - p->stated + (double)s->since_us / 1e6 : 0;
    v->elsewhere = !me && s->elsewhere;
    if (s->busy) snprintf(v->busy, sizeof v->busy, "%s", s->busy_with);
    for (int i = 0; i < 2; i++) {
        v->records[i] = s->calls[i].record;
        snprintf(v->files[i], sizeof v->files[i], "%s", s->calls[i].file);
    }
    if (!me) {
        v->gone = atomic_load(&p->gone);
        v->dead = atomic_load(&p->dead);
        v->cut_off = atomic_load(&p->cut_off);
        v->broken = atomic_load(&p->drained) && !v->dead && !v->gone && !v->cut_off;
        v->silent = p->asked > p->stated && !v->dead && !v->gone && !v->cut_off;
        v->only_arrived = p->only_arrived && (v->dead || v->gone || v->cut_off || v->silent);
    }
    pthread_mutex_unlock(&net->connections->lock);
}

static lk__comm_table table_of(lk__net *net)
{
    return (lk__comm_table){.comm = net->comm, .rank = net->rank, .size = net->size, .state = net, .view = view_rank};
}

static bool all_answered(lk__net *net)
{
    bool all = true;
    pthread_mutex_lock(&net->connections->lock);
    for (int i = 0; i < net->size && all; i++)
        all = i == net->rank || net->peers[i].connection->fd < 0 || net->peers[i].stated >= net->peers[i].asked;
    pthread_mutex_unlock(&net->connections->lock);
    return all;
}

void lk__net_query_states(lk__net *net, double seconds)
{
    double now = lk__now(), end = now + seconds;
    pthread_mutex_lock(&net->connections->lock);
    for (int i = 0; i < net->size; i++) {
        if (i == net->rank) continue;
        net->peers[i].asked = now;
        lk__net_send_ask(net, i);
    }
    pthread_mutex_unlock(&net->connections->lock);
    for (;;) {
        uint32_t seen = atomic_load(&net->events);
        if (all_answered(net) || (now = lk__now()) >= end || atomic_load(&net->comm->closing)) return;
        lk__net_pump(net, seen, end - now);
    }
}

/* Several ranks may detect the same failure at the same time. So that not all query all others, the lowest rank that
 * can report it does, and the others wait for its report, up to `seconds`. True: it was received. (That all ranks have
 * the same text does not depend on this: lk__net_raise ensures it.) */
static bool another_reports(lk__net    *net, bool (*can_report)(lk__net *net, int rank, const bool *missing),
                            const bool *missing, double seconds)
{
    double end = lk__now() + seconds, now;
    int    first = 0;
    while (first < net->rank && !can_report(net, first, missing)) first++;
    if (first == net->rank) return false;
    for (;;) {
        uint32_t seen = atomic_load(&net->events);
        if (lk__net_failure(net) < 0 || (now = lk__now()) >= end || atomic_load(&net->comm->closing)) break;
        lk__net_pump(net, seen, end - now);
    }
    return lk__net_failure(net) < 0;
}

/* If one rank of a host is cut off, so are its others, though their connections may not have detected it yet. */
bool lk__net_host_cut_off(lk__net *net, int rank)
{
    const lk__net_mesh_rank *ranks = net->mesh.ranks;
    for (int i = 0; i < net->size; i++)
        if (atomic_load(&net->peers[i].cut_off) && strcmp(ranks[i].host_id, ranks[rank].host_id) == 0) return true;
    return false;
}

static bool is_connected(lk__net *net, int rank, const bool *missing)
{
    lk__net_peer *p = &net->peers[rank];
    if (lk__net_host_cut_off(net, rank)) return false;
    return !(missing && missing[rank]) && !atomic_load(&p->gone) && !atomic_load(&p->dead);
}

/* A rank that has entered this collective detects every other call that differs from its own. */
static bool has_entered(lk__net *net, int rank, const bool *missing)
{
    return is_connected(net, rank, missing) && atomic_load(&net->peers[rank].arrived) >= net->number;
}

lk_status lk__net_late(lk__net *net, const bool *missing, double seconds)
{
    lk__comm_report report = {.used = 0};
    lk__comm_table  table = table_of(net);
    if (another_reports(net, is_connected, missing, 0.5)) return lk__net_failure(net);
    lk__net_query_states(net, LK__NET_ASK_MS / 1e3);
    lk__verdict_late(&table, missing, seconds, true, &report);
    return lk__net_raise_because(net, LK_ETIMEOUT, report.text, report.cause);
}

void lk__net_stalled(lk__net *net, const bool *missing, double seconds)
{
    lk__comm_report report = {.used = 0};
    lk__comm_table  table = table_of(net);
    lk__net_query_states(net, LK__NET_ASK_MS / 1e3);
    lk__verdict_late(&table, missing, seconds, false, &report);
    lk__log(net->comm->context, LK_LOG_WARNING, "%s", report.text);
}

lk_status lk__net_lost(lk__net *net, int peer)
{
    lk__comm_report report = {.used = 0};
    lk__comm_table  table = table_of(net);
    if (another_reports(net, is_connected, NULL, 0.2)) return lk__net_failure(net);
    lk__verdict_lost(&table, peer, &report);
    return lk__net_raise_because(net, LK_EIO, report.text, report.cause);
}

lk_status lk__net_mismatch(lk__net *net, int peer)
{
    lk__comm_report report = {.used = 0};
    lk__comm_table  table = table_of(net);
    if (another_reports(net, has_entered, NULL, 0.2)) return lk__net_failure(net);
    lk__net_query_states(net, 0.1);
    lk__verdict_mismatch(&table, peer, net->number, &report);
    return lk__net_raise(net, LK_EMISMATCH, report.text);
}

lk_status lk__net_crossed(lk__net *net, const lk__comm_call *transfer)
{
    lk__comm_report report = {.used = 0};
    lk__comm_table  table = table_of(net);
    lk__net_query_states(net, 0.1);
    lk__verdict_crossed(&table, transfer->root, transfer, &report);
    return lk__net_raise(net, LK_EMISMATCH, report.text);
}

/* ---- the failure ---- */

lk_status lk__net_failure(lk__net *net) { return (lk_status)atomic_load(&net->comm->failed); }

/* Under the lock. */
static void send_failure(lk__net *net, int peer, lk_status status, const char *text, lk__comm_cause cause,
                         bool proposed)
{
    size_t               length = strnlen(text, LK__COMM_TEXT - 1);
    lk__net_message_fail message = {.head = lk__net_head(net, LK__MESSAGE_FAIL, sizeof message + length),
                                    .status = status,
                                    .proposed = proposed,
                                    .cause = cause};
    lk__net_send_message(net, peer, &message, sizeof message, text, length);
}

void lk__net_send_failure(lk__net *net, int peer)
{
    lk_status status = lk__net_failure(net);
    if (status < 0) send_failure(net, peer, status, net->comm->text, net->comm->cause, false);
}

void lk__net_decide(lk__net *net, lk_status status, const char *text, lk__comm_cause cause, int peer)
{
    bool first = lk__net_failure(net) == LK_OK;
    lk__comm_record_failure(net->comm, status, text, cause); /* from here on the text is final */
    for (int i = 0; i < net->size; i++)
        if (i != net->rank && (first || i == peer)) lk__net_send_failure(net, i);
}

enum { DECIDER_MS = 1000, DECIDERS = 2 }; /* how long to wait for a rank that does not answer, and for how many */

/* Ranks that detect a failure at the same time describe it differently, so one decides: the lowest that is connected.
 * The others propose their text to it and take its decision, which its connections' thread sends even while it
 * computes. Ranks may briefly differ on which ranks are connected: so any rank that gets a proposal decides, and a rank
 * whose decider is lost asks the next. Every rank sends the failure again before its GONE message: the decider may not
 * have reached all. */
lk_status lk__net_raise_because(lk__net *net, lk_status status, const char *why, lk__comm_cause cause)
{
    char text[LK__COMM_TEXT];
    snprintf(text, sizeof text, "%s", why);
    lk__message_clean_text(text); /* as the receivers do */
    int    decider = -1, next = 0, silent = 0;
    double now, end = 0;
    while (lk__net_failure(net) == LK_OK) {
        uint32_t seen = atomic_load(&net->events);
        pthread_mutex_lock(&net->connections->lock);
        now = lk__now();
        if (decider >= 0 && now >= end) next = ++silent < DECIDERS ? decider + 1 : net->rank;
        while (next < net->rank && !is_connected(net, next, NULL)) next++;
        if (next != decider && lk__net_failure(net) == LK_OK) {
            decider = next;
            end = now + DECIDER_MS / 1e3;
            if (decider == net->rank)
                lk__net_decide(net, status, text, cause, -1);
            else
                send_failure(net, decider, status, text, cause, true);
        }
        pthread_mutex_unlock(&net->connections->lock);
        if (lk__net_failure(net) == LK_OK) lk__net_pump(net, seen, end - now);
    }
    lk__net_notify(net);
    return lk__net_failure(net);
}

lk_status lk__net_raise(lk__net *net, lk_status status, const char *why)
{
    return lk__net_raise_because(net, status, why, lk__comm_cause_for(net->comm, status));
}
