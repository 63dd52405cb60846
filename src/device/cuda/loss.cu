/* loss.cu - squared and absolute errors, binary cross-entropy of logits and totals, each as a sum and a weight in
 * double. */
#include "device/cuda/map.h"
#include "device/cuda/sum.h"
#include "device/cuda/unary.h"

/* ---- mse, l1 ---- */

struct squared {
    template <typename R> static __device__ __forceinline__ R value(R d) { return d * d; }
    template <typename R> static __device__ __forceinline__ R slope(R d) { return d; } /* half of it */
};
struct absolute {
    template <typename R> static __device__ __forceinline__ R value(R d) { return d < 0 ? -d : d; }
    template <typename R> static __device__ __forceinline__ R slope(R d) { return d > 0 ? (R)1 : d < 0 ? (R)-1 : (R)0; }
};

template <typename T, typename F> struct difference_sum {
    const T *x, *target;

    template <int N> __device__ __forceinline__ void add(int64_t at, double (&sum)[2]) const
    {
        lk__pack<T, N> a = load_pack<N>(x + at), b = load_pack<N>(target + at);
#pragma unroll
        for (int i = 0; i < N; i++) sum[0] += (double)F::value(a.at[i] - b.at[i]);
        sum[1] += N; /* the weight: the number of elements */
    }
};

template <typename T, typename F> static void launch_difference(const lk__kernel_call *call)
{
    int64_t              n = lk__operand_elements(&call->in[0]);
    difference_sum<T, F> f = {in_data<T>(call, 0), in_data<T>(call, 1)};
    sums_out<2>          out = {{out_data<double>(call, 0), out_data<double>(call, 1)}};
    launch_sums<PACK(T)>(call, f, n, out, is_aligned(f.x, 16) && is_aligned(f.target, 16));
}

template <typename T, typename F> struct difference_grad_map {
    enum { PACKED = PACK(T) };
    const T      *x, *target;
    T            *dx;
    double        factor;
    const double *dloss; /* NULL: 1 */
    template <int N> struct values {
        lk__pack<T, N> x, target;
        T              by;
    };
    template <int N> __device__ __forceinline__ void read(int64_t at, values<N> &v) const
    {
        v.x = load_pack<N>(x + at);
        v.target = load_pack<N>(target + at);
        v.by = (T)(factor * (dloss ? *dloss : 1));
    }
    template <int N> __device__ __forceinline__ void write(int64_t at, values<N> &v) const
    {
#pragma unroll
        for (int i = 0; i < N; i++) v.x.at[i] = F::slope(v.x.at[i] - v.target.at[i]) * v.by;
        store_pack<N>(dx + at, v.x);
    }
};

template <typename T, typename F> static void launch_difference_grad(const lk__kernel_call *call, double factor)
{
    difference_grad_map<T, F> f = {in_data<T>(call, 0), in_data<T>(call, 1), out_data<T>(call, 0), factor,
                                   in_data<double>(call, 2)};
    bool                      packed = is_aligned(f.x, 16) && is_aligned(f.target, 16) && is_aligned(f.dx, 16);
    launch_map(call, f, lk__operand_elements(&call->out[0]), packed);
}

#define DIFFERENCE(name, F, factor)                                                          \
    extern "C" size_t lk__cuda_##name##_workspace(const lk__kernel_call *call, int threads)  \
    {                                                                                        \
        (void)threads;                                                                       \
        return sums_workspace(lk__operand_elements(&call->in[0]), 2);                        \
    }                                                                                        \
    extern "C" lk_status lk__cuda_##name(const lk__kernel_call *call)                        \
    {                                                                                        \
        BY_WIDE_ELEMENT(call->in[0].dtype, T, (launch_difference<T, F>(call));)              \
        return lk__cuda_launched(call);                                                      \
    }                                                                                        \
    extern "C" lk_status lk__cuda_##name##_grad(const lk__kernel_call *call)                 \
    {                                                                                        \
        BY_WIDE_ELEMENT(call->in[0].dtype, T, (launch_difference_grad<T, F>(call, factor));) \
        return lk__cuda_launched(call);                                                      \
    }
DIFFERENCE(mse, squared, 2)
DIFFERENCE(l1, absolute, 1)
#undef DIFFERENCE

/* ---- total ---- */

template <typename T> struct element_sum {
    const T *x;

    template <int N> __device__ __forceinline__ void add(int64_t at, double (&sum)[2]) const
    {
        lk__pack<T, N> a = load_pack<N>(x + at);
#pragma unroll
        for (int i = 0; i < N; i++) sum[0] += (double)a.at[i];
        sum[1] += N;
    }
};

template <typename T> static void launch_element_sum(const lk__kernel_call *call, int i, double *sum, double *elements)
{
    element_sum<T> f = {in_data<T>(call, i)};
    sums_out<2>    out = {{sum, elements}};
    launch_sums<PACK(T)>(call, f, lk__operand_elements(&call->in[i]), out, is_aligned(f.x, 16));
}

extern "C" size_t lk__cuda_total_workspace(const lk__kernel_call *call, int threads)
{
    int64_t n = lk__operand_elements(&call->in[0]);
    (void)threads;
    if (in_data<void>(call, 1) && lk__operand_elements(&call->in[1]) > n) n = lk__operand_elements(&call->in[1]);
    return sums_workspace(n, 2);
}

/* Both sums use the workspace, one after the other. */
extern "C" lk_status lk__cuda_total(const lk__kernel_call *call)
{
    double *weight = out_data<double>(call, 1);
    bool    weighted = in_data<void>(call, 1) != NULL;
    BY_WIDE_ELEMENT(call->in[0].dtype, T,
                    launch_element_sum<T>(call, 0, out_data<double>(call, 0), weighted ? NULL : weight);
                    if (weighted) launch_element_sum<T>(call, 1, weight, NULL);)
    return lk__cuda_launched(call);
}

/* ---- bce_with_logits ----
 *
 * max(x, 0) - x t + log(1 + e^-|x|): no overflow and no cancellation. The derivative is sigmoid(x) - t. */

template <typename T> struct bce_sum {
    const T *logits, *target, *weight; /* weight: one for `span` elements; NULL: 1 */
    T       *dlogits;                  /* NULL: not read */
    divider  span;
    template <int N> __device__ __forceinline__ void add(int64_t at, double (&sum)[2]) const
    {
        lk__pack<T, N> x = load_pack<N>(logits + at), t = load_pack<N>(target + at);
#pragma unroll
        for (int i = 0; i < N; i++) {
            T a = x.at[i], b = t.at[i], e = real_exp(a < 0 ? a : -a);
            T w = weight ? weight[divide(at + i, span)] : (T)1;
            sum[0] += (double)(((a > 0 ? a : (T)0) - a * b + real_log1p(e)) * w);
            sum[1] += (double)w;
            x.at[i] = ((a >= 0 ? (T)1 : e) / ((T)1 + e) - b) * w;
        }
        if (dlogits) store_pack<N>(dlogits + at, x);
    }
};

extern "C" size_t lk__cuda_bce_with_logits_workspace(const lk__kernel_call *call, int threads)
{
    (void)threads;
    return sums_workspace(lk__operand_elements(&call->in[0]), 2);
}

template <typename T> static void launch_bce(const lk__kernel_call *call)
{
    bce_sum<T>  f = {in_data<T>(call, 0), in_data<T>(call, 1), in_data<T>(call, 2), out_data<T>(call, 2), {}};
    sums_out<2> out = {{out_data<double>(call, 0), out_data<double>(call, 1)}};
    int64_t     n = lk__operand_elements(&call->in[0]);
    f.span = make_divider(f.weight ? cuda_product(&call->in[0], call->in[2].rank, call->in[0].rank) : 1);
    launch_sums<PACK(T)>(call, f, n, out,
                         is_aligned(f.logits, 16) && is_aligned(f.target, 16) && is_aligned(f.dlogits, 16));
}

extern "C" lk_status lk__cuda_bce_with_logits(const lk__kernel_call *call)
{
    BY_WIDE_ELEMENT(call->in[0].dtype, T, launch_bce<T>(call);)
    return lk__cuda_launched(call);
}
