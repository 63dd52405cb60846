/* attention_grad.cu - the gradient of attention. Probabilities are computed again from the scores and the saved
 * logarithm of their sum, so nothing of size queries × keys is kept (Dao et al. 2022). One kernel has a block for a
 * tile of queries and adds dq over keys; another has a block for a tile of keys and adds dk and dv over heads and
 * queries, in their order: no sums are shared between blocks, so bits do not change from run to run. The price is that
 * scores and their gradients are computed twice: seven products instead of five. */
#include "device/cuda/attention_fast.h"
#include "device/cuda/dnn_attention.h"

template <typename T> struct attention_gradients {
    const T       *dy, *y;
    const WIDE(T) *lse;
    WIDE(T)       *delta;        /* (batch, heads, t) */
    T             *dq, *dk, *dv; /* of head 0, laid out as q, k and v; NULL: not wanted */
    bool           aligned;      /* of dy too */
    bool           wide;         /* dk and dv are summands of what other ranks have, in the type of sums */
};

/* delta = dy · y: what the softmax subtracts from each gradient of a probability. A warp a row of a head. */
template <typename T> static __global__ void set_delta(attention_view<T> a, attention_gradients<T> g)
{
    int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (row >= a.batch * a.t * a.heads) return;
    WIDE(T) sum = 0;
    for (int64_t i = threadIdx.x % 32; i < a.d; i += 32) sum += load(g.dy + row * a.d + i) * load(g.y + row * a.d + i);
    sum = warp_sum(sum);
    int64_t head = row % a.heads, token = row / a.heads;
    if (threadIdx.x % 32 == 0) g.delta[(token / a.t * a.heads + head) * a.t + token % a.t] = sum;
}

/* A score and the gradient of its probability → the probability after dropout, and the gradient of the score. factor:
 * of dropout. */
template <typename W>
static __device__ __forceinline__ void differentiate_score(W *score, W *gradient, bool seen, W scale, W lse, W delta,
                                                           W factor)
{
    W p = seen ? attention_exp(*score * scale - lse) : (W)0;
    *gradient = seen ? p * (*gradient * factor - delta) * scale : (W)0;
    *score = p * factor;
}

template <typename T, int PART>
static __global__ void __launch_bounds__(ATTENTION_THREADS)
    differentiate_queries(attention_view<T> a, attention_gradients<T> g)
{
    typedef WIDE(T) W;
    enum {
        SIDE = attention_tile<W>::SIDE,
        R = attention_tile<W>::R,
        STRIDE = attention_tile<W>::STRIDE,
        NP = PART / (16 * R)
    };
    __shared__ W   left[ATTENTION_DEPTH][STRIDE], right[ATTENTION_DEPTH][STRIDE], tile[SIDE][STRIDE];
    __shared__ W   rows[ATTENTION_DEPTH][PART + R];
    __shared__ int lo[SIDE], hi[SIDE];
    int64_t        parts = (a.d + PART - 1) / PART, tiles = (a.t + SIDE - 1) / SIDE, rest = blockIdx.x;
    int64_t        column = rest % parts * PART;
    int64_t  query = (tiles - 1 - (rest /= parts) % tiles) * SIDE; /* the longest rows of causal attention first */
    int64_t  head = (rest /= tiles) % a.heads, sample = rest / a.heads, group = head / (a.heads / a.groups);
    int64_t  token = sample * a.t + query, row = a.heads * a.d, saved = (sample * a.heads + head) * a.t + query;
    const T *q = a.q + token * a.q_row + head * a.d, *dy = g.dy + token * row + head * a.d;
    const T *k = a.k + sample * a.s * a.k_row + group * a.d, *v = a.v + sample * a.s * a.k_row + group * a.d;
    int      ty = threadIdx.x / 16, tx = threadIdx.x % 16, lowest, highest;
    W        dq[R][NP * R] = {}, scores[R][R], gradients[R][R], lse[R], delta[R];
    attention_dropout drop = attention_dropout_of(a, sample);
#pragma unroll
    for (int i = 0; i < R; i++) {
        bool exists = query + ty * R + i < a.t;
        lse[i] = exists ? g.lse[saved + ty * R + i] : (W)0;
        delta[i] = exists ? g.delta[saved + ty * R + i] : (W)0;
    }
    tile_ranges(a, sample, query, lo, hi);
    __syncthreads();
    tile_bounds(lo, hi, &lowest, &highest);
    for (int64_t key = lowest / SIDE * SIDE; key <= highest; key += SIDE) {
        int64_t count = a.s - key;
        multiply_rows<T>(scores, left, right, q, a.q_row, a.t - query, k + key * a.k_row, a.k_row, count, a.d,
                         g.aligned);
        multiply_rows<T>(gradients, left, right, dy, row, a.t - query, v + key * a.k_row, a.k_row, count, a.d,
                         g.aligned);
#pragma unroll
        for (int i = 0; i < R; i++) {
            int r = ty * R + i;
            W   factors[R];
            if (a.threshold) attention_factors<R>(a, drop, head, query + r, key + tx * R, factors);
#pragma unroll
            for (int j = 0; j < R; j++) {
                int at = (int)key + tx * R + j;
                differentiate_score(&scores[i][j], &gradients[i][j], at >= lo[r] && at <= hi[r], a.scale, lse[i],
                                    delta[i], a.threshold ? factors[j] : (W)1);
            }
        }
        store_scores(tile, gradients);
        add_product<T, W, R, NP>(dq, tile, rows, k + key * a.k_row + column, a.k_row, count, a.d - column, g.aligned);
    }
#pragma unroll
    for (int i = 0; i < R; i++)
        if (query + ty * R + i < a.t)
            store_row<T, W, R, NP>(g.dq + (token + ty * R + i) * a.q_row + head * a.d + column, dq[i], (W)1,
                                   a.d - column);
}

/* Rows of the tiles are keys, columns are queries. */
template <typename T, int PART>
static __global__ void __launch_bounds__(ATTENTION_THREADS)
    differentiate_keys(attention_view<T> a, attention_gradients<T> g)
{
    typedef WIDE(T) W;
    enum {
        SIDE = attention_tile<W>::SIDE,
        R = attention_tile<W>::R,
        STRIDE = attention_tile<W>::STRIDE,
        NP = PART / (16 * R)
    };
    __shared__ W      left[ATTENTION_DEPTH][STRIDE], right[ATTENTION_DEPTH][STRIDE], tile[SIDE][STRIDE];
    __shared__ W      rows[ATTENTION_DEPTH][PART + R], lse[SIDE], delta[SIDE];
    __shared__ int    lo[SIDE], hi[SIDE];
    int64_t           parts = (a.d + PART - 1) / PART, tiles = (a.s + SIDE - 1) / SIDE, rest = blockIdx.x;
    int64_t           column = rest % parts * PART;
    int64_t           key = (rest /= parts) % tiles * SIDE; /* the longest columns of causal attention come first */
    int64_t           group = (rest /= tiles) % a.groups, sample = rest / a.groups, each = a.heads / a.groups;
    int64_t           row = a.heads * a.d, keys = a.s - key < SIDE ? a.s - key : SIDE;
    const T          *k = a.k + (sample * a.s + key) * a.k_row + group * a.d;
    const T          *v = a.v + (sample * a.s + key) * a.k_row + group * a.d;
    int               ty = threadIdx.x / 16, tx = threadIdx.x % 16, lowest, highest;
    W                 dk[R][NP * R] = {}, dv[R][NP * R] = {}, scores[R][R], gradients[R][R];
    attention_dropout drop = attention_dropout_of(a, sample);
    /* Queries that may attend to these keys, as far as shapes say; a tile of them, none of which does, is skipped
     * below. */
    int64_t begin = a.causal ? key : 0,
            end = a.window && key + keys + a.window - 1 < a.t ? key + keys + a.window - 1 : a.t;
    for (int64_t head = group * each; head < (group + 1) * each; head++)
        for (int64_t query = begin / SIDE * SIDE; query < end; query += SIDE) {
            int64_t  token = sample * a.t + query, count = a.t - query, saved = (sample * a.heads + head) * a.t + query;
            const T *q = a.q + token * a.q_row + head * a.d, *dy = g.dy + token * row + head * a.d;
            __syncthreads();
            tile_ranges(a, sample, query, lo, hi);
            if (threadIdx.x < SIDE) {
                lse[threadIdx.x] = threadIdx.x < count ? g.lse[saved + threadIdx.x] : (W)0;
                delta[threadIdx.x] = threadIdx.x < count ? g.delta[saved + threadIdx.x] : (W)0;
            }
            __syncthreads();
            tile_bounds(lo, hi, &lowest, &highest);
            if (lowest >= key + SIDE || highest < key) continue;
            multiply_rows<T>(scores, left, right, k, a.k_row, keys, q, a.q_row, count, a.d, g.aligned);
            multiply_rows<T>(gradients, left, right, v, a.k_row, keys, dy, row, count, a.d, g.aligned);
#pragma unroll
            for (int j = 0; j < R; j++) {
                int c = tx * R + j;
                W   factors[R];
                if (a.threshold) attention_factors<R>(a, drop, head, query + c, key + ty * R, factors);
#pragma unroll
                for (int i = 0; i < R; i++) {
                    int at = (int)key + ty * R + i;
                    differentiate_score(&scores[i][j], &gradients[i][j], at >= lo[c] && at <= hi[c], a.scale, lse[c],
                                        delta[c], a.threshold ? factors[i] : (W)1);
                }
            }
            store_scores(tile, scores);
            add_product<T, W, R, NP>(dv, tile, rows, dy + column, row, count, a.d - column, g.aligned);
            __syncthreads();
            store_scores(tile, gradients);
            add_product<T, W, R, NP>(dk, tile, rows, q + column, a.q_row, count, a.d - column, g.aligned);
        }
#pragma unroll
    for (int i = 0; i < R; i++) {
        int64_t at = (sample * a.s + key + ty * R + i) * a.k_row + group * a.d + column;
        if (ty * R + i >= keys) continue;
        if (g.wide) {
            if (g.dk) store_row<W, W, R, NP>((W *)g.dk + at, dk[i], (W)1, a.d - column);
            if (g.dv) store_row<W, W, R, NP>((W *)g.dv + at, dv[i], (W)1, a.d - column);
            continue;
        }
        if (g.dk) store_row<T, W, R, NP>(g.dk + at, dk[i], (W)1, a.d - column);
        if (g.dv) store_row<T, W, R, NP>(g.dv + at, dv[i], (W)1, a.d - column);
    }
}

static bool has_wide_sums(const lk__kernel_call *call)
{
    bool wide = false;
    for (int i = 1; i < call->outputs && i <= 2; i++)
        wide |= call->out[i].data && call->out[i].dtype != call->in[0].dtype;
    return wide;
}

template <typename T>
static attention_gradients<T> describe_gradients(const lk__kernel_call *call, const attention_view<T> &a)
{
    bool                   packed = !in_data<T>(call, 2);
    attention_gradients<T> g = {};
    g.dy = in_data<T>(call, 0);
    g.y = in_data<T>(call, 4);
    g.lse = in_data<WIDE(T)>(call, 5);
    g.delta = (WIDE(T) *)call->workspace;
    g.dq = out_data<T>(call, 0);
    g.dk = packed ? (g.dq ? g.dq + a.heads * a.d : NULL) : out_data<T>(call, 1);
    g.dv = packed ? (g.dq ? g.dk + a.groups * a.d : NULL) : out_data<T>(call, 2);
    g.aligned = a.aligned && (uintptr_t)g.dy % 16 == 0;
    g.wide = has_wide_sums(call);
    return g;
}

extern "C" size_t lk__cuda_attention_grad_workspace(const lk__kernel_call *call, int threads)
{
    (void)threads;
    attention_view<float> a = attention_describe<float>(call, 1, 6); /* for its sizes alone */
    size_t                own = (size_t)(a.batch * a.heads * a.t) * (call->in[0].dtype == LK_F64 ? 8 : 4);
    size_t                dnn = lk__cuda_dnn_attention_workspace(call, true);
    return own > dnn ? own : dnn;
}

extern "C" lk_status lk__cuda_attention_grad_prepare(lk__device *device, const lk__device_kernel *kernel,
                                                     lk__kernel_call *call)
{
    lk__kernel_call own = *call;
    (void)kernel;
    own.device = device;
    return lk__cuda_dnn_attention_prepare(&own, true);
}

template <typename T> static lk_status differentiate(const lk__kernel_call *call)
{
    attention_view<T>      a = attention_describe<T>(call, 1, 6);
    attention_gradients<T> g = describe_gradients(call, a);
    int64_t                side = attention_tile<WIDE(T)>::SIDE, rows = a.batch * a.heads * a.t;
    if (rows == 0) return LK_OK;
    LAUNCH((set_delta<T>), (unsigned)cuda_tiles(rows, 8), 256, 0, cuda_stream(call), a, g);
    if constexpr (sizeof(T) == sizeof(bf16)) {
        attention_fast_gradients fast = {g.dy, g.lse, g.delta, g.dq, g.dk, g.dv};
        if (!g.wide && g.aligned && attention_is_fast(call, a)) return lk__cuda_attention_fast_grad(call, a, fast);
    }
    BY_PART(a.d, PART, {
        int64_t parts = cuda_tiles(a.d, PART);
        if (g.dq)
            LAUNCH((differentiate_queries<T, PART>), (unsigned)(a.batch * a.heads * cuda_tiles(a.t, side) * parts),
                   ATTENTION_THREADS, 0, cuda_stream(call), a, g);
        if (g.dk || g.dv)
            LAUNCH((differentiate_keys<T, PART>), (unsigned)(a.batch * a.groups * cuda_tiles(a.s, side) * parts),
                   ATTENTION_THREADS, 0, cuda_stream(call), a, g);
    })
    return lk__cuda_launched(call);
}

extern "C" lk_status lk__cuda_attention_grad(const lk__kernel_call *call)
{
    /* cuDNN and the fast kernels round dk and dv */
    lk_status status = has_wide_sums(call) ? LK_EUNSUPPORTED : lk__cuda_dnn_attention(call, true);
    if (status == LK_EUNSUPPORTED) BY_ELEMENT(call->in[0].dtype, T, status = differentiate<T>(call);)
    return status;
}
