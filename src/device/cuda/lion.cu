/* lion.cu - Lion (Chen et al. 2023, algorithm 2): the sign of an average of gradients, and decoupled weight decay. */
#include "device/cuda/update.h"

template <typename R> struct lion_rule {
    enum { MOMENTS = 1 };
    struct attributes {
        double lr_scale, weight_decay, beta1, beta2;
    };
    R scale, rate, shrink;                  /* shrink: 1 - rate * decay */
    R beta1, beta1_rest, beta2, beta2_rest; /* rest: 1 - beta */

    static attributes of_node(const lk__op_attrs *a)
    {
        attributes own = {};
        own.lr_scale = a->lr_scale;
        own.weight_decay = a->weight_decay;
        own.beta1 = a->beta1;
        own.beta2 = a->beta2;
        return own;
    }
    static tensor<R, MOMENTS> of_call(const lk__kernel_call *call) { return tensor_of_call<R, MOMENTS>(call); }
    __device__ void           prepare(const attributes &a, const lk__kernel_step *step, const double *scale_by)
    {
        scale = (R)(scale_by ? *scale_by : 1);
        double by = step->rate * a.lr_scale;
        rate = (R)by;
        shrink = (R)(1 - by * a.weight_decay);
        beta1 = (R)a.beta1;
        beta1_rest = (R)(1 - a.beta1);
        beta2 = (R)a.beta2;
        beta2_rest = (R)(1 - a.beta2);
    }
    template <int N>
    static __device__ __forceinline__ void read(const tensor<R, MOMENTS> &t, int64_t at,
                                                tensor_values<R, MOMENTS, N> &v)
    {
        read_tensor<N>(t, at, v);
    }
    template <int N>
    __device__ __forceinline__ void write(const tensor<R, MOMENTS> &t, int64_t at,
                                          tensor_values<R, MOMENTS, N> &v) const
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            R g = v.gradient.at[i] * scale, m = v.moment[0].at[i], average = m * beta1 + g * beta1_rest;
            R sign = average > 0 ? (R)1 : average < 0 ? (R)-1 : average; /* a NaN is seen in the parameters */
            v.parameter.at[i] = v.parameter.at[i] * shrink - sign * rate;
            v.moment[0].at[i] = m * beta2 + g * beta2_rest;
        }
        store_pack<N>(t.moment[0] + at, v.moment[0]);
        store_parameter(t, at, v.parameter);
    }
};

UPDATE_KERNELS(lion)
