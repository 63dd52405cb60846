/* comm/place.h - which rank this process is, and the name under which its job meets. */
#ifndef LK__PLACE_H
#define LK__PLACE_H

#include "base/base.h"

#include <lockstep/comm.h>

typedef struct lk__place {
    int  rank, world;
    char key[192];   /* the job: the same on all its ranks, different for every other */
    char tried[160]; /* where rank and size came from, for messages */
} lk__place;

/* From config, then the environment: RANK and WORLD_SIZE; Open MPI's, PMI's and Slurm's words; else a world of one. */
lk_status lk__place_find(lk_context *context, const lk_comm_config *config, lk__place *place);

#endif
