/* pipeline.c - reductions, broadcasts and gathers in rows over a network in chunks, several of them in flight at
 * once. */
#include "base/reduce.h"
#include "comm/net/collective.h"

enum { SLICE = 256 << 10 }; /* bytes of a chunk for each rank, unless the chunk would exceed LK__NET_CHUNK */

/* The slice of `rank` in [0, n): sizes differ by 1 at most, since the largest determines how much is sent. */
static void slice_of(size_t n, int rank, int ranks, size_t *begin, size_t *end)
{
    size_t each = n / (size_t)ranks, more = n % (size_t)ranks, r = (size_t)rank;
    *begin = each * r + (r < more ? r : more);
    *end = *begin + each + (r < more);
}

typedef struct pipeline {
    const lk__net_collective_run *run;
    size_t                        count; /* elements of the buffer; of a part where ranks send or receive parts */
    size_t                        n;     /* elements per chunk */
    size_t                        slice; /* bytes of the largest slice */
    size_t                        slices; /* for which a slot has room */
    size_t                        chunks;
    lk__net_transfer_state       *in[LK__NET_SLOTS], *out[LK__NET_SLOTS]; /* in flight, by chunk % LK__NET_SLOTS */
} pipeline;

static size_t chunk_count(const pipeline *p, size_t c)
{
    size_t left = p->count - c * p->n;
    return left < p->n ? left : p->n;
}

/* Ranks send or receive a chunk of each part. */
static bool moves_parts(const lk__net_collective_run *run)
{
    return lk__call_facts(run->o)->sends_parts || lk__call_facts(run->o)->receives_parts;
}

/* A reduce_scatter whose parts are in rows: what is sent is made contiguous first. */
static bool packs(const lk__net_collective_run *run)
{
    return lk__call_has_rows(run->o) && lk__call_facts(run->o)->sends_parts;
}

/* The slice of chunk c that `rank` reduces or forwards, in elements of the buffer. With parts it is the whole chunk, of
 * each part. */
static void chunk_slice(const pipeline *p, size_t c, int rank, size_t *begin, size_t *end)
{
    if (moves_parts(p->run))
        *begin = 0, *end = chunk_count(p, c);
    else
        slice_of(chunk_count(p, c), rank, p->run->ranks, begin, end);
    *begin += c * p->n;
    *end += c * p->n;
}

/* Where slices from other ranks are received in slot c % LK__NET_SLOTS; at from == ranks, where a result is that does
 * not belong into this rank's receive buffer; behind it, what this rank sends to each, where that is packed. */
static char *staging_at(const pipeline *p, size_t c, int from)
{
    return p->run->scratch->memory + ((c % LK__NET_SLOTS) * p->slices + (size_t)from) * p->slice;
}

/* What this rank sends of chunk c to `to`, and what it has of it itself. */
static const char *sent_chunk(const pipeline *p, size_t c, int to, size_t begin, size_t end)
{
    const lk__net_collective_run *run = p->run;
    if (!packs(run)) return lk__call_send_part(run->o, run->rank, to, run->size) + begin * run->size;
    char *packed = staging_at(p, c, run->ranks + 1 + to);
    lk__range_pack(run->o, (lk__comm_range){.part = to, .ranks = run->ranks, .first = begin, .count = end - begin},
                   packed);
    return packed;
}

/* Where this rank's slice of chunk c's result is. */
static char *result_at(const pipeline *p, size_t c, size_t begin)
{
    const lk__net_collective_run *run = p->run;
    return lk__call_receives(run->o, run->rank) ? (char *)run->o->recv + begin * run->size
                                                : staging_at(p, c, run->ranks);
}

/* Sends slices to the ranks that reduce or forward them. */
static lk_status begin_in(pipeline *p, size_t c)
{
    const lk__net_collective_run *run = p->run;
    lk__net_part                 *parts = run->scratch->parts;
    size_t                        own_begin, own_end;
    chunk_slice(p, c, run->rank, &own_begin, &own_end);
    lk__net_run_clear(run);
    for (int i = 0; i < run->ranks; i++) {
        size_t begin, end;
        if (i == run->rank) continue;
        chunk_slice(p, c, i, &begin, &end);
        if (lk__call_forwards(run->o)) {
            if (run->rank == run->o->root)
                parts[i].send = (const char *)run->o->send + begin * run->size,
                parts[i].send_bytes = (end - begin) * run->size;
            if (i == run->o->root)
                parts[i].recv = (char *)run->o->recv + own_begin * run->size,
                parts[i].recv_bytes = (own_end - own_begin) * run->size;
        } else {
            parts[i] = (lk__net_part){sent_chunk(p, c, i, begin, end), staging_at(p, c, i), (end - begin) * run->size,
                                      (own_end - own_begin) * run->size};
        }
    }
    return lk__net_run_begin(run, (int)(c % LK__NET_SLOTS), &p->in[c % LK__NET_SLOTS]);
}

/* Reduces this rank's slice of chunk c; of a gather, distributes the chunk to its rows. */
static void take_chunk(const pipeline *p, size_t c)
{
    const lk__net_collective_run *run = p->run;
    const lk__comm_call          *o = run->o;
    size_t                        begin, end;
    if (lk__call_forwards(o)) return;
    chunk_slice(p, c, run->rank, &begin, &end);
    for (int i = 0; i < run->ranks; i++)
        run->scratch->from[i] = i == run->rank ? sent_chunk(p, c, i, begin, end) : staging_at(p, c, i);
    for (int i = 0; i < run->ranks && !lk__call_reduces(o); i++)
        lk__range_unpack(o, (lk__comm_range){.part = i, .ranks = run->ranks, .first = begin, .count = end - begin},
                         run->scratch->from[i]);
    if (!lk__call_reduces(o)) return;
    lk__reduce(result_at(p, c, begin), run->scratch->from, run->ranks, end - begin, o->type, o->reduce);
}

/* Sends results to the ranks that receive them. */
static lk_status begin_out(pipeline *p, size_t c)
{
    const lk__net_collective_run *run = p->run;
    const lk__comm_call          *o = run->o;
    lk__net_part                 *parts = run->scratch->parts;
    size_t                        own_begin, own_end;
    if (moves_parts(run)) return LK_OK;
    chunk_slice(p, c, run->rank, &own_begin, &own_end);
    lk__net_run_clear(run);
    for (int i = 0; i < run->ranks; i++) {
        size_t begin, end;
        if (i == run->rank) continue;
        chunk_slice(p, c, i, &begin, &end);
        bool to = lk__call_receives(run->o, i), from = lk__call_receives(run->o, run->rank);
        if (lk__call_forwards(o)) to = i != o->root, from = run->rank != o->root; /* the root has them */
        if (to) parts[i].send = result_at(p, c, own_begin), parts[i].send_bytes = (own_end - own_begin) * run->size;
        if (from) parts[i].recv = (char *)o->recv + begin * run->size, parts[i].recv_bytes = (end - begin) * run->size;
    }
    return lk__net_run_begin(run, LK__NET_SLOTS + (int)(c % LK__NET_SLOTS), &p->out[c % LK__NET_SLOTS]);
}

static lk_status finish_in(pipeline *p, size_t c)
{
    return lk__net_run_finish(p->run, (int)(c % LK__NET_SLOTS), &p->in[c % LK__NET_SLOTS]);
}
static lk_status finish_out(pipeline *p, size_t c)
{
    return lk__net_run_finish(p->run, LK__NET_SLOTS + (int)(c % LK__NET_SLOTS), &p->out[c % LK__NET_SLOTS]);
}

static lk_status run_pipeline(pipeline *p)
{
    lk_status status = LK_OK;
    /* All ranks begin exchanges in one order: in 0, in 1, then alternately in c + LK__NET_LAG and out c. */
    for (size_t step = 0; step < p->chunks + LK__NET_LAG && status >= 0; step++) {
        if (step < p->chunks) status = begin_in(p, step);
        if (step < LK__NET_LAG || status < 0) continue;
        size_t c = step - LK__NET_LAG;
        status = finish_in(p, c);
        if (status >= 0) status = finish_out(p, c); /* of chunk c - LK__NET_SLOTS */
        if (status < 0) break;
        take_chunk(p, c);
        status = begin_out(p, c);
    }
    for (size_t c = p->chunks; c < p->chunks + LK__NET_SLOTS && status >= 0; c++)
        status = finish_out(p, c); /* the oldest first */
    for (int i = 0; i < LK__NET_SLOTS; i++) {
        if (p->in[i]) p->run->net->transport->finish(p->run->net, p->in[i]);
        if (p->out[i]) p->run->net->transport->finish(p->run->net, p->out[i]);
    }
    return status;
}

lk_status lk__net_pipelined(const lk__net_collective_run *run)
{
    bool   parts = moves_parts(run);
    size_t ranks = (size_t)run->ranks, slice = SLICE * ranks < LK__NET_CHUNK ? SLICE : LK__NET_CHUNK / ranks;
    slice = lk__round_up(packs(run) ? slice / 2 : slice, 64); /* of what is packed there are two copies */
    pipeline p = {.run = run, .count = run->o->count, .slice = slice, .slices = ranks + 1 + (packs(run) ? ranks : 0)};
    p.n = (parts ? slice : slice * ranks) / run->size;
    p.chunks = (p.count + p.n - 1) / p.n;
    size_t    slots = p.chunks < LK__NET_SLOTS ? p.chunks : LK__NET_SLOTS;
    lk_status status = lk__call_forwards(run->o) ? LK_OK : lk__net_run_reserve(run, slots * p.slices * slice);
    return status < 0 ? status : run_pipeline(&p);
}

lk_status lk__net_with_slices(const lk__net_collective_run *run)
{
    pipeline      p = {.run = run, .count = run->o->count, .n = run->o->count, .chunks = 1};
    size_t        begin, end;
    lk__net_part *parts = run->scratch->parts;
    lk__net_run_clear(run);
    for (int i = 0; i < run->ranks; i++) {
        if (i == run->rank) continue;
        chunk_slice(&p, 0, i, &begin, &end);
        parts[i].send = (const char *)run->o->send + begin * run->size;
        parts[i].send_bytes = (end - begin) * run->size;
    }
    lk_status status = lk__net_enter(run->net, run->o, parts);
    if (status >= 0) status = lk__net_await(run->net, -1);
    chunk_slice(&p, 0, run->rank, &begin, &end);
    for (int i = 0; i < run->ranks && status >= 0; i++) {
        if (i == run->rank)
            run->scratch->from[i] = (const char *)run->o->send + begin * run->size;
        else
            status = lk__net_run_payload(run, i, (end - begin) * run->size, &run->scratch->from[i]);
    }
    if (status < 0) return status;
    lk__reduce((char *)run->o->recv + begin * run->size, run->scratch->from, run->ranks, end - begin, run->o->type,
               run->o->reduce);
    if ((status = begin_out(&p, 0)) >= 0) status = finish_out(&p, 0);
    if (p.out[0]) run->net->transport->finish(run->net, p.out[0]);
    return status;
}
