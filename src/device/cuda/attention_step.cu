/* attention_step.cu - attention of a step of generation: one query a sample. A block has a group of heads that share keys, and up to 512
 * keys of it. It reads the keys and values of earlier steps before it waits for the kernel that makes this step's; the row that this
 * step adds is taken from there, and written into the cache. Latency bounds it, then the bytes of keys and values. */
#include "device/cuda/attention_step.h"

#include "device/cuda/attention_parts.h"

enum { STEP_THREADS = 512, STEP_WARPS = STEP_THREADS / 32, STEP_KEYS = 4, WHOLE = 512, PART = 256 };

template <typename T> struct step_row {
    const T *data;
    int64_t  step, limit;
    const WIDE(T) * table;
    const int32_t *positions;
    T             *copy;
};

template <typename T> struct attention_step {
    attention_view<T>      a;
    step_row<T>            q, k, v;
    T                     *k_cache, *v_cache;
    const int32_t         *rows;
    int                    keys, parts, lanes; /* of a part; parts; lanes that read a key together */
    lk__kernel_invalid_id *invalid;
};

/* Element i of head `head` of the row of a sample, rotated where it is, and rounded as it is stored. */
template <typename T>
static __device__ __forceinline__ T row_element(const step_row<T> &row, int64_t sample, int64_t head, int d, int i)
{
    typedef WIDE(T) W;
    const T *x = row.data + sample * row.step + head * d;
    if (!row.table) return x[i];
    int     half = d / 2, at = i < half ? i : i - half;
    int64_t position = row.positions[sample];
    if (position < 0 || position >= row.limit) position = 0;
    const WIDE(T) *angle = row.table + position * d + at;
    W u = load(x + at), v = load(x + at + half), cosine = angle[0], sine = angle[half];
    T y;
    store(&y, i < half ? u * cosine - v * sine : v * cosine + u * sine);
    return y;
}

/* A position without an angle, or a row that the cache does not have. */
template <typename T> static __device__ void report_ids(const attention_step<T> &s, int64_t sample, int row)
{
    const int32_t *positions = s.q.table ? s.q.positions : s.k.table ? s.k.positions : NULL;
    int64_t        limit = s.q.table ? s.q.limit : s.k.limit;
    if (positions && (positions[sample] < 0 || positions[sample] >= limit))
        report_invalid(s.invalid, LK__OP_rope, positions, s.a.batch, sample, limit);
    if (row >= s.a.s) report_invalid(s.invalid, LK__OP_cache_write, s.rows, s.a.batch, sample, s.a.s);
}

/* The keys or values of a lane, of earlier steps. */
template <typename T, int N> struct packs_ahead {
    lk__pack<T, N> at[STEP_KEYS];
};
template <typename T, int N>
static __device__ __forceinline__ void read_packs(packs_ahead<T, N> *x, const T *cache, int64_t k_row, int first,
                                                  int each, int end, int row)
{
#pragma unroll
    for (int u = 0; u < STEP_KEYS; u++) {
        int key = first + u * each;
        if (key < end && key != row) x->at[u] = load_pack<N>(cache + key * k_row);
    }
}

/* Shared memory: queries (H, d) and reduced (warps, H, lanes N) of W in one place, scores (H, keys), then the new key and value, d of T. */
template <typename T, int N, int H>
static __global__ void __launch_bounds__(STEP_THREADS)
    attend_step(attention_step<T> s, T *y, WIDE(T) * lse, WIDE(T) * sums, part_softmax<WIDE(T)> *softmax)
{
    typedef WIDE(T) W;
    DYNAMIC_SHARED(W, shared);
    __shared__ part_softmax<W> results[H];
    const attention_view<T>   &a = s.a;
    int d = (int)a.d, lanes = s.lanes, width = lanes * N, each = STEP_THREADS / lanes, heads = (int)(a.heads / a.groups);
    W  *scores = shared, *queries = scores + H * s.keys, *reduced = queries;
    T  *new_k = (T *)(queries + H * STEP_WARPS * width), *new_v = new_k + d;
    int64_t part = blockIdx.x % s.parts, group = blockIdx.x / s.parts % a.groups,
            sample = blockIdx.x / s.parts / a.groups;
    int      lane = threadIdx.x % lanes, warp = threadIdx.x / 32, lo, hi, row = s.rows[sample];
    int64_t  first_row = (sample * a.s * a.k_row) + group * d; /* of the cache */
    const T *k = s.k_cache + first_row + lane * N, *v = s.v_cache + first_row + lane * N;
    attention_range(a, sample, 0, &lo, &hi);
    int begin = (int)part * s.keys, end = begin + s.keys;
    begin = begin > lo ? begin : lo;
    end = end < hi + 1 ? end : hi + 1;
    int               first = begin + threadIdx.x / lanes, stop = lane * N < d ? end : begin;
    packs_ahead<T, N> ks, vs;
    read_packs(&ks, k, a.k_row, first, each, stop, row);
    read_packs(&vs, v, a.k_row, first, each, stop, row);
    await_previous();
    /* This step's row */
    bool owns = row >= 0 && row < a.s && row / s.keys == part;
    if (part == 0 && group == 0 && threadIdx.x == 0) report_ids(s, sample, row);
    for (int i = threadIdx.x; i < d; i += STEP_THREADS) {
        new_k[i] = row_element(s.k, sample, group, d, i);
        new_v[i] = row_element(s.v, sample, group, d, i);
        if (owns) {
            s.k_cache[first_row + row * a.k_row + i] = new_k[i];
            s.v_cache[first_row + row * a.k_row + i] = new_v[i];
        }
        if (part == 0 && s.k.copy) s.k.copy[(sample * a.groups + group) * d + i] = new_k[i];
        if (part == 0 && s.v.copy) s.v.copy[(sample * a.groups + group) * d + i] = new_v[i];
    }
    for (int i = threadIdx.x; i < H * d; i += STEP_THREADS) {
        int h = i / d;
        T   x = row_element(s.q, sample, group * heads + (h < heads ? h : 0), d, i % d);
        queries[i] = load(&x);
        if (part == 0 && s.q.copy && h < heads) s.q.copy[(sample * a.heads + group * heads + h) * d + i % d] = x;
    }
    __syncthreads();
    /* Scores */
    for (int base = first; base - first < end - begin; base += each * STEP_KEYS) { /* as many rounds for all threads */
        if (base != first) read_packs(&ks, k, a.k_row, base, each, stop, row);
#pragma unroll
        for (int u = 0; u < STEP_KEYS; u++) {
            int key = base + u * each;
            W   dots[H] = {};
            if (key < stop) {
                lk__pack<T, N> x = key == row ? load_pack<N>(new_k + lane * N) : ks.at[u];
#pragma unroll
                for (int h = 0; h < H; h++)
#pragma unroll
                    for (int e = 0; e < N; e++) dots[h] += queries[h * d + lane * N + e] * load(&x.at[e]);
            }
#pragma unroll
            for (int h = 0; h < H; h++) {
                for (int offset = lanes / 2; offset > 0; offset /= 2)
                    dots[h] += __shfl_xor_sync(0xffffffffu, dots[h], offset);
                if (lane == 0 && key < end) scores[h * s.keys + key - begin] = dots[h] * a.scale;
            }
        }
    }
    __syncthreads();
    /* A warp a head: probabilities, not yet divided by their sum */
    if (warp < H) {
        W most = (W)-INFINITY, total = 0, *own = scores + warp * s.keys;
        for (int i = threadIdx.x % 32; i < end - begin; i += 32) most = own[i] > most ? own[i] : most;
        most = warp_max(most);
        for (int i = threadIdx.x % 32; i < end - begin; i += 32) total += own[i] = attention_exp(own[i] - most);
        total = warp_sum(total);
        if (threadIdx.x % 32 == 0) results[warp] = part_softmax<W>{most, total};
    }
    __syncthreads();
    /* Values */
    W out[H][N] = {};
    for (int base = first; base < stop; base += each * STEP_KEYS) {
        if (base != first) read_packs(&vs, v, a.k_row, base, each, stop, row);
#pragma unroll
        for (int u = 0; u < STEP_KEYS; u++) {
            int key = base + u * each;
            if (key >= stop) continue;
            lk__pack<T, N> x = key == row ? load_pack<N>(new_v + lane * N) : vs.at[u];
#pragma unroll
            for (int h = 0; h < H; h++)
#pragma unroll
                for (int e = 0; e < N; e++) out[h][e] += scores[h * s.keys + key - begin] * load(&x.at[e]);
        }
    }
#pragma unroll
    for (int h = 0; h < H; h++)
#pragma unroll
        for (int e = 0; e < N; e++) {
            for (int offset = 16; offset >= lanes; offset /= 2)
                out[h][e] += __shfl_xor_sync(0xffffffffu, out[h][e], offset);
            if ((int)threadIdx.x % 32 < lanes) reduced[(warp * H + h) * width + lane * N + e] = out[h][e];
        }
    __syncthreads();
    for (int i = threadIdx.x; i < heads * d; i += STEP_THREADS) {
        int     h = i / d, column = i % d;
        int64_t head = sample * a.heads + group * heads + h;
        W       sum = 0;
#pragma unroll
        for (int w = 0; w < STEP_WARPS; w++) sum += reduced[(w * H + h) * width + column];
        W total = begin < end ? results[h].total : (W)0, most = results[h].most;
        if (s.parts > 1) {
            sums[(head * s.parts + part) * d + column] = sum;
            if (column == 0)
                softmax[head * s.parts + part] =
                    begin < end ? part_softmax<W>{most, total} : part_softmax<W>{(W)-INFINITY, (W)0};
            continue;
        }
        bool none = !(total > 0) && total == total; /* no key; NaN stays */
        store(y + head * d + column, none ? (W)0 : sum * (W)(1 / (double)total));
        if (lse && column == 0) lse[head] = none ? (W)0 : most + (W)log((double)total);
    }
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
    return H * ((size_t)s.keys + STEP_WARPS * width) * sizeof(W) + 2 * (size_t)s.a.d * sizeof(T);
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
    s.q = describe_row<T>(&step->q);
    s.k = describe_row<T>(&step->k);
    s.v = describe_row<T>(&step->v);
    s.k_cache = (T *)step->k_cache;
    s.v_cache = (T *)step->v_cache;
    s.rows = step->rows;
    s.keys = step_keys(s.a.s);
    s.parts = (int)cuda_tiles(s.a.s, s.keys);
    s.lanes = lanes_for(s.a.d / PACK(T));
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
    LAUNCH_EARLY((attend_step<T, PACK(T), H>), (unsigned)(s.a.batch * s.a.groups * s.parts), STEP_THREADS,
                 shared_bytes<H>(s), cuda_stream(call), s, y, lse, sums, softmax);
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
    if ((s.q.table || s.k.table || s.v.table) && s.a.d % 2) return false;
    size_t bytes = each == 1 ? shared_bytes<1>(s) : each <= 4 ? shared_bytes<4>(s) : shared_bytes<8>(s);
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
    int64_t           each = s.a.heads / s.a.groups;
    if (each == 1)
        launch_step<T, 1>(step->attention, s);
    else if (each <= 4)
        launch_step<T, 4>(step->attention, s);
    else
        launch_step<T, 8>(step->attention, s);
}

lk_status lk__cuda_run_attention_step(const lk__cuda_attention_step *step)
{
    if (step->attention->in[0].dtype == LK_BF16)
        run_step<bf16>(step);
    else
        run_step<float>(step);
    return lk__cuda_launched(step->attention);
}
