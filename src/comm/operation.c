/* operation.c - descriptions of calls, and the position of each rank's part in their buffers. */
#include "comm/operation.h"

#include <stdio.h>
#include <string.h>

const char *lk__comm_kind_name(lk__comm_kind kind)
{
    return (unsigned)kind < LK__KIND_COUNT ? lk__collectives[kind].name : "?";
}

void lk__call_describe(const lk__comm_call *o, uint64_t number, char *out, size_t bytes)
{
    static const char *const    reductions[] = {"sum", "avg", "min", "max", "prod"};
    char                        shape[64] = "", how[64] = "", name[32] = "";
    const lk__collective_facts *facts = &lk__collectives[(unsigned)o->kind < LK__KIND_COUNT ? o->kind : LK__BARRIER];
    bool                        reduces = facts->reduces, rooted = lk__collective_is_rooted(facts), v = facts->counts;
    bool                        moves = facts->senders != LK__RANKS_NONE || facts->receivers != LK__RANKS_NONE;
    if (o->kind == LK__ALLOC)
        snprintf(shape, sizeof shape, " of %zu bytes", o->bytes);
    else if (moves && o->kind != LK__SPLIT)
        snprintf(shape, sizeof shape, v ? " %s" : " %s × %zu", lk_dtype_name(o->type), o->count);
    if (o->kind == LK__SEND || o->kind == LK__RECV)
        snprintf(how, sizeof how, " %s rank %d, tag %d", o->kind == LK__SEND ? "to" : "from", o->root, o->tag);
    else
        snprintf(how, sizeof how, "%s%s", reduces ? " " : "", reduces ? reductions[o->reduce] : "");
    if (number) snprintf(name, sizeof name, "#%llu ", (unsigned long long)number);
    size_t used = (size_t)snprintf(out, bytes, "%s%s%s%s", name, lk__comm_kind_name(o->kind), shape, how);
    if (rooted && used < bytes) used += (size_t)snprintf(out + used, bytes - used, " root %d", o->root);
    if (used < bytes) snprintf(out + used, bytes - used, " at %s:%d", o->site.file ? o->site.file : "?", o->site.line);
}

size_t lk__call_largest(const lk__comm_call *o, int ranks)
{
    size_t most = o->count;
    for (int i = 0; o->recv_counts && i < ranks; i++)
        if (o->recv_counts[i] > most) most = o->recv_counts[i];
    return most;
}

/* The end of the last part. */
static size_t end_of_parts(const size_t *counts, const size_t *displacements, int ranks)
{
    size_t end = 0;
    for (int i = 0; i < ranks; i++)
        if (counts[i] && displacements[i] + counts[i] > end) end = displacements[i] + counts[i];
    return end;
}

lk__comm_extents lk__call_extents(const lk__comm_call *o, int rank, int ranks)
{
    lk__comm_extents      e = {0, 0};
    lk__comm_send_pattern pattern = lk__call_send_pattern(o, rank);
    size_t                size = lk_dtype_size(o->type);
    if (pattern == LK__SEND_PARTS)
        e.send = o->send_counts ? end_of_parts(o->send_counts, o->send_displacements, ranks) : (size_t)ranks * o->count;
    else if (pattern == LK__SEND_ALL)
        e.send = o->recv_counts ? o->recv_counts[rank] : o->count;
    if (lk__call_receives(o, rank))
        e.recv = o->recv_counts        ? end_of_parts(o->recv_counts, o->recv_displacements, ranks)
                 : lk__call_gathers(o) ? (size_t)ranks * o->count
                                       : o->count;
    return (lk__comm_extents){e.send * size, e.recv * size};
}

static void advance_range(lk__comm_range *r, size_t count)
{
    r->first += count;
    r->count -= count;
}

void lk__range_pack(const lk__comm_call *o, lk__comm_range r, void *packed)
{
    size_t size = lk_dtype_size(o->type);
    for (char *to = packed; r.count;) {
        size_t n = lk__range_contiguous(o, &r);
        memcpy(to, (const char *)o->send + lk__range_at(o, &r) * size, n * size);
        to += n * size;
        advance_range(&r, n);
    }
}

void lk__range_unpack(const lk__comm_call *o, lk__comm_range r, const void *packed)
{
    size_t size = lk_dtype_size(o->type);
    for (const char *from = packed; r.count;) {
        size_t n = lk__range_contiguous(o, &r);
        memcpy((char *)o->recv + lk__range_at(o, &r) * size, from, n * size);
        from += n * size;
        advance_range(&r, n);
    }
}

bool lk__call_buffers_fit(const lk__comm_call *o, int rank, int ranks)
{
    const char *send = o->send, *recv = o->recv;
    size_t      size = lk_dtype_size(o->type);
    switch (lk__call_has_rows(o) ? LK__PLACE_APART : lk__call_facts(o)->in_place) {
    case LK__PLACE_APART: break;
    case LK__PLACE_SAME:
        if (send == recv) return true;
        break;
    case LK__PLACE_IN_SEND:
        if (send && recv == lk__call_send_part(o, rank, rank, size)) return true;
        break;
    case LK__PLACE_IN_RECV:
        if (recv && send == lk__call_recv_part(o, rank, size)) return true;
    }
    lk__comm_extents e = lk__call_extents(o, rank, ranks);
    return !e.send || !e.recv || send + e.send <= recv || recv + e.recv <= send;
}
