/* device/cuda/dnn_attention.h - attention and its gradient by cuDNN: bf16, heads up to 128 wide, all keys or causal. */
#ifndef LK__CUDA_DNN_ATTENTION_H
#define LK__CUDA_DNN_ATTENTION_H

#include "device/cuda/cuda.h"

/* Bytes of workspace, from shapes alone; 0: these operands are not for cuDNN. gradient: the call is an
 * attention_grad's. */
size_t lk__cuda_dnn_attention_workspace(const lk__kernel_call *call, bool gradient);
/* Before the first run: makes the plan. LK_OK also where there is none. */
lk_status lk__cuda_dnn_attention_prepare(const lk__kernel_call *call, bool gradient);
/* LK_EUNSUPPORTED: nothing was queued, and the caller must run one of our own kernels. */
lk_status lk__cuda_dnn_attention(const lk__kernel_call *call, bool gradient);

#endif
