/* optimizer.c - the operations of the update section: the norm and the common scale of the gradients, and the optimizers, which
 * write states. */
#include "graph/op/describe.h"

static int square_sum_shape(lk__graph_shapes *s)
{
    s->out[0] = lk__shape_scalar(LK_F64);
    return 1;
}

static int gradient_scale_shape(lk__graph_shapes *s)
{
    s->out[0] = s->out[1] = lk__shape_scalar(LK_F64);
    return 2;
}

DESCRIBE(square_sum){
    .inputs = 1,
    .in = {OPERAND("x", REAL, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("y", F64, REQUIRED, ROWS)},
    .attributes = LK__NO_ATTRIBUTES,
    .shape = square_sum_shape,
    .gradient = lk__gradient_none,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

DESCRIBE(gradient_scale){
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

/* stored: the parameter as the model reads it, in a narrower type, where the parameter itself is the wider copy that is updated. */
#define OPTIMIZER                                                                                              \
    BACKWARD_ONLY, .no_gradient = LK__NO_OPERAND, .in_place = LK__NO_OPERAND, .same = LK__NO_OPERAND, .samples = LK__SAMPLES_APART,           \
                   .runs = LK__RUNS_KERNEL, .effect = LK__EFFECT_STATE, .evaluation = LK__EVALUATE_SAME,       \
                   .recompute = LK__RECOMPUTE, .fuse = LK__FUSE_NOTHING, .loss = LK__LOSS_NO, MEMORY_BOUND

DESCRIBE(sgd){
    .inputs = 2,
    .in = {OPERAND("gradient", REAL, REQUIRED, ROWS), OPERAND("scale", F64, REQUIRED, ROWS)},
    .outputs = 3,
    .out = {OPERAND("parameter", REAL, REQUIRED, ROWS), OPERAND("momentum", REAL, OPTIONAL, ROWS),
            OPERAND("stored", GIVEN, OPTIONAL, ROWS)},
    .attributes = LK__HAS(momentum) | LK__HAS(dampening) | LK__HAS(nesterov) | LK__HAS(weight_decay) | LK__HAS(lr_scale),
    OPTIMIZER,
};

DESCRIBE(adam){
    .inputs = 2,
    .in = {OPERAND("gradient", REAL, REQUIRED, ROWS), OPERAND("scale", F64, REQUIRED, ROWS)},
    .outputs = 4,
    .out = {OPERAND("parameter", REAL, REQUIRED, ROWS), OPERAND("exp_avg", REAL, REQUIRED, ROWS),
            OPERAND("exp_avg_sq", REAL, REQUIRED, ROWS), OPERAND("stored", GIVEN, OPTIONAL, ROWS)},
    .attributes = LK__HAS(beta1) | LK__HAS(beta2) | LK__HAS(epsilon) | LK__HAS(decoupled) | LK__HAS(weight_decay) |
                  LK__HAS(lr_scale),
    OPTIMIZER,
};
