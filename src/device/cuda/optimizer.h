/* device/cuda/optimizer.h - the arithmetic of square_sum and gradient_scale, for launches over one tensor and over
 * many. */
#ifndef LK__CUDA_OPTIMIZER_H
#define LK__CUDA_OPTIMIZER_H

#include "device/cuda/cuda.h"

/* ---- the common scale of all gradients ---- */

template <typename T> struct square_sum {
    const T *x;

    template <int N> __device__ __forceinline__ void add(int64_t at, double (&sum)[1]) const
    {
        lk__pack<T, N> a = load_pack<N>(x + at);
#pragma unroll
        for (int i = 0; i < N; i++) sum[0] += (double)a.at[i] * (double)a.at[i];
    }
};

/* 1 / weight (1 without a weight, 0 for a weight of 0), times clip / (norm + 1e-6) where that is below 1. */
typedef struct gradient_scaling {
    const double *weight; /* NULL: 1 */
    double       *scale, *norm;
    double        clip;
} gradient_scaling;

static __device__ __forceinline__ void scale_gradients(const gradient_scaling &g, double squares)
{
    double weight = g.weight ? *g.weight : 1, scale = weight == 0 ? 0 : 1 / weight, norm = sqrt(squares) * scale;
    double factor = g.clip / (norm + 1e-6);
    /* A NaN norm makes the scale NaN: it must not count as a small one. */
    *g.scale = g.clip > 0 && !(factor >= 1) ? scale * factor : scale;
    if (g.norm) *g.norm = norm;
}

static inline gradient_scaling describe_scaling(const lk__kernel_call *call)
{
    gradient_scaling g = {in_data<double>(call, 0), out_data<double>(call, 0), out_data<double>(call, 1),
                          call->attrs->clip};
    return g;
}

/* ---- many tensors in one launch ---- */

/* Which of `count` has this block. */
static __device__ __forceinline__ int find_tensor(const int32_t *begin, int count, int32_t block)
{
    int low = 0, high = count;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (begin[middle] <= block)
            low = middle;
        else
            high = middle;
    }
    return low;
}

#endif
