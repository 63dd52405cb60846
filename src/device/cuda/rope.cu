/* rope.cu - rotary position embedding (Su et al. 2021), with the halves of a head as the pairs, as Hugging Face's rotate_half has them.
 * Bound by memory: a thread reads and writes 16 bytes of each half at once where the width of a head allows it. The table stays in the
 * second-level cache. */
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

/* N neighbouring pairs a thread. */
template <typename T, int N> static __global__ void rotate_pairs(rotation<T> r)
{
    int64_t packs = r.half / N, each = r.heads * packs;
    EACH_INDEX(i, r.tokens * each)
    {
        int64_t token = i / each, rest = i - token * each, head = rest / packs, at = (rest - head * packs) * N;
        int64_t position = r.positions ? r.positions[token] : token % r.t;
        if (position < 0 || position >= r.limit) {
            if (rest == 0) report_invalid(r.invalid, LK__OP_rope, r.positions, r.tokens, token, r.limit);
            position = 0;
        }
        const WIDE(T) *cosine = r.table + position * 2 * r.half + at, *sine = cosine + r.half;
        int64_t        first = (token * r.heads + head) * 2 * r.half + at;
        lk__pack<T, N> a = load_pack<N>(r.x + first), b = load_pack<N>(r.x + first + r.half), to_a, to_b;
#pragma unroll
        for (int k = 0; k < N; k++) {
            WIDE(T) u = load(&a.at[k]), v = load(&b.at[k]), c = cosine[k], s = sine[k] * r.sign;
            store(&to_a.at[k], u * c - v * s);
            store(&to_b.at[k], v * c + u * s);
        }
        store_pack<N>(r.y + first, to_a);
        store_pack<N>(r.y + first + r.half, to_b);
    }
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
        if (r.half % PACK(T) == 0 && is_aligned(r.x) && is_aligned(r.y))
            LAUNCH((rotate_pairs<T, PACK(T)>), cuda_blocks(pairs / PACK(T), 256), 256, 0, cuda_stream(call), r);
        else
            LAUNCH((rotate_pairs<T, 1>), cuda_blocks(pairs, 256), 256, 0, cuda_stream(call), r);
    })
    return lk__cuda_launched(call);
}
