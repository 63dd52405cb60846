/* bpe.c - merging the symbols of a word. Words of ordinary text are short: for these, a scan for the lowest rank is
 * fastest. Long words use a heap, so that time grows as n log n for any text. */
#include "data/text/bpe.h"

#include <string.h>

enum { SHORT_WORD = 48, NO_RANK = -1 };

static uint64_t pair_of(int32_t left, int32_t right) { return (uint64_t)(uint32_t)left << 32 | (uint32_t)right; }

static uint64_t hash_pair(uint64_t pair)
{
    uint64_t hash = pair * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
}

/* Filter bits have other bits of the hash than slots, so that both together tell more. */
static size_t filter_bit(const lk__bpe *bpe, uint64_t hash) { return (size_t)(hash >> 8) & (4 * bpe->slots - 1); }

static size_t find_slot(const lk__bpe *bpe, uint64_t pair, uint64_t hash)
{
    size_t slot = (size_t)hash & (bpe->slots - 1);
    while (bpe->merges[slot].pair != pair && bpe->merges[slot].id != NO_RANK) slot = (slot + 1) & (bpe->slots - 1);
    return slot;
}

lk_status lk__bpe_create(lk_context *context, size_t merges, lk__bpe *bpe)
{
    *bpe = (lk__bpe){0};
    if (merges == 0) return LK_OK;
    size_t slots = 64;
    while (slots < 2 * merges) slots *= 2;
    bpe->merges = lk__alloc(context, LK_MEMORY_OTHER, slots * sizeof *bpe->merges);
    if (!bpe->merges) return LK_ENOMEM;
    bpe->slots = slots;
    bpe->filter = lk__alloc(context, LK_MEMORY_OTHER, slots / 16 * sizeof *bpe->filter);
    if (!bpe->filter) return LK_ENOMEM;
    for (size_t i = 0; i < slots; i++) bpe->merges[i].id = NO_RANK, bpe->merges[i].rank = UINT32_MAX;
    return LK_OK;
}

void lk__bpe_add(lk__bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    uint64_t pair = pair_of(left, right), hash = hash_pair(pair);
    size_t   bit = filter_bit(bpe, hash);
    bpe->filter[bit / 64] |= (uint64_t)1 << bit % 64;
    bpe->merges[find_slot(bpe, pair, hash)] = (lk__bpe_merge){pair, rank, id};
}

void lk__bpe_free(lk_context *context, lk__bpe *bpe)
{
    lk__free(context, LK_MEMORY_OTHER, bpe->merges, bpe->slots * sizeof *bpe->merges);
    lk__free(context, LK_MEMORY_OTHER, bpe->filter, bpe->slots / 16 * sizeof *bpe->filter);
    *bpe = (lk__bpe){0};
}

void lk__bpe_scratch_free(lk_context *context, lk__bpe_scratch *s)
{
    lk__free(context, LK_MEMORY_OTHER, s->before, s->before_room * sizeof *s->before);
    lk__free(context, LK_MEMORY_OTHER, s->after, s->after_room * sizeof *s->after);
    lk__free(context, LK_MEMORY_OTHER, s->heap, s->heap_room * sizeof *s->heap);
    *s = (lk__bpe_scratch){0};
}

static const lk__bpe_merge no_merge = {.rank = UINT32_MAX, .id = NO_RANK};

/* The merge of the pair; its rank is UINT32_MAX where there is none. */
static inline const lk__bpe_merge *find_merge(const lk__bpe *bpe, int32_t left, int32_t right)
{
    uint64_t pair = pair_of(left, right), hash = hash_pair(pair);
    size_t   bit = filter_bit(bpe, hash);
    if (!(bpe->filter[bit / 64] >> bit % 64 & 1)) return &no_merge;
    return &bpe->merges[find_slot(bpe, pair, hash)];
}

static size_t merge_short(const lk__bpe *bpe, int32_t *ids, size_t count)
{
    const lk__bpe_merge *next[SHORT_WORD]; /* of each id and the one behind it */
    uint32_t             ranks[SHORT_WORD];
    for (size_t i = 0; i + 1 < count; i++) next[i] = find_merge(bpe, ids[i], ids[i + 1]);
    for (size_t i = 0; i + 1 < count; i++) ranks[i] = next[i]->rank;
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (ranks[i] < ranks[best]) best = i;
        if (ranks[best] == UINT32_MAX) break;
        ids[best] = next[best]->id;
        count--;
        for (size_t i = best + 1; i < count; i++) ids[i] = ids[i + 1];
        for (size_t i = best + 1; i + 1 < count; i++) next[i] = next[i + 1], ranks[i] = ranks[i + 1];
        if (best + 1 < count) {
            next[best] = find_merge(bpe, ids[best], ids[best + 1]);
            ranks[best] = next[best]->rank;
        }
        if (best > 0) {
            next[best - 1] = find_merge(bpe, ids[best - 1], ids[best]);
            ranks[best - 1] = next[best - 1]->rank;
        }
    }
    return count;
}

/* ---- long words: a linked list of symbols, and a heap of (rank, position) ---- */

enum { REMOVED = -1 };
static const uint32_t nowhere = UINT32_MAX;

static void push(uint64_t *heap, size_t *size, uint64_t value)
{
    size_t at = (*size)++;
    for (; at > 0 && heap[(at - 1) / 2] > value; at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
    heap[at] = value;
}

static uint64_t pop(uint64_t *heap, size_t *size)
{
    uint64_t top = heap[0], value = heap[--*size];
    size_t   at = 0;
    for (size_t child; (child = 2 * at + 1) < *size; at = child) {
        if (child + 1 < *size && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= value) break;
        heap[at] = heap[child];
    }
    heap[at] = value;
    return top;
}

static void push_pair(const lk__bpe *bpe, lk__bpe_scratch *s, size_t *size, const int32_t *ids, uint32_t left)
{
    if (left == nowhere || s->after[left] == nowhere) return;
    uint32_t rank = find_merge(bpe, ids[left], ids[s->after[left]])->rank;
    if (rank != UINT32_MAX) push(s->heap, size, (uint64_t)rank << 32 | left);
}

static size_t merge_long(const lk__bpe *bpe, lk__bpe_scratch *s, int32_t *ids, size_t count)
{
    size_t size = 0, left = 0;
    for (size_t i = 0; i < count; i++) {
        s->before[i] = (uint32_t)i - 1; /* of the first: nowhere */
        s->after[i] = i + 1 < count ? (uint32_t)i + 1 : nowhere;
    }
    for (size_t i = 0; i + 1 < count; i++) push_pair(bpe, s, &size, ids, (uint32_t)i);
    while (size > 0) {
        uint64_t top = pop(s->heap, &size);
        uint32_t at = (uint32_t)top, second = s->after[at];
        if (ids[at] == REMOVED || second == nowhere) continue;
        const lk__bpe_merge *merge = find_merge(bpe, ids[at], ids[second]);
        if (merge->rank != top >> 32) continue; /* another pair stands here by now */
        ids[at] = merge->id;
        ids[second] = REMOVED;
        s->after[at] = s->after[second];
        if (s->after[at] != nowhere) s->before[s->after[at]] = at;
        push_pair(bpe, s, &size, ids, s->before[at]);
        push_pair(bpe, s, &size, ids, at);
    }
    for (size_t i = 0; i < count; i++)
        if (ids[i] != REMOVED) ids[left++] = ids[i];
    return left;
}

lk_status lk__bpe_apply(lk_context *context, const lk__bpe *bpe, lk__bpe_scratch *s, int32_t *ids, size_t *count)
{
    lk_status status;
    if (bpe->slots == 0 || *count < 2) return LK_OK;
    if (*count <= SHORT_WORD) {
        *count = merge_short(bpe, ids, *count);
        return LK_OK;
    }
    if (*count >= UINT32_MAX)
        return lk__fail(context, LK_EINVAL, "a word of %zu bytes without spaces is too long to encode", *count);
    /* A pair enters the heap at first, and two enter at each of at most count - 1 merges. */
    if ((status = lk__grow(context, (void **)&s->before, &s->before_room, *count, sizeof *s->before)) < 0 ||
        (status = lk__grow(context, (void **)&s->after, &s->after_room, *count, sizeof *s->after)) < 0 ||
        (status = lk__grow(context, (void **)&s->heap, &s->heap_room, 3 * *count, sizeof *s->heap)) < 0)
        return status;
    *count = merge_long(bpe, s, ids, *count);
    return LK_OK;
}
