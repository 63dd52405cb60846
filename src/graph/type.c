/* type.c - the types of a node's operands: one element type for all that its descriptor calls REAL, the type of its
 * sums, and casts where a value has another type. */
#include "graph/op.h"

/* The one type of such operands; LK_DTYPE_COUNT: several. */
static lk_dtype fixed_type(lk__graph_types types)
{
    switch (types) {
    case LK__TYPE_F64: return LK_F64;
    case LK__TYPE_I32: return LK_I32;
    case LK__TYPE_I64: return LK_I64;
    case LK__TYPE_U8: return LK_U8;
    default: return LK_DTYPE_COUNT;
    }
}

bool lk__operand_is_real(const lk__graph_operand *o, lk_dtype type)
{
    return o->types == LK__TYPE_REAL || (o->types == LK__TYPE_MOVED && lk__is_element(type));
}

lk_dtype lk__node_element(const lk_graph *g, const lk__graph_node *n)
{
    const lk__graph_op *d = lk__op_find(n->op);
    for (int i = 0; i < n->inputs; i++)
        if (n->in[i] >= 0 && lk__operand_is_real(lk__op_input(d, i), g->values[n->in[i]].shape.dtype))
            return g->values[n->in[i]].shape.dtype;
    for (int i = 0; i < n->outputs; i++)
        if (n->out[i] >= 0 && lk__operand_is_real(&d->out[i], g->values[n->out[i]].shape.dtype))
            return g->values[n->out[i]].shape.dtype;
    return g->real; /* a cast, or numbers in double: every table has it */
}

/* Operands of one node: f32 and a narrower type, of which the node has the narrower, but not two different narrow
 * ones. */
static bool can_meet(lk_dtype a, lk_dtype b)
{
    return lk__wide_type(a) == lk__wide_type(b) && (a == b || !lk__is_narrow(a) || !lk__is_narrow(b));
}

bool lk__choose_element(lk_graph *g, lk_site site, lk__op op, const int *in, int inputs, lk_dtype given,
                        lk_dtype *element)
{
    const lk__graph_op *d = lk__op_find(op);
    bool                found = false, narrow = !lk__op_is_wide(op);
    *element = lk__is_element(given) ? given : g->real;
    for (int i = 0; i < inputs; i++) {
        const lk__graph_operand *o = lk__op_input(d, i);
        lk_dtype                 type = in[i] < 0 ? LK_DTYPE_COUNT : g->values[in[i]].shape.dtype;
        if (in[i] < 0 || !lk__operand_is_real(o, type)) continue;
        if (!lk__is_element(type)) {
            lk__graph_fail(g, site, "%s: %s is %s; expected a floating-point type", lk__op_name(op), o->name,
                           lk_dtype_name(type));
            return false;
        }
        if (found && !can_meet(type, *element)) {
            lk__graph_fail(g, site, "%s: %s is %s, but the operands before it are %s; use lk_cast", lk__op_name(op),
                           o->name, lk_dtype_name(type), lk_dtype_name(*element));
            return false;
        }
        if (!found || (narrow && lk__is_narrow(type))) *element = type;
        found = true;
    }
    if (!narrow) *element = lk__wide_type(*element);
    return true;
}

int lk__emit_cast(lk_graph *g, lk_site site, int x, lk_dtype type)
{
    if (x < 0 || g->values[x].shape.dtype == type) return x;
    lk__graph_shape shape = g->values[x].shape;
    shape.dtype = type;
    int node = lk__emit_shaped(g, site, LK__OP_cast, NULL, &x, 1, &shape, 1);
    return node < 0 ? -1 : g->nodes[node].out[0];
}

lk_dtype lk__input_type(lk__op op, int i, lk_dtype element, lk_dtype type)
{
    lk__graph_types types = lk__op_input(lk__op_find(op), i)->types;
    if (lk__operand_is_real(lk__op_input(lk__op_find(op), i), type)) return element;
    if (types == LK__TYPE_WIDE) return lk__wide_type(element);
    if (types == LK__TYPE_ANY_WIDE) return lk__is_narrow(type) ? lk__wide_type(type) : type;
    return fixed_type(types);
}

bool lk__cast_inputs(lk_graph *g, lk_site site, lk__op op, int *in, int inputs, lk_dtype element)
{
    for (int i = 0; i < inputs; i++) {
        if (in[i] < 0) continue;
        lk_dtype type = g->values[in[i]].shape.dtype, wanted = lk__input_type(op, i, element, type);
        if (wanted == LK_DTYPE_COUNT) continue;
        bool rounds = lk__is_element(type) && lk__is_element(wanted) && lk__wide_type(type) == lk__wide_type(wanted);
        if (type != wanted && !rounds) {
            lk__graph_fail(g, site, "%s: %s is %s; expected %s", lk__op_name(op),
                           lk__op_input(lk__op_find(op), i)->name, lk_dtype_name(type), lk_dtype_name(wanted));
            return false;
        }
        if ((in[i] = lk__emit_cast(g, site, in[i], wanted)) < 0) return false;
    }
    return true;
}

lk_dtype lk__output_type(const lk_graph *g, const lk__graph_node *n, int output, lk_dtype element, lk_dtype given)
{
    switch (lk__op_find(n->op)->out[output].types) {
    case LK__TYPE_REAL: return element;
    case LK__TYPE_WIDE: return lk__wide_type(element);
    case LK__TYPE_PRODUCT: return n->attrs.sum_batch ? lk__wide_type(element) : element;
    case LK__TYPE_MOVED:
        return lk__is_element(g->values[n->in[0]].shape.dtype) ? element : g->values[n->in[0]].shape.dtype;
    case LK__TYPE_ANY: return g->values[n->in[0]].shape.dtype;
    case LK__TYPE_GIVEN: return given;
    default: return fixed_type(lk__op_find(n->op)->out[output].types);
    }
}
