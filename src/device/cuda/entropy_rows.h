/* device/cuda/entropy_rows.h - the cross-entropy of rows of logits, which are replaced by their gradients.
 *
 * A block processes one row. Where two rows fit into the shared memory of a multiprocessor, a block takes many, one
 * after the other, and copies the next one while it works on this one: each logit is then read once and its gradient
 * written once, and bytes bound it. Longer rows are read twice, the second time mostly from the second-level cache. */
#ifndef LK__CUDA_ENTROPY_ROWS_H
#define LK__CUDA_ENTROPY_ROWS_H

#include "device/cuda/mma.h"

enum { ENTROPY_THREADS = 1024 };

typedef struct row_result {
    double  loss; /* NaN: the label is out of range */
    int32_t weight, correct;
} row_result;

/* The largest logit so far and its first position; the sum of exp(logit - most); with smoothing the sum of the
 * logits. */
template <typename W> struct row_state {
    W       most, total;
    int32_t first;
    double  all;
};

static __device__ __forceinline__ float  exp_of(float x) { return expf(x); }
static __device__ __forceinline__ double exp_of(double x) { return exp(x); }

/* Of a logit stored as T. The hardware's exp is exact enough where that is bf16, and takes a quarter of the
 * instructions: with expf they, and not bytes, would bound the kernel. */
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
    bool left = a.most > b.most || (a.most == b.most && a.first < b.first);
    W    most = left ? a.most : b.most, less = left ? b.most : a.most; /* chosen one by one: they stay in registers */
    W    total = left ? a.total : b.total, other = left ? b.total : a.total;
    /* The maximum of nothing is -infinity, with a sum of 0: its factor must not be exp(-inf + inf). */
    total += other == 0 ? (W)0 : other * exp_of(less - most);
    row_state<W> r = {most, total, left ? a.first : b.first, a.all + b.all};
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

/* What follows the last class in the row's last pack was never written, and is not read. */
template <typename T, int N>
static __device__ __forceinline__ lk__pack<T, N> load_classes(const T *x, int64_t i, int64_t classes)
{
    if (i + N <= classes) return load_pack<N>(x + i);
    lk__pack<T, N> p = {};
    for (int k = 0; i + k < classes; k++) p.at[k] = x[i + k];
    return p;
}

template <typename T, int N>
static __device__ __forceinline__ void read_row(const T *x, int64_t classes, bool smooth, row_state<WIDE(T)> *s)
{
    typedef WIDE(T) W;
    for (int64_t i = (int64_t)threadIdx.x * N; i < classes; i += (int64_t)blockDim.x * N) {
        lk__pack<T, N> p = load_classes<T, N>(x, i, classes);
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
        lk__pack<T, N> p = load_classes<T, N>(x, i, classes);
#pragma unroll
        for (int k = 0; k < N; k++) {
            W g = logit<T>::exponential(load(&p.at[k]) - most) * factor;
            if (i + k == label) g -= target;
            store(&p.at[k], g - even);
        }
        store_pack<N>(x + i, p);
    }
}

/* A row without a class: its gradients are 0. */
template <typename T, int N> static __device__ __forceinline__ void leave_row(const entropy<T> &e, int64_t row, T *x)
{
    lk__pack<T, N> zeros = {};
    if (e.gradients)
        for (int64_t i = (int64_t)threadIdx.x * N; i < e.classes; i += (int64_t)blockDim.x * N)
            store_pack<N>(x + i, zeros);
    if (threadIdx.x) return;
    bool ignored = e.labels[row] == e.ignore;
    e.results[row] = row_result{ignored ? 0 : (double)NAN, 0, 0};
    if (!ignored) report_invalid(e.invalid, LK__OP_linear_cross_entropy, e.labels, e.all_rows, row, e.classes);
}

template <typename T>
static __device__ __forceinline__ row_result row_loss(const entropy<T> &e, const row_state<WIDE(T)> &s, double at_label,
                                                      int64_t label)
{
    double log_total = log((double)s.total), loss = log_total + ((double)s.most - at_label);
    if (e.smoothing != 0) {
        double all = (double)e.classes * ((double)s.most + log_total) - s.all;
        loss = (1 - e.smoothing) * loss + e.smoothing / (double)e.classes * all;
    }
    return row_result{loss, 1, s.first == label};
}

/* A block a row: its loss, and the gradients of its logits in their place. */
template <typename T, int N>
static __global__ void __launch_bounds__(ENTROPY_THREADS, 2) differentiate_rows(entropy<T> e)
{
    typedef WIDE(T) W;
    __shared__ row_state<W> shared[32];
    int64_t                 row = e.first + blockIdx.x, label = e.labels[row];
    T                      *x = e.logits + (int64_t)blockIdx.x * e.row;
    if (label == e.ignore || label < 0 || label >= e.classes) {
        leave_row<T, N>(e, row, x);
        return;
    }
    row_state<W> s = {(W)-INFINITY, (W)0, INT32_MAX, 0};
    double       at_label = (double)load(&x[label]);
    read_row<T, N>(x, e.classes, e.smoothing != 0, &s);
    s = block_join(s, shared); /* also orders the read of the label's logit before its gradient */
    if (threadIdx.x == 0) e.results[row] = row_loss(e, s, at_label, label);
    if (e.gradients)
        write_gradients<T, N>(x, e.classes, label, s.most, (W)(1 / (double)s.total),
                              (W)(e.smoothing / (double)e.classes), (W)(1 - e.smoothing));
}

/* ---- rows in shared memory ---- */

enum { HELD_WARPS = ENTROPY_THREADS / 32, HELD_PACK = PACK(bf16) };
static const int64_t HELD_FEWEST = 2 * ENTROPY_THREADS * HELD_PACK, HELD_BYTES = 220 * 1024; /* elements; of two rows */

static inline bool entropy_rows_are_held(int64_t row)
{
    return row >= HELD_FEWEST && 2 * row * (int64_t)sizeof(bf16) <= HELD_BYTES;
}

typedef struct held_row {
    float  most[HELD_WARPS], total[HELD_WARPS];
    int    first[HELD_WARPS];
    double all[HELD_WARPS];
    float  at_label;
} held_row;

/* Packs of a row are a thread's own: it copies, reads and replaces them. */
#define OWN_PACKS(i, row) for (int i = threadIdx.x * HELD_PACK; i < (int)(row); i += ENTROPY_THREADS * HELD_PACK)

static __device__ __forceinline__ void copy_row(bf16 *to, const bf16 *from, int64_t row)
{
    OWN_PACKS(i, row) copy_pack(to + i, from + i, true);
}

/* What follows the last class in the row's last pack counts as nothing. */
static __device__ __forceinline__ void mask_row(bf16 *x, int64_t classes, int64_t row)
{
    OWN_PACKS(i, row)
    for (int k = (int)classes - i; k < HELD_PACK; k++) store(&x[i + k], -INFINITY);
}

/* The largest logit of the block's row, and its first position. */
static __device__ __forceinline__ float find_most(const bf16 *x, int64_t row, int label, held_row *shared, int *first)
{
    float most = -INFINITY;
    int   pack = INT32_MAX, at = INT32_MAX, lane = threadIdx.x % 32;
    OWN_PACKS(i, row)
    {
        lk__pack<bf16, HELD_PACK> p = load_pack<HELD_PACK>(x + i);
        float                     best = load(&p.at[0]);
#pragma unroll
        for (int k = 1; k < HELD_PACK; k++) best = fmaxf(best, load(&p.at[k]));
        if (best > most) most = best, pack = i;
        if ((unsigned)(label - i) < HELD_PACK) shared->at_label = load(&x[label]);
    }
    if (pack != INT32_MAX)
        for (int k = HELD_PACK; k-- > 0;)
            if (load(&x[pack + k]) == most) at = pack + k;
    for (int round = 0; round < 2; round++) { /* of the warp, then of the warps */
        for (int offset = 16; offset > 0; offset /= 2) {
            float other = __shfl_xor_sync(0xffffffffu, most, offset);
            int   where = __shfl_xor_sync(0xffffffffu, at, offset);
            if (other > most || (other == most && where < at)) most = other, at = where;
        }
        if (round == 1) break;
        if (lane == 0) shared->most[threadIdx.x / 32] = most, shared->first[threadIdx.x / 32] = at;
        __syncthreads();
        most = shared->most[lane], at = shared->first[lane];
    }
    *first = at;
    return most;
}

/* The sum of exp(logit - most); with smoothing also of the logits. */
static __device__ __forceinline__ float add_exponentials(const bf16 *x, int64_t classes, int64_t row, float most,
                                                         bool smooth, held_row *shared, double *all)
{
    float  total = 0;
    double sum = 0;
    int    lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    OWN_PACKS(i, row)
    {
        lk__pack<bf16, HELD_PACK> p = load_pack<HELD_PACK>(x + i);
        float                     part = 0;
#pragma unroll
        for (int k = 0; k < HELD_PACK; k++) part += logit<bf16>::exponential(load(&p.at[k]) - most);
        total += part;
        for (int k = 0; smooth && k < HELD_PACK && i + k < classes; k++) sum += (double)load(&p.at[k]);
    }
    total = warp_sum(total);
    if (smooth) sum = warp_sum(sum);
    if (lane == 0) shared->total[warp] = total, shared->all[warp] = sum;
    __syncthreads();
    *all = smooth ? warp_sum(shared->all[lane]) : 0;
    return warp_sum(shared->total[lane]);
}

/* 16 bytes at once: nvcc would split this loop's stores. */
static __device__ __forceinline__ void store_words(bf16 *to, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
#if defined(LK_CUDA_EMULATED)
    uint32_t words[4] = {a, b, c, d};
    memcpy((void *)to, words, sizeof words);
#else
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
#endif
}

static __device__ __forceinline__ void store_held_gradients(bf16 *to, const bf16 *x, int64_t row, int label, float most,
                                                            float factor, float even, float target)
{
    OWN_PACKS(i, row)
    {
        lk__pack<bf16, HELD_PACK> p = load_pack<HELD_PACK>(x + i);
        float                     g[HELD_PACK];
        int                       at = label - i;
#pragma unroll
        for (int k = 0; k < HELD_PACK; k++) {
            g[k] = logit<bf16>::exponential(load(&p.at[k]) - most) * factor;
            g[k] = (k == at ? g[k] - target : g[k]) - even;
        }
        store_words(to + i, pack_pair(g[0], g[1]), pack_pair(g[2], g[3]), pack_pair(g[4], g[5]), pack_pair(g[6], g[7]));
    }
}

/* Row `index` of the chunk, whose logits are at x in shared memory; false: it has no class, and `shared` was not
 * used. */
static __device__ __forceinline__ bool differentiate_held_row(const entropy<bf16> &e, int64_t index, bf16 *x,
                                                              held_row *shared)
{
    int64_t row = e.first + index;
    int     label = e.labels[row], first;
    bf16   *to = e.logits + index * e.row;
    if (label == e.ignore || label < 0 || label >= e.classes) {
        leave_row<bf16, HELD_PACK>(e, row, to);
        return false;
    }
    double all;
    mask_row(x, e.classes, e.row);
    float most = find_most(x, e.row, label, shared, &first);
    float total = add_exponentials(x, e.classes, e.row, most, e.smoothing != 0, shared, &all);
    if (threadIdx.x == 0) e.results[row] = row_loss(e, {most, total, first, all}, (double)shared->at_label, label);
    if (e.gradients)
        store_held_gradients(to, x, e.row, label, most, 1 / total, (float)(e.smoothing / (double)e.classes),
                             (float)(1 - e.smoothing));
    return true;
}

static __global__ void __launch_bounds__(ENTROPY_THREADS, 1) differentiate_held_rows(entropy<bf16> e, int64_t rows)
{
    __shared__ held_row shared[2]; /* of rows with a class in turn: a thread may be one such row ahead of another */
    DYNAMIC_SHARED(bf16, held);
    int turn = 0, used = 0;
    copy_row(held, e.logits + (int64_t)blockIdx.x * e.row, e.row);
    copies_commit();
    for (int64_t i = blockIdx.x; i < rows; i += gridDim.x, turn ^= 1) {
        int64_t next = i + gridDim.x;
        if (next < rows) copy_row(held + (turn ^ 1) * e.row, e.logits + next * e.row, e.row);
        copies_commit();
        copies_wait<1>();
        used ^= differentiate_held_row(e, i, held + turn * e.row, &shared[used]);
    }
}

/* Rows are independent of each other: how many blocks there are changes no bits. */
static inline lk_status launch_held_rows(const lk__kernel_call *call, const entropy<bf16> &e, int64_t rows)
{
    int         bytes = (int)(2 * e.row * (int64_t)sizeof(bf16)), blocks = 1;
    cudaError_t error =
        cudaFuncSetAttribute(differentiate_held_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, cuda_device(call)->number);
    if (error != cudaSuccess) return lk__cuda_check(call->device, error, "a kernel for cross-entropy");
    LAUNCH(differentiate_held_rows, (unsigned)(rows < blocks ? rows : blocks), ENTROPY_THREADS, (size_t)bytes,
           cuda_stream(call), e, rows);
    return LK_OK;
}

#endif
