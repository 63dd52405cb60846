/* copies.h - what tests read of state, gradients and outputs: copies, since a device's memory need not be the
 * host's. */
#ifndef COPIES_H
#define COPIES_H

#include "check.h"

#include <lockstep/program.h>
#include <stdatomic.h>

/* Memory for a copy, valid for the next 1023 copies of all threads: ranks may be threads. */
__attribute__((unused)) static void *copy_room(size_t bytes)
{
    static void      *ring[1024];
    static atomic_int next;
    int               i = atomic_fetch_add(&next, 1) % 1024;
    free(ring[i]);
    REQUIRE((ring[i] = calloc(1, bytes + 16)) != NULL);
    return ring[i];
}

__attribute__((unused)) static int64_t state_elements(const lk_state *s)
{
    int64_t n = 1;
    for (int i = 0; i < s->rank; i++) n *= s->dims[i];
    return n;
}

__attribute__((unused)) static size_t state_bytes(const lk_state *s)
{
    return (size_t)state_elements(s) * lk_dtype_size(s->dtype);
}

__attribute__((unused)) static void *part_copy(const lk_store *store, const char *name, lk_state_part part)
{
    lk_state s;
    REQUIRE(lk_store_find(store, name, &s), "no \"%s\"", name);
    void *copy = copy_room(state_bytes(&s));
    REQUIRE(lk_store_read(store, name, part, 0, state_elements(&s), copy, state_bytes(&s)) == LK_OK, "%s", name);
    return copy;
}

__attribute__((unused)) static void *state_copy(const lk_store *store, const char *name)
{
    return part_copy(store, name, LK_STATE_VALUE);
}

__attribute__((unused)) static void write_part(lk_store *store, const lk_state *s, lk_state_part part, const void *data)
{
    REQUIRE(lk_store_write(store, s->name, part, 0, state_elements(s), data, state_bytes(s)) == LK_OK, "%s", s->name);
}

__attribute__((unused)) static void write_state(lk_store *store, const lk_state *s, const void *data)
{
    write_part(store, s, LK_STATE_VALUE, data);
}

/* NULL: it has no gradient. */
__attribute__((unused)) static void *gradient_copy(lk_program *program, const lk_store *store, const char *name)
{
    lk_state s;
    if (!lk_store_find(store, name, &s)) return NULL;
    void     *copy = copy_room(state_bytes(&s));
    lk_status status = lk_program_gradient_read(program, name, copy, state_bytes(&s));
    REQUIRE(status == LK_OK || status == LK_ENOENT, "the gradient of %s: %s", name, lk_status_name(status));
    return status == LK_OK ? copy : NULL;
}

__attribute__((unused)) static void *output_copy(lk_program *program, int i, size_t bytes)
{
    void *copy = copy_room(bytes);
    REQUIRE(lk_program_output_read(program, i, copy, bytes) == LK_OK, "output %d of %zu bytes", i, bytes);
    return copy;
}

#endif
