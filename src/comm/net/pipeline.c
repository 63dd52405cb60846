/* net_pipeline.c - reductions and broadcasts over a network in chunks, several of them under way at once. */
#include "comm/net/collective.h"
#include "comm/reduce.h"

#include <string.h>

enum { SLICE = 256 << 10 }; /* bytes of a chunk for each rank, as long as the whole is no larger than LK__NET_CHUNK */

/* The share of `rank` in [0, n): as even as can be, since the largest decides how much is sent. */
static void slice_of(size_t n, int rank, int ranks, size_t *begin, size_t *end)
{
    size_t each = n / (size_t)ranks, more = n % (size_t)ranks, r = (size_t)rank;
    *begin = each * r + (r < more ? r : more);
    *end = *begin + each + (r < more);
}

typedef struct pipeline {
    const lk__net_collective_run *j;
    size_t                        count; /* elements to work through: of the buffer, or of a part for
                   reduce_scatter */
    size_t                        n;     /* elements a chunk */
    size_t                        slice; /* bytes of the largest slice */
    size_t                        chunks;
    lk__net_transfer_state       *in[LK__NET_SLOTS], *out[LK__NET_SLOTS]; /* under way, by chunk % LK__NET_SLOTS */
} pipeline;

static size_t chunk_count(const pipeline *p, size_t c)
{
    size_t left = p->count - c * p->n;
    return left < p->n ? left : p->n;
}

/* The slice of chunk c that `rank` reduces or hands on, in elements of the buffer. Of reduce_scatter it is the chunk
 * itself, of each part. */
static void chunk_slice(const pipeline *p, size_t c, int rank, size_t *begin, size_t *end)
{
    if (p->j->o->kind == LK__REDUCE_SCATTER)
        *begin = 0, *end = chunk_count(p, c);
    else
        slice_of(chunk_count(p, c), rank, p->j->ranks, begin, end);
    *begin += c * p->n;
    *end += c * p->n;
}

/* Where slices of others for this rank wait in slot c % LK__NET_SLOTS, and where a result does that has no other
 * place. */
static char *staged(const pipeline *p, size_t c, int from)
{
    return p->j->room->memory + ((c % LK__NET_SLOTS) * (size_t)(p->j->ranks + 1) + (size_t)from) * p->slice;
}

/* Where this rank's part of what chunk c gives lies, or goes to. */
static char *result_at(const pipeline *p, size_t c, size_t begin)
{
    const lk__net_collective_run *j = p->j;
    return lk__call_receives(j->o, j->rank) ? (char *)j->o->recv + begin * j->size : staged(p, c, j->ranks);
}

/* Slices go to those who work on them. */
static lk_status begin_in(pipeline *p, size_t c)
{
    const lk__net_collective_run *j = p->j;
    lk__net_part                 *parts = j->room->parts;
    size_t                        own_begin, own_end;
    chunk_slice(p, c, j->rank, &own_begin, &own_end);
    lk__net_run_clear(j);
    for (int i = 0; i < j->ranks; i++) {
        size_t begin, end;
        if (i == j->rank) continue;
        chunk_slice(p, c, i, &begin, &end);
        if (j->o->kind == LK__BROADCAST) {
            if (j->rank == j->o->root)
                parts[i].send = (const char *)j->o->send + begin * j->size,
                parts[i].send_bytes = (end - begin) * j->size;
            if (i == j->o->root)
                parts[i].recv = (char *)j->o->recv + own_begin * j->size,
                parts[i].recv_bytes = (own_end - own_begin) * j->size;
        } else {
            parts[i] = (lk__net_part){lk__call_send_part(j->o, j->rank, i, j->size) + begin * j->size, staged(p, c, i),
                                      (end - begin) * j->size, (own_end - own_begin) * j->size};
        }
    }
    return lk__net_run_begin(j, (int)(c % LK__NET_SLOTS), &p->in[c % LK__NET_SLOTS]);
}

static void reduce_own(const pipeline *p, size_t c)
{
    const lk__net_collective_run *j = p->j;
    const lk__comm_call          *o = j->o;
    size_t                        begin, end;
    if (!lk__call_reduces(o)) return;
    chunk_slice(p, c, j->rank, &begin, &end);
    for (int i = 0; i < j->ranks; i++)
        j->room->from[i] =
            i == j->rank ? lk__call_send_part(j->o, j->rank, i, j->size) + begin * j->size : staged(p, c, i);
    lk__reduce(result_at(p, c, begin), j->room->from, j->ranks, end - begin, o->type, o->reduce);
}

/* Results go to those who want them. */
static lk_status begin_out(pipeline *p, size_t c)
{
    const lk__net_collective_run *j = p->j;
    const lk__comm_call          *o = j->o;
    lk__net_part                 *parts = j->room->parts;
    size_t                        own_begin, own_end;
    if (o->kind == LK__REDUCE_SCATTER) return LK_OK;
    chunk_slice(p, c, j->rank, &own_begin, &own_end);
    lk__net_run_clear(j);
    for (int i = 0; i < j->ranks; i++) {
        size_t begin, end;
        if (i == j->rank) continue;
        chunk_slice(p, c, i, &begin, &end);
        bool to = lk__call_receives(j->o, i), from = lk__call_receives(j->o, j->rank);
        if (o->kind == LK__BROADCAST) to = i != o->root, from = j->rank != o->root; /* it has them */
        if (to) parts[i].send = result_at(p, c, own_begin), parts[i].send_bytes = (own_end - own_begin) * j->size;
        if (from) parts[i].recv = (char *)o->recv + begin * j->size, parts[i].recv_bytes = (end - begin) * j->size;
    }
    return lk__net_run_begin(j, LK__NET_SLOTS + (int)(c % LK__NET_SLOTS), &p->out[c % LK__NET_SLOTS]);
}

static lk_status land_in(pipeline *p, size_t c)
{
    return lk__net_run_finish(p->j, (int)(c % LK__NET_SLOTS), &p->in[c % LK__NET_SLOTS]);
}
static lk_status land_out(pipeline *p, size_t c)
{
    return lk__net_run_finish(p->j, LK__NET_SLOTS + (int)(c % LK__NET_SLOTS), &p->out[c % LK__NET_SLOTS]);
}

static lk_status run_pipeline(pipeline *p)
{
    lk_status status = LK_OK;
    /* All ranks begin in one order: in 0, in 1, then in c + LK__NET_LAG and out c by turns. */
    for (size_t step = 0; step < p->chunks + LK__NET_LAG && status >= 0; step++) {
        if (step < p->chunks) status = begin_in(p, step);
        if (step < LK__NET_LAG || status < 0) continue;
        size_t c = step - LK__NET_LAG;
        status = land_in(p, c);
        if (status >= 0) status = land_out(p, c); /* of chunk c - LK__NET_SLOTS */
        if (status < 0) break;
        reduce_own(p, c);
        status = begin_out(p, c);
    }
    for (size_t c = p->chunks; c < p->chunks + LK__NET_SLOTS && status >= 0; c++)
        status = land_out(p, c); /* the oldest first */
    for (int i = 0; i < LK__NET_SLOTS; i++) {
        if (p->in[i]) p->j->net->transport->finish(p->j->net, p->in[i]);
        if (p->out[i]) p->j->net->transport->finish(p->j->net, p->out[i]);
    }
    return status;
}

lk_status lk__net_pipelined(const lk__net_collective_run *j)
{
    bool   scatters = j->o->kind == LK__REDUCE_SCATTER;
    size_t ranks = (size_t)j->ranks, slice = SLICE * ranks < LK__NET_CHUNK ? SLICE : LK__NET_CHUNK / ranks;
    slice = lk__round_up(slice, 64);
    pipeline p = {.j = j, .count = j->o->count, .slice = slice};
    p.n = (scatters ? slice : slice * ranks) / j->size;
    p.chunks = (p.count + p.n - 1) / p.n;
    size_t    slots = p.chunks < LK__NET_SLOTS ? p.chunks : LK__NET_SLOTS;
    lk_status status = lk__call_reduces(j->o) ? lk__net_run_reserve(j, slots * (ranks + 1) * slice) : LK_OK;
    return status < 0 ? status : run_pipeline(&p);
}

lk_status lk__net_with_slices(const lk__net_collective_run *j)
{
    pipeline      p = {.j = j, .count = j->o->count, .n = j->o->count, .chunks = 1};
    size_t        begin, end;
    lk__net_part *parts = j->room->parts;
    lk__net_run_clear(j);
    for (int i = 0; i < j->ranks; i++) {
        if (i == j->rank) continue;
        chunk_slice(&p, 0, i, &begin, &end);
        parts[i].send = (const char *)j->o->send + begin * j->size;
        parts[i].send_bytes = (end - begin) * j->size;
    }
    lk_status status = lk__net_enter(j->net, j->o, parts);
    if (status >= 0) status = lk__net_await(j->net, -1);
    chunk_slice(&p, 0, j->rank, &begin, &end);
    for (int i = 0; i < j->ranks && status >= 0; i++) {
        if (i == j->rank)
            j->room->from[i] = (const char *)j->o->send + begin * j->size;
        else
            status = lk__net_run_payload(j, i, (end - begin) * j->size, &j->room->from[i]);
    }
    if (status < 0) return status;
    lk__reduce((char *)j->o->recv + begin * j->size, j->room->from, j->ranks, end - begin, j->o->type, j->o->reduce);
    if ((status = begin_out(&p, 0)) >= 0) status = land_out(&p, 0);
    if (p.out[0]) j->net->transport->finish(j->net, p.out[0]);
    return status;
}
