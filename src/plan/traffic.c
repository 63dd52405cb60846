/* traffic.c - what a rank sends to others in a step, by the axes of the mesh along which they are. */
#include "plan/traffic.h"
#include "plan/leaf_stack.h"

#include "base/collective.h"
#include "plan/instruction.h"

static double value_bytes(const lk_graph *g, int v)
{
    const lk__graph_shape *shape = &g->values[v].shape;
    return (double)lk__shape_elements(shape) * (double)lk_dtype_size(shape->dtype) / lk__value_ranks(g, v);
}

unsigned lk__plan_collective_axes(const lk_plan *p, const lk__graph_node *n)
{
    return lk__mesh_used_axes(&p->mesh, n->attrs.mesh ? n->attrs.mesh : LK__PLAN_BATCH_AXES);
}

/* Of N ranks each sends (N-1)/N of what is gathered or scattered, and twice as much for a sum that all receive. */
double lk__plan_collective_bytes(const lk_plan *p, const lk_graph *g, const lk__graph_node *n)
{
    const lk__collective_facts *facts = &lk__collectives[lk__op_find(n->op)->collective];
    double                      ranks = lk__mesh_extent(&p->mesh, lk__node_axes(n)), hosts = p->parallel.hosts;
    double                      sent = facts->sends_parts ? value_bytes(g, n->in[0]) : value_bytes(g, n->out[0]);
    double                      ways = facts->reduces && !facts->sends_parts ? 2 : 1;
    if (n->attrs.group != LK__GROUP_DATA_BY_HOST) return ways * (ranks - 1) / ranks * sent;
    if (!facts->reduces) return p->host.hosts * sent / ranks; /* its part, once to every host */
    double owners = lk__plan_owners(p);                       /* on every host, and then of the slices between hosts */
    return (owners - 1) / owners * sent + 2 * (hosts - 1) / hosts * sent / owners;
}

static void add_traffic(lk_traffic *all, int *count, int most, unsigned axes, lk_traffic one)
{
    int i = 0;
    while (i < *count && all[i].axes != axes) i++;
    if (i == most) return;
    if (i == *count) all[(*count)++] = (lk_traffic){.axes = axes};
    all[i].collectives += one.collectives;
    all[i].bytes += one.bytes;
}

int lk_plan_traffic(const lk_plan *p, lk_traffic *traffic, int most)
{
    const lk__plan_list *list = &p->train;
    lk_traffic           all[1 << LK__MESH_AXES];
    int                  count = 0;
    int                  runs = lk__plan_runs(p);
    for (size_t i = 0; p->trains && i < list->order_count; i++) {
        const lk__graph_node *n = &list->graph->nodes[list->order[i]];
        int                   each = i >= list->end[LK_BACKWARD] ? 1 : runs;
        if (n->op == LK__OP_send) /* to another stage */
            add_traffic(all, &count, 1 << LK__MESH_AXES, n->attrs.mesh,
                        (lk_traffic){.collectives = each, .bytes = each * value_bytes(list->graph, n->in[0])});
        if (lk__op_find(n->op)->runs != LK__RUNS_COLLECTIVE) continue;
        unsigned axes = lk__plan_collective_axes(p, n);
        if (!axes) continue; /* leaves of one rank */
        /* whole gradients are reduced behind the last micro-batch, slices of them behind each */
        bool bucket = !lk__plan_scatters(p) && lk__plan_is_bucket(list->graph, n);
        int  times = bucket ? 1 : each;
        add_traffic(all, &count, 1 << LK__MESH_AXES, axes,
                    (lk_traffic){.collectives = times, .bytes = times * lk__plan_collective_bytes(p, list->graph, n)});
    }
    for (int i = 0; i < count && i < most; i++) traffic[i] = all[i];
    return count;
}
