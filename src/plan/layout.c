/* layout.c - removes what nothing reads, and decides how images are stored: as the operations' descriptors and the
 * device's kernels require, with a copy where two require different layouts. */
#include "plan/plan.h"

#include <string.h>

/* Images are stored as the device wants them. */
static lk__graph_layout device_layout(const lk_graph *g, lk__graph_layout layout)
{
    bool last = lk__context_device(g->context)->backend->kernels.channels_last;
    return layout == LK__LAYOUT_LAST && !last ? LK__LAYOUT_ROWS : layout;
}

/* The layout that the operation's kernels require of input i. */
static lk__graph_layout input_layout(const lk_graph *g, const lk__graph_node *n, int i)
{
    lk__graph_layout layout = device_layout(g, lk__op_input(lk__op_find(n->op), i)->layout);
    if (layout != LK__LAYOUT_FOLLOW) return layout;
    for (int j = 1; j < n->inputs; j++) /* operands that are broadcast are read by their axes */
        if (n->in[j] >= 0 && !lk__shape_equal(&g->values[n->in[0]].shape, &g->values[n->in[j]].shape))
            return LK__LAYOUT_ROWS;
    return layout;
}

/* The layout of output i. */
static lk__graph_layout output_layout(const lk_graph *g, const lk__graph_node *n, int i)
{
    lk__graph_layout layout = device_layout(g, lk__op_find(n->op)->out[i].layout);
    return layout == LK__LAYOUT_FOLLOW ? input_layout(g, n, 0) : layout;
}

typedef struct layout {
    lk__plan_list *list;
    bool          *needed;    /* by node */
    bool          *read;      /* by value: by a node that is needed, or from outside */
    int           *converted; /* by value: its copy in the other layout, or 0 */
    size_t         values;    /* that exist before conversions are added */
} layout;

static void mark_read(layout *l, int v)
{
    if (v < 0) return;
    l->read[v] = true;
    if (l->list->graph->values[v].kind == LK__VALUE_RESULT) l->needed[l->list->graph->values[v].node] = true;
}

static void mark_needed(layout *l)
{
    lk__plan_list *list = l->list;
    lk_graph      *g = list->graph;
    for (int i = 0; i < list->numbers_count; i++) mark_read(l, list->numbers[i]);
    mark_read(l, list->norm);
    for (int i = 0; i < list->outputs_count; i++) mark_read(l, list->outputs[i]);
    if (list->gradients)
        for (size_t i = 0; i < g->states_count; i++) mark_read(l, list->gradients[i]);
    for (size_t i = g->nodes_count; i-- > 0;) {
        const lk__graph_node *n = &g->nodes[i];
        if (!n->dead && (lk__plan_has_effect(n) || lk__plan_is_bucket(g, n) || lk__plan_is_unit(g, n)))
            l->needed[i] = true;
        if (n->dead || !l->needed[i]) continue;
        for (int j = 0; j < n->inputs; j++) mark_read(l, n->in[j]);
    }
}

static lk_status append_node(lk__plan_list *list, int node)
{
    if (lk__grow(list->graph->context, (void **)&list->order, &list->order_capacity, list->order_count + 1,
                 sizeof(int)) < 0)
        return LK_ENOMEM;
    list->order[list->order_count++] = node;
    return LK_OK;
}

/* v in the required layout; the copy, if needed, is made just before it is first read. */
static int convert(layout *l, int v, bool last)
{
    lk_graph *g = l->list->graph;
    if (v < 0 || g->values[v].channels_last == last || g->values[v].shape.rank != 4) return v;
    if ((size_t)v < l->values && l->converted[v]) return l->converted[v];
    const lk__graph_shape shape = g->values[v].shape;
    /* One channel, or one pixel: the same bytes either way. */
    bool   same = shape.dims[1] == 1 || shape.dims[2] * shape.dims[3] == 1;
    lk__op op = same ? LK__OP_reshape : last ? LK__OP_to_channels_last : LK__OP_to_channels_first;
    int    node = lk__emit_shaped(g, g->values[v].site, op, NULL, &v, 1, &shape, 1);
    if (node < 0 || append_node(l->list, node) < 0) return -1;
    int copy = g->nodes[node].out[0];
    g->values[copy].channels_last = last;
    g->values[copy].part = g->values[v].part; /* where it is in the whole */
    if ((size_t)v < l->values) l->converted[v] = copy;
    return copy;
}

/* Removes outputs that are made only if they are read, and are not. */
static void drop_unread(const layout *l, lk__graph_node *n)
{
    const lk__graph_op *d = lk__op_find(n->op);
    for (int i = 0; i < n->outputs; i++)
        if (d->out[i].presence == LK__IF_READ && n->out[i] >= 0 && !l->read[n->out[i]]) n->out[i] = -1;
}

static lk_status schedule_node(layout *l, int index)
{
    lk_graph *g = l->list->graph;
    bool      follow_last = false;
    drop_unread(l, &g->nodes[index]);
    for (int i = 0; i < g->nodes[index].inputs; i++) {
        int v = g->nodes[index].in[i];
        if (v >= 0 && g->values[v].channels_last && input_layout(g, &g->nodes[index], i) == LK__LAYOUT_FOLLOW)
            follow_last = true;
    }
    for (int i = 0; i < g->nodes[index].inputs; i++) {
        lk__graph_layout w = input_layout(g, &g->nodes[index], i);
        int              v = g->nodes[index].in[i];
        if (v < 0) continue;
        /* nodes may move */
        int converted = convert(l, v, w == LK__LAYOUT_LAST || (w == LK__LAYOUT_FOLLOW && follow_last));
        if (converted < 0) return LK_ENOMEM;
        g->nodes[index].in[i] = converted;
    }
    for (int i = 0; i < g->nodes[index].outputs; i++) {
        int v = g->nodes[index].out[i];
        if (v < 0 || g->values[v].kind != LK__VALUE_RESULT) continue;
        lk__graph_layout w = output_layout(g, &g->nodes[index], i);
        g->values[v].channels_last =
            g->values[v].shape.rank == 4 && (w == LK__LAYOUT_LAST || (w == LK__LAYOUT_FOLLOW && follow_last));
    }
    return append_node(l->list, index);
}

/* Callers read gradients row-major, like parameters. */
static lk_status convert_gradients(layout *l)
{
    lk__plan_list *list = l->list;
    for (size_t i = 0; list->gradients && i < list->graph->states_count; i++)
        if (list->gradients[i] >= 0 && (list->gradients[i] = convert(l, list->gradients[i], false)) < 0)
            return LK_ENOMEM;
    return LK_OK;
}

lk_status lk__pass_layout(lk__plan_list *list, size_t forward_nodes, size_t backward_nodes, size_t sync_nodes)
{
    lk_graph *g = list->graph;
    size_t    nodes = g->nodes_count, node_bytes = nodes * sizeof(bool), value_bytes = g->values_count * sizeof(int);
    size_t    read_bytes = g->values_count * sizeof(bool);
    layout    l = {.list = list, .values = g->values_count};
    lk_status status = LK_ENOMEM;
    l.needed = lk__alloc(g->context, LK_MEMORY_OTHER, node_bytes);
    l.converted = lk__alloc(g->context, LK_MEMORY_OTHER, value_bytes);
    l.read = lk__alloc(g->context, LK_MEMORY_OTHER, read_bytes);
    if ((node_bytes && !l.needed) || (value_bytes && (!l.converted || !l.read))) goto done;
    mark_needed(&l);
    for (size_t i = 0; i < nodes; i++) {
        if (i == forward_nodes) list->end[LK_FORWARD] = list->order_count;
        if (i == backward_nodes) {
            if (convert_gradients(&l) < 0) goto done;
            list->end[LK_BACKWARD] = list->order_count;
        }
        if (i == sync_nodes) list->end[LK_SYNC] = list->order_count;
        if (!g->nodes[i].dead && l.needed[i] && schedule_node(&l, (int)i) < 0) goto done;
    }
    for (int i = 0; i < list->outputs_count; i++)
        if ((list->outputs[i] = convert(&l, list->outputs[i], false)) < 0) goto done;
    if (forward_nodes >= nodes) list->end[LK_FORWARD] = list->order_count;
    if (backward_nodes >= nodes) list->end[LK_BACKWARD] = list->order_count;
    if (sync_nodes >= nodes) list->end[LK_SYNC] = list->order_count;
    list->end[LK_UPDATE] = list->end[LK_EVALUATE] = list->order_count;
    status = LK_OK;
done:
    lk__free(g->context, LK_MEMORY_OTHER, l.needed, node_bytes);
    lk__free(g->context, LK_MEMORY_OTHER, l.converted, value_bytes);
    lk__free(g->context, LK_MEMORY_OTHER, l.read, read_bytes);
    return status;
}
