/* store.h - parameters, optimizer state and buffers, or this rank's slices of them, by global name. Programs can be
 * freed, planned again and recreated without changing the store.
 *
 * Each named piece of state ("a state") has the same name and global shape on every rank, whichever part of it the rank
 * stores. If a rank has all of it, alone or shared with other ranks of its host, reading is local. If the plan splits
 * it over ranks, each has memory only for its own slices, and reads, writes and hashes are collectives, with the same
 * results as on one rank that has everything. The value and the moments of a state may be split independently. */
#ifndef LOCKSTEP_STORE_H
#define LOCKSTEP_STORE_H

#include <lockstep/comm.h>
#include <lockstep/plan.h>

LK_BEGIN_DECLS

typedef struct lk_store lk_store; /* use from one thread */

/* One named piece of state. Pointers are valid while the store exists. They are NULL if the device's memory is not the
 * host's, or if this rank has only a slice; lk_store_read and lk_store_write work with every device and every plan. */
typedef struct lk_state {
    const char *name;
    lk_dtype    dtype;  /* in reads, writes and files; also for its moments */
    lk_dtype    stored; /* the type that the model reads: bf16 under LK_POLICY_BF16, with a master copy in f32 */
    int         rank;
    int64_t     dims[LK_MAX_RANK];
    bool        buffer; /* not trained */
    bool        frozen;
    bool        not_saved; /* a buffer that files do not contain */
    void       *data;      /* row-major, whole, in dtype; read-only, because there may be a second copy; or NULL */
    int         moments;   /* optimizer state: number of arrays of the same shape … */
    void       *moment[2]; /* … the first two, or NULL; lk_store_moment returns any */
} lk_state;

/* The arrays of a state, all with its shape and type: the value, and moments LK_STATE_MOMENT_0 + i. */
typedef enum lk_state_part {
    LK_STATE_VALUE,
    LK_STATE_MOMENT_0,
    LK_STATE_MOMENT_1,
    LK_STATE_PART_COUNT = LK_STATE_MOMENT_0 + LK_MAX_MOMENTS
} lk_state_part;

/* Allocates the plan's state and initialises every parameter from its distribution, as a function of (seed, name,
 * element) alone, so which rank has an element does not matter. */
LK_API lk_status lk_store_create(lk_plan *plan, uint64_t seed, lk_store **store);
/* The same for ranks of a host that share their state (plan.h, LK_STATE_SHARED): parameters, master copies and
 * optimizer state exist once, in memory that all ranks of the host map. So do buffers for which all ranks compute the
 * same values; otherwise each rank has its own. With several hosts (lk_parallel.hosts), each host has a copy.
 * Collective; the group must outlive the store. LK_EUNSUPPORTED: the ranks of this group share no memory, or their
 * hosts have different numbers of ranks. The context of every rank counts all of the shared memory as allocated.
 *
 * LK_UPDATE of a program that uses such a store is a collective: it returns when all ranks of this host have updated
 * their parts of the state, so reading need not wait. lk_state points to the shared memory. If a rank fails during an
 * update or a write, the state of its host is partly updated: from then on, reads, writes, hashes, saves and all
 * sections on that host return this failure.
 *
 * The function also works for every other plan: if each rank has slices of the state or a whole copy, no shared memory
 * is needed. */
LK_API lk_status lk_store_create_shared(lk_plan *plan, uint64_t seed, lk_comm *comm, lk_store **store);
LK_API void      lk_store_free(lk_store *store);

LK_API size_t   lk_store_count(const lk_store *store);
LK_API lk_state lk_store_at(const lk_store *store, size_t index);                        /* in the order of recording */
LK_API bool     lk_store_find(const lk_store *store, const char *name, lk_state *state); /* aliases too */
/* Moment i of state `index`: its memory, like lk_state.data, and its name in checkpoints, such as "exp_avg". NULL: the
 * state has fewer moments; the memory is also NULL where lk_state.data is NULL. */
LK_API void       *lk_store_moment(const lk_store *store, size_t index, int i);
LK_API const char *lk_store_moment_name(const lk_store *store, size_t index, int i);
/* Second names of tied weights: alias i (from 0) of state `index`, or NULL past the last. */
LK_API const char *lk_store_alias(const lk_store *store, size_t index, size_t i);
/* Number of elements of all parameters, trained and frozen, excluding buffers. */
LK_API int64_t lk_store_parameters(const lk_store *store);
/* Copies elements first … first + count - 1 (row-major, in lk_state.dtype) of a state to or from the caller's memory.
 * Aliases are accepted; `bytes` must be the size of `count` elements. LK_ENOENT: there is no such state; LK_EINVAL: it
 * has no such part or elements. Writing to a part that ranks share, or of which they have slices, is a collective: all
 * ranks must write the same values (LK_EMISMATCH if not), which all ranks see when the call returns. Loading into such
 * a part is a collective too, and so is reading a part that is split over ranks: all ranks must read that part, or any
 * other part that is split, at the same time; they may read different elements, or none. The bytes are fetched from the
 * ranks that have them, through buffers that the plan counts (LK_MEMORY_STAGING). */
LK_API lk_status lk_store_read(const lk_store *store, const char *name, lk_state_part part, int64_t first,
                               int64_t count, void *data, size_t bytes);
LK_API lk_status lk_store_write(lk_store *store, const char *name, lk_state_part part, int64_t first, int64_t count,
                                const void *data, size_t bytes);
/* A hash of all parameters and buffers that are saved; equal for equal values, however these are divided over ranks.
 * Collective if any value is split over ranks. 0: the device or another rank failed; lk_context_error returns the
 * message. */
LK_API uint64_t lk_store_hash(const lk_store *store);

LK_END_DECLS
#endif
