/* whole_numbers.c - the distinct whole numbers of a column: a hash table with open addressing, at most half full. */
#include "data/csv/whole_numbers.h"

#include "base/hash.h"

#include <stdlib.h>

/* The slot of the value, or the free one where it belongs. */
static size_t find_slot(const lk__whole_numbers *n, int64_t value)
{
    size_t slot = (size_t)lk__hash64(&value, sizeof value, 0) & (n->slots_count - 1);
    while (n->slots[slot].count && n->slots[slot].value != value) slot = (slot + 1) & (n->slots_count - 1);
    return slot;
}

static lk_status grow_slots(lk__whole_numbers *n)
{
    lk__whole_numbers larger = *n;
    larger.slots_count = n->slots_count ? 2 * n->slots_count : 64;
    larger.slots = lk__alloc(n->context, LK_MEMORY_OTHER, larger.slots_count * sizeof *n->slots); /* zeros */
    if (!larger.slots) return LK_ENOMEM;
    for (size_t i = 0; i < n->slots_count; i++)
        if (n->slots[i].count) larger.slots[find_slot(&larger, n->slots[i].value)] = n->slots[i];
    lk__free(n->context, LK_MEMORY_OTHER, n->slots, n->slots_count * sizeof *n->slots);
    *n = larger;
    return LK_OK;
}

lk_status lk__whole_numbers_add(lk__whole_numbers *n, int64_t value)
{
    lk_status status;
    if (2 * n->count >= n->slots_count && (status = grow_slots(n)) < 0) return status;
    lk__whole_number *slot = &n->slots[find_slot(n, value)];
    if (slot->count == 0) n->count++;
    slot->value = value;
    slot->count++;
    return LK_OK;
}

static int compare_values(const void *left, const void *right)
{
    int64_t a = ((const lk__whole_number *)left)->value, b = ((const lk__whole_number *)right)->value;
    return (a > b) - (a < b);
}

void lk__whole_numbers_sort(lk__whole_numbers *n)
{
    size_t used = 0;
    for (size_t i = 0; i < n->slots_count; i++)
        if (n->slots[i].count) n->slots[used++] = n->slots[i];
    if (used) qsort(n->slots, used, sizeof *n->slots, compare_values);
}

void lk__whole_numbers_free(lk__whole_numbers *n)
{
    lk__free(n->context, LK_MEMORY_OTHER, n->slots, n->slots_count * sizeof *n->slots);
    *n = (lk__whole_numbers){.context = n->context};
}

static bool is_gapless(const lk__whole_numbers *n)
{
    return n->count > 0 && (uint64_t)n->slots[n->count - 1].value - (uint64_t)n->slots[0].value == n->count - 1;
}

bool lk__whole_numbers_from_zero(const lk__whole_numbers *n) { return is_gapless(n) && n->slots[0].value == 0; }

bool lk__whole_numbers_are_classes(const lk__whole_numbers *n)
{
    if (n->count <= 2) return true;
    if (!is_gapless(n) || n->slots[0].value < 0 || n->slots[0].value > 1) return false;
    for (size_t i = 0; i < n->count; i++)
        if (n->slots[i].count < LK__CLASS_ROWS) return false;
    return true;
}

int32_t lk__whole_numbers_find(const lk__whole_numbers *n, int64_t value)
{
    lk__whole_number        key = {.value = value};
    const lk__whole_number *found =
        n->count ? bsearch(&key, n->slots, n->count, sizeof *n->slots, compare_values) : NULL;
    return found ? (int32_t)(found - n->slots) : -1;
}
