/* comm/abort.h - ending a group because of another rank, for layers that need nothing else of a group's inside. */
#ifndef LK__ABORT_H
#define LK__ABORT_H

#include <lockstep/comm.h>

/* As lk_comm_abort on `rank`, by any rank that was told why that one cannot go on. */
void lk__comm_abort_for(lk_comm *comm, int rank, const char *why);

#endif
