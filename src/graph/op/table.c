/* table.c - all descriptors by operation, and functions that several families share. An operation without a descriptor
 * does not link. */
#include "graph/op.h"

#define DECLARE(name, types) extern const lk__graph_op lk__descriptor_##name;
LK__OP_LIST(DECLARE)
#undef DECLARE

const lk__graph_op *lk__op_find(lk__op op)
{
    static const lk__graph_op *const table[LK__OP_COUNT] = {
#define ENTRY(name, types) [LK__OP_##name] = &lk__descriptor_##name,
        LK__OP_LIST(ENTRY)
#undef ENTRY
    };
    return table[op];
}

const lk__graph_operand *lk__op_input(const lk__graph_op *op, int i)
{
    return &op->in[i < op->inputs ? i : op->inputs - 1];
}

bool lk__node_wants_gradient(const lk_graph *g, const lk__graph_node *n, int i)
{
    unsigned without = lk__node_no_gradient(g, n);
    return i < n->inputs && n->in[i] >= 0 && g->values[n->in[i]].needs_gradient && !(without >> i & 1);
}

bool lk__node_needs_gradient(const lk_graph *g, const lk__graph_node *n)
{
    for (int i = 0; i < n->inputs; i++)
        if (lk__node_wants_gradient(g, n, i)) return true;
    return false;
}

double lk__arithmetic_none(const lk_graph *g, const lk__graph_node *n)
{
    (void)g, (void)n;
    return 0;
}

static double operand_bytes(const lk_graph *g, int value)
{
    if (value < 0) return 0;
    const lk__graph_shape *s = &g->values[value].shape;
    return (double)lk__shape_elements(s) * (double)lk_dtype_size(s->dtype) / lk__value_ranks(g, value);
}

double lk__bytes_operands(const lk_graph *g, const lk__graph_node *n)
{
    double bytes = 0;
    for (int i = 0; i < n->inputs; i++) bytes += operand_bytes(g, n->in[i]);
    for (int i = 0; i < n->outputs; i++) bytes += operand_bytes(g, n->out[i]);
    return bytes;
}

/* A parameter and its moments are read, too. `stored`, the last output, is not. */
double lk__bytes_updated(const lk_graph *g, const lk__graph_node *n)
{
    double bytes = lk__bytes_operands(g, n);
    for (int i = 0; i < n->outputs && i < lk__op_find(n->op)->outputs - 1; i++) bytes += operand_bytes(g, n->out[i]);
    return bytes;
}

double lk__bytes_none(const lk_graph *g, const lk__graph_node *n)
{
    (void)g, (void)n;
    return 0;
}
