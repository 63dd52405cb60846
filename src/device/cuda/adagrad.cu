/* adagrad.cu - Adagrad, with PyTorch's order of operations. */
#include "device/cuda/update.h"

template <typename R> struct adagrad_rule {
    enum { MOMENTS = 1 };
    struct attributes {
        double lr_scale, weight_decay, epsilon, lr_decay;
    };
    R scale, rate, decay, epsilon;

    static attributes of_node(const lk__op_attrs *a)
    {
        attributes own = {};
        own.lr_scale = a->lr_scale;
        own.weight_decay = a->weight_decay;
        own.epsilon = a->epsilon;
        own.lr_decay = a->lr_decay;
        return own;
    }
    static tensor<R, MOMENTS> of_call(const lk__kernel_call *call) { return tensor_of_call<R, MOMENTS>(call); }
    __device__ void           prepare(const attributes &a, const lk__kernel_step *step, const double *scale_by)
    {
        scale = (R)(scale_by ? *scale_by : 1);
        rate = (R)(step->rate * a.lr_scale / (1 + (double)(step->step - 1) * a.lr_decay));
        decay = (R)a.weight_decay;
        epsilon = (R)a.epsilon;
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
            R p = v.parameter.at[i], g = v.gradient.at[i] * scale + p * decay;
            R sum = v.moment[0].at[i] + g * g;
            v.moment[0].at[i] = sum;
            v.parameter.at[i] = p - g / (square_root(sum) + epsilon) * rate;
        }
        store_pack<N>(t.moment[0] + at, v.moment[0]);
        store_parameter(t, at, v.parameter);
    }
};

UPDATE_KERNELS(adagrad)
