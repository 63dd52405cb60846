/* train/load_group.h - reading a checkpoint by all ranks that see it: each verifies and reads a part, and sends it to
 * the ranks that have memory for it. Rank 0 decides what is done; the other ranks do it. */
#ifndef LK__LOAD_GROUP_H
#define LK__LOAD_GROUP_H

#include "train/checkpoint.h"

typedef struct lk__load_group {
    lk_store *store;
    lk_comm  *comm;   /* of two ranks or more */
    bool      busy;   /* rank 0: it is, outside of these calls (lk_comm_busy_begin) */
    bool      loaded; /* rank 0: all ranks have what was loaded last */
    lk_status written; /* by lk__load_group_write here: below 0, the first failure */
    void     *staging; /* of the others, for what rank 0 sends; NULL: nothing yet */
} lk__load_group;

enum { LK__LOAD_GROUP_WRITE = 1 << 18 }; /* bytes at a time, at most */

/* Rank 0: lk_checkpoint_load, by all ranks where possible. Otherwise only this rank loads it, and group->loaded is
 * false. checkpoint_read.c */
lk_status lk__checkpoint_load_group(lk_store *store, lk__load_group *group, const char *directory,
                                    lk_progress *progress);

/* Rank 0, while the others are in lk__load_group_serve. Compares the chunks of a step's directory, whose state has
 * digests of them. */
lk_status lk__load_group_verify(lk__load_group *group, const char *directory, const lk__state *state);
/* Loads model and optimizer. LK_END: the files are not as this store would write them, in another precision for
 * example: rank 0 must load them alone. */
lk_status lk__load_group_load(lk__load_group *group, const char *directory, const lk__state *state);
/* Weights of files that no group reads together. Where ranks have slices, which rank 0 has no memory for, it sends what
 * it reads, and every rank writes its part; otherwise (false) it writes all of it and replicates it afterwards. */
bool      lk__load_group_writes(const lk__load_group *group);
lk_status lk__load_group_write(lk__load_group *group, const lk__exchange_range *range, const void *data);
lk_status lk__weights_load_group(lk_store *store, lk__load_group *group, const char *path); /* checkpoint_read.c */
lk_status lk__weights_load_partial_group(lk_store *store, lk__load_group *group, const char *path,
                                         lk_load_report **report);
lk_status lk__load_group_end(lk__load_group *group); /* the others return; a failed write of any is a failure of all */

/* For the other ranks. A failure of the group ends it; rank 0 reports other failures. */
lk_status lk__load_group_serve(lk__load_group *group);

#endif
