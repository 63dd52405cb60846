/* attention.cu - scaled dot-product attention without a matrix of all scores: each tile of queries is multiplied with
 * tiles of keys, and the softmax is corrected as larger scores appear (Milakov and Gimelshein 2018; Dao et al. 2022).
 * These kernels support every shape, type and mask, and are bound by arithmetic. bf16 of the usual shapes uses cuDNN
 * (dnn_attention.cu) or our own kernels for tensor cores (attention_fast.cu). A single query, as in generation, is
 * bound by the bytes of keys and values: these are divided into parts of fixed size over blocks, whose results a second
 * kernel combines. */
#include "device/cuda/attention_fast.h"
#include "device/cuda/attention_parts.h"
#include "device/cuda/dnn_attention.h"

/* ---- tiles of queries ---- */

/* The part of the softmax that a row has seen. */
template <typename W> struct row_softmax {
    W      most;
    double total;
};

/* Row i of a tile of scores becomes probabilities, not yet divided by their sum; returns the factor on what was summed
 * before. */
template <typename W, int R>
static __device__ __forceinline__ W soften_row(W (&scores)[R], row_softmax<W> *row, W scale, int lo, int hi, int key)
{
    W best = row->most, sum = 0, factor = 1;
#pragma unroll
    for (int j = 0; j < R; j++) {
        scores[j] *= scale;
        if (key + j >= lo && key + j <= hi && scores[j] > best) best = scores[j];
    }
    for (int offset = 8; offset > 0; offset /= 2) {
        W other = __shfl_xor_sync(0xffffffffu, best, offset);
        best = other > best ? other : best;
    }
    if (best > row->most) {
        factor = row->total > 0 ? attention_exp(row->most - best) : (W)0;
        row->most = best;
    }
#pragma unroll
    for (int j = 0; j < R; j++) {
        scores[j] = key + j >= lo && key + j <= hi ? attention_exp(scores[j] - best) : (W)0;
        sum += scores[j];
    }
    for (int offset = 8; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    row->total = row->total * (double)factor + (double)sum;
    return factor;
}

template <typename T, int PART>
static __global__ void __launch_bounds__(ATTENTION_THREADS) attend_tiles(attention_view<T> a, T *y, WIDE(T) * lse)
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
    const T *q = a.q + (sample * a.t + query) * a.q_row + head * a.d;
    const T *k = a.k + sample * a.s * a.k_row + group * a.d, *v = a.v + sample * a.s * a.k_row + group * a.d;
    int      ty = threadIdx.x / 16, tx = threadIdx.x % 16, lowest, highest;
    W        out[R][NP * R] = {}, scores[R][R];
    row_softmax<W>    softmax[R];
    attention_dropout drop = attention_dropout_of(a, sample);
    for (int i = 0; i < R; i++) softmax[i] = row_softmax<W>{(W)-INFINITY, 0};
    tile_ranges(a, sample, query, lo, hi);
    __syncthreads();
    tile_bounds(lo, hi, &lowest, &highest);
    for (int64_t key = lowest / SIDE * SIDE; key <= highest; key += SIDE) {
        int64_t count = a.s - key;
        multiply_rows<T>(scores, left, right, q, a.q_row, a.t - query, k + key * a.k_row, a.k_row, count, a.d,
                         a.aligned);
#pragma unroll
        for (int i = 0; i < R; i++) {
            int r = ty * R + i;
            W   factor = soften_row(scores[i], &softmax[i], a.scale, lo[r], hi[r], (int)key + tx * R);
            if (factor != 1)
#pragma unroll
                for (int j = 0; j < NP * R; j++) out[i][j] *= factor;
            if (a.threshold) {
                W factors[R];
                attention_factors<R>(a, drop, head, query + r, key + tx * R, factors);
#pragma unroll
                for (int j = 0; j < R; j++) scores[i][j] *= factors[j];
            }
        }
        store_scores(tile, scores);
        add_product<T, W, R, NP>(out, tile, rows, v + key * a.k_row + column, a.k_row, count, a.d - column, a.aligned);
    }
#pragma unroll
    for (int i = 0; i < R; i++) {
        int64_t at = query + ty * R + i;
        double  total = softmax[i].total;
        bool    none = !(total > 0) && total == total; /* no key; NaN stays */
        if (at >= a.t) continue;
        store_row<T, W, R, NP>(y + ((sample * a.t + at) * a.heads + head) * a.d + column, out[i],
                               none ? (W)0 : (W)(1 / total), a.d - column);
        if (lse && column == 0 && tx == 0)
            lse[(sample * a.heads + head) * a.t + at] = none ? (W)0 : softmax[i].most + (W)log(total);
    }
}

/* ---- one query ---- */

enum { ONE_KEYS = 2 }; /* keys that a group of lanes reads at once */

/* Lanes that read one key together: a power of two that covers its packs, 32 at most. */
static __device__ __forceinline__ int lanes_of(int packs)
{
    int lanes = 1;
    while (lanes < packs && lanes < 32) lanes *= 2;
    return lanes;
}

/* scores[h][key - begin] = scale × the queries of H heads, (H, d), times keys begin … end - 1. */
template <typename T, int N, int H>
static __device__ __forceinline__ void score_part(const attention_view<T> &a, const WIDE(T) * queries, const T *k,
                                                  int begin, int end, int keys, WIDE(T) * scores)
{
    typedef WIDE(T) W;
    int packs = (int)(a.d / N), lanes = lanes_of(packs), lane = threadIdx.x % lanes, each = blockDim.x / lanes;
    for (int base = begin; base < end; base += each * ONE_KEYS) {
        W   dots[ONE_KEYS][H] = {};
        int key = base + threadIdx.x / lanes;
        for (int p = lane; p < packs; p += lanes) {
            lk__pack<T, N> x[ONE_KEYS];
#pragma unroll
            for (int u = 0; u < ONE_KEYS; u++) {
                int at = key + u * each;
                x[u] = load_pack<N>(k + (at < end ? at : begin) * a.k_row + p * N);
            }
#pragma unroll
            for (int h = 0; h < H; h++)
#pragma unroll
                for (int e = 0; e < N; e++)
#pragma unroll
                    for (int u = 0; u < ONE_KEYS; u++) dots[u][h] += queries[h * a.d + p * N + e] * load(&x[u].at[e]);
        }
#pragma unroll
        for (int u = 0; u < ONE_KEYS; u++)
#pragma unroll
            for (int h = 0; h < H; h++) {
                for (int offset = lanes / 2; offset > 0; offset /= 2)
                    dots[u][h] += __shfl_xor_sync(0xffffffffu, dots[u][h], offset);
                if (lane == 0 && key + u * each < end) scores[h * keys + key + u * each - begin] = dots[u][h] * a.scale;
            }
    }
}

/* A warp a head: its scores become probabilities. */
template <typename T>
static __device__ __forceinline__ part_softmax<WIDE(T)> soften_part(const attention_view<T> &a, WIDE(T) * scores,
                                                                    int begin, int end, int64_t sample, int64_t head)
{
    typedef WIDE(T) W;
    W                 most = (W)-INFINITY, total = 0;
    attention_dropout drop = attention_dropout_of(a, sample);
    for (int i = threadIdx.x % 32; i < end - begin; i += 32) most = scores[i] > most ? scores[i] : most;
    for (int offset = 16; offset > 0; offset /= 2) {
        W other = __shfl_xor_sync(0xffffffffu, most, offset);
        most = other > most ? other : most;
    }
    for (int i = threadIdx.x % 32; i < end - begin; i += 32) {
        W p = attention_exp(scores[i] - most), factor = 1;
        total += p;
        if (a.threshold) attention_factors<1>(a, drop, head, 0, begin + i, &factor);
        scores[i] = p * factor;
    }
    return part_softmax<W>{most, warp_sum(total)};
}

/* The first values that a lane adds below: they are read while the scores are computed, so that their latency adds
 * nothing. */
template <typename T, int N> struct values_ahead {
    lk__pack<T, N> at[ONE_KEYS];
};
template <typename T, int N>
static __device__ __forceinline__ values_ahead<T, N> read_ahead(const attention_view<T> &a, const T *v, int begin,
                                                                int end)
{
    values_ahead<T, N> x;
    int packs = (int)(a.d / N), lanes = lanes_of(packs), lane = threadIdx.x % lanes, each = blockDim.x / lanes;
#pragma unroll
    for (int u = 0; u < ONE_KEYS; u++) {
        int key = begin + threadIdx.x / lanes + u * each;
        x.at[u] = load_pack<N>(v + (key < end ? key : begin) * a.k_row + (lane < packs ? lane : 0) * N);
    }
    return x;
}

/* sums[h][column] = the values begin … end - 1 times their probabilities, of `count` heads. reduced: (warps, H, lanes
 * N). */
template <typename T, int N, int H>
static __device__ __forceinline__ void sum_part(const attention_view<T> &a, const WIDE(T) * probs, int count,
                                                const T *v, const values_ahead<T, N> &ahead, int begin, int end,
                                                int keys, WIDE(T) * reduced, WIDE(T) * sums, int64_t from_head_to_next)
{
    typedef WIDE(T) W;
    int packs = (int)(a.d / N), lanes = lanes_of(packs), lane = threadIdx.x % lanes, each = blockDim.x / lanes;
    int warp = threadIdx.x / 32, warps = blockDim.x / 32, width = lanes * N;
    for (int first = 0; first < packs; first += lanes) {
        W    out[H][N] = {};
        int  key = begin + threadIdx.x / lanes, stop = first + lane < packs ? end : begin;
        auto add_value = [&](const lk__pack<T, N> &x) {
#pragma unroll
            for (int h = 0; h < H; h++)
#pragma unroll
                for (int e = 0; e < N; e++) out[h][e] += probs[h * keys + key - begin] * load(&x.at[e]);
        };
        if (first == 0)
#pragma unroll
            for (int u = 0; u < ONE_KEYS; u++, key += each)
                if (key < stop) add_value(ahead.at[u]);
#pragma unroll 2
        for (; key < stop; key += each) add_value(load_pack<N>(v + key * a.k_row + (first + lane) * N));
        __syncthreads();
#pragma unroll
        for (int h = 0; h < H; h++)
#pragma unroll
            for (int e = 0; e < N; e++) {
                for (int offset = 16; offset >= lanes; offset /= 2)
                    out[h][e] += __shfl_xor_sync(0xffffffffu, out[h][e], offset);
                if ((int)threadIdx.x % 32 < lanes) reduced[(warp * H + h) * width + lane * N + e] = out[h][e];
            }
        __syncthreads();
        for (int i = threadIdx.x; i < count * width; i += blockDim.x) {
            int h = i / width, column = i % width;
            W   sum = 0;
            for (int w = 0; w < warps; w++) sum += reduced[(w * H + h) * width + column];
            if (first * N + column < a.d) sums[h * from_head_to_next + first * N + column] = sum;
        }
    }
}

/* A block a (sample, group, part); H heads of the group share a read of the keys. Shared memory: queries (H, d), scores
 * (H, keys), reduced. */
template <typename T, int N, int H>
static __global__ void __launch_bounds__(ATTENTION_THREADS)
    attend_part(attention_view<T> a, int keys, int parts, WIDE(T) * sums, part_softmax<WIDE(T)> *softmax)
{
    typedef WIDE(T) W;
    DYNAMIC_SHARED(W, shared);
    W       *queries = shared, *scores = queries + H * a.d, *reduced = scores + H * keys;
    int64_t  part = blockIdx.x % parts, group = blockIdx.x / parts % a.groups, sample = blockIdx.x / parts / a.groups;
    int      each = (int)(a.heads / a.groups), warp = threadIdx.x / 32, lo, hi;
    const T *k = a.k + sample * a.s * a.k_row + group * a.d, *v = a.v + sample * a.s * a.k_row + group * a.d;
    attention_range(a, sample, 0, &lo, &hi);
    int begin = (int)part * keys, end = begin + keys;
    begin = begin > lo ? begin : lo;
    end = end < hi + 1 ? end : hi + 1;
    for (int h = 0; h < each; h += H) {
        int     count = each - h < H ? each - h : H;
        int64_t head = group * each + h,
                slot = (sample * a.heads + head) * parts + part; /* of head + 1: parts further */
        if (begin >= end) {                                      /* this part has no key of the query */
            if ((int)threadIdx.x < count) softmax[slot + threadIdx.x * parts] = part_softmax<W>{(W)-INFINITY, (W)0};
            continue;
        }
        const T *q = a.q + sample * a.t * a.q_row + head * a.d;
        __syncthreads();
        for (int i = threadIdx.x; i < H * a.d; i += blockDim.x) queries[i] = i < count * a.d ? load(q + i) : (W)0;
        __syncthreads();
        values_ahead<T, N> ahead = read_ahead<T, N>(a, v, begin, end);
        score_part<T, N, H>(a, queries, k, begin, end, keys, scores);
        __syncthreads();
        if (warp < count) {
            part_softmax<W> result = soften_part(a, scores + warp * keys, begin, end, sample, head + warp);
            if (threadIdx.x % 32 == 0) softmax[slot + warp * parts] = result;
        }
        __syncthreads();
        sum_part<T, N, H>(a, scores, count, v, ahead, begin, end, keys, reduced, sums + slot * a.d, parts * a.d);
    }
}

/* Blocks' sums, then what belongs to each. */
static size_t one_space(int64_t batch, int64_t heads, int64_t s, int64_t d, size_t wide)
{
    size_t results = (size_t)(batch * heads * cuda_tiles(s, part_keys(s)));
    return lk__round_up(results * (size_t)d * wide, 256) + lk__round_up(results * 2 * wide, 256);
}

template <typename T, int N, int H>
static bool attend_one(const lk__kernel_call *call, const attention_view<T> &a, T *y, WIDE(T) * lse)
{
    typedef WIDE(T) W;
    int              keys = (int)part_keys(a.s), parts = (int)cuda_tiles(a.s, keys), lanes = 1;
    W               *sums = (W *)call->workspace;
    part_softmax<W> *softmax =
        (part_softmax<W> *)((char *)sums + lk__round_up((size_t)(a.batch * a.heads * parts * a.d) * sizeof(W), 256));
    while (lanes < a.d / N && lanes < 32) lanes *= 2;
    size_t shared = (size_t)(H * (a.d + keys + ATTENTION_THREADS / 32 * lanes * N)) * sizeof(W);
    if (shared > 48 << 10) return false;
    LAUNCH((attend_part<T, N, H>), (unsigned)(a.batch * a.groups * parts), ATTENTION_THREADS, shared, cuda_stream(call),
           a, keys, parts, sums, softmax);
    LAUNCH_EARLY((combine_parts<T>), (unsigned)(a.batch * a.heads), 128, 0, cuda_stream(call), parts, a.d, sums,
                 softmax, y, lse);
    return true;
}

/* Whether it could: very long parts, or very wide heads, do not fit. */
template <typename T>
static bool attend_by_parts(const lk__kernel_call *call, const attention_view<T> &a, T *y, WIDE(T) * lse)
{
    if (!a.aligned) return attend_one<T, 1, 1>(call, a, y, lse);
    if (a.heads == a.groups) return attend_one<T, PACK(T), 1>(call, a, y, lse);
    return attend_one<T, PACK(T), 4>(call, a, y, lse);
}

/* ---- the operation ---- */

extern "C" size_t lk__cuda_attention_workspace(const lk__kernel_call *call, int threads)
{
    (void)threads;
    attention_view<float> a = attention_describe<float>(call, 0, 3); /* for its sizes alone */
    if (a.t == 1) return one_space(a.batch, a.heads, a.s, a.d, call->in[0].dtype == LK_F64 ? 8 : 4);
    return lk__cuda_dnn_attention_workspace(call, false);
}

extern "C" lk_status lk__cuda_attention_prepare(lk__device *device, const lk__device_kernel *kernel,
                                                lk__kernel_call *call)
{
    lk__kernel_call own = *call;
    (void)kernel;
    own.device = device;
    return lk__cuda_dnn_attention_prepare(&own, false);
}

template <typename T>
static lk_status attend_plain(const lk__kernel_call *call, const attention_view<T> &a, T *y, WIDE(T) * lse)
{
    int64_t tiles = a.batch * a.heads * cuda_tiles(a.t, attention_tile<WIDE(T)>::SIDE);
    BY_PART(a.d, PART,
            LAUNCH((attend_tiles<T, PART>), (unsigned)(tiles * cuda_tiles(a.d, PART)), ATTENTION_THREADS, 0,
                   cuda_stream(call), a, y, lse);)
    return lk__cuda_launched(call);
}

template <typename T> static lk_status attend(const lk__kernel_call *call)
{
    attention_view<T> a = attention_describe<T>(call, 0, 3);
    T                *y = out_data<T>(call, 0);
    WIDE(T) *lse = out_data<WIDE(T)>(call, 1);
    if (a.batch * a.t == 0) return LK_OK;
    if (a.t == 1 && attend_by_parts(call, a, y, lse)) return lk__cuda_launched(call);
    if constexpr (sizeof(T) == sizeof(bf16))
        if (attention_is_fast(call, a)) return lk__cuda_attention_fast(call, a, y, lse);
    return attend_plain(call, a, y, lse);
}

extern "C" lk_status lk__cuda_attention(const lk__kernel_call *call)
{
    lk_status status = lk__cuda_dnn_attention(call, false);
    if (status == LK_EUNSUPPORTED) BY_ELEMENT(call->in[0].dtype, T, status = attend<T>(call);)
    return status;
}
