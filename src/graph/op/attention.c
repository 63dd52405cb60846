/* attention.c - scaled dot-product attention, and the rotation of queries and keys by their positions. */
#include "graph/op/describe.h"

/* ---- attention ---- */

/* Whether x is (samples, tokens) or, with tokens below 0, (samples), of q's samples. */
static bool is_bound(const lk__graph_shape *x, const lk__graph_shape *q, int64_t tokens)
{
    return !x || (x->rank == (tokens < 0 ? 1 : 2) && x->dims[0] == q->dims[0] && (tokens < 0 || x->dims[1] == tokens) &&
                  x->count_axis == q->count_axis && x->count_unit == q->count_unit);
}

static const lk__graph_shape *operand(const lk__graph_shapes *s, int i) { return i < s->inputs ? s->in[i] : NULL; }

/* Checks q, k and v, and gives the width of a head. -1: recorded in the graph. */
static int64_t head_width(lk__graph_shapes *s)
{
    const lk__graph_shape *q = s->in[0], *k = operand(s, 1), *v = operand(s, 2);
    int64_t                heads = s->attrs->heads, groups = s->attrs->kv_heads;
    int64_t                together = k ? heads : heads + 2 * groups;
    if (q->rank != 3 || q->count_axis > 0 || (q->count_axis == 0 && q->count_unit != 1))
        return LK__SHAPE_FAIL(s, "attention: queries have shape %s; expected (samples, tokens, width)",
                              lk__shape_show(q).text);
    if (heads < 1 || groups < 1 || heads % groups)
        return LK__SHAPE_FAIL(s, "attention: %lld query heads are not a multiple of %lld key heads", (long long)heads,
                              (long long)groups);
    if (q->dims[2] % together)
        return LK__SHAPE_FAIL(s, "attention: %lld heads%s do not divide the width of %s", (long long)together,
                              k ? "" : " of queries, keys and values", lk__shape_show(q).text);
    int64_t d = q->dims[2] / together;
    if (!k) return v ? LK__SHAPE_FAIL(s, "attention: values were given without keys") : d;
    if (!v || k->rank != 3 || !lk__shape_equal(k, v) || k->dims[0] != q->dims[0] || k->count_axis != q->count_axis ||
        k->dims[2] != groups * d)
        return LK__SHAPE_FAIL(
            s, "attention: keys %s and values %s do not match queries %s: expected (samples, tokens, %lld)",
            lk__shape_show(k).text, v ? lk__shape_show(v).text : "(none)", lk__shape_show(q).text,
            (long long)(groups * d));
    return d;
}

static int attention_shape(lk__graph_shapes *s)
{
    const lk__graph_shape *q = s->in[0];
    int64_t                d = head_width(s);
    if (d < 0) return -1;
    if (!is_bound(operand(s, 3), q, q->dims[1]) || !is_bound(operand(s, 4), q, q->dims[1]) ||
        !is_bound(operand(s, 5), q, -1))
        return LK__SHAPE_FAIL(
            s, "attention: with queries %s, first and last must be (samples, tokens) and lengths (samples)",
            lk__shape_show(q).text);
    if (!(s->attrs->probability >= 0 && s->attrs->probability < 1) || s->attrs->window < 0)
        return LK__SHAPE_FAIL(s,
                              "attention: dropout is %g and window is %lld; expected a dropout of at least 0 and below "
                              "1, and a window of at least 0",
                              s->attrs->probability, (long long)s->attrs->window);
    s->out[0] = *q;
    s->out[0].dims[2] = s->attrs->heads * d;
    s->out[1] = *q;
    s->out[1].dims[1] = s->attrs->heads;
    s->out[1].dims[2] = q->dims[1];
    return 2;
}

static void attention_gradient(lk__graph_backward *b, int dy)
{
    int in[] = {dy,
                lk__grad_in(b, 0),
                lk__grad_in(b, 1),
                lk__grad_in(b, 2),
                lk__grad_out(b, 0),
                lk__grad_out(b, 1),
                lk__grad_in(b, 3),
                lk__grad_in(b, 4),
                lk__grad_in(b, 5)};
    int wanted = 0, inputs = 9;
    for (int i = 0; i < 3; i++)
        if (lk__grad_wants(b, i)) wanted |= 1 << i;
    while (in[inputs - 1] < 0) inputs--;
    int node = lk__emit(b->g, b->n.site, LK__OP_attention_grad, &b->n.attrs, in, inputs, wanted);
    if (node < 0) return;
    lk__graph_node made = b->g->nodes[node];
    for (int i = 0; i < 3; i++)
        if (wanted >> i & 1) lk__grad_give(b, i, made.out[i]);
}

/* Two products of every query with every key; half of them with causal. */
static double attention_arithmetic(const lk_graph *g, const lk__graph_node *n)
{
    const lk__graph_shape *q = &g->values[n->in[0]].shape;
    int64_t                keys = n->inputs > 1 && n->in[1] >= 0 ? g->values[n->in[1]].shape.dims[1] : q->dims[1];
    return 4 * elements(g, n->out[0]) * (double)keys * (n->attrs.causal ? 0.5 : 1);
}

static double attention_grad_arithmetic(const lk_graph *g, const lk__graph_node *n)
{
    const lk__graph_shape *q = &g->values[n->in[1]].shape;
    int64_t                keys = n->in[2] >= 0 ? g->values[n->in[2]].shape.dims[1] : q->dims[1];
    return 10 * elements(g, n->in[0]) * (double)keys * (n->attrs.causal ? 0.5 : 1);
}

/* ---- queries, keys and values that are packed into one operand ---- */

/* What lies side by side in a value: queries, keys, values. */
typedef struct packed {
    int     value;
    int64_t start[3], length[3];
} packed;

/* With fewer heads of keys than ranks, queries can be cut over all of these where keys and values have copies. */
static bool gains_by_slices(const lk__graph_node *n, int operand, int64_t parts)
{
    int64_t heads = n->attrs.heads, groups = n->attrs.kv_heads;
    bool    is_packed = operand + 1 >= n->inputs || n->in[operand + 1] < 0;
    return is_packed && groups % parts && parts % groups == 0 && heads % parts == 0;
}

static packed describe_packed(const lk_graph *g, const lk__graph_node *n, int operand)
{
    const lk__graph_shape *s = &g->values[n->in[operand]].shape;
    int64_t                heads = n->attrs.heads, groups = n->attrs.kv_heads, d = s->dims[2] / (heads + 2 * groups);
    return (packed){n->in[operand], {0, heads * d, (heads + groups) * d}, {heads * d, groups * d, groups * d}};
}

/* The slice that forward has made, or a new one. */
static int find_slice(lk_graph *g, lk_site site, const packed *p, int i)
{
    lk__op_attrs attrs = {.axis = 2, .start = p->start[i], .length = p->length[i]};
    for (size_t k = 0; k < g->nodes_count; k++) {
        const lk__graph_node *n = &g->nodes[k];
        if (!n->dead && n->op == LK__OP_slice && n->in[0] == p->value && lk__attrs_equal(&n->attrs, &attrs))
            return n->out[0];
    }
    return lk__emit1(g, site, LK__OP_slice, &attrs, &p->value, 1);
}

static bool find_slices(lk_graph *g, const lk__graph_node *n, int operand, int in[3])
{
    packed p = describe_packed(g, n, operand);
    for (int i = 0; i < 3; i++)
        if ((in[i] = find_slice(g, n->site, &p, i)) < 0) return false;
    return true;
}

static int unpack_attention(lk_graph *g, const lk__graph_node *n, int64_t parts)
{
    int in[LK__MAX_IN], inputs = n->inputs < 3 ? 3 : n->inputs;
    if (!gains_by_slices(n, 0, parts)) return LK__NOT_UNPACKED;
    for (int i = 3; i < inputs; i++) in[i] = n->in[i];
    if (!find_slices(g, n, 0, in)) return -1;
    return lk__emit_update(g, n->site, n->op, &n->attrs, in, inputs, n->out, n->outputs);
}

/* The gradients of the three are put side by side. */
static int unpack_attention_grad(lk_graph *g, const lk__graph_node *n, int64_t parts)
{
    int in[LK__MAX_IN];
    if (!gains_by_slices(n, 1, parts)) return LK__NOT_UNPACKED;
    for (int i = 0; i < n->inputs; i++) in[i] = n->in[i];
    if (!find_slices(g, n, 1, &in[1])) return -1;
    int node = lk__emit(g, n->site, n->op, &n->attrs, in, n->inputs, LK__ALL_OUTPUTS);
    if (node < 0) return -1;
    int made[] = {g->nodes[node].out[0], g->nodes[node].out[1], g->nodes[node].out[2]};
    return lk__emit_update(g, n->site, LK__OP_concat, &(lk__op_attrs){.axis = 2}, made, 3, n->out, 1);
}

/* ---- descriptors ---- */

#define ATTENTION_ATTRIBUTES                                                                                         \
    LK__HAS(heads) | LK__HAS(kv_heads) | LK__HAS(causal) | LK__HAS(window) | LK__HAS(scale) | LK__HAS(probability) | \
        LK__HAS(stream)

DESCRIBE(attention){
    .factors = "q(batch, !tokens, groups*per*!width|groups*width|groups*width) first(batch, tokens) last(batch, "
               "tokens) lengths(batch) "
               "-> y(batch, tokens, groups*per*width) lse(batch, groups*per, tokens)"
               "; groups=kv_heads; groups*per=heads; per!probability\n"
               "q(batch, queries, groups*per*!width) k(batch, !keys, groups*width) v(batch, keys, groups*width) "
               "first(batch, queries) last(batch, queries) lengths(batch) "
               "-> y(batch, queries, groups*per*width) lse(batch, groups*per, queries)"
               "; groups=kv_heads; groups*per=heads; queries!causal; queries!window",
    .inputs = 6,
    .in = {OPERAND("q", REAL, REQUIRED, ROWS), OPERAND("k", REAL, OPTIONAL, ROWS), OPERAND("v", REAL, OPTIONAL, ROWS),
           OPERAND("first", I32, OPTIONAL, ROWS), OPERAND("last", I32, OPTIONAL, ROWS),
           OPERAND("lengths", I32, OPTIONAL, ROWS)},
    .outputs = 2,
    .out = {OPERAND("y", REAL, REQUIRED, ROWS), OPERAND("lse", WIDE, IF_READ, ROWS)},
    .attributes = ATTENTION_ATTRIBUTES,
    .shape = attention_shape,
    .gradient = attention_gradient,
    .no_gradient = 1u << 3 | 1u << 4 | 1u << 5,
    .in_place = LK__NO_OPERAND,
    .leaves = LK__LEAVES_SEPARATE,
    .runs = LK__RUNS_KERNEL,
    .effect = LK__EFFECT_NONE,
    .evaluation = LK__EVALUATE_KEEPING_ALL,
    .recompute = LK__RECOMPUTE,
    .fuse = LK__FUSE_NOTHING,
    .loss = LK__LOSS_NO,
    .unpack = unpack_attention,
    .arithmetic = attention_arithmetic,
    .bytes = lk__bytes_operands,
};

static int attention_grad_shape(lk__graph_shapes *s)
{
    for (int i = 0; i < 3; i++) s->out[i] = s->in[1 + i] ? *s->in[1 + i] : *s->in[1];
    return 3;
}

DESCRIBE(attention_grad){
    .factors = "dy(batch, !tokens, groups*!per*!width) q(batch, tokens, groups*per*width|groups*width|groups*width) "
               "y(batch, tokens, groups*per*width) lse(batch, groups*per, tokens) first(batch, tokens) last(batch, "
               "tokens) lengths(batch) "
               "-> dq(batch, tokens, groups*per*width|groups*width|groups*width)"
               "; groups=kv_heads; groups*per=heads\n"
               "dy(batch, queries, groups*per*!width) q(batch, queries, groups*per*width) "
               "k(batch, !keys, groups*width) v(batch, keys, groups*width) y(batch, queries, groups*per*width) "
               "lse(batch, groups*per, queries) "
               "first(batch, queries) last(batch, queries) lengths(batch) "
               "-> dq(batch, queries, groups*per*width) dk(batch, keys, groups*width) dv(batch, keys, groups*width)"
               "; groups=kv_heads; groups*per=heads; queries!causal; queries!window",
    .inputs = 9,
    .in = {OPERAND("dy", REAL, REQUIRED, ROWS), OPERAND("q", REAL, REQUIRED, ROWS), OPERAND("k", REAL, OPTIONAL, ROWS),
           OPERAND("v", REAL, OPTIONAL, ROWS), OPERAND("y", REAL, REQUIRED, ROWS), OPERAND("lse", WIDE, REQUIRED, ROWS),
           OPERAND("first", I32, OPTIONAL, ROWS), OPERAND("last", I32, OPTIONAL, ROWS),
           OPERAND("lengths", I32, OPTIONAL, ROWS)},
    .outputs = 3,
    .out = {OPERAND("dq", REAL, OPTIONAL, ROWS), OPERAND("dk", PRODUCT, OPTIONAL, ROWS),
            OPERAND("dv", PRODUCT, OPTIONAL, ROWS)},
    .attributes = ATTENTION_ATTRIBUTES | LK__HAS(sum),
    .shape = attention_grad_shape,
    .gradient = lk__gradient_none,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    .unpack = unpack_attention_grad,
    ORDINARY,
    .arithmetic = attention_grad_arithmetic,
    .bytes = lk__bytes_operands,
};

/* ---- rope ---- */

static int rope_shape(lk__graph_shapes *s)
{
    const lk__graph_shape *x = s->in[0], *table = s->in[1], *positions = operand(s, 2);
    int64_t                heads = s->attrs->heads;
    if (x->rank != 3 || x->count_axis > 0 || heads < 1 || x->dims[2] % heads || x->dims[2] / heads % 2)
        return LK__SHAPE_FAIL(
            s, "rope: x has shape %s; expected (samples, tokens, width), with %lld heads of an even width",
            lk__shape_show(x).text, (long long)heads);
    if (table->rank != 2 || table->count_axis >= 0 || table->dims[1] != x->dims[2] / heads ||
        (!positions && table->dims[0] < x->dims[1]))
        return LK__SHAPE_FAIL(s,
                              "rope: the table has shape %s; expected (positions, %lld), with at least as many "
                              "positions as x %s has tokens",
                              lk__shape_show(table).text, (long long)(x->dims[2] / heads), lk__shape_show(x).text);
    if (!is_bound(positions, x, x->dims[1]))
        return LK__SHAPE_FAIL(s, "rope: positions %s do not match x %s", lk__shape_show(positions).text,
                              lk__shape_show(x).text);
    s->out[0] = *x;
    return 1;
}

/* The gradient is rotated back. */
static void rope_gradient(lk__graph_backward *b, int dy)
{
    lk__op_attrs attrs = b->n.attrs;
    attrs.inverse = !attrs.inverse;
    if (lk__grad_wants(b, 0))
        lk__grad_give(b, 0,
                      LK__GRAD_EMIT(b, LK__OP_rope, &attrs, lk__grad_in(b, 2) < 0 ? 2 : 3, dy, lk__grad_in(b, 1),
                                    lk__grad_in(b, 2)));
}

DESCRIBE(rope){
    .factors = "x(batch, !tokens, heads*!width) table(!positions, width) -> y(batch, tokens, heads*width)"
               "; heads=heads\n"
               "x(batch, tokens, heads*!width) table(!positions, width) positions(batch, tokens) -> y(batch, tokens, "
               "heads*width)"
               "; heads=heads",
    .inputs = 3,
    .in = {OPERAND("x", REAL, REQUIRED, ROWS), OPERAND("table", WIDE, REQUIRED, ROWS),
           OPERAND("positions", I32, OPTIONAL, ROWS)},
    .outputs = 1,
    .out = {OPERAND("y", REAL, REQUIRED, ROWS)},
    .attributes = LK__HAS(heads) | LK__HAS(inverse),
    .shape = rope_shape,
    .gradient = rope_gradient,
    .no_gradient = 1u << 1 | 1u << 2,
    .in_place = 1u << 0,
    ORDINARY,
    MEMORY_BOUND,
};
