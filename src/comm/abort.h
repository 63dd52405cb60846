/* comm/abort.h - aborting a group because of another rank, and other ranks' parts of its symmetric memory, for layers
 * that need no other internals of a group. */
#ifndef LK__ABORT_H
#define LK__ABORT_H

#include <lockstep/comm.h>

/* Like lk_comm_abort on `rank`, called by any rank that knows why that one failed. */
void lk__comm_abort_for(lk_comm *comm, int rank, const char *why);

/* Where this process has `rank`'s part of symmetric memory, of the ranks of this host, which are numbered from 0 here;
 * memory: what lk_comm_alloc gave this rank. The parts of all these ranks follow each other: with n of them,
 * lk_comm_alloc of an n-th of some bytes gives them room from rank 0's part on. Only where lk__comm_hosts (hosts.h) is
 * above 0. */
char *lk__comm_peer(const lk_comm *comm, const void *memory, int rank);

/* Operations of `comm` may then use symmetric memory of the group `of` like the memory of their own group: without a
 * copy where the ranks of `comm`, all of which are in `of`, have it mapped. All of them call it, in the same order
 * among their adoptions and allocations, and while no operation runs. Of memory that lk_comm_release of `of` frees,
 * until lk_comm_release of `comm`, which only forgets it, or lk_comm_free. */
lk_status lk__comm_adopt(lk_comm *comm, const lk_comm *of, void *memory);

#endif
