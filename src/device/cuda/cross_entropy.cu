/* cross_entropy.cu - cross-entropy fused with softmax, and its gradient. A warp or a block processes a row. Each row
 * stores its loss, its weight and whether its prediction is right; these are added in an order that depends only on the
 * number of rows. Bound by bytes: the logits are read three times, after the first from the caches, and the
 * probabilities written once. */
#include "device/cuda/backend.h"
#include "device/cuda/map.h"
#include "device/cuda/sum.h"
#include "device/cuda/unary.h"

enum { THREADS = 256, WARP_MOST = 1024 }; /* classes of a row that one warp has */

/* A row of class_statistics (base/op.h). */
struct row_record {
    double most, total, at_label, all, first;
};
static_assert(sizeof(row_record) == LK__CLASS_STATISTICS * sizeof(double), "the last axis of statistics");

template <typename T> struct labelled_rows {
    const T               *logits, *weight; /* weight: of a row; NULL: 1 */
    const int32_t         *labels;
    T                     *probs; /* NULL: not wanted */
    T                     *dx;    /* the gradient, where the loss's is 1; NULL: not wanted */
    T                     *each;  /* (rows): their losses; NULL: not wanted */
    lk__op                 op;
    int64_t                rows, classes, ignore;
    int64_t                whole, origin; /* classes of the whole row, and the first of this part */
    double                 smoothing;
    double                *results; /* (rows, 3): loss, weight, right */
    lk__kernel_invalid_id *invalid;
    const row_record      *statistics; /* (parts, rows), where the classes are cut; NULL: they are whole */
    int64_t                parts;
};

/* The gradient by a logit, from its probability; even: what smoothing gives to each class. */
template <typename T>
static __device__ __forceinline__ T entropy_slope(T probability, bool is_label, T even, double smoothing, T factor)
{
    T d = probability - even;
    if (is_label) d -= (T)(1 - smoothing);
    return d * factor;
}

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

template <typename T> static __device__ __forceinline__ bool has_class(const labelled_rows<T> &e, int64_t label)
{
    return label != e.ignore && label >= 0 && label < e.whole;
}

/* A row without a class, by a warp or by a block. */
template <typename T, int LANES>
static __device__ __forceinline__ void leave_row(const labelled_rows<T> &e, int64_t row, int64_t label, double *result)
{
    int64_t first = threadIdx.x % LANES;
    for (int64_t k = first; e.probs && k < e.classes; k += LANES) e.probs[row * e.classes + k] = 0;
    for (int64_t k = first; e.dx && k < e.classes; k += LANES) e.dx[row * e.classes + k] = 0;
    if (first) return;
    result[0] = label == e.ignore ? 0 : (double)NAN;
    result[1] = result[2] = 0;
    if (e.each) e.each[row] = (T)result[0];
    if (label != e.ignore) report_invalid(e.invalid, e.op, e.labels, e.rows, row, e.whole);
}

/* Row `row`, by a warp or by a block; `result`, its loss, its weight and whether it is right, is written by its first
 * thread. */
template <typename T, int LANES>
static __device__ __forceinline__ void entropy_row(const labelled_rows<T> &e, int64_t row, double *result, double *sums,
                                                   T *maxima)
{
    int64_t  first = threadIdx.x % LANES;
    const T *x = e.logits + row * e.classes;
    T       *probs = e.probs ? e.probs + row * e.classes : NULL, most = -(T)INFINITY;
    int64_t  label = e.labels[row];
    if (!has_class(e, label)) {
        leave_row<T, LANES>(e, row, label, result);
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
    T      factor = (T)(1 / total), even = (T)(e.smoothing / (double)e.classes);
    double w = e.weight ? (double)e.weight[row] : 1;
#pragma unroll 4
    for (int64_t k = first; probs && k < e.classes; k += LANES) {
        T p = real_exp(x[k] - most) * factor;
        probs[k] = p;
        if (e.dx) e.dx[row * e.classes + k] = entropy_slope(p, k == label, even, e.smoothing, (T)w);
    }
    if (first) return;
    double log_total = log(total), loss = log_total + ((double)most - (double)at_label);
    if (e.smoothing != 0)
        loss = (1 - e.smoothing) * loss + e.smoothing / (double)e.classes * (all + (double)e.classes * log_total);
    result[0] = w * loss;
    if (e.each) e.each[row] = (T)result[0];
    result[1] = w;
    result[2] = earlier == 0 && at_label == most ? 1 : 0;
}

template <typename T, int LANES> static __global__ void entropy_kernel(labelled_rows<T> e)
{
    await_previous();
    __shared__ double sums[32];
    __shared__ T      maxima[32];
    int64_t           row = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / LANES;
    if (row < e.rows) /* all of a warp's or of a block's threads */
        entropy_row<T, LANES>(e, row, e.results + row * 3, sums, maxima);
}

/* ---- rows whose classes are cut ---- */

/* Of the whole row, from those of its parts, in their order (join_statistics of device/cpu/entropy.h). */
static __device__ __forceinline__ row_record join_records(const row_record *parts, int64_t count, int64_t rows,
                                                          int64_t row)
{
    row_record all = parts[row];
    for (int64_t p = 1; p < count; p++) {
        row_record s = parts[p * rows + row];
        if (s.most > all.most) all.most = s.most, all.first = s.first;
        all.at_label += s.at_label;
        all.all += s.all;
    }
    all.total = 0;
    for (int64_t p = 0; p < count; p++) {
        row_record s = parts[p * rows + row];
        if (s.total != 0) all.total += s.total * exp(s.most - all.most);
    }
    return all;
}

/* A warp a row, whose sums are known. */
template <typename T> static __global__ void joined_rows_kernel(labelled_rows<T> e)
{
    await_previous();
    int64_t row = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32, first = threadIdx.x % 32;
    if (row >= e.rows) return;
    int64_t label = e.labels[row];
    if (!has_class(e, label)) {
        leave_row<T, 32>(e, row, label, e.results + row * 3);
        return;
    }
    row_record all = join_records(e.statistics, e.parts, e.rows, row);
    T          most = (T)all.most, factor = (T)(1 / all.total);
    const T   *x = e.logits + row * e.classes;
#pragma unroll 4
    for (int64_t k = first; e.probs && k < e.classes; k += 32)
        e.probs[row * e.classes + k] = real_exp(x[k] - most) * factor;
    if (first) return;
    double w = e.weight ? (double)e.weight[row] : 1;
    double log_total = log(all.total), loss = log_total + (all.most - all.at_label);
    if (e.smoothing != 0) {
        double sum = (double)e.whole * (all.most + log_total) - all.all;
        loss = (1 - e.smoothing) * loss + e.smoothing / (double)e.whole * sum;
    }
    double *result = e.results + row * 3;
    result[0] = w * loss;
    if (e.each) e.each[row] = (T)result[0];
    result[1] = w;
    result[2] = all.first == (double)label && all.at_label == all.most ? 1 : 0;
}

template <int LANES> static __device__ __forceinline__ double team_least(double x, double *shared)
{
    for (int offset = 16; offset > 0; offset /= 2) x = fmin(x, __shfl_xor_sync(0xffffffffu, x, offset));
    if (LANES == 32) return x;
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    for (int w = 0; w < LANES / 32; w++) x = fmin(x, shared[w]);
    return x;
}

/* class_statistics, by a warp or by a block. */
template <typename T, int LANES> static __global__ void class_statistics_kernel(labelled_rows<T> e, row_record *to)
{
    await_previous();
    __shared__ double sums[32], places[32];
    __shared__ T      maxima[32];
    int64_t           row = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / LANES, first = threadIdx.x % LANES;
    if (row >= e.rows) return; /* all of a warp's or of a block's threads */
    const T *x = e.logits + row * e.classes;
    int64_t  label = e.labels[row];
    if (!has_class(e, label)) {
        if (first == 0) to[row] = row_record{};
        return;
    }
    T most = -(T)INFINITY;
#pragma unroll 4
    for (int64_t k = first; k < e.classes; k += LANES) most = larger(most, x[k]);
    most = team_largest<LANES>(most, maxima);
    T          less = most == -(T)INFINITY ? (T)0 : most; /* not -infinity + infinity */
    row_record r = {(double)most, 0, 0, 0, (double)(e.classes - 1)};
#pragma unroll 4
    for (int64_t k = first; k < e.classes; k += LANES) {
        T value = x[k];
        r.total += (double)real_exp(value - less);
        r.all += (double)value;
        if (value == most) r.first = fmin(r.first, (double)k);
    }
    r.total = team_sum<LANES>(r.total, sums);
    r.all = e.smoothing != 0 ? team_sum<LANES>(r.all, sums) : 0;
    r.first = (double)e.origin + team_least<LANES>(r.first, places);
    if (label >= e.origin && label < e.origin + e.classes) r.at_label = (double)x[label - e.origin];
    if (first == 0) to[row] = r;
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

/* ---- a few rows: one block, and one launch with the sums and the gradient ---- */

enum { SMALL_THREADS = 1024, SMALL_ROWS = SUM_THREADS, SMALL_ELEMENTS = 8192 };

template <typename T>
static __global__ void __launch_bounds__(SMALL_THREADS) entropy_in_one_block(const labelled_rows<T> e, sums_out<3> out)
{
    await_previous();
    __shared__ double results[SMALL_ROWS][3], shared[32];
    for (int row = (int)threadIdx.x / 32; row < (int)e.rows; row += SMALL_THREADS / 32)
        entropy_row<T, 32>(e, row, results[row], NULL, NULL);
    __syncthreads();
    double sum[3] = {}; /* added as launch_sums does */
#pragma unroll
    for (int k = 0; k < 3; k++) {
        if ((int)threadIdx.x < (int)e.rows) sum[k] += results[threadIdx.x][k];
        sum[k] = block_sum(sum[k], shared);
    }
    store_sums(sum, out);
}

static int64_t entropy_rows(const lk__kernel_call *call) { return cuda_product(&call->in[0], 0, call->in[0].rank - 1); }

static bool entropy_is_small(const lk__kernel_call *call)
{
    return entropy_rows(call) <= SMALL_ROWS && lk__operand_elements(&call->in[0]) <= SMALL_ELEMENTS;
}

extern "C" size_t lk__cuda_cross_entropy_workspace(const lk__kernel_call *call, int threads)
{
    int64_t rows = entropy_rows(call);
    (void)threads;
    return sums_workspace(rows, 3) + (size_t)rows * 3 * sizeof(double);
}

template <typename T> static labelled_rows<T> describe_rows(const lk__kernel_call *call)
{
    labelled_rows<T> e = {};
    e.logits = in_data<T>(call, 0);
    e.labels = in_data<int32_t>(call, 1);
    e.weight = in_data<T>(call, 2);
    e.probs = out_data<T>(call, 3);
    e.rows = entropy_rows(call);
    e.classes = call->in[0].dims[call->in[0].rank - 1];
    e.whole = lk__whole_extent(&call->in[0], call->in[0].rank - 1);
    e.origin = lk__part_first(&call->in[0], call->in[0].rank - 1);
    e.ignore = call->attrs->ignore_index;
    e.smoothing = call->attrs->label_smoothing;
    e.results = (double *)((char *)call->workspace + sums_workspace(e.rows, 3));
    e.invalid = call->invalid;
    e.op = LK__OP_cross_entropy;
    e.statistics = in_data<row_record>(call, 3);
    e.parts = e.statistics ? call->in[3].dims[0] : 0;
    return e;
}

static sums_out<3> describe_sums(const lk__kernel_call *call)
{
    return sums_out<3>{{out_data<double>(call, 0), out_data<double>(call, 1), out_data<double>(call, 2)}};
}

template <typename T> static void launch_rows(const labelled_rows<T> &e, cudaStream_t stream)
{
    if (e.rows > 0 && e.statistics)
        LAUNCH_EARLY(joined_rows_kernel<T>, (unsigned)cuda_tiles(e.rows, THREADS / 32), THREADS, 0, stream, e);
    else if (e.rows > 0 && e.classes <= WARP_MOST)
        LAUNCH_EARLY((entropy_kernel<T, 32>), (unsigned)cuda_tiles(e.rows, THREADS / 32), THREADS, 0, stream, e);
    else if (e.rows > 0)
        LAUNCH_EARLY((entropy_kernel<T, THREADS>), (unsigned)e.rows, THREADS, 0, stream, e);
}

template <typename T> static void launch_entropy(const lk__kernel_call *call)
{
    labelled_rows<T> e = describe_rows<T>(call);
    cudaStream_t     stream = cuda_stream(call);
    if (entropy_is_small(call) && !e.statistics) {
        LAUNCH_EARLY(entropy_in_one_block<T>, 1, SMALL_THREADS, 0, stream, e, describe_sums(call));
        return;
    }
    launch_rows(e, stream);
    launch_sums<1>(call, row_results{e.results}, e.rows, describe_sums(call), true);
}

extern "C" lk_status lk__cuda_cross_entropy(const lk__kernel_call *call)
{
    BY_WIDE_ELEMENT(call->in[0].dtype, T, launch_entropy<T>(call);)
    return lk__cuda_launched(call);
}

/* ---- the losses of rows ---- */

extern "C" size_t lk__cuda_cross_entropy_each_workspace(const lk__kernel_call *call, int threads)
{
    return lk__cuda_cross_entropy_workspace(call, threads);
}

template <typename T> static void launch_each(const lk__kernel_call *call)
{
    labelled_rows<T> e = describe_rows<T>(call);
    e.op = LK__OP_cross_entropy_each;
    e.each = out_data<T>(call, 0);
    e.probs = out_data<T>(call, 1);
    launch_rows(e, cuda_stream(call));
}

extern "C" lk_status lk__cuda_cross_entropy_each(const lk__kernel_call *call)
{
    BY_WIDE_ELEMENT(call->in[0].dtype, T, launch_each<T>(call);)
    return lk__cuda_launched(call);
}

/* ---- the statistics of a part of the classes ---- */

template <typename T> static void launch_statistics(const lk__kernel_call *call)
{
    labelled_rows<T> e = describe_rows<T>(call);
    row_record      *to = out_data<row_record>(call, 0);
    cudaStream_t     stream = cuda_stream(call);
    if (e.rows > 0 && e.classes <= WARP_MOST)
        LAUNCH_EARLY((class_statistics_kernel<T, 32>), (unsigned)cuda_tiles(e.rows, THREADS / 32), THREADS, 0, stream,
                     e, to);
    else if (e.rows > 0)
        LAUNCH_EARLY((class_statistics_kernel<T, THREADS>), (unsigned)e.rows, THREADS, 0, stream, e, to);
}

extern "C" lk_status lk__cuda_class_statistics(const lk__kernel_call *call)
{
    BY_WIDE_ELEMENT(call->in[0].dtype, T, launch_statistics<T>(call);)
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
    int64_t        whole, origin; /* as in labelled_rows */
    double         smoothing;
    template <int N> struct values {
        lk__pack<T, N> p;
        int64_t        label; /* from the pack's first element; of a row without gradient: INT64_MAX */
        T              factor;
    };
    template <int N> __device__ __forceinline__ void read(int64_t at, values<N> &v) const
    {
        int64_t column = at, row = divide_off(column, classes), label = labels[row];
        bool    counts = label != ignore && label >= 0 && label < whole;
        v.p = load_pack<N>(probs + at);
        v.label = counts ? label - origin - column : INT64_MAX;
        v.factor = (T)((dloss ? *dloss : 1) * (weight ? (double)weight[row] : 1));
    }
    template <int N> __device__ __forceinline__ void write(int64_t at, values<N> &v) const
    {
        T even = (T)(smoothing / (double)whole);
#pragma unroll
        for (int i = 0; i < N; i++) {
            T d = entropy_slope(v.p.at[i], v.label == i, even, smoothing, v.factor);
            v.p.at[i] = v.label == INT64_MAX ? (T)0 : d;
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
    f.whole = lk__whole_extent(p, p->rank - 1);
    f.origin = lk__part_first(p, p->rank - 1);
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

/* ---- both ---- */

bool lk__cuda_entropy_supports(const lk__kernel_call *call)
{
    return entropy_is_small(call) && out_data<void>(call, 3);
}

lk_status lk__cuda_entropy_with_grad(const lk__kernel_call *call, const lk__kernel_call *grad)
{
    BY_WIDE_ELEMENT(
        call->in[0].dtype, T, labelled_rows<T> e = describe_rows<T>(call); e.dx = out_data<T>(grad, 0);
        LAUNCH_EARLY(entropy_in_one_block<T>, 1, SMALL_THREADS, 0, cuda_stream(call), e, describe_sums(call));)
    return lk__cuda_launched(call);
}
