/* placement_packed.c - operations that read several things side by side in one operand, such as queries, keys and
 * values, and can be cut into more parts where they read slices instead: descriptors know how (lk__graph_op.unpack). */
#include "plan/placement.h"

typedef struct division {
    int64_t               extent;
    const lk__graph_node *first; /* of backward; NULL: there is none */
    size_t                forward;
} division;

static int unpack_node(lk_graph *g, const lk__graph_node *n, void *user)
{
    division           *d = user;
    const lk__graph_op *op = lk__op_find(n->op);
    if (n == d->first) d->forward = g->nodes_count;
    int last = op->unpack ? op->unpack(g, n, d->extent) : LK__NOT_UNPACKED;
    return last == LK__NOT_UNPACKED ? lk__plan_append(g, n) : last;
}

lk_status lk__placement_divide_packed(lk_graph *g, int extent, size_t *forward)
{
    division d = {.extent = extent};
    for (size_t i = *forward; i < g->nodes_count && !d.first; i++)
        if (!g->nodes[i].dead) d.first = &g->nodes[i];
    lk_status status = lk__plan_rebuild(g, unpack_node, &d);
    *forward = d.first ? d.forward : g->nodes_count;
    return status;
}
