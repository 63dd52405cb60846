/* fuse.c - fuses nodes with their neighbours where the device computes both in one pass over memory: by the patterns of
 * the operations' descriptors and the device's table of fusions.
 *
 * Runs twice. Before the gradients are derived, it fuses patterns whose fused node has a gradient rule that does not
 * read any value that fusion removes. After that, it fuses nodes of backward, and patterns that keep as an output what
 * backward reads. split.c divides a fused node into its parts again. */
#include "plan/fuse.h"

#include "plan/readers.h"

typedef struct fuser {
    lk_graph                *g;
    const lk__plan_readers  *readers;
    const lk__device_fusion *device;
    bool                     late; /* the gradients are made */
} fuser;

static bool device_fuses(const fuser *f, const lk__graph_node *n, lk__fusion_kind kind, const lk__graph_node *next)
{
    const lk__graph_value *y = &f->g->values[next->out[0]];
    return lk__device_fuses(f->device, n->op, kind, next->attrs.unary, y->shape.dtype);
}

static bool recompute_differs(const lk_graph *g, int a, int b)
{
    for (; a > 0 && !g->blocks[a].recompute; a = g->blocks[a].parent) {}
    for (; b > 0 && !g->blocks[b].recompute; b = g->blocks[b].parent) {}
    return a != b;
}

/* The first node that reads v, if it has this operation and reads v as `input` (-1: as any). `only`: nothing else reads
 * v. */
static lk__graph_node *find_reader(const fuser *f, int v, lk__op op, int input, bool only)
{
    const lk__plan_readers *r = f->readers;
    if (v < 0 || r->count[v] == 0 || (only && r->count[v] != 1)) return NULL;
    lk__graph_node *next = &f->g->nodes[r->first[v]];
    if (next->dead || next->op != op) return NULL;
    for (int i = 0; i < next->inputs; i++)
        if (next->in[i] == v && (input < 0 || input == i)) return next;
    return NULL;
}

/* The only reader of n's result, of the same block of recomputation. */
static lk__graph_node *find_next(const fuser *f, const lk__graph_node *n, lk__op op, int input)
{
    lk__graph_node *next = find_reader(f, n->out[0], op, input, true);
    return next && (f->late || !recompute_differs(f->g, n->block, next->block)) ? next : NULL;
}

/* Whether the value is there before node n: none of n's own, nor of a node behind it. */
static bool is_earlier(const lk_graph *g, int v, const lk__graph_node *n)
{
    return g->values[v].kind != LK__VALUE_RESULT || g->values[v].node <= (int)(n - g->nodes);
}

/* An addition that broadcasts nothing. */
static bool adds_alike(const lk_graph *g, const lk__graph_node *add)
{
    const lk__graph_shape *y = &g->values[add->out[0]].shape;
    for (int i = 0; i < 2; i++) {
        const lk__graph_shape *x = &g->values[add->in[i]].shape;
        if (!lk__shape_equal(x, y) || x->dtype != y->dtype) return false;
    }
    return true;
}

static void set_input(lk__graph_node *n, int at, int value)
{
    for (; n->inputs < at; n->inputs++) n->in[n->inputs] = -1;
    n->in[at] = value;
    n->inputs = at + 1;
}

/* Output 0 of `next` becomes that of n. */
static void take_result(lk_graph *g, lk__graph_node *n, lk__graph_node *next)
{
    n->out[0] = next->out[0];
    g->values[n->out[0]].node = (int)(n - g->nodes);
    next->dead = true;
}

/* ---- the patterns ---- */

static void fuse_sum(const fuser *f, lk__graph_node *n, int operand)
{
    lk__graph_node *add = n->attrs.activation || n->inputs > operand ? NULL : find_next(f, n, LK__OP_add, -1);
    if (!add || !adds_alike(f->g, add) || !device_fuses(f, n, LK__FUSION_SUM, add)) return;
    int other = add->in[0] == n->out[0] ? add->in[1] : add->in[0];
    if (!is_earlier(f->g, other, n)) return;
    set_input(n, operand, other);
    take_result(f->g, n, add);
}

/* Where a function's gradient needs its result alone, backward can be derived from the fused node; otherwise backward
 * reads the operand. */
static void fuse_function(const fuser *f, lk__graph_node *n)
{
    lk__graph_node *next = n->attrs.activation ? NULL : find_next(f, n, LK__OP_unary, 0);
    if (!next || f->late == lk__unary_saves_result(next->attrs.unary) || !device_fuses(f, n, LK__FUSION_FUNCTION, next))
        return;
    n->attrs.activation = next->attrs.unary;
    take_result(f->g, n, next); /* further outputs (saved statistics) remain n's */
}

static void fuse_kept(const fuser *f, lk__graph_node *n, int operand)
{
    int             v = n->out[0];
    lk__graph_node *next =
        n->attrs.activation || n->outputs > operand ? NULL : find_reader(f, v, LK__OP_unary, 0, false);
    if (!next || !device_fuses(f, n, LK__FUSION_KEPT, next)) return;
    n->attrs.activation = next->attrs.unary;
    take_result(f->g, n, next);
    n->out[operand] = v;
    n->outputs = operand + 1;
}

static void fuse_gradient(const fuser *f, lk__graph_node *n, int operand)
{
    lk__graph_node *next = n->attrs.activation || n->inputs > operand ? NULL : find_next(f, n, LK__OP_unary_grad, 0);
    if (!next || !device_fuses(f, n, LK__FUSION_GRADIENT, next) || !is_earlier(f->g, next->in[1], n)) return;
    n->attrs.activation = next->attrs.unary;
    set_input(n, operand, next->in[1]);
    take_result(f->g, n, next);
}

static void fuse_pool(const fuser *f, lk__graph_node *n)
{
    lk__graph_node     *next = find_next(f, n, LK__OP_max_pool2d, 0);
    const lk__op_attrs *a = next ? &next->attrs : NULL;
    if (!next || a->stride != a->kernel || a->padding || a->kernel < 2 ||
        (n->attrs.activation && n->attrs.activation != LK__RELU) || !device_fuses(f, n, LK__FUSION_MAX_POOL, next))
        return;
    n->attrs.pool = a->kernel;
    n->outputs = next->outputs;
    for (int i = 1; i < next->outputs; i++) {
        n->out[i] = next->out[i];
        if (n->out[i] >= 0) f->g->values[n->out[i]].node = (int)(n - f->g->nodes);
    }
    take_result(f->g, n, next);
}

/* x = a + b, then n of x: one node with both results, where n is. Nothing before it may read x. */
static void fuse_operand(const fuser *f, lk__graph_node *n, int operand)
{
    lk_graph *g = f->g;
    int       x = n->in[0];
    if (g->values[x].kind != LK__VALUE_RESULT || f->readers->first[x] != (int)(n - g->nodes) || n->inputs > operand)
        return;
    lk__graph_node *add = &g->nodes[g->values[x].node];
    if (add->dead || add->op != LK__OP_add || !adds_alike(g, add) || !device_fuses(f, n, LK__FUSION_OPERAND, add))
        return;
    n->in[0] = add->in[0];
    set_input(n, operand, add->in[1]);
    n->out[n->outputs++] = x; /* after the statistics */
    g->values[x].node = (int)(n - g->nodes);
    add->dead = true;
}

static void fuse_node(const fuser *f, lk__graph_node *n, unsigned without)
{
    const lk__graph_fusion *patterns = lk__op_find(n->op)->fuse;
    for (int i = 0; i < LK__FUSIONS && patterns[i].kind; i++) {
        int operand = patterns[i].operand;
        if (without >> patterns[i].kind & 1) continue;
        if (patterns[i].kind != LK__FUSION_FUNCTION && patterns[i].late != f->late) continue;
        switch (patterns[i].kind) {
        case LK__FUSION_NONE: break;
        case LK__FUSION_SUM: fuse_sum(f, n, operand); break;
        case LK__FUSION_FUNCTION: fuse_function(f, n); break;
        case LK__FUSION_KEPT: fuse_kept(f, n, operand); break;
        case LK__FUSION_GRADIENT: fuse_gradient(f, n, operand); break;
        case LK__FUSION_MAX_POOL: fuse_pool(f, n); break;
        case LK__FUSION_OPERAND: fuse_operand(f, n, operand); break;
        }
    }
}

lk_status lk__pass_fuse(lk__plan_list *list, bool late, unsigned without)
{
    lk_graph        *g = list->graph;
    lk__plan_readers r;
    fuser            f = {g, &r, lk__context_device(g->context)->backend->kernels.fusions, late};
    if (!f.device) return LK_OK;
    lk_status status = lk__readers_find(list, late, &r);
    for (size_t i = 0; status >= 0 && i < g->nodes_count; i++)
        if (!g->nodes[i].dead && r.needed[i]) fuse_node(&f, &g->nodes[i], without);
    lk__readers_free(list, &r);
    return status;
}
