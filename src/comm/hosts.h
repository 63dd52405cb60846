/* comm/hosts.h - what a group needs in order to hold something once on every host: the ranks of a host, which have each
 * other's symmetric memory mapped, and sums of which each of them gets a slice, over all ranks of all hosts.
 *
 * Of `each` ranks on every host, those with the same index on their hosts are connected across them. */
#ifndef LK__COMM_HOSTS_H
#define LK__COMM_HOSTS_H

#include <lockstep/comm.h>

/* On how many hosts the ranks are, where each has the same number of consecutive ranks, two or more, with common
 * memory. Otherwise 0, and *why, unless NULL, continues "the ranks of this group": "have no memory in common". */
int lk__comm_hosts(const lk_comm *comm, const char **why);

/* Done when all ranks of this host have entered it. Collective, of all hosts: each waits for its own ranks only. */
lk_status lk__comm_barrier_host_at(lk_site site, lk_comm *comm);
#define lk__comm_barrier_host(...) lk__comm_barrier_host_at(LK_HERE, __VA_ARGS__)

/* send holds each × count; recv gets the part of this rank's index on its host, reduced over all ranks: within every
 * host, then across the hosts. In place when recv is that part of send. The bits are those of lk_comm_all_reduce where
 * the ranks of a host are a whole subtree of its order (base/tree.h, lk__tree_nests); elsewhere LK_EUNSUPPORTED. */
lk_status lk__comm_reduce_scatter_host_at(lk_site site, lk_comm *comm, const void *send, void *recv, size_t count,
                                          lk_dtype type, lk_reduce_op op, lk_work **work);
#define lk__comm_reduce_scatter_host(...) lk__comm_reduce_scatter_host_at(LK_HERE, __VA_ARGS__)

/* Gathers `count` elements of every rank in the order of ranks, once on every host: recv is the same memory for all
 * ranks of a host, such as one rank's part of symmetric memory (lk__comm_peer). Each of them writes its own part, and
 * those of the ranks with its index on the other hosts. Nothing is written before all ranks of the host have entered
 * it, so a rank that has not may still read what was there; it is done when all of it is there. In place when send is
 * this rank's part of recv. */
lk_status lk__comm_all_gather_host_at(lk_site site, lk_comm *comm, const void *send, void *recv, size_t count,
                                      lk_dtype type, lk_work **work);
#define lk__comm_all_gather_host(...) lk__comm_all_gather_host_at(LK_HERE, __VA_ARGS__)

/* Reduces data over the ranks with this one's index, one of every host, in place; on one host nothing. */
lk_status lk__comm_all_reduce_across_at(lk_site site, lk_comm *comm, void *data, size_t count, lk_dtype type,
                                        lk_reduce_op op);
#define lk__comm_all_reduce_across(...) lk__comm_all_reduce_across_at(LK_HERE, __VA_ARGS__)

#endif
