/* comm/abort.h - aborting a group because of another rank, and which memory a group reaches, for layers that need no other internals
 * of a group. */
#ifndef LK__ABORT_H
#define LK__ABORT_H

#include <lockstep/comm.h>

/* As lk_comm_abort on `rank`, called by any rank that knows why that one failed. */
void lk__comm_abort_for(lk_comm *comm, int rank, const char *why);

struct lk__device;
/* Whether its operations take addresses of the device's memory. */
bool lk__comm_reaches(const lk_comm *comm, const struct lk__device *device);

#endif
