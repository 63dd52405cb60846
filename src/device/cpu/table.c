/* table.c - one table of kernels for this build's element type and instruction set. Operations whose operands are never bf16 have
 * no kernel for it: the planner casts to f32. Users' operations are not in the table (device/custom.h). */
#include "device/cpu/cpu.h"

#if NARROW
#define OPERATIONS(X) \
    X(conv2d) X(conv2d_grad_input) X(conv2d_grad_weight) X(max_pool2d) X(max_pool2d_grad) X(avg_pool2d) \
    X(avg_pool2d_grad) X(global_avg_pool2d) X(global_avg_pool2d_grad) X(linear) X(linear_grad_input) \
    X(linear_grad_weight) X(matmul) X(add) X(sub) X(mul) X(div) X(unary) X(unary_grad) X(scale) X(scale_by) \
    X(layer_norm) X(layer_norm_grad) X(rms_norm) X(rms_norm_grad) X(group_norm) X(group_norm_grad) \
    X(batch_norm) X(batch_norm_eval) X(batch_norm_grad) X(batch_norm_eval_grad) X(batch_norm_stats) \
    X(batch_norm_apply) X(batch_norm_grad_stats) X(batch_norm_grad_apply) X(dropout) X(attention) X(attention_grad) X(rope) X(cache_write) X(linear_cross_entropy) X(swiglu) X(swiglu_grad) X(embedding) \
    X(embedding_grad) X(reshape) X(stop_gradient) X(permute) X(slice) X(slice_grad) X(concat) X(fill) \
    X(cast) X(to_channels_last) X(to_channels_first)
#else
#define OPERATIONS(X) LK__OP_LIST_BUILT_IN(X)
#endif

const lk__kernel_entry KERNEL(table)[LK__OP_COUNT] = {
#define ENTRY(name) [LK__OP_##name] = {KERNEL(name), KERNEL(name##_workspace)},
    OPERATIONS(ENTRY)
#undef ENTRY
};
