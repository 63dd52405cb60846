/* near.c - memory nodes of the ranks of a host, in groups of such ranks and those over several hosts. */
#include "comm/near.h"

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

lk_status lk__comm_alloc_near(lk_comm *c, size_t bytes, const lk__comm_near *ranges, size_t count, void **memory)
{
    lk__shm *s = local_group(c);
    if (s) s->near = ranges, s->near_count = count;
    lk_status status = lk_comm_alloc(c, bytes, memory);
    if (s) s->near = NULL, s->near_count = 0;
    return status;
}
