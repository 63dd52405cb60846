/* optimizer.cu - the common scale of all gradients, SGD and Adam, with PyTorch's order of operations. Bound by bytes: 7 streams for
 * Adam, 8 where the parameter is also stored in bf16. The rate and the step's number are read from the step block, so a launch can be
 * recorded once; a step that is halted changes nothing.
 *
 * gradient_scale: 1 / weight (1 without a weight, 0 for a weight of 0), times clip / (norm + 1e-6) where that is below 1. */
#include "device/cuda/map.h"
#include "device/cuda/sum.h"
#include "device/cuda/unary.h"

/* ---- square_sum, gradient_scale ---- */

template <typename T> struct square_sum {
    const T *x;

    template <int N> __device__ __forceinline__ void add(int64_t at, double (&sum)[1]) const
    {
        lk__pack<T, N> a = load_pack<N>(x + at);
#pragma unroll
        for (int i = 0; i < N; i++) sum[0] += (double)a.at[i] * (double)a.at[i];
    }
};

template <typename T> static void launch_square_sum(const lk__kernel_call *call)
{
    square_sum<T> f = {in_data<T>(call, 0)};
    sums_out<1>   out = {{out_data<double>(call, 0)}};
    if (is_aligned(f.x, 16))
        launch_sums<PACK(T)>(call, f, lk__operand_elements(&call->in[0]), out);
    else
        launch_sums<1>(call, f, lk__operand_elements(&call->in[0]), out);
}

extern "C" size_t lk__cuda_square_sum_workspace(const lk__kernel_call *call, int threads)
{
    (void)threads;
    return sums_workspace(lk__operand_elements(&call->in[0]), 1);
}

extern "C" lk_status lk__cuda_square_sum(const lk__kernel_call *call)
{
    BY_WIDE_ELEMENT(call->in[0].dtype, T, launch_square_sum<T>(call);)
    return lk__cuda_launched(call);
}

typedef struct gradient_scaling {
    const double *weight, *squares[LK__MAX_IN]; /* NULL: absent */
    double       *scale, *norm;
    double        clip;
} gradient_scaling;

static __global__ void gradient_scale_kernel(gradient_scaling g)
{
    double weight = g.weight ? *g.weight : 1, squares = 0;
#pragma unroll
    for (int i = 0; i < LK__MAX_IN; i++) squares += g.squares[i] ? *g.squares[i] : 0;
    double scale = weight == 0 ? 0 : 1 / weight, norm = sqrt(squares) * scale, factor = g.clip / (norm + 1e-6);
    /* A NaN norm makes the scale NaN: it must not count as a small one. */
    *g.scale = g.clip > 0 && !(factor >= 1) ? scale * factor : scale;
    if (g.norm) *g.norm = norm;
}

extern "C" lk_status lk__cuda_gradient_scale(const lk__kernel_call *call)
{
    gradient_scaling g = {};
    g.weight = in_data<double>(call, 0);
    for (int i = 1; i < call->inputs; i++) g.squares[i] = in_data<double>(call, i);
    g.scale = out_data<double>(call, 0);
    g.norm = out_data<double>(call, 1);
    g.clip = call->attrs->clip;
    LAUNCH(gradient_scale_kernel, 1, 1, 0, cuda_stream(call), g);
    return lk__cuda_launched(call);
}

/* ---- one optimizer over one tensor ----
 *
 * RULE<R> has attributes (as the node's), values<N>, read and write as in map.h, over a tensor<R>, and coefficients, which one thread
 * of a block makes from the step while the others already read: the powers of Adam's betas are in double. */

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
        double lr_scale, weight_decay, momentum, dampening;
        bool   nesterov;
    };
    R    scale, rate, decay, factor, dampening;
    bool nesterov, begins; /* the buffer holds nothing yet */

    static attributes of_node(const lk__op_attrs *a)
    {
        attributes own = {a->lr_scale, a->weight_decay, a->momentum, a->dampening, a->nesterov};
        return own;
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

template <typename R> struct adam_rule {
    struct attributes {
        double lr_scale, weight_decay, beta1, beta2, epsilon;
        bool   decoupled;
    };
    R    scale, decay, shrink; /* shrink: 1 - rate * decay, of AdamW */
    R    beta1_rest, beta2, beta2_rest, step_size, correction, epsilon;
    bool decoupled;

    static attributes of_node(const lk__op_attrs *a)
    {
        attributes own = {a->lr_scale, a->weight_decay, a->beta1, a->beta2, a->epsilon, a->decoupled};
        return own;
    }
    __device__ void prepare(const attributes &a, const lk__kernel_step *step, const double *scale_by)
    {
        double t = (double)step->step, by = step->rate * a.lr_scale, root = sqrt(1 - pow(a.beta2, t));
        scale = (R)(scale_by ? *scale_by : 1);
        decay = (R)a.weight_decay;
        shrink = (R)(1 - by * a.weight_decay);
        beta1_rest = (R)(1 - a.beta1);
        beta2 = (R)a.beta2;
        beta2_rest = (R)(1 - a.beta2);
        step_size = (R)(by / (1 - pow(a.beta1, t)));
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

enum { THREADS = 256, UNROLL = 2 };

/* THREADS × UNROLL packs from `begin` on; all threads of the block call it. */
template <int N, typename RULE, typename R>
static __device__ __forceinline__ void update_part(const tensor<R> &t, int64_t begin, const typename RULE::attributes &a,
                                                   const lk__kernel_step *step, const double *scale, RULE *shared)
{
    tensor_values<R, N> v[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int64_t at = begin + (u * THREADS + threadIdx.x) * N;
        if (at + N <= t.n) RULE::template read<N>(t, at, v[u]);
    }
    if (threadIdx.x == 0) shared->prepare(a, step, scale);
    __syncthreads();
    RULE own = *shared;
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int64_t at = begin + (u * THREADS + threadIdx.x) * N;
        if (at + N <= t.n) own.template write<N>(t, at, v[u]);
    }
    if (N == 1) return;
    int64_t             whole = t.n / N * N, at = whole + threadIdx.x; /* fewer than a pack */
    tensor_values<R, 1> one;
    if (begin + THREADS * UNROLL * N < t.n || at >= t.n) return; /* not the last block */
    RULE::template read<1>(t, at, one);
    own.template write<1>(t, at, one);
}

template <int N, typename RULE, typename R>
static __global__ void __launch_bounds__(THREADS)
    update_kernel(tensor<R> t, typename RULE::attributes a, const lk__kernel_step *step, const double *scale,
                  const int32_t *halted)
{
    __shared__ RULE shared;
    if (halted && *halted) return;
    update_part<N, RULE>(t, (int64_t)blockIdx.x * THREADS * UNROLL * N, a, step, scale, &shared);
}

template <typename RULE, typename R> static void launch_update(const lk__kernel_call *call, const tensor<R> &t)
{
    enum { N = PACK(R) };
    typename RULE::attributes a = RULE::of_node(call->attrs);
    const double             *scale = in_data<double>(call, 1);
    bool packed = is_aligned(t.gradient, 16) && is_aligned(t.parameter, 16) && is_aligned(t.first, 16) &&
                  is_aligned(t.second, 16) && is_aligned(t.stored, 2 * N);
    cudaStream_t stream = cuda_stream(call);
    if (t.n == 0) return;
    if (packed)
        LAUNCH((update_kernel<N, RULE, R>), (unsigned)cuda_tiles(t.n, THREADS * UNROLL * N), THREADS, 0, stream, t, a,
               call->step_memory, scale, call->halted);
    else
        LAUNCH((update_kernel<1, RULE, R>), (unsigned)cuda_tiles(t.n, THREADS * UNROLL), THREADS, 0, stream, t, a,
               call->step_memory, scale, call->halted);
}

template <typename R> static void launch_sgd(const lk__kernel_call *call)
{
    R        *buffer = call->attrs->momentum != 0 ? out_data<R>(call, 1) : NULL;
    tensor<R> t = {in_data<R>(call, 0),
                   out_data<R>(call, 0),
                   buffer,
                   NULL,
                   out_data<bf16>(call, 2),
                   lk__operand_elements(&call->out[0])};
    launch_update<sgd_rule<R>>(call, t);
}

template <typename R> static void launch_adam(const lk__kernel_call *call)
{
    tensor<R> t = {in_data<R>(call, 0),  out_data<R>(call, 0),    out_data<R>(call, 1),
                   out_data<R>(call, 2), out_data<bf16>(call, 3), lk__operand_elements(&call->out[0])};
    launch_update<adam_rule<R>>(call, t);
}

extern "C" lk_status lk__cuda_sgd(const lk__kernel_call *call)
{
    BY_WIDE_ELEMENT(call->out[0].dtype, R, launch_sgd<R>(call);)
    return lk__cuda_launched(call);
}

extern "C" lk_status lk__cuda_adam(const lk__kernel_call *call)
{
    BY_WIDE_ELEMENT(call->out[0].dtype, R, launch_adam<R>(call);)
    return lk__cuda_launched(call);
}
