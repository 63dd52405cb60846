/* mixed.c - ranks on several hosts: ranks of one host share memory, and the hosts are connected by a network. A mixed
 * group consists of further groups:
 *
 *   flat     all ranks, over the network: for small calls, and those that the layers do not support; compares all
 *            calls;
 *   local    the ranks of this host, over shared memory;
 *   across   the ranks with the same local rank on every host, over the network; where each host has as many ranks.
 *
 * Where each host has the same number of consecutive ranks, a power of two, they are a whole subtree of the canonical
 * order. A large reduction then runs within the hosts, on each rank's slice across them, and is gathered within;
 * partial results are wide enough that the bits are those of the flat order. Ranks that hold something once on every
 * host (hosts.h) leave out the last step. When one of the groups fails, the others are failed with the same text, so a
 * rank that waits in any of them gets it. */
#include "comm/mixed.h"

#include "comm/net/net.h"
#include "comm/transports.h"

#include <stdio.h>
#include <unistd.h>

enum { NOTICE_MS = 1500 }; /* until the end of a dead rank's connections is detected */

/* ---- failure ---- */

/* Raises a failure in all groups. */
static lk_status raise_in_all(lk_comm *c, lk_status status, const char *text, lk__comm_cause cause)
{
    lk__comm_mixed *m = c->state;
    lk_comm        *flat = m->groups[LK__FLAT]; /* where all ranks agree on the text */
    flat->backend->raise(flat, status, text, cause);
    status = (lk_status)atomic_load(&flat->failed);
    for (int i = LK__LOCAL; i < LK__GROUPS; i++)
        if (m->groups[i]) m->groups[i]->backend->raise(m->groups[i], status, flat->text, flat->cause);
    return lk__comm_record_failure(c, status, flat->text, flat->cause);
}

/* A group of some of the ranks has failed. Its text has its own rank numbers, so the flat group, which detects lost
 * ranks too, gets time to do so; if it does not, the text is used and its rank numbers are explained. */
static lk_status raise_group_failure(lk_comm *c, lk_comm *group)
{
    lk__comm_mixed *m = c->state;
    lk_comm        *flat = m->groups[LK__FLAT];
    lk__net        *net = flat->state;
    int             status = atomic_load(&group->failed);
    if (m->hosts == 1) return raise_in_all(c, (lk_status)status, group->text, group->cause);
    double deadline = lk__now() + (status == LK_EIO ? NOTICE_MS / 1e3 : 0);
    while (atomic_load(&flat->failed) == LK_OK && lk__now() < deadline) {
        for (int i = 0; i < c->size && atomic_load(&flat->failed) == LK_OK; i++) {
            const lk__net_peer *p = &net->peers[i];
            if (i != c->rank && (atomic_load(&p->gone) || atomic_load(&p->dead) || atomic_load(&p->cut_off)))
                (void)lk__net_lost(net, i);
        }
        usleep(2000);
    }
    if (atomic_load(&flat->failed) == LK_OK) {
        lk__comm_report report;
        int             step = group == m->groups[LK__LOCAL] ? 1 : m->each,
            first = group == m->groups[LK__LOCAL] ? c->rank - m->local_rank : m->local_rank;
        snprintf(report.text, sizeof report.text,
                 "in the group of ranks %d, %d, … of %d (rank numbers below count from 0 within this group): %.8000s",
                 first, first + step, c->size, group->text);
        (void)lk__net_raise_because(net, (lk_status)status, report.text, group->cause);
    }
    return raise_in_all(c, (lk_status)atomic_load(&flat->failed), flat->text, flat->cause);
}

lk_status lk__mixed_failure(lk_comm *c)
{
    lk__comm_mixed *m = c->state;
    if (atomic_load(&c->failed) != LK_OK) return (lk_status)atomic_load(&c->failed);
    if (m->groups[LK__FLAT]->backend->failure(m->groups[LK__FLAT]) < 0)
        return raise_in_all(c, (lk_status)atomic_load(&m->groups[LK__FLAT]->failed), m->groups[LK__FLAT]->text,
                            m->groups[LK__FLAT]->cause);
    for (int i = LK__LOCAL; i < LK__GROUPS; i++)
        if (m->groups[i] && m->groups[i]->backend->failure(m->groups[i]) < 0)
            return raise_group_failure(c, m->groups[i]);
    return LK_OK;
}

static void raise_failure(lk_comm *c, lk_status status, const char *text, lk__comm_cause cause)
{
    (void)raise_in_all(c, status, text, cause);
}

/* ---- collectives ---- */

/* All ranks enter over the flat group first, which detects calls that differ and missing ranks. */
static lk_status run_layered(lk_comm *c, const lk__comm_call *o)
{
    lk__comm_mixed *m = c->state;
    lk__net        *net = m->groups[LK__FLAT]->state;
    lk_status       status = lk__net_enter(net, o, NULL);
    if (status >= 0) status = lk__net_await(net, -1);
    if (status >= 0) status = lk__mixed_layered(c, o);
    return lk__net_leave(net, status);
}

/* A failure of a group is reported as such; any other, such as lack of memory, fails all groups. */
static lk_status finish_call(lk_comm *c, const lk__comm_call *o, lk_status status)
{
    if (status >= 0 || atomic_load(&c->closing) || lk__mixed_failure(c) < 0) return status;
    char text[256];
    snprintf(text, sizeof text, "rank %d failed in %s: %.160s", c->rank, lk__comm_kind_name(o->kind),
             lk_context_error(c->context));
    return raise_in_all(c, status, text, lk__comm_cause_make(c, c->rank, LK__CAUSE_OWN));
}

/* Of some of the ranks only, whose group compares their calls. */
static lk_status run_as(const lk__comm_mixed *m, int group, lk__comm_kind kind, const lk__comm_call *o)
{
    lk__comm_call inside = *o;
    inside.kind = kind;
    return lk__mixed_run(m, group, &inside);
}

/* The number of an operation is that of the group in which its ranks meet, also where other groups move its data. */
static void record_numbers_of(lk_comm *c, int group)
{
    const lk__comm_mixed *m = c->state;
    for (int i = 0; i < LK__GROUPS; i++)
        if (m->groups[i]) m->groups[i]->numbered = i == group ? c->recorder : NULL;
}

static lk_status collective(lk_comm *c, const lk__comm_call *o)
{
    lk__comm_mixed *m = c->state;
    lk_status       status = lk__mixed_failure(c);
    if (status < 0) return status;
    int group = m->hosts == 1 || o->kind == LK__BARRIER_HOST ? LK__LOCAL
                : o->kind == LK__ALL_REDUCE_ACROSS           ? LK__ACROSS
                                                             : LK__FLAT;
    record_numbers_of(c, group);
    if (m->hosts == 1)
        status = lk__mixed_run(m, group, o);
    else if (o->kind == LK__BARRIER_HOST)
        status = run_as(m, group, LK__BARRIER, o);
    else if (o->kind == LK__ALL_REDUCE_ACROSS)
        status = run_as(m, group, LK__ALL_REDUCE, o);
    else
        status = lk__mixed_fits_layers(m, o) ? run_layered(c, o) : lk__mixed_run(m, group, o);
    return finish_call(c, o, status);
}

/* ---- the rest of the table ---- */

static lk_status allocate(lk_comm *c, uint64_t secret, size_t bytes, void **memory)
{
    lk__comm_mixed *m = c->state;
    lk_comm        *local = m->groups[LK__LOCAL];
    /* Each host's ranks have their own rendezvous; its name must be unique when LOCKSTEP_HOST_ID simulates hosts. */
    return local->backend->allocate(local, secret ^ (uint64_t)m->host * 0x9E3779B97F4A7C15u, bytes, memory);
}

static void release(lk_comm *c, void *memory)
{
    lk_comm *local = ((lk__comm_mixed *)c->state)->groups[LK__LOCAL];
    local->backend->release(local, memory);
}

static char *peer(const lk_comm *c, const void *memory, int rank)
{
    const lk_comm *local = ((const lk__comm_mixed *)c->state)->groups[LK__LOCAL];
    return local->backend->peer(local, memory, rank);
}

static int hosts(const lk_comm *c, const char **why)
{
    const lk__comm_mixed *m = c->state;
    if (m->regular || (m->hosts == 1 && m->each > 1)) return m->hosts;
    if (why)
        *why = m->hosts == c->size ? "are each on a different host"
               : m->ordered        ? "are on hosts with different numbers of ranks"
                                   : "are not numbered consecutively on each host";
    return 0;
}

static void busy(lk_comm *c, const char *what)
{
    lk__comm_mixed *m = c->state;
    for (int i = 0; i < LK__GROUPS; i++)
        if (m->groups[i]) m->groups[i]->backend->busy(m->groups[i], what);
}

static void wake_waits(lk_comm *c)
{
    lk__comm_mixed *m = c->state;
    for (int i = 0; i < LK__GROUPS; i++) {
        if (!m->groups[i]) continue;
        if (atomic_load(&c->closing)) atomic_store(&m->groups[i]->closing, true);
        m->groups[i]->backend->wake(m->groups[i]);
    }
    lk__work_wake(c);
}

static uint64_t sent(const lk_comm *c)
{
    const lk__comm_mixed *m = c->state;
    uint64_t              bytes = 0;
    for (int i = 0; i < LK__GROUPS; i++)
        if (m->groups[i]) bytes += m->groups[i]->backend->sent(m->groups[i]);
    return bytes;
}

static struct lk__shm *shared(const lk_comm *c)
{
    const lk_comm *local = ((const lk__comm_mixed *)c->state)->groups[LK__LOCAL];
    return local->backend->shared ? local->backend->shared(local) : NULL;
}

const lk__comm_backend lk__backend_mixed = {
    .name = "mixed",
    .text = "shared memory within each host, and a network between hosts",
    .scope = LK__SCOPE_ANY,
    .over_network = true,
    .progresses = true,
    .collective = collective,
    .transfer = lk__mixed_transfer,
    .allocate = allocate,
    .release = release,
    .failure = lk__mixed_failure,
    .raise = raise_failure,
    .busy = busy,
    .wake = wake_waits,
    .reserve_transfers = lk__mixed_reserve_transfers,
    .sent = sent,
    .free = lk__mixed_free,
    .create = lk__mixed_create,
    .split = lk__mixed_split,
    .abilities = lk__comm_abilities_on_host,
    .peer = peer,
    .hosts = hosts,
    .shared = shared,
};
