/* net_verdict.c - what is known about ranks on other hosts, as tables want it; asking them; the group's one failure. */
#define _GNU_SOURCE
#include "comm/net/net.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void view_rank(void *state, int rank, lk__comm_rank_view *v)
{
    lk__net                 *net = state;
    const lk__net_mesh_rank *r = &net->mesh.ranks[rank];
    lk__net_peer            *p = &net->peers[rank];
    double                   now = lk__now();
    bool                     me = rank == net->rank;
    pthread_mutex_lock(&net->lock);
    const lk__net_state *s = me ? &net->mine : &p->state;
    snprintf(v->host, sizeof v->host, "%s", r->host);
    v->pid = r->pid;
    v->entered = s->entered;
    v->left = s->left;
    v->failed = s->failed && s->left > 0 ? s->left : 0;
    v->since = me ? now - net->since : p->stated > 0 ? now - p->stated + (double)s->since_us / 1e6 : 0;
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
        v->only_came = p->only_came && (v->dead || v->gone || v->cut_off || v->silent);
    }
    pthread_mutex_unlock(&net->lock);
}

static lk__comm_table table_of(lk__net *net)
{
    return (lk__comm_table){.comm = net->comm, .rank = net->rank, .size = net->size, .state = net, .view = view_rank};
}

static bool all_answered(lk__net *net)
{
    bool all = true;
    pthread_mutex_lock(&net->lock);
    for (int i = 0; i < net->size && all; i++)
        all = i == net->rank || net->peers[i].fd < 0 || net->peers[i].stated >= net->peers[i].asked;
    pthread_mutex_unlock(&net->lock);
    return all;
}

void lk__net_query_states(lk__net *net, double seconds)
{
    lk__net_message_header ask = {sizeof ask, LK__MESSAGE_ASK, 0};
    double                 now = lk__now(), end = now + seconds;
    pthread_mutex_lock(&net->lock);
    for (int i = 0; i < net->size; i++) {
        if (i == net->rank) continue;
        net->peers[i].asked = now;
        lk__net_send_message(net, i, &ask, sizeof ask, NULL, 0);
    }
    pthread_mutex_unlock(&net->lock);
    while (!all_answered(net) && (now = lk__now()) < end && !atomic_load(&net->comm->closing))
        lk__net_pump(net, end - now);
}

enum { ASK_MS = 300 }; /* those who compute answer within 20 or so: their group's thread does */

/* Several ranks notice the same thing at the same time. So that not all ask all others, the lowest of those who can tell
 * does, and the others wait for its word, but not for long. True: it came. (That all say the same is not left to this:
 * lk__net_raise sees to it.) */
static bool another_tells(lk__net    *net, bool (*can_tell)(lk__net *net, int rank, const bool *missing),
                          const bool *missing, double seconds)
{
    double end = lk__now() + seconds, now;
    int    first = 0;
    while (first < net->rank && !can_tell(net, first, missing)) first++;
    if (first == net->rank) return false;
    while (lk__net_failure(net) == LK_OK && (now = lk__now()) < end && !atomic_load(&net->comm->closing))
        lk__net_pump(net, end - now);
    return lk__net_failure(net) < 0;
}

/* One rank of a host was found cut off: the others are, though their connections may not have noticed yet. */
static bool host_cut_off(lk__net *net, int rank)
{
    const lk__net_mesh_rank *ranks = net->mesh.ranks;
    for (int i = 0; i < net->size; i++)
        if (atomic_load(&net->peers[i].cut_off) && strcmp(ranks[i].host_id, ranks[rank].host_id) == 0) return true;
    return false;
}

static bool is_there(lk__net *net, int rank, const bool *missing)
{
    lk__net_peer *p = &net->peers[rank];
    if (host_cut_off(net, rank)) return false;
    return !(missing && missing[rank]) && !atomic_load(&p->gone) && !atomic_load(&p->dead);
}

/* Whoever has come to this collective sees every other call that differs from its own, and of two that differ one
 * does. */
static bool has_come(lk__net *net, int rank, const bool *missing)
{
    return is_there(net, rank, missing) && atomic_load(&net->peers[rank].arrived) >= net->number;
}

lk_status lk__net_late(lk__net *net, const bool *missing, double seconds)
{
    lk__comm_page  p = {.used = 0};
    lk__comm_table table = table_of(net);
    if (another_tells(net, is_there, missing, 0.5)) return lk__net_failure(net);
    lk__net_query_states(net, ASK_MS / 1e3);
    lk__verdict_late(&table, missing, seconds, "did not do its part within", &p);
    return lk__net_raise_because(net, LK_ETIMEOUT, p.text, p.cause);
}

void lk__net_stalled(lk__net *net, const bool *missing, double seconds)
{
    lk__comm_page  p = {.used = 0};
    lk__comm_table table = table_of(net);
    lk__net_query_states(net, ASK_MS / 1e3);
    lk__verdict_late(&table, missing, seconds, "is waited for since", &p);
    lk__log(net->comm->context, LK_LOG_WARNING, "%s", p.text);
}

lk_status lk__net_lost(lk__net *net, int peer)
{
    lk__comm_page  p = {.used = 0};
    lk__comm_table table = table_of(net);
    if (another_tells(net, is_there, NULL, 0.2)) return lk__net_failure(net);
    lk__verdict_lost(&table, peer, &p);
    return lk__net_raise_because(net, LK_EIO, p.text, p.cause);
}

lk_status lk__net_mismatch(lk__net *net, int peer)
{
    lk__comm_page  p = {.used = 0};
    lk__comm_table table = table_of(net);
    if (another_tells(net, has_come, NULL, 0.2)) return lk__net_failure(net);
    lk__net_query_states(net, 0.1);
    lk__verdict_mismatch(&table, peer, net->number, &p);
    return lk__net_raise(net, LK_EMISMATCH, p.text);
}

lk_status lk__net_crossed(lk__net *net, const lk__comm_call *transfer)
{
    lk__comm_page  p = {.used = 0};
    lk__comm_table table = table_of(net);
    lk__net_query_states(net, 0.1);
    lk__verdict_crossed(&table, transfer->root, transfer, &p);
    return lk__net_raise(net, LK_EMISMATCH, p.text);
}

/* ---- the failure ---- */

lk_status lk__net_failure(lk__net *net) { return (lk_status)atomic_load(&net->comm->failed); }

/* Under the lock. */
static void say_failure(lk__net *net, int peer, lk_status status, const char *text, lk__comm_cause cause, bool proposed)
{
    size_t               length = strnlen(text, LK__COMM_TEXT - 1);
    lk__net_message_fail word = {.head = {(uint32_t)(sizeof word + length), LK__MESSAGE_FAIL, 0},
                                 .status = status,
                                 .proposed = proposed,
                                 .cause = cause};
    lk__net_send_message(net, peer, &word, sizeof word, text, length);
}

void lk__net_decide(lk__net *net, lk_status status, const char *text, lk__comm_cause cause, int peer)
{
    bool first = lk__net_failure(net) == LK_OK;
    status = lk__comm_note(net->comm, status, text, cause); /* from here on the text stays as it is */
    for (int i = 0; i < net->size; i++)
        if (i != net->rank && (first || i == peer))
            say_failure(net, i, status, net->comm->text, net->comm->cause, false);
}

enum { JUDGE_MS = 1000, JUDGES = 2 }; /* how long one is waited for that does not answer, and how many such */

/* What several ranks notice at the same time they put in different words, so one decides: the lowest that is there. The
 * others propose their words to it and take what it says, which its group's thread does also while it computes. Who is
 * there the ranks may see differently for a moment: so whoever is asked decides, and who sees that the one it asked is
 * lost asks the next. Since a rank's decision comes before its farewell, nobody misses it by that. */
lk_status lk__net_raise_because(lk__net *net, lk_status status, const char *why, lk__comm_cause cause)
{
    char text[LK__COMM_TEXT];
    snprintf(text, sizeof text, "%s", why);
    lk__message_clean_text(text); /* as those who hear it do */
    int    judge = -1, next = 0, silent = 0;
    double now, end = 0;
    while (lk__net_failure(net) == LK_OK) {
        pthread_mutex_lock(&net->lock);
        now = lk__now();
        if (judge >= 0 && now >= end) next = ++silent < JUDGES ? judge + 1 : net->rank;
        while (next < net->rank && !is_there(net, next, NULL)) next++;
        if (next != judge && lk__net_failure(net) == LK_OK) {
            judge = next;
            end = now + JUDGE_MS / 1e3;
            if (judge == net->rank)
                lk__net_decide(net, status, text, cause, -1);
            else
                say_failure(net, judge, status, text, cause, true);
        }
        pthread_mutex_unlock(&net->lock);
        if (lk__net_failure(net) == LK_OK) lk__net_pump(net, end - now);
    }
    lk__net_wake(net);
    return lk__net_failure(net);
}

lk_status lk__net_raise(lk__net *net, lk_status status, const char *why)
{
    return lk__net_raise_because(net, status, why, lk__comm_cause_for(net->comm, status));
}
