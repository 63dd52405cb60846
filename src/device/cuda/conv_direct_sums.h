/* device/cuda/conv_direct_sums.h - the parts of a weight's gradient: where blocks store their sums, and the kernel that
 * adds them in order. */
#ifndef LK__CUDA_CONV_DIRECT_SUMS_H
#define LK__CUDA_CONV_DIRECT_SUMS_H

#include "device/cuda/conv_direct.h"

/* A part sums over `each` tiles of pixels; its sums are [tap][input channel][output channel], and [output channel] for
 * the bias. */
struct weight_parts {
    float  *sums, *bias; /* of all parts one after the other; bias NULL: not needed */
    int     o, c;
    int64_t tiles, each, count;
};

/* As many parts, of `channel_tiles` blocks each, as keep a GPU's multiprocessors busy: a fixed number, not this GPU's,
 * because the bits depend on it. */
static inline int64_t most_parts(int64_t blocks, int64_t channel_tiles)
{
    return blocks > channel_tiles ? blocks / channel_tiles : 1;
}
static inline weight_parts divide_tiles(int64_t tiles, int64_t most, const conv_shape &v, bool bias, void *workspace)
{
    weight_parts parts = {(float *)workspace, NULL, v.o, v.c, tiles, cuda_tiles(tiles, most), 0};
    parts.count = cuda_tiles(tiles, parts.each);
    if (bias) parts.bias = parts.sums + parts.count * 9 * v.c * v.o;
    return parts;
}
/* Bytes for up to that many tiles: fewer of them can be more parts, but not more than `most`. */
static inline size_t parts_bytes(int64_t tiles, int64_t most, const conv_shape &v)
{
    return (size_t)(tiles < most ? tiles : most) * (size_t)(9 * v.c + 1) * (size_t)v.o * sizeof(float);
}

/* dw and db: four results a thread, LANES threads for every LANES-th part each, whose sums are added in order. */
template <int LANES>
static __global__ void __launch_bounds__(256) add_weight_parts(weight_parts parts, float *dw, float *db)
{
    await_previous();
    constexpr int   across = 256 / LANES;
    __shared__ quad shared[LANES][across];
    int             x = threadIdx.x % across, lane = threadIdx.x / across;
    int64_t         quads = (int64_t)9 * parts.c * parts.o / 4, all = quads + (db ? parts.o / 4 : 0);
    int64_t         i = (int64_t)blockIdx.x * across + x;
    quad            total = zero_quad();
    if (i < all) {
        const float *from = i < quads ? parts.sums + i * 4 : parts.bias + (i - quads) * 4;
        int64_t      step = i < quads ? quads * 4 : parts.o;
#pragma unroll 8
        for (int64_t part = lane; part < parts.count; part += LANES) {
            quad next = load_pack<4>(from + part * step);
#pragma unroll
            for (int e = 0; e < 4; e++) total.at[e] += next.at[e];
        }
    }
    shared[lane][x] = total;
    __syncthreads();
    if (lane > 0 || i >= all) return;
    for (int q = 1; q < LANES; q++)
#pragma unroll
        for (int e = 0; e < 4; e++) total.at[e] += shared[q][x].at[e];
    if (i >= quads) {
        store_pack(db + (i - quads) * 4, total);
        return;
    }
    int o = (int)(i * 4 % parts.o), row = (int)(i * 4 / parts.o), tap = row / parts.c, c = row % parts.c;
#pragma unroll
    for (int e = 0; e < 4; e++) dw[((int64_t)(o + e) * parts.c + c) * 9 + tap] = total.at[e];
}

static inline void launch_add_parts(const lk__kernel_call *call, const weight_parts &parts)
{
    float  *dw = out_data<float>(call, 0), *db = parts.bias ? out_data<float>(call, 1) : NULL;
    int64_t all = (int64_t)9 * parts.c * parts.o / 4 + (db ? parts.o / 4 : 0);
    if (parts.count >= 64 && all < 2048)
        LAUNCH_EARLY((add_weight_parts<32>), (unsigned)cuda_tiles(all, 8), 256, 0, cuda_stream(call), parts, dw, db);
    else if (parts.count >= 64)
        LAUNCH_EARLY((add_weight_parts<16>), (unsigned)cuda_tiles(all, 16), 256, 0, cuda_stream(call), parts, dw, db);
    else
        LAUNCH_EARLY((add_weight_parts<8>), (unsigned)cuda_tiles(all, 32), 256, 0, cuda_stream(call), parts, dw, db);
}

#endif
