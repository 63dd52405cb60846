/* slice.c - state by name and slice: copied, hashed and checked here, so that nothing else accesses its memory. */
#include "run/store.h"

#include "base/dtype.h"
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

char *lk__store_array_memory(const lk_store *s, size_t index, lk__plan_array array)
{
    const lk__plan_state *sp = &s->plan->states[index];
    if (array == LK__ARRAY_STORED)
        return (s->plan->graph->states[index].buffer ? s->buffers : s->parameters) + sp->place.offset;
    if (array == LK__ARRAY_MASTER) return s->master + sp->master_offset;
    return s->optimizer + sp->moment_offset[array - LK__ARRAY_MOMENT_0];
}

char *lk__store_memory(const lk_store *s, size_t index, lk_state_part part)
{
    return lk__store_array_memory(s, index, lk__store_array(s, index, part));
}

lk_status lk__store_read_bytes(const lk_store *s, size_t index, lk_state_part part, size_t first, void *data,
                               size_t bytes)
{
    lk__plan_slices slices = lk__store_slices(s, index, part);
    const char     *memory = lk__store_memory(s, index, part);
    size_t          size = lk_dtype_size(slices.dtype);
    lk_status       status = lk__store_check(s);
    if (slices.parts == 1) return status < 0 ? status : lk__device_read(s->device, NULL, data, memory + first, bytes);
    for (size_t done = 0, part_bytes; done < bytes && status >= 0; done += part_bytes) {
        size_t       inside = (first + done) % size;
        lk__plan_run run = lk__slices_find(&slices, (int64_t)((first + done) / size));
        part_bytes = (size_t)run.count * size - inside;
        if (part_bytes > bytes - done) part_bytes = bytes - done;
        if (run.part != slices.own)
            return lk__fail(s->context, LK_EINVAL, "rank %d does not have element %lld of \"%s\", which is split",
                            lk__plan_rank(s->plan), (long long)run.first, s->plan->graph->states[index].name);
        status =
            lk__device_read(s->device, NULL, (char *)data + done, memory + (size_t)run.at * size + inside, part_bytes);
    }
    return status;
}

/* ---- writing ---- */

/* Elements of a value that this rank has, in f32, to its stored copy of a narrower type, which has other slices than
 * the master copy. */
static lk_status write_rounded(lk_store *s, char *to, lk_dtype type, const float *data, int64_t count)
{
    float     rounded[1024]; /* wide enough for every narrower type */
    size_t    size = lk_dtype_size(type);
    lk_status status = LK_OK;
    for (int64_t at = 0, some; at < count && status >= 0; at += some) {
        some = count - at < 1024 ? count - at : 1024;
        lk__dtype_of(type)->from_float(rounded, data + at, (size_t)some);
        status = lk__device_write(s->device, NULL, to + (size_t)at * size, rounded, (size_t)some * size);
    }
    return status;
}

/* What this rank has of elements first … first + count - 1 of one array. */
static lk_status write_array(lk_store *s, size_t index, lk__plan_array array, int64_t first, int64_t count,
                             const char *data, lk_dtype from)
{
    lk__plan_slices slices = lk__plan_state_slices(s->plan, index, array);
    size_t          size = lk_dtype_size(slices.dtype), from_size = lk_dtype_size(from);
    char           *memory = lk__store_array_memory(s, index, array);
    lk_status       status = LK_OK;
    for (int64_t done = 0, some; done < count && status >= 0; done += some) {
        lk__plan_run run = lk__slices_find(&slices, first + done);
        some = run.count < count - done ? run.count : count - done;
        if (run.part != slices.own) continue;
        char       *to = memory + (size_t)run.at * size;
        const char *source = data + (size_t)done * from_size;
        status = from == slices.dtype ? lk__device_write(s->device, NULL, to, source, (size_t)some * size)
                                      : write_rounded(s, to, slices.dtype, (const float *)source, some);
        if (status >= 0 && slices.holder == LK_HELD_BY_NODE) lk__store_replicate(s, to, (size_t)some * size);
    }
    return status;
}

lk_status lk__store_write_own(lk_store *s, size_t index, lk_state_part part, size_t first, const void *data,
                              size_t bytes)
{
    lk__plan_array  array = lk__store_array(s, index, part);
    lk__plan_slices slices = lk__plan_state_slices(s->plan, index, array);
    size_t          size = lk_dtype_size(slices.dtype);
    int64_t         from = (int64_t)(first / size), count = (int64_t)(bytes / size);
    lk_status       status = lk__store_check(s);
    if (status >= 0) status = write_array(s, index, array, from, count, data, slices.dtype);
    if (status < 0 || array != LK__ARRAY_MASTER) return status;
    lk__plan_slices stored = lk__plan_state_slices(s->plan, index, LK__ARRAY_STORED);
    if (slices.parts == 1 && stored.parts == 1) return lk__store_round(s, index, (size_t)from, (size_t)count);
    return write_array(s, index, LK__ARRAY_STORED, from, count, data, slices.dtype);
}

lk_status lk__store_write_bytes(lk_store *s, size_t index, lk_state_part part, size_t first, const void *data,
                                size_t bytes)
{
    lk_status status = lk__store_check(s);
    unsigned  apart = lk__store_slices(s, index, part).apart;
    bool      writes = lk__plan_sharer_apart(s->plan, apart, lk__plan_rank(s->plan)) == 0;
    if (status < 0 || (lk__store_shares(s, index) && !writes)) return status; /* the first of a host writes */
    return lk__store_write_own(s, index, part, first, data, bytes);
}

lk_status lk__store_round(lk_store *s, size_t index, size_t first, size_t count)
{
    const lk__plan_state *sp = &s->plan->states[index];
    if (!sp->master || count == 0) return LK_OK;
    lk_dtype type = s->plan->graph->values[s->plan->graph->states[index].value].shape.dtype,
             master = lk__wide_type(type);
    size_t    size = lk_dtype_size(type);
    char     *to = s->parameters + sp->place.offset + first * size;
    lk_status status = lk__device_cast(s->device, NULL, s->master + sp->master_offset + first * lk_dtype_size(master),
                                       master, to, type, (int64_t)count);
    if (status >= 0 && s->comm) lk__store_replicate(s, to, count * size);
    return status;
}

lk_status lk__store_hash_state(const lk_store *s, size_t index, uint64_t seed, uint64_t *hash)
{
    const lk__plan_state *sp = &s->plan->states[index];
    const char           *memory = lk__store_memory(s, index, LK_STATE_VALUE);
    lk_status             status = lk__store_check(s);
    if (status < 0) return status;
    if (lk__store_splits(s, index, LK_STATE_VALUE)) return lk__store_hash_split(s, index, seed, hash);
    return s->device->backend->kernels.hash(s->device, memory, sp->master ? sp->wide_bytes : sp->bytes, seed, hash);
}

lk_status lk__store_finite(const lk_store *s, size_t index, bool *finite)
{
    lk__plan_slices slices = lk__store_slices(s, index, LK_STATE_VALUE);
    lk_status       status = lk__store_check(s);
    if (status < 0) return status;
    status = s->device->backend->kernels.finite(s->device, lk__store_memory(s, index, LK_STATE_VALUE),
                                                lk__slices_elements(&slices, slices.own), slices.dtype, finite);
    if (slices.parts == 1) return status;
    int64_t   all = status < 0 ? -1 : *finite; /* a rank whose device fails takes part, so that no other waits for it */
    lk_status shared = lk_comm_all_reduce(s->group, &all, &all, 1, LK_I64, LK_MIN, NULL);
    *finite = all == 1;
    if (shared < 0 || status < 0 || all >= 0) return shared < 0 ? shared : status;
    return lk__fail(s->context, LK_EIO, "another rank could not read its slice of \"%s\"",
                    s->plan->graph->states[index].name);
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
        return lk__fail(s->context, LK_EINVAL,
                        "part %d of \"%s\" does not exist: its parts are its value (0) and %d moments", (int)part, name,
                        state.moments);
    if (first < 0 || count < 0 || first > elements || count > elements - first)
        return lk__fail(s->context, LK_EINVAL,
                        "%lld elements starting at element %lld extend past the end of \"%s\", which has %lld",
                        (long long)count, (long long)first, name, (long long)elements);
    size_t size = lk_dtype_size(state.dtype);
    if (bytes != (size_t)count * size)
        return lk__fail(s->context, LK_EINVAL, "%lld elements of \"%s\" in %s take %zu bytes, not %zu",
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
    if (status < 0) return status;
    if (lk__store_splits(s, index, part)) return lk__store_read_split(s, index, part, first_byte, data, bytes);
    return lk__store_read_bytes(s, index, part, first_byte, data, bytes);
}

lk_status lk_store_write(lk_store *s, const char *name, lk_state_part part, int64_t first, int64_t count,
                         const void *data, size_t bytes)
{
    size_t    index, first_byte;
    lk_status status = locate_slice(s, name, part, first, count, bytes, &index, &first_byte);
    if (status < 0) return status;
    bool shared = lk__store_shares(s, index) || lk__store_splits(s, index, part);
    return shared && !s->alone ? lk__store_write_shared(s, index, part, first_byte, data, bytes)
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
