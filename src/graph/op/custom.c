/* custom.c - users' operations: their descriptors read the struct with which the node was recorded. */
#include "device/custom.h"
#include "graph/factor.h"
#include "graph/op/describe.h"

const lk__kernel_custom *lk__node_custom(const lk_graph *g, const lk__graph_node *n)
{
    return n->attrs.custom ? g->customs[n->attrs.custom - 1] : NULL;
}

const char *lk__node_name(const lk_graph *g, const lk__graph_node *n)
{
    const lk__kernel_custom *c = lk__node_custom(g, n);
    return c ? c->operation.name : lk__op_name(n->op);
}

unsigned lk__node_no_gradient(const lk_graph *g, const lk__graph_node *n)
{
    const lk__kernel_custom *c = lk__node_custom(g, n);
    return c ? c->operation.no_gradient : lk__op_find(n->op)->no_gradient;
}

/* ---- shapes ---- */

static lk_operand to_operand(const lk__graph_shape *s)
{
    lk_operand o = {.rank = -1, .count_axis = -1, .count_unit = 1}; /* missing */
    if (!s) return o;
    o.dtype = s->dtype;
    o.rank = s->rank;
    for (int i = 0; i < s->rank; i++) o.dims[i] = s->dims[i];
    o.count_axis = s->count_axis;
    o.count_unit = s->count_unit;
    return o;
}

static lk__factor_shape factor_shape(const lk_operand *o) { return (lk__factor_shape){o->dims, o->rank}; }

/* The line of factors must fit the recorded operands. */
static bool check_factors(lk__graph_shapes *s, const lk__kernel_custom *c)
{
    const lk_operation *o = &c->operation;
    lk__factor_query    q = {.op = LK__OP_custom, .attrs = s->attrs, .inputs = o->inputs, .outputs = o->outputs};
    lk__factors         factors;
    char                text[128];
    for (int i = 0; i < o->inputs; i++)
        if (!(c->missing >> i & 1)) q.in[i] = factor_shape(&c->inputs[i]);
    for (int i = 0; i < o->outputs; i++) q.out[i] = factor_shape(&c->outputs[i]);
    const char *wrong = o->factors ? lk__factors_solve(o->factors, &q, &factors, text) : NULL;
    if (wrong) (void)LK__SHAPE_FAIL(s, "%s: factors \"%.100s\": %s", o->name, o->factors, wrong);
    return !wrong;
}

static int custom_shape(lk__graph_shapes *s)
{
    lk__kernel_custom *c = s->graph->customs[s->attrs->custom - 1];
    lk_operand         inputs[LK_OPERATION_INPUTS];
    char               message[LK__CUSTOM_MESSAGE];
    for (int i = 0; i < s->inputs; i++) inputs[i] = to_operand(s->in[i]);
    if (!lk__custom_shapes(c, inputs, message)) return LK__SHAPE_FAIL(s, "%s: %s", c->operation.name, message);
    if (!check_factors(s, c)) return -1;
    for (int i = 0; i < c->operation.outputs; i++) {
        const lk_operand *y = &c->outputs[i];
        s->out[i] = lk__shape_fixed(y->dtype, y->rank, y->dims);
        s->out[i].count_axis = y->count_axis;
        s->out[i].count_unit = y->count_unit;
    }
    return c->operation.outputs;
}

/* ---- gradient ---- */

static bool is_real(lk_dtype type) { return type == LK_F32 || type == LK_F64; }

/* dy is that of output 0 alone; the others have gradients too. */
static void custom_gradient(lk__graph_backward *b, int dy)
{
    const lk__kernel_custom *c = lk__node_custom(b->g, &b->n);
    const lk_operation      *o = &c->operation;
    int                      operands[LK__MAX_IN], wanted = 0;
    lk__graph_shape          shapes[LK__MAX_OUT] = {{0}};
    (void)dy;
    for (int i = 0; i < o->inputs; i++) {
        bool real = b->n.in[i] >= 0 && is_real(b->g->values[b->n.in[i]].shape.dtype);
        operands[i] = o->unread_inputs >> i & 1 ? -1 : lk__grad_in(b, i);
        shapes[i] = b->n.in[i] >= 0 ? b->g->values[b->n.in[i]].shape : lk__shape_scalar(b->g->real);
        if (real && lk__grad_wants(b, i)) wanted |= 1 << i;
    }
    for (int i = 0; i < o->outputs; i++) {
        bool real = is_real(b->g->values[b->n.out[i]].shape.dtype);
        operands[o->inputs + i] = o->saved_outputs >> i & 1 ? lk__grad_out(b, i) : -1;
        operands[o->inputs + o->outputs + i] = real ? b->gradient[b->n.out[i]] : -1;
    }
    if (!wanted) return;
    if (!o->backward) {
        lk__graph_fail(
            b->g, b->n.site,
            "%s has no backward, but the loss depends on it: add one, or pass its inputs through lk_stop_gradient",
            o->name);
        return;
    }
    int node = lk__emit_wanted(b->g, b->n.site, LK__OP_custom_grad, &b->n.attrs, operands, o->inputs + 2 * o->outputs,
                               shapes, o->inputs, wanted);
    if (node < 0) return;
    lk__graph_node made = b->g->nodes[node];
    for (int i = 0; i < o->inputs; i++)
        if (wanted >> i & 1) lk__grad_give(b, i, made.out[i]);
}

/* ---- descriptors ---- */

DESCRIBE(custom){
    .factors = "-",
    .inputs = 1,
    .in = {OPERAND("x", ANY_WIDE, REPEATED, ROWS)},
    .outputs = LK_OPERATION_OUTPUTS,
    .out = {OPERAND("y0", GIVEN, REQUIRED, ROWS), OPERAND("y1", GIVEN, REQUIRED, ROWS),
            OPERAND("y2", GIVEN, REQUIRED, ROWS), OPERAND("y3", GIVEN, REQUIRED, ROWS)},
    .attributes = LK__HAS(custom),
    .shape = custom_shape,
    .gradient = custom_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

DESCRIBE(custom_grad){
    .factors = "-",
    .inputs = 1,
    .in = {OPERAND("operand", ANY_WIDE, REPEATED, ROWS)},
    .outputs = LK_OPERATION_INPUTS,
    .out = {OPERAND("dx0", GIVEN, REQUIRED, ROWS), OPERAND("dx1", GIVEN, REQUIRED, ROWS),
            OPERAND("dx2", GIVEN, REQUIRED, ROWS), OPERAND("dx3", GIVEN, REQUIRED, ROWS),
            OPERAND("dx4", GIVEN, REQUIRED, ROWS), OPERAND("dx5", GIVEN, REQUIRED, ROWS),
            OPERAND("dx6", GIVEN, REQUIRED, ROWS), OPERAND("dx7", GIVEN, REQUIRED, ROWS)},
    .attributes = LK__HAS(custom),
    BACKWARD_ONLY,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};
