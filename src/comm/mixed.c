/* mixed.c - ranks on several hosts: those of one host share memory, and the hosts are connected by a network. A mixed
 * group has groups of its own:
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

#include "base/tree.h"
#include "comm/net/net.h"
#include "comm/rendezvous/identity.h"
#include "comm/shm/shm.h"
#include "comm/transports.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
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
    double finish_create = lk__now() + (status == LK_EIO ? NOTICE_MS / 1e3 : 0);
    while (atomic_load(&flat->failed) == LK_OK && lk__now() < finish_create) {
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
        snprintf(report.text, sizeof report.text, "among ranks %d, %d … of %d, which are numbered from 0 here: %.8000s",
                 first, first + step, c->size, group->text);
        (void)lk__net_raise_because(net, (lk_status)status, report.text, group->cause);
    }
    return raise_in_all(c, (lk_status)atomic_load(&flat->failed), flat->text, flat->cause);
}

static lk_status failure(lk_comm *c)
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
    if (status >= 0 || atomic_load(&c->closing) || failure(c) < 0) return status;
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
    lk_status       status = failure(c);
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

/* ---- send and receive ---- */

/* Of the local group: see lk_comm. */
static lk_status check_crossed(lk_comm *c, int neighbour, const lk__comm_call *transfer)
{
    lk__comm_mixed *m = c->state;
    lk__net        *net = m->groups[LK__FLAT]->state;
    int             peer = 0;
    while (m->neighbours[peer] != neighbour) peer++;
    if (!lk__net_ahead(net, peer)) return LK_OK;
    if (!transfer) return LK_END;
    lk__comm_call mine = *transfer;
    mine.root = peer;
    (void)lk__net_crossed(net, &mine);
    return failure(c);
}

/* A send or receive of this group that runs in one of its groups. */
typedef struct submitted {
    struct submitted *next;
    lk_work          *work, *inside;
} submitted;

static lk_comm *route(lk_comm *c, const lk__comm_call *o, lk__comm_call *inside)
{
    lk__comm_mixed *m = c->state;
    *inside = *o;
    if (m->neighbours[o->root] < 0) return m->groups[LK__FLAT];
    inside->root = m->neighbours[o->root];
    return m->groups[LK__LOCAL];
}

static void put_spare(lk_comm *c, submitted *h)
{
    lk__comm_mixed *m = c->state;
    h->next = m->spare;
    m->spare = h;
}

static submitted *take_submitted(lk_comm *c)
{
    lk__comm_mixed *m = c->state;
    submitted      *h = m->spare;
    if (!h) return lk__alloc(c->context, LK_MEMORY_OTHER, sizeof *h);
    m->spare = h->next;
    *h = (submitted){.next = NULL};
    return h;
}

static lk_status reserve_transfers(lk_comm *c, int count)
{
    lk__comm_mixed *m = c->state;
    lk_status       status = LK_OK;
    for (int i = LK__FLAT; i <= LK__LOCAL && status >= 0; i++)
        if (m->groups[i]) status = lk__comm_reserve_transfers(m->groups[i], count);
    for (int i = 0; i < count && status >= 0; i++) {
        submitted *h = lk__alloc(c->context, LK_MEMORY_OTHER, sizeof *h);
        if (!h) return LK_ENOMEM;
        put_spare(c, h);
    }
    return status;
}

static void submit_transfer(lk_comm *c, lk_work *work, submitted **list)
{
    lk__comm_call inside;
    lk_comm      *group = route(c, &work->operation, &inside);
    submitted    *h = take_submitted(c);
    lk_status     status = h ? lk__work_submit_watched(group, &inside, c, &h->inside) : LK_ENOMEM;
    if (status < 0) {
        if (h) put_spare(c, h);
        lk__work_finish(work, status);
        return;
    }
    h->work = work;
    while (*list) list = &(*list)->next;
    *list = h;
}

/* Finishes what is done. Once the last one is, the group may be used from another thread: nothing may follow. */
static void finish_done(lk_comm *c, submitted **list)
{
    for (submitted **at = list; *at;) {
        submitted *h = *at;
        bool       over = atomic_load(&c->closing);
        if (lk_work_test(h->inside) == LK_END && !over) {
            at = &h->next;
            continue;
        }
        lk_work  *work = h->work;
        lk_status status = over ? LK_ECANCELED : lk_work_wait(h->inside); /* otherwise it is freed with its group */
        if (status < 0) (void)failure(c);
        *at = h->next;
        put_spare(c, h);
        lk__work_finish(work, status);
    }
}

static void wait_for_any(lk_comm *c, const submitted *list)
{
    struct timespec finish_create;
    clock_gettime(CLOCK_REALTIME, &finish_create);
    finish_create.tv_sec++;
    pthread_mutex_lock(&c->lock);
    bool any = atomic_load(&c->closing) ||
               (c->first && (c->first->operation.kind == LK__SEND || c->first->operation.kind == LK__RECV));
    for (; list && !any; list = list->next) any = lk_work_test(list->inside) != LK_END;
    if (!any) pthread_cond_timedwait(&c->finished, &c->lock, &finish_create);
    pthread_mutex_unlock(&c->lock);
}

/* Transfers within the host and over the network have to progress concurrently: each runs in its group's own thread. */
static void transfer(lk_comm *c, lk_work *first)
{
    lk__comm_mixed *m = c->state;
    submitted      *list = NULL;
    if (m->hosts == 1 || m->each == 1) {
        lk_comm *group = m->groups[m->hosts == 1 ? LK__LOCAL : LK__FLAT];
        group->backend->transfer(group, first);
        (void)failure(c);
        return;
    }
    if (!first->queued) { /* a blocking call, the only one */
        lk_work  inside = {.comm = c};
        lk_comm *group = route(c, &first->operation, &inside.operation);
        inside.comm = group;
        group->backend->transfer(group, &inside);
        if (inside.status < 0) (void)failure(c);
        lk__work_finish(first, inside.status);
        return;
    }
    submit_transfer(c, first, &list);
    while (list) {
        for (lk_work *more; (more = lk__work_next_transfer(c, list->work));) submit_transfer(c, more, &list);
        wait_for_any(c, list);
        finish_done(c, &list);
    }
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
        *why = m->hosts == c->size ? "are each alone on their host"
               : m->ordered        ? "are on hosts with different numbers of ranks"
                                   : "are not numbered host by host";
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

static void free_state(lk_comm *c)
{
    lk__comm_mixed *m = c->state;
    for (int i = LK__GROUPS; i-- > 0;) lk_comm_free(m->groups[i]);
    for (submitted *h = m->spare, *next; h; h = next) {
        next = h->next;
        lk__free(c->context, LK_MEMORY_OTHER, h, sizeof *h);
    }
    lk__free(c->context, LK_MEMORY_OTHER, m->scratch, m->scratch_bytes);
    lk__free(c->context, LK_MEMORY_OTHER, m->counts, 2 * (size_t)m->hosts * sizeof *m->counts);
    lk__free(c->context, LK_MEMORY_OTHER, m->neighbours, (size_t)c->size * sizeof *m->neighbours);
    lk__free(c->context, LK_MEMORY_OTHER, m, sizeof *m);
    c->state = NULL;
}

/* ---- create ---- */

/* Finds each rank's host. Hosts are numbered in the order of their first ranks. */
static lk_status find_hosts(lk_comm *c)
{
    lk__comm_mixed          *m = c->state;
    const lk__net_mesh      *mesh = &((lk__net *)m->groups[LK__FLAT]->state)->mesh;
    const lk__net_mesh_rank *ranks = mesh->ranks;
    size_t                   bytes = (size_t)c->size * sizeof(int);
    int                     *host_of = lk__alloc(c->context, LK_MEMORY_OTHER, bytes);
    m->neighbours = lk__alloc(c->context, LK_MEMORY_OTHER, (size_t)c->size * sizeof *m->neighbours);
    if (!host_of || !m->neighbours) {
        lk__free(c->context, LK_MEMORY_OTHER, host_of, bytes);
        return LK_ENOMEM;
    }
    for (int i = 0; i < c->size; i++) {
        int first = 0;
        while (strcmp(ranks[first].host_id, ranks[i].host_id) != 0) first++;
        host_of[i] = first == i ? m->hosts++ : host_of[first];
    }
    m->host = host_of[c->rank];
    for (int i = 0; i < c->size; i++) {
        m->neighbours[i] = host_of[i] == m->host ? m->each++ : -1;
        if (i < c->rank && m->neighbours[i] >= 0) m->local_rank++;
    }
    int each = c->size / m->hosts;
    m->ordered = true;
    m->regular = m->hosts > 1 && each > 1 && c->size % m->hosts == 0;
    for (int i = 0; i < c->size; i++) {
        m->ordered = m->ordered && (i == 0 || host_of[i] >= host_of[i - 1]);
        m->regular = m->regular && host_of[i] == i / each;
    }
    m->layered = m->regular && lk__tree_nests(c->size, m->hosts);
    lk__free(c->context, LK_MEMORY_OTHER, host_of, bytes);
    c->local_rank = m->local_rank;
    c->local_size = m->each;
    return LK_OK;
}

static lk_status set_local_world(lk_comm *c, lk_comm *local)
{
    const lk__comm_mixed *m = c->state;
    size_t                bytes = (size_t)m->each * sizeof(int);
    int                  *ranks = lk__alloc(c->context, LK_MEMORY_OTHER, bytes);
    for (int i = 0; ranks && i < c->size; i++)
        if (m->neighbours[i] >= 0) ranks[m->neighbours[i]] = i;
    lk_status status = ranks ? lk__comm_set_world(local, c, ranks) : LK_ENOMEM;
    lk__free(c->context, LK_MEMORY_OTHER, ranks, bytes);
    return status;
}

/* Shares memory among the ranks of this host: for a split, that of the parent's. */
static lk_status share_memory(lk_comm *c, lk_comm *local, lk_comm *parent, const int *ranks)
{
    const lk__comm_mixed *m = c->state;
    const lk__net_mesh   *mesh = &((lk__net *)m->groups[LK__FLAT]->state)->mesh;
    uint64_t              secret = mesh->secret ^ (uint64_t)m->host * 0x9E3779B97F4A7C15u;
    char                  name[64];
    if (m->each == 1) return local->backend->create(local, NULL);
    if (!parent) {
        snprintf(name, sizeof name, "mixed-%016llx-%d", (unsigned long long)mesh->secret, m->host);
        return lk__shm_create(local, NULL, name, mesh->token);
    }
    const lk__comm_mixed *from = parent->state;
    size_t                bytes = (size_t)m->each * sizeof(int);
    int                  *local_ranks = lk__alloc(c->context, LK_MEMORY_OTHER, bytes);
    lk_status             status = local_ranks ? LK_OK : LK_ENOMEM;
    for (int i = 0; local_ranks && i < c->size; i++)
        if (m->neighbours[i] >= 0) local_ranks[m->neighbours[i]] = from->neighbours[ranks[i]];
    if (status >= 0) status = lk__shm_split_as(from->groups[LK__LOCAL], local, local_ranks, parent->splits, secret);
    lk__free(c->context, LK_MEMORY_OTHER, local_ranks, bytes);
    /* A rank of the parent is lost: its own message has the ranks' numbers in the parent. */
    return status < 0 && failure(parent) < 0 ? lk__comm_report_failure(parent) : status;
}

static lk_status make_local(lk_comm *c, lk_comm *parent, const int *ranks)
{
    lk__comm_mixed *m = c->state;
    lk_comm        *local;
    lk_status       status = lk__comm_make(c->context, c, NULL, &local);
    if (status < 0) return status;
    local->join_ms = c->connect_ms; /* its ranks have joined already */
    local->rank = local->local_rank = m->local_rank;
    local->size = local->local_size = m->each;
    local->backend = m->each == 1 ? &lk__backend_self : &lk__backend_shm;
    local->outer = c;
    local->crossed = m->hosts > 1 ? check_crossed : NULL;
    status = set_local_world(c, local);
    if (status >= 0) status = share_memory(c, local, parent, ranks);
    if (status < 0)
        lk__comm_drop(local);
    else
        m->groups[LK__LOCAL] = local;
    return status;
}

/* The ranks with the same local rank on every host. */
static lk_status make_across(lk_comm *c)
{
    lk__comm_mixed *m = c->state;
    m->counts = lk__alloc(c->context, LK_MEMORY_OTHER, 2 * (size_t)m->hosts * sizeof *m->counts);
    m->displacements = m->counts ? m->counts + m->hosts : NULL;
    lk_status status = lk_comm_split_at((lk_site){"lk_comm_create", 0}, m->groups[LK__FLAT], m->local_rank, c->rank,
                                        &m->groups[LK__ACROSS]);
    return status >= 0 && !m->counts ? LK_ENOMEM : status; /* the others do not wait for this rank */
}

/* Makes the other groups; the flat group is connected. parent: of a split, whose members `ranks` are the ranks of c. */
static lk_status make_groups(lk_comm *c, lk_comm *parent, const int *ranks)
{
    lk__comm_mixed *m = c->state;
    lk_status       status = find_hosts(c);
    if (status >= 0) status = make_local(c, parent, ranks);
    if (status >= 0 && m->regular) status = make_across(c);
    if (status < 0) free_state(c);
    return status;
}

static lk_status finish_create(lk_comm *c, lk_comm *flat, lk_status status, lk_comm *parent, const int *ranks)
{
    lk__comm_mixed *m = c->state;
    if (status >= 0) {
        m->groups[LK__FLAT] = flat;
        return make_groups(c, parent, ranks);
    }
    lk__comm_drop(flat);
    free_state(c);
    return status;
}

static lk_status begin_create(lk_comm *c, lk_comm **flat)
{
    lk__comm_mixed *m = lk__alloc(c->context, LK_MEMORY_OTHER, sizeof *m);
    lk_status       status = m ? lk__comm_make(c->context, c, NULL, flat) : LK_ENOMEM;
    if (status < 0) {
        lk__free(c->context, LK_MEMORY_OTHER, m, sizeof *m);
        return status;
    }
    c->state = m;
    (*flat)->rank = c->rank;
    (*flat)->size = c->size;
    status = c->world ? lk__comm_set_world(*flat, c, NULL) : LK_OK;
    return status < 0 ? finish_create(c, *flat, status, NULL, NULL) : LK_OK;
}

static lk_status create(lk_comm *c, const lk__rendezvous_identity *identity)
{
    lk_comm  *flat = NULL;
    lk_status status = begin_create(c, &flat);
    if (status < 0) return status;
    flat->backend = lk__transport_of_network(c->context, identity);
    return finish_create(c, flat, flat->backend->create(flat, identity), NULL, NULL);
}

static lk_status split(lk_comm *parent, lk_comm *c, const lk__comm_member *all, const int *ranks)
{
    lk_comm  *parent_flat = ((lk__comm_mixed *)parent->state)->groups[LK__FLAT], *flat = NULL;
    lk_status status = begin_create(c, &flat);
    if (status < 0) return status;
    flat->backend = parent_flat->backend;
    return finish_create(c, flat, parent_flat->backend->split(parent_flat, flat, all, ranks), parent, ranks);
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
    .transfer = transfer,
    .allocate = allocate,
    .release = release,
    .failure = failure,
    .raise = raise_failure,
    .busy = busy,
    .wake = wake_waits,
    .reserve_transfers = reserve_transfers,
    .sent = sent,
    .free = free_state,
    .create = create,
    .split = split,
    .reaches = lk__comm_reaches_host,
    .peer = peer,
    .hosts = hosts,
    .shared = shared,
};
