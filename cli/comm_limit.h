/* comm_limit.h - what a host's memory allows a collective between processes that share it. */
#ifndef CLI_COMM_LIMIT_H
#define CLI_COMM_LIMIT_H

#include <lockstep/collective.h>

/* Seconds that the ranks need to move the bytes of a collective between buffers of `bytes` that all of them map,
 * without adding and without waiting for each other: what its `traffic` says. NAN where the ranks cannot map the same
 * memory. Collective. */
lk_status comm_limit_measure(lk_comm *comm, const lk_collective *collective, size_t bytes, double *seconds);
/* Whether it is measured with a buffer for what is sent and one for what is received; otherwise it is in place. */
bool comm_limit_needs_two(const lk_collective *collective);

#endif
