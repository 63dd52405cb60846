/* graph/op/describe.h - macros for descriptors in this directory. */
#ifndef LK__GRAPH_OP_DESCRIBE_H
#define LK__GRAPH_OP_DESCRIBE_H

#include "graph/op.h"

/* DESCRIBE(relu){…}; the table finds it by this name. */
#define DESCRIBE(name)                                  \
    extern const lk__graph_op lk__descriptor_##name; \
    const lk__graph_op        lk__descriptor_##name =

/* OPERAND("x", REAL, REQUIRED, ROWS) */
#define OPERAND(name, type, presence, layout) {name, LK__TYPE_##type, LK__##presence, LK__LAYOUT_##layout}

/* The fields of most operations: a kernel without effects that fuses nothing. */
#define ORDINARY ORDINARY_BUT_FUSION, .fuse = LK__FUSE_NOTHING
#define ORDINARY_BUT_FUSION                                                                                   \
    .leaves = LK__LEAVES_SEPARATE, .runs = LK__RUNS_KERNEL, .effect = LK__EFFECT_NONE,                        \
    .evaluation = LK__EVALUATE_SAME, .recompute = LK__RECOMPUTE, .loss = LK__LOSS_NO

/* Bound by memory: each operand is read or written once. */
#define MEMORY_BOUND .arithmetic = lk__arithmetic_none, .bytes = lk__bytes_operands

/* An operation that backward adds, with a given shape; it has no gradient. */
#define BACKWARD_ONLY .shape = lk__shape_given, .gradient = lk__gradient_none

static inline double elements(const lk_graph *g, int value)
{
    return value < 0 ? 0 : (double)lk__shape_elements(&g->values[value].shape) / lk__value_ranks(g, value);
}

#endif
