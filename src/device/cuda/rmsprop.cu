/* rmsprop.cu - RMSprop, with PyTorch's order of operations. */
#include "device/cuda/update.h"

template <typename R> struct rmsprop_rule {
    enum { MOMENTS = 3 };
    struct attributes {
        double lr_scale, weight_decay, alpha, epsilon, momentum;
    };
    enum { SQUARES, AVERAGE, MOMENTUM };                      /* the last two where the settings need them */
    R scale, rate, decay, alpha, alpha_rest, epsilon, factor; /* rest: 1 - alpha; factor: momentum */

    static attributes of_node(const lk__op_attrs *a)
    {
        attributes own = {};
        own.lr_scale = a->lr_scale;
        own.weight_decay = a->weight_decay;
        own.alpha = a->alpha;
        own.epsilon = a->epsilon;
        own.momentum = a->momentum;
        return own;
    }
    static tensor<R, MOMENTS> of_call(const lk__kernel_call *call) { return tensor_of_call<R, MOMENTS>(call); }
    __device__ void           prepare(const attributes &a, const lk__kernel_step *step, const double *scale_by)
    {
        scale = (R)(scale_by ? *scale_by : 1);
        rate = (R)(step->rate * a.lr_scale);
        decay = (R)a.weight_decay;
        alpha = (R)a.alpha;
        alpha_rest = (R)(1 - a.alpha);
        epsilon = (R)a.epsilon;
        factor = (R)a.momentum;
    }
    template <int N>
    static __device__ __forceinline__ void read(const tensor<R, MOMENTS> &t, int64_t at,
                                                tensor_values<R, MOMENTS, N> &v)
    {
        v.gradient = load_pack<N>(t.gradient + at);
        v.parameter = load_pack<N>(t.parameter + at);
        v.moment[SQUARES] = load_pack<N>(t.moment[SQUARES] + at);
        if (t.moment[AVERAGE]) v.moment[AVERAGE] = load_pack<N>(t.moment[AVERAGE] + at);
        if (t.moment[MOMENTUM]) v.moment[MOMENTUM] = load_pack<N>(t.moment[MOMENTUM] + at);
    }
    template <int N>
    __device__ __forceinline__ void write(const tensor<R, MOMENTS> &t, int64_t at,
                                          tensor_values<R, MOMENTS, N> &v) const
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            R p = v.parameter.at[i], g = v.gradient.at[i] * scale + p * decay;
            R square = v.moment[SQUARES].at[i] * alpha + g * g * alpha_rest, variance = square;
            v.moment[SQUARES].at[i] = square;
            if (t.moment[AVERAGE]) {
                R mean = v.moment[AVERAGE].at[i];
                mean += (g - mean) * alpha_rest;
                v.moment[AVERAGE].at[i] = mean;
                variance = square - mean * mean;
                if (variance < 0) variance = 0; /* by rounding; a NaN stays one */
            }
            R by = g / (square_root(variance) + epsilon);
            if (t.moment[MOMENTUM]) {
                by += v.moment[MOMENTUM].at[i] * factor;
                v.moment[MOMENTUM].at[i] = by;
            }
            v.parameter.at[i] = p - by * rate;
        }
        store_pack<N>(t.moment[SQUARES] + at, v.moment[SQUARES]);
        if (t.moment[AVERAGE]) store_pack<N>(t.moment[AVERAGE] + at, v.moment[AVERAGE]);
        if (t.moment[MOMENTUM]) store_pack<N>(t.moment[MOMENTUM] + at, v.moment[MOMENTUM]);
        store_parameter(t, at, v.parameter);
    }
};

UPDATE_KERNELS(rmsprop)
