/* merge_sums.c - summands of one value are added before their collective: the gradients of queries, keys and values
 * with respect to what all three read are sums over the ranks, each with a collective of its own, and then added. The
 * collective of their sum moves the bytes of one of them, and rounds once. */
#include "plan/pipeline.h"
#include "plan/placement.h"
#include "plan/readers.h"

enum { VIEWS = 4 };

/* A sum over ranks, as nodes of the new list: start, wait, and what gives the result another shape or type. */
typedef struct rank_sum {
    int start, wait, views[VIEWS], count; /* the last view first */
} rank_sum;

typedef struct merger {
    const lk_plan   *plan;
    lk_graph        *g;
    unsigned         axes;
    lk__plan_readers readers;
} merger;

/* Values that were made here have one reader. */
static bool is_read_once(const merger *m, int v) { return (size_t)v >= m->readers.values || m->readers.count[v] == 1; }

static int producer_of(const lk_graph *g, int v)
{
    return g->values[v].kind == LK__VALUE_RESULT ? g->values[v].node : -1;
}

static bool starts_sum(const merger *m, const lk__graph_node *n)
{
    const lk__graph_op *d = lk__op_find(n->op);
    return d->runs == LK__RUNS_COLLECTIVE && lk__collectives[d->collective].reduces && n->attrs.reduction == LK_SUM &&
           n->attrs.mesh & m->axes;
}

/* Whether v is such a sum, which nothing else reads. */
static bool find_sum(const merger *m, int v, rank_sum *sum)
{
    const lk_graph *g = m->g;
    *sum = (rank_sum){.count = 0};
    for (;;) {
        int node = producer_of(g, v);
        if (node < 0 || !is_read_once(m, v)) return false;
        const lk__graph_node *n = &g->nodes[node];
        if (lk__op_find(n->op)->runs == LK__RUNS_WAIT) {
            sum->wait = node;
            sum->start = producer_of(g, n->in[0]);
            return sum->start >= 0 && starts_sum(m, &g->nodes[sum->start]);
        }
        if ((n->op != LK__OP_reshape && n->op != LK__OP_cast) || sum->count == VIEWS) return false;
        sum->views[sum->count++] = node;
        v = n->in[0];
    }
}

/* The same collective of operands of one shape, whose results have the same forms. */
static bool fit_together(const lk_graph *g, const rank_sum *a, const rank_sum *b)
{
    const lk__graph_node *x = &g->nodes[a->start], *y = &g->nodes[b->start];
    if (x->op != y->op || x->attrs.mesh != y->attrs.mesh || x->attrs.parts != y->attrs.parts ||
        x->attrs.rows != y->attrs.rows || x->attrs.order != y->attrs.order || x->attrs.group != y->attrs.group)
        return false;
    return lk__shape_equal(&g->values[x->in[0]].shape, &g->values[y->in[0]].shape);
}

/* What another stage of a pipeline has summed stays there. */
static bool are_in_stage(const merger *m, const lk__graph_node *n, const rank_sum *sum)
{
    const struct lk__plan_pipeline *p = m->plan->pipeline;
    return !p || p->stage_of_block[n->block] == p->stage_of_block[m->g->nodes[sum->start].block];
}

static void remove_sum(lk_graph *g, const rank_sum *sum)
{
    g->nodes[sum->start].dead = g->nodes[sum->wait].dead = true;
    for (int i = 0; i < sum->count; i++) g->nodes[sum->views[i]].dead = true;
}

/* n adds a and b: instead, adds their operands, and makes the collective of that, in the forms of a. */
static int merge_sums(lk_graph *g, const lk__graph_node *n, const rank_sum *a, const rank_sum *b)
{
    const lk__graph_node start = g->nodes[a->start];
    int                  operands[] = {start.in[0], g->nodes[b->start].in[0]};
    remove_sum(g, a);
    remove_sum(g, b);
    int sum = lk__emit1(g, n->site, LK__OP_add, NULL, operands, 2);
    if (sum < 0) return -1;
    g->values[sum].part = g->values[operands[0]].part;
    int made = lk__emit_collective(g, n->site, start.op, &start.attrs, sum);
    int last = made < 0 ? -1 : g->values[made].node;
    for (int i = a->count; i-- > 0 && last >= 0;) {
        lk__graph_node view = g->nodes[a->views[i]];
        view.dead = false;
        view.in[0] = made;
        made = view.out[0];
        if ((last = lk__plan_append(g, &view)) >= 0) g->values[made].node = last;
    }
    if (last < 0) return -1;
    g->nodes[last].out[0] = n->out[0];
    g->values[n->out[0]].node = last;
    return last;
}

static bool append_node(lk_graph *g, const lk__graph_node *n)
{
    int node = lk__plan_append(g, n);
    for (int k = 0; k < n->outputs && node >= 0; k++)
        if (n->out[k] >= 0 && g->values[n->out[k]].kind == LK__VALUE_RESULT) g->values[n->out[k]].node = node;
    return node >= 0;
}

static bool merge_node(void *user, const lk__graph_node *n, size_t index)
{
    merger  *m = user;
    rank_sum a, b;
    (void)index;
    bool adds = n->op == LK__OP_add && m->g->values[n->out[0]].kind == LK__VALUE_RESULT;
    if (adds && find_sum(m, n->in[0], &a) && find_sum(m, n->in[1], &b) && fit_together(m->g, &a, &b) &&
        are_in_stage(m, n, &a) && are_in_stage(m, n, &b))
        return merge_sums(m->g, n, &a, &b) >= 0;
    return append_node(m->g, n);
}

lk_status lk__plan_merge_sums(lk_plan *p, lk__plan_list *list, size_t *forward)
{
    merger    m = {.plan = p, .g = list->graph, .axes = p->placed_axes};
    lk_status status = lk__readers_find(list, true, &m.readers);
    if (status >= 0) status = lk__plan_rebuild_at(m.g, merge_node, &m, forward);
    lk__readers_free(list, &m.readers);
    return status;
}
