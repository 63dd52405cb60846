/* device/cuda/attention.h - what the plain kernels of attention and of its gradient share: the operands of a head, the
 * keys that a query may attend to, dropout of probabilities, and products of tiles in shared memory.
 *
 * A block of 16 × 16 threads holds a tile of SIDE × SIDE scores: thread (ty, tx) holds the R × R scores at row ty R,
 * column tx R. Products read their operands through shared memory, DEPTH at a time. Heads may have any width, and there
 * may be any number of queries and keys. */
#ifndef LK__CUDA_ATTENTION_H
#define LK__CUDA_ATTENTION_H

#include "device/cuda/random.h"

#include <math.h>

enum { ATTENTION_THREADS = 256, ATTENTION_DEPTH = 16 };
template <typename W> struct attention_tile {
    enum { SIDE = sizeof(W) == 8 ? 32 : 64, R = SIDE / 16, STRIDE = SIDE + R };
};

/* ---- operands ---- */

template <typename T> struct attention_view {
    int64_t        batch, t, s;   /* samples, queries, keys */
    int64_t        heads, groups; /* of queries; of keys and values: each serves heads / groups of queries */
    int64_t        d;             /* width of a head */
    const T       *q, *k, *v;     /* of head 0 */
    int64_t        q_row, k_row;  /* elements from a token to the next */
    const int32_t *first, *last;  /* (batch, t): the keys that a query may attend to; NULL: no such bound */
    const int32_t *lengths;       /* (batch): keys that exist; NULL: s */
    bool           causal;
    int64_t        window; /* keys that a query attends to, itself included; 0: all */
    WIDE(T) scale;
    bool aligned; /* rows of heads begin at multiples of 16 bytes and are a multiple of 4 wide */
    /* Dropout of the probabilities; threshold 0: none. */
    uint32_t threshold;
    WIDE(T) kept; /* factor on those that are kept */
    uint64_t               stream;
    const lk__kernel_step *step;
    /* Where this is a part: its first sample, its first row of scores (head, query), and the whole's queries. */
    int64_t first_sample, first_row, whole_t;
    int64_t each, whole_each; /* heads in a row, and of the whole: of each group, where its queries are cut */
};

/* in: the operands q, [k], [v] from `operand` on, then [first], [last], [lengths] from `bounds` on. */
template <typename T>
static inline attention_view<T> attention_describe(const lk__kernel_call *call, int operand, int bounds)
{
    const lk__op_attrs       *attrs = call->attrs;
    const lk__kernel_operand *q = &call->in[operand], *k = &call->in[operand + 1];
    bool                      packed = !in_data<T>(call, operand + 1);
    attention_view<T>         a = {};
    a.batch = q->dims[0];
    a.t = q->dims[1];
    a.s = packed ? a.t : k->dims[1];
    a.heads = attrs->heads;
    a.groups = attrs->kv_heads;
    a.d = q->dims[2] / (packed ? a.heads + 2 * a.groups : a.heads);
    a.q_row = q->dims[2];
    a.k_row = packed ? a.q_row : k->dims[2];
    a.q = (const T *)q->data;
    a.k = packed ? a.q + a.heads * a.d : (const T *)k->data;
    a.v = packed ? a.k + a.groups * a.d : in_data<T>(call, operand + 2);
    a.first = in_data<int32_t>(call, bounds);
    a.last = in_data<int32_t>(call, bounds + 1);
    a.lengths = in_data<int32_t>(call, bounds + 2);
    a.causal = attrs->causal;
    a.window = attrs->window;
    a.scale = (WIDE(T))attrs->scale;
    a.aligned =
        a.d * sizeof(T) % 16 == 0 && (uintptr_t)a.q % 16 == 0 && (uintptr_t)a.k % 16 == 0 && (uintptr_t)a.v % 16 == 0;
    if (attrs->probability > 0) {
        double threshold = ceil(attrs->probability * 4294967296.0 - 0.5);
        a.threshold = threshold > 4294967295.0 ? UINT32_MAX : (uint32_t)threshold;
        a.kept = (WIDE(T))(1 / (1 - attrs->probability));
        a.stream = attrs->stream;
        a.step = call->step_memory;
        a.first_sample = lk__part_first(q, 0);
        a.whole_t = lk__whole_extent(q, 1);
        a.first_row = (a.d > 0 ? lk__part_first(q, 2) / a.d : 0) * a.whole_t + lk__part_first(q, 1);
        int64_t repetitions = !packed && q->part && q->part->outer[2] > 1 ? q->part->outer[2] : 1;
        a.each = a.heads / repetitions;
        a.whole_each = a.d > 0 ? lk__whole_extent(q, 2) / a.d / repetitions : 0;
    }
    return a;
}

/* Keys lo … hi (inclusive) of query i of a sample; lo > hi: none. */
template <typename T>
static __device__ __forceinline__ void attention_range(const attention_view<T> &a, int64_t sample, int64_t i, int *lo,
                                                       int *hi)
{
    int64_t from = 0, to = a.s - 1;
    if (i >= a.t) { /* a row of a tile past the end */
        *lo = 1, *hi = 0;
        return;
    }
    if (a.first && a.first[sample * a.t + i] > from) from = a.first[sample * a.t + i];
    if (a.last && a.last[sample * a.t + i] < to) to = a.last[sample * a.t + i];
    if (a.lengths && a.lengths[sample] - (int64_t)1 < to) to = a.lengths[sample] - (int64_t)1;
    if (a.causal && i < to) to = i;
    if (a.window && i - a.window + 1 > from) from = i - a.window + 1;
    *lo = (int)from;
    *hi = to < -1 ? -1 : (int)to;
}

/* The ranges of a tile's queries, in shared memory; complete after the next __syncthreads. */
template <typename T, int SIDE>
static __device__ __forceinline__ void tile_ranges(const attention_view<T> &a, int64_t sample, int64_t query,
                                                   int (&lo)[SIDE], int (&hi)[SIDE])
{
    if (threadIdx.x < SIDE) attention_range(a, sample, query + threadIdx.x, &lo[threadIdx.x], &hi[threadIdx.x]);
}

/* The first and the last key of any of the tile's queries; lowest > highest: none has a key. */
template <int SIDE>
static __device__ __forceinline__ void tile_bounds(const int (&lo)[SIDE], const int (&hi)[SIDE], int *lowest,
                                                   int *highest)
{
    int low = INT32_MAX, high = -1;
    for (int i = threadIdx.x % 32; i < SIDE; i += 32)
        if (lo[i] <= hi[i]) low = lo[i] < low ? lo[i] : low, high = hi[i] > high ? hi[i] : high;
    for (int offset = 16; offset > 0; offset /= 2) {
        int l = __shfl_xor_sync(0xffffffffu, low, offset), h = __shfl_xor_sync(0xffffffffu, high, offset);
        low = l < low ? l : low;
        high = h > high ? h : high;
    }
    *lowest = low;
    *highest = high;
}

/* ---- dropout: whether a probability is kept is a function of (seed, epoch, op, sample, head, query, key) ---- */

struct attention_dropout {
    lk__random random;
    uint64_t   item;
};

template <typename T>
static __device__ __forceinline__ attention_dropout attention_dropout_of(const attention_view<T> &a, int64_t sample)
{
    attention_dropout drop = {};
    if (a.threshold) {
        drop.random = dropout_random(a.step, a.stream);
        sample += a.first_sample;
        drop.item = (uint64_t)(a.step->sample_ids ? a.step->sample_ids[sample] : sample);
    }
    return drop;
}

/* The factors, 0 or kept, of keys key … key + N - 1 of a query; they are among four that begin at a multiple of 4. */
template <int N, typename T>
static __device__ __forceinline__ void attention_factors(const attention_view<T> &a, const attention_dropout &drop,
                                                         int64_t head, int64_t query, int64_t key, WIDE(T) * factors)
{
    uint32_t bits[4];
    int64_t  at = a.each == a.heads ? head : head / a.each * a.whole_each + head % a.each; /* of the whole, from here */
    int64_t  row = at * a.whole_t + query + a.first_row;
    random4(drop.random, drop.item, (uint32_t)((row * ((a.s + 3) / 4 * 4) + key) / 4), bits);
#pragma unroll
    for (int i = 0; i < N; i++) factors[i] = bits[(key + i) % 4] >= a.threshold ? a.kept : (WIDE(T))0;
}

static __device__ __forceinline__ float  attention_exp(float x) { return expf(x); }
static __device__ __forceinline__ double attention_exp(double x) { return exp(x); }

/* ---- products of tiles ---- */

/* to[k][row] = from[row][k0 + k]: the transposed rows of a tile, zeros past `rows` and past d. */
template <typename T, typename W, int STRIDE>
static __device__ __forceinline__ void load_columns(W (&to)[ATTENTION_DEPTH][STRIDE], const T *from, int64_t row_stride,
                                                    int64_t rows, int64_t k0, int64_t d, bool aligned)
{
    enum { E = attention_tile<W>::R, ACROSS = ATTENTION_DEPTH / E }; /* elements a thread; threads a row */
    int      row = threadIdx.x / ACROSS, k = threadIdx.x % ACROSS * E;
    const T *p = from + row * row_stride + k0 + k;
    W        x[E];
    if (aligned && row < rows && k0 + k < d) {
        lk__pack<T, E> pack = load_pack<E>(p);
#pragma unroll
        for (int e = 0; e < E; e++) x[e] = load(&pack.at[e]);
    } else {
#pragma unroll
        for (int e = 0; e < E; e++) x[e] = row < rows && k0 + k + e < d ? load(p + e) : (W)0;
    }
#pragma unroll
    for (int e = 0; e < E; e++) to[k + e][row] = x[e];
}

/* to[row][column] = from[row][column], DEPTH rows and PART columns, zeros past `rows` and past `columns`. */
template <typename T, typename W, int STRIDE>
static __device__ __forceinline__ void load_rows(W (&to)[ATTENTION_DEPTH][STRIDE], const T *from, int64_t row_stride,
                                                 int64_t rows, int64_t columns, bool aligned)
{
    enum { E = attention_tile<W>::R, PART = STRIDE - E, ACROSS = PART / E };
#pragma unroll
    for (int i = threadIdx.x; i < ATTENTION_DEPTH * ACROSS; i += ATTENTION_THREADS) {
        int            row = i / ACROSS, column = i % ACROSS * E;
        const T       *p = from + row * row_stride + column;
        lk__pack<W, E> x;
        if (aligned && row < rows && column < columns) {
            lk__pack<T, E> pack = load_pack<E>(p);
#pragma unroll
            for (int e = 0; e < E; e++) x.at[e] = load(&pack.at[e]);
        } else {
#pragma unroll
            for (int e = 0; e < E; e++) x.at[e] = row < rows && column + e < columns ? load(p + e) : (W)0;
        }
        store_pack<E>(&to[row][column], x);
    }
}

/* scores[i][j] = row ty R + i of a times row tx R + j of b; rows past their number are zeros. */
template <typename T, typename W, int R, int STRIDE>
static __device__ __forceinline__ void multiply_rows(W (&scores)[R][R], W (&left)[ATTENTION_DEPTH][STRIDE],
                                                     W (&right)[ATTENTION_DEPTH][STRIDE], const T *a, int64_t a_row,
                                                     int64_t a_count, const T *b, int64_t b_row, int64_t b_count,
                                                     int64_t d, bool aligned)
{
    int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < R; j++) scores[i][j] = 0;
    for (int64_t k0 = 0; k0 < d; k0 += ATTENTION_DEPTH) {
        __syncthreads();
        load_columns(left, a, a_row, a_count, k0, d, aligned);
        load_columns(right, b, b_row, b_count, k0, d, aligned);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < ATTENTION_DEPTH; k++) {
            lk__pack<W, R> x = load_pack<R>(&left[k][ty * R]), y = load_pack<R>(&right[k][tx * R]);
#pragma unroll
            for (int i = 0; i < R; i++)
#pragma unroll
                for (int j = 0; j < R; j++) scores[i][j] += x.at[i] * y.at[j];
        }
    }
}

/* tile[column][row] = scores, so that products over columns read it as they read `left`. */
template <typename W, int R, int SIDE, int STRIDE>
static __device__ __forceinline__ void store_scores(W (&tile)[SIDE][STRIDE], const W (&scores)[R][R])
{
    int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
#pragma unroll
    for (int j = 0; j < R; j++) {
        lk__pack<W, R> x;
#pragma unroll
        for (int i = 0; i < R; i++) x.at[i] = scores[i][j];
        store_pack<R>(&tile[tx * R + j][ty * R], x);
    }
}

/* out (SIDE × PART, a thread's rows ty R …, columns n 16 R + tx R …) += tile' × the rows of b, of which `count` exist,
 * from column 0 of b on, of which `columns` exist. */
template <typename T, typename W, int R, int NP, int SIDE, int STRIDE, int WIDTH>
static __device__ __forceinline__ void add_product(W (&out)[R][NP * R], const W (&tile)[SIDE][STRIDE],
                                                   W (&rows)[ATTENTION_DEPTH][WIDTH], const T *b, int64_t b_row,
                                                   int64_t count, int64_t columns, bool aligned)
{
    int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    for (int k0 = 0; k0 < SIDE && k0 < count; k0 += ATTENTION_DEPTH) {
        __syncthreads();
        load_rows(rows, b + k0 * b_row, b_row, count - k0, columns, aligned);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < ATTENTION_DEPTH; k++) {
            lk__pack<W, R> x = load_pack<R>(&tile[k0 + k][ty * R]);
#pragma unroll
            for (int n = 0; n < NP; n++) {
                lk__pack<W, R> y = load_pack<R>(&rows[k][n * 16 * R + tx * R]);
#pragma unroll
                for (int i = 0; i < R; i++)
#pragma unroll
                    for (int j = 0; j < R; j++) out[i][n * R + j] += x.at[i] * y.at[j];
            }
        }
    }
}

/* Row ty R + i of out, where it is below `rows`: to[row][column] = out × factor. */
template <typename T, typename W, int R, int NP>
static __device__ __forceinline__ void store_row(T *to, const W (&out)[NP * R], W factor, int64_t columns)
{
    int tx = threadIdx.x % 16;
#pragma unroll
    for (int n = 0; n < NP; n++)
#pragma unroll
        for (int j = 0; j < R; j++)
            if (n * 16 * R + tx * R + j < columns) store(to + n * 16 * R + tx * R + j, out[n * R + j] * factor);
}

/* Columns of a head are divided into parts that a block's registers hold: heads up to 128 wide are one part, and what
 * is wider computes its scores once for each part. Runs the statements with PART. */
#define BY_PART(d, PART, ...) \
    if ((d) <= 64) {          \
        enum { PART = 64 };   \
        __VA_ARGS__           \
    } else {                  \
        enum { PART = 128 };  \
        __VA_ARGS__           \
    }

#endif
