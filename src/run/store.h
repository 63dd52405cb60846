/* run/store.h - the internals of a store: one block of memory per kind, laid out by the plan. Of a store that the ranks of a host share,
 * the blocks of parameters, master copies, optimizer state and, where all ranks compute the same, buffers are in symmetric memory, once
 * for all ranks of the host. On several hosts each has its own, and they are replicas of each other. */
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

    lk_comm  *comm;            /* of the ranks that share it, on all hosts; NULL: it is this rank's own */
    int       sharers, sharer; /* ranks of this host, and this one's index among them */
    void     *symmetric;       /* this rank's part of their memory */
    int       nodes, node;     /* memory nodes of the host's ranks, each with a copy of what all read; this rank's */
    char     *copies;          /* of all nodes, copy_bytes each: parameters, and buffers if they are shared */
    size_t    copy_bytes;
    bool      writes_buffers; /* this rank writes shared buffers: the first rank of each node */
    bool      alone;          /* rank 0 loads it while the others wait: nothing is collective, and it is on one host */
    lk_status failure;        /* below 0: an update or a write failed when the state may have been partly new */
    char      failure_text[LK__STORE_TEXT];
};

int lk__find_state(const lk_graph *graph, const char *name); /* its index, or -1; second names of tied weights count */

/* ---- slice.c: by index instead of name, in bytes, unchecked ---- */
/* The device's memory of a part; of a value, the master copy where there is one. */
char *lk__store_memory(const lk_store *store, size_t index, lk_state_part part);
/* The master copy to the stored one, where there are two, of this node and all others; in elements. */
lk_status lk__store_round(lk_store *store, size_t index, size_t first, size_t count);
lk_status lk__store_read_bytes(const lk_store *store, size_t index, lk_state_part part, size_t first, void *data,
                               size_t bytes);
lk_status lk__store_write_bytes(lk_store *store, size_t index, lk_state_part part, size_t first, const void *data,
                                size_t bytes);
lk_status lk__store_hash_state(const lk_store *store, size_t index, uint64_t seed, uint64_t *hash); /* of its value */
lk_status lk__store_finite(const lk_store *store, size_t index, bool *finite); /* its value; integers are */

/* Whether ranks hold this state together, or their buffers, with the constants behind them. */
static inline bool lk__store_shares_buffers(const lk_store *s) { return s->comm && s->plan->shares_buffers; }
static inline bool lk__store_shares(const lk_store *s, size_t index)
{
    return s->plan->graph->states[index].buffer ? lk__store_shares_buffers(s) : s->comm != NULL;
}
/* Whether this rank writes what all ranks compute for the buffers that they share. */
static inline bool lk__store_writes_buffers(const lk_store *s)
{
    return !lk__store_shares_buffers(s) || s->writes_buffers;
}

/* Hosts that have a copy of what ranks share. */
static inline int lk__store_hosts(const lk_store *s) { return s->comm ? lk_comm_size(s->comm) / s->sharers : 1; }

/* ---- store_shared.c ---- */
lk_status lk__store_alloc_shared(lk_store *store); /* collective: parameters, master, optimizer and shared buffers */
void      lk__store_free_shared(lk_store *store);
/* store_nodes.c: the memory, and where in it everything is. Collective. */
lk_status lk__store_alloc_nodes(lk_store *store);
/* Copies what this rank has written among its node's parameters and shared buffers to the copies of the other nodes; or all of them. */
void lk__store_spread(const lk_store *store, const void *from, size_t bytes);
void lk__store_spread_all(const lk_store *store);
/* The failure because of which the state cannot be used, or LK_OK. */
lk_status lk__store_check(const lk_store *store);
/* status below 0: an update or a write failed, when this rank, or another, may have changed some of the state. Returns status. */
lk_status lk__store_invalidate(lk_store *store, lk_status status);
/* Around writes by all ranks, of which those of the first rank of every host count: collective, unless the store is private, or `alone`. The
 * second shares the status: a failure of one rank is one of all. */
lk_status lk__store_write_begin(lk_store *store);
lk_status lk__store_write_end(lk_store *store, lk_status status);
/* The same for one write, which must be the same on all ranks. */
lk_status lk__store_write_shared(lk_store *store, size_t index, lk_state_part part, size_t first, const void *data,
                                 size_t bytes);

/* store_hosts.c: makes the copies of all hosts that of rank 0's. Collective. */
lk_status lk__store_broadcast(lk_store *store);

/* verify.c: compares the ranks' programs, line by line. Collective. *first_chooses: whether rank 0's device chooses among algorithms. */
lk_status lk__verify_plans(const lk_plan *plan, lk_comm *comm, bool *first_chooses);

/* store.c: where a device other than the host has no memory, adds to the message what the plan needs. Returns status. */
lk_status lk__explain_memory(const lk_plan *plan, lk_status status);

#endif
