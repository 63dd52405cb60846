/* pipeline_tied.c - gradients of states that several stages hold: tied weights. Each holder has the sum over the batch
 * of its own uses; the first adds them, from the last stage to its own, which is the order of the uses in backward on a
 * single rank, and sends the sum to the others. All holders make the same update. */
#include "plan/pipeline.h"

/* ---- forms ---- */

enum { FORMS = 16 };

/* What an axis that cuts values has put behind the sum of a gradient: views, casts, and collectives, which of a sum are
 * the sum of what they are of its summands. */
typedef struct forms {
    int nodes[FORMS], count; /* the last first */
    int sum;                 /* value that they are of */
} forms;

static const lk__graph_node *maker_of(const lk_graph *g, int v)
{
    return g->values[v].kind == LK__VALUE_RESULT ? &g->nodes[g->values[v].node] : NULL;
}

static bool is_form(const lk__graph_node *n)
{
    lk__graph_runs runs = lk__op_find(n->op)->runs;
    return runs == LK__RUNS_COLLECTIVE || runs == LK__RUNS_WAIT || n->op == LK__OP_reshape || n->op == LK__OP_cast ||
           n->op == LK__OP_own_part;
}

static bool find_forms(const lk_graph *g, int gradient, forms *f)
{
    *f = (forms){.sum = gradient};
    for (const lk__graph_node *n; (n = maker_of(g, f->sum)) && is_form(n) && f->count < FORMS; f->sum = n->in[0])
        f->nodes[f->count++] = g->values[f->sum].node;
    const lk__graph_node *n = maker_of(g, f->sum);
    return f->count > 0 && n && n->op == LK__OP_add;
}

/* A copy of node `from` that reads `in` instead of its operand, and both where it completes a collective. */
static int copy_form(lk_graph *g, int from, int in, int start)
{
    lk__graph_node  n = g->nodes[from];
    lk__graph_value v = g->values[n.out[0]];
    bool            waits = lk__op_find(n.op)->runs == LK__RUNS_WAIT;
    n.block = g->block;
    n.in[0] = in;
    if (waits) n.in[1] = start;
    if ((n.out[0] = lk__graph_add_value(g, &v)) < 0) return -1;
    int node = lk__plan_append(g, &n);
    if (node >= 0) g->values[n.out[0]].node = node;
    return node < 0 ? -1 : n.out[0];
}

/* The forms of a sum, made of each summand where that is; then their sum. */
static int divide_forms(lk_graph *g, const forms *f, int v)
{
    const lk__graph_node *n = maker_of(g, v);
    if (n && n->op == LK__OP_add) {
        lk__graph_node add = *n;
        int            in[2];
        for (int i = 0; i < 2; i++)
            if ((in[i] = divide_forms(g, f, add.in[i])) < 0) return -1;
        g->block = add.block;
        int sum = lk__emit1(g, add.site, LK__OP_add, NULL, in, 2);
        if (sum >= 0) g->values[sum].part = g->values[in[0]].part;
        return sum;
    }
    g->block = n ? n->block : 0;
    int value = v, operand = v;
    for (int i = f->count; i-- > 0 && value >= 0;) {
        int in = value;
        value = copy_form(g, f->nodes[i], in, operand);
        operand = in;
    }
    return value;
}

/* Nothing else reads the sums of a gradient. */
static void remove_sums(lk_graph *g, int v)
{
    const lk__graph_node *n = maker_of(g, v);
    if (!n || n->op != LK__OP_add) return;
    g->nodes[g->values[v].node].dead = true;
    for (int i = 0; i < 2; i++) remove_sums(g, n->in[i]);
}

lk_status lk__tied_divide_forms(lk_plan *p, lk__plan_list *list)
{
    lk_graph *g = list->graph;
    int       block = g->block;
    forms     f;
    for (size_t i = 0; p->pipeline && list->gradients && i < g->states_count; i++) {
        int v = list->gradients[i];
        if (v < 0 || !lk__plan_is_tied(p, i) || !find_forms(g, v, &f)) continue;
        if ((list->gradients[i] = divide_forms(g, &f, f.sum)) < 0) return g->status < 0 ? g->status : LK_ENOMEM;
        for (int k = 0; k < f.count; k++) g->nodes[f.nodes[k]].dead = true;
        remove_sums(g, f.sum);
    }
    g->block = block;
    return LK_OK;
}

/* ---- before the update ---- */

static lk__op_attrs attrs_of(int stage, int number)
{
    return (lk__op_attrs){.mesh = LK__PLAN_STAGE_AXES, .transfer = {.stage = stage, .number = number}};
}

/* Of a holder besides the first: its own gradient to that, and the sum back. */
static int exchange_gradient(lk_plan *p, size_t state, int number)
{
    lk_graph    *g = p->train.graph;
    int          own = p->train.gradients[state];
    lk__op_attrs attrs = attrs_of(lk__plan_first_holder(p, state), number);
    if (lk__emit_send(g, g->states[state].site, &attrs, own) < 0) return -1;
    attrs.transfer.number++;
    return lk__emit_receive(g, g->states[state].site, &attrs, own);
}

/* Of the first: adds those of all. `number`: of the first pair; each other holder has two. */
static int add_gradients(lk_plan *p, size_t state, int number)
{
    lk_graph *g = p->train.graph;
    lk_site   site = g->states[state].site;
    uint64_t  held = p->states[state].splits[LK__ARRAY_STORED].held;
    int       own = p->train.gradients[state], first = lk__plan_own_stage(p), sum = -1;
    for (int stage = lk__plan_stages(p) - 1; stage > first; stage--) {
        lk__op_attrs attrs = attrs_of(stage, number + 2 * stage);
        if (!(held >> stage & 1)) continue;
        int one = lk__emit_receive(g, site, &attrs, own);
        if (one < 0) return -1;
        sum = sum < 0 ? one : lk__emit1(g, site, LK__OP_add, NULL, (int[]){sum, one}, 2);
        if (sum < 0) return -1;
    }
    if ((sum = lk__emit1(g, site, LK__OP_add, NULL, (int[]){sum, own}, 2)) < 0) return -1;
    g->values[sum].part = g->values[own].part;
    for (int stage = first + 1; stage < lk__plan_stages(p); stage++) {
        lk__op_attrs attrs = attrs_of(stage, number + 2 * stage + 1);
        if ((held >> stage & 1) && lk__emit_send(g, site, &attrs, sum) < 0) return -1;
    }
    return sum;
}

lk_status lk__pass_tied(lk_plan *p)
{
    struct lk__plan_pipeline *x = p->pipeline;
    lk_graph                 *g = p->train.graph;
    if (!x) return LK_OK;
    for (size_t i = 0; i < g->states_count; i++) {
        if (!lk__plan_is_tied(p, i) || !x->trained[i]) continue;
        int number = x->pairs;
        x->pairs += 2 * lk__plan_stages(p);
        if (!lk__plan_holds(p, i)) continue;
        bool first = lk__plan_first_holder(p, i) == lk__plan_own_stage(p);
        x->tied[i] = first ? add_gradients(p, i, number) : exchange_gradient(p, i, number + 2 * lk__plan_own_stage(p));
        if (x->tied[i] < 0) return g->status;
    }
    return LK_OK;
}
