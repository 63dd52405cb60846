/* comm/rendezvous/identity.h - which rank this process is, the name of its job, and where the job's ranks join. */
#ifndef LK__IDENTITY_H
#define LK__IDENTITY_H

#include "comm/rendezvous/token.h"

#include <lockstep/comm.h>

typedef struct lk__rendezvous_ports {
    int first, last; /* 0: any free one */
} lk__rendezvous_ports;

typedef struct lk__rendezvous_identity {
    int                  rank, world;
    bool                 many_hosts;    /* as far as the environment shows */
    bool                 local_unknown; /* nothing says how many ranks are on this host: MASTER_ADDR may show it */
    char                 key[192];      /* the job: equal on all its ranks of this host, different for other jobs */
    char                 tried[160];    /* the source of rank and size, for messages */
    char                 address[256];  /* rank 0's, "": not given */
    char                 local[256];    /* where this rank listens, "": on the interface of the route to rank 0 */
    lk__rendezvous_ports master;        /* where rank 0 listens for the others; 0: not given */
    lk__rendezvous_ports ports;         /* where every rank may listen */
    char                 port_from[64]; /* the source of `master`, for messages */
    char                 token[LK__TOKEN_ROOM]; /* the job's shared secret, "": none */
} lk__rendezvous_identity;

/* From config, then the environment: RANK and WORLD_SIZE; the variables of Open MPI, PMI and Slurm; else a world of
 * one. */
lk_status lk__identity_find(lk_context *context, const lk_comm_config *config, lk__rendezvous_identity *identity);
/* "4000" or "4000-4100". */
bool lk__ports_parse(const char *text, lk__rendezvous_ports *ports);

#endif
