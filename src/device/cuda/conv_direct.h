/* device/cuda/conv_direct.h - shared by the specialised kernels for convolutions of f32 with 3×3 kernels at stride 1
 * and padding 1.
 *
 * A block keeps a tile of the image and its border in shared memory, channels last as in global memory, and a thread
 * keeps a strip of pixels times a few channels in registers. A pixel is thus read from shared memory once for three
 * taps, which a product of matrices (conv.cu) cannot do: 20 and more multiplications for each 16 bytes of shared
 * memory, where their 16 are about what its bandwidth allows. Multiplications bound these kernels; bench/cuda_conv.cu
 * measures them. */
#ifndef LK__CUDA_CONV_DIRECT_H
#define LK__CUDA_CONV_DIRECT_H

#include "device/cuda/async_copy.h"
#include "device/cuda/conv_ways.h"

typedef lk__pack<float, 4>   quad;
typedef lk__pack<uint8_t, 4> positions;

static __device__ __forceinline__ quad zero_quad() { return quad{{0, 0, 0, 0}}; }

/* ---- images ---- */

/* An image in memory; with `index`, the gradient of a 2×2 pool, whose windows' values belong to the pixel of the
 * maximum: (h, w) is the size before the pool. */
struct direct_image {
    const float   *data;
    const uint8_t *index; /* NULL: no pool */
    int            h, w, c;
};

/* A tile: rows × columns of pixels from (row, column) of image n. */
struct direct_place {
    int n, row, column;
};
template <int ROWS, int COLUMNS> static __device__ __forceinline__ direct_place place_tile(int64_t tile, int h, int w)
{
    int across = w / COLUMNS, down = h / ROWS, rest = (int)(tile % (across * down));
    return direct_place{(int)(tile / (across * down)), rest / across * ROWS, rest % across * COLUMNS};
}

/* Brings CHANNELS channels (a multiple of 4) of a tile with BORDER pixels around it to shared memory, PITCH floats a
 * pixel; zeros outside of the image. Without a pool these are asynchronous copies. With one, the windows' values are
 * held in registers between fetch and put, so that they travel while the block computes; the tile begins at an even row
 * and column. */
template <int ROWS, int COLUMNS, int BORDER, int CHANNELS, int PITCH, int THREADS> struct direct_loader {
    static constexpr int across = COLUMNS + 2 * BORDER, down = ROWS + 2 * BORDER, packs = CHANNELS / 4;
    static constexpr int items = across * down * packs;
    static constexpr int window_across = COLUMNS / 2 + 2 * BORDER, window_down = ROWS / 2 + 2 * BORDER;
    static constexpr int windows = window_across * window_down * packs, held = (windows + THREADS - 1) / THREADS;
    quad                 values[held];
    positions            at[held];

    __device__ __forceinline__ void copy(const direct_image &from, const direct_place &place, int channel, float *to)
    {
#pragma unroll
        for (int i = threadIdx.x; i < items; i += THREADS) {
            int     pack = i % packs, pixel = i / packs, row = pixel / across, column = pixel % across;
            int     y = place.row + row - BORDER, x = place.column + column - BORDER;
            bool    inside = (unsigned)y < (unsigned)from.h && (unsigned)x < (unsigned)from.w;
            int64_t offset = ((int64_t)(place.n * from.h + y) * from.w + x) * from.c + channel + pack * 4;
            copy_pack(to + pixel * PITCH + pack * 4, from.data + (inside ? offset : 0), inside);
        }
    }
    __device__ __forceinline__ void fetch(const direct_image &from, const direct_place &place, int channel)
    {
        int h = from.h / 2, w = from.w / 2;
#pragma unroll
        for (int q = 0; q < held; q++) {
            int i = threadIdx.x + q * THREADS, pack = i % packs, window = i / packs;
            int y = place.row / 2 + window / window_across - BORDER,
                x = place.column / 2 + window % window_across - BORDER;
            values[q] = zero_quad();
            at[q] = positions{};
            if (i >= windows || (unsigned)y >= (unsigned)h || (unsigned)x >= (unsigned)w) continue;
            int64_t offset = ((int64_t)(place.n * h + y) * w + x) * from.c + channel + pack * 4;
            values[q] = load_pack<4>(from.data + offset);
            at[q] = load_pack<4>(from.index + offset);
        }
    }
    __device__ __forceinline__ void put(float *to) const
    {
#pragma unroll
        for (int q = 0; q < held; q++) {
            int i = threadIdx.x + q * THREADS, pack = i % packs, window = i / packs;
            if (i >= windows) continue;
#pragma unroll
            for (int p = 0; p < 4; p++) {
                int row = (window / window_across - BORDER) * 2 + p / 2 + BORDER;
                int column = (window % window_across - BORDER) * 2 + p % 2 + BORDER;
                if ((unsigned)row >= (unsigned)down || (unsigned)column >= (unsigned)across) continue;
                quad x;
#pragma unroll
                for (int e = 0; e < 4; e++) x.at[e] = at[q].at[e] == p ? values[q].at[e] : 0;
                store_pack(to + (row * across + column) * PITCH + pack * 4, x);
            }
        }
    }
};

/* Shared memory beyond 48 KiB has to be asked for; GPUs of 8.6 and 8.9 have less than some of these kernels use. */
template <typename K> static bool allow_shared(K kernel, int bytes)
{
    if (bytes <= 48 << 10) return true;
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) == cudaSuccess) return true;
    cudaGetLastError(); /* the general kernels do it then */
    return false;
}

/* Bias, relu and pool of four channels: the values of a window's pixels one after the other. */
struct direct_epilogue {
    float       *y;
    uint8_t     *index;
    const float *bias;
    int          h, w, c; /* of the convolution's result, before the pool */
    bool         relu, pools;
    /* sums(p): of pixel p of the window at (row, column), both even where it pools; else of the pixel there. */
    template <typename S>
    __device__ __forceinline__ void put(int n, int row, int column, int channel, const S &sums) const
    {
        quad b = bias ? load_pack<4>(bias + channel) : zero_quad();
        quad x = sums(0);
        if (!pools) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float sum = x.at[e] + b.at[e];
                x.at[e] = relu && sum < 0 ? 0.0f : sum;
            }
            store_pack(y + ((int64_t)(n * h + row) * w + column) * c + channel, x);
            return;
        }
        int64_t               to = ((int64_t)(n * (h / 2) + row / 2) * (w / 2) + column / 2) * c + channel;
        window_maximum<float> maxima[4];
        positions             at;
#pragma unroll
        for (int e = 0; e < 4; e++) maxima[e].begin(x.at[e] + b.at[e]);
#pragma unroll
        for (int p = 1; p < 4; p++) {
            quad next = sums(p);
#pragma unroll
            for (int e = 0; e < 4; e++) maxima[e].take(next.at[e] + b.at[e], p);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) maxima[e].put(relu, &x.at[e], &at.at[e]);
        store_pack(y + to, x);
        if (index) store_pack(index + to, at);
    }
};

#endif
