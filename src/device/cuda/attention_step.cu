/* attention_step.cu - attention of a step of generation: one query a sample. Where all keys are one part, a block has a head; otherwise it
 * has the heads that share keys, and a part of these. It reads the keys and values of earlier steps, and the angles of rotations, before it
 * waits for the kernel that makes this step's; the row that this step adds is taken from there, and written into the cache. Latency bounds
 * it, then the bytes of keys and values.
 *
 * Lanes that read a key together keep the softmax of their keys, and are combined at the end: first those of a warp, then the warps. */
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
/* What sums relative to `most` are to be multiplied with where they are relative to `now`; without keys there are none. */
template <typename W> static __device__ __forceinline__ W change_of(W most, W now)
{
    return most == (W)-INFINITY ? (W)0 : attention_exp(most - now);
}

/* Adds `count` keys with these scores, of which those that are not there are -infinity. NaN is no maximum, but its probability is NaN. */
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

/* Shared memory: queries (H, d) and warps' sums (warps, H, lanes N) of W in one place, then the new key and value, d of T. */
template <typename T, int N, int H>
static __global__ void __launch_bounds__(STEP_THREADS, H == 1 ? 2 : 1)
    attend_step(attention_step<T> s, T *y, WIDE(T) * lse, WIDE(T) * sums, part_softmax<WIDE(T)> *softmax)
{
    typedef WIDE(T) W;
    DYNAMIC_SHARED(W, queries);
    __shared__ part_softmax<W> results[STEP_WARPS][H];
    const attention_view<T>   &a = s.a;
    int      d = (int)a.d, lanes = s.lanes, width = lanes * N, each = STEP_THREADS / lanes, heads = s.heads;
    W       *reduced = queries;
    T       *new_k = (T *)(queries + H * STEP_WARPS * width), *new_v = new_k + d;
    int      part = (int)blockIdx.x % s.parts, block = (int)blockIdx.x / s.parts, split = block % s.splits;
    int      group = block / s.splits % s.groups, sample = block / s.splits / s.groups;
    int      head = (group * s.splits + split) * heads; /* the first of the block */
    int      lane = threadIdx.x % lanes, warp = threadIdx.x / 32, lo, hi, row = s.rows[sample];
    int      k_row = (int)a.k_row;
    int64_t  first_row = sample * a.s * k_row + group * d; /* of the cache */
    const T *k = s.k_cache + first_row + lane * N, *v = s.v_cache + first_row + lane * N;
    attention_range(a, sample, 0, &lo, &hi);
    int begin = part * s.keys, end = begin + s.keys;
    begin = begin > lo ? begin : lo;
    end = end < hi + 1 ? end : hi + 1;
    int         first = begin + threadIdx.x / lanes, stop = lane * N < d ? end : begin;
    packs_ahead ks, vs;
    read_packs(&ks, k, k_row, first, each, stop, row);
    read_packs(&vs, v, k_row, first, each, stop, row);
    step_angle<W> angle = {};
    if ((int)threadIdx.x < (2 + heads) * d)
        angle = read_angle(s.row[row_of(threadIdx.x, d)], sample, d, (int)threadIdx.x % d);
    /* The next kernel's blocks start when those of the one before have ended: they are spread evenly then. */
    wait_for_earlier();
    begin_next();
    bool owns = row >= 0 && row < a.s && row / s.keys == part && split == 0; /* writes into the cache */
#pragma unroll 1
    for (int j = threadIdx.x; j < (2 + heads) * d; j += STEP_THREADS) {
        const step_row<T> &from = s.row[row_of(j, d)];
        int  i = j % d, of = j < 2 * d ? group : head + j / d - 2, all = j < 2 * d ? s.groups : (int)a.heads;
        bool first_block = part == 0 && (j >= 2 * d || split == 0);
        if (j >= STEP_THREADS) angle = read_angle(from, sample, d, i);
        T x = row_element(from, angle, sample, of, d, i);
        if (j >= 2 * d)
            queries[j - 2 * d] = load(&x);
        else
            new_k[j] = x; /* the value is behind it */
        if (owns && j < 2 * d) (j < d ? s.k_cache : s.v_cache)[first_row + (int64_t)row * k_row + i] = x;
        if (first_block && from.copy) from.copy[((int64_t)sample * all + of) * d + i] = x;
    }
    for (int j = heads * d + (int)threadIdx.x; j < H * d; j += STEP_THREADS) queries[j] = 0;
    __syncthreads();
    step_softmax<W, N> state[H];
#pragma unroll
    for (int h = 0; h < H; h++) state[h] = step_softmax<W, N>{(W)-INFINITY, 0, {}};
    for (int base = first; base - first < end - begin; base += each * STEP_KEYS) { /* as many rounds for all threads */
        unsigned there = 0;
        if (base != first) {
            read_packs(&ks, k, k_row, base, each, stop, row);
            read_packs(&vs, v, k_row, base, each, stop, row);
        }
        W scores[H][STEP_KEYS];
#pragma unroll
        for (int u = 0; u < STEP_KEYS; u++) {
            int key = base + u * each;
            if (key < stop && key == row) {
                ks.at[u] = load_bits(new_k + lane * N);
                vs.at[u] = load_bits(new_v + lane * N);
            }
            if (key < end) there |= 1u << u;
            float x[N];
            unpack(ks.at[u], x);
#pragma unroll
            for (int h = 0; h < H; h++) {
                W dot = 0;
#pragma unroll
                for (int e = 0; e < N; e++)
                    if (key < stop) dot += queries[h * d + lane * N + e] * x[e];
                for (int offset = lanes / 2; offset > 0; offset /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, offset);
                scores[h][u] = dot * a.scale;
            }
        }
#pragma unroll
        for (int h = 0; h < H; h++) add_keys<T, N>(&state[h], scores[h], vs, there);
    }
    __syncthreads(); /* queries were read */
#pragma unroll
    for (int h = 0; h < H; h++) {
        join_lanes(&state[h], lanes);
        if ((int)threadIdx.x % 32 < lanes)
#pragma unroll
            for (int e = 0; e < N; e++) reduced[(warp * H + h) * width + lane * N + e] = state[h].out[e];
        if (threadIdx.x % 32 == 0) results[warp][h] = part_softmax<W>{state[h].most, state[h].total};
    }
    __syncthreads();
    for (int i = threadIdx.x; i < heads * d; i += STEP_THREADS) {
        int     h = i / d, column = i % d;
        int64_t place = (int64_t)sample * a.heads + head + h;
        W       sum = 0, total = 0, most = (W)-INFINITY;
#pragma unroll
        for (int w = 0; w < STEP_WARPS; w++) most = results[w][h].most > most ? results[w][h].most : most;
#pragma unroll
        for (int w = 0; w < STEP_WARPS; w++) {
            W change = change_of(results[w][h].most, most);
            sum += reduced[(w * H + h) * width + column] * change;
            total += results[w][h].total * change;
        }
        if (s.parts > 1) {
            sums[(place * s.parts + part) * d + column] = sum;
            if (column == 0)
                softmax[place * s.parts + part] =
                    begin < end ? part_softmax<W>{most, total} : part_softmax<W>{(W)-INFINITY, (W)0};
            continue;
        }
        bool none = !(total > 0) && total == total; /* no key; NaN stays */
        store(y + place * d + column, none ? (W)0 : sum * (W)(1 / (double)total));
        if (lse && column == 0) lse[place] = none ? (W)0 : most + (W)log((double)total);
    }
    if (part == 0 && split == 0 && group == 0 && threadIdx.x == 0) report_ids(s, sample, row);
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
                 cuda_stream(call), s, y, lse, sums, softmax);
    if (s.parts > 1)
        LAUNCH_EARLY((combine_parts<T>), (unsigned)heads, 128, 0, cuda_stream(call), s.parts, s.a.d, sums, softmax, y,
                     lse);
}

template <typename T> static bool step_suits(const lk__cuda_attention_step *step)
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

bool lk__cuda_attention_step_suits(const lk__cuda_attention_step *step)
{
    switch (step->attention->in[0].dtype) {
    case LK_BF16: return step_suits<bf16>(step);
    case LK_F32: return step_suits<float>(step);
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
