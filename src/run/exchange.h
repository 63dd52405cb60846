/* run/exchange.h - bytes of states between the ranks that have them and the ranks that write or read a file with them:
 * in rounds, through buffers of a fixed size, so that no rank needs memory for more than its own slices.
 *
 * All ranks of the group call these together with the same lists: each knows what every other rank needs or has, so
 * nothing is negotiated. Where each rank has all bytes that it needs (state that is replicated, or that the ranks of a
 * host share), nothing is sent, no rank waits for another, and the calls need not be made by all of them. */
#ifndef LK__EXCHANGE_H
#define LK__EXCHANGE_H

#include "run/store.h"

/* Bytes of one array of a state, counted from the beginning of the whole array: row-major, in lk_state.dtype. */
typedef struct lk__exchange_range {
    size_t        state; /* its index */
    lk_state_part part;
    size_t        first, bytes;
} lk__exchange_range;

/* What one rank needs, or has: a list of ranges, whose bytes are concatenated. count 0: nothing. */
typedef struct lk__exchange_list {
    const lk__exchange_range *ranges;
    size_t                    count;
} lk__exchange_list;

/* Who takes part, and the memory for it. */
typedef struct lk__exchange {
    lk_comm *comm;   /* the job's group, or another of the same ranks in the same order; NULL: this rank alone */
    void    *memory; /* lk__store_exchange_bytes of its ranks, aligned to 64; NULL: none, where nothing is ever sent */
} lk__exchange;

size_t lk__store_exchange_bytes(int ranks); /* the same on all ranks; 0 for one rank */
/* Whether some fetch of `ranks` ranks from this store sends something: some array is split over ranks, or is a buffer
 * of which each rank has its own, and files hold rank 0's. */
bool lk__store_fetch_sends(const lk_store *store, int ranks);
bool lk__plan_fetch_sends(const lk_plan *plan, int ranks); /* the same, before there is a store */

/* Every rank gets the bytes that by_rank[its rank] lists, in this order, into `mine`. Any bytes, also parts of
 * elements. */
lk_status lk__store_fetch(const lk_store *store, const lk__exchange *with, const lk__exchange_list *by_rank,
                          void *mine);

/* The inverse: every rank has the bytes that by_rank[its rank] lists in `mine`, and they are written to all ranks that
 * have memory for them (of a state that is replicated: to all ranks of `with`; of one that ranks of a host share: once
 * on every host). Whole elements. Stored copies of master copies are rounded again. Between lk__store_write_begin and
 * lk__store_write_end, after which the shared memory is complete for all ranks. */
lk_status lk__store_scatter(lk_store *store, const lk__exchange *with, const lk__exchange_list *by_rank,
                            const void *mine);

#endif
