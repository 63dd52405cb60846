/* adam.cu - Adam and AdamW, with PyTorch's order of operations. 7 streams of bytes, 8 where the parameter is also
 * stored in bf16. */
#include "device/cuda/update.h"

/* In f64 the divisions are PyTorch's; in f32 one of them is a multiplication. */
static __device__ __forceinline__ float adam_step(float size, float m, float v, float correction, float epsilon)
{
    return size * m / (sqrtf(v) * correction + epsilon);
}
static __device__ __forceinline__ double adam_step(double size, double m, double v, double correction, double epsilon)
{
    return size * (m / (sqrt(v) / correction + epsilon));
}

/* Both to the power n by squaring, side by side: pow takes most of the time of an update of few parameters. */
static __device__ __forceinline__ void raise_both(double &a, double &b, int64_t n)
{
    double x = a, y = b;
    a = b = 1;
    for (; n > 0; n >>= 1, x *= x, y *= y)
        if (n & 1) a *= x, b *= y;
}

template <typename R> struct adam_rule {
    enum { MOMENTS = 2 };
    struct attributes {
        double  lr_scale, weight_decay, beta1, beta2, epsilon;
        int64_t decoupled; /* no padding: compared as bytes */
    };
    R    scale, decay, shrink; /* shrink: 1 - rate * decay, of AdamW */
    R    beta1_rest, beta2, beta2_rest, step_size, correction, epsilon;
    bool decoupled;

    static attributes of_node(const lk__op_attrs *a)
    {
        attributes own = {};
        own.lr_scale = a->lr_scale;
        own.weight_decay = a->weight_decay;
        own.beta1 = a->beta1;
        own.beta2 = a->beta2;
        own.epsilon = a->epsilon;
        own.decoupled = a->decoupled;
        return own;
    }
    static tensor<R, MOMENTS> of_call(const lk__kernel_call *call) { return tensor_of_call<R, MOMENTS>(call); }
    __device__ void           prepare(const attributes &a, const lk__kernel_step *step, const double *scale_by)
    {
        double first = a.beta1, second = a.beta2, by = step->rate * a.lr_scale;
        raise_both(first, second, step->step);
        double root = sqrt(1 - second);
        scale = (R)(scale_by ? *scale_by : 1);
        decay = (R)a.weight_decay;
        shrink = (R)(1 - by * a.weight_decay);
        beta1_rest = (R)(1 - a.beta1);
        beta2 = (R)a.beta2;
        beta2_rest = (R)(1 - a.beta2);
        step_size = (R)(by / (1 - first));
        correction = (R)(sizeof(R) == 4 ? 1 / root : root);
        epsilon = (R)a.epsilon;
        decoupled = a.decoupled;
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
            R p = v.parameter.at[i], g = v.gradient.at[i] * scale, m = v.moment[0].at[i];
            if (decoupled)
                p *= shrink;
            else
                g += p * decay;
            R square = v.moment[1].at[i] * beta2 + g * g * beta2_rest;
            m += (g - m) * beta1_rest;
            v.moment[0].at[i] = m;
            v.moment[1].at[i] = square;
            v.parameter.at[i] = p - adam_step(step_size, m, square, correction, epsilon);
        }
        store_pack<N>(t.moment[0] + at, v.moment[0]);
        store_pack<N>(t.moment[1] + at, v.moment[1]);
        store_parameter(t, at, v.parameter);
    }
};

UPDATE_KERNELS(adam)
