/* sgd.cu - SGD, with PyTorch's order of operations. */
#include "device/cuda/update.h"

template <typename R> struct sgd_rule {
    enum { MOMENTS = 1 };
    struct attributes {
        double  lr_scale, weight_decay, momentum, dampening;
        int64_t nesterov; /* no padding: compared as bytes */
    };
    R    scale, rate, decay, factor, dampening;
    bool nesterov, begins; /* the buffer holds nothing yet */

    static attributes of_node(const lk__op_attrs *a)
    {
        attributes own = {};
        own.lr_scale = a->lr_scale;
        own.weight_decay = a->weight_decay;
        own.momentum = a->momentum;
        own.dampening = a->dampening;
        own.nesterov = a->nesterov;
        return own;
    }
    static tensor<R, MOMENTS> of_call(const lk__kernel_call *call)
    {
        tensor<R, MOMENTS> t = tensor_of_call<R, MOMENTS>(call);
        if (call->attrs->momentum == 0) t.moment[0] = NULL;
        return t;
    }
    __device__ void prepare(const attributes &a, const lk__kernel_step *step, const double *scale_by)
    {
        scale = (R)(scale_by ? *scale_by : 1);
        rate = (R)(step->rate * a.lr_scale);
        decay = (R)a.weight_decay;
        factor = (R)a.momentum;
        dampening = (R)(1 - a.dampening);
        nesterov = a.nesterov;
        begins = step->step == 1;
    }
    template <int N>
    static __device__ __forceinline__ void read(const tensor<R, MOMENTS> &t, int64_t at,
                                                tensor_values<R, MOMENTS, N> &v)
    {
        v.gradient = load_pack<N>(t.gradient + at);
        v.parameter = load_pack<N>(t.parameter + at);
        if (t.moment[0]) v.moment[0] = load_pack<N>(t.moment[0] + at);
    }
    template <int N>
    __device__ __forceinline__ void write(const tensor<R, MOMENTS> &t, int64_t at,
                                          tensor_values<R, MOMENTS, N> &v) const
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            R p = v.parameter.at[i], g = v.gradient.at[i] * scale + p * decay;
            if (t.moment[0]) {
                R buffer = begins ? g : v.moment[0].at[i] * factor + g * dampening;
                v.moment[0].at[i] = buffer;
                g = nesterov ? g + buffer * factor : buffer;
            }
            v.parameter.at[i] = p - g * rate;
        }
        if (t.moment[0]) store_pack<N>(t.moment[0] + at, v.moment[0]);
        store_parameter(t, at, v.parameter);
    }
};

UPDATE_KERNELS(sgd)
