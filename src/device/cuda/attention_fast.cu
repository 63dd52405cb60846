/* attention_fast.cu - attention in bf16 on tensor cores (FlashAttention-2's division of work; Dao 2023): a block has
 * 128 queries, 32 for each warp; keys and values are loaded in tiles of 64, the next one while the current one is
 * computed. Which keys a query sees is a range, so that all masks are one comparison, left out for tiles that all of a
 * warp's queries see whole. Arithmetic bounds it. */
#include "device/cuda/attention_fast.h"
#include "device/cuda/mma.h"

enum { QUERIES = 128, KEYS = 64, WARPS = 4, MT = 2, NT = KEYS / 8 };

/* A row of a warp's tile: what its softmax has seen. */
typedef struct seen_row {
    int   lo, hi;
    float most, total; /* of the scores before the scale; of this lane's columns */
} seen_row;

/* The scores of one row that this lane has become probabilities, not yet divided by their sum; returns the factor on
 * what was summed before. unit: the scale × log2 e. */
static __device__ __forceinline__ float soften_row(float (&s)[NT][4], int half, seen_row *row, float unit, int key,
                                                   bool masked)
{
    float best = row->most, sum = 0;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int at = key + n * 8 + e;
            if (masked && (at < row->lo || at > row->hi)) s[n][half * 2 + e] = -INFINITY;
            best = fmaxf(best, s[n][half * 2 + e]);
        }
    best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
    best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
    float base = best == -INFINITY ? 0 : best * unit; /* of a row without keys so far */
    float factor = power_of_two(row->most * unit - base);
    row->most = best;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float p = power_of_two(s[n][half * 2 + e] * unit - base);
            s[n][half * 2 + e] = p;
            sum += p;
        }
    row->total = row->total * factor + sum;
    return factor;
}

static __device__ __forceinline__ void drop_row(float (&s)[NT][4], int half, const attention_view<bf16> &a,
                                                const attention_dropout &drop, int64_t head, int64_t query, int64_t key)
{
#pragma unroll
    for (int n = 0; n < NT; n++) {
        float factors[2];
        attention_factors<2>(a, drop, head, query, key + n * 8, factors);
        s[n][half * 2] *= factors[0];
        s[n][half * 2 + 1] *= factors[1];
    }
}

/* The keys that any, and that all of a warp's queries see. */
struct warp_range {
    int any_lo, any_hi, all_lo, all_hi;
};
static __device__ __forceinline__ warp_range range_of_warp(int lo, int hi)
{
    warp_range r = {lo, hi, lo, hi};
    if (lo > hi) r.any_lo = INT32_MAX, r.any_hi = -1;
    for (int offset = 16; offset > 0; offset /= 2) {
        r.any_lo = min(r.any_lo, __shfl_xor_sync(0xffffffffu, r.any_lo, offset));
        r.any_hi = max(r.any_hi, __shfl_xor_sync(0xffffffffu, r.any_hi, offset));
        r.all_lo = max(r.all_lo, __shfl_xor_sync(0xffffffffu, r.all_lo, offset));
        r.all_hi = min(r.all_hi, __shfl_xor_sync(0xffffffffu, r.all_hi, offset));
    }
    return r;
}

/* Where a warp's queries are. */
struct fast_place {
    int64_t sample, head, query; /* query: the block's first */
    int     lane, first_row;     /* first_row: the warp's, in the block */
};
/* The row of the block that this lane has as half `half` of tile m. */
static __device__ __forceinline__ int lane_row(const fast_place &at, int m, int half)
{
    return at.first_row + m * 16 + half * 8 + at.lane / 4;
}

/* The scores of a tile of keys from `key` on become probabilities; `out` is scaled to the new maxima. */
template <int D, bool DROPS>
static __device__ __forceinline__ void soften_tile(float (&s)[MT][NT][4], float (&out)[MT][D / 8][4],
                                                   seen_row (&rows)[MT][2], const attention_view<bf16> &a,
                                                   const attention_dropout &drop, const fast_place &at, int key,
                                                   bool masked)
{
    float unit = a.scale * 1.44269504088896341f;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int   column = key + at.lane % 4 * 2;
            float factor = soften_row(s[m], half, &rows[m][half], unit, column, masked);
#pragma unroll
            for (int n = 0; n < D / 8; n++) out[m][n][half * 2] *= factor, out[m][n][half * 2 + 1] *= factor;
            if (DROPS) drop_row(s[m], half, a, drop, at.head, at.query + lane_row(at, m, half), column);
        }
}

template <int D>
static __device__ __forceinline__ void write_rows(const float (&out)[MT][D / 8][4], const seen_row (&rows)[MT][2],
                                                  const attention_view<bf16> &a, const fast_place &at, bf16 *y,
                                                  float *lse)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int64_t query = at.query + lane_row(at, m, half);
            float   total = rows[m][half].total;
            total += __shfl_xor_sync(0xffffffffu, total, 1);
            total += __shfl_xor_sync(0xffffffffu, total, 2);
            bool none = !(total > 0) && total == total; /* no key; NaN stays */
            if (query >= a.t) continue;
            store_row<D>(y + ((at.sample * a.t + query) * a.heads + at.head) * D, out[m], half, none ? 0 : 1 / total);
            if (lse && at.lane % 4 == 0)
                lse[(at.sample * a.heads + at.head) * a.t + query] =
                    none ? 0 : rows[m][half].most * a.scale + logf(total);
        }
}

/* Starts to copy a tile of keys and their values to a stage. */
template <int D>
static __device__ __forceinline__ void copy_keys(bf16 *stage, const bf16 *k, const bf16 *v,
                                                 const attention_view<bf16> &a, int key)
{
    copy_tile<KEYS, D>(stage, k + key * a.k_row, a.k_row, a.s - key);
    copy_tile<KEYS, D>(stage + KEYS * D, v + key * a.k_row, a.k_row, a.s - key);
}

template <int D, bool DROPS>
static __global__ void __launch_bounds__(WARPS * 32, 2) attend_fast(attention_view<bf16> a, bf16 *y, float *lse)
{
    DYNAMIC_SHARED(bf16, shared);
    bf16          *queries = shared, *stages = queries + QUERIES * D; /* a stage: keys, values */
    __shared__ int lo[QUERIES], hi[QUERIES];
    int64_t        tiles = (a.t + QUERIES - 1) / QUERIES, rest = blockIdx.x;
    int64_t        query = (tiles - 1 - rest % tiles) * QUERIES; /* the longest rows of causal attention first */
    int64_t        head = (rest /= tiles) % a.heads, sample = rest / a.heads, group = head / (a.heads / a.groups);
    fast_place     at = {sample, head, query, (int)threadIdx.x % 32, (int)threadIdx.x / 32 * MT * 16};
    const bf16    *k = a.k + sample * a.s * a.k_row + group * D, *v = a.v + sample * a.s * a.k_row + group * D;
    int            lowest, highest, stage = 0;
    float          out[MT][D / 8][4] = {};
    seen_row       rows[MT][2];

    copy_tile<QUERIES, D>(queries, a.q + (sample * a.t + query) * a.q_row + head * D, a.q_row, a.t - query);
    tile_ranges(a, sample, query, lo, hi);
    __syncthreads();
    tile_bounds(lo, hi, &lowest, &highest);
    warp_range sees = range_of_warp(lo[at.first_row + at.lane], hi[at.first_row + at.lane]);
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = lane_row(at, m, half);
            rows[m][half] = seen_row{lo[r], hi[r], -INFINITY, 0};
        }
    attention_dropout drop = {};
    if (DROPS) drop = attention_dropout_of(a, sample);
    int key = lowest / KEYS * KEYS;
    if (key <= highest) copy_keys<D>(stages, k, v, a, key);
    copies_commit();
    for (; key <= highest; key += KEYS, stage ^= 1) {
        bf16 *keys = stages + stage * 2 * KEYS * D, *next = stages + (stage ^ 1) * 2 * KEYS * D;
        if (key + KEYS <= highest) copy_keys<D>(next, k, v, a, key + KEYS);
        copies_commit();
        copies_wait<1>();
        __syncthreads();
        if (key <= sees.any_hi && key + KEYS > sees.any_lo) {
            float s[MT][NT][4] = {};
            multiply_rows<D>(s, queries, at.first_row, keys);
            soften_tile<D, DROPS>(s, out, rows, a, drop, at, key, key < sees.all_lo || key + KEYS - 1 > sees.all_hi);
            add_product<D>(out, s, keys + KEYS * D);
        }
        __syncthreads();
    }
    copies_wait<0>();
    write_rows<D>(out, rows, a, at, y, lse);
}

template <int D, bool DROPS>
static lk_status launch_fast(const lk__kernel_call *call, const attention_view<bf16> &a, bf16 *y, float *lse)
{
    int         bytes = (QUERIES + 4 * KEYS) * D * (int)sizeof(bf16);
    cudaError_t error = cudaFuncSetAttribute(attend_fast<D, DROPS>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return lk__cuda_check(call->device, error, "setting the shared memory of attention");
    LAUNCH((attend_fast<D, DROPS>), (unsigned)(a.batch * a.heads * cuda_tiles(a.t, QUERIES)), WARPS * 32, bytes,
           cuda_stream(call), a, y, lse);
    return lk__cuda_launched(call);
}

lk_status lk__cuda_attention_fast(const lk__kernel_call *call, const attention_view<bf16> &a, bf16 *y, float *lse)
{
    if (a.d == 64)
        return a.threshold ? launch_fast<64, true>(call, a, y, lse) : launch_fast<64, false>(call, a, y, lse);
    return a.threshold ? launch_fast<128, true>(call, a, y, lse) : launch_fast<128, false>(call, a, y, lse);
}
