/* indexed.c - operations that read or write at positions given by another operand: embedding. */
#include "graph/op/describe.h"

static int embedding_shape(lk__graph_shapes *s)
{
    const lk__graph_shape *ids = s->in[0], *table = s->in[1];
    if (ids->dtype != LK_I32 || table->rank != 2 || ids->rank >= LK_MAX_RANK)
        return LK__SHAPE_FAIL(s, "embedding: ids %s must be i32 and table %s (V, D)", lk__shape_show(ids).text,
                              lk__shape_show(table).text);
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

DESCRIBE(embedding){
    .inputs = 2,
    .in = {OPERAND("ids", I32, REQUIRED, ROWS), OPERAND("table", REAL, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("y", REAL, REQUIRED, ROWS)},
    .attributes = LK__NO_ATTRIBUTES,
    .shape = embedding_shape,
    .gradient = embedding_gradient,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    .precision = LK__PRECISION_NARROW,
    ORDINARY,
    MEMORY_BOUND,
};

DESCRIBE(embedding_grad){
    .inputs = 2,
    .in = {OPERAND("ids", I32, REQUIRED, ROWS), OPERAND("dy", REAL, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("dtable", WIDE, REQUIRED, ROWS)},
    .attributes = LK__NO_ATTRIBUTES,
    BACKWARD_ONLY,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    .precision = LK__PRECISION_NARROW,
    ORDINARY,
    MEMORY_BOUND,
};
