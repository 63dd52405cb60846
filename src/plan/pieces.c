/* pieces.c - rewrites a list so that collectives of forward and their products run in pieces (pieces.h).
 *
 *     all_gather, wait, product          all_gather 1, all_gather 2, wait 1, product 1, wait 2, product 2, join
 *     product, reduce_scatter, wait      product 1, reduce_scatter 1, product 2, reduce_scatter 2, wait 1, wait 2, join
 *
 * A piece of an existing value is a view of it; a piece that is computed is written to its place in the joined
 * value. */
#include "plan/pieces.h"

#include <string.h>

typedef struct cutter {
    lk_graph           *g;
    lk__plan_exchanges *all;
} cutter;

/* ---- pieces of values ---- */

/* A new value with the shape of a piece of v, and where that lies in the whole. */
static int add_piece(lk_graph *g, const lk__plan_exchange *e, int v, int piece)
{
    lk__graph_value one = g->values[v];
    int64_t         first = lk__piece_begin(e, piece), unit = one.shape.count_unit;
    one.kind = LK__VALUE_RESULT;
    one.name = NULL;
    if (!one.part.rank) {
        one.part = (lk__op_part){.rank = one.shape.rank};
        memcpy(one.part.whole, one.shape.dims, sizeof one.part.whole);
    }
    if (!one.part.outer[0]) one.part.first[0] += first * unit;
    one.shape.dims[0] = (lk__piece_begin(e, piece + 1) - first) * unit;
    one.shape.count_first = first;
    return lk__graph_add_value(g, &one);
}

static bool append_node(lk_graph *g, const lk__graph_node *n)
{
    int node = lk__plan_append(g, n);
    for (int k = 0; k < n->outputs && node >= 0; k++)
        if (n->out[k] >= 0 && g->values[n->out[k]].kind == LK__VALUE_RESULT) g->values[n->out[k]].node = node;
    return node >= 0;
}

/* Those rows of a value that is there. */
static int view_piece(lk_graph *g, const lk__graph_node *reader, const lk__plan_exchange *e, int v, int piece)
{
    const lk__graph_shape s = g->values[v].shape;
    int64_t               row = lk__shape_elements(&s) / s.dims[0];
    lk__graph_node        n = {.op = LK__OP_reshape,
                               .attrs = {.start = lk__piece_begin(e, piece) * s.count_unit * row},
                               .in = {v},
                               .inputs = 1,
                               .outputs = 1,
                               .block = reader->block,
                               .site = reader->site};
    n.out[0] = add_piece(g, e, v, piece);
    return n.out[0] >= 0 && append_node(g, &n) ? n.out[0] : -1;
}

/* A node of the list with other operands, for a piece: its outputs are new, and in out[]. */
static bool append_piece(lk_graph *g, const lk__plan_exchange *e, const lk__graph_node *from, const int *in, int piece,
                         int *out)
{
    lk__graph_node n = *from;
    memcpy(n.in, in, (size_t)n.inputs * sizeof *in);
    for (int k = 0; k < n.outputs; k++) {
        if (n.out[k] >= 0 && (n.out[k] = add_piece(g, e, n.out[k], piece)) < 0) return false;
        out[k] = n.out[k];
    }
    return append_node(g, &n);
}

/* Output v from its pieces. */
static bool join_pieces(lk_graph *g, const lk__graph_node *maker, const lk__plan_exchange *e, int v, const int *pieces)
{
    lk__graph_node n = {
        .op = LK__OP_join, .inputs = e->pieces, .out = {v}, .outputs = 1, .block = maker->block, .site = maker->site};
    memcpy(n.in, pieces, (size_t)e->pieces * sizeof *pieces);
    return append_node(g, &n);
}

/* ---- an exchange ---- */

/* The nodes of the list before, and the pieces of what is between the collective and its products. */
typedef struct chain {
    const lk__graph_node *nodes;
    int                   from, made; /* a value of before, and its piece */
    int                   views[LK__PIECES_VIEWS];
} chain;

/* The piece of a value that it begins with, or of one of its first `count` views; any other value itself. */
static int piece_of(const chain *x, const lk__plan_exchange *e, int count, int v)
{
    if (v == x->from) return x->made;
    for (int i = 0; i < count; i++)
        if (v == x->nodes[e->views[i]].out[0]) return x->views[i];
    return v;
}

static bool append_views(lk_graph *g, chain *x, const lk__plan_exchange *e, int piece)
{
    for (int i = 0; i < e->views_count; i++) {
        const lk__graph_node *n = &x->nodes[e->views[i]];
        int                   in = piece_of(x, e, i, n->in[0]), out[LK__MAX_OUT];
        if (!append_piece(g, e, n, &in, piece, out)) return false;
        x->views[i] = out[0];
    }
    return true;
}

static bool start_piece(lk_graph *g, const lk__graph_node *start, lk__plan_exchange *e, int operand, int piece)
{
    int out[LK__MAX_OUT];
    if (operand < 0 || !append_piece(g, e, start, &operand, piece, out)) return false;
    e->operand[piece] = operand;
    e->result[piece] = out[0];
    return true;
}

static int wait_piece(lk_graph *g, const lk__graph_node *wait, const lk__plan_exchange *e, int piece)
{
    int in[] = {e->result[piece], e->operand[piece]}, out[LK__MAX_OUT];
    return append_piece(g, e, wait, in, piece, out) ? out[0] : -1;
}

/* ---- an all_gather, and what reads it ---- */

static bool start_gather(lk_graph *g, const lk__graph_node *start, lk__plan_exchange *e)
{
    bool done = true;
    for (int i = 0; i < e->pieces && done; i++)
        done = start_piece(g, start, e, view_piece(g, start, e, start->in[0], i), i);
    return done;
}

typedef struct results {
    int all[LK__PIECES_PRODUCTS][LK__MAX_OUT][LK__PIECES_MOST];
} results;

static bool run_products(lk_graph *g, const chain *x, const lk__plan_exchange *e, int piece, results *made)
{
    for (int i = 0; i < e->products_count; i++) {
        const lk__graph_node *n = &x->nodes[e->products[i]];
        int                   in[LK__MAX_IN], out[LK__MAX_OUT];
        for (int k = 0; k < n->inputs; k++) in[k] = piece_of(x, e, e->views_count, n->in[k]);
        if (!append_piece(g, e, n, in, piece, out)) return false;
        for (int k = 0; k < n->outputs; k++) made->all[i][k][piece] = out[k];
    }
    return true;
}

static bool use_gathered(lk_graph *g, const lk__graph_node *nodes, const lk__plan_exchange *e)
{
    const lk__graph_node *wait = &nodes[e->wait];
    chain                 x = {.nodes = nodes, .from = wait->out[0]};
    results               made;
    int                   gathered[LK__PIECES_MOST];
    bool                  done = true;
    for (int i = 0; i < e->pieces && done; i++) {
        gathered[i] = x.made = wait_piece(g, wait, e, i);
        done = x.made >= 0 && append_views(g, &x, e, i) && run_products(g, &x, e, i, &made);
    }
    for (int i = 0; i < e->products_count && done; i++) {
        const lk__graph_node *n = &nodes[e->products[i]];
        for (int k = 0; k < n->outputs && done; k++)
            if (n->out[k] >= 0) done = join_pieces(g, n, e, n->out[k], made.all[i][k]);
    }
    if (e->whole && done) done = join_pieces(g, wait, e, wait->out[0], gathered);
    for (int i = 0; i < e->views_count && e->whole && done; i++) done = append_node(g, &nodes[e->views[i]]);
    return done;
}

/* ---- a sum, and the product that makes its operand ---- */

static bool make_summands(lk_graph *g, const lk__graph_node *nodes, lk__plan_exchange *e)
{
    const lk__graph_node *n = &nodes[e->products[0]], *start = &nodes[e->start];
    for (int i = 0; i < e->pieces; i++) {
        int   in[LK__MAX_IN], out[LK__MAX_OUT], rows = view_piece(g, n, e, n->in[0], i);
        chain x = {.nodes = nodes, .from = n->out[0]};
        for (int k = 0; k < n->inputs; k++) in[k] = n->in[k] == n->in[0] ? rows : n->in[k];
        if (rows < 0 || !append_piece(g, e, n, in, i, out)) return false;
        x.made = out[0];
        if (!append_views(g, &x, e, i)) return false;
        if (!start_piece(g, start, e, piece_of(&x, e, e->views_count, start->in[0]), i)) return false;
    }
    return true;
}

static bool wait_sum(lk_graph *g, const lk__graph_node *wait, const lk__plan_exchange *e)
{
    int  sums[LK__PIECES_MOST];
    bool done = true;
    for (int i = 0; i < e->pieces && done; i++) done = (sums[i] = wait_piece(g, wait, e, i)) >= 0;
    return done && join_pieces(g, wait, e, wait->out[0], sums);
}

/* ---- the list ---- */

/* Everything of an exchange stands where its start, its first product or its wait were. */
static bool cut_node(void *user, const lk__graph_node *n, size_t index)
{
    cutter               *c = user;
    const lk__graph_node *nodes = n - index;
    int                   number = c->all->of_node[index], node = (int)index;
    if (number < 0) return append_node(c->g, n);
    lk__plan_exchange *e = &c->all->all[number];
    if (e->gathers && node == e->start) return start_gather(c->g, n, e);
    if (e->gathers && node == e->products[0]) return use_gathered(c->g, nodes, e);
    if (!e->gathers && node == e->products[0]) return make_summands(c->g, nodes, e);
    if (!e->gathers && node == e->wait) return wait_sum(c->g, n, e);
    return true;
}

lk_status lk__pass_pieces(const lk_plan *p, lk__plan_list *list, int asked, size_t *forward)
{
    lk__plan_exchanges all;
    bool               cuts = asked > 1 || asked == LK_PIECES_ESTIMATED;
    if (!cuts || !p->placed_axes || p->parallel.leaves || !lk__device_is_host(p->device)) return LK_OK;
    lk_status status = lk__exchanges_find(p, list, asked, *forward, &all);
    cutter    c = {list->graph, &all};
    if (status >= 0 && all.count) status = lk__plan_rebuild_at(list->graph, cut_node, &c, forward);
    lk__exchanges_free(p, &all);
    return status;
}
