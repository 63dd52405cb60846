/* collective.c - operations that ranks run together. */
#include "graph/op/describe.h"

/* Statistics get no gradient: batch_norm_apply's rule sums over ranks itself. */
DESCRIBE(sync){
    .inputs = 1,
    .in = {OPERAND("x", F64, REQUIRED, ROWS)},
    .outputs = 1,
    .out = {OPERAND("y", F64, REQUIRED, ROWS)},
    .attributes = LK__NO_ATTRIBUTES,
    .shape = lk__shape_same,
    .gradient = lk__gradient_stopped,
    .no_gradient = 1u << 0,
    .in_place = LK__NO_OPERAND,
    .same = 1u << 0,
    .samples = LK__SAMPLES_APART,
    .runs = LK__RUNS_COLLECTIVE,
    .effect = LK__EFFECT_NONE,
    .evaluation = LK__EVALUATE_SAME,
    .recompute = LK__KEEP,
    .precision = LK__PRECISION_WIDE,
    .fuse = LK__FUSE_NOTHING,
    .loss = LK__LOSS_NO,
    MEMORY_BOUND,
};
