/* operation.c - records a user's operation as a node; op/custom.c has its descriptor. */
#include "device/custom.h"
#include "graph/graph.h"

/* Adds a copy of the operation to the graph; its number from 1, or 0 with the failure recorded. */
static int64_t add_operation(lk_graph *g, lk_site site, const lk_operation *operation)
{
    lk__kernel_custom *custom;
    if (lk__grow(g->context, (void **)&g->customs, &g->customs_capacity, g->customs_count + 1, sizeof *g->customs) <
        0) {
        lk__graph_no_memory(g);
        return 0;
    }
    lk_status status = lk__custom_create(g->context, site, operation, &custom);
    if (status == LK_ENOMEM)
        lk__graph_no_memory(g);
    else if (status < 0)
        lk__graph_fail(g, site, "%s", lk_context_error(g->context));
    if (status < 0) return 0;
    g->customs[g->customs_count++] = custom;
    return (int64_t)g->customs_count;
}

static int record_operation(lk_graph *g, lk_site site, const lk_operation *operation, const lk_tensor *inputs,
                            int count)
{
    int in[LK_OPERATION_INPUTS];
    if (operation && count != operation->inputs) {
        lk__graph_fail(g, site, "%s takes %d inputs, not %d",
                       operation->name ? operation->name : "an unnamed operation", operation->inputs, count);
        return -1;
    }
    lk__op_attrs attrs = {.custom = add_operation(g, site, operation)};
    if (!attrs.custom) return -1;
    for (int i = 0; i < count; i++) in[i] = inputs[i].graph ? inputs[i].id : -1;
    return lk__emit(g, site, LK__OP_custom, &attrs, in, count, LK__ALL_OUTPUTS);
}

lk_tensor lk_apply_at(lk_site site, const lk_operation *operation, const lk_tensor *inputs, int count,
                      lk_tensor *outputs)
{
    const char *name = operation && operation->name ? operation->name : "lk_apply";
    lk_graph   *g = lk__common_graph(site, name, inputs, count);
    lk_tensor   none = lk__no_result(site, inputs, count);
    int         node = g ? record_operation(g, site, operation, inputs, count) : -1;
    for (int i = 0; outputs && operation && i < operation->outputs && i < LK_OPERATION_OUTPUTS; i++)
        outputs[i] = node < 0 ? none : (lk_tensor){g, g->nodes[node].out[i]};
    return node < 0 ? none : (lk_tensor){g, g->nodes[node].out[0]};
}
