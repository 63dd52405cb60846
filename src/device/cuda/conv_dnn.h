/* device/cuda/conv_dnn.h - convolutions by cuDNN. Where it is missing or has no deterministic engine within the planned workspace, and
 * where ours are faster, those of conv.cu run. */
#ifndef LK__CUDA_CONV_DNN_H
#define LK__CUDA_CONV_DNN_H

#include "device/cuda/conv.h"

typedef enum conv_direction { CONV_FORWARD, CONV_GRAD_INPUT, CONV_GRAD_WEIGHT } conv_direction;

conv_shape lk__cuda_conv_shape(const lk__kernel_call *call, conv_direction direction);
/* conv.cu's own kernels. */
lk_status lk__cuda_conv_own(const lk__kernel_call *call, conv_direction direction);
size_t    lk__cuda_conv_workspace(const lk__kernel_call *call, conv_direction direction); /* of both */

/* LK_EUNSUPPORTED: nothing was queued. */
lk_status lk__cuda_conv_dnn_run(const lk__kernel_call *call, conv_direction direction);
lk_status lk__cuda_conv_dnn_prepare(lk__device *device, const lk__kernel_call *call, conv_direction direction);
size_t    lk__cuda_conv_dnn_workspace(const lk__kernel_call *call, conv_direction direction); /* 0: it is never used */

#endif
