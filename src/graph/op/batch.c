/* batch.c - operations around a step, outside its graph: the rows of a batch are computed before it, and tokens are
 * chosen after it. Programs call their kernels; a model does not record them. */
#include "graph/op/describe.h"

DESCRIBE(sample_rows){
    .factors = "-",
    .inputs = 5,
    .in = {OPERAND("headers", U8, REQUIRED, ROWS), OPERAND("ring_slot", I64, OPTIONAL, ROWS),
           OPERAND("table", REAL, OPTIONAL, ROWS), OPERAND("normal", F64, OPTIONAL, ROWS),
           OPERAND("samples", ANY_WIDE, REPEATED, ROWS)},
    .outputs = 8,
    .out = {OPERAND("header", U8, REQUIRED, ROWS), OPERAND("rows0", GIVEN, REQUIRED, ROWS),
            OPERAND("rows1", GIVEN, OPTIONAL, ROWS), OPERAND("rows2", GIVEN, OPTIONAL, ROWS),
            OPERAND("rows3", GIVEN, OPTIONAL, ROWS), OPERAND("rows4", GIVEN, OPTIONAL, ROWS),
            OPERAND("rows5", GIVEN, OPTIONAL, ROWS), OPERAND("rows6", GIVEN, OPTIONAL, ROWS)},
    .attributes = LK__HAS(by_row) | LK__HAS(padding) | LK__HAS(probability) | LK__HAS(cutout),
    .shape = lk__shape_given,
    .gradient = lk__gradient_none,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    ORDINARY,
    MEMORY_BOUND,
};

DESCRIBE(choose_tokens){
    .factors = "-",
    .inputs = 2,
    .in = {OPERAND("logits", REAL, REQUIRED, ROWS), OPERAND("sampling", U8, REQUIRED, ROWS)},
    .outputs = 7,
    .out = {OPERAND("chosen", I32, REQUIRED, ROWS), OPERAND("prompts", U8, REQUIRED, ROWS),
            OPERAND("places", I32, OPTIONAL, ROWS), OPERAND("tokens", I32, OPTIONAL, ROWS),
            OPERAND("positions", I32, OPTIONAL, ROWS), OPERAND("first", I32, OPTIONAL, ROWS),
            OPERAND("last", I32, OPTIONAL, ROWS)},
    .attributes = LK__HAS(window) | LK__HAS(sorts),
    .shape = lk__shape_given,
    .gradient = lk__gradient_none,
    .no_gradient = LK__NO_OPERAND,
    .in_place = LK__NO_OPERAND,
    .leaves = LK__LEAVES_SEPARATE,
    .runs = LK__RUNS_KERNEL,
    .effect = LK__EFFECT_STATE,
    .evaluation = LK__EVALUATE_SAME,
    .recompute = LK__KEEP,
    .fuse = LK__FUSE_NOTHING,
    .loss = LK__LOSS_NO,
    MEMORY_BOUND,
};
