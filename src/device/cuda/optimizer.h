/* device/cuda/optimizer.h - the arithmetic of square_sum, gradient_scale, sgd and adam, for launches over one tensor and over many. */
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

/* ---- optimizers ----
 *
 * A rule has attributes (the node's), the tensor that a call names, read and write of N elements, and coefficients, which one thread of
 * a block makes from the step while the others already read: the powers of Adam's betas are in double. */

template <typename R> struct tensor {
    const R *gradient;
    R       *parameter, *first, *second; /* sgd: first is the momentum buffer, or NULL; adam: m and v */
    bf16    *stored;                     /* the parameter after the update, rounded; NULL: not wanted */
    int64_t  n;
};

template <typename R, int N> struct tensor_values {
    lk__pack<R, N> gradient, parameter, first, second;
};

template <typename R, int N>
static __device__ __forceinline__ void store_parameter(const tensor<R> &t, int64_t at, const lk__pack<R, N> &p)
{
    store_pack<N>(t.parameter + at, p);
    if (!t.stored) return;
    lk__pack<bf16, N> rounded;
#pragma unroll
    for (int i = 0; i < N; i++) store(&rounded.at[i], (float)p.at[i]);
    store_pack<N>(t.stored + at, rounded);
}

template <typename R> struct sgd_rule {
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
    static tensor<R> of_call(const lk__kernel_call *call)
    {
        R        *buffer = call->attrs->momentum != 0 ? out_data<R>(call, 1) : NULL;
        tensor<R> t = {in_data<R>(call, 0),
                       out_data<R>(call, 0),
                       buffer,
                       NULL,
                       out_data<bf16>(call, 2),
                       lk__operand_elements(&call->out[0])};
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
    template <int N> static __device__ __forceinline__ void read(const tensor<R> &t, int64_t at, tensor_values<R, N> &v)
    {
        v.gradient = load_pack<N>(t.gradient + at);
        v.parameter = load_pack<N>(t.parameter + at);
        if (t.first) v.first = load_pack<N>(t.first + at);
    }
    template <int N> __device__ __forceinline__ void write(const tensor<R> &t, int64_t at, tensor_values<R, N> &v) const
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            R p = v.parameter.at[i], g = v.gradient.at[i] * scale + p * decay;
            if (t.first) {
                R buffer = begins ? g : v.first.at[i] * factor + g * dampening;
                v.first.at[i] = buffer;
                g = nesterov ? g + buffer * factor : buffer;
            }
            v.parameter.at[i] = p - g * rate;
        }
        if (t.first) store_pack<N>(t.first + at, v.first);
        store_parameter(t, at, v.parameter);
    }
};

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
    static tensor<R> of_call(const lk__kernel_call *call)
    {
        tensor<R> t = {in_data<R>(call, 0),  out_data<R>(call, 0),    out_data<R>(call, 1),
                       out_data<R>(call, 2), out_data<bf16>(call, 3), lk__operand_elements(&call->out[0])};
        return t;
    }
    __device__ void prepare(const attributes &a, const lk__kernel_step *step, const double *scale_by)
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
    template <int N> static __device__ __forceinline__ void read(const tensor<R> &t, int64_t at, tensor_values<R, N> &v)
    {
        v.gradient = load_pack<N>(t.gradient + at);
        v.parameter = load_pack<N>(t.parameter + at);
        v.first = load_pack<N>(t.first + at);
        v.second = load_pack<N>(t.second + at);
    }
    template <int N> __device__ __forceinline__ void write(const tensor<R> &t, int64_t at, tensor_values<R, N> &v) const
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            R p = v.parameter.at[i], g = v.gradient.at[i] * scale, m = v.first.at[i];
            if (decoupled)
                p *= shrink;
            else
                g += p * decay;
            R square = v.second.at[i] * beta2 + g * g * beta2_rest;
            m += (g - m) * beta1_rest;
            v.first.at[i] = m;
            v.second.at[i] = square;
            v.parameter.at[i] = p - adam_step(step_size, m, square, correction, epsilon);
        }
        store_pack<N>(t.first + at, v.first);
        store_pack<N>(t.second + at, v.second);
        store_parameter(t, at, v.parameter);
    }
};

enum { UPDATE_THREADS = 256, UPDATE_UNROLL = 2 };

/* What a block has to know before it writes: thread 0 makes it while the others already read. */
template <typename RULE> struct update_state {
    RULE rule;
    bool halted;
};

/* UPDATE_THREADS × UPDATE_UNROLL packs from `begin` on; all threads of the block call it. make(): sets *shared, by thread 0. */
template <int N, typename RULE, typename R, typename F>
static __device__ __forceinline__ void update_part(const tensor<R> &t, int64_t begin, update_state<RULE> *shared,
                                                   const F &make)
{
    tensor_values<R, N> v[UPDATE_UNROLL];
#pragma unroll
    for (int u = 0; u < UPDATE_UNROLL; u++) {
        int64_t at = begin + (u * UPDATE_THREADS + threadIdx.x) * N;
        if (at + N <= t.n) RULE::template read<N>(t, at, v[u]);
    }
    if (threadIdx.x == 0) make();
    __syncthreads();
    if (shared->halted) return;
    RULE own = shared->rule;
#pragma unroll
    for (int u = 0; u < UPDATE_UNROLL; u++) {
        int64_t at = begin + (u * UPDATE_THREADS + threadIdx.x) * N;
        if (at + N <= t.n) own.template write<N>(t, at, v[u]);
    }
    if (N == 1) return;
    int64_t             whole = t.n / N * N, at = whole + threadIdx.x; /* fewer than a pack */
    tensor_values<R, 1> one;
    if (begin + UPDATE_THREADS * UPDATE_UNROLL * N < t.n || at >= t.n) return; /* not the last block */
    RULE::template read<1>(t, at, one);
    own.template write<1>(t, at, one);
}

#endif
