/* queue.c - translates queued calls for the kernels that execute them (device/peers.h): which part goes where, and
 * where the buffers of all ranks are. */
#include "comm/p2p/p2p.h"

#include <stdio.h>
#include <string.h>

/* ---- what is said about a call ---- */

static bool is_same_call(const lk__p2p_record *r, const lk__comm_call *o)
{
    const lk__comm_call *n = &r->call;
    return r->used && n->kind == o->kind && n->count == o->count && n->type == o->type && n->reduce == o->reduce &&
           n->root == o->root && n->tag == o->tag && n->site.line == o->site.line &&
           strcmp(r->file, lk__file_tail(o->site.file)) == 0;
}

/* The number of its record. Equal calls have one; where there is no room, a new one takes the place of an older. */
static uint32_t record_call(lk__p2p *p, const lk__comm_call *o)
{
    enum { PROBES = 8 };
    uint64_t hash =
        (o->count * 31 + (uint64_t)o->kind) * 0x9E3779B97F4A7C15u + (uint64_t)o->site.line * 0xBF58476D1CE4E5B9u;
    uint32_t first = (uint32_t)(hash >> 40), at = first % LK__P2P_RECORDS;
    pthread_mutex_lock(&p->lock);
    for (uint32_t i = 0; i < PROBES; i++) {
        at = (first + i) % LK__P2P_RECORDS;
        if (!p->records[at].used || is_same_call(&p->records[at], o)) break;
    }
    lk__p2p_record *r = &p->records[at];
    if (!is_same_call(r, o)) {
        *r = (lk__p2p_record){.call = {.kind = o->kind,
                                       .type = o->type,
                                       .reduce = o->reduce,
                                       .root = o->root,
                                       .tag = o->tag,
                                       .count = o->count,
                                       .site = o->site},
                              .used = true};
        snprintf(r->file, sizeof r->file, "%s", lk__file_tail(o->site.file));
        r->call.site.file = r->file;
    }
    pthread_mutex_unlock(&p->lock);
    return at;
}

/* ---- parts ---- */

static int64_t elements_between(const void *from, const void *to, size_t size)
{
    return from && to ? ((const char *)to - (const char *)from) / (int64_t)size : 0;
}

static void set_parts(lk__peers_call *out, const lk__comm_call *o)
{
    size_t size = lk_dtype_size(o->type);
    int    rank = out->rank;
    for (int i = 0; i < out->ranks; i++) {
        bool sends = lk__call_send_pattern(o, rank) != LK__SEND_NONE && lk__call_receives(o, i);
        bool gets = lk__call_receives(o, rank) && lk__call_send_pattern(o, i) != LK__SEND_NONE;
        if (sends) {
            out->out_count[i] = (int64_t)lk__call_count(o, rank, rank, i);
            out->out_at[i] = elements_between(o->send, lk__call_send_part(o, rank, i, size), size);
        }
        if (gets) {
            out->in_count[i] = (int64_t)lk__call_count(o, rank, i, rank);
            out->in_at[i] = out->row ? 0 : elements_between(o->recv, lk__call_recv_part(o, i, size), size);
            out->peer_at[i] = lk__call_facts(o)->sends_parts ? (int64_t)((size_t)rank * o->count) : 0;
        }
    }
    out->same = !lk__call_facts(o)->sends_parts;
    out->count = lk__call_largest(o, out->ranks);
}

/* A send or receive: a copy between two ranks. */
static void set_transfer(lk__peers_call *out, const lk__comm_call *o)
{
    out->form = LK__PEERS_COPY;
    out->with = 1u << out->rank | 1u << o->root;
    out->same = true;
    if (o->kind == LK__SEND) out->out_count[o->root] = (int64_t)o->count;
    if (o->kind == LK__RECV) out->in_count[o->root] = (int64_t)o->count;
}

static lk_status set_form(lk__peers_call *out, const lk__comm_call *o, lk_context *context)
{
    switch (o->kind) {
    case LK__BARRIER: out->form = LK__PEERS_BARRIER; return LK_OK;
    case LK__ALL_REDUCE:
    case LK__REDUCE:
        out->form = LK__PEERS_REDUCE;
        out->receives = lk__call_receives(o, out->rank);
        return LK_OK;
    case LK__REDUCE_SCATTER: out->form = LK__PEERS_REDUCE_PARTS; return LK_OK;
    case LK__SEND:
    case LK__RECV: set_transfer(out, o); return LK_OK;
    case LK__BROADCAST:
    case LK__ALL_GATHER:
    case LK__GATHER:
    case LK__SCATTER:
    case LK__ALL_TO_ALL:
    case LK__ALL_GATHERV:
    case LK__GATHERV:
        out->form = LK__PEERS_COPY;
        set_parts(out, o);
        return LK_OK;
    default:
        return lk__fail(context, LK_EUNSUPPORTED,
                        "%s:%d: %s cannot be queued on a GPU: the ranks do not know each other's counts", o->site.file,
                        o->site.line, lk__comm_kind_name(o->kind));
    }
}

/* ---- where the buffers of all ranks are ---- */

/* Those of calls in which every rank sends and receives, and none overwrites what others have yet to read. The buffers
 * of all ranks are in the same place of symmetric memory (comm/queue.h), so all come to the same result. */
static void find_buffers(const lk__p2p *p, lk__peers_call *out, const lk__comm_call *o)
{
    lk__comm_extents e = lk__call_extents(o, out->rank, out->ranks);
    size_t           size = lk_dtype_size(o->type);
    char            *send[LK__PEERS_MOST], *recv[LK__PEERS_MOST];
    bool gathers = o->kind == LK__ALL_GATHER, in_place = gathers && o->send == lk__call_recv_part(o, out->rank, size);
    if (o->kind == LK__ALL_TO_ALL ? o->send == o->recv
                                  : !gathers && o->kind != LK__ALL_REDUCE && o->kind != LK__REDUCE_SCATTER)
        return;
    if (!lk__p2p_locate(p, o->recv, e.recv, recv) || !lk__p2p_locate(p, o->send, e.send, send)) return;
    for (int i = 0; i < out->ranks; i++) {
        out->peer_send[i] = in_place ? recv[i] + (size_t)i * o->count * size : send[i];
        out->peer_recv[i] = o->kind == LK__ALL_REDUCE ? recv[i] : NULL;
    }
    out->symmetric = true;
}

lk_status lk__p2p_enqueue(lk_comm *c, const lk__comm_call *o, const lk__comm_stream *on)
{
    lk__p2p       *p = c->p2p;
    lk__peers_call call = {.type = o->type,
                           .reduce = o->reduce,
                           .with = (1u << c->size) - 1,
                           .group = p->group,
                           .halted = on->halted,
                           .rank = c->rank,
                           .ranks = c->size,
                           .count = o->count,
                           .row = lk__call_has_rows(o) ? lk__call_row(o) : 0,
                           .send = o->send,
                           .recv = o->recv};
    lk_status      status = set_form(&call, o, c->context);
    if (status >= 0) status = lk__p2p_watch(p);
    if (status < 0) return status;
    find_buffers(p, &call, o);
    call.id = record_call(p, o);
    return p->peers->enqueue(on->device, on->stream, &call);
}
