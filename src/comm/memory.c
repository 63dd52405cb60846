/* memory.c - whether the ranks of every host can allocate what each of them needs. Every rank tells the others its
 * bytes and what limits its memory, so all of them get the same result, before any of them has allocated: a rank that
 * checked later would find less memory available. */
#include "base/memory_check.h"
#include "comm/comm.h"

#include <stdio.h>

typedef struct demand {
    int64_t           bytes;
    lk__memory_limits limits;
} demand;

static bool holds_for(const lk__memory_limits *limits, uint64_t id)
{
    for (int i = 0; i < limits->count; i++)
        if (limits->all[i].id == id) return true;
    return false;
}

/* The sum of all ranks that the limit holds for. */
static int64_t sum_demands(const demand *all, int size, uint64_t id, int *ranks)
{
    int64_t sum = 0;
    *ranks = 0;
    for (int i = 0; i < size; i++) {
        if (!holds_for(&all[i].limits, id)) continue;
        sum = sum > INT64_MAX - all[i].bytes ? INT64_MAX : sum + all[i].bytes;
        (*ranks)++;
    }
    return sum;
}

/* The first limit that is exceeded, in the order of ranks. */
static lk_status compare_demands(lk_comm *c, const demand *all)
{
    for (int rank = 0; rank < c->size; rank++)
        for (int i = 0; i < all[rank].limits.count; i++) {
            const lk__memory_limit *limit = &all[rank].limits.all[i];
            int                     ranks;
            char                    who[96];
            int64_t                 sum = sum_demands(all, c->size, limit->id, &ranks);
            if (sum <= limit->available) continue;
            snprintf(who, sizeof who, ranks == c->size ? "the %d ranks" : "%d of the %d ranks, on the host of rank %d,",
                     ranks, c->size, rank);
            if (limit->process) snprintf(who, sizeof who, "rank %d", rank);
            return lk__memory_refuse(c->context, who, sum, limit);
        }
    return LK_OK;
}

lk_status lk_comm_check_memory_at(lk_site site, lk_comm *c, size_t bytes)
{
    demand  own = {.bytes = bytes < INT64_MAX ? (int64_t)bytes : INT64_MAX};
    size_t  room = (size_t)c->size * sizeof own;
    demand *all = lk__alloc(c->context, LK_MEMORY_OTHER, room);
    if (!all) return LK_ENOMEM;
    lk__context_limits(c->context, &own.limits);
    lk_status status = lk_comm_all_gather_at(site, c, &own, all, sizeof own, LK_U8, NULL);
    if (status >= 0) status = c->size > 1 ? compare_demands(c, all) : lk_context_check_memory(c->context, NULL, bytes);
    lk__free(c->context, LK_MEMORY_OTHER, all, room);
    return status;
}
