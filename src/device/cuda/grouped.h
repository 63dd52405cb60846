/* device/cuda/grouped.h - products of rows that are grouped by expert: what grouped_linear.cu and grouped_tensor.cu
 * share. The rows of each expert are known only in the device's memory. */
#ifndef LK__CUDA_GROUPED_H
#define LK__CUDA_GROUPED_H

#include "device/cuda/cuda.h"

struct grouped_job {
    const int32_t *offsets; /* experts + 1 */
    int64_t        experts, rows;
    int64_t        m, n, k; /* of an expert's gradient (m, n); of a product n columns and k that are added */
};

/* Where expert e ends; offsets that are not in order give empty groups. */
static __device__ __forceinline__ int64_t end_of_expert(const int32_t *offsets, int64_t e, int64_t begin, int64_t rows)
{
    int64_t end = offsets[e + 1] < rows ? offsets[e + 1] : rows;
    return end > begin ? end : begin;
}

/* grouped_tensor.cu: bf16 on GPUs of compute capability 9.0, where lines of operands are multiples of 16 bytes. false:
 * the caller computes it otherwise. */
bool lk__cuda_grouped_tensor(const lk__kernel_call *call, const grouped_job &job, lk_status *status);
bool lk__cuda_grouped_tensor_grad_weight(const lk__kernel_call *call, const grouped_job &job, lk_status *status);

#endif
