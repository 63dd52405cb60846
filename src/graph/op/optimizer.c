/* optimizer.c - the operations of the update section that come before the optimizers: the norm and the common scale
 * of the gradients. */
#include "graph/op/describe.h"

static int square_sum_shape(lk__graph_shapes *s)
{
    int64_t parts = s->attrs->parts;
    s->out[0] = parts ? lk__shape_vector(LK_F64, parts) : lk__shape_scalar(LK_F64);
    return 1;
}

static int gradient_scale_shape(lk__graph_shapes *s)
{
    s->out[0] = s->out[1] = lk__shape_scalar(LK_F64);
    return 2;
}

DESCRIBE(square_sum){
    .factors = "x(d..) -> y()",
    .inputs = 1,
    .in = {OPERAND("x", REAL, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("y", F64, REQUIRED, ROWS)},
    .attributes = LK__HAS(parts),
    .shape = square_sum_shape,
    .gradient = lk__gradient_none,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

DESCRIBE(gradient_scale){
    .factors = "-",
    .inputs = 2,
    .in = {OPERAND("weight", F64, OPTIONAL, ROWS), OPERAND("squares", F64, OPTIONAL, ROWS)},
    .outputs = 2,
    .out = {OPERAND("scale", F64, REQUIRED, ROWS), OPERAND("norm", F64, REQUIRED, ROWS)},
    .attributes = LK__HAS(clip),
    .shape = gradient_scale_shape,
    .gradient = lk__gradient_none,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};
