/* store.h - parameters, optimizer state and buffers by global name. A program can be freed and planned again without
 * changing it. */
#ifndef LOCKSTEP_STORE_H
#define LOCKSTEP_STORE_H

#include <lockstep/plan.h>

LK_BEGIN_DECLS

typedef struct lk_store lk_store; /* use from one thread */

/* One named piece of state. Pointers stay valid as long as the store. */
typedef struct lk_state {
    const char *name;
    lk_dtype    dtype;
    int         rank;
    int64_t     dims[LK_MAX_RANK];
    bool        buffer; /* not trained */
    bool        frozen;
    void       *data;      /* row-major, whole */
    int         moments;   /* optimizer state: how many of the same shape … */
    void       *moment[2]; /* … SGD: momentum; Adam: exp_avg, exp_avg_sq */
} lk_state;

/* Allocates the plan's state and initialises every parameter from its distribution, as a function of (seed, name, element). */
LK_API lk_status lk_store_create(lk_plan *plan, uint64_t seed, lk_store **store);
LK_API void      lk_store_free(lk_store *store);

LK_API size_t   lk_store_count(const lk_store *store);
LK_API lk_state lk_store_at(const lk_store *store, size_t index);                        /* in the order of recording */
LK_API bool     lk_store_find(const lk_store *store, const char *name, lk_state *state); /* second names too */
/* Second names of tied weights: alias i (from 0) of state `index`, or NULL past the last. */
LK_API const char *lk_store_alias(const lk_store *store, size_t index, size_t i);
LK_API int64_t     lk_store_parameters(const lk_store *store); /* trained and frozen elements, buffers not counted */
/* A hash of all parameters and buffers; equal for equal values. */
LK_API uint64_t lk_store_hash(const lk_store *store);

LK_END_DECLS
#endif
