/* run/store.h - the internals of a store: one block of memory per kind, laid out by the plan. */
#ifndef LK__STORE_H
#define LK__STORE_H

#include "plan/plan.h"

#include <lockstep/store.h>

struct lk_store {
    lk_context *context;
    lk_plan    *plan; /* must outlive the store */
    lk__device *device;
    char       *parameters, *master, *buffers, *optimizer; /* the device's memory */
    char       *block;                                     /* all of it; NULL: each is its own allocation */
};

int lk__find_state(const lk_graph *graph, const char *name); /* its index, or -1; second names of tied weights count */

/* ---- slice.c: by index instead of name, in bytes, unchecked ---- */
/* The device's memory of a part; of a value, the master copy where there is one. */
char *lk__store_memory(const lk_store *store, size_t index, lk_state_part part);
/* The master copy to the stored one, where there are two; in elements. */
lk_status lk__store_round(lk_store *store, size_t index, size_t first, size_t count);
lk_status lk__store_read_bytes(const lk_store *store, size_t index, lk_state_part part, size_t first, void *data,
                               size_t bytes);
lk_status lk__store_write_bytes(lk_store *store, size_t index, lk_state_part part, size_t first, const void *data,
                                size_t bytes);
lk_status lk__store_hash_state(const lk_store *store, size_t index, uint64_t seed, uint64_t *hash); /* of its value */
lk_status lk__store_finite(const lk_store *store, size_t index, bool *finite); /* its value; integers are */

/* store.c: where a device other than the host has no memory, adds to the message what the plan needs. Returns status. */
lk_status lk__explain_memory(const lk_plan *plan, lk_status status);

#endif
