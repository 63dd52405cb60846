/* mixed.c - ranks on several hosts: those of one host share memory, and a network is between the hosts. A mixed group
 * holds groups of its own:
 *
 *   flat     all ranks, over the network: what is small, and what does not fit the layers; it also compares the calls;
 *   local    the ranks of this host, over shared memory;
 *   across   the ranks with this one's place on every host, over the network.
 *
 * Where each host has the same number of ranks, a power of two, side by side, they are a whole subtree of the canonical
 * order. A large reduction is then reduced within the hosts, each rank's slice across them, and gathered within; partial
 * results are held wide enough that the bits are those of the flat order. When one of the groups fails the others are
 * failed with the same words, so a rank that waits in any of them hears of it. */
#include "comm/mpi.h"
#include "comm/net.h"
#include "comm/place.h"
#include "comm/reduce.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    LAYERED_LEAST = 32 << 10, /* bytes; below, one exchange among all is faster than three */
    NOTICE_MS = 1500,         /* until a dead rank's connections are seen to be closed */
    SCRATCH = 8 << 20,        /* bytes of partial results at once, where they have to be copied */
};

enum { FLAT, LOCAL, ACROSS, GROUPS };

typedef struct mixed {
    lk_comm *groups[GROUPS]; /* NULL: not needed */
    int      hosts, host;    /* how many, and which this is */
    int      each, place;    /* ranks of this host, and which of them this is */
    int     *neighbours;     /* by rank: which of this host's it is; -1 of another host */
    bool     layered;
    char    *scratch;
    size_t   scratch_bytes;
} mixed;

/* ---- failure ---- */

/* One group's failure is everyone's. */
static lk_status spread(lk_comm *c, lk_status status, const char *text)
{
    mixed   *m = c->state;
    lk_comm *flat = m->groups[FLAT]; /* where all ranks agree on the words */
    flat->backend->raise(flat, status, text);
    status = (lk_status)atomic_load(&flat->failed);
    for (int i = LOCAL; i < GROUPS; i++)
        if (m->groups[i]) m->groups[i]->backend->raise(m->groups[i], status, flat->text);
    return lk__comm_note(c, status, flat->text);
}

/* A group among some ranks has failed. It counts them in its own way, so the flat group, where everyone sees the dead
 * too, is given the time to; and where it cannot know, whose words they are is said. */
static lk_status failure_of(lk_comm *c, lk_comm *group)
{
    mixed   *m = c->state;
    lk_comm *flat = m->groups[FLAT];
    lk__net *net = flat->state;
    int      status = atomic_load(&group->failed);
    if (m->hosts == 1) return spread(c, (lk_status)status, group->text);
    double end = lk__now() + (status == LK_EIO ? NOTICE_MS / 1e3 : 0);
    while (atomic_load(&flat->failed) == LK_OK && lk__now() < end) {
        for (int i = 0; i < c->size && atomic_load(&flat->failed) == LK_OK; i++) {
            const lk__peer *p = &net->peers[i];
            if (i != c->rank && (atomic_load(&p->gone) || atomic_load(&p->dead) || atomic_load(&p->cut_off)))
                (void)lk__net_lost(net, i);
        }
        usleep(2000);
    }
    if (atomic_load(&flat->failed) == LK_OK) {
        lk__page page;
        int      step = group == m->groups[LOCAL] ? 1 : m->each,
            first = group == m->groups[LOCAL] ? c->rank - m->place : m->place;
        snprintf(page.text, sizeof page.text, "among ranks %d, %d … of %d, which count from 0 here: %.8000s", first,
                 first + step, c->size, group->text);
        (void)lk__net_raise(net, (lk_status)status, page.text);
    }
    return spread(c, (lk_status)atomic_load(&flat->failed), flat->text);
}

static lk_status failure(lk_comm *c)
{
    mixed *m = c->state;
    if (atomic_load(&c->failed) != LK_OK) return (lk_status)atomic_load(&c->failed);
    if (m->groups[FLAT]->backend->failure(m->groups[FLAT]) < 0)
        return spread(c, (lk_status)atomic_load(&m->groups[FLAT]->failed), m->groups[FLAT]->text);
    for (int i = LOCAL; i < GROUPS; i++)
        if (m->groups[i] && m->groups[i]->backend->failure(m->groups[i]) < 0) return failure_of(c, m->groups[i]);
    return LK_OK;
}

static void raise_failure(lk_comm *c, lk_status status, const char *text) { (void)spread(c, status, text); }

/* ---- what the groups do for this one ---- */

static lk_status run_in(lk_comm *group, const lk__operation *o) { return group->backend->collective(group, o); }

static lk_status grow_scratch(lk_comm *c, size_t bytes)
{
    mixed *m = c->state;
    if (m->scratch_bytes >= bytes) return LK_OK;
    lk__free(c->context, LK_MEMORY_OTHER, m->scratch, m->scratch_bytes);
    m->scratch = lk__alloc(c->context, LK_MEMORY_OTHER, bytes);
    m->scratch_bytes = m->scratch ? bytes : 0;
    return m->scratch ? LK_OK : LK_ENOMEM;
}

/* Reduces `count` elements of each of this host's ranks at `data` into the slice of this rank, which is the place-th of
 * them, then the slices of all hosts. root: the host that gets the result; -1: all do. */
static lk_status reduce_slices(mixed *m, const lk__operation *o, const void *send, char *data, size_t count,
                               lk_dtype type, int root)
{
    size_t        bytes = count * lk_dtype_size(type);
    char         *slice = data + (size_t)m->place * bytes;
    lk__operation inside = {.kind = LK__REDUCE_SCATTER,
                            .type = type,
                            .reduce = lk__reduce_step(o->reduce),
                            .count = count,
                            .send = send,
                            .recv = slice,
                            .site = o->site};
    lk_status     status = run_in(m->groups[LOCAL], &inside);
    if (status < 0) return status;
    inside.kind = root < 0 ? LK__ALL_REDUCE : LK__REDUCE;
    inside.root = root < 0 ? 0 : root;
    inside.send = slice;
    return run_in(m->groups[ACROSS], &inside);
}

/* The slices of this host, side by side at data: all of its ranks get them, or the one of place `root`. */
static lk_status gather_slices(mixed *m, const lk__operation *o, char *data, size_t count, lk_dtype type, int root)
{
    lk__operation inside = {.kind = root < 0 ? LK__ALL_GATHER : LK__GATHER,
                            .type = type,
                            .root = root < 0 ? 0 : root,
                            .count = count,
                            .send = data + (size_t)m->place * count * lk_dtype_size(type),
                            .recv = data,
                            .site = o->site};
    return run_in(m->groups[LOCAL], &inside);
}

/* all_reduce and reduce: `count` elements from send to recv, by way of the scratch, in slices that are filled up. */
static lk_status reduce_copied(lk_comm *c, const lk__operation *o, size_t first, size_t count)
{
    mixed   *m = c->state;
    lk_dtype wide = lk__reduce_partial(o->type, o->reduce);
    bool     rooted = o->kind == LK__REDUCE, gets = !rooted || c->rank == o->root;
    int      host = rooted ? o->root / m->each : -1, place = rooted ? o->root % m->each : -1;
    size_t   slice = (count + (size_t)m->each - 1) / (size_t)m->each, all = slice * (size_t)m->each;
    size_t   size = lk_dtype_size(o->type), wide_size = lk_dtype_size(wide);
    char    *partial = m->scratch, *result = partial + lk__round_up(all * wide_size, 64);
    size_t   own = (size_t)m->place * slice;
    lk__reduce_widen(partial, (const char *)o->send + first * size, count, o->type, wide);
    memset(partial + count * wide_size, 0, (all - count) * wide_size);
    lk_status status = reduce_slices(m, o, partial, partial, slice, wide, host);
    if (status < 0 || (rooted && m->host != host)) return status;
    lk__reduce_finish(result + own * size, partial + own * wide_size, c->size, slice, o->type, o->reduce);
    status = gather_slices(m, o, result, slice, o->type, place);
    if (status >= 0 && gets) memcpy((char *)o->recv + first * size, result, count * size);
    return status;
}

static lk_status layered_reduce(lk_comm *c, const lk__operation *o)
{
    mixed   *m = c->state;
    lk_dtype wide = lk__reduce_partial(o->type, o->reduce);
    size_t   size = lk_dtype_size(o->type), slice = o->count / (size_t)m->each;
    if (o->kind == LK__ALL_REDUCE && wide == o->type && o->count % (size_t)m->each == 0) {
        char     *own = (char *)o->recv + (size_t)m->place * slice * size;
        lk_status status = reduce_slices(m, o, o->send, o->recv, slice, o->type, -1);
        if (status < 0) return status;
        lk__reduce_finish(own, own, c->size, slice, o->type, o->reduce);
        return gather_slices(m, o, o->recv, slice, o->type, -1);
    }
    size_t    most = SCRATCH / lk_dtype_size(wide), n = o->count < most ? o->count : most;
    size_t    room = n + (size_t)m->each;
    lk_status status = grow_scratch(c, lk__round_up(room * lk_dtype_size(wide), 64) + room * size);
    for (size_t first = 0; first < o->count && status >= 0; first += n)
        status = reduce_copied(c, o, first, o->count - first < n ? o->count - first : n);
    return status;
}

/* Within the root's host to all; each of them hands its slice to the other hosts; there they are put together. */
static lk_status layered_broadcast(lk_comm *c, const lk__operation *o)
{
    mixed *m = c->state;
    size_t size = lk_dtype_size(o->type), slice = o->count / (size_t)m->each, rest = o->count % (size_t)m->each;
    int    host = o->root / m->each;
    char  *own = (char *)o->recv + (size_t)m->place * slice * size, *tail = (char *)o->recv + (o->count - rest) * size;
    lk__operation inside = *o;
    lk_status     status = LK_OK;
    inside.root = o->root % m->each;
    if (m->host == host) status = run_in(m->groups[LOCAL], &inside);
    inside.root = host;
    inside.count = slice;
    inside.send = inside.recv = own;
    if (status >= 0) status = run_in(m->groups[ACROSS], &inside);
    inside.count = rest;
    inside.send = inside.recv = tail;
    if (status >= 0 && rest) status = run_in(m->groups[ACROSS], &inside);
    return status < 0 || m->host == host ? status : gather_slices(m, o, o->recv, slice, o->type, -1);
}

/* Within the hosts; then each rank gets its peers' parts across; then host by host within again. */
static lk_status layered_gather(lk_comm *c, const lk__operation *o)
{
    mixed *m = c->state;
    size_t bytes = o->count * lk_dtype_size(o->type), block = bytes * (size_t)m->each,
           length = sizeof(size_t) * 2 * (size_t)m->hosts;
    size_t *counts = lk__alloc(c->context, LK_MEMORY_OTHER, length), *at = counts + m->hosts;
    char   *recv = o->recv, *own = recv + (size_t)c->rank * bytes;
    if (!counts) return LK_ENOMEM;
    if (o->send != own) memmove(own, o->send, bytes);
    for (int h = 0; h < m->hosts; h++) {
        counts[h] = o->count;
        at[h] = (size_t)(h * m->each + m->place) * o->count;
    }
    lk__operation inside = {.kind = LK__ALL_GATHERV,
                            .type = o->type,
                            .send = own,
                            .recv = recv,
                            .recv_counts = counts,
                            .recv_displacements = at,
                            .site = o->site};
    lk_status     status = run_in(m->groups[ACROSS], &inside);
    for (int h = 0; h < m->hosts && status >= 0; h++)
        status = gather_slices(m, o, recv + (size_t)h * block, o->count, o->type, -1);
    lk__free(c->context, LK_MEMORY_OTHER, counts, length);
    return status;
}

static bool fits_layers(const mixed *m, const lk__operation *o)
{
    bool kind =
        o->kind == LK__ALL_REDUCE || o->kind == LK__REDUCE || o->kind == LK__BROADCAST || o->kind == LK__ALL_GATHER;
    return m->layered && kind && o->count * lk_dtype_size(o->type) >= LAYERED_LEAST;
}

/* All come together over the flat group first, so that whoever made another call, or does not come, is found there. */
static lk_status layered(lk_comm *c, const lk__operation *o)
{
    mixed    *m = c->state;
    lk__net  *net = m->groups[FLAT]->state;
    lk_status status = lk__net_enter(net, o, NULL);
    if (status >= 0) status = lk__net_await(net, -1);
    if (status >= 0) {
        status = o->kind == LK__BROADCAST    ? layered_broadcast(c, o)
                 : o->kind == LK__ALL_GATHER ? layered_gather(c, o)
                                             : layered_reduce(c, o);
    }
    return lk__net_leave(net, status);
}

/* What a group says of its own failure counts; another, such as no memory, fails all of them. */
static lk_status settle(lk_comm *c, const lk__operation *o, lk_status status)
{
    if (status >= 0 || atomic_load(&c->closing) || failure(c) < 0) return status;
    char text[256];
    snprintf(text, sizeof text, "rank %d could not go on with %s: %.160s", c->rank, lk__kind_name(o->kind),
             lk_context_error(c->context));
    return spread(c, status, text);
}

static lk_status collective(lk_comm *c, const lk__operation *o)
{
    mixed    *m = c->state;
    lk_status status = failure(c);
    if (status < 0) return status;
    if (m->hosts == 1)
        status = run_in(m->groups[LOCAL], o);
    else
        status = fits_layers(m, o) ? layered(c, o) : run_in(m->groups[FLAT], o);
    return settle(c, o, status);
}

/* ---- send and receive ---- */

/* A send or receive of this group that one of its groups carries. */
typedef struct handed {
    struct handed *next;
    lk_work       *work, *inside;
} handed;

static lk_comm *route(lk_comm *c, const lk__operation *o, lk__operation *inside)
{
    mixed *m = c->state;
    *inside = *o;
    if (m->neighbours[o->root] < 0) return m->groups[FLAT];
    inside->root = m->neighbours[o->root];
    return m->groups[LOCAL];
}

static void hand_on(lk_comm *c, lk_work *work, handed **list)
{
    lk__operation inside;
    lk_comm      *group = route(c, &work->operation, &inside);
    handed       *h = lk__alloc(c->context, LK_MEMORY_OTHER, sizeof *h);
    lk_status     status = h ? lk__work_hand_on(group, &inside, c, &h->inside) : LK_ENOMEM;
    if (status < 0) {
        lk__free(c->context, LK_MEMORY_OTHER, h, sizeof *h);
        lk__work_finish(work, status);
        return;
    }
    h->work = work;
    while (*list) list = &(*list)->next;
    *list = h;
}

/* Finishes what is done. When the last one is told so, the group may be used from another thread: nothing follows. */
static void sweep(lk_comm *c, handed **list)
{
    for (handed **at = list; *at;) {
        handed *h = *at;
        bool    over = atomic_load(&c->closing);
        if (lk_work_test(h->inside) == LK_END && !over) {
            at = &h->next;
            continue;
        }
        lk_work  *work = h->work;
        lk_status status = over ? LK_ECANCELED : lk_work_wait(h->inside); /* else it goes with its group */
        if (status < 0) (void)failure(c);
        *at = h->next;
        lk__free(c->context, LK_MEMORY_OTHER, h, sizeof *h);
        lk__work_finish(work, status);
    }
}

static void wait_for_any(lk_comm *c, const handed *list)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec++;
    pthread_mutex_lock(&c->lock);
    bool any = atomic_load(&c->closing) ||
               (c->first && (c->first->operation.kind == LK__SEND || c->first->operation.kind == LK__RECV));
    for (; list && !any; list = list->next) any = lk_work_test(list->inside) != LK_END;
    if (!any) pthread_cond_timedwait(&c->finished, &c->lock, &end);
    pthread_mutex_unlock(&c->lock);
}

/* Those within the host and those over the network have to go on side by side: each group's own thread carries its. */
static void transfer(lk_comm *c, lk_work *first)
{
    mixed  *m = c->state;
    handed *list = NULL;
    if (m->hosts == 1 || m->each == 1) {
        lk_comm *group = m->groups[m->hosts == 1 ? LOCAL : FLAT];
        group->backend->transfer(group, first);
        (void)failure(c);
        return;
    }
    if (!first->queued) { /* it is alone */
        lk_work  inside = {.comm = c};
        lk_comm *group = route(c, &first->operation, &inside.operation);
        inside.comm = group;
        group->backend->transfer(group, &inside);
        if (inside.status < 0) (void)failure(c);
        lk__work_finish(first, inside.status);
        return;
    }
    hand_on(c, first, &list);
    while (list) {
        for (lk_work *more; (more = lk__work_next_transfer(c, list->work));) hand_on(c, more, &list);
        wait_for_any(c, list);
        sweep(c, &list);
    }
}

/* ---- the rest of the table ---- */

static lk_status allocate(lk_comm *c, uint64_t secret, size_t bytes, void **memory)
{
    mixed   *m = c->state;
    lk_comm *local = m->groups[LOCAL];
    /* Each host's ranks meet on their own host; the name has to be theirs alone when hosts are only played. */
    return local->backend->allocate(local, secret ^ (uint64_t)m->host * 0x9E3779B97F4A7C15u, bytes, memory);
}

static void release(lk_comm *c, void *memory)
{
    lk_comm *local = ((mixed *)c->state)->groups[LOCAL];
    local->backend->release(local, memory);
}

static void busy(lk_comm *c, const char *what)
{
    mixed *m = c->state;
    for (int i = 0; i < GROUPS; i++)
        if (m->groups[i]) m->groups[i]->backend->busy(m->groups[i], what);
}

static void nudge(lk_comm *c)
{
    mixed *m = c->state;
    for (int i = 0; i < GROUPS; i++) {
        if (!m->groups[i]) continue;
        if (atomic_load(&c->closing)) atomic_store(&m->groups[i]->closing, true);
        m->groups[i]->backend->nudge(m->groups[i]);
    }
    lk__work_wake(c);
}

static uint64_t sent(const lk_comm *c)
{
    const mixed *m = c->state;
    uint64_t     bytes = 0;
    for (int i = 0; i < GROUPS; i++)
        if (m->groups[i]) bytes += m->groups[i]->backend->sent(m->groups[i]);
    return bytes;
}

static void free_state(lk_comm *c)
{
    mixed *m = c->state;
    for (int i = GROUPS; i-- > 0;) lk_comm_free(m->groups[i]);
    lk__free(c->context, LK_MEMORY_OTHER, m->scratch, m->scratch_bytes);
    lk__free(c->context, LK_MEMORY_OTHER, m->neighbours, (size_t)c->size * sizeof *m->neighbours);
    lk__free(c->context, LK_MEMORY_OTHER, m, sizeof *m);
    c->state = NULL;
}

/* ---- beginning ---- */

/* Who sits where. Hosts count from the one of rank 0, in the order of their first ranks. */
static lk_status find_hosts(lk_comm *c)
{
    mixed               *m = c->state;
    const lk__mesh      *mesh = &((lk__net *)m->groups[FLAT]->state)->mesh;
    const lk__mesh_rank *ranks = mesh->ranks;
    size_t               bytes = (size_t)c->size * sizeof(int);
    int                 *host_of = lk__alloc(c->context, LK_MEMORY_OTHER, bytes);
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
        if (i < c->rank && m->neighbours[i] >= 0) m->place++;
    }
    m->layered = m->hosts > 1 && c->size % m->hosts == 0;
    int each = c->size / m->hosts;
    m->layered = m->layered && each > 1 && (each & (each - 1)) == 0;
    for (int i = 0; i < c->size && m->layered; i++) m->layered = host_of[i] == i / each;
    lk__free(c->context, LK_MEMORY_OTHER, host_of, bytes);
    c->local_rank = m->place;
    c->local_size = m->each;
    return LK_OK;
}

static lk_status make_local(lk_comm *c)
{
    mixed          *m = c->state;
    const lk__mesh *mesh = &((lk__net *)m->groups[FLAT]->state)->mesh;
    lk_comm        *local;
    char            name[64];
    lk_status       status = lk__comm_make(c->context, c, NULL, &local);
    if (status < 0) return status;
    local->rank = local->local_rank = m->place;
    local->size = local->local_size = m->each;
    local->backend = m->each == 1 ? &lk__backend_self : &lk__backend_shm;
    snprintf(name, sizeof name, "mixed-%016llx-%d", (unsigned long long)mesh->secret, m->host);
    status = m->each == 1 ? local->backend->create(local, NULL) : lk__shm_create(local, name, mesh->token);
    if (status < 0)
        lk__comm_drop(local);
    else
        m->groups[LOCAL] = local;
    return status;
}

/* The flat group stands. */
static lk_status complete(lk_comm *c)
{
    mixed    *m = c->state;
    lk_status status = find_hosts(c);
    if (status >= 0) status = make_local(c);
    if (status >= 0 && m->layered)
        status =
            lk_comm_split_at((lk_site){"lk_comm_create", 0}, m->groups[FLAT], m->place, c->rank, &m->groups[ACROSS]);
    if (status < 0) free_state(c);
    return status;
}

static lk_status begin(lk_comm *c, lk_comm **flat)
{
    mixed    *m = lk__alloc(c->context, LK_MEMORY_OTHER, sizeof *m);
    lk_status status = m ? lk__comm_make(c->context, c, NULL, flat) : LK_ENOMEM;
    if (status < 0) {
        lk__free(c->context, LK_MEMORY_OTHER, m, sizeof *m);
        return status;
    }
    c->state = m;
    (*flat)->rank = c->rank;
    (*flat)->size = c->size;
    return LK_OK;
}

static lk_status end(lk_comm *c, lk_comm *flat, lk_status status)
{
    mixed *m = c->state;
    if (status >= 0) {
        m->groups[FLAT] = flat;
        return complete(c);
    }
    lk__comm_drop(flat);
    free_state(c);
    return status;
}

static lk_status create(lk_comm *c, const lk__place *place)
{
    lk_comm  *flat = NULL;
    lk_status status = begin(c, &flat);
    if (status < 0) return status;
    flat->backend = lk__mpi_offers(place) ? &lk__backend_mpi : &lk__backend_tcp;
    return end(c, flat, flat->backend->create(flat, place));
}

static lk_status prepare(lk_comm *parent, lk__member *mine)
{
    lk_comm *flat = ((mixed *)parent->state)->groups[FLAT];
    return flat->backend->prepare ? flat->backend->prepare(flat, mine) : LK_OK;
}

static lk_status split(lk_comm *parent, lk_comm *c, const lk__member *all, const int *ranks)
{
    lk_comm *above = ((mixed *)parent->state)->groups[FLAT], *flat = NULL;
    if (!c) return above->backend->split(above, NULL, all, NULL);
    lk_status status = begin(c, &flat);
    if (status < 0) return status;
    flat->backend = above->backend;
    return end(c, flat, above->backend->split(above, flat, all, ranks));
}

const lk__backend lk__backend_mixed = {"mixed", collective, transfer, allocate,   release, failure, raise_failure,
                                       busy,    nudge,      sent,     free_state, create,  prepare, split};
