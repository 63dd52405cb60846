/* comm/abort.h - aborting a group because of another rank, for layers that need no other internals of a group. */
#ifndef LK__ABORT_H
#define LK__ABORT_H

#include <lockstep/comm.h>

/* As lk_comm_abort on `rank`, called by any rank that knows why that one failed. */
void lk__comm_abort_for(lk_comm *comm, int rank, const char *why);

#endif
