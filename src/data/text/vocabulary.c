/* vocabulary.c - tokens: an array by id, over one pool of text, and a hash table of names. */
#include "data/text/vocabulary.h"

#include "base/hash.h"

#include <string.h>

/* The slot of the name, or the free one where it belongs. */
static lk__text_slot *find_slot(const lk__vocabulary *v, const char *name, size_t length, uint64_t hash)
{
    for (size_t i = (size_t)hash & (v->slots_count - 1);; i = (i + 1) & (v->slots_count - 1)) {
        lk__text_slot *slot = &v->slots[i];
        if (slot->id == 0) return slot;
        if (slot->hash != (uint32_t)(hash >> 32)) continue;
        const lk__text_token *token = &v->tokens[slot->id - 1];
        if (token->name_length == length && memcmp(v->pool + token->name, name, length) == 0) return slot;
    }
}

/* At most half of the slots are used; their number is a power of two. */
static lk_status grow_slots(lk__vocabulary *v)
{
    size_t         count = v->slots_count ? 2 * v->slots_count : 512;
    lk__text_slot *old = v->slots, *slots = lk__alloc(v->context, LK_MEMORY_OTHER, count * sizeof *slots);
    if (!slots) return LK_ENOMEM;
    lk__free(v->context, LK_MEMORY_OTHER, old, v->slots_count * sizeof *old);
    v->slots = slots;
    v->slots_count = count;
    for (size_t i = 0; i < v->count; i++) {
        const lk__text_token *token = &v->tokens[i];
        const char           *name = v->pool + token->name;
        uint64_t              hash = token->exists ? lk__hash64(name, token->name_length, 0) : 0;
        if (token->exists)
            *find_slot(v, name, token->name_length, hash) = (lk__text_slot){(uint32_t)(hash >> 32), (int32_t)i + 1};
    }
    return LK_OK;
}

/* Copies bytes into the pool, with a NUL behind them. */
static size_t keep_text(lk__vocabulary *v, const char *text, size_t length)
{
    size_t at = v->pool_used;
    if (length) memcpy(v->pool + at, text, length);
    v->pool[at + length] = 0;
    v->pool_used += length + 1;
    return at;
}

static const char *show_name(const char *name, size_t length, char out[LK__SHOWN])
{
    char copy[LK__SHOWN];
    if (length >= sizeof copy) length = sizeof copy - 1;
    memcpy(copy, name, length);
    copy[length] = 0;
    return lk__shown(copy, out);
}

lk_status lk__vocabulary_add(lk__vocabulary *v, int64_t id, const lk__vocabulary_entry *entry, size_t expected)
{
    const char *name = entry->name, *text = entry->text;
    size_t      name_length = entry->name_length, length = entry->length;
    char        shown[LK__SHOWN];
    lk_status   status;
    if (id < 0 || (uint64_t)id >= (uint64_t)expected + LK__VOCABULARY_GAP || id >= INT32_MAX)
        return lk__fail(v->context, LK_EFORMAT, "token \"%s\" has the id %lld, which is out of range for %zu tokens",
                        show_name(name, name_length, shown), (long long)id, expected);
    if (name_length > UINT32_MAX || length > UINT32_MAX)
        return lk__fail(v->context, LK_EFORMAT, "token \"%s\" is too long", show_name(name, name_length, shown));
    if (lk__vocabulary_token(v, id))
        return lk__fail(v->context, LK_EFORMAT, "token \"%s\" has the id %lld, which another token already has",
                        show_name(name, name_length, shown), (long long)id);
    if ((v->used + 1) * 2 > v->slots_count && (status = grow_slots(v)) < 0) return status;
    uint64_t       hash = lk__hash64(name, name_length, 0);
    lk__text_slot *slot = find_slot(v, name, name_length, hash);
    size_t         need = v->pool_used + name_length + length + 2;
    if (slot->id)
        return lk__fail(v->context, LK_EFORMAT, "token \"%s\" is listed twice", show_name(name, name_length, shown));
    if ((status = lk__grow(v->context, (void **)&v->pool, &v->pool_capacity, need, 1)) < 0 ||
        (status = lk__grow(v->context, (void **)&v->tokens, &v->capacity, (size_t)id + 1, sizeof *v->tokens)) < 0)
        return status;
    lk__text_token *token = &v->tokens[id];
    *token = (lk__text_token){.name_length = (uint32_t)name_length, .length = (uint32_t)length, .exists = true};
    token->name = token->text = keep_text(v, name, name_length);
    if (text)
        token->text = keep_text(v, text, length);
    else
        token->length = token->name_length;
    *slot = (lk__text_slot){(uint32_t)(hash >> 32), (int32_t)id + 1};
    v->used++;
    if ((size_t)id >= v->count) v->count = (size_t)id + 1;
    if (name_length > v->longest_name) v->longest_name = name_length;
    return LK_OK;
}

int32_t lk__vocabulary_find(const lk__vocabulary *v, const char *name, size_t length)
{
    return v->slots_count ? find_slot(v, name, length, lk__hash64(name, length, 0))->id - 1 : -1;
}

const lk__text_token *lk__vocabulary_token(const lk__vocabulary *v, int64_t id)
{
    return id >= 0 && (uint64_t)id < v->count && v->tokens[id].exists ? &v->tokens[id] : NULL;
}

void lk__vocabulary_free(lk__vocabulary *v)
{
    lk__free(v->context, LK_MEMORY_OTHER, v->tokens, v->capacity * sizeof *v->tokens);
    lk__free(v->context, LK_MEMORY_OTHER, v->pool, v->pool_capacity);
    lk__free(v->context, LK_MEMORY_OTHER, v->slots, v->slots_count * sizeof *v->slots);
    *v = (lk__vocabulary){.context = v->context};
}
