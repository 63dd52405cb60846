/* fuse.c - fuses an operation with the next one where the device computes both in one pass over memory. Runs before the
 * gradients are made, so that the backward of a fused operation is fused too. */
#include "plan/plan.h"

typedef struct uses {
    int *count; /* by value: readers, outputs of the plan included */
    int *last;  /* by value: its (only, when count is 1) reading node */
} uses;

static void count_uses(const lk__plan_list *list, uses *u)
{
    const lk_graph *g = list->graph;
    for (size_t i = 0; i < g->nodes_count; i++) {
        if (g->nodes[i].dead) continue;
        for (int j = 0; j < g->nodes[i].inputs; j++) {
            int v = g->nodes[i].in[j];
            if (v < 0) continue;
            u->count[v]++;
            u->last[v] = (int)i;
        }
    }
    for (int i = 0; i < list->outputs_count; i++) u->count[list->outputs[i]]++;
    for (int i = 0; i < list->numbers_count; i++)
        if (list->numbers[i] >= 0) u->count[list->numbers[i]]++;
}

/* The only node that reads value v; NULL if there are several, or none. */
static lk__graph_node *only_reader(lk_graph *g, const uses *u, int v)
{
    return v >= 0 && u->count[v] == 1 && !g->nodes[u->last[v]].dead ? &g->nodes[u->last[v]] : NULL;
}

static bool recompute_differs(const lk_graph *g, int a, int b)
{
    for (; a > 0 && !g->blocks[a].recompute; a = g->blocks[a].parent) {}
    for (; b > 0 && !g->blocks[b].recompute; b = g->blocks[b].parent) {}
    return a != b;
}

/* n gets the outputs of the node that followed it. */
static void absorb(lk_graph *g, lk__graph_node *n, lk__graph_node *next)
{
    n->outputs = next->outputs;
    for (int i = 0; i < next->outputs; i++) {
        n->out[i] = next->out[i];
        g->values[n->out[i]].node = (int)(n - g->nodes);
    }
    next->dead = true;
}

/* The node that the device computes together with n, if it is `op`; NULL: it is another one, or they stay two. */
static lk__graph_node *fused_reader(lk_graph *g, const uses *u, const lk__graph_node *n, lk__op op)
{
    const lk__device_backend *device = lk__context_device(g->context)->backend;
    lk__graph_node           *next = only_reader(g, u, n->out[0]);
    if (!next || next->op != op || recompute_differs(g, n->block, next->block)) return NULL;
    return device->fuses(n->op, &n->attrs, next->op, &next->attrs) ? next : NULL;
}

static void fuse_activation(lk_graph *g, const uses *u, lk__graph_node *n)
{
    lk__graph_node *next = fused_reader(g, u, n, LK__OP_unary);
    if (!next) return;
    n->attrs.activation = next->attrs.unary;
    int kept = n->outputs;
    n->out[0] = next->out[0]; /* further outputs (saved statistics) remain n's */
    g->values[n->out[0]].node = (int)(n - g->nodes);
    n->outputs = kept;
    next->dead = true;
}

/* An addition of two values of one shape and type. */
static bool adds_alike(const lk_graph *g, const lk__graph_node *add)
{
    const lk__graph_value *a = &g->values[add->in[0]], *b = &g->values[add->in[1]];
    return lk__shape_equal(&a->shape, &b->shape) && a->shape.dtype == b->shape.dtype;
}

/* n + another value that is there before n: an activation after the sum is then fused too. */
static void fuse_residual(lk_graph *g, const uses *u, lk__graph_node *n, int at)
{
    lk__graph_node *next = n->attrs.activation || n->inputs > at ? NULL : fused_reader(g, u, n, LK__OP_add);
    if (!next || !adds_alike(g, next)) return;
    int other = next->in[0] == n->out[0] ? next->in[1] : next->in[0];
    if (g->values[other].kind == LK__VALUE_RESULT && g->values[other].node > (int)(n - g->nodes)) return;
    for (; n->inputs < at; n->inputs++) n->in[n->inputs] = -1;
    n->in[n->inputs++] = other;
    n->out[0] = next->out[0];
    g->values[n->out[0]].node = (int)(n - g->nodes);
    next->dead = true;
}

static void fuse_pool(lk_graph *g, const uses *u, lk__graph_node *n)
{
    lk__graph_node *next = fused_reader(g, u, n, LK__OP_max_pool2d);
    if (!next) return;
    n->attrs.pool = next->attrs.kernel;
    absorb(g, n, next);
}

lk_status lk__pass_fuse(lk__plan_list *list, bool residuals)
{
    lk_graph   *g = list->graph;
    lk_context *c = g->context;
    size_t      bytes = g->values_count * sizeof(int);
    uses        u = {lk__alloc(c, LK_MEMORY_OTHER, bytes), lk__alloc(c, LK_MEMORY_OTHER, bytes)};
    if (u.count && u.last) {
        count_uses(list, &u);
        for (size_t i = 0; i < g->nodes_count; i++) {
            lk__graph_node *n = &g->nodes[i];
            if (n->dead) continue;
            const lk__graph_op *op = lk__op_find(n->op);
            unsigned            fuse = op->fuse;
            if (fuse & LK__FUSE_RESIDUAL && residuals) fuse_residual(g, &u, n, op->inputs - 1);
            if (fuse & LK__FUSE_ACTIVATION) fuse_activation(g, &u, n);
            if (fuse & LK__FUSE_MAX_POOL) fuse_pool(g, &u, n);
        }
    }
    bool failed = !u.count || !u.last;
    lk__free(c, LK_MEMORY_OTHER, u.count, bytes);
    lk__free(c, LK_MEMORY_OTHER, u.last, bytes);
    return failed ? LK_ENOMEM : LK_OK;
}
