/* precision.c - precision policies: weights and activations of the operations that have kernels for it (ANY in the list
 * of base/op.h) are stored in the policy's type; softmax, losses, statistics and all sums stay in f32 at least. Casts
 * are inserted between the two types. Runs before fuse and grad: gradients of activations get the activations' types,
 * gradients of parameters are f32. */
#include "plan/plan.h"

#include <string.h>

static const struct {
    lk_dtype    type;
    const char *name;
} policies[LK_POLICY_COUNT] = {[LK_POLICY_RECORDED] = {LK_DTYPE_COUNT, "recorded"},
#define POLICY_ROW(constant, type, name) [constant] = {type, name},
                               LK_POLICY_LIST(POLICY_ROW)
#undef POLICY_ROW
};

const char *lk_policy_name(lk_policy policy)
{
    return (unsigned)policy < LK_POLICY_COUNT ? policies[policy].name : "?";
}

lk_dtype lk_policy_dtype(lk_policy policy, lk_dtype recorded)
{
    return policy > LK_POLICY_RECORDED && policy < LK_POLICY_COUNT ? policies[policy].type : recorded;
}

bool lk_policy_parse(const char *name, lk_policy *policy, lk_dtype *recorded)
{
    lk_dtype type;
    *recorded = LK_F32;
    for (*policy = LK_POLICY_RECORDED + 1; *policy < LK_POLICY_COUNT; ++*policy)
        if (strcmp(name, policies[*policy].name) == 0) return true;
    *policy = LK_POLICY_RECORDED;
    if (!lk_dtype_parse(name, &type) || !lk__is_element(type) || lk__is_narrow(type)) return false;
    *recorded = type;
    return true;
}

typedef struct casts {
    lk_dtype type;          /* the policy's */
    int     *narrow, *wide; /* by value: its copy in that type and in f32; -1: none */
    size_t   values;
} casts;

/* Whether the policy stores the REAL operands of this node in its type: all of them are recorded in f32, or narrower by
 * a cast. */
static bool becomes_narrow(const lk_graph *g, const lk__graph_node *n)
{
    const lk__graph_op *d = lk__op_find(n->op);
    bool                found = false;
    for (int i = 0; i < n->inputs; i++) {
        if (n->in[i] < 0 || !lk__operand_is_real(lk__op_input(d, i), g->values[n->in[i]].shape.dtype)) continue;
        if (lk__wide_type(g->values[n->in[i]].shape.dtype) != LK_F32) return false;
        found = true;
    }
    return found && !lk__op_is_wide(n->op);
}

/* Whether a node writes the value as a cache, which is then stored as what is written into it. */
static bool is_cache(const lk_graph *g, int value)
{
    for (size_t i = 0; i < g->nodes_count; i++)
        if (lk__op_find(g->nodes[i].op)->effect == LK__EFFECT_CACHE && g->nodes[i].in[0] == value) return true;
    return false;
}

void lk__precision_states(lk_graph *g, lk_dtype type)
{
    for (size_t s = 0; s < g->states_count; s++) {
        lk__graph_value *v = &g->values[g->states[s].value];
        bool             kept = g->states[s].buffer && !is_cache(g, g->states[s].value);
        bool             narrow = !kept && v->shape.dtype == LK_F32, used = false;
        for (size_t i = 0; narrow && i < g->nodes_count; i++)
            for (int j = 0; j < g->nodes[i].inputs; j++) {
                const lk__graph_node *n = &g->nodes[i];
                if (n->in[j] != g->states[s].value) continue;
                used = true;
                narrow &=
                    becomes_narrow(g, n) && lk__operand_is_real(lk__op_input(lk__op_find(n->op), j), v->shape.dtype);
            }
        if (narrow && used) v->shape.dtype = type;
    }
}

/* v in another type; made once, before its first use. */
static int cast_once(lk_graph *g, casts *c, lk_site site, int v, lk_dtype type)
{
    int *copies = type == c->type ? c->narrow : c->wide;
    if (g->values[v].shape.dtype == type) return v;
    if ((size_t)v < c->values && copies[v] >= 0) return copies[v];
    int copy = lk__emit_cast(g, site, v, type);
    if ((size_t)v < c->values) copies[v] = copy;
    return copy;
}

static int rewrite_node(lk_graph *g, const lk__graph_node *node, void *user)
{
    lk__graph_node n = *node;
    const casts   *c = user;
    lk_dtype       element;
    if (!lk__choose_element(g, n.site, n.op, n.in, n.inputs, LK_DTYPE_COUNT, &element)) return -1;
    if (becomes_narrow(g, &n)) element = c->type;
    for (int i = 0; i < n.inputs; i++) {
        if (n.in[i] < 0) continue;
        lk_dtype wanted = lk__input_type(n.op, i, element, g->values[n.in[i]].shape.dtype);
        if (wanted == LK_DTYPE_COUNT) continue;
        if ((n.in[i] = cast_once(g, user, n.site, n.in[i], wanted)) < 0) return -1;
    }
    for (int i = 0; i < n.outputs; i++) {
        lk__graph_value *v = n.out[i] >= 0 ? &g->values[n.out[i]] : NULL;
        if (v && v->kind == LK__VALUE_RESULT) v->shape.dtype = lk__output_type(g, &n, i, element, v->shape.dtype);
    }
    return lk__plan_append(g, &n);
}

/* What the caller reads keeps the type that it was recorded in; -1: failure. */
static int widen_result(lk_graph *g, const lk_graph *recorded, casts *c, int v)
{
    const lk__graph_value *was = &recorded->values[v];
    lk_dtype               type = was->kind == LK__VALUE_STATE ? lk__wide_type(was->shape.dtype) : was->shape.dtype;
    return lk__is_narrow(g->values[v].shape.dtype) ? cast_once(g, c, g->values[v].site, v, type) : v;
}

lk_status lk__pass_precision(lk__plan_list *list, const lk_graph *recorded, lk_dtype type)
{
    lk_graph *g = list->graph;
    size_t    bytes = g->values_count * sizeof(int);
    casts     c = {type, lk__alloc(g->context, LK_MEMORY_OTHER, bytes), lk__alloc(g->context, LK_MEMORY_OTHER, bytes),
                   g->values_count};
    lk_status status = LK_ENOMEM;
    if (bytes && (!c.narrow || !c.wide)) goto done;
    for (size_t i = 0; i < c.values; i++) c.narrow[i] = c.wide[i] = -1;
    status = lk__plan_rebuild(g, rewrite_node, &c);
    for (int i = 0; status >= 0 && i < list->numbers_count; i++) { /* those of metrics and of losses are f64 */
        int *number = &list->numbers[i];
        if (*number >= 0 && (*number = widen_result(g, recorded, &c, *number)) < 0) status = g->status;
    }
    for (int i = 0; status >= 0 && i < list->outputs_count; i++)
        if ((list->outputs[i] = widen_result(g, recorded, &c, list->outputs[i])) < 0) status = g->status;
done:
    lk__free(g->context, LK_MEMORY_OTHER, c.narrow, bytes);
    lk__free(g->context, LK_MEMORY_OTHER, c.wide, bytes);
    return status;
}
