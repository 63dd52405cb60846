/* matmul_precision.c - lk_plan_config.matmul_precision: the operands of f32 matrix products are rounded by casts to a
 * narrower type, whose kernels then compute the products. Sums, results, biases and everything else stay in f32. Runs
 * after the passes that create and cut products. */
#include "plan/plan.h"

#include <string.h>

static const struct {
    lk_dtype    type; /* of operands; LK_F32: they are not rounded */
    const char *name;
} precisions[LK_MATMUL_COUNT] = {
#define PRECISION_ROW(constant, type, name) [constant] = {type, name},
    LK_MATMUL_PRECISION_LIST(PRECISION_ROW)
#undef PRECISION_ROW
};

const char *lk_matmul_precision_name(lk_matmul_precision precision)
{
    return (unsigned)precision < LK_MATMUL_COUNT ? precisions[precision].name : NULL;
}

bool lk_matmul_precision_parse(const char *name, lk_matmul_precision *precision)
{
    for (*precision = LK_MATMUL_HIGHEST; *precision < LK_MATMUL_COUNT; ++*precision)
        if (strcmp(name, precisions[*precision].name) == 0) return true;
    *precision = LK_MATMUL_HIGHEST;
    return false;
}

typedef struct rounding {
    lk_graph *graph;
    lk_dtype  type;
    int      *copies; /* by value: rounded; -1: it is not yet */
    size_t    values, forward;
} rounding;

/* Whether the node multiplies numbers in f32. */
static bool is_product(const lk_graph *g, const lk__graph_node *n)
{
    unsigned multiplied = lk__op_find(n->op)->matmul;
    for (int i = 0; i < n->inputs; i++)
        if ((multiplied >> i & 1) && n->in[i] >= 0 && g->values[n->in[i]].shape.dtype != LK_F32) return false;
    return multiplied != 0;
}

/* A weight is rounded again for backward, so that its copy takes no memory between the two, nor keeps a gathered one
 * there. What backward reads of other values is the copy that forward made. */
static void forget_weights(rounding *r)
{
    for (size_t v = 0; v < r->values; v++)
        if (r->graph->values[v].kind == LK__VALUE_STATE) r->copies[v] = -1;
}

/* Has the place in the whole that the value has, by which kernels choose the order of sums. */
static int emit_rounded(rounding *r, lk_site site, int value)
{
    lk_graph *g = r->graph;
    int       copy = lk__emit_cast(g, site, value, r->type);
    if (copy < 0) return -1;
    g->values[copy].part = g->values[value].part;
    g->values[copy].routed = g->values[value].routed;
    return copy;
}

static bool round_operands(void *user, const lk__graph_node *node, size_t index)
{
    rounding      *r = user;
    lk__graph_node n = *node;
    unsigned       multiplied = lk__op_find(n.op)->matmul;
    if (index == r->forward) forget_weights(r);
    for (int i = 0; is_product(r->graph, node) && i < n.inputs; i++) {
        if (!(multiplied >> i & 1) || n.in[i] < 0) continue;
        int *copy = &r->copies[n.in[i]];
        if (*copy < 0 && (*copy = emit_rounded(r, n.site, n.in[i])) < 0) return false;
        n.in[i] = *copy;
    }
    return lk__plan_append(r->graph, &n) >= 0;
}

lk_status lk__pass_matmul_precision(const lk_plan *p, lk__plan_list *list, size_t *forward)
{
    lk_graph *g = list->graph;
    rounding  r = {.graph = g, .type = precisions[p->matmul_precision].type, .values = g->values_count};
    if (r.type == LK_F32) return LK_OK;
    r.forward = *forward;
    r.copies = lk__alloc(p->context, LK_MEMORY_OTHER, r.values * sizeof *r.copies);
    if (r.values && !r.copies) return LK_ENOMEM;
    for (size_t v = 0; v < r.values; v++) r.copies[v] = -1;
    lk_status status = lk__plan_rebuild_at(g, round_operands, &r, forward);
    lk__free(p->context, LK_MEMORY_OTHER, r.copies, r.values * sizeof *r.copies);
    return status;
}
