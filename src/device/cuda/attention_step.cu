/* attention_step.cu - attention of a step of generation: one query a sample. Where all keys are one part, a block has a
 * head; otherwise it has the heads that share keys, and a part of these. It reads the keys and values of earlier steps,
 * and the angles of rotations, before it waits for the kernel that computes those of this step; the row that this step
 * adds is taken from that kernel's result and written into the cache. Latency bounds it, then the bytes of keys and
 * values.
 *
 * Lanes that read a key together keep the softmax of their keys, and are combined at the end: first those of a warp,
 * then the warps. */
#include "device/cuda/attention_step.h"

#include "device/cuda/attention_parts.h"
#include "device/cuda/pack_bits.h"

enum { STEP_THREADS = 512, STEP_WARPS = STEP_THREADS / 32, STEP_KEYS = 4, WHOLE = 512, PART = 256 };

template <typename T> struct step_row {
    const T *data;
    int64_t  step, limit;
    const WIDE(T) * table;
    const int32_t *positions;
    T             *copy;
};

enum { KEY, VALUE, QUERY };
enum { MOST_HEADS = 4 }; /* of a block */

template <typename T> struct attention_step {
    attention_view<T>      a;
    step_row<T>            row[3]; /* KEY, VALUE, QUERY */
    T                     *k_cache, *v_cache;
    const int32_t         *rows;
    int                    keys, parts, lanes;    /* of a part; parts; lanes that read a key together */
    int                    heads, splits, groups; /* of a block; blocks of a group; groups */
    lk__kernel_invalid_id *invalid;
};

/* Of element i of a head, where the row is rotated. */
template <typename W> struct step_angle {
    W cosine, sine;
};
template <typename T>
static __device__ __forceinline__ step_angle<WIDE(T)> read_angle(const step_row<T> &row, int64_t sample, int d, int i)
{
    if (!row.table) return step_angle<WIDE(T)>{1, 0};
    int     half = d / 2;
    int64_t position = row.positions[sample];
    if (position < 0 || position >= row.limit) position = 0;
    const WIDE(T) *angle = row.table + position * d + (i < half ? i : i - half);
    return step_angle<WIDE(T)>{angle[0], angle[half]};
}

/* Element i of head `head` of the row of a sample, rotated where it is, and rounded as it is stored. */
template <typename T>
static __device__ __forceinline__ T row_element(const step_row<T> &row, const step_angle<WIDE(T)> &angle,
                                                int64_t sample, int64_t head, int d, int i)
{
    typedef WIDE(T) W;
    const T *x = row.data + sample * row.step + head * d;
    if (!row.table) return x[i];
    int half = d / 2, at = i < half ? i : i - half;
    W   u = load(x + at), v = load(x + at + half);
    T   y;
    store(&y, i < half ? u * angle.cosine - v * angle.sine : v * angle.cosine + u * angle.sine);
    return y;
}

/* Which row has element j of the new key, the new value and the queries, one after the other. */
static __device__ __forceinline__ int row_of(int j, int d) { return j < 2 * d ? j / d : (int)QUERY; }

/* A position without an angle, or a row that the cache does not have. */
template <typename T> static __device__ void report_ids(const attention_step<T> &s, int64_t sample, int row)
{
    const step_row<T> &turned = s.row[s.row[QUERY].table ? QUERY : KEY];
    const int32_t     *positions = turned.table ? turned.positions : NULL;
    int64_t            limit = turned.limit;
    if (positions && (positions[sample] < 0 || positions[sample] >= limit))
        report_invalid(s.invalid, LK__OP_rope, positions, s.a.batch, sample, limit);
    if (row >= s.a.s) report_invalid(s.invalid, LK__OP_cache_write, s.rows, s.a.batch, sample, s.a.s);
}

/* The keys or values of a lane, of earlier steps. */
struct packs_ahead {
    uint4 at[STEP_KEYS];
};
template <typename T>
static __device__ __forceinline__ void read_packs(packs_ahead *x, const T *cache, int k_row, int first, int each,
                                                  int end, int row)
{
#pragma unroll
    for (int u = 0; u < STEP_KEYS; u++) {
        int key = first + u * each;
        if (key < end && key != row) x->at[u] = load_bits(cache + (int64_t)key * k_row);
    }
}

/* The softmax of some keys, and the sums of their values, a pack of which is this lane's. */
template <typename W, int N> struct step_softmax {
    W most, total, out[N];
};
/* What sums relative to `most` are to be multiplied with where they are relative to `now`; without keys there are
 * none. */
template <typename W> static __device__ __forceinline__ W change_of(W most, W now)
{
    return most == (W)-INFINITY ? (W)0 : attention_exp(most - now);
}

/* Adds `count` keys with these scores, of which those that are not there are -infinity. NaN is no maximum, but its
 * probability is NaN. */
template <typename T, int N>
static __device__ __forceinline__ void add_keys(step_softmax<WIDE(T), N> *s, const WIDE(T) (&scores)[STEP_KEYS],
                                                const packs_ahead &values, unsigned there)
{
    typedef WIDE(T) W;
    W most = s->most;
#pragma unroll
    for (int u = 0; u < STEP_KEYS; u++)
        if (there >> u & 1) most = scores[u] > most ? scores[u] : most;
    W change = change_of(s->most, most);
    s->most = most;
    s->total *= change;
#pragma unroll
    for (int e = 0; e < N; e++) s->out[e] *= change;
#pragma unroll
    for (int u = 0; u < STEP_KEYS; u++) {
        if (!(there >> u & 1)) continue;
        W     weight = attention_exp(scores[u] - most);
        float value[N];
        s->total += weight;
        unpack(values.at[u], value);
#pragma unroll
        for (int e = 0; e < N; e++) s->out[e] += weight * value[e];
    }
}

/* Over the lanes of a warp that have the same pack. */
template <typename W, int N> static __device__ __forceinline__ void join_lanes(step_softmax<W, N> *s, int lanes)
{
    for (int offset = 16; offset >= lanes; offset /= 2) {
        W other = __shfl_xor_sync(0xffffffffu, s->most, offset), most = other > s->most ? other : s->most;
        W change = change_of(s->most, most);
        s->most = most;
        s->total *= change;
        s->total += __shfl_xor_sync(0xffffffffu, s->total, offset);
#pragma unroll
        for (int e = 0; e < N; e++) {
            s->out[e] *= change;
            s->out[e] += __shfl_xor_sync(0xffffffffu, s->out[e], offset);
        }
    }
}

/* What a thread of a block computes. */
template <typename T> struct step_place {
    int      part, split, group, sample, head; /* head: the first of the block */
    int      lane, row;                        /* lane: of those that read a key together; row: that this step adds */
    int      begin, end;                       /* keys of the block */
    int      first, stop, each;                /* keys of the thread, before `stop`, each so many */
    int64_t  first_row;                        /* of the cache, in elements */
    const T *k, *v;                            /* the lane's pack of the cache's first key and value */
};

template <int N, typename T> static __device__ __forceinline__ step_place<T> place_step(const attention_step<T> &s)
{
    const attention_view<T> &a = s.a;
    step_place<T>            p;
    int                      block = (int)blockIdx.x / s.parts, d = (int)a.d, lo, hi;
    p.part = (int)blockIdx.x % s.parts;
    p.split = block % s.splits;
    p.group = block / s.splits % s.groups;
    p.sample = block / s.splits / s.groups;
    p.head = (p.group * s.splits + p.split) * s.heads;
    p.lane = threadIdx.x % s.lanes;
    p.row = s.rows[p.sample];
    p.first_row = p.sample * a.s * (int)a.k_row + p.group * d;
    p.k = s.k_cache + p.first_row + p.lane * N;
    p.v = s.v_cache + p.first_row + p.lane * N;
    attention_range(a, p.sample, 0, &lo, &hi);
    p.begin = p.part * s.keys;
    p.end = p.begin + s.keys;
    p.begin = p.begin > lo ? p.begin : lo;
    p.end = p.end < hi + 1 ? p.end : hi + 1;
    p.first = p.begin + threadIdx.x / s.lanes;
    p.stop = p.lane * N < d ? p.end : p.begin;
    p.each = STEP_THREADS / s.lanes;
    return p;
}

/* The new key and value, and the queries, into shared memory, and where others read them. angle: of the thread's first
 * element. */
template <typename T>
static __device__ __forceinline__ void take_rows(const attention_step<T> &s, const step_place<T> &p,
                                                 step_angle<WIDE(T)> angle, WIDE(T) * queries, T *new_k)
{
    int  d = (int)s.a.d, row = p.row;
    bool owns = row >= 0 && row < s.a.s && row / s.keys == p.part && p.split == 0; /* writes into the cache */
#pragma unroll 1
    for (int j = threadIdx.x; j < (2 + s.heads) * d; j += STEP_THREADS) {
        const step_row<T> &from = s.row[row_of(j, d)];
        int  i = j % d, of = j < 2 * d ? p.group : p.head + j / d - 2, all = j < 2 * d ? s.groups : (int)s.a.heads;
        bool first_block = p.part == 0 && (j >= 2 * d || p.split == 0);
        if (j >= STEP_THREADS) angle = read_angle(from, p.sample, d, i);
        T x = row_element(from, angle, p.sample, of, d, i);
        if (j >= 2 * d)
            queries[j - 2 * d] = load(&x);
        else
            new_k[j] = x; /* the value is behind it */
        if (owns && j < 2 * d) (j < d ? s.k_cache : s.v_cache)[p.first_row + (int64_t)row * (int)s.a.k_row + i] = x;
        if (first_block && from.copy) from.copy[((int64_t)p.sample * all + of) * d + i] = x;
    }
}

/* The product of a head's query and a key, over the lanes that read it together. */
template <typename W, int N>
static __device__ __forceinline__ W multiply_key(const W *query, const float (&x)[N], bool reads, int lanes)
{
    W dot = 0;
#pragma unroll
    for (int e = 0; e < N; e++)
        if (reads) dot += query[e] * x[e];
    for (int offset = lanes / 2; offset > 0; offset /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, offset);
    return dot;
}

/* Adds all keys of the thread to the heads' softmax; the first ones, ks and vs, are there already. */
template <typename T, int N, int H>
static __device__ __forceinline__ void add_all_keys(step_softmax<WIDE(T), N> (&state)[H], const attention_step<T> &s,
                                                    const step_place<T> &p, const WIDE(T) * queries, const T *new_k,
                                                    packs_ahead &ks, packs_ahead &vs)
{
    typedef WIDE(T) W;
    int d = (int)s.a.d, k_row = (int)s.a.k_row, first = p.first, each = p.each, lane = p.lane;
    for (int base = first; base - first < p.end - p.begin;
         base += each * STEP_KEYS) { /* as many rounds for all threads */
        unsigned there = 0;
        if (base != first) {
            read_packs(&ks, p.k, k_row, base, each, p.stop, p.row);
            read_packs(&vs, p.v, k_row, base, each, p.stop, p.row);
        }
        W scores[H][STEP_KEYS];
#pragma unroll
        for (int u = 0; u < STEP_KEYS; u++) {
            int key = base + u * each;
            if (key < p.stop && key == p.row) {
                ks.at[u] = load_bits(new_k + lane * N);
                vs.at[u] = load_bits(new_k + d + lane * N);
            }
            if (key < p.end) there |= 1u << u;
            float x[N];
            unpack(ks.at[u], x);
#pragma unroll
            for (int h = 0; h < H; h++)
                scores[h][u] = multiply_key<W, N>(queries + h * d + lane * N, x, key < p.stop, s.lanes) * s.a.scale;
        }
#pragma unroll
        for (int h = 0; h < H; h++) add_keys<T, N>(&state[h], scores[h], vs, there);
    }
}

/* The softmax of a head over the warps, and its sums of column `column`. */
template <typename W> struct joined_column {
    W most, total, sum;
};
template <typename W, int H>
static __device__ __forceinline__ joined_column<W> join_warps(const part_softmax<W> (&results)[STEP_WARPS][H],
                                                              const W *reduced, int width, int h, int column)
{
    joined_column<W> all = {(W)-INFINITY, 0, 0};
#pragma unroll
    for (int w = 0; w < STEP_WARPS; w++) all.most = results[w][h].most > all.most ? results[w][h].most : all.most;
#pragma unroll
    for (int w = 0; w < STEP_WARPS; w++) {
        W change = change_of(results[w][h].most, all.most);
        all.sum += reduced[(w * H + h) * width + column] * change;
        all.total += results[w][h].total * change;
    }
    return all;
}

/* Where a step's attention is written: y and lse, or sums and softmax of parts that are combined later. */
template <typename T> struct step_result {
    T *y;
    WIDE(T) * lse, *sums;
    part_softmax<WIDE(T)> *softmax;
};
template <typename T>
static __device__ __forceinline__ void write_column(const step_result<T> &to, const attention_step<T> &s,
                                                    const step_place<T> &p, int64_t place, int column,
                                                    const joined_column<WIDE(T)> &all)
{
    typedef WIDE(T) W;
    if (s.parts > 1) {
        to.sums[(place * s.parts + p.part) * (int)s.a.d + column] = all.sum;
        if (column == 0)
            to.softmax[place * s.parts + p.part] =
                p.begin < p.end ? part_softmax<W>{all.most, all.total} : part_softmax<W>{(W)-INFINITY, (W)0};
        return;
    }
    bool none = !(all.total > 0) && all.total == all.total; /* no key; NaN stays */
    store(to.y + place * (int)s.a.d + column, none ? (W)0 : all.sum * (W)(1 / (double)all.total));
    if (to.lse && column == 0) to.lse[place] = none ? (W)0 : all.most + (W)log((double)all.total);
}

/* Shared memory: queries (H, d) and warps' sums (warps, H, lanes N) of W in one place, then the new key and value, d of
 * T. */
template <typename T, int N, int H>
static __global__ void __launch_bounds__(STEP_THREADS, H == 1 ? 2 : 1)
    attend_step(attention_step<T> s, step_result<T> to)
{
    typedef WIDE(T) W;
    DYNAMIC_SHARED(W, queries);
    __shared__ part_softmax<W> results[STEP_WARPS][H];
    step_place<T>              p = place_step<N>(s);
    int                        d = (int)s.a.d, width = s.lanes * N, warp = threadIdx.x / 32;
    W                         *reduced = queries;
    T                         *new_k = (T *)(queries + H * STEP_WARPS * width);
    packs_ahead                ks, vs;
    read_packs(&ks, p.k, (int)s.a.k_row, p.first, p.each, p.stop, p.row);
    read_packs(&vs, p.v, (int)s.a.k_row, p.first, p.each, p.stop, p.row);
    step_angle<W> angle = {};
    if ((int)threadIdx.x < (2 + s.heads) * d)
        angle = read_angle(s.row[row_of(threadIdx.x, d)], p.sample, d, (int)threadIdx.x % d);
    /* The next kernel's blocks start when those of the one before have ended: they are spread evenly then. */
    wait_for_earlier();
    begin_next();
    take_rows(s, p, angle, queries, new_k);
    for (int j = s.heads * d + (int)threadIdx.x; j < H * d; j += STEP_THREADS) queries[j] = 0;
    __syncthreads();
    step_softmax<W, N> state[H];
#pragma unroll
    for (int h = 0; h < H; h++) state[h] = step_softmax<W, N>{(W)-INFINITY, 0, {}};
    add_all_keys<T, N, H>(state, s, p, queries, new_k, ks, vs);
    __syncthreads(); /* queries were read */
#pragma unroll
    for (int h = 0; h < H; h++) {
        join_lanes(&state[h], s.lanes);
        if ((int)threadIdx.x % 32 < s.lanes)
#pragma unroll
            for (int e = 0; e < N; e++) reduced[(warp * H + h) * width + p.lane * N + e] = state[h].out[e];
        if (threadIdx.x % 32 == 0) results[warp][h] = part_softmax<W>{state[h].most, state[h].total};
    }
    __syncthreads();
    for (int i = threadIdx.x; i < s.heads * d; i += STEP_THREADS)
        write_column(to, s, p, (int64_t)p.sample * s.a.heads + p.head + i / d, i % d,
                     join_warps<W, H>(results, reduced, width, i / d, i % d));
    if (p.part == 0 && p.split == 0 && p.group == 0 && threadIdx.x == 0) report_ids(s, p.sample, p.row);
}

/* ---- launching ---- */

static int step_keys(int64_t s)
{
    int64_t keys = s <= WHOLE ? cuda_tiles(s, 64) * 64 : part_keys(s) > PART ? part_keys(s) : (int64_t)PART;
    return (int)keys;
}

static int lanes_for(int64_t packs)
{
    int lanes = 1;
    while (lanes < packs) lanes *= 2;
    return lanes;
}

template <int H, typename T> static size_t shared_bytes(const attention_step<T> &s)
{
    typedef WIDE(T) W;
    size_t width = (size_t)s.lanes * PACK(T);
    return H * STEP_WARPS * width * sizeof(W) + 2 * (size_t)s.a.d * sizeof(T);
}

template <typename T> static step_row<T> describe_row(const lk__cuda_step_row *row)
{
    return step_row<T>{(const T *)row->data,        row->step,      row->limit,
                       (const WIDE(T) *)row->table, row->positions, (T *)row->copy};
}

template <typename T> static attention_step<T> describe_step(const lk__cuda_attention_step *step)
{
    attention_step<T> s = {};
    s.a = attention_describe<T>(step->attention, 0, 3);
    s.row[QUERY] = describe_row<T>(&step->q);
    s.row[KEY] = describe_row<T>(&step->k);
    s.row[VALUE] = describe_row<T>(&step->v);
    s.k_cache = (T *)step->k_cache;
    s.v_cache = (T *)step->v_cache;
    s.rows = step->rows;
    s.keys = step_keys(s.a.s);
    s.parts = (int)cuda_tiles(s.a.s, s.keys);
    s.lanes = lanes_for(s.a.d / PACK(T));
    int each = s.a.groups ? (int)(s.a.heads / s.a.groups) : 0;
    s.heads = 1; /* few keys are read once for each head */
    for (int h = 2; h <= MOST_HEADS && s.parts > 1; h++)
        if (each % h == 0) s.heads = h;
    s.splits = each / s.heads;
    s.groups = (int)s.a.groups;
    s.invalid = step->attention->invalid;
    return s;
}

template <typename T, int H> static void launch_step(const lk__kernel_call *call, const attention_step<T> &s)
{
    typedef WIDE(T) W;
    T               *y = out_data<T>(call, 0);
    W               *lse = out_data<W>(call, 1), *sums = (W *)call->workspace;
    int64_t          heads = s.a.batch * s.a.heads;
    size_t           bytes = lk__round_up((size_t)(heads * s.parts * s.a.d) * sizeof(W), 256);
    part_softmax<W> *softmax = (part_softmax<W> *)((char *)sums + bytes);
    lk__prefer_shared(attend_step<T, PACK(T), H>);
    LAUNCH_EARLY((attend_step<T, PACK(T), H>), (unsigned)(heads / s.heads * s.parts), STEP_THREADS, shared_bytes<H>(s),
                 cuda_stream(call), s, (step_result<T>{y, lse, sums, softmax}));
    if (s.parts > 1)
        LAUNCH_EARLY((combine_parts<T>), (unsigned)heads, 128, 0, cuda_stream(call), s.parts, s.a.d, sums, softmax, y,
                     lse);
}

template <typename T> static bool step_supports(const lk__cuda_attention_step *step)
{
    attention_step<T> s = describe_step<T>(step);
    int64_t           each = s.a.groups ? s.a.heads / s.a.groups : 0, n = PACK(T);
    if (s.a.t != 1 || each < 1 || each > 8 || s.a.d % n || s.a.d / n > 32 || s.a.threshold || s.a.causal || s.a.window)
        return false;
    if ((s.row[KEY].table || s.row[VALUE].table || s.row[QUERY].table) && s.a.d % 2) return false;
    size_t bytes = s.heads == 1 ? shared_bytes<1>(s) : shared_bytes<MOST_HEADS>(s);
    return bytes <= 48 << 10 && (uintptr_t)s.k_cache % 16 == 0 && (uintptr_t)s.v_cache % 16 == 0 &&
           s.parts <= MOST_PARTS;
}

bool lk__cuda_attention_step_supports(const lk__cuda_attention_step *step)
{
    switch (step->attention->in[0].dtype) {
    case LK_BF16: return step_supports<bf16>(step);
    case LK_F32: return step_supports<float>(step);
    default: return false;
    }
}

template <typename T> static void run_step(const lk__cuda_attention_step *step)
{
    attention_step<T> s = describe_step<T>(step);
    if (s.heads == 1)
        launch_step<T, 1>(step->attention, s);
    else
        launch_step<T, MOST_HEADS>(step->attention, s);
}

lk_status lk__cuda_run_attention_step(const lk__cuda_attention_step *step)
{
    if (step->attention->in[0].dtype == LK_BF16)
        run_step<bf16>(step);
    else
        run_step<float>(step);
    return lk__cuda_launched(step->attention);
}
