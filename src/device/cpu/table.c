/* table.c - one table of kernels for this build's element type and instruction set. Operations whose operands are never bf16 have
 * no kernel for it: the planner casts to f32. */
#include "device/cpu/cpu.h"

#if NARROW
#define OPERATIONS(X)                                                                    \
    X(cast) X(conv2d) X(conv2d_grad_input) X(conv2d_grad_weight)                         \
    X(linear) X(linear_grad_input) X(linear_grad_weight) X(matmul)
#else
#define OPERATIONS(X) LK__OP_LIST(X)
#endif

const lk__kernel_entry KERNEL(table)[LK__OP_COUNT] = {
#define ENTRY(name) [LK__OP_##name] = {KERNEL(name), KERNEL(name##_workspace)},
    OPERATIONS(ENTRY)
#undef ENTRY
};
