/* node.c - memory nodes: where each rank runs, and allocation of symmetric memory's pages on the nodes of the ranks
 * that use them. */
#include "comm/shm/shm.h"

#include "base/memory_node.h"

void lk__shm_find_node(lk__shm *s)
{
    int given = lk__memory_nodes_given(s->comm->context);
    s->me->node = lk__memory_node("", s->me->cpus);
    s->me->node_group = given ? (int32_t)((int64_t)s->rank * given / s->size) : s->me->node;
}

/* Nodes are counted in the order of their first ranks. */
static bool is_first(const lk__shm *s, int rank)
{
    int i = 0;
    while (s->rank_slots[i].node_group != s->rank_slots[rank].node_group) i++;
    return i == rank;
}

int lk__shm_nodes(const lk__shm *s)
{
    int count = 0;
    for (int i = 0; i < s->size; i++) count += is_first(s, i);
    return count;
}

int lk__shm_node(const lk__shm *s, int rank)
{
    int count = 0, i = 0;
    for (; s->rank_slots[i].node_group != s->rank_slots[rank].node_group; i++) count += is_first(s, i);
    return count;
}

void lk__shm_place(lk_comm *c, char *memory, size_t bytes)
{
    const lk__shm *s = c->state;
    size_t         stride = bytes / (size_t)s->size;
    bool           placed = true;
    for (int i = 0; i < s->size && s->node_ranges_count == 0; i++)
        placed &= lk__memory_prefer_node(memory + stride * (size_t)i, stride, s->rank_slots[i].node);
    for (size_t i = 0; i < s->node_ranges_count; i++)
        placed &= lk__memory_prefer_node(memory + s->node_ranges[i].first, s->node_ranges[i].bytes,
                                         s->rank_slots[s->node_ranges[i].rank].node);
    if (!placed)
        lk__log(c->context, LK_LOG_WARNING,
                "the kernel does not let this process choose the NUMA node of its pages (mbind): the ranks' shared "
                "memory is on rank 0's NUMA node, which is slower for the other ranks");
}
