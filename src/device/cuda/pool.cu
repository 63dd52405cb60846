/* pool.cu - max, average and global average pooling of images (channels last), and their gradients. A thread has one
 * pixel of the result and a pack of its channels; gradients gather from the windows that cover a pixel, in order, so
 * nothing is added by two threads. Bound by memory. */
#include "device/cuda/columns.h"

struct window {
    int64_t images;
    int     channels, height, width, out_height, out_width; /* height × width is the larger image */
    int     kernel, stride, padding;
};

static window describe_call(const lk__kernel_call *call, const lk__kernel_operand *large,
                            const lk__kernel_operand *small)
{
    window w = {};
    w.images = large->dims[0];
    w.channels = (int)large->dims[1];
    w.height = (int)large->dims[2];
    w.width = (int)large->dims[3];
    w.out_height = (int)small->dims[2];
    w.out_width = (int)small->dims[3];
    w.kernel = (int)call->attrs->kernel;
    w.stride = (int)call->attrs->stride;
    w.padding = (int)call->attrs->padding;
    return w;
}

/* Item i of images × height × width × packs. I is 32 bits wide where all items fit, since divisions are then several
 * times as fast. */
struct place {
    int64_t image;
    int     row, column, channel;
};
template <int N, typename I> static __device__ __forceinline__ place place_of(I i, int height, int width, int channels)
{
    I     packs = (I)(channels / N), pixel = i / packs, line = pixel / (I)width;
    place p;
    p.channel = (int)(i - pixel * packs) * N;
    p.column = (int)(pixel - line * (I)width);
    p.image = (int64_t)(line / (I)height);
    p.row = (int)(line - (I)p.image * (I)height);
    return p;
}

/* The part of a window inside the image: rows or columns of the window, from … to-1. */
struct span {
    int from, to, at; /* at: the position in the image of the window's position 0 */
};
static __device__ __forceinline__ span clip(int out, int size, const window &w)
{
    int at = out * w.stride - w.padding;
    return span{at < 0 ? -at : 0, w.kernel < size - at ? w.kernel : size - at, at};
}

/* The windows, from … to-1, that cover position `at` of the image. */
static __device__ __forceinline__ span covering(int at, int outs, const window &w)
{
    int last = (at + w.padding) / w.stride, before = at + w.padding - w.kernel;
    return span{before < 0 ? 0 : before / w.stride + 1, last < outs - 1 ? last + 1 : outs, 0};
}

/* The first of equal values counts, and NaN is above all numbers. index may be NULL. */
template <typename T, int N, typename I>
static __global__ void __launch_bounds__(256) max_windows(window w, const T *x, T *y, uint8_t *index, int64_t items)
{
    typedef WIDE(T) W;
    EACH_INDEX(i, items)
    {
        place                p = place_of<N, I>((I)i, w.out_height, w.out_width, w.channels);
        span                 r = clip(p.row, w.height, w), s = clip(p.column, w.width, w);
        lk__pack<T, N>       best;
        lk__pack<uint8_t, N> where;
#pragma unroll
        for (int j = 0; j < N; j++) {
            store(&best.at[j], (W)-INFINITY);
            where.at[j] = (uint8_t)(r.from * w.kernel + s.from);
        }
        for (int row = r.from; row < r.to; row++) {
            const T *line = x + ((p.image * w.height + r.at + row) * w.width + s.at) * w.channels + p.channel;
            for (int column = s.from; column < s.to; column++) {
                lk__pack<T, N> v = load_pack<N>(line + (int64_t)column * w.channels);
#pragma unroll
                for (int j = 0; j < N; j++) {
                    W value = load(&v.at[j]);
                    if (!(value > load(&best.at[j]) || value != value)) continue;
                    best.at[j] = v.at[j];
                    where.at[j] = (uint8_t)(row * w.kernel + column);
                }
            }
        }
        store_pack<N>(y + i * N, best);
        if (index) store_pack<N>(index + i * N, where);
    }
}

template <typename T, int N, typename I>
static __global__ void __launch_bounds__(256)
    max_windows_grad(window w, const T *dy, const uint8_t *index, T *dx, int64_t items)
{
    typedef WIDE(T) W;
    EACH_INDEX(i, items)
    {
        place p = place_of<N, I>((I)i, w.height, w.width, w.channels);
        span  r = covering(p.row, w.out_height, w), s = covering(p.column, w.out_width, w);
        W     sum[N];
#pragma unroll
        for (int j = 0; j < N; j++) sum[j] = 0;
        for (int row = r.from; row < r.to; row++) {
            for (int column = s.from; column < s.to; column++) {
                int64_t at = ((p.image * w.out_height + row) * w.out_width + column) * w.channels + p.channel;
                int here = (p.row + w.padding - row * w.stride) * w.kernel + p.column + w.padding - column * w.stride;
                lk__pack<uint8_t, N> where = load_pack<N>(index + at);
                lk__pack<T, N>       d = load_pack<N>(dy + at);
#pragma unroll
                for (int j = 0; j < N; j++)
                    if (where.at[j] == here) sum[j] += load(&d.at[j]);
            }
        }
        lk__pack<T, N> out;
#pragma unroll
        for (int j = 0; j < N; j++) store(&out.at[j], sum[j]);
        store_pack<N>(dx + i * N, out);
    }
}

template <typename T, int N, typename I>
static __global__ void __launch_bounds__(256) avg_windows(window w, const T *x, T *y, int64_t items)
{
    typedef WIDE(T) W;
    EACH_INDEX(i, items)
    {
        place p = place_of<N, I>((I)i, w.out_height, w.out_width, w.channels);
        span  r = clip(p.row, w.height, w), s = clip(p.column, w.width, w);
        W     sum[N];
#pragma unroll
        for (int j = 0; j < N; j++) sum[j] = 0;
        for (int row = r.from; row < r.to; row++) {
            const T *line = x + ((p.image * w.height + r.at + row) * w.width + s.at) * w.channels + p.channel;
            for (int column = s.from; column < s.to; column++) {
                lk__pack<T, N> v = load_pack<N>(line + (int64_t)column * w.channels);
#pragma unroll
                for (int j = 0; j < N; j++) sum[j] += load(&v.at[j]);
            }
        }
        lk__pack<T, N> out;
#pragma unroll
        for (int j = 0; j < N; j++) store(&out.at[j], sum[j] / (W)(w.kernel * w.kernel));
        store_pack<N>(y + i * N, out);
    }
}

template <typename T, int N, typename I>
static __global__ void __launch_bounds__(256) avg_windows_grad(window w, const T *dy, T *dx, int64_t items)
{
    typedef WIDE(T) W;
    EACH_INDEX(i, items)
    {
        place p = place_of<N, I>((I)i, w.height, w.width, w.channels);
        span  r = covering(p.row, w.out_height, w), s = covering(p.column, w.out_width, w);
        W     sum[N];
#pragma unroll
        for (int j = 0; j < N; j++) sum[j] = 0;
        for (int row = r.from; row < r.to; row++) {
            for (int column = s.from; column < s.to; column++) {
                lk__pack<T, N> d =
                    load_pack<N>(dy + ((p.image * w.out_height + row) * w.out_width + column) * w.channels + p.channel);
#pragma unroll
                for (int j = 0; j < N; j++) sum[j] += load(&d.at[j]) / (W)(w.kernel * w.kernel);
            }
        }
        lk__pack<T, N> out;
#pragma unroll
        for (int j = 0; j < N; j++) store(&out.at[j], sum[j]);
        store_pack<N>(dx + i * N, out);
    }
}

/* Block (image, strip of channels): rows of the layout are the image's pixels. */
template <typename T, int N>
static __global__ void __launch_bounds__(COLUMN_THREADS) global_average(column_layout l, const T *x, T *y)
{
    typedef WIDE(T) W;
    __shared__ lk__pack<W, N> shared[COLUMN_THREADS];
    const int     pack = blockIdx.y * l.width + threadIdx.x % l.width, c = blockIdx.y * l.width * N + threadIdx.x;
    const int64_t image = blockIdx.x;
    W             sum[N];
#pragma unroll
    for (int j = 0; j < N; j++) sum[j] = 0;
    for (int64_t row = threadIdx.x / l.width; pack < l.packs && row < l.rows; row += l.height) {
        lk__pack<T, N> v = load_pack<N>(x + (image * l.rows + row) * l.columns + pack * N);
#pragma unroll
        for (int j = 0; j < N; j++) sum[j] += load(&v.at[j]);
    }
    double total = strip_sum<N, W>(sum, l, shared);
    if ((int)threadIdx.x < l.width * N && c < l.columns) store(y + image * l.columns + c, (W)(total / (double)l.rows));
}

template <typename T, int N, typename I>
static __global__ void __launch_bounds__(256)
    global_average_grad(int64_t pixels, int channels, const T *dy, T *dx, int64_t items)
{
    typedef WIDE(T) W;
    EACH_INDEX(i, items)
    {
        I              packs = (I)(channels / N), pixel = (I)i / packs, pack = (I)i - pixel * packs;
        lk__pack<T, N> d = load_pack<N>(dy + (int64_t)(pixel / (I)pixels) * channels + (int64_t)pack * N), out;
#pragma unroll
        for (int j = 0; j < N; j++) store(&out.at[j], load(&d.at[j]) / (W)pixels);
        store_pack<N>(dx + i * N, out);
    }
}

/* ---- launching ---- */

/* Runs the statements with N and I for `elements` elements of `channels` channels: packs of 16 bytes where they fit. */
#define BY_PACK(T, channels, packs, elements, N, I, items, ...)                  \
    do {                                                                         \
        if ((channels) % PACK(T) == 0 && (packs)) {                              \
            constexpr int N = PACK(T);                                           \
            const int64_t items = (elements) / N;                                \
            if (items < INT32_MAX) {                                             \
                typedef uint32_t I;                                              \
                __VA_ARGS__                                                      \
            } else {                                                             \
                typedef int64_t I;                                               \
                __VA_ARGS__                                                      \
            }                                                                    \
        } else {                                                                 \
            constexpr int N = 1;                                                 \
            const int64_t items = (elements);                                    \
            if (items < INT32_MAX) {                                             \
                typedef uint32_t I;                                              \
                __VA_ARGS__                                                      \
            } else {                                                             \
                typedef int64_t I;                                               \
                __VA_ARGS__                                                      \
            }                                                                    \
        }                                                                        \
    } while (0)

static bool aligned(const void *a, const void *b, const void *index)
{
    return (uintptr_t)a % 16 == 0 && (uintptr_t)b % 16 == 0 && (uintptr_t)index % 16 == 0;
}

extern "C" lk_status lk__cuda_max_pool2d(const lk__kernel_call *call)
{
    window  w = describe_call(call, &call->in[0], &call->out[0]);
    int64_t elements = lk__operand_elements(&call->out[0]);
    if (elements == 0) return LK_OK;
    BY_ELEMENT(call->in[0].dtype, T, {
        const T *x = in_data<T>(call, 0);
        T       *y = out_data<T>(call, 0);
        uint8_t *index = out_data<uint8_t>(call, 1);
        BY_PACK(T, w.channels, aligned(x, y, index), elements, N, I, items, {
            LAUNCH((max_windows<T, N, I>), cuda_blocks(items, 256), 256, 0, cuda_stream(call), w, x, y, index, items);
        });
    })
    return lk__cuda_launched(call);
}

extern "C" lk_status lk__cuda_max_pool2d_grad(const lk__kernel_call *call)
{
    window  w = describe_call(call, &call->out[0], &call->in[0]);
    int64_t elements = lk__operand_elements(&call->out[0]);
    if (elements == 0) return LK_OK;
    BY_ELEMENT(call->in[0].dtype, T, {
        const T       *dy = in_data<T>(call, 0);
        const uint8_t *index = in_data<uint8_t>(call, 1);
        T             *dx = out_data<T>(call, 0);
        BY_PACK(T, w.channels, aligned(dy, dx, index), elements, N, I, items, {
            LAUNCH((max_windows_grad<T, N, I>), cuda_blocks(items, 256), 256, 0, cuda_stream(call), w, dy, index, dx,
                   items);
        });
    })
    return lk__cuda_launched(call);
}

extern "C" lk_status lk__cuda_avg_pool2d(const lk__kernel_call *call)
{
    window  w = describe_call(call, &call->in[0], &call->out[0]);
    int64_t elements = lk__operand_elements(&call->out[0]);
    if (elements == 0) return LK_OK;
    BY_ELEMENT(call->in[0].dtype, T, {
        const T *x = in_data<T>(call, 0);
        T       *y = out_data<T>(call, 0);
        BY_PACK(T, w.channels, aligned(x, y, NULL), elements, N, I, items, {
            LAUNCH((avg_windows<T, N, I>), cuda_blocks(items, 256), 256, 0, cuda_stream(call), w, x, y, items);
        });
    })
    return lk__cuda_launched(call);
}

extern "C" lk_status lk__cuda_avg_pool2d_grad(const lk__kernel_call *call)
{
    window  w = describe_call(call, &call->out[0], &call->in[0]);
    int64_t elements = lk__operand_elements(&call->out[0]);
    if (elements == 0) return LK_OK;
    BY_ELEMENT(call->in[0].dtype, T, {
        const T *dy = in_data<T>(call, 0);
        T       *dx = out_data<T>(call, 0);
        BY_PACK(T, w.channels, aligned(dy, dx, NULL), elements, N, I, items, {
            LAUNCH((avg_windows_grad<T, N, I>), cuda_blocks(items, 256), 256, 0, cuda_stream(call), w, dy, dx, items);
        });
    })
    return lk__cuda_launched(call);
}

extern "C" lk_status lk__cuda_global_avg_pool2d(const lk__kernel_call *call)
{
    const lk__kernel_operand *x = &call->in[0];
    int64_t                   images = x->dims[0], pixels = x->dims[2] * x->dims[3];
    if (images == 0 || x->dims[1] == 0) return LK_OK;
    BY_ELEMENT(x->dtype, T, {
        const T      *from = in_data<T>(call, 0);
        T            *y = out_data<T>(call, 0);
        bool          packs = x->dims[1] % PACK(T) == 0 && aligned(from, NULL, NULL);
        column_layout l = column_layout_of(pixels, x->dims[1], packs ? PACK(T) : 1);
        dim3          grid((unsigned)images, (unsigned)l.strips);
        if (packs)
            LAUNCH((global_average<T, PACK(T)>), grid, COLUMN_THREADS, 0, cuda_stream(call), l, from, y);
        else
            LAUNCH((global_average<T, 1>), grid, COLUMN_THREADS, 0, cuda_stream(call), l, from, y);
    })
    return lk__cuda_launched(call);
}

extern "C" lk_status lk__cuda_global_avg_pool2d_grad(const lk__kernel_call *call)
{
    const lk__kernel_operand *to = &call->out[0];
    int64_t                   elements = lk__operand_elements(to), pixels = to->dims[2] * to->dims[3];
    int                       channels = (int)to->dims[1];
    if (elements == 0) return LK_OK;
    BY_ELEMENT(to->dtype, T, {
        const T *dy = in_data<T>(call, 0);
        T       *dx = out_data<T>(call, 0);
        BY_PACK(T, channels, aligned(dy, dx, NULL), elements, N, I, items, {
            LAUNCH((global_average_grad<T, N, I>), cuda_blocks(items, 256), 256, 0, cuda_stream(call), pixels, channels,
                   dy, dx, items);
        });
    })
    return lk__cuda_launched(call);
}
