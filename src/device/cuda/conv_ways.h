/* device/cuda/conv_ways.h - the implementations of convolutions: general kernels (conv.cu), 3×3 kernels in f32
 * (conv_direct.h), tensor cores (conv_tensor.cu), and cuDNN (conv_dnn.cu), which is used where it has a deterministic
 * engine within the planned workspace that is faster than ours. */
#ifndef LK__CUDA_CONV_WAYS_H
#define LK__CUDA_CONV_WAYS_H

#include "device/cuda/conv.h"

typedef enum conv_direction { CONV_FORWARD, CONV_GRAD_INPUT, CONV_GRAD_WEIGHT } conv_direction;

conv_shape lk__cuda_conv_shape(const lk__kernel_call *call, conv_direction direction);
/* Whether the image is in the type of sums and its operands are not: a summand of what ranks add, not rounded before.
 * Forward then has neither an activation nor a pool. */
static inline bool lk__cuda_conv_gives_sums(const lk__kernel_call *call)
{
    return call->out[0].dtype != call->in[0].dtype;
}
/* Our own kernels, conv.cu's or conv_tensor.cu's. */
lk_status lk__cuda_conv_own(const lk__kernel_call *call, conv_direction direction);
size_t    lk__cuda_conv_workspace(const lk__kernel_call *call, conv_direction direction); /* of both */

/* conv_tensor.cu: tensor cores. LK_EUNSUPPORTED: nothing was queued, also below. */
lk_status lk__cuda_conv_tensor_run(const lk__kernel_call *call, conv_direction direction);
bool      lk__cuda_conv_tensor_supports(const lk__kernel_call *call, const conv_shape &v);
size_t    lk__cuda_conv_tensor_workspace(const lk__kernel_call *call, conv_direction direction);

/* conv_direct.cu: 3×3 kernels in f32; grad_weight is in conv_direct_weight.cu, images of 3 channels in
 * conv_first.cu. */
lk_status lk__cuda_conv_direct_run(const lk__kernel_call *call, conv_direction direction);
bool      lk__cuda_conv_direct_supports(const lk__kernel_call *call, const conv_shape &v);
size_t    lk__cuda_conv_direct_workspace(const lk__kernel_call *call, conv_direction direction);
lk_status lk__cuda_conv_direct_weight_run(const lk__kernel_call *call);
size_t    lk__cuda_conv_direct_weight_workspace(const conv_shape &v);
lk_status lk__cuda_conv_first_run(const lk__kernel_call *call, conv_direction direction);
size_t    lk__cuda_conv_first_workspace(const conv_shape &v);
/* For benchmarks: -1, or the number of a tile's shape; and into how many blocks at least a weight's gradient is
 * divided. */
extern int     lk__cuda_conv_direct_variant;
extern int64_t lk__cuda_conv_direct_blocks;

/* conv_dnn.cu: cuDNN. */
lk_status lk__cuda_conv_dnn_run(const lk__kernel_call *call, conv_direction direction);
lk_status lk__cuda_conv_dnn_prepare(lk__device *device, const lk__kernel_call *call, conv_direction direction);
size_t    lk__cuda_conv_dnn_workspace(const lk__kernel_call *call, conv_direction direction); /* 0: it is never used */

#endif
