/* comm_limit.h - what a host's memory allows a collective between processes that share it. */
#ifndef CLI_COMM_LIMIT_H
#define CLI_COMM_LIMIT_H

#include <lockstep/comm.h>

/* Seconds that the ranks need to move the bytes of the collective `op` between buffers of `bytes` that all of them map, without adding and
 * without waiting for each other: what comm_limit_count says. NAN where the ranks cannot map the same memory. Collective. */
lk_status comm_limit_measure(lk_comm *comm, const char *op, size_t bytes, double *seconds);

/* What a rank moves at least, in words: of N ranks with buffers of S bytes. */
const char *comm_limit_count(const char *op);

#endif
