/* rope.cu - rotary position embedding (Su et al. 2021), which pairs the elements of a head's two halves, as Hugging
 * Face's rotate_half does. Bound by memory: a thread reads and writes 16 bytes of each half at once where the width of
 * a head allows it. The table stays in the second-level cache. */
#include "device/cuda/cuda.h"

template <typename T> struct rotation {
    const T               *x;
    T                     *y;
    const WIDE(T)         *table; /* (limit, 2 half): cosines, then sines */
    const int32_t         *positions;
    int64_t                tokens, t, heads, half, limit;
    WIDE(T)                sign;
    lk__kernel_invalid_id *invalid;
};

/* Four angles' cosines or sines at once where a pack has as many. */
template <int N, typename W> static __device__ __forceinline__ void load_angles(const W *from, W (&to)[N])
{
    constexpr int each = N % 4 == 0 && sizeof(W) == 4 ? 4 : 1;
#pragma unroll
    for (int k = 0; k < N; k += each) {
        lk__pack<W, each> x = load_pack<each>(from + k);
#pragma unroll
        for (int e = 0; e < each; e++) to[k + e] = x.at[e];
    }
}

/* N neighbouring pairs a thread. A row of threads (y) has a token, so divisions are of 32 bits and few. */
template <typename T, int N> static __global__ void rotate_pairs(rotation<T> r)
{
    unsigned packs = (unsigned)(r.half / N), each = (unsigned)r.heads * packs;
    for (int64_t token = (int64_t)blockIdx.x * blockDim.y + threadIdx.y; token < r.tokens;
         token += (int64_t)gridDim.x * blockDim.y) {
        int64_t position = r.positions ? r.positions[token] : (int64_t)((uint64_t)token % (uint64_t)r.t);
        if (position < 0 || position >= r.limit) {
            if (threadIdx.x == 0) report_invalid(r.invalid, LK__OP_rope, r.positions, r.tokens, token, r.limit);
            position = 0;
        }
        for (unsigned i = threadIdx.x; i < each; i += blockDim.x) {
            unsigned       head = i / packs, at = (i - head * packs) * N;
            const WIDE(T) *cosine = r.table + position * 2 * r.half + at;
            int64_t        first = (token * r.heads + head) * 2 * r.half + at;
            lk__pack<T, N> a = load_pack<N>(r.x + first), b = load_pack<N>(r.x + first + r.half), to_a, to_b;
            WIDE(T)        c[N], s[N];
            load_angles<N>(cosine, c);
            load_angles<N>(cosine + r.half, s);
#pragma unroll
            for (int k = 0; k < N; k++) {
                WIDE(T) u = load(&a.at[k]), v = load(&b.at[k]), sine = s[k] * r.sign;
                store(&to_a.at[k], u * c[k] - v * sine);
                store(&to_b.at[k], v * c[k] + u * sine);
            }
            store_pack<N>(r.y + first, to_a);
            store_pack<N>(r.y + first + r.half, to_b);
        }
    }
}

/* 256 threads: as many for a token as it has packs, up to all, and several tokens where it has few. */
template <typename T, int N> static void launch_rotation(const lk__kernel_call *call, const rotation<T> &r)
{
    int64_t  each = r.heads * (r.half / N);
    unsigned across = 16;
    while (across < 256 && across < each) across *= 2;
    dim3 block(across, 256 / across);
    LAUNCH((rotate_pairs<T, N>), cuda_blocks(r.tokens, block.y), block, 0, cuda_stream(call), r);
}

static bool is_aligned(const void *p) { return (uintptr_t)p % 16 == 0; }

extern "C" lk_status lk__cuda_rope(const lk__kernel_call *call)
{
    const lk__kernel_operand *x = &call->in[0];
    BY_ELEMENT(x->dtype, T, {
        rotation<T> r = {};
        r.x = (const T *)x->data;
        r.y = out_data<T>(call, 0);
        r.table = in_data<WIDE(T)>(call, 1);
        r.positions = in_data<int32_t>(call, 2);
        r.tokens = x->dims[0] * x->dims[1];
        r.t = x->dims[1];
        r.heads = call->attrs->heads;
        r.half = x->dims[2] / r.heads / 2;
        r.limit = call->in[1].dims[0];
        r.sign = call->attrs->inverse ? -1 : 1;
        r.invalid = call->invalid;
        int64_t pairs = r.tokens * r.heads * r.half;
        if (pairs == 0) return LK_OK;
        if (r.half % PACK(T) == 0 && is_aligned(r.x) && is_aligned(r.y) && is_aligned(r.table))
            launch_rotation<T, PACK(T)>(call, r);
        else
            launch_rotation<T, 1>(call, r);
    })
    return lk__cuda_launched(call);
}
