/* comm/place.h - which rank this process is, where its job meets, and under which name. */
#ifndef LK__IDENTITY_H
#define LK__IDENTITY_H

#include "comm/rendezvous/token.h"

#include <lockstep/comm.h>

typedef struct lk__rendezvous_ports {
    int first, last; /* 0: any free one */
} lk__rendezvous_ports;

typedef struct lk__rendezvous_identity {
    int                  rank, world;
    bool                 many_hosts;    /* as far as the environment tells */
    char                 key[192];      /* the job: the same on all its ranks of this host, different for every other */
    char                 tried[160];    /* where rank and size came from, for messages */
    char                 address[256];  /* rank 0's, "" where nobody said */
    char                 local[256];    /* where this rank listens, "": on the interface that leads to rank 0 */
    lk__rendezvous_ports master;        /* where rank 0 listens for the others; 0: nobody said */
    lk__rendezvous_ports ports;         /* where every rank may listen */
    char                 port_from[64]; /* who said it, for messages */
    char                 token[LK__TOKEN_ROOM]; /* what they prove to know, "" nothing */
} lk__rendezvous_identity;

/* From config, then the environment: RANK and WORLD_SIZE; Open MPI's, PMI's and Slurm's words; else a world of one. */
lk_status lk__identity_find(lk_context *context, const lk_comm_config *config, lk__rendezvous_identity *place);
/* "4000" or "4000-4100". */
bool lk__ports_parse(const char *text, lk__rendezvous_ports *ports);

#endif
