/* run/store.h - the internals of a store: one block of memory per kind, with this rank's slices of the states as the
 * plan places them (plan/state_slices.h). In a store that the ranks of a host share, the blocks of parameters, master
 * copies, optimizer state and, where all ranks compute the same, buffers are in symmetric memory, once for all ranks of
 * the host. Each of several hosts has its own blocks, which are replicas of each other. In a store that is split over
 * ranks, a block has room only for this rank's slices. */
#ifndef LK__STORE_H
#define LK__STORE_H

#include "plan/plan.h"

#include <lockstep/store.h>

enum { LK__STORE_TEXT = 1024 };

struct lk_store {
    lk_context *context;
    lk_plan    *plan; /* must outlive the store */
    lk__device *device;
    char       *parameters, *master, *buffers, *optimizer; /* the device's memory */
    char       *block;                                     /* all of it; NULL: each is its own allocation */

    /* of the ranks that share it, on all hosts, or have other slices of it; NULL: this rank has all, and for itself */
    lk_comm *group;
    void    *exchange; /* with slices: buffers for what ranks send each other, exchange_bytes */
    size_t   exchange_bytes;
    void    *sliced; /* the same: parameters in symmetric memory of `group`; NULL: they are in memory of this rank */

    /* where ranks share memory: `group`, or the ranks of it that share; NULL: memory is this rank's own */
    lk_comm *comm;
    bool     split_comm;      /* `comm` is a separate group: the ranks of this host that have the same slices */
    int      sharers, sharer; /* ranks of this host that hold one copy, and this one's index among them */
    void    *symmetric;       /* this rank's part of their memory */
    int      nodes, node;     /* memory nodes of the host's ranks, each with a copy of what all read; this rank's */
    char    *copies;          /* of all nodes, copy_bytes each: parameters, and buffers if they are shared */
    size_t   copy_bytes;
    /* what this rank computes for buffers is written: its own, or shared ones by the first rank of each node */
    bool      writes_buffers;
    bool      alone;   /* rank 0 loads it while the others wait: nothing is collective, and it is on one host */
    lk_status failure; /* below 0: an update or a write failed when the state may have been partly new */
    char      failure_text[LK__STORE_TEXT];
};

int lk__find_state(const lk_graph *graph, const char *name); /* its index, or -1; second names of tied weights count */

/* ---- slice.c: by index instead of name, in bytes, unchecked ---- */
/* The array that a part is, with its slices: of a value, the master copy where there is one. */
static inline lk__plan_array lk__store_array(const lk_store *s, size_t index, lk_state_part part)
{
    if (part != LK_STATE_VALUE) return (lk__plan_array)(LK__ARRAY_MOMENT_0 + (part - LK_STATE_MOMENT_0));
    return s->plan->states[index].master ? LK__ARRAY_MASTER : LK__ARRAY_STORED;
}
static inline lk__plan_slices lk__store_slices(const lk_store *s, size_t index, lk_state_part part)
{
    lk__plan_slices slices = lk__plan_state_slices(s->plan, index, lk__store_array(s, index, part));
    if (!s->comm) slices.holder = LK_HELD_BY_RANK; /* a store for evaluation, or a copy of one */
    return slices;
}
/* Whether ranks have different slices of it: then reading it is a collective. */
static inline bool lk__store_splits(const lk_store *s, size_t index, lk_state_part part)
{
    return s->plan->splits && lk__store_slices(s, index, part).parts > 1;
}
/* The device's memory of an array: of this rank's slice of it. */
char *lk__store_array_memory(const lk_store *store, size_t index, lk__plan_array array);
/* The memory of a part. */
char *lk__store_memory(const lk_store *store, size_t index, lk_state_part part);
/* The master copy to the stored one, where there are two of the same slices, of this node and all others; in elements
 * of this rank's slice. */
lk_status lk__store_round(lk_store *store, size_t index, size_t first, size_t count);
/* For bytes that this rank has. */
lk_status lk__store_read_bytes(const lk_store *store, size_t index, lk_state_part part, size_t first, void *data,
                               size_t bytes);
/* What of it this rank has, and, of what ranks share, the first of every host for all. */
lk_status lk__store_write_bytes(lk_store *store, size_t index, lk_state_part part, size_t first, const void *data,
                                size_t bytes);
/* The same, done by this rank whatever its number is. */
lk_status lk__store_write_own(lk_store *store, size_t index, lk_state_part part, size_t first, const void *data,
                              size_t bytes);
/* Both collectives where the array is split over ranks. */
lk_status lk__store_hash_state(const lk_store *store, size_t index, uint64_t seed, uint64_t *hash); /* of its value */
lk_status lk__store_finite(const lk_store *store, size_t index, bool *finite); /* its value; integers are */

/* Who holds one copy of a kind of memory: of a store that ranks share as the plan says, else this rank. */
static inline lk_holder lk__store_holder(const lk_store *s, lk_memory kind)
{
    return s->comm ? lk_plan_holder(s->plan, kind) : LK_HELD_BY_RANK;
}
/* Whether ranks share this state, or their buffers, with the constants after them. */
static inline bool lk__store_shares_buffers(const lk_store *s)
{
    return lk__store_holder(s, LK_MEMORY_BUFFERS) != LK_HELD_BY_RANK;
}
static inline bool lk__store_shares(const lk_store *s, size_t index)
{
    bool buffer = s->plan->graph->states[index].buffer;
    return lk__store_holder(s, buffer ? LK_MEMORY_BUFFERS : LK_MEMORY_PARAMETERS) != LK_HELD_BY_RANK;
}
/* The kinds of memory that states are in, and where a store keeps the address of each. */
enum { LK__STORE_KINDS = 4 };
static inline lk_memory lk__store_kind(int i)
{
    static const lk_memory kinds[LK__STORE_KINDS] = {LK_MEMORY_BUFFERS, LK_MEMORY_PARAMETERS, LK_MEMORY_MASTER,
                                                     LK_MEMORY_OPTIMIZER};
    return kinds[i];
}
static inline char **lk__store_region(lk_store *s, int i)
{
    char **regions[LK__STORE_KINDS] = {&s->buffers, &s->parameters, &s->master, &s->optimizer};
    return regions[i];
}
/* Hosts that have a copy of what ranks share. */
static inline int lk__store_hosts(const lk_store *s) { return s->comm ? lk_comm_size(s->comm) / s->sharers : 1; }

/* ---- store_shared.c ---- */
lk_status lk__store_alloc_shared(lk_store *store); /* collective: parameters, master, optimizer and shared buffers */
void      lk__store_free_shared(lk_store *store);
/* store_nodes.c: the memory, and where in it everything is. Collective. */
lk_status lk__store_alloc_nodes(lk_store *store);
/* Copies what this rank has written among its node's parameters and shared buffers to the copies of the other nodes; or
 * all of them. */
void lk__store_replicate(const lk_store *store, const void *from, size_t bytes);
void lk__store_replicate_all(const lk_store *store);
/* The failure because of which the state cannot be used, or LK_OK. */
lk_status lk__store_check(const lk_store *store);
/* status below 0: an update or a write failed, when this rank, or another, may have changed some of the state. Returns
 * status. */
lk_status lk__store_invalidate(lk_store *store, lk_status status);
/* Around writes by all ranks, of which only the writes of the first rank of every host count: collective, unless the
 * store is private, or `alone`. The second shares the status: a failure of one rank is one of all. */
lk_status lk__store_write_begin(lk_store *store);
lk_status lk__store_write_end(lk_store *store, lk_status status);
/* The same for one write, which must be the same on all ranks. */
lk_status lk__store_write_shared(lk_store *store, size_t index, lk_state_part part, size_t first, const void *data,
                                 size_t bytes);

/* store_split.c: reads of what is split over ranks. Collective; ranks may read different ranges. */
lk_status lk__store_alloc_exchange(lk_store *store);
void      lk__store_free_exchange(lk_store *store);
lk_status lk__store_read_split(const lk_store *store, size_t index, lk_state_part part, size_t first, void *data,
                               size_t bytes);
lk_status lk__store_hash_split(const lk_store *store, size_t index, uint64_t seed, uint64_t *hash);

/* store_hosts.c: makes the copies of all hosts equal to the copy of rank 0's host. Collective. */
lk_status lk__store_broadcast(lk_store *store);

/* verify.c: compares the ranks' programs, line by line. Collective. *first_chooses: whether rank 0's device chooses
 * among algorithms. *overlaps: this rank's lk__plan_group; afterwards, where the state is shared, whether that is so on
 * all ranks. */
lk_status lk__verify_plans(const lk_plan *plan, lk_comm *comm, bool *first_chooses, bool *overlaps);

/* store.c: where a device other than the host has no memory, adds to the message what the plan needs. Returns
 * status. */
lk_status lk__explain_memory(const lk_plan *plan, lk_status status);

#endif
