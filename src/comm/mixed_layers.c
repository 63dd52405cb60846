/* mixed_layers.c - large collectives in three steps: within each host, each rank's slice across the hosts, and within
 * each host again. Partial results are wide enough that the bits are those of the flat order. */
#include "base/reduce.h"
#include "comm/mixed.h"

#include <string.h>

enum {
    LAYERED_LEAST = 32 << 10, /* bytes; below, one exchange among all ranks is faster than three */
    SCRATCH = 8 << 20,        /* bytes of partial results at once, where they have to be copied */
};

lk_status lk__mixed_run(const lk__comm_mixed *m, int group, const lk__comm_call *o)
{
    return m->groups[group]->backend->collective(m->groups[group], o);
}

static lk_status grow_scratch(lk_comm *c, size_t bytes)
{
    lk__comm_mixed *m = c->state;
    if (m->scratch_bytes >= bytes) return LK_OK;
    lk__free(c->context, LK_MEMORY_OTHER, m->scratch, m->scratch_bytes);
    m->scratch = lk__alloc(c->context, LK_MEMORY_OTHER, bytes);
    m->scratch_bytes = m->scratch ? bytes : 0;
    return m->scratch ? LK_OK : LK_ENOMEM;
}

/* Reduces this rank's slice, `count` elements, of what each of this host's ranks has at `send`, then across the hosts;
 * may be in place. root: the host that gets the result; -1: all do. */
static lk_status reduce_slices(lk__comm_mixed *m, const lk__comm_call *o, const void *send, char *slice, size_t count,
                               lk_dtype type, int root)
{
    lk__comm_call inside = {.kind = LK__REDUCE_SCATTER,
                            .type = type,
                            .reduce = lk__reduce_step(o->reduce),
                            .count = count,
                            .send = send,
                            .recv = slice,
                            .site = o->site};
    lk_status     status = lk__mixed_run(m, LK__LOCAL, &inside);
    if (status < 0) return status;
    inside.kind = root < 0 ? LK__ALL_REDUCE : LK__REDUCE;
    inside.root = root < 0 ? 0 : root;
    inside.send = slice;
    return lk__mixed_run(m, LK__ACROSS, &inside);
}

/* Gathers this host's slices at data, contiguous: on all of its ranks, or on local rank `root`. */
static lk_status gather_slices(lk__comm_mixed *m, const lk__comm_call *o, char *data, size_t count, lk_dtype type,
                               int root)
{
    lk__comm_call inside = {.kind = root < 0 ? LK__ALL_GATHER : LK__GATHER,
                            .type = type,
                            .root = root < 0 ? 0 : root,
                            .count = count,
                            .send = data + (size_t)m->local_rank * count * lk_dtype_size(type),
                            .recv = data,
                            .site = o->site};
    return lk__mixed_run(m, LK__LOCAL, &inside);
}

/* all_reduce and reduce: `count` elements from send to recv, through the scratch, in slices padded with zeros. */
static lk_status reduce_copied(lk_comm *c, const lk__comm_call *o, size_t first, size_t count)
{
    lk__comm_mixed *m = c->state;
    lk_dtype        wide = lk__reduce_partial(o->type, o->reduce);
    bool            rooted = o->kind == LK__REDUCE, gets = !rooted || c->rank == o->root;
    int             host = rooted ? o->root / m->each : -1, local_root = rooted ? o->root % m->each : -1;
    size_t          slice = (count + (size_t)m->each - 1) / (size_t)m->each, all = slice * (size_t)m->each;
    size_t          size = lk_dtype_size(o->type), wide_size = lk_dtype_size(wide);
    char           *partial = m->scratch, *result = partial + lk__round_up(all * wide_size, 64);
    size_t          own = (size_t)m->local_rank * slice;
    lk__reduce_widen(partial, (const char *)o->send + first * size, count, o->type, wide);
    memset(partial + count * wide_size, 0, (all - count) * wide_size);
    lk_status status = reduce_slices(m, o, partial, partial + own * wide_size, slice, wide, host);
    if (status < 0 || (rooted && m->host != host)) return status;
    lk__reduce_finish(result + own * size, partial + own * wide_size, c->size, slice, o->type, o->reduce);
    status = gather_slices(m, o, result, slice, o->type, local_root);
    if (status >= 0 && gets) memcpy((char *)o->recv + first * size, result, count * size);
    return status;
}

static lk_status layered_reduce(lk_comm *c, const lk__comm_call *o)
{
    lk__comm_mixed *m = c->state;
    lk_dtype        wide = lk__reduce_partial(o->type, o->reduce);
    size_t          size = lk_dtype_size(o->type), slice = o->count / (size_t)m->each;
    if (o->kind == LK__ALL_REDUCE && wide == o->type && o->count % (size_t)m->each == 0) {
        char     *own = (char *)o->recv + (size_t)m->local_rank * slice * size;
        lk_status status = reduce_slices(m, o, o->send, own, slice, o->type, -1);
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

/* reduce_scatter_host of elements first … first + n - 1 of every part, through the scratch. */
static lk_status scatter_copied(lk_comm *c, const lk__comm_call *o, size_t first, size_t n)
{
    lk__comm_mixed *m = c->state;
    lk_dtype        wide = lk__reduce_partial(o->type, o->reduce);
    size_t          size = lk_dtype_size(o->type), wide_size = lk_dtype_size(wide);
    char           *own = m->scratch + (size_t)m->local_rank * n * wide_size;
    for (size_t i = 0; i < (size_t)m->each; i++)
        lk__reduce_widen(m->scratch + i * n * wide_size, (const char *)o->send + (i * o->count + first) * size, n,
                         o->type, wide);
    lk_status status = reduce_slices(m, o, m->scratch, own, n, wide, -1);
    if (status >= 0) lk__reduce_finish((char *)o->recv + first * size, own, c->size, n, o->type, o->reduce);
    return status;
}

static lk_status layered_scatter(lk_comm *c, const lk__comm_call *o)
{
    lk__comm_mixed *m = c->state;
    lk_dtype        wide = lk__reduce_partial(o->type, o->reduce);
    lk_status       status;
    if (wide == o->type) {
        status = reduce_slices(m, o, o->send, o->recv, o->count, o->type, -1);
        if (status >= 0) lk__reduce_finish(o->recv, o->recv, c->size, o->count, o->type, o->reduce);
        return status;
    }
    size_t part = (size_t)m->each * lk_dtype_size(wide), most = SCRATCH / part, n = o->count < most ? o->count : most;
    status = grow_scratch(c, n * part);
    for (size_t first = 0; first < o->count && status >= 0; first += n)
        status = scatter_copied(c, o, first, o->count - first < n ? o->count - first : n);
    return status;
}

/* reduce_scatter of elements first … first + n - 1 of every part: for each host the parts of its ranks are summed
 * within this one, of which this rank gets the one for its index there; then across the hosts. */
static lk_status scatter_parts(lk_comm *c, const lk__comm_call *o, size_t first, size_t n)
{
    lk__comm_mixed *m = c->state;
    lk_dtype        wide = lk__reduce_partial(o->type, o->reduce);
    size_t          size = lk_dtype_size(o->type), bytes = n * lk_dtype_size(wide);
    char           *sums = m->scratch, *staged = sums + (size_t)m->hosts * bytes;
    lk_status       status = LK_OK;
    lk__comm_call   inside = {
          .kind = LK__REDUCE_SCATTER, .type = wide, .reduce = lk__reduce_step(o->reduce), .count = n, .site = o->site};
    for (int h = 0; h < m->hosts && status >= 0; h++) {
        for (size_t i = 0; i < (size_t)m->each; i++) {
            size_t part = (size_t)h * (size_t)m->each + i;
            lk__reduce_widen(staged + i * bytes, (const char *)o->send + (part * o->count + first) * size, n, o->type,
                             wide);
        }
        inside.send = staged;
        inside.recv = sums + (size_t)h * bytes;
        status = lk__mixed_run(m, LK__LOCAL, &inside);
    }
    inside.send = sums;
    inside.recv = sums + (size_t)m->host * bytes;
    if (status >= 0) status = lk__mixed_run(m, LK__ACROSS, &inside);
    if (status >= 0) lk__reduce_finish((char *)o->recv + first * size, inside.recv, c->size, n, o->type, o->reduce);
    return status;
}

static lk_status layered_scatter_parts(lk_comm *c, const lk__comm_call *o)
{
    lk__comm_mixed *m = c->state;
    size_t          each = (size_t)(m->each + m->hosts) * lk_dtype_size(lk__reduce_partial(o->type, o->reduce));
    size_t          most = SCRATCH / each, n = o->count < most ? o->count : most;
    lk_status       status = grow_scratch(c, n * each);
    for (size_t first = 0; first < o->count && status >= 0; first += n)
        status = scatter_parts(c, o, first, o->count - first < n ? o->count - first : n);
    return status;
}

/* First within the root's host; then each of its ranks sends its slice to the other hosts; there they are gathered. */
static lk_status layered_broadcast(lk_comm *c, const lk__comm_call *o)
{
    lk__comm_mixed *m = c->state;
    size_t size = lk_dtype_size(o->type), slice = o->count / (size_t)m->each, rest = o->count % (size_t)m->each;
    int    host = o->root / m->each;
    char  *own = (char *)o->recv + (size_t)m->local_rank * slice * size,
         *tail = (char *)o->recv + (o->count - rest) * size;
    lk__comm_call inside = *o;
    lk_status     status = LK_OK;
    inside.root = o->root % m->each;
    if (m->host == host) status = lk__mixed_run(m, LK__LOCAL, &inside);
    inside.root = host;
    inside.count = slice;
    inside.send = inside.recv = own;
    if (status >= 0) status = lk__mixed_run(m, LK__ACROSS, &inside);
    inside.count = rest;
    inside.send = inside.recv = tail;
    if (status >= 0 && rest) status = lk__mixed_run(m, LK__ACROSS, &inside);
    return status < 0 || m->host == host ? status : gather_slices(m, o, o->recv, slice, o->type, -1);
}

/* The parts of this local rank, of all hosts, to their places in recv. */
static lk_status gather_across(lk_comm *c, const lk__comm_call *o, const void *own)
{
    lk__comm_mixed *m = c->state;
    for (int h = 0; h < m->hosts; h++) {
        m->counts[h] = o->count;
        m->displacements[h] = (size_t)(h * m->each + m->local_rank) * o->count;
    }
    lk__comm_call inside = {.kind = LK__ALL_GATHERV,
                            .type = o->type,
                            .send = own,
                            .recv = o->recv,
                            .recv_counts = m->counts,
                            .recv_displacements = m->displacements,
                            .site = o->site};
    return lk__mixed_run(m, LK__ACROSS, &inside);
}

/* Each rank gathers the parts of its local rank across the hosts; then they are gathered within each host. */
static lk_status layered_gather(lk_comm *c, const lk__comm_call *o)
{
    lk__comm_mixed *m = c->state;
    size_t          bytes = o->count * lk_dtype_size(o->type), block = bytes * (size_t)m->each;
    char           *recv = o->recv, *own = recv + (size_t)c->rank * bytes;
    if (o->send != own) memmove(own, o->send, bytes);
    lk_status status = gather_across(c, o, own);
    for (int h = 0; h < m->hosts && status >= 0; h++)
        status = gather_slices(m, o, recv + (size_t)h * block, o->count, o->type, -1);
    return status;
}

/* The same into memory that all ranks of a host have in common. All of them have entered the call, so none reads what
 * was there. */
static lk_status gather_once(lk_comm *c, const lk__comm_call *o)
{
    lk__comm_call barrier = {.kind = LK__BARRIER, .type = LK_U8, .site = o->site};
    lk_status     status = gather_across(c, o, o->send);
    return status < 0 ? status : lk__mixed_run(c->state, LK__LOCAL, &barrier);
}

/* What is only moved has no order that hosts would have to be subtrees of. */
bool lk__mixed_fits_layers(const lk__comm_mixed *m, const lk__comm_call *o)
{
    if (o->kind == LK__REDUCE_SCATTER_HOST || o->kind == LK__ALL_GATHER_HOST) return true; /* hosts.c has checked it */
    bool moves = o->kind == LK__BROADCAST || o->kind == LK__ALL_GATHER;
    bool reduces = o->kind == LK__ALL_REDUCE || o->kind == LK__REDUCE || o->kind == LK__REDUCE_SCATTER;
    return ((moves && m->regular) || (reduces && m->layered)) && !lk__call_has_rows(o) &&
           o->count * lk_dtype_size(o->type) >= LAYERED_LEAST;
}

lk_status lk__mixed_layered(lk_comm *c, const lk__comm_call *o)
{
    if (o->kind == LK__BROADCAST) return layered_broadcast(c, o);
    if (o->kind == LK__REDUCE_SCATTER_HOST) return layered_scatter(c, o);
    if (o->kind == LK__ALL_GATHER_HOST) return gather_once(c, o);
    if (o->kind == LK__REDUCE_SCATTER) return layered_scatter_parts(c, o);
    return o->kind == LK__ALL_GATHER ? layered_gather(c, o) : layered_reduce(c, o);
}
