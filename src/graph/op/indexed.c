/* indexed.c - operations that read or write at positions given by another operand: embedding, cache_write. */
#include "graph/op/describe.h"

static int embedding_shape(lk__graph_shapes *s)
{
    const lk__graph_shape *ids = s->in[0], *table = s->in[1];
    if (ids->dtype != LK_I32 || table->rank != 2 || ids->rank >= LK_MAX_RANK)
        return LK__SHAPE_FAIL(s, "embedding: ids %s must be i32, and table %s must be (V, D)", lk__shape_show(ids).text,
                              lk__shape_show(table).text);
    if (!lk__shape_check_weights(s, 1)) return -1;
    s->out[0] = *ids;
    s->out[0].dtype = table->dtype;
    s->out[0].dims[s->out[0].rank++] = table->dims[1];
    return 1;
}

static void embedding_gradient(lk__graph_backward *b, int dy)
{
    if (!lk__grad_wants(b, 1)) return;
    int operands[] = {lk__grad_in(b, 0), dy};
    lk__grad_give(b, 1, lk__grad_emit_like(b, LK__OP_embedding_grad, NULL, operands, 2, lk__grad_in(b, 1)));
}

/* The rows that are named are read, not the whole table. */
static double embedding_bytes(const lk_graph *g, const lk__graph_node *n)
{
    double rows = elements(g, n->out[0]), table = elements(g, n->in[1]);
    return (rows + (rows < table ? rows : table)) * (double)lk_dtype_size(g->values[n->out[0]].shape.dtype) +
           elements(g, n->in[0]) * (double)lk_dtype_size(LK_I32);
}

DESCRIBE(embedding){
    .factors = "ids(rows..) table(?vocabulary, width) -> y(rows.., width)",
    .inputs = 2,
    .in = {OPERAND("ids", I32, REQUIRED, ROWS), OPERAND("table", REAL, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("y", REAL, REQUIRED, ROWS)},
    .attributes = LK__NO_ATTRIBUTES,
    .shape = embedding_shape,
    .gradient = embedding_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    .arithmetic = lk__arithmetic_none,
    .bytes = embedding_bytes,
};

DESCRIBE(embedding_grad){
    .factors = "ids(rows..) dy(rows.., width) -> dtable(vocabulary, width)",
    .inputs = 2,
    .in = {OPERAND("ids", I32, REQUIRED, ROWS), OPERAND("dy", REAL, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("dtable", WIDE, REQUIRED, ROWS)},
    .attributes = LK__NO_ATTRIBUTES,
    BACKWARD_ONLY,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

/* x is read and as many rows are written, not the whole cache. */
static double cache_write_bytes(const lk_graph *g, const lk__graph_node *n)
{
    const lk__graph_shape *x = &g->values[n->in[1]].shape, *rows = &g->values[n->in[2]].shape;
    return 2 * elements(g, n->in[1]) * (double)lk_dtype_size(x->dtype) +
           elements(g, n->in[2]) * (double)lk_dtype_size(rows->dtype);
}

/* The result has the batch's run-time count, which a buffer has not: a sample's rows of the cache belong to it. */
static int cache_write_shape(lk__graph_shapes *s)
{
    const lk__graph_shape *cache = s->in[0], *x = s->in[1], *rows = s->in[2];
    if (x->rank != 3 || x->count_axis > 0 || (x->count_axis == 0 && x->count_unit != 1) || cache->rank != 3 ||
        cache->dims[0] != x->dims[0] || cache->dims[2] != x->dims[2])
        return LK__SHAPE_FAIL(
            s, "cache_write: cache %s and x %s must be (samples, rows, width), with the same batch and width",
            lk__shape_show(cache).text, lk__shape_show(x).text);
    if (rows->rank != 2 || rows->dims[0] != x->dims[0] || rows->dims[1] != x->dims[1] ||
        rows->count_axis != x->count_axis || rows->count_unit != x->count_unit)
        return LK__SHAPE_FAIL(s, "cache_write: rows %s do not match (samples, tokens) of x %s",
                              lk__shape_show(rows).text, lk__shape_show(x).text);
    s->out[0] = *cache;
    lk__shape_carry_count(&s->out[0], x, 0, 0);
    return 1;
}

DESCRIBE(cache_write){
    .factors = "cache(_, !rows, width) x(batch, !tokens, width) rows(batch, tokens) -> y(batch, rows, width)",
    .inputs = 3,
    .in = {OPERAND("cache", REAL, REQUIRED, ROWS), OPERAND("x", REAL, REQUIRED, ROWS),
           OPERAND("rows", I32, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("y", REAL, REQUIRED, ROWS)},
    .attributes = LK__NO_ATTRIBUTES,
    .shape = cache_write_shape,
    .gradient = lk__gradient_stopped,
    .no_gradient = 1u << 0 | 1u << 1 | 1u << 2,
    .in_place = LK__NO_OPERAND,
    .leaves = LK__LEAVES_SEPARATE,
    .runs = LK__RUNS_KERNEL,
    .effect = LK__EFFECT_CACHE,
    .evaluation = LK__EVALUATE_SAME,
    .recompute = LK__KEEP,
    .fuse = LK__FUSE_NOTHING,
    .loss = LK__LOSS_NO,
    .arithmetic = lk__arithmetic_none,
    .bytes = cache_write_bytes,
};
