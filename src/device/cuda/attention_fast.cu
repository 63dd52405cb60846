/* attention_fast.cu - attention in bf16 on tensor cores (FlashAttention-2's division of work; Dao 2023): a block has 128 queries, 32 of them
 * a warp; keys and values come in tiles of 64, the next one while this one is computed. Which keys a query sees is a range, so that all
 * masks are one comparison, left out for tiles that all of a warp's queries see whole. Arithmetic bounds it. */
#include "device/cuda/attention_fast.h"
#include "device/cuda/mma.h"

enum { QUERIES = 128, KEYS = 64, WARPS = 4, MT = 2, NT = KEYS / 8 };

/* A row of a warp's tile: what its softmax has seen. */
typedef struct seen_row {
    int   lo, hi;
    float most, total; /* of the scores before the scale; of this lane's columns */
} seen_row;

/* The scores of one row that this lane has become probabilities, not yet divided by their sum; returns the factor on what was summed
 * before. unit: the scale × log2 e. */
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

template <int D, bool DROPS>
static __global__ void __launch_bounds__(WARPS * 32, 2) attend_fast(attention_view<bf16> a, bf16 *y, float *lse)
{
    DYNAMIC_SHARED(bf16, shared);
    bf16          *queries = shared, *stages = queries + QUERIES * D; /* a stage: keys, values */
    __shared__ int lo[QUERIES], hi[QUERIES];
    int64_t        tiles = (a.t + QUERIES - 1) / QUERIES, rest = blockIdx.x;
    int64_t        query = (tiles - 1 - rest % tiles) * QUERIES; /* the longest rows of causal attention first */
    int64_t        head = (rest /= tiles) % a.heads, sample = rest / a.heads, group = head / (a.heads / a.groups);
    const bf16    *k = a.k + sample * a.s * a.k_row + group * D, *v = a.v + sample * a.s * a.k_row + group * D;
    int            lane = threadIdx.x % 32, first_row = threadIdx.x / 32 * MT * 16, lowest, highest, stage = 0;
    float          out[MT][D / 8][4] = {}, unit = a.scale * 1.44269504088896341f;
    seen_row       rows[MT][2];

    copy_tile<QUERIES, D>(queries, a.q + (sample * a.t + query) * a.q_row + head * D, a.q_row, a.t - query);
    tile_ranges(a, sample, query, lo, hi);
    __syncthreads();
    tile_bounds(lo, hi, &lowest, &highest);
    int any_lo = lo[first_row + lane], any_hi = hi[first_row + lane], all_lo = any_lo, all_hi = any_hi;
    if (any_lo > any_hi) any_lo = INT32_MAX, any_hi = -1;
    for (int offset = 16; offset > 0; offset /= 2) {
        any_lo = min(any_lo, __shfl_xor_sync(0xffffffffu, any_lo, offset));
        any_hi = max(any_hi, __shfl_xor_sync(0xffffffffu, any_hi, offset));
        all_lo = max(all_lo, __shfl_xor_sync(0xffffffffu, all_lo, offset));
        all_hi = min(all_hi, __shfl_xor_sync(0xffffffffu, all_hi, offset));
    }
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = first_row + m * 16 + half * 8 + lane / 4;
            rows[m][half] = seen_row{lo[r], hi[r], -INFINITY, 0};
        }
    attention_dropout drop = {};
    if (DROPS) drop = attention_dropout_of(a, sample);
    int key = lowest / KEYS * KEYS;
    if (key <= highest) {
        copy_tile<KEYS, D>(stages, k + key * a.k_row, a.k_row, a.s - key);
        copy_tile<KEYS, D>(stages + KEYS * D, v + key * a.k_row, a.k_row, a.s - key);
    }
    copies_commit();
    for (; key <= highest; key += KEYS, stage ^= 1) {
        bf16 *keys = stages + stage * 2 * KEYS * D, *next = stages + (stage ^ 1) * 2 * KEYS * D;
        int   after = key + KEYS;
        if (after <= highest) {
            copy_tile<KEYS, D>(next, k + after * a.k_row, a.k_row, a.s - after);
            copy_tile<KEYS, D>(next + KEYS * D, v + after * a.k_row, a.k_row, a.s - after);
        }
        copies_commit();
        copies_wait<1>();
        __syncthreads();
        if (key <= any_hi && key + KEYS > any_lo) {
            float s[MT][NT][4] = {};
            bool  masked = key < all_lo || key + KEYS - 1 > all_hi;
            multiply_rows<D>(s, queries, first_row, keys);
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    int   column = key + lane % 4 * 2;
                    float factor = soften_row(s[m], half, &rows[m][half], unit, column, masked);
#pragma unroll
                    for (int n = 0; n < D / 8; n++) out[m][n][half * 2] *= factor, out[m][n][half * 2 + 1] *= factor;
                    if (DROPS)
                        drop_row(s[m], half, a, drop, head, query + first_row + m * 16 + half * 8 + lane / 4, column);
                }
            add_product<D>(out, s, keys + KEYS * D);
        }
        __syncthreads();
    }
    copies_wait<0>();
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int64_t at = query + first_row + m * 16 + half * 8 + lane / 4;
            float   total = rows[m][half].total;
            total += __shfl_xor_sync(0xffffffffu, total, 1);
            total += __shfl_xor_sync(0xffffffffu, total, 2);
            bool none = !(total > 0) && total == total; /* no key; NaN stays */
            if (at >= a.t) continue;
            store_row<D>(y + ((sample * a.t + at) * a.heads + head) * D, out[m], half, none ? 0 : 1 / total);
            if (lse && lane % 4 == 0)
                lse[(sample * a.heads + head) * a.t + at] = none ? 0 : rows[m][half].most * a.scale + logf(total);
        }
}

template <int D, bool DROPS>
static lk_status launch_fast(const lk__kernel_call *call, const attention_view<bf16> &a, bf16 *y, float *lse)
{
    int         bytes = (QUERIES + 4 * KEYS) * D * (int)sizeof(bf16);
    cudaError_t error = cudaFuncSetAttribute(attend_fast<D, DROPS>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return lk__cuda_check(call->device, error, "shared memory of attention");
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
