/* comm/memory_nodes.h - on which memory nodes (NUMA) the ranks of a host run, and symmetric memory on the nodes of the
 * ranks that use it. */
#ifndef LK__NEAR_H
#define LK__NEAR_H

#include <lockstep/comm.h>

/* How many memory nodes the ranks of this host run on, and which of them `rank` does: from 0, in the order of their
 * first ranks. Ranks are those of this host, numbered from 0 here and below. One node, where they have no memory in
 * common. Each rank runs on the node that has most of its cores, unless LOCKSTEP_MEMORY_NODES says otherwise. */
int lk__comm_nodes(const lk_comm *comm);
int lk__comm_node(const lk_comm *comm, int rank);

/* Bytes of symmetric memory, counted from rank 0's part, that `rank` uses most. */
typedef struct lk__comm_node_range {
    size_t first, bytes;
    int    rank;
} lk__comm_node_range;

/* Like lk_comm_alloc, but with these ranges on the nodes of these ranks as far as the kernel allows; a page is where
 * its first byte belongs. Memory from lk_comm_alloc itself is on the node of the rank whose part it is. On every host,
 * only rank 0's list counts. */
lk_status lk__comm_alloc_on_nodes(lk_comm *comm, size_t bytes, const lk__comm_node_range *ranges, size_t count,
                                  void **memory);

#endif
