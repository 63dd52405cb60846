/* host_memory.c - adds the memory of the ranks of a host. What they share counts once. */
#include "host_memory.h"

#include <lockstep/launch.h>

const char *size_text(size_t bytes, char out[SIZE_TEXT])
{
    double mib = (double)bytes / 1048576;
    if (mib < 10000)
        snprintf(out, SIZE_TEXT, "%.1f MiB", mib);
    else
        snprintf(out, SIZE_TEXT, "%.1f GiB", mib / 1024);
    return out;
}

bool host_memory_used(lk_context *context) { return lk_context_on_host(context); }

/* The first host has one more where they are not divided evenly. */
static int ranks_of_host(const lk_trainer_config *config)
{
    int hosts = config->plan_hosts > 1 ? config->plan_hosts : 1,
        world = config->plan_world > 1 ? config->plan_world : 1;
    return config->comm ? lk_comm_local_size(config->comm) : (world + hosts - 1) / hosts;
}

host_memory host_memory_sum(lk_context *context, const lk_trainer_config *config, const lk_plan *plan,
                            const size_t memory[LK_MEMORY_COUNT])
{
    host_memory m = {.ranks = ranks_of_host(config), .nodes = 1, .parts = 1};
    if (lk_plan_state(plan) == LK_STATE_SHARED && lk_launch_nodes(context, m.ranks, &m.nodes) < 0) return m;
    for (int kind = 0; kind < LK_MEMORY_COUNT; kind++) {
        lk_holder holder = lk_plan_holder(plan, (lk_memory)kind);
        if (kind == LK_MEMORY_OTHER) continue;
        *(holder == LK_HELD_BY_RANK ? &m.rank : holder == LK_HELD_BY_NODE ? &m.copy : &m.common) += memory[kind];
    }
    if (config->mesh && m.common + m.copy)
        m.parts = lk_mesh_extent(config->mesh, LK_AXIS_TENSOR) * lk_mesh_extent(config->mesh, LK_AXIS_PIPELINE);
    m.common = (size_t)m.parts * (m.common + (size_t)m.nodes * m.copy);
    m.host = m.common + (size_t)m.ranks * m.rank;
    m.possible = true;
    m.shared = lk_plan_state(plan) == LK_STATE_SHARED;
    return m;
}

host_memory host_memory_plan(lk_context *context, const lk_trainer_config *config)
{
    host_memory m = {.possible = false};
    lk_graph   *graph = NULL;
    lk_plan    *plan = NULL;
    size_t      memory[LK_MEMORY_COUNT];
    if (lk_trainer_plan(context, config, &graph, &plan, memory) < 0) return m;
    m = host_memory_sum(context, config, plan, memory);
    lk_plan_free(plan);
    lk_graph_free(graph);
    return m;
}

lk_status host_memory_check(const setup *s, const host_memory *m)
{
    char who[48];
    if (!m->possible || !host_memory_used(s->context)) return LK_OK;
    if (s->config.comm)
        return lk_comm_check_memory(s->config.comm, m->rank + (m->common + (size_t)m->ranks - 1) / (size_t)m->ranks);
    snprintf(who, sizeof who, "the %d ranks", m->ranks);
    lk_status status = lk_context_check_memory(s->context, m->ranks > 1 ? who : NULL, m->host);
    /* and each of them what it maps, which a limit of processes may be below */
    return status < 0 || m->ranks == 1
               ? status
               : lk_context_check_memory(s->context, NULL, m->rank + m->common / (size_t)m->parts);
}
