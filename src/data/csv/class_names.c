/* class_names.c - the distinct names among text labels: a hash table over one block of text. */
#include "data/csv/class_names.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

/* The slot of the name, or the free one where it belongs. */
static size_t find_slot(const lk__class_names *n, const char *name, size_t length)
{
    size_t slot = (size_t)lk__hash64(name, length, 0) & (n->slots_count - 1);
    for (;; slot = (slot + 1) & (n->slots_count - 1)) {
        if (n->slots[slot] == 0) return slot;
        const char *other = n->text + n->offsets[n->slots[slot] - 1];
        if (strlen(other) == length && memcmp(other, name, length) == 0) return slot;
    }
}

/* At most half of the slots are used; their number is a power of two. */
static lk_status grow_slots(lk__class_names *n)
{
    size_t   count = n->slots_count ? 2 * n->slots_count : 256;
    int32_t *old = n->slots, *slots = lk__alloc(n->context, LK_MEMORY_OTHER, count * sizeof *slots);
    if (!slots) return LK_ENOMEM;
    lk__free(n->context, LK_MEMORY_OTHER, old, n->slots_count * sizeof *old);
    n->slots = slots;
    n->slots_count = count;
    for (int i = 0; i < n->count; i++) {
        const char *name = n->text + n->offsets[i];
        n->slots[find_slot(n, name, strlen(name))] = i + 1;
    }
    return LK_OK;
}

lk_status lk__class_names_add(lk__class_names *n, const char *name, size_t length)
{
    lk_status status;
    if ((size_t)n->count * 2 >= n->slots_count && (status = grow_slots(n)) < 0) return status;
    size_t slot = find_slot(n, name, length);
    if (n->slots[slot]) return LK_OK;
    if (n->count == (n->most ? n->most : LK__CLASS_NAMES_MOST)) return LK_END;
    if ((status = lk__grow(n->context, (void **)&n->text, &n->capacity, n->used + length + 1, 1)) < 0 ||
        (status = lk__grow(n->context, (void **)&n->offsets, &n->offsets_capacity, (size_t)n->count + 1,
                           sizeof *n->offsets)) < 0)
        return status;
    memcpy(n->text + n->used, name, length);
    n->text[n->used + length] = 0;
    n->offsets[n->count] = n->used;
    n->used += length + 1;
    n->slots[slot] = ++n->count;
    return LK_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static lk_status list_names(lk__class_names *n)
{
    size_t count = (size_t)n->count;
    n->sorted = lk__alloc(n->context, LK_MEMORY_OTHER, count * sizeof *n->sorted);
    n->classes = lk__alloc(n->context, LK_MEMORY_OTHER, count * sizeof *n->classes);
    if (!n->sorted || !n->classes) return LK_ENOMEM;
    for (size_t i = 0; i < count; i++) {
        n->sorted[i] = n->text + n->offsets[i];
        n->classes[i] = (int32_t)i;
    }
    return LK_OK;
}

lk_status lk__class_names_keep_order(lk__class_names *n) { return list_names(n); }

lk_status lk__class_names_sort(lk__class_names *n)
{
    size_t    count = (size_t)n->count;
    lk_status status = list_names(n);
    if (status < 0) return status;
    qsort(n->sorted, count, sizeof *n->sorted, compare_names);
    for (size_t i = 0; i < count; i++) {
        const char *name = n->sorted[i];
        n->classes[n->slots[find_slot(n, name, strlen(name))] - 1] = (int32_t)i;
    }
    return LK_OK;
}

int32_t lk__class_names_find(const lk__class_names *n, const char *name, size_t length)
{
    int32_t number = n->slots_count ? n->slots[find_slot(n, name, length)] : 0;
    return number ? n->classes[number - 1] : -1;
}

void lk__class_names_free(lk__class_names *n)
{
    lk__free(n->context, LK_MEMORY_OTHER, n->text, n->capacity);
    lk__free(n->context, LK_MEMORY_OTHER, n->offsets, n->offsets_capacity * sizeof *n->offsets);
    lk__free(n->context, LK_MEMORY_OTHER, n->slots, n->slots_count * sizeof *n->slots);
    lk__free(n->context, LK_MEMORY_OTHER, n->sorted, (size_t)n->count * sizeof *n->sorted);
    lk__free(n->context, LK_MEMORY_OTHER, n->classes, (size_t)n->count * sizeof *n->classes);
    *n = (lk__class_names){.context = n->context, .most = n->most};
}
