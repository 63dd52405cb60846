/* device/cuda/conv_ways.h - the three ways to convolve: kernels for everything (conv.cu), tensor cores (conv_tensor.cu), and cuDNN
 * (conv_dnn.cu), which is taken where it has a deterministic engine within the planned workspace that is faster than ours. */
#ifndef LK__CUDA_CONV_WAYS_H
#define LK__CUDA_CONV_WAYS_H

#include "device/cuda/conv.h"

typedef enum conv_direction { CONV_FORWARD, CONV_GRAD_INPUT, CONV_GRAD_WEIGHT } conv_direction;

conv_shape lk__cuda_conv_shape(const lk__kernel_call *call, conv_direction direction);
/* Our own kernels, conv.cu's or conv_tensor.cu's. */
lk_status lk__cuda_conv_own(const lk__kernel_call *call, conv_direction direction);
size_t    lk__cuda_conv_workspace(const lk__kernel_call *call, conv_direction direction); /* of both */

/* conv_tensor.cu: tensor cores. LK_EUNSUPPORTED: nothing was queued, also below. */
lk_status lk__cuda_conv_tensor_run(const lk__kernel_call *call, conv_direction direction);
bool      lk__cuda_conv_tensor_suits(const lk__kernel_call *call, const conv_shape &v);
size_t    lk__cuda_conv_tensor_workspace(const lk__kernel_call *call, conv_direction direction);

/* conv_dnn.cu: cuDNN. */
lk_status lk__cuda_conv_dnn_run(const lk__kernel_call *call, conv_direction direction);
lk_status lk__cuda_conv_dnn_prepare(lk__device *device, const lk__kernel_call *call, conv_direction direction);
size_t    lk__cuda_conv_dnn_workspace(const lk__kernel_call *call, conv_direction direction); /* 0: it is never used */

#endif
