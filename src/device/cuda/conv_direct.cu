/* conv_direct.cu - forward and grad_input of 3×3 convolutions of f32 (conv_direct.h).
 *
 * Both are the same computation: pixels × output channels, summed over taps and input channels; grad_input's input is
 * dy, its output channels are the channels of x, and the taps are in the opposite order. Input channels arrive in
 * stages of a ring of buffers. The warps of a block are `split` groups, each of which sums its part of every stage's
 * channels; their sums are added in order at the end, in shared memory, from where the results leave in packs of four
 * channels. The order of additions depends on the channels alone. */
#include "device/cuda/conv_direct.h"

#include <stdlib.h>

/* A tile of ROWS × COLUMNS pixels by WIDTH output channels; a thread has 8 pixels of a row × EACH channels. DEEP input
 * channels a stage; BLOCKS of a multiprocessor that registers are limited for. */
template <int ROWS, int COLUMNS, int WIDTH, int EACH, int SPLIT, int DEEP, int STAGES, int BLOCKS> struct direct_shape {
    static constexpr int rows = ROWS, columns = COLUMNS, width = WIDTH, each = EACH, split = SPLIT, deep = DEEP;
    static constexpr int stages = STAGES, blocks = BLOCKS;
    static constexpr int lanes = WIDTH / EACH;        /* threads side by side in output channels */
    static constexpr int strips = ROWS * COLUMNS / 8; /* of 8 pixels */
    static constexpr int group = strips * lanes, threads = group * SPLIT;
    static constexpr int pixel = DEEP + 4; /* + 4: strips of neighbouring rows are in different banks */
    static constexpr int across = COLUMNS + 2;
    static constexpr int image = (ROWS + 2) * across * pixel;
    static constexpr int pitch = WIDTH + 4; /* + 4: a warp stores 8 rows × 4 columns of weights at once */
    static constexpr int weights = DEEP * 9 * pitch;
    static constexpr int stage = image + weights, out = ROWS * COLUMNS * WIDTH;
    static constexpr int bytes = (STAGES * stage > SPLIT * out ? STAGES * stage : SPLIT * out) * (int)sizeof(float);
    static_assert(DEEP / SPLIT % 4 == 0 && threads % 32 == 0 && bytes <= 227 << 10, "an invalid shape");
    typedef direct_loader<ROWS, COLUMNS, 1, DEEP, pixel, threads> loader;
};

/* Brings weights (O, C, 3, 3) to shared memory as [input channel][tap][output channel]; what does not change from stage
 * to stage is computed once. Forward: a warp reads 32 bytes from each of 4 output channels. grad_input, whose input
 * channels are O: whole rows. */
template <typename S, bool INPUT> struct weight_loader;

template <typename S> struct weight_loader<S, false> {
    static constexpr int warps = S::threads / 32, groups = S::width / 4, packs = S::deep * 9 / 8;
    static constexpr int side = groups < warps ? warps / groups : 1; /* warps for the same channels */
    static_assert(groups % (warps / side) == 0 && packs % side == 0, "an invalid shape");
    const float *from;
    int64_t      next_group;
    int          at;

    __device__ __forceinline__ void begin(const float *w, int c, int to_first)
    {
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32, channel = warp / side * 4 + lane / 8,
            k = warp % side * 8 + lane % 8;
        from = w + (int64_t)(to_first + channel) * c * 9 + k;
        next_group = (int64_t)(warps / side * 4) * c * 9;
        at = k * S::pitch + channel;
    }
    __device__ __forceinline__ void copy(int first, float *to) const
    {
        const float *group = from + first * 9;
#pragma unroll
        for (int g = 0; g < groups / (warps / side); g++, group += next_group)
#pragma unroll
            for (int q = 0; q < packs; q += side)
                copy_one(to + at + g * (warps / side) * 4 + q * 8 * S::pitch, group + q * 8);
    }
};

template <typename S> struct weight_loader<S, true> {
    static constexpr int row = 9 * S::width,
                         rows = S::threads / S::width; /* nine copies of all threads are this many rows */
    static_assert(S::threads % S::width == 0 && S::deep % rows == 0, "an invalid shape");
    const float *from;
    int          stride;    /* elements from one input channel to the next */
    int          places[9]; /* in shared memory, and << 16 the row */

    __device__ __forceinline__ void begin(const float *w, int c, int to_first)
    {
        from = w + (int64_t)to_first * 9 + threadIdx.x;
        stride = c * 9;
#pragma unroll
        for (int q = 0; q < 9; q++) {
            int i = threadIdx.x + q * S::threads, deep = i / row, channel = i % row / 9, tap = i % 9;
            places[q] = (deep * 9 + 8 - tap) * S::pitch + channel + (deep << 16);
        }
    }
    __device__ __forceinline__ void copy(int first, float *to) const
    {
        const float *stage = from + (int64_t)first * stride;
#pragma unroll
        for (int q = 0; q < 9; q++) {
            const float *at = stage + (places[q] >> 16) * (stride - row) + q * S::threads;
#pragma unroll
            for (int r = 0; r < S::deep; r += rows)
                copy_one(to + (places[q] & 0xffff) + r * 9 * S::pitch, at + r * stride);
        }
    }
};

/* A thread's sums += its strip × its channels, over the part of a stage that its group has. */
template <typename S>
static __device__ __forceinline__ void sum_stage(const float *image, const float *weights, float (&sum)[8][S::each])
{
    constexpr int half = S::each == 8 ? S::width / 2 : 0;
#pragma unroll 1
    for (int c = 0; c < S::deep / S::split; c += 4) {
#pragma unroll 1
        for (int y = 0; y < 3; y++) {
            const float *row = image + y * S::across * S::pixel + c, *taps = weights + (c * 9 + y * 3) * S::pitch;
            quad         x[10];
#pragma unroll
            for (int p = 0; p < 10; p++) x[p] = load_pack<4>(row + p * S::pixel);
#pragma unroll
            for (int e = 0; e < 4; e++)
#pragma unroll
                for (int t = 0; t < 3; t++) {
                    alignas(16) float w[S::each];
                    *(quad *)w = load_pack<4>(taps + (e * 9 + t) * S::pitch);
                    if (S::each == 8) *(quad *)(w + S::each - 4) = load_pack<4>(taps + (e * 9 + t) * S::pitch + half);
#pragma unroll
                    for (int p = 0; p < 8; p++)
#pragma unroll
                        for (int q = 0; q < S::each; q++) sum[p][q] += x[p + t].at[e] * w[q];
                }
        }
    }
}

/* Blocks: x: tiles of all images, y: tiles of output channels. */
template <typename S, bool INPUT, bool POOLED>
static __global__ void __launch_bounds__(S::threads, S::blocks)
    convolve_direct(direct_image from, const float *w, direct_epilogue to)
{
    await_previous();
    DYNAMIC_SHARED(float, shared);
    typename S::loader      loader, first[POOLED ? S::stages - 1 : 1];
    weight_loader<S, INPUT> weights;
    direct_place            place = place_tile<S::rows, S::columns>(blockIdx.x, from.h, from.w);
    int                     to_first = blockIdx.y * S::width, stages = from.c / S::deep;
    int                     t = threadIdx.x % S::group, group = threadIdx.x / S::group;
    int               lane = t % S::lanes, strip = t / S::lanes; /* strips of one column of strips are neighbours */
    int               row = strip % S::rows, column = strip / S::rows * 8;
    alignas(16) float sum[8][S::each] = {};
    weights.begin(w, INPUT ? to.c : from.c, to_first);

#pragma unroll
    for (int s = 0; s < S::stages - 1; s++) {
        if (s < stages) {
            if (POOLED)
                first[s].fetch(from, place, s * S::deep);
            else
                loader.copy(from, place, s * S::deep, shared + s * S::stage);
            weights.copy(s * S::deep, shared + s * S::stage + S::image);
        }
        copies_commit();
    }
    if (POOLED)
#pragma unroll
        for (int s = 0; s < S::stages - 1; s++)
            if (s < stages) first[s].put(shared + s * S::stage);
    for (int s = 0, now = 0; s < stages; s++, now = now + 1 < S::stages ? now + 1 : 0) {
        int    next = s + S::stages - 1, free_buffer = now > 0 ? now - 1 : S::stages - 1;
        float *buffer = shared + free_buffer * S::stage, *current = shared + now * S::stage;
        copies_wait<S::stages - 2>();
        /* this stage is there, and all threads have read the one before it, whose buffer is free now */
        __syncthreads();
        if (next < stages) {
            if (POOLED)
                loader.fetch(from, place, next * S::deep);
            else
                loader.copy(from, place, next * S::deep, buffer);
            weights.copy(next * S::deep, buffer + S::image);
        }
        copies_commit();
        int channel = group * (S::deep / S::split);
        sum_stage<S>(current + (row * S::across + column) * S::pixel + channel,
                     current + S::image + channel * 9 * S::pitch + lane * 4, sum);
        if (POOLED && next < stages) loader.put(buffer);
    }
    __syncthreads();

    float *mine = shared + group * S::out + (row * S::columns + column) * S::width + lane * 4;
#pragma unroll
    for (int p = 0; p < 8; p++) {
        store_pack(mine + p * S::width, *(quad *)&sum[p][0]);
        if (S::each == 8) store_pack(mine + p * S::width + S::width / 2, *(quad *)&sum[p][S::each - 4]);
    }
    __syncthreads();
    constexpr int packs = S::width / 4;
    int           step = to.pools ? 2 : 1, items = S::rows / step * (S::columns / step) * packs;
    for (int i = threadIdx.x; i < items; i += S::threads) {
        int y = i / packs / (S::columns / step) * step, x = i / packs % (S::columns / step) * step,
            channel = i % packs * 4;
        to.put(place.n, place.row + y, place.column + x, to_first + channel, [&](int p) {
            const float *at = shared + ((y + p / 2) * S::columns + x + p % 2) * S::width + channel;
            quad         total = load_pack<4>(at);
#pragma unroll
            for (int g = 1; g < S::split; g++) {
                quad other = load_pack<4>(at + g * S::out);
#pragma unroll
                for (int e = 0; e < 4; e++) total.at[e] += other.at[e];
            }
            return total;
        });
    }
}

template <typename S, bool INPUT, bool POOLED>
static lk_status launch_direct(const lk__kernel_call *call, const conv_shape &v, const direct_image &from,
                               const float *w, const direct_epilogue &to)
{
    if (!allow_shared(convolve_direct<S, INPUT, POOLED>, S::bytes)) return LK_EUNSUPPORTED;
    dim3 grid((unsigned)(v.n * (from.h / S::rows) * (from.w / S::columns)), (unsigned)(to.c / S::width));
    LAUNCH_EARLY((convolve_direct<S, INPUT, POOLED>), grid, S::threads, S::bytes, cuda_stream(call), from, w, to);
    return lk__cuda_launched(call);
}

template <typename S>
static lk_status launch_shape(const lk__kernel_call *call, const conv_shape &v, bool input, const direct_image &from,
                              const float *w, const direct_epilogue &to)
{
    if (from.h % S::rows != 0 || from.w % S::columns != 0 || from.c % S::deep != 0 || to.c % S::width != 0)
        return LK_EUNSUPPORTED;
    if (!input) return launch_direct<S, false, false>(call, v, from, w, to);
    return from.index ? launch_direct<S, true, true>(call, v, from, w, to)
                      : launch_direct<S, true, false>(call, v, from, w, to);
}

/* ---- which shape ----
 *
 * Measured with bench/cuda_conv.cu; those of `more` are compiled for it alone. */

#define SHAPES(X)                   \
    X(0, 8, 16, 64, 8, 2, 8, 4, 1)  \
    X(1, 8, 16, 32, 8, 4, 16, 3, 1) \
    X(2, 16, 16, 16, 8, 2, 8, 2, 3) \
    X(3, 8, 8, 64, 8, 4, 16, 2, 1)  \
    X(4, 8, 8, 32, 8, 8, 32, 2, 1)
#if defined(LK_CONV_VARIANTS)
#define MORE_SHAPES(X)               \
    X(5, 8, 16, 64, 4, 1, 8, 4, 1)   \
    X(6, 8, 16, 64, 4, 2, 8, 4, 1)   \
    X(7, 4, 16, 64, 8, 4, 16, 2, 2)  \
    X(8, 8, 16, 64, 8, 4, 16, 2, 1)  \
    X(9, 8, 16, 32, 4, 2, 8, 4, 1)   \
    X(10, 8, 16, 32, 4, 4, 16, 3, 1) \
    X(11, 8, 16, 32, 8, 8, 32, 2, 1) \
    X(12, 8, 16, 64, 8, 1, 8, 3, 2)
#else
#define MORE_SHAPES(X)
#endif

int     lk__cuda_conv_direct_variant = -1;
int64_t lk__cuda_conv_direct_blocks = 132; /* an H200's multiprocessors */

static int choose_shape(const direct_image &from, int channels)
{
    bool wide = from.w % 16 == 0 && from.h % 8 == 0, narrow = from.w % 8 == 0 && from.h % 8 == 0;
    if (lk__cuda_conv_direct_variant >= 0) return lk__cuda_conv_direct_variant;
    if (wide && channels % 64 == 0) return 0;
    if (wide && channels % 32 == 0 && from.c % 16 == 0) return 1;
    if (wide && channels % 16 == 0 && from.h % 16 == 0) return 2;
    if (narrow && channels % 64 == 0 && from.c % 16 == 0) return 3;
    return narrow && channels % 32 == 0 && from.c % 32 == 0 ? 4 : -1;
}

lk_status lk__cuda_conv_direct_run(const lk__kernel_call *call, conv_direction direction)
{
    conv_shape v = lk__cuda_conv_shape(call, direction);
    bool       input = direction == CONV_GRAD_INPUT;
    if (!lk__cuda_conv_direct_supports(call, v)) return LK_EUNSUPPORTED;
    if (v.c == 3 || direction == CONV_GRAD_WEIGHT)
        return v.c == 3 ? lk__cuda_conv_first_run(call, direction) : lk__cuda_conv_direct_weight_run(call);
    direct_image    from = {in_data<float>(call, 0), input && v.pool > 1 ? in_data<uint8_t>(call, 2) : NULL, v.h, v.w,
                         input ? v.o : v.c};
    direct_epilogue to = {out_data<float>(call, 0), NULL, NULL, v.h, v.w, input ? v.c : v.o, false, false};
    if (!input) {
        to.index = out_data<uint8_t>(call, 1), to.bias = in_data<float>(call, 2);
        to.relu = v.relu, to.pools = v.pool == 2;
    }
    const float *w = in_data<float>(call, 1);
    switch (choose_shape(from, to.c)) {
#define SHAPE_CASE(number, ...) \
    case number: return launch_shape<direct_shape<__VA_ARGS__>>(call, v, input, from, w, to);
        SHAPES(SHAPE_CASE)
        MORE_SHAPES(SHAPE_CASE)
    default: return LK_EUNSUPPORTED;
    }
}

/* Apart from addresses, which the planner does not know. */
static bool shape_supports(const lk__kernel_call *call, const conv_shape &v)
{
    const char *plain = lk__cuda_host.environment(
        NULL, LK__ENV_LOCKSTEP_CUDA_PLAIN); /* these are no library's: lk__cuda_plain does not answer for them */
    if (plain && plain[0] && plain[0] != '0') return false;
    if (call->in[0].dtype != LK_F32 || v.kh != 3 || v.kw != 3 || v.stride != 1 || v.padding != 1 || v.groups != 1)
        return false;
    if (v.pool > 2 || v.h % 2 != 0 || v.w % 2 != 0 || v.windows <= 0 || !conv_fits(v)) return false;
    return v.o % 16 == 0 && (v.c == 3 || v.c % 8 == 0);
}

static bool is_aligned(const void *data) { return (uintptr_t)data % 16 == 0; }

bool lk__cuda_conv_direct_supports(const lk__kernel_call *call, const conv_shape &v)
{
    if (!shape_supports(call, v)) return false;
    for (int i = 0; i < call->inputs; i++)
        if (!is_aligned(call->in[i].data)) return false;
    for (int i = 0; i < call->outputs; i++)
        if (!is_aligned(call->out[i].data)) return false;
    return true;
}

size_t lk__cuda_conv_direct_workspace(const lk__kernel_call *call, conv_direction direction)
{
    conv_shape v = lk__cuda_conv_shape(call, direction);
    if (direction != CONV_GRAD_WEIGHT || !shape_supports(call, v)) return 0;
    return v.c == 3 ? lk__cuda_conv_first_workspace(v) : lk__cuda_conv_direct_weight_workspace(v);
}
