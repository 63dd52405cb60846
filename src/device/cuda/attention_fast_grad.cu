/* attention_fast_grad.cu - the gradient of attention in bf16 on tensor cores, divided as the plain kernels'
 * (attention_grad.cu): a block for 128 queries adds dq over keys, another for 128 keys adds dk and dv over heads and
 * queries. Each warp has 16 rows; the other operand is loaded in tiles, the next one while the current one is computed.
 * Bound by seven products in total. */
#include "device/cuda/attention_fast.h"
#include "device/cuda/mma.h"

enum { ROWS = 128, WARPS = 8 };
/* Rows of the other side's tiles: sums of wide heads leave fewer registers. */
template <int D> struct other_side {
    enum { TILE = D == 64 ? 64 : 32, NT = TILE / 8 };
};

static __device__ __forceinline__ int warp_least(int x)
{
    for (int offset = 16; offset > 0; offset /= 2) x = min(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

/* A score and the gradient of its probability → the probability after dropout, and the gradient of the score. */
static __device__ __forceinline__ void differentiate_score(float *score, float *gradient, bool seen, float unit,
                                                           float lse, float delta, float scale, float factor)
{
    float p = seen ? power_of_two(*score * unit - lse) : 0; /* lse × log2 e */
    *gradient = seen ? p * (*gradient * factor - delta) * scale : 0;
    *score = p * factor;
}

static const float LOG2_E = 1.44269504088896341f;

template <int D, bool DROPS>
static __global__ void __launch_bounds__(WARPS * 32)
    differentiate_queries_fast(attention_view<bf16> a, attention_fast_gradients g)
{
    enum { TILE = other_side<D>::TILE, NT = other_side<D>::NT };
    DYNAMIC_SHARED(bf16, shared);
    bf16 *queries = shared, *douts = queries + ROWS * D, *stages = douts + ROWS * D; /* a stage: keys, values */
    __shared__ int lo[ROWS], hi[ROWS];
    int64_t        tiles = (a.t + ROWS - 1) / ROWS, rest = blockIdx.x;
    int64_t        query = (tiles - 1 - rest % tiles) * ROWS;
    int64_t        head = (rest /= tiles) % a.heads, sample = rest / a.heads, group = head / (a.heads / a.groups);
    int64_t        token = sample * a.t + query, row = a.heads * D, saved = (sample * a.heads + head) * a.t + query;
    const bf16    *k = a.k + sample * a.s * a.k_row + group * D, *v = a.v + sample * a.s * a.k_row + group * D;
    int            lane = threadIdx.x % 32, first_row = threadIdx.x / 32 * 16, lowest, highest, stage = 0;
    float          dq[1][D / 8][4] = {}, unit = a.scale * LOG2_E, lse[2], delta[2];
    int            row_lo[2], row_hi[2];

    copy_tile<ROWS, D>(queries, a.q + token * a.q_row + head * D, a.q_row, a.t - query);
    copy_tile<ROWS, D>(douts, g.dy + token * row + head * D, row, a.t - query);
    tile_ranges(a, sample, query, lo, hi);
    __syncthreads();
    tile_bounds(lo, hi, &lowest, &highest);
    int r = first_row + lane % 16, any_lo = lo[r], any_hi = hi[r], all_lo = -any_lo, all_hi = any_hi;
    if (any_lo > any_hi) any_lo = INT32_MAX, any_hi = -1;
    any_lo = warp_least(any_lo), any_hi = -warp_least(-any_hi);
    all_lo = -warp_least(all_lo), all_hi = warp_least(all_hi);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int  at = first_row + half * 8 + lane / 4;
        bool exists = query + at < a.t;
        lse[half] = exists ? g.lse[saved + at] * LOG2_E : 0;
        delta[half] = exists ? g.delta[saved + at] : 0;
        row_lo[half] = lo[at], row_hi[half] = hi[at];
    }
    attention_dropout drop = {};
    if (DROPS) drop = attention_dropout_of(a, sample);
    int key = lowest / TILE * TILE;
    if (key <= highest) {
        copy_tile<TILE, D>(stages, k + key * a.k_row, a.k_row, a.s - key);
        copy_tile<TILE, D>(stages + TILE * D, v + key * a.k_row, a.k_row, a.s - key);
    }
    copies_commit();
    for (; key <= highest; key += TILE, stage ^= 1) {
        bf16 *keys = stages + stage * 2 * TILE * D, *next = stages + (stage ^ 1) * 2 * TILE * D;
        int   after = key + TILE;
        if (after <= highest) {
            copy_tile<TILE, D>(next, k + after * a.k_row, a.k_row, a.s - after);
            copy_tile<TILE, D>(next + TILE * D, v + after * a.k_row, a.k_row, a.s - after);
        }
        copies_commit();
        copies_wait<1>();
        __syncthreads();
        if (key <= any_hi && key + TILE > any_lo) {
            float s[1][NT][4] = {}, ds[1][NT][4] = {};
            bool  masked = key < all_lo || key + TILE - 1 > all_hi;
            multiply_rows<D>(s, queries, first_row, keys);
            multiply_rows<D>(ds, douts, first_row, keys + TILE * D);
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int   half = i / 2, at = key + n * 8 + lane % 4 * 2 + i % 2;
                    float factor = 1;
                    if (DROPS)
                        attention_factors<1>(a, drop, head, query + first_row + half * 8 + lane / 4, at, &factor);
                    differentiate_score(&s[0][n][i], &ds[0][n][i],
                                        !masked || (at >= row_lo[half] && at <= row_hi[half]), unit, lse[half],
                                        delta[half], a.scale, factor);
                }
            add_product<D>(dq, ds, keys);
        }
        __syncthreads();
    }
    copies_wait<0>();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int at = first_row + half * 8 + lane / 4;
        if (query + at < a.t) store_row<D>(g.dq + (token + at) * a.q_row + head * D, dq[0], half, 1);
    }
}

/* What the tiles of queries have beside q and dy, in shared memory. */
template <int TILE> struct query_rows {
    int   lo[TILE], hi[TILE];
    float lse[TILE], delta[TILE]; /* lse × log2 e */
};

template <int TILE>
static __device__ __forceinline__ void read_query_rows(query_rows<TILE> *columns, const attention_view<bf16> &a,
                                                       const attention_fast_gradients &g, int64_t sample, int64_t head,
                                                       int64_t query)
{
    if (threadIdx.x >= TILE) return;
    int64_t at = query + threadIdx.x, saved = (sample * a.heads + head) * a.t + at;
    attention_range(a, sample, at, &columns->lo[threadIdx.x], &columns->hi[threadIdx.x]);
    columns->lse[threadIdx.x] = at < a.t ? g.lse[saved] * LOG2_E : 0;
    columns->delta[threadIdx.x] = at < a.t ? g.delta[saved] : 0;
}

/* Whether any of a tile's queries sees one of a warp's 16 keys, and whether all see all. */
struct tile_view {
    bool any, all;
};
template <int TILE>
static __device__ __forceinline__ tile_view view_keys(const query_rows<TILE> &columns, int first_key)
{
    int lowest, highest, all_lo = INT32_MIN, all_hi = INT32_MAX;
    tile_bounds(columns.lo, columns.hi, &lowest, &highest);
    for (int c = threadIdx.x % 32; c < TILE; c += 32)
        all_lo = max(all_lo, columns.lo[c]), all_hi = min(all_hi, columns.hi[c]);
    all_lo = -warp_least(-all_lo), all_hi = warp_least(all_hi);
    return tile_view{lowest < first_key + 16 && highest >= first_key, first_key >= all_lo && first_key + 15 <= all_hi};
}

/* The scores of a warp's keys (rows) and a tile's queries (columns) → probabilities and gradients of scores. */
template <int TILE, int NT, bool DROPS>
static __device__ __forceinline__ void differentiate_tile(float (&s)[NT][4], float (&ds)[NT][4],
                                                          const query_rows<TILE>     &columns,
                                                          const attention_view<bf16> &a, const attention_dropout &drop,
                                                          int64_t head, int64_t query, int first_key, bool masked)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int   c = n * 8 + lane % 4 * 2 + e % 2, at = first_key + e / 2 * 8 + lane / 4;
            float factor = 1;
            if (DROPS) attention_factors<1>(a, drop, head, query + c, at, &factor);
            differentiate_score(&s[n][e], &ds[n][e], !masked || (at >= columns.lo[c] && at <= columns.hi[c]),
                                a.scale * LOG2_E, columns.lse[c], columns.delta[c], a.scale, factor);
        }
}

/* The tiles of queries that may attend to a block's keys, as far as shapes say; head after head. */
struct query_tiles {
    int64_t begin, per_head, count;
};
template <int TILE>
static __device__ __forceinline__ query_tiles tiles_of_keys(const attention_view<bf16> &a, int64_t key, int64_t heads)
{
    int64_t begin = a.causal ? key / TILE * TILE : 0,
            end = a.window && key + ROWS + a.window - 1 < a.t ? key + ROWS + a.window - 1 : a.t;
    int64_t per_head = begin < end ? (end - begin + TILE - 1) / TILE : 0;
    return query_tiles{begin, per_head, per_head * heads};
}

/* Rows of the products are keys, columns are queries. */
template <int D, bool DROPS>
static __global__ void __launch_bounds__(WARPS * 32)
    differentiate_keys_fast(attention_view<bf16> a, attention_fast_gradients g)
{
    enum { TILE = other_side<D>::TILE, NT = other_side<D>::NT };
    DYNAMIC_SHARED(bf16, shared);
    bf16      *keys = shared, *values = keys + ROWS * D, *stages = values + ROWS * D; /* a stage: queries, dy */
    __shared__ query_rows<TILE> columns;
    int64_t                     tiles = (a.s + ROWS - 1) / ROWS, rest = blockIdx.x;
    int64_t                     key = rest % tiles * ROWS, group = (rest /= tiles) % a.groups, sample = rest / a.groups;
    int64_t                     each = a.heads / a.groups, row = a.heads * D, at_key = sample * a.s + key;
    int                         lane = threadIdx.x % 32, first_row = threadIdx.x / 32 * 16, stage = 0;
    float                       dk[1][D / 8][4] = {}, dv[1][D / 8][4] = {};
    const bf16 *q = a.q + sample * a.t * a.q_row + group * each * D, *dy = g.dy + sample * a.t * row + group * each * D;
    query_tiles work = tiles_of_keys<TILE>(a, key, each);

    copy_tile<ROWS, D>(keys, a.k + at_key * a.k_row + group * D, a.k_row, a.s - key);
    copy_tile<ROWS, D>(values, a.v + at_key * a.k_row + group * D, a.k_row, a.s - key);
    attention_dropout drop = {};
    if (DROPS) drop = attention_dropout_of(a, sample);
    if (work.count > 0) {
        copy_tile<TILE, D>(stages, q + work.begin * a.q_row, a.q_row, a.t - work.begin);
        copy_tile<TILE, D>(stages + TILE * D, dy + work.begin * row, row, a.t - work.begin);
    }
    copies_commit();
    for (int64_t i = 0; i < work.count; i++, stage ^= 1) {
        bf16   *queries = stages + stage * 2 * TILE * D, *next = stages + (stage ^ 1) * 2 * TILE * D;
        int64_t h = i / work.per_head, head = group * each + h, query = work.begin + (i - h * work.per_head) * TILE;
        if (i + 1 < work.count) {
            int64_t to = (i + 1) / work.per_head, after = work.begin + (i + 1 - to * work.per_head) * TILE;
            copy_tile<TILE, D>(next, q + after * a.q_row + to * D, a.q_row, a.t - after);
            copy_tile<TILE, D>(next + TILE * D, dy + after * row + to * D, row, a.t - after);
        }
        copies_commit();
        read_query_rows(&columns, a, g, sample, head, query);
        copies_wait<1>();
        __syncthreads();
        int       first_key = (int)key + first_row; /* of the warp */
        tile_view sees = view_keys(columns, first_key);
        if (sees.any) {
            float s[1][NT][4] = {}, ds[1][NT][4] = {};
            multiply_rows<D>(s, keys, first_row, queries);
            multiply_rows<D>(ds, values, first_row, queries + TILE * D);
            differentiate_tile<TILE, NT, DROPS>(s[0], ds[0], columns, a, drop, head, query, first_key, !sees.all);
            add_product<D>(dv, s, queries + TILE * D);
            add_product<D>(dk, ds, queries);
        }
        __syncthreads();
    }
    copies_wait<0>();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t at = first_row + half * 8 + lane / 4, to = (at_key + at) * a.k_row + group * D;
        if (key + at >= a.s) continue;
        if (g.dk) store_row<D>(g.dk + to, dk[0], half, 1);
        if (g.dv) store_row<D>(g.dv + to, dv[0], half, 1);
    }
}

template <int D, bool DROPS>
static lk_status launch_fast(const lk__kernel_call *call, const attention_view<bf16> &a,
                             const attention_fast_gradients &g)
{
    int         bytes = (2 * ROWS + 4 * other_side<D>::TILE) * D * (int)sizeof(bf16);
    cudaError_t error = cudaSuccess;
    if (g.dq) {
        error = cudaFuncSetAttribute(differentiate_queries_fast<D, DROPS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     bytes);
        if (error != cudaSuccess)
            return lk__cuda_check(call->device, error, "setting the shared memory of attention_grad");
        LAUNCH((differentiate_queries_fast<D, DROPS>), (unsigned)(a.batch * a.heads * cuda_tiles(a.t, ROWS)),
               WARPS * 32, bytes, cuda_stream(call), a, g);
    }
    if (g.dk || g.dv) {
        error =
            cudaFuncSetAttribute(differentiate_keys_fast<D, DROPS>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        if (error != cudaSuccess)
            return lk__cuda_check(call->device, error, "setting the shared memory of attention_grad");
        LAUNCH((differentiate_keys_fast<D, DROPS>), (unsigned)(a.batch * a.groups * cuda_tiles(a.s, ROWS)), WARPS * 32,
               bytes, cuda_stream(call), a, g);
    }
    return lk__cuda_launched(call);
}

lk_status lk__cuda_attention_fast_grad(const lk__kernel_call *call, const attention_view<bf16> &a,
                                       const attention_fast_gradients &g)
{
    if (a.d == 64) return a.threshold ? launch_fast<64, true>(call, a, g) : launch_fast<64, false>(call, a, g);
    return a.threshold ? launch_fast<128, true>(call, a, g) : launch_fast<128, false>(call, a, g);
}
