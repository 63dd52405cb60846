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

lk__gift lk__operation_gift(const lk__operation *o, int rank)
{
    switch (o->kind) {
    case LK__BARRIER: return LK__NOTHING;
    case LK__BROADCAST: return rank == o->root ? LK__WHOLE : LK__NOTHING;
    case LK__SCATTER: return rank == o->root ? LK__PARTS : LK__NOTHING;
    case LK__REDUCE_SCATTER:
    case LK__ALL_TO_ALL:
    case LK__ALL_TO_ALLV: return LK__PARTS;
    default: return LK__WHOLE;
    }
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

const char *lk__operation_send_part(const lk__operation *o, int rank, int to)
{
    size_t at = lk__operation_gift(o, rank) != LK__PARTS ? 0
                : o->send_displacements                  ? o->send_displacements[to]
                                                         : (size_t)to * o->count;
    return o->send ? (const char *)o->send + at * lk_dtype_size(o->type) : NULL;
}

char *lk__operation_recv_part(const lk__operation *o, int from)
{
    bool gathers = o->kind == LK__ALL_GATHER || o->kind == LK__GATHER || o->kind == LK__ALL_TO_ALL ||
                   o->kind == LK__SPLIT || o->kind == LK__ALLOC;
    size_t at = o->recv_displacements ? o->recv_displacements[from] : gathers ? (size_t)from * o->count : 0;
    return o->recv ? (char *)o->recv + at * lk_dtype_size(o->type) : NULL;
}
