/* nodes.c - the resources of ranks on a host before they are started: the number of memory nodes (NUMA) that they use,
 * and how much memory each may allocate. */
#define _GNU_SOURCE
#include "launch/launch.h"

#include "base/limits.h"
#include "base/memory_node.h"

static int node_of(const cpu_set_t *cores)
{
    uint64_t words[LK__CPU_WORDS] = {0};
    for (int cpu = 0; cpu < CPU_SETSIZE && cpu < 64 * LK__CPU_WORDS; cpu++)
        if (CPU_ISSET(cpu, cores)) words[cpu / 64] |= (uint64_t)1 << cpu % 64;
    return lk__memory_node("", words);
}

lk_status lk_launch_nodes(lk_context *context, int ranks, int *nodes)
{
    cpu_set_t *cores = NULL;
    char       text[LK__TOPOLOGY_TEXT];
    int        threads, given = lk__memory_nodes_given(NULL), found[4096];
    *nodes = given < ranks ? given : ranks;
    if (given) return LK_OK;
    *nodes = 1;
    if (ranks < 1 || ranks > (int)(sizeof found / sizeof *found))
        return lk__fail(context, LK_EINVAL, "cannot start %d ranks on one host: expected 1 to 4096", ranks);
    LK__TRY(lk__topology_split(context, ranks, "cpu", &cores, &threads, text));
    if (!cores) return LK_OK; /* they are not pinned, so all have the same */
    *nodes = 0;
    for (int i = 0; i < ranks; i++) {
        int seen = 0;
        found[i] = node_of(&cores[i]);
        while (found[seen] != found[i]) seen++;
        *nodes += seen == i;
    }
    lk__free(context, LK_MEMORY_OTHER, cores, (size_t)ranks * sizeof *cores);
    return LK_OK;
}

size_t lk_launch_rank_memory(void)
{
    lk__memory_limits limits;
    lk__limits_memory("", &limits);
    for (int i = 0; i < limits.count; i++)
        if (limits.all[i].process) return (size_t)limits.all[i].available;
    return SIZE_MAX;
}
