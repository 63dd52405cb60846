/* linear_cross_entropy.cu - the cross-entropy of a linear layer's outputs, and its gradients, without the matrix of all logits: rows are
 * taken in chunks whose logits fit the workspace, and each chunk's gradients are made while its logits are there. Three products bound
 * it; between them each logit is read twice (the second time mostly from the second-level cache) and its gradient written once, in
 * place. Logits are stored in the model's type: bf16 models round them, as they do all activations. */
#include "device/cuda/gemm.h"

/* Logits of a chunk: at most CHUNK_BYTES, but at least FEWEST rows. A chunk costs a pass over dw, whose sums are read and written again,
 * so few and large ones are good: V = 50304 in bf16 gives 10496 rows, and dw's traffic is 3 % of the products' time. Rows are a multiple
 * of FEWEST, and chunks of a batch are of nearly the same size. */
static const int64_t CHUNK_BYTES = (int64_t)1 << 30, FEWEST = 256;
enum { MOST_THREADS = 1024 };

/* Elements from a row of logits to the next: rows begin at multiples of 16 bytes, for products and packs alike. */
static int64_t logits_row(const lk__kernel_call *call)
{
    int64_t pack = 16 / (int64_t)cuda_size(call->in[0].dtype);
    return cuda_tiles(call->in[1].dims[0], pack) * pack;
}

static int64_t most_rows(const lk__kernel_call *call)
{
    int64_t row = logits_row(call) * (int64_t)cuda_size(call->in[0].dtype);
    int64_t rows = CHUNK_BYTES / (row > 0 ? row : 1) / FEWEST * FEWEST;
    return rows > FEWEST ? rows : FEWEST;
}

static int64_t chunk_rows(const lk__kernel_call *call)
{
    int64_t rows = call->in[0].dims[0], most = most_rows(call), chunks = cuda_tiles(rows, most);
    int64_t even = chunks > 0 ? cuda_tiles(cuda_tiles(rows, chunks), FEWEST) * FEWEST : 0;
    return even < rows ? even : rows;
}

typedef struct row_result {
    double  loss; /* NaN: the label is out of range */
    int32_t weight, correct;
} row_result;

/* Of a block for n packs or rows: about one each, whole warps. */
static unsigned block_threads(int64_t n)
{
    int64_t threads = cuda_tiles(n, 32) * 32;
    return (unsigned)(threads < 32 ? 32 : threads > MOST_THREADS ? (int64_t)MOST_THREADS : threads);
}

static size_t whole(size_t bytes) { return lk__round_up(bytes, 256); }
static size_t logits_space(const lk__kernel_call *call) /* a smaller count may have larger chunks */
{
    int64_t rows = call->in[0].dims[0], most = most_rows(call);
    return whole((size_t)((rows < most ? rows : most) * logits_row(call)) * cuda_size(call->in[0].dtype));
}
static size_t results_space(const lk__kernel_call *call)
{
    return whole((size_t)call->in[0].dims[0] * sizeof(row_result));
}

/* ---- rows ---- */

/* The largest logit so far and its first position; the sum of exp(logit - most); with smoothing the sum of the logits. */
template <typename W> struct row_state {
    W       most, total;
    int32_t first;
    double  all;
};

static __device__ __forceinline__ float  exp_of(float x) { return expf(x); }
static __device__ __forceinline__ double exp_of(double x) { return exp(x); }

/* Of a logit stored as T. The hardware's exp is exact enough where that is bf16, and takes a quarter of the instructions: with expf they,
 * and not bytes, would bound the kernel. */
template <typename T> struct logit {
    static __device__ __forceinline__ T exponential(T x) { return exp_of(x); }
};
template <> struct logit<bf16> {
    static __device__ __forceinline__ float exponential(float x)
    {
#if defined(LK_CUDA_EMULATED)
        return expf(x);
#else
        return __expf(x);
#endif
    }
};

template <typename W> static __device__ __forceinline__ row_state<W> join(const row_state<W> &a, const row_state<W> &b)
{
    bool                left = a.most > b.most || (a.most == b.most && a.first < b.first);
    row_state<W>        r = left ? a : b;
    const row_state<W> &other = left ? b : a;
    /* The maximum of nothing is -infinity, with a sum of 0: its factor must not be exp(-inf + inf). */
    r.total += other.total == 0 ? (W)0 : other.total * exp_of(other.most - r.most);
    r.all = a.all + b.all;
    return r;
}

template <typename W> static __device__ __forceinline__ row_state<W> warp_join(row_state<W> s)
{
    for (int offset = 16; offset > 0; offset /= 2) {
        row_state<W> other;
        other.most = __shfl_xor_sync(0xffffffffu, s.most, offset);
        other.total = __shfl_xor_sync(0xffffffffu, s.total, offset);
        other.first = __shfl_xor_sync(0xffffffffu, s.first, offset);
        other.all = __shfl_xor_sync(0xffffffffu, s.all, offset);
        /* the same operand order in both lanes, so that they have the same bits */
        s = (threadIdx.x & offset) ? join(other, s) : join(s, other);
    }
    return s;
}

/* Of the block; every thread gets the result. */
template <typename W> static __device__ __forceinline__ row_state<W> block_join(row_state<W> s, row_state<W> *shared)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    s = warp_join(s);
    if (lane == 0) shared[warp] = s;
    __syncthreads();
    row_state<W> none = {(W)-INFINITY, (W)0, INT32_MAX, 0};
    return warp_join(lane < warps ? shared[lane] : none);
}

template <typename T> struct entropy {
    T                     *logits;  /* (rows, row) of the chunk, classes of each used: replaced by their gradients */
    const int32_t         *labels;  /* of all rows */
    row_result            *results; /* (all rows) */
    int64_t                first, all_rows, classes, row, ignore;
    double                 smoothing;
    bool                   gradients;
    lk__kernel_invalid_id *invalid;
};

template <typename T, int N>
static __device__ __forceinline__ void read_row(const T *x, int64_t classes, bool smooth, row_state<WIDE(T)> *s)
{
    typedef WIDE(T) W;
    for (int64_t i = (int64_t)threadIdx.x * N; i < classes; i += (int64_t)blockDim.x * N) {
        lk__pack<T, N> p = load_pack<N>(x + i);
        W              v[N], best = (W)-INFINITY, sum = 0, all = 0;
        int            at = 0;
#pragma unroll
        for (int k = 0; k < N; k++) {
            bool present = i + k < classes;
            v[k] = present ? load(&p.at[k]) : (W)-INFINITY;
            if (v[k] > best) best = v[k], at = k;
            all += present ? v[k] : (W)0;
        }
        if (best > s->most) {
            s->total = s->total == 0 ? (W)0 : s->total * exp_of(s->most - best);
            s->most = best;
            s->first = (int32_t)(i + at);
        }
#pragma unroll
        for (int k = 0; k < N; k++) sum += logit<T>::exponential(v[k] - s->most);
        s->total += sum;
        if (smooth) s->all += (double)all;
    }
}

template <typename T, int N>
static __device__ __forceinline__ void write_gradients(T *x, int64_t classes, int64_t label, WIDE(T) most,
                                                       WIDE(T) factor, WIDE(T) even, WIDE(T) target)
{
    typedef WIDE(T) W;
    for (int64_t i = (int64_t)threadIdx.x * N; i < classes; i += (int64_t)blockDim.x * N) {
        lk__pack<T, N> p = load_pack<N>(x + i);
#pragma unroll
        for (int k = 0; k < N; k++) {
            W g = logit<T>::exponential(load(&p.at[k]) - most) * factor;
            if (i + k == label) g -= target;
            store(&p.at[k], g - even);
        }
        store_pack<N>(x + i, p);
    }
}

/* A block a row: its loss, and the gradients of its logits in their place. */
template <typename T, int N> static __global__ void __launch_bounds__(MOST_THREADS, 2) differentiate_rows(entropy<T> e)
{
    typedef WIDE(T) W;
    __shared__ row_state<W> shared[32];
    int64_t                 row = e.first + blockIdx.x, label = e.labels[row];
    T                      *x = e.logits + (int64_t)blockIdx.x * e.row;
    if (label == e.ignore || label < 0 || label >= e.classes) {
        lk__pack<T, N> zeros = {};
        if (e.gradients)
            for (int64_t i = (int64_t)threadIdx.x * N; i < e.classes; i += (int64_t)blockDim.x * N)
                store_pack<N>(x + i, zeros);
        if (threadIdx.x) return;
        e.results[row] = row_result{label == e.ignore ? 0 : (double)NAN, 0, 0};
        if (label != e.ignore)
            report_invalid(e.invalid, LK__OP_linear_cross_entropy, e.labels, e.all_rows, row, e.classes);
        return;
    }
    row_state<W> s = {(W)-INFINITY, (W)0, INT32_MAX, 0};
    double       at_label = (double)load(&x[label]);
    read_row<T, N>(x, e.classes, e.smoothing != 0, &s);
    s = block_join(s, shared); /* also orders the read of the label's logit before its gradient */
    if (threadIdx.x == 0) {
        double log_total = log((double)s.total), loss = log_total + ((double)s.most - at_label);
        if (e.smoothing != 0) {
            double all = (double)e.classes * ((double)s.most + log_total) - s.all;
            loss = (1 - e.smoothing) * loss + e.smoothing / (double)e.classes * all;
        }
        e.results[row] = row_result{loss, 1, s.first == label};
    }
    if (e.gradients)
        write_gradients<T, N>(x, e.classes, label, s.most, (W)(1 / (double)s.total),
                              (W)(e.smoothing / (double)e.classes), (W)(1 - e.smoothing));
}

/* One block: the sums over all rows, in an order that depends on their number alone. Any output may be NULL. */
static __global__ void sum_rows(const row_result *results, int64_t rows, double *sum, double *weight, double *correct)
{
    __shared__ double shared[32];
    double            total[3] = {0, 0, 0};
    for (int64_t i = threadIdx.x; i < rows; i += blockDim.x) {
        row_result r = results[i];
        total[0] += r.loss;
        total[1] += r.weight;
        total[2] += r.correct;
    }
    for (int k = 0; k < 3; k++) {
        total[k] = block_sum(total[k], shared);
        __syncthreads();
    }
    if (threadIdx.x) return;
    if (sum) *sum = total[0];
    if (weight) *weight = total[1];
    if (correct) *correct = total[2];
}

template <typename W> static __global__ void fill_zeros(W *to, int64_t n) { EACH_INDEX(i, n) to[i] = 0; }

/* ---- products ---- */

typedef struct products {
    lk__cuda_product logits, dx, dw;
} products;

/* Of a chunk of `rows` rows. */
static products describe_products(const lk__kernel_call *call, int64_t rows)
{
    const lk__kernel_operand *x = &call->in[0], *w = &call->in[1];
    int64_t                   width = x->dims[1], classes = w->dims[0], row = logits_row(call);
    lk__cuda_product          common = {};
    products                  p;
    common.batch = 1;
    common.alpha = 1;
    common.type = common.type_c = x->dtype;

    p.logits = common; /* x w' */
    p.logits.rows_apart = true;
    p.logits.m = rows, p.logits.n = classes, p.logits.k = width;
    p.logits.a = x->data, p.logits.a_ld = width;
    p.logits.b = w->data, p.logits.b_ld = width, p.logits.b_transposed = true;
    p.logits.c = (void *)1, p.logits.c_ld = row;

    p.dx = common; /* dlogits w */
    p.dx.rows_apart = true;
    p.dx.m = rows, p.dx.n = width, p.dx.k = classes;
    p.dx.a = (void *)1, p.dx.a_ld = row;
    p.dx.b = w->data, p.dx.b_ld = width;
    p.dx.c = out_data<void>(call, 3), p.dx.c_ld = width;

    p.dw = common; /* dlogits' x, added over the chunks */
    p.dw.m = classes, p.dw.n = width, p.dw.k = rows;
    p.dw.a = (void *)1, p.dw.a_ld = row, p.dw.a_transposed = true;
    p.dw.b = x->data, p.dw.b_ld = width;
    p.dw.c = out_data<void>(call, 4), p.dw.c_ld = width;
    p.dw.type_c = x->dtype == LK_BF16 ? LK_F32 : x->dtype;
    return p;
}

extern "C" size_t lk__cuda_linear_cross_entropy_workspace(const lk__kernel_call *call, int threads)
{
    (void)threads;
    return LK__CUDA_PRODUCT_BYTES + logits_space(call) + results_space(call);
}

extern "C" lk_status lk__cuda_linear_cross_entropy_prepare(lk__device *device, const lk__device_kernel *kernel,
                                                           lk__kernel_call *call)
{
    int64_t   rows = chunk_rows(call), all = call->in[0].dims[0];
    lk_status status = LK_OK;
    (void)kernel;
    for (int64_t first = 0; first < all && status >= 0; first += rows) {
        products p = describe_products(call, all - first < rows ? all - first : rows);
        p.dw.beta = first > 0;
        if (first > rows && all - first >= rows) continue; /* as the chunk before */
        status = lk__cuda_gemm_prepare(device, &p.logits);
        if (status >= 0 && p.dx.c) status = lk__cuda_gemm_prepare(device, &p.dx);
        if (status >= 0 && p.dw.c) status = lk__cuda_gemm_prepare(device, &p.dw);
    }
    return status;
}

/* The chunk of `rows` rows from `first` on. */
template <typename T>
static lk_status run_chunk(const lk__kernel_call *call, entropy<T> e, int64_t first, int64_t rows, void *workspace)
{
    int64_t   width = call->in[0].dims[1];
    products  p = describe_products(call, rows);
    lk_status status;
    p.logits.workspace = p.dx.workspace = p.dw.workspace = workspace;
    p.logits.a = p.dw.b = (const T *)call->in[0].data + first * width;
    p.logits.c = e.logits;
    p.dx.a = p.dw.a = e.logits;
    if ((status = lk__cuda_gemm(call, &p.logits)) < 0) return status;
    e.first = first;
    LAUNCH((differentiate_rows<T, PACK(T)>), (unsigned)rows, block_threads(e.row / PACK(T)), 0, cuda_stream(call), e);
    if (p.dx.c) {
        p.dx.c = (T *)p.dx.c + first * width;
        if ((status = lk__cuda_gemm(call, &p.dx)) < 0) return status;
    }
    p.dw.beta = first > 0;
    return p.dw.c ? lk__cuda_gemm(call, &p.dw) : LK_OK;
}

extern "C" lk_status lk__cuda_linear_cross_entropy(const lk__kernel_call *call)
{
    int64_t all = call->in[0].dims[0], rows = chunk_rows(call);
    char   *at = (char *)call->workspace;
    BY_ELEMENT(call->in[0].dtype, T, {
        entropy<T> e = {};
        e.logits = (T *)(at + LK__CUDA_PRODUCT_BYTES);
        e.results = (row_result *)(at + LK__CUDA_PRODUCT_BYTES + logits_space(call));
        e.labels = in_data<int32_t>(call, 2);
        e.all_rows = all;
        e.classes = call->in[1].dims[0];
        e.row = logits_row(call);
        e.ignore = call->attrs->ignore_index;
        e.smoothing = call->attrs->label_smoothing;
        e.gradients = out_data<T>(call, 3) || out_data<WIDE(T)>(call, 4);
        e.invalid = call->invalid;
        for (int64_t first = 0; first < all; first += rows) {
            lk_status status = run_chunk(call, e, first, all - first < rows ? all - first : rows, at);
            if (status < 0) return status;
        }
        WIDE(T) *dw = out_data<WIDE(T)>(call, 4);
        int64_t  weights = cuda_product(&call->in[1], 0, 2);
        if (dw && all == 0)
            LAUNCH((fill_zeros<WIDE(T)>), cuda_blocks(weights, 256), 256, 0, cuda_stream(call), dw, weights);
        LAUNCH(sum_rows, 1, block_threads(all), 0, cuda_stream(call), e.results, all, out_data<double>(call, 0),
               out_data<double>(call, 1), out_data<double>(call, 2));
    })
    return lk__cuda_launched(call);
}
