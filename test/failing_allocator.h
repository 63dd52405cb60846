/* failing_allocator.h - an allocator for lk_context_config whose n-th call fails, for every n; it also counts the bytes
 * that are not freed. Several threads may call it. */
#ifndef FAILING_ALLOCATOR_H
#define FAILING_ALLOCATOR_H

#include <lockstep/context.h>
#include <stdatomic.h>
#include <stdlib.h>

typedef struct meter {
    _Atomic int64_t left;      /* calls before one fails */
    bool            permanent; /* all later ones fail too */
    _Atomic int64_t outstanding;
    atomic_bool     hit;
} meter;

static void *metered_alloc(void *user, size_t bytes, size_t alignment)
{
    meter  *m = user;
    int64_t left = atomic_fetch_sub(&m->left, 1);
    if (left == 0 || (left < 0 && m->permanent)) {
        atomic_store(&m->hit, true);
        return NULL;
    }
    atomic_fetch_add(&m->outstanding, (int64_t)bytes);
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void metered_free(void *user, void *memory, size_t bytes)
{
    atomic_fetch_sub(&((meter *)user)->outstanding, (int64_t)bytes);
    free(memory);
}

static inline lk_allocator metered(meter *m) { return (lk_allocator){metered_alloc, metered_free, m}; }

#endif
