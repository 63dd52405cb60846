/* cross_entropy.cu - cross-entropy fused with softmax, and its gradient. A warp or a block has a row; rows leave their loss, weight and
 * whether they are right, which are added in an order that depends on their number alone. Bound by bytes: the logits are read three
 * times, after the first from the caches, and the probabilities written once. */
#include "device/cuda/map.h"
#include "device/cuda/sum.h"
#include "device/cuda/unary.h"

enum { THREADS = 256, WARP_MOST = 1024 }; /* classes of a row that one warp has */

template <typename T> struct labelled_rows {
    const T               *logits, *weight; /* weight: of a row; NULL: 1 */
    const int32_t         *labels;
    T                     *probs; /* NULL: not wanted */
    int64_t                rows, classes, ignore;
    double                 smoothing;
    double                *results; /* (rows, 3): loss, weight, right */
    lk__kernel_invalid_id *invalid;
};

/* NaN is no maximum here: it makes the loss NaN all the same, and no label right. */
template <typename T> static __device__ __forceinline__ T larger(T a, T b) { return b > a ? b : a; }

template <int LANES, typename T> static __device__ __forceinline__ T team_largest(T x, T *shared)
{
    for (int offset = 16; offset > 0; offset /= 2) x = larger(x, __shfl_xor_sync(0xffffffffu, x, offset));
    if (LANES == 32) return x;
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    for (int w = 0; w < LANES / 32; w++) x = larger(x, shared[w]);
    return x;
}
template <int LANES> static __device__ __forceinline__ double team_sum(double x, double *shared)
{
    return LANES == 32 ? warp_sum(x) : block_sum(x, shared);
}

template <typename T, int LANES> static __global__ void entropy_kernel(labelled_rows<T> e)
{
    await_previous();
    __shared__ double sums[32];
    __shared__ T      maxima[32];
    int64_t           row = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / LANES, first = threadIdx.x % LANES;
    if (row >= e.rows) return; /* all of a warp's or of a block's threads */
    const T *x = e.logits + row * e.classes;
    T       *probs = e.probs ? e.probs + row * e.classes : NULL, most = -(T)INFINITY;
    int64_t  label = e.labels[row];
    double  *result = e.results + row * 3;
    if (label == e.ignore || label < 0 || label >= e.classes) {
        for (int64_t k = first; probs && k < e.classes; k += LANES) probs[k] = 0;
        if (first) return;
        result[0] = label == e.ignore ? 0 : (double)NAN;
        result[1] = result[2] = 0;
        if (label != e.ignore) report_invalid(e.invalid, LK__OP_cross_entropy, e.labels, e.rows, row, e.classes);
        return;
    }
#pragma unroll 4
    for (int64_t k = first; k < e.classes; k += LANES) most = larger(most, x[k]);
    most = team_largest<LANES>(most, maxima);
    T      at_label = x[label]; /* before the probabilities replace it */
    double total = 0, all = 0, earlier = 0;
#pragma unroll 4
    for (int64_t k = first; k < e.classes; k += LANES) {
        T value = x[k];
        total += (double)real_exp(value - most);
        all += (double)(most - value);
        if (k < label && value == most) earlier = 1; /* the label's logit is not the first of the largest */
    }
    total = team_sum<LANES>(total, sums);
    earlier = team_sum<LANES>(earlier, sums);
    if (e.smoothing != 0) all = team_sum<LANES>(all, sums);
    T factor = (T)(1 / total);
#pragma unroll 4
    for (int64_t k = first; probs && k < e.classes; k += LANES) probs[k] = real_exp(x[k] - most) * factor;
    if (first) return;
    double log_total = log(total), loss = log_total + ((double)most - (double)at_label);
    if (e.smoothing != 0)
        loss = (1 - e.smoothing) * loss + e.smoothing / (double)e.classes * (all + (double)e.classes * log_total);
    double w = e.weight ? (double)e.weight[row] : 1;
    result[0] = w * loss;
    result[1] = w;
    result[2] = earlier == 0 && at_label == most ? 1 : 0;
}

/* Adds the rows' results: launch_sums over rows, whose parts are after them in the workspace. */
struct row_results {
    const double *results;

    template <int N> __device__ __forceinline__ void add(int64_t at, double (&sum)[3]) const
    {
#pragma unroll
        for (int k = 0; k < 3; k++) sum[k] += results[at * 3 + k];
    }
};

static int64_t entropy_rows(const lk__kernel_call *call) { return cuda_product(&call->in[0], 0, call->in[0].rank - 1); }

extern "C" size_t lk__cuda_cross_entropy_workspace(const lk__kernel_call *call, int threads)
{
    int64_t rows = entropy_rows(call);
    (void)threads;
    return sums_workspace(rows, 3) + (size_t)rows * 3 * sizeof(double);
}

template <typename T> static void launch_entropy(const lk__kernel_call *call)
{
    labelled_rows<T> e = {};
    cudaStream_t     stream = cuda_stream(call);
    e.logits = in_data<T>(call, 0);
    e.labels = in_data<int32_t>(call, 1);
    e.weight = in_data<T>(call, 2);
    e.probs = out_data<T>(call, 3);
    e.rows = entropy_rows(call);
    e.classes = call->in[0].dims[call->in[0].rank - 1];
    e.ignore = call->attrs->ignore_index;
    e.smoothing = call->attrs->label_smoothing;
    e.results = (double *)((char *)call->workspace + sums_workspace(e.rows, 3));
    e.invalid = call->invalid;
    if (e.rows > 0 && e.classes <= WARP_MOST)
        LAUNCH_EARLY((entropy_kernel<T, 32>), (unsigned)cuda_tiles(e.rows, THREADS / 32), THREADS, 0, stream, e);
    else if (e.rows > 0)
        LAUNCH_EARLY((entropy_kernel<T, THREADS>), (unsigned)e.rows, THREADS, 0, stream, e);
    sums_out<3> out = {{out_data<double>(call, 0), out_data<double>(call, 1), out_data<double>(call, 2)}};
    launch_sums<1>(call, row_results{e.results}, e.rows, out, true);
}

extern "C" lk_status lk__cuda_cross_entropy(const lk__kernel_call *call)
{
    BY_WIDE_ELEMENT(call->in[0].dtype, T, launch_entropy<T>(call);)
    return lk__cuda_launched(call);
}

/* ---- gradient ---- */

template <typename T> struct entropy_grad_map {
    enum { PACKED = PACK(T) };
    const T       *probs, *weight;
    const int32_t *labels;
    const double  *dloss; /* NULL: 1 */
    T             *dx;
    divider        classes;
    int64_t        ignore;
    double         smoothing;
    template <int N> struct values {
        lk__pack<T, N> p;
        int64_t        label; /* from the pack's first element; of a row without gradient: INT64_MAX */
        T              factor;
    };
    template <int N> __device__ __forceinline__ void read(int64_t at, values<N> &v) const
    {
        int64_t column = at, row = divide_off(column, classes), label = labels[row];
        bool    counts = label != ignore && label >= 0 && label < classes.by;
        v.p = load_pack<N>(probs + at);
        v.label = counts ? label - column : INT64_MAX;
        v.factor = (T)((dloss ? *dloss : 1) * (weight ? (double)weight[row] : 1));
    }
    template <int N> __device__ __forceinline__ void write(int64_t at, values<N> &v) const
    {
        T even = (T)(smoothing / (double)classes.by);
#pragma unroll
        for (int i = 0; i < N; i++) {
            T d = v.p.at[i] - even;
            if (v.label == i) d -= (T)(1 - smoothing);
            v.p.at[i] = v.label == INT64_MAX ? (T)0 : d * v.factor;
        }
        store_pack<N>(dx + at, v.p);
    }
};

template <typename T> static void launch_entropy_grad(const lk__kernel_call *call)
{
    const lk__kernel_operand *p = &call->in[0];
    entropy_grad_map<T>       f = {};
    f.probs = (const T *)p->data;
    f.labels = in_data<int32_t>(call, 1);
    f.weight = in_data<T>(call, 2);
    f.dloss = in_data<double>(call, 3);
    f.dx = out_data<T>(call, 0);
    f.classes = make_divider(p->dims[p->rank - 1]);
    f.ignore = call->attrs->ignore_index;
    f.smoothing = call->attrs->label_smoothing;
    bool packed = f.classes.by % PACK(T) == 0 && is_aligned(f.probs, 16) && is_aligned(f.dx, 16);
    launch_map(call, f, lk__operand_elements(p), packed);
}

extern "C" lk_status lk__cuda_cross_entropy_grad(const lk__kernel_call *call)
{
    BY_WIDE_ELEMENT(call->out[0].dtype, T, launch_entropy_grad<T>(call);)
    return lk__cuda_launched(call);
}
