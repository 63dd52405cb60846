/* store_split.c - a store of which ranks have different slices: reads and hashes of it are collectives, through buffers
 * of a fixed size. */
#include "run/exchange.h"

#include "base/hash.h"

#include <string.h>

enum { CHUNK = LK__EXCHANGE_CHUNK, REQUEST = 4 }; /* bytes that rank 0 gathers at a time; words of a rank's request */

/* Behind the buffers of an exchange: what is gathered, the ranks' requests, and these as lists. */
typedef struct layout {
    size_t chunk, requests, ranges, lists;
} layout;
enum { RANK_BYTES = REQUEST * sizeof(uint64_t) + sizeof(lk__exchange_range) + sizeof(lk__exchange_list) };

static layout lay_out(int ranks)
{
    layout l = {.chunk = lk__store_exchange_bytes(ranks)};
    l.requests = l.chunk + CHUNK;
    l.ranges = l.requests + (size_t)ranks * REQUEST * sizeof(uint64_t);
    l.lists = l.ranges + (size_t)ranks * sizeof(lk__exchange_range);
    return l;
}

lk_status lk__store_alloc_exchange(lk_store *s)
{
    int ranks = lk__plan_ranks(s->plan);
    s->exchange_bytes = lk__plan_exchange_bytes(s->plan);
    if (s->exchange_bytes && lay_out(ranks).requests + (size_t)ranks * RANK_BYTES > s->exchange_bytes)
        return lk__fail(s->context, LK_EINVAL, "the plan has too little memory for exchanges between %d ranks", ranks);
    if (s->exchange_bytes == 0) return LK_OK;
    s->exchange = lk__alloc(s->context, LK_MEMORY_STAGING, s->exchange_bytes);
    return s->exchange ? LK_OK : LK_ENOMEM;
}

void lk__store_free_exchange(lk_store *s) { lk__free(s->context, LK_MEMORY_STAGING, s->exchange, s->exchange_bytes); }

/* Fetches what ranges[rank] says for every rank; those of 0 bytes want nothing. */
static lk_status fetch_ranges(const lk_store *s, const layout *l, void *mine)
{
    int                 ranks = lk_comm_size(s->group);
    lk__exchange_range *ranges = (lk__exchange_range *)((char *)s->exchange + l->ranges);
    lk__exchange_list  *lists = (lk__exchange_list *)((char *)s->exchange + l->lists);
    for (int i = 0; i < ranks; i++) lists[i] = (lk__exchange_list){&ranges[i], ranges[i].bytes > 0};
    return lk__store_fetch(s, &(lk__exchange){s->group, s->exchange}, lists, mine);
}

lk_status lk__store_read_split(const lk_store *s, size_t index, lk_state_part part, size_t first, void *data,
                               size_t bytes)
{
    layout              l = lay_out(lk_comm_size(s->group));
    uint64_t           *requests = (uint64_t *)((char *)s->exchange + l.requests), mine[] = {index, part, first, bytes};
    lk__exchange_range *ranges = (lk__exchange_range *)((char *)s->exchange + l.ranges);
    lk_status           status = lk__store_check(s);
    if (status >= 0) status = lk_comm_all_gather(s->group, mine, requests, REQUEST, LK_I64, NULL);
    if (status < 0) return status;
    for (int i = 0; i < lk_comm_size(s->group); i++) {
        const uint64_t *one = requests + (size_t)i * REQUEST;
        ranges[i] = (lk__exchange_range){one[0], (lk_state_part)one[1], one[2], one[3]};
    }
    return fetch_ranges(s, &l, data);
}

/* Rank 0 gets the bytes one chunk after the other, in their order, and tells the others. */
lk_status lk__store_hash_split(const lk_store *s, size_t index, uint64_t seed, uint64_t *hash)
{
    int                 ranks = lk_comm_size(s->group);
    layout              l = lay_out(ranks);
    lk__plan_slices     slices = lk__store_slices(s, index, LK_STATE_VALUE);
    size_t              bytes = lk_dtype_size(slices.dtype), part;
    char               *chunk = (char *)s->exchange + l.chunk;
    lk__exchange_range *ranges = (lk__exchange_range *)((char *)s->exchange + l.ranges);
    lk_status           status = lk__store_check(s);
    for (int i = 0; i < slices.rank; i++) bytes *= (size_t)slices.dims[i];
    *hash = lk__hash64(chunk, 0, seed);
    for (size_t at = 0; at < bytes && status >= 0; at += part) {
        part = bytes - at < CHUNK ? bytes - at : CHUNK;
        for (int i = 0; i < ranks; i++) ranges[i] = (lk__exchange_range){index, LK_STATE_VALUE, at, i == 0 ? part : 0};
        status = fetch_ranges(s, &l, chunk);
        *hash = lk__hash64(chunk, part, lk__hash64_resume(*hash));
    }
    return status < 0 ? status : lk_comm_broadcast(s->group, hash, 1, LK_I64, 0, NULL);
}
