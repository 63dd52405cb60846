/* shared_buffers.c - decides whether the ranks of a host can share one copy of their buffers, as they share parameters:
 * if nothing writes to buffers in training, or if all ranks compute the values that are written (synchronised batch
 * norm), so that one of them writes it.
 *
 * The write needs no extra wait. It comes after the collective that sums the statistics, which all ranks enter after
 * their last read of the buffer in this micro-batch, and before the last collective of forward and backward, after
 * which they may read it again. Where the graph does not have this order, each rank has its own buffers. So it has in a
 * pipeline, where the next micro-batch's forward runs before this one's backward. */
#include "plan/plan.h"

static const lk__graph_node *node_at(const lk_plan *p, size_t i) { return &p->train.graph->nodes[p->train.order[i]]; }

static bool writes(const lk__graph_node *n)
{
    return lk__op_find(n->op)->effect == LK__EFFECT_IF_UPDATE && n->attrs.update;
}

/* Whether a node reads or writes the value of a buffer. A batch norm that does not update ignores its running
 * statistics. */
static bool touches(const lk__graph_node *n, int value)
{
    for (int i = 0; i < n->inputs; i++)
        if (n->in[i] == value) return lk__op_find(n->op)->effect != LK__EFFECT_IF_UPDATE || n->attrs.update;
    return false;
}

/* The node that made the statistics which this one applies: input 6 is the wait for their sum. */
static int source_of(const lk_graph *g, const lk__graph_node *apply)
{
    int started = g->nodes[g->values[apply->in[6]].node].in[0];
    int local = g->nodes[g->values[started].node].in[0];
    return g->values[local].node;
}

/* Nothing but a batch norm, and the node that makes its statistics, touches the buffers that it writes. */
static bool is_alone(const lk_plan *p, size_t at)
{
    const lk_graph       *g = p->train.graph;
    const lk__graph_node *writer = node_at(p, at);
    int                   source = source_of(g, writer);
    for (int i = 3; i < 6; i++) {
        if (writer->in[i] < 0) continue;
        for (size_t k = 0; k < p->train.order_count; k++)
            if (k != at && p->train.order[k] != source && touches(node_at(p, k), writer->in[i])) return false;
    }
    return true;
}

/* Whether any stage of a pipeline writes a buffer: the list of a stage has only its own nodes, and all must agree. */
static bool records_write(const lk_plan *p)
{
    for (size_t i = 0; i < p->graph->nodes_count; i++)
        if (writes(&p->graph->nodes[i])) return true;
    return false;
}

void lk__plan_share_buffers(lk_plan *p)
{
    size_t last_write = 0, last_collective = 0;
    bool   common = true;
    for (size_t i = 0; i < p->graph->nodes_count; i++) /* in evaluation, by each rank as it likes */
        if (lk__op_find(p->graph->nodes[i].op)->effect == LK__EFFECT_CACHE) p->writes_buffers = true, common = false;
    for (size_t i = 0; i < p->train.order_count; i++) {
        const lk__graph_node *n = node_at(p, i);
        if (lk__op_find(n->op)->runs == LK__RUNS_COLLECTIVE && !n->attrs.mesh && !lk__plan_is_bucket(p->train.graph, n))
            last_collective = i;
        if (!writes(n)) continue;
        p->writes_buffers = true;
        last_write = i;
        common &= n->op == LK__OP_batch_norm_apply && is_alone(p, i);
    }
    p->own_buffers = p->pipeline ? records_write(p) : p->writes_buffers && !common;
    p->shares_buffers = p->shared && common && (!p->writes_buffers || (!p->pipeline && last_write < last_collective));
}
