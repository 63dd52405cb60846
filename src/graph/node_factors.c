/* node_factors.c - the factors of a node of a graph, and what follows from them for the samples of a batch. */
#include "device/custom.h"
#include "graph/factor.h"
#include "graph/op.h"

#include <stdio.h>
#include <string.h>

static lk__factor_shape shape_of(const lk_graph *g, int value)
{
    if (value < 0) return (lk__factor_shape){0};
    return (lk__factor_shape){g->values[value].shape.dims, g->values[value].shape.rank};
}

/* ---- users' operations ---- */

/* Operand i of a user's operation: what a node of backward has of it, else as it was recorded. */
static lk__factor_shape shape_of_operand(const lk_graph *g, const lk_operand *recorded, int value, int gradient)
{
    if (value >= 0) return shape_of(g, value);
    if (gradient >= 0) return shape_of(g, gradient);
    return (lk__factor_shape){recorded->dims, recorded->rank};
}

static int operand_at(const int *values, int count, int i) { return i < count ? values[i] : -1; }

static lk__factor_query query_operation(const lk_graph *g, const lk__graph_node *n, const lk__kernel_custom *c)
{
    const lk_operation *o = &c->operation;
    bool                backward = n->op == LK__OP_custom_grad;
    lk__factor_query    q = {.op = LK__OP_custom, .attrs = &n->attrs, .inputs = o->inputs, .outputs = o->outputs};
    for (int i = 0; i < o->inputs; i++)
        if (!(c->missing >> i & 1))
            q.in[i] = shape_of_operand(g, &c->inputs[i], operand_at(n->in, n->inputs, i),
                                       backward ? operand_at(n->out, n->outputs, i) : -1);
    for (int i = 0; i < o->outputs; i++) {
        int y = backward ? operand_at(n->in, n->inputs, o->inputs + i) : n->out[i];
        int dy = backward ? operand_at(n->in, n->inputs, o->inputs + o->outputs + i) : -1;
        q.out[i] = shape_of_operand(g, &c->outputs[i], y, dy);
    }
    return q;
}

/* Input i's gradient follows from the gradients of the outputs that depend on it, and from what else these need. */
static unsigned gradient_depends(const lk__factors *forward, int inputs, int outputs, int i)
{
    unsigned depends = 0;
    for (int k = 0; k < outputs; k++) {
        if (!(forward->depends[k] >> i & 1)) continue;
        depends |= forward->depends[k] & ((1u << inputs) - 1);
        depends |= 1u << (inputs + k) | 1u << (inputs + outputs + k);
    }
    return depends;
}

void lk__factors_of_backward(const lk__factors *forward, int inputs, int outputs, lk__factors *f)
{
    memset(f, 0, sizeof *f);
    f->count = forward->count;
    memcpy(f->factor, forward->factor, sizeof f->factor);
    for (int i = 0; i < inputs; i++) {
        memcpy(f->in[i], forward->in[i], sizeof f->in[i]);
        memcpy(f->out[i], forward->in[i], sizeof f->out[i]);
        f->depends[i] = gradient_depends(forward, inputs, outputs, i);
    }
    for (int i = 0; i < outputs; i++) {
        memcpy(f->in[inputs + i], forward->out[i], sizeof f->in[i]);
        memcpy(f->in[inputs + outputs + i], forward->out[i], sizeof f->in[i]);
    }
}

static const char *find_operation_factors(const lk_graph *g, const lk__graph_node *n, const lk__kernel_custom *c,
                                          lk__factors *f, char text[static 128])
{
    lk__factor_query query = query_operation(g, n, c);
    const char      *line = c->operation.factors ? c->operation.factors : "-";
    lk__factors      forward;
    if (n->op == LK__OP_custom) return lk__factors_solve(line, &query, f, text);
    const char *wrong = lk__factors_solve(line, &query, &forward, text);
    if (!wrong) lk__factors_of_backward(&forward, c->operation.inputs, c->operation.outputs, f);
    return wrong;
}

/* ---- nodes ---- */

const char *lk__node_factors(const lk_graph *g, const lk__graph_node *n, lk__factors *f, char text[static 128])
{
    const lk__kernel_custom *c = lk__node_custom(g, n);
    if (c) return find_operation_factors(g, n, c, f, text);
    lk__factor_query q = {.op = n->op, .attrs = &n->attrs, .inputs = n->inputs, .outputs = n->outputs};
    for (int i = 0; i < n->inputs; i++) q.in[i] = shape_of(g, n->in[i]);
    for (int i = 0; i < n->outputs; i++) q.out[i] = shape_of(g, n->out[i]);
    return lk__factors_find(&q, f, text);
}

/* ---- samples ---- */

static const lk__graph_shape *counted_shape(const lk_graph *g, int value)
{
    return value >= 0 && g->values[value].shape.count_axis >= 0 ? &g->values[value].shape : NULL;
}

int lk__factor_of_samples(const lk__factor_dim dims[LK_MAX_RANK], int count_axis)
{
    const lk__factor_dim *d = count_axis < 0 ? NULL : &dims[count_axis];
    return d && d->segments ? d->segment[0].factor[0] : -1;
}

/* Whether the samples of an operand are a factor that is not coupled. */
static bool is_independent(const lk_graph *g, const lk__factors *f, const lk__factor_dim *dims, int value)
{
    const lk__graph_shape *s = counted_shape(g, value);
    int                    factor = s ? lk__factor_of_samples(dims, s->count_axis) : -1;
    return !s || (factor >= 0 && !f->factor[factor].coupled);
}

/* Most lines couple nothing, and need not be read. */
static bool may_couple(const char *line)
{
    return strchr(line, '!') || strstr(line, "; -") || strstr(line, "reshape") || strcmp(line, "-") == 0;
}

bool lk__node_couples_samples(const lk_graph *g, const lk__graph_node *n)
{
    const lk__kernel_custom *c = lk__node_custom(g, n);
    const char              *line = lk__op_find(n->op)->factors;
    lk__factors              f;
    char                     text[128];
    if (c) return c->operation.coupled;
    if (!may_couple(line)) return false;
    if (strcmp(line, "-") == 0 || lk__node_factors(g, n, &f, text)) return true;
    for (int i = 0; i < n->inputs; i++)
        if (!is_independent(g, &f, f.in[i], n->in[i])) return true;
    for (int i = 0; i < n->outputs; i++)
        if (!is_independent(g, &f, f.out[i], n->out[i])) return true;
    return false;
}

bool lk__node_is_same(const lk_graph *g, const lk__graph_node *n, int k)
{
    const lk__graph_op *d = lk__op_find(n->op);
    lk__factors         f;
    char                text[128];
    bool                samples = false;
    if (d->runs == LK__RUNS_WAIT) return true;
    if (d->runs == LK__RUNS_COLLECTIVE) return !lk__collectives[d->collective].sends_parts;
    if (!strchr(d->factors, ':') || lk__node_factors(g, n, &f, text)) return false;
    for (int i = 0; i < n->inputs; i++) {
        bool counted = counted_shape(g, n->in[i]) != NULL;
        samples |= counted;
        if (counted && f.depends[k] >> i & 1) return false;
    }
    return samples;
}
