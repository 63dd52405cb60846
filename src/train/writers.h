/* train/writers.h - the ranks that write a checkpoint together: the ranks of a group that see its directory. */
#ifndef LK__WRITERS_H
#define LK__WRITERS_H

#include "base/base.h"

#include <lockstep/comm.h>

typedef struct lk__writers {
    lk_context *context;
    lk_comm    *comm; /* NULL: this process alone */
    int         rank, world;
    int        *ranks; /* that write, ascending; rank 0 always does. NULL: this process alone */
    int         count;
    int         turn; /* this rank's index among them; -1: it does not see the directory */
} lk__writers;

static inline lk__writers lk__writers_alone(lk_context *context)
{
    return (lk__writers){.context = context, .world = 1, .count = 1};
}

/* Finds out which ranks see the directory, which exists at rank 0: by a file with random bytes that it makes there.
 * Collective. comm may be NULL, or of one rank. Free it, also after a failure. */
lk_status lk__writers_find(lk__writers *writers, lk_context *context, lk_comm *comm, const char *directory);
/* The same where each rank knows whether it sees it. Rank 0 does. */
lk_status lk__writers_gather(lk__writers *writers, lk_context *context, lk_comm *comm, bool sees);
void      lk__writers_free(lk__writers *writers); /* not comm */

/* The status of rank 0, with its message, on all ranks, and the text of `bytes` that it has; text may be NULL. */
lk_status lk__writers_tell(const lk__writers *writers, lk_status status, char *text, size_t bytes);
/* The failure of the first rank that has one, with its message, on all ranks; else LK_OK. */
lk_status lk__writers_agree(const lk__writers *writers, lk_status status);
/* Whether the group itself failed: then ranks are no longer in step, and its message names the culprit. */
bool lk__writers_lost(const lk__writers *writers);

/* Around work of unknown length, such as disk writes: it does not count towards the deadlines of other ranks. */
void lk__writers_busy_begin(const lk__writers *writers, const char *what);
void lk__writers_busy_end(const lk__writers *writers);

/* Like lk__writers_tell and lk__writers_agree over any group, NULL for one process. *failed, unless NULL, is the rank
 * that failed where the status is below 0, or stays. */
lk_status lk__group_tell(lk_context *context, lk_comm *comm, int root, lk_status status, int *failed);
lk_status lk__group_agree(lk_context *context, lk_comm *comm, lk_status status, int *failed);

#endif
