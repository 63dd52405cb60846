/* conv_direct_weight.cu - grad_weight of 3×3 convolutions of f32 (conv_direct.h).
 *
 * A thread has 4 output × 4 input channels for the three taps of a row of the kernel, and slides along a row of pixels:
 * each pixel of x is read once for the three taps. A block has a tile of output × input channels and sums over its part
 * of all images, one small tile of pixels after the other, with two buffers. How many parts there are depends on the
 * shape alone; another kernel adds them in order. */
#include "device/cuda/conv_direct_sums.h"

/* Tiles of ROWS × COLUMNS pixels; OUT × IN channels a block; SPLIT groups of threads have the same channels and their
 * rows of a tile. */
template <int ROWS, int COLUMNS, int OUT, int IN, int SPLIT, int BLOCKS> struct weight_shape {
    static constexpr int rows = ROWS, columns = COLUMNS, out = OUT, in = IN, split = SPLIT, blocks = BLOCKS;
    static constexpr int lanes_out = OUT / 4, lanes_in = IN / 4, group = lanes_out * lanes_in * 3,
                         threads = group * SPLIT;
    static constexpr int across = COLUMNS + 2, image = (ROWS + 2) * across * IN, gradient = ROWS * COLUMNS * OUT;
    static constexpr int buffer = image + gradient, sums = 9 * IN * OUT;
    static constexpr int pieces = threads >= 4 * OUT   ? 4
                                  : threads >= 2 * OUT ? 2
                                                       : 1; /* of a tile's pixels, for the bias */
    static constexpr int floats = 2 * buffer > SPLIT *sums ? 2 * buffer : SPLIT *sums;
    static constexpr int bytes = floats * (int)sizeof(float);
    static_assert(ROWS % SPLIT == 0 && threads % 32 == 0 && threads >= OUT && bytes <= 227 << 10, "an invalid shape");
    typedef direct_loader<ROWS, COLUMNS, 1, IN, IN, threads>   image_loader;
    typedef direct_loader<ROWS, COLUMNS, 0, OUT, OUT, threads> gradient_loader;
};

/* sum[tap][input][output] += over the columns of one row. x is at the pixel left of the first one. */
template <typename S>
static __device__ __forceinline__ void sum_row(const float *x, const float *dy, float (&sum)[3][4][4])
{
    quad window[3];
    window[0] = load_pack<4>(x);
    window[1] = load_pack<4>(x + S::in);
#pragma unroll
    for (int p = 0; p < S::columns; p++) {
        quad g = load_pack<4>(dy + p * S::out);
        window[(p + 2) % 3] = load_pack<4>(x + (p + 2) * S::in);
#pragma unroll
        for (int t = 0; t < 3; t++)
#pragma unroll
            for (int c = 0; c < 4; c++)
#pragma unroll
                for (int o = 0; o < 4; o++) sum[t][c][o] += window[(p + t) % 3].at[c] * g.at[o];
    }
}

/* Blocks: x: parts, y: tiles of channels, output channels fastest. */
template <typename S, bool POOLED>
static __global__ void __launch_bounds__(S::threads, S::blocks)
    differentiate_weights(direct_image x, direct_image dy, weight_parts parts)
{
    await_previous();
    DYNAMIC_SHARED(float, shared);
    typename S::image_loader    images;
    typename S::gradient_loader gradients;
    int o = blockIdx.y % (parts.o / S::out) * S::out, c = blockIdx.y / (parts.o / S::out) * S::in;
    int t = threadIdx.x % S::group, group = threadIdx.x / S::group;
    int lane_o = t % S::lanes_out * 4, lane_c = t / S::lanes_out % S::lanes_in * 4, y = t / S::lanes_out / S::lanes_in;
    int64_t           first = blockIdx.x * parts.each, end = min(first + parts.each, parts.tiles);
    bool              sums_bias = parts.bias && c == 0;
    float             bias = 0;
    alignas(16) float sum[3][4][4] = {};

    auto fetch = [&](int64_t tile, float *buffer) {
        direct_place place = place_tile<S::rows, S::columns>(tile, x.h, x.w);
        images.copy(x, place, c, buffer);
        if (POOLED)
            gradients.fetch(dy, place, o);
        else
            gradients.copy(dy, place, o, buffer + S::image);
        copies_commit();
    };
    fetch(first, shared);
    if (POOLED) gradients.put(shared + S::image);
    for (int64_t tile = first; tile < end; tile++) {
        float *now = shared + ((tile - first) % 2) * S::buffer, *next = shared + ((tile - first + 1) % 2) * S::buffer;
        copies_wait<0>();
        __syncthreads(); /* this tile is there, and the other buffer has been read */
        if (tile + 1 < end) fetch(tile + 1, next);
#pragma unroll 1
        for (int row = group * (S::rows / S::split); row < (group + 1) * (S::rows / S::split); row++)
            sum_row<S>(now + (row + y) * S::across * S::in + lane_c,
                       now + S::image + row * S::columns * S::out + lane_o, sum);
        if (sums_bias && threadIdx.x < S::pieces * S::out) {
            constexpr int each = S::rows * S::columns / S::pieces;
            const float  *at = now + S::image + threadIdx.x / S::out * each * S::out + threadIdx.x % S::out;
#pragma unroll 8
            for (int p = 0; p < each; p++) bias += at[p * S::out];
        }
        if (POOLED && tile + 1 < end) gradients.put(next + S::image);
    }
    __syncthreads();

    float *to = parts.sums + (int64_t)blockIdx.x * 9 * parts.c * parts.o + o;
#pragma unroll
    for (int tap = 0; tap < 3; tap++)
#pragma unroll
        for (int q = 0; q < 4; q++) {
            int row = (y * 3 + tap) * S::in + lane_c + q;
            if (S::split > 1)
                store_pack(shared + group * S::sums + row * S::out + lane_o, *(quad *)&sum[tap][q][0]);
            else
                store_pack(to + (int64_t)((y * 3 + tap) * parts.c + c + lane_c + q) * parts.o + lane_o,
                           *(quad *)&sum[tap][q][0]);
        }
    if (S::split > 1) {
        __syncthreads();
        for (int i = threadIdx.x; i < S::sums / 4; i += S::threads) {
            quad total = load_pack<4>(shared + i * 4);
#pragma unroll
            for (int g = 1; g < S::split; g++) {
                quad other = load_pack<4>(shared + g * S::sums + i * 4);
#pragma unroll
                for (int e = 0; e < 4; e++) total.at[e] += other.at[e];
            }
            int column = i * 4 % S::out, row = i * 4 / S::out, tap = row / S::in;
            store_pack(to + (int64_t)(tap * parts.c + c + row % S::in) * parts.o + column, total);
        }
    }
    if (!parts.bias) return;
    __syncthreads();
    if (sums_bias && threadIdx.x < S::pieces * S::out) shared[threadIdx.x] = bias;
    __syncthreads();
    if (!sums_bias || threadIdx.x >= S::out) return;
    for (int p = 1; p < S::pieces; p++) bias += shared[p * S::out + threadIdx.x];
    parts.bias[(int64_t)blockIdx.x * parts.o + o + threadIdx.x] = bias;
}

/* ---- which shape: as in conv_direct.cu ---- */

#define SHAPES(X)             \
    X(0, 4, 16, 64, 32, 1, 1) \
    X(1, 4, 16, 32, 32, 2, 1) \
    X(2, 8, 16, 16, 16, 8, 1) \
    X(3, 4, 8, 64, 32, 1, 1)  \
    X(4, 4, 8, 32, 32, 2, 1)
#if defined(LK_CONV_VARIANTS)
#define MORE_SHAPES(X)        \
    X(5, 4, 16, 64, 32, 2, 1) \
    X(6, 4, 16, 64, 16, 2, 1) \
    X(7, 2, 16, 64, 32, 1, 2) \
    X(8, 8, 16, 64, 32, 2, 1) \
    X(9, 4, 16, 64, 16, 1, 3)
#else
#define MORE_SHAPES(X)
#endif

static int choose_shape(const conv_shape &v)
{
    bool wide = v.w % 16 == 0 && v.h % 8 == 0, narrow = v.w % 8 == 0 && v.h % 4 == 0;
    if (lk__cuda_conv_direct_variant >= 0) return lk__cuda_conv_direct_variant;
    if (v.c % 32 == 0 && wide) return v.o % 64 == 0 ? 0 : v.o % 32 == 0 ? 1 : -1;
    if (v.c % 16 == 0 && wide) return v.o % 16 == 0 ? 2 : -1;
    if (v.c % 32 == 0 && narrow) return v.o % 64 == 0 ? 3 : v.o % 32 == 0 ? 4 : -1;
    return -1;
}

/* What is left of a shape when its number is known at run time. */
struct weight_tiles {
    int64_t tiles, most; /* of pixels, and of parts */
};
template <typename S> static bool tiles_fit(const conv_shape &v)
{
    return v.h % S::rows == 0 && v.w % S::columns == 0 && v.c % S::in == 0 && v.o % S::out == 0;
}
/* Of a shape that fits: others have no tiles of channels, by whose number parts are divided. */
template <typename S> static weight_tiles tiles_of(const conv_shape &v)
{
    int64_t blocks = lk__cuda_conv_direct_blocks * S::blocks;
    return weight_tiles{(int64_t)v.n * (v.h / S::rows) * (v.w / S::columns),
                        most_parts(blocks, (int64_t)(v.o / S::out) * (v.c / S::in))};
}

template <typename S> static lk_status launch_weights(const lk__kernel_call *call, const conv_shape &v)
{
    if (!tiles_fit<S>(v)) return LK_EUNSUPPORTED;
    weight_tiles   t = tiles_of<S>(v);
    const uint8_t *index = v.pool > 1 ? in_data<uint8_t>(call, 2) : NULL;
    direct_image   x = {in_data<float>(call, 0), NULL, v.h, v.w, v.c},
                 dy = {in_data<float>(call, 1), index, v.h, v.w, v.o};
    weight_parts parts = divide_tiles(t.tiles, t.most, v, out_data<float>(call, 1) != NULL, call->workspace);
    dim3         grid((unsigned)parts.count, (unsigned)(v.o / S::out * (v.c / S::in)));
    if (index ? !allow_shared(differentiate_weights<S, true>, S::bytes)
              : !allow_shared(differentiate_weights<S, false>, S::bytes))
        return LK_EUNSUPPORTED;
    if (index)
        LAUNCH_EARLY((differentiate_weights<S, true>), grid, S::threads, S::bytes, cuda_stream(call), x, dy, parts);
    else
        LAUNCH_EARLY((differentiate_weights<S, false>), grid, S::threads, S::bytes, cuda_stream(call), x, dy, parts);
    launch_add_parts(call, parts);
    return lk__cuda_launched(call);
}

lk_status lk__cuda_conv_direct_weight_run(const lk__kernel_call *call)
{
    conv_shape v = lk__cuda_conv_shape(call, CONV_GRAD_WEIGHT);
    switch (choose_shape(v)) {
#define SHAPE_CASE(number, ...) \
    case number: return launch_weights<weight_shape<__VA_ARGS__>>(call, v);
        SHAPES(SHAPE_CASE)
        MORE_SHAPES(SHAPE_CASE)
    default: return LK_EUNSUPPORTED;
    }
}

size_t lk__cuda_conv_direct_weight_workspace(const conv_shape &v)
{
    weight_tiles t = {};
    switch (choose_shape(v)) {
#define SHAPE_TILES(number, ...)                                \
    case number:                                                \
        if (!tiles_fit<weight_shape<__VA_ARGS__>>(v)) return 0; \
        t = tiles_of<weight_shape<__VA_ARGS__>>(v);             \
        break;
        SHAPES(SHAPE_TILES)
        MORE_SHAPES(SHAPE_TILES)
    default: return 0;
    }
    return parts_bytes(t.tiles, t.most, v);
}
