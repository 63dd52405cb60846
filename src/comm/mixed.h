/* comm/mixed.h - the state of a mixed group, and its parts: mixed_create.c, mixed_layers.c (hierarchical collectives)
 * and mixed_transfer.c (send and receive); mixed.c has the rest. */
#ifndef LK__MIXED_H
#define LK__MIXED_H

#include "comm/comm.h"

enum { LK__FLAT, LK__LOCAL, LK__ACROSS, LK__GROUPS }; /* see mixed.c */

typedef struct lk__comm_mixed {
    lk_comm          *groups[LK__GROUPS]; /* NULL: not needed */
    int               hosts, host;        /* how many, and the index of this one */
    int               each, local_rank;   /* ranks of this host, and this rank's index among them */
    int              *neighbours;         /* by rank: its index on this host; -1: on another host */
    bool              ordered;            /* ranks are numbered host by host */
    bool              regular;            /* that, and every host has the same number of them, two or more */
    bool              layered;            /* that, and the ranks of a host are a subtree of the canonical order */
    char             *scratch;
    size_t            scratch_bytes;
    struct submitted *spare;                  /* of transfers, to be used again: mixed_transfer.c */
    size_t           *counts, *displacements; /* by host, for calls among the ranks across; NULL: there are none */
} lk__comm_mixed;

/* Runs a call on one of the groups, in this thread. */
lk_status lk__mixed_run(const lk__comm_mixed *mixed, int group, const lk__comm_call *operation);

lk_status lk__mixed_failure(lk_comm *comm); /* of one of the groups, which is raised in all of them */

/* mixed_layers.c. After all ranks have entered; a failure comes from one of the groups, or from this rank alone. */
bool      lk__mixed_fits_layers(const lk__comm_mixed *mixed, const lk__comm_call *operation);
lk_status lk__mixed_layered(lk_comm *comm, const lk__comm_call *operation);

/* mixed_transfer.c */
void      lk__mixed_transfer(lk_comm *comm, lk_work *first);
lk_status lk__mixed_reserve_transfers(lk_comm *comm, int count);
void      lk__mixed_free_transfers(lk_comm *comm);
/* lk_comm.crossed of the local group. */
lk_status lk__mixed_check_crossed(lk_comm *comm, int neighbour, const lk__comm_call *transfer);

/* mixed_create.c */
lk_status lk__mixed_create(lk_comm *comm, const struct lk__rendezvous_identity *identity);
lk_status lk__mixed_split(lk_comm *parent, lk_comm *comm, const lk__comm_member *all, const int *ranks);
void      lk__mixed_free(lk_comm *comm);

#endif
