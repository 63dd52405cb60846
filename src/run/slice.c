/* slice.c - state by name and slice: copied, hashed and checked here, so that nothing else accesses its memory. */
#include "run/store.h"

#include "base/bf16.h"
#include "base/hash.h"

#include <string.h>

int lk__find_state(const lk_graph *g, const char *name)
{
    for (size_t i = 0; i < g->states_count; i++) {
        const lk__graph_state *one = &g->states[i];
        bool                   found = strcmp(one->name, name) == 0;
        for (size_t j = 0; j < one->aliases_count && !found; j++) found = strcmp(one->aliases[j], name) == 0;
        if (found) return (int)i;
    }
    return -1;
}

bool lk_store_find(const lk_store *s, const char *name, lk_state *state)
{
    int index = lk__find_state(s->plan->graph, name);
    if (index >= 0) *state = lk_store_at(s, (size_t)index);
    return index >= 0;
}

char *lk__store_memory(const lk_store *s, size_t index, lk_state_part part)
{
    const lk__plan_state *sp = &s->plan->states[index];
    if (part != LK_STATE_VALUE) return s->optimizer + sp->moment_offset[part - LK_STATE_MOMENT_0];
    if (sp->master) return s->master + sp->master_offset;
    return (s->plan->graph->states[index].buffer ? s->buffers : s->parameters) + sp->place.offset;
}

lk_status lk__store_read_bytes(const lk_store *s, size_t index, lk_state_part part, size_t first, void *data,
                               size_t bytes)
{
    lk_status status = lk__store_check(s);
    return status < 0 ? status : lk__device_read(s->device, NULL, data, lk__store_memory(s, index, part) + first, bytes);
}

lk_status lk__store_write_bytes(lk_store *s, size_t index, lk_state_part part, size_t first, const void *data,
                                size_t bytes)
{
    lk_status status = lk__store_check(s);
    if (status < 0 || (lk__store_shares(s, index) && s->sharer != 0)) return status; /* the first of a host writes */
    char *to = lk__store_memory(s, index, part) + first;
    status = lk__device_write(s->device, NULL, to, data, bytes);
    if (status < 0 || part != LK_STATE_VALUE) return status;
    if (lk__store_shares(s, index) && !s->plan->states[index].master) lk__store_spread(s, to, bytes);
    return lk__store_round(s, index, first / sizeof(float), bytes / sizeof(float));
}

lk_status lk__store_round(lk_store *s, size_t index, size_t first, size_t count)
{
    const lk__plan_state *sp = &s->plan->states[index];
    if (!sp->master || count == 0) return LK_OK;
    char     *to = s->parameters + sp->place.offset + first * sizeof(lk__bf16);
    lk_status status = lk__device_cast(s->device, NULL, s->master + sp->master_offset + first * sizeof(float), LK_F32,
                                       to, LK_BF16, (int64_t)count);
    if (status >= 0 && s->comm) lk__store_spread(s, to, count * sizeof(lk__bf16));
    return status;
}

lk_status lk__store_hash_state(const lk_store *s, size_t index, uint64_t seed, uint64_t *hash)
{
    const lk__plan_state *sp = &s->plan->states[index];
    const char           *memory = lk__store_memory(s, index, LK_STATE_VALUE);
    lk_status             status = lk__store_check(s);
    if (status < 0) return status;
    return s->device->backend->hash(s->device, memory, sp->master ? sp->wide_bytes : sp->bytes, seed, hash);
}

lk_status lk__store_finite(const lk_store *s, size_t index, bool *finite)
{
    lk_state  state = lk_store_at(s, index);
    int64_t   elements = 1;
    lk_status status = lk__store_check(s);
    if (status < 0) return status;
    for (int i = 0; i < state.rank; i++) elements *= state.dims[i];
    return s->device->backend->finite(s->device, lk__store_memory(s, index, LK_STATE_VALUE), elements, state.dtype,
                                      finite);
}

/* Finds what lk_store_read and lk_store_write copy: the state, and the slice's first byte. */
static lk_status locate_slice(const lk_store *s, const char *name, lk_state_part part, int64_t first, int64_t count,
                              size_t bytes, size_t *index, size_t *first_byte)
{
    int found = lk__find_state(s->plan->graph, name);
    if (found < 0) return lk__fail(s->context, LK_ENOENT, "the model has no parameter or buffer \"%s\"", name);
    const lk_state state = lk_store_at(s, (size_t)found);
    int64_t        elements = 1;
    for (int i = 0; i < state.rank; i++) elements *= state.dims[i];
    if ((unsigned)part >= LK_STATE_PART_COUNT || (int)part > state.moments)
        return lk__fail(s->context, LK_EINVAL, "part %d of \"%s\" is invalid: it has its value (0) and %d moments",
                        (int)part, name, state.moments);
    if (first < 0 || count < 0 || first > elements || count > elements - first)
        return lk__fail(s->context, LK_EINVAL, "%lld elements from element %lld on of \"%s\", which has %lld",
                        (long long)count, (long long)first, name, (long long)elements);
    size_t size = lk_dtype_size(state.dtype);
    if (bytes != (size_t)count * size)
        return lk__fail(s->context, LK_EINVAL, "%lld elements of \"%s\" in %s have %zu bytes, not %zu",
                        (long long)count, name, lk_dtype_name(state.dtype), (size_t)count * size, bytes);
    *index = (size_t)found;
    *first_byte = (size_t)first * size;
    return LK_OK;
}

lk_status lk_store_read(const lk_store *s, const char *name, lk_state_part part, int64_t first, int64_t count,
                        void *data, size_t bytes)
{
    size_t    index, first_byte;
    lk_status status = locate_slice(s, name, part, first, count, bytes, &index, &first_byte);
    return status < 0 ? status : lk__store_read_bytes(s, index, part, first_byte, data, bytes);
}

lk_status lk_store_write(lk_store *s, const char *name, lk_state_part part, int64_t first, int64_t count,
                         const void *data, size_t bytes)
{
    size_t    index, first_byte;
    lk_status status = locate_slice(s, name, part, first, count, bytes, &index, &first_byte);
    if (status < 0) return status;
    return lk__store_shares(s, index) && !s->alone ? lk__store_write_shared(s, index, part, first_byte, data, bytes)
                                                   : lk__store_write_bytes(s, index, part, first_byte, data, bytes);
}

uint64_t lk_store_hash(const lk_store *s)
{
    uint64_t hash = 0;
    for (size_t i = 0; i < lk_store_count(s); i++) {
        const char *name = s->plan->graph->states[i].name;
        if (s->plan->graph->states[i].not_saved) continue;
        if (lk__store_hash_state(s, i, lk__hash64(name, strlen(name), hash), &hash) < 0) return 0;
    }
    return hash;
}
