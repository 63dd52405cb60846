/* store_hosts.c - a store of which every host has a copy, or every memory node: what rank 0 has loaded is sent to the
 * others. Between hosts it is sent in chunks, through a private buffer of each rank: all ranks receive it, and one rank
 * of each host writes to the shared memory. */
#include "run/store.h"

#include "comm/hosts.h"

#include <string.h>

enum { CHUNK = 1 << 20 };

static lk_status send_region(lk_store *s, char *memory, size_t bytes, char *chunk)
{
    bool      first = lk_comm_rank(s->comm) == 0, writes = !first && s->sharer == 0;
    lk_status status = LK_OK;
    for (size_t at = 0; at < bytes && status >= 0; at += CHUNK) {
        size_t part = bytes - at < CHUNK ? bytes - at : CHUNK;
        if (first) memcpy(chunk, memory + at, part);
        status = lk_comm_broadcast(s->comm, chunk, part, LK_U8, 0, NULL);
        if (status >= 0 && writes) memcpy(memory + at, chunk, part);
    }
    return status;
}

static lk_status send_all(lk_store *s)
{
    const size_t *bytes = s->plan->memory;
    char         *chunk = lk__alloc(s->context, LK_MEMORY_OTHER, CHUNK);
    if (!chunk) return LK_ENOMEM;
    lk_status status = LK_OK;
    for (int i = 0; i < LK__STORE_KINDS && status >= 0; i++)
        if (lk__store_holder(s, lk__store_kind(i)) != LK_HELD_BY_RANK)
            status = send_region(s, *lk__store_region(s, i), bytes[lk__store_kind(i)], chunk);
    lk__free(s->context, LK_MEMORY_OTHER, chunk, CHUNK);
    return status;
}

lk_status lk__store_broadcast(lk_store *s)
{
    bool      several = lk__store_hosts(s) > 1;
    lk_status status = several || s->nodes > 1 ? lk_comm_barrier(s->comm, NULL) : LK_OK; /* until nobody reads it */
    if (status >= 0 && several) status = send_all(s);
    if (status >= 0 && s->sharer == 0) lk__store_replicate_all(s); /* it is in the copy of this rank's memory node */
    return status < 0 ? status : lk__comm_barrier_host(s->comm);
}
