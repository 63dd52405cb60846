/* comm/hosts.h - what a group needs in order to keep one copy of something on every host: the ranks of a host, which
 * map each other's symmetric memory, and sums over all ranks of all hosts, of which each rank of a host gets a slice.
 *
 * Of `each` ranks on every host, those with the same index on their hosts are connected across them. */
#ifndef LK__COMM_HOSTS_H
#define LK__COMM_HOSTS_H

#include <lockstep/comm.h>

/* The number of hosts of the ranks, if each host has the same number of consecutive ranks, two or more, with common
 * memory. Otherwise 0, and *why, unless NULL, continues "the ranks of this group": "have no memory in common". */
int lk__comm_hosts(const lk_comm *comm, const char **why);

/* Returns when all ranks of this host have entered it. A collective of all hosts, in which each rank waits only for the
 * ranks of its host. */
lk_status lk__comm_barrier_host_at(lk_site site, lk_comm *comm);
#define lk__comm_barrier_host(...) lk__comm_barrier_host_at(LK_HERE, __VA_ARGS__)

/* send holds each × count; recv gets the part of this rank's index on its host, reduced over all ranks: within every
 * host, then across the hosts. In place when recv is that part of send. The bits are the same as with
 * lk_comm_all_reduce where the ranks of a host are a whole subtree of its order (base/tree.h, lk__tree_nests);
 * elsewhere LK_EUNSUPPORTED. */
lk_status lk__comm_reduce_scatter_host_at(lk_site site, lk_comm *comm, const void *send, void *recv, size_t count,
                                          lk_dtype type, lk_reduce_op op, lk_work **work);
#define lk__comm_reduce_scatter_host(...) lk__comm_reduce_scatter_host_at(LK_HERE, __VA_ARGS__)

/* Gathers `count` elements of every rank in the order of ranks, once on every host: recv is the same memory for all
 * ranks of a host, such as one rank's part of symmetric memory (lk__comm_peer). Each of them writes its own part, and
 * the parts of the ranks with its index on the other hosts. Nothing is written before all ranks of the host have
 * entered it, so a rank that has not may still read what was there; it is done when all of it is there. In place when
 * send is this rank's part of recv. */
lk_status lk__comm_all_gather_host_at(lk_site site, lk_comm *comm, const void *send, void *recv, size_t count,
                                      lk_dtype type, lk_work **work);
#define lk__comm_all_gather_host(...) lk__comm_all_gather_host_at(LK_HERE, __VA_ARGS__)

/* Reduces data in place over the ranks with this rank's index, one on every host; does nothing on one host. */
lk_status lk__comm_all_reduce_across_at(lk_site site, lk_comm *comm, void *data, size_t count, lk_dtype type,
                                        lk_reduce_op op);
#define lk__comm_all_reduce_across(...) lk__comm_all_reduce_across_at(LK_HERE, __VA_ARGS__)

#endif
