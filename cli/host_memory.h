/* host_memory.h - computes the total memory of the ranks of a host, and checks whether this machine has as much. */
#ifndef HOST_MEMORY_H
#define HOST_MEMORY_H

#include "setup.h"

typedef struct host_memory {
    bool   possible;           /* the plan can be made */
    bool   shared;             /* the ranks of a host share their state in it */
    size_t rank, common, host; /* bytes: of one rank alone, of all together, and all of it */
    int    parts;              /* of the state, along tensor: `common` has each once */
    int    ranks;              /* of this host, or of the first of several, which may have one more */
    int    nodes;              /* memory nodes, each of which has a copy of `copy` bytes of what is common of a part */
    size_t copy;
} host_memory;

/* Of a plan of lk_trainer_plan and its memory. */
host_memory host_memory_sum(lk_context *context, const lk_trainer_config *config, const lk_plan *plan,
                            const size_t memory[LK_MEMORY_COUNT]);
host_memory host_memory_plan(lk_context *context, const lk_trainer_config *config); /* plans it */
/* Whether plans are for the host's memory, not a GPU's. */
bool host_memory_used(lk_context *context);

/* LK_ETOOLARGE: this host does not have what all its ranks need. Before they are started: for all of them; in a rank:
 * collective. */
lk_status host_memory_check(const setup *s, const host_memory *memory);

enum { SIZE_TEXT = 32 };
const char *size_text(size_t bytes, char out[SIZE_TEXT]); /* "830.2 MiB", "41.3 GiB" */

#endif
