/* memory_nodes.c - memory nodes of the ranks of a host, for groups on one host and on several hosts. */
#include "comm/memory_nodes.h"

#include "comm/shm/shm.h"

static lk__shm *local_group(const lk_comm *c) { return c->backend->shared ? c->backend->shared(c) : NULL; }

int lk__comm_nodes(const lk_comm *c)
{
    const lk__shm *s = local_group(c);
    return s ? lk__shm_nodes(s) : 1;
}

int lk__comm_node(const lk_comm *c, int rank)
{
    const lk__shm *s = local_group(c);
    return s ? lk__shm_node(s, rank) : 0;
}

lk_status lk__comm_alloc_on_nodes(lk_comm *c, size_t bytes, const lk__comm_node_range *ranges, size_t count,
                                  void **memory)
{
    lk__shm *s = local_group(c);
    if (s) s->node_ranges = ranges, s->node_ranges_count = count;
    lk_status status = lk_comm_alloc(c, bytes, memory);
    if (s) s->node_ranges = NULL, s->node_ranges_count = 0;
    return status;
}
