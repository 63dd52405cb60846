/* base/function.h - the functions of one value, one line each. Each is a kind of the operations unary and unary_grad.
 * Their formulas, for the CPU and for CUDA, are in device/functions.h. Part of op.h. */
#ifndef LK__FUNCTION_H
#define LK__FUNCTION_H

#include <stdbool.h>
#include <stdint.h>

/* X(constant, name, saves, fused, recorded):
 * saves     what its gradient is computed from: its RESULT, or its OPERAND
 * fused     YES: kernels that compute a function behind their results (device/fusion.h) may compute this one
 * recorded  PLAIN: lk_NAME(x) records it, which has no attributes; APART: graph/build.c has a call of its own for it
 * Constants are stored in listings and hashes by their order: new ones are added at the end. */
#define LK__UNARY_LIST(X)                              \
    X(LK__IDENTITY, identity, OPERAND, NO, APART)      \
    X(LK__RELU, relu, RESULT, YES, PLAIN)              \
    X(LK__GELU, gelu, OPERAND, NO, APART)              \
    X(LK__GELU_TANH, gelu_tanh, OPERAND, NO, APART)    \
    X(LK__SILU, silu, OPERAND, NO, PLAIN)              \
    X(LK__SIGMOID, sigmoid, RESULT, NO, PLAIN)         \
    X(LK__TANH, tanh, RESULT, NO, PLAIN)               \
    X(LK__EXP, exp, RESULT, NO, PLAIN)                 \
    X(LK__LOG, log, OPERAND, NO, PLAIN)                \
    X(LK__SQRT, sqrt, RESULT, NO, PLAIN)               \
    X(LK__POW, pow, OPERAND, NO, APART)                \
    X(LK__CLAMP, clamp, OPERAND, NO, APART)            \
    X(LK__LEAKY_RELU, leaky_relu, OPERAND, NO, APART)

typedef enum lk__op_unary {
#define LK__UNARY_ENUM(constant, name, saves, fused, recorded) constant,
    LK__UNARY_LIST(LK__UNARY_ENUM)
#undef LK__UNARY_ENUM
} lk__op_unary;

/* Sets of functions: bits by constant. */
#define LK__FUNCTION_BIT(function) (UINT32_C(1) << (function))
#define LK__FUSED_YES(constant) | LK__FUNCTION_BIT(constant)
#define LK__FUSED_NO(constant)
#define LK__FUSED_BIT(constant, name, saves, fused, recorded) LK__FUSED_##fused(constant)
#define LK__FUSED_FUNCTIONS (UINT32_C(0) LK__UNARY_LIST(LK__FUSED_BIT))
#define LK__SAVES_RESULT(constant) | LK__FUNCTION_BIT(constant)
#define LK__SAVES_OPERAND(constant)
#define LK__SAVES_BIT(constant, name, saves, fused, recorded) LK__SAVES_##saves(constant)

/* Whether unary_grad reads the function's result y, else its x. */
static inline bool lk__unary_saves_result(lk__op_unary unary)
{
    return (UINT32_C(0) LK__UNARY_LIST(LK__SAVES_BIT)) >> unary & 1;
}

#endif
