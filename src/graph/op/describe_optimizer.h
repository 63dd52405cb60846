/* graph/op/describe_optimizer.h - macros for the operations of optimizers, which write states, and for the
 * descriptors of optimizers. */
#ifndef LK__GRAPH_OP_DESCRIBE_OPTIMIZER_H
#define LK__GRAPH_OP_DESCRIBE_OPTIMIZER_H

#include "graph/op/describe.h"
#include "graph/optimizer.h"

/* Outputs are the parameter, then the moments (MOMENT), then `stored`: the parameter as the model reads it, in a
 * narrower type, where the parameter itself is the wider copy that is updated. own: LK__HAS(…) of the operation's
 * options. */
#define OPTIMIZER_OPERATION(own, count, ...)                                                                        \
    {                                                                                                               \
        .factors = "gradient(d..) scale() -> *(d..)", \
        .inputs = 2, .in = {OPERAND("gradient", REAL, REQUIRED, ROWS), OPERAND("scale", F64, REQUIRED, ROWS)},      \
        .outputs = 2 + (count),                                                                                     \
        .out = {OPERAND("parameter", REAL, REQUIRED, ROWS), __VA_ARGS__, OPERAND("stored", GIVEN, OPTIONAL, ROWS)}, \
        .attributes = (own) | LK__HAS(weight_decay) | LK__HAS(lr_scale), BACKWARD_ONLY,                             \
        .no_gradient = LK__NO_OPERAND, .in_place = LK__NO_OPERAND,                                                  \
        .leaves = LK__LEAVES_SEPARATE, .runs = LK__RUNS_KERNEL, .effect = LK__EFFECT_STATE,                    \
        .evaluation = LK__EVALUATE_SAME, .recompute = LK__RECOMPUTE, .fuse = LK__FUSE_NOTHING, .loss = LK__LOSS_NO, \
        .arithmetic = lk__arithmetic_none, .bytes = lk__bytes_updated                                               \
    }
#define MOMENT(name, presence) OPERAND(name, REAL, presence, ROWS)

/* DESCRIBE_OPTIMIZER(adam){…}; the table finds it by this name. */
#define DESCRIBE_OPTIMIZER(name)                           \
    extern const lk__graph_optimizer lk__optimizer_##name; \
    const lk__graph_optimizer        lk__optimizer_##name =

#endif
