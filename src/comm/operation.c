/* operation.c - what calls are named, and where in their buffers each rank's part lies. */
#include "comm/operation.h"

#include <stdio.h>

const char *lk__kind_name(lk__kind kind)
{
    static const char *const names[] = {
#define KIND_NAME(name, text) text,
        LK__KIND_LIST(KIND_NAME)
#undef KIND_NAME
    };
    return (unsigned)kind < LK__KIND_COUNT ? names[kind] : "?";
}

void lk__operation_describe(const lk__operation *o, uint64_t number, char *out, size_t bytes)
{
    static const char *const reductions[] = {"sum", "avg", "min", "max", "prod"};
    char                     shape[64] = "", how[64] = "", name[32] = "";
    bool                     reduces = lk__operation_reduces(o);
    bool                     rooted = o->kind == LK__REDUCE || o->kind == LK__BROADCAST || o->kind == LK__GATHER ||
                  o->kind == LK__SCATTER || o->kind == LK__GATHERV;
    bool v = o->kind == LK__ALL_GATHERV || o->kind == LK__GATHERV || o->kind == LK__ALL_TO_ALLV;
    if (o->kind == LK__ALLOC)
        snprintf(shape, sizeof shape, " of %zu bytes", o->bytes);
    else if (o->kind != LK__BARRIER && o->kind != LK__SPLIT)
        snprintf(shape, sizeof shape, v ? " %s" : " %s × %zu", lk_dtype_name(o->type), o->count);
    if (o->kind == LK__SEND || o->kind == LK__RECV)
        snprintf(how, sizeof how, " %s rank %d, tag %d", o->kind == LK__SEND ? "to" : "from", o->root, o->tag);
    else
        snprintf(how, sizeof how, "%s%s", reduces ? " " : "", reduces ? reductions[o->reduce] : "");
    if (number) snprintf(name, sizeof name, "#%llu ", (unsigned long long)number);
    size_t used = (size_t)snprintf(out, bytes, "%s%s%s%s", name, lk__kind_name(o->kind), shape, how);
    if (rooted && used < bytes) used += (size_t)snprintf(out + used, bytes - used, " root %d", o->root);
    if (used < bytes) snprintf(out + used, bytes - used, " at %s:%d", o->site.file ? o->site.file : "?", o->site.line);
}

size_t lk__operation_largest(const lk__operation *o, int ranks)
{
    size_t most = o->count;
    for (int i = 0; o->recv_counts && i < ranks; i++)
        if (o->recv_counts[i] > most) most = o->recv_counts[i];
    return most;
}

/* The end of the last of these parts. */
static size_t end_of(const size_t *counts, const size_t *displacements, int ranks)
{
    size_t end = 0;
    for (int i = 0; i < ranks; i++)
        if (counts[i] && displacements[i] + counts[i] > end) end = displacements[i] + counts[i];
    return end;
}

lk__extents lk__operation_extents(const lk__operation *o, int rank, int ranks)
{
    lk__extents e = {0, 0};
    lk__gift    gives = lk__operation_gift(o, rank);
    size_t      size = lk_dtype_size(o->type);
    if (gives == LK__PARTS)
        e.send = o->send_counts ? end_of(o->send_counts, o->send_displacements, ranks) : (size_t)ranks * o->count;
    else if (gives == LK__WHOLE)
        e.send = o->recv_counts ? o->recv_counts[rank] : o->count;
    if (lk__operation_receives(o, rank))
        e.recv = o->recv_counts             ? end_of(o->recv_counts, o->recv_displacements, ranks)
                 : lk__operation_gathers(o) ? (size_t)ranks * o->count
                                            : o->count;
    return (lk__extents){e.send * size, e.recv * size};
}

bool lk__operation_buffers_fit(const lk__operation *o, int rank, int ranks)
{
    const char *send = o->send, *recv = o->recv;
    size_t      size = lk_dtype_size(o->type);
    switch (o->kind) {
    case LK__ALL_REDUCE:
    case LK__REDUCE:
    case LK__BROADCAST:
    case LK__ALL_TO_ALL:
        if (send == recv) return true;
        break;
    case LK__ALL_TO_ALLV: break;
    case LK__REDUCE_SCATTER:
    case LK__SCATTER:
        if (send && recv == lk__operation_send_part(o, rank, rank, size)) return true;
        break;
    default:
        if (recv && send == lk__operation_recv_part(o, rank, size)) return true;
    }
    lk__extents e = lk__operation_extents(o, rank, ranks);
    return !e.send || !e.recv || send + e.send <= recv || recv + e.recv <= send;
}
