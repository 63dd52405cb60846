/* conv_first.cu - 3×3 convolutions of f32 over images of 3 channels, and their grad_weight (conv_direct.h).
 *
 * There is little to multiply, so everything else must take little time. In shared memory a pixel has 4 floats, the
 * last of which is not used. Forward: a thread keeps all weights of two output channels in registers and computes 2
 * rows × 4 columns of pixels at a time. grad_weight: a thread has all 27 sums of four output channels, over some of the
 * tile's windows of 2×2 pixels. */
#include "device/cuda/conv_direct_sums.h"

enum { ROWS = 8, COLUMNS = 32, ACROSS = COLUMNS + 2, IMAGE = (ROWS + 2) * ACROSS * 4, TAPS = 27 };

static __device__ __forceinline__ void load_image(const direct_image &from, const direct_place &place, float *to,
                                                  int threads)
{
    constexpr int row_floats = ACROSS * 3;
#pragma unroll 5
    for (int i = threadIdx.x; i < (ROWS + 2) * row_floats; i += threads) {
        int   row = i / row_floats, rest = i % row_floats, column = rest / 3, channel = rest % 3;
        int   y = place.row + row - 1, x = place.column + column - 1;
        bool  inside = (unsigned)y < (unsigned)from.h && (unsigned)x < (unsigned)from.w;
        float value = inside ? from.data[((int64_t)(place.n * from.h + y) * from.w + x) * 3 + channel] : 0;
        to[(row * ACROSS + column) * 4 + channel] = value;
    }
}

/* ---- forward ---- */

/* WIDTH output channels a block, which are WIDTH/2 threads side by side: channels lane and lane + WIDTH/2. */
enum { FORWARD_THREADS = 256 };

template <int WIDTH>
static __global__ void __launch_bounds__(FORWARD_THREADS, 2)
    convolve_first(direct_image from, const float *w, direct_epilogue to)
{
    await_previous();
    constexpr int    lanes = WIDTH / 2, strips = ROWS * COLUMNS / 8;
    __shared__ float image[IMAGE], weights[WIDTH * TAPS];
    direct_place     place = place_tile<ROWS, COLUMNS>(blockIdx.x, from.h, from.w);
    int              first = blockIdx.y * WIDTH, lane = threadIdx.x % lanes;
    float            own[2][TAPS], bias[2];
    load_image(from, place, image, FORWARD_THREADS);
    for (int i = threadIdx.x; i < WIDTH * TAPS; i += FORWARD_THREADS) weights[i] = w[first * TAPS + i];
#pragma unroll
    for (int q = 0; q < 2; q++) bias[q] = to.bias ? to.bias[first + lane + q * lanes] : 0;
    __syncthreads();
#pragma unroll
    for (int q = 0; q < 2; q++)
#pragma unroll
        for (int k = 0; k < TAPS; k++)
            own[q][k] = weights[(lane + q * lanes) * TAPS + k]; /* 27 is odd: no bank conflicts */

#pragma unroll 1
    for (int strip = threadIdx.x / lanes; strip < strips; strip += FORWARD_THREADS / lanes) {
        int   row = strip / (COLUMNS / 4) * 2, column = strip % (COLUMNS / 4) * 4;
        float sum[2][2][4] = {}; /* channel, row, column */
#pragma unroll
        for (int i = 0; i < 4; i++) { /* rows of the image: tap i of the upper row of pixels, i - 1 of the lower one */
            quad x[6];
#pragma unroll
            for (int p = 0; p < 6; p++) x[p] = load_pack<4>(image + ((row + i) * ACROSS + column + p) * 4);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                if (i - r < 0 || i - r > 2) continue;
#pragma unroll
                for (int t = 0; t < 3; t++)
#pragma unroll
                    for (int c = 0; c < 3; c++)
#pragma unroll
                        for (int q = 0; q < 2; q++)
#pragma unroll
                            for (int p = 0; p < 4; p++)
                                sum[q][r][p] += x[p + t].at[c] * own[q][c * 9 + (i - r) * 3 + t];
            }
        }
        int y = place.row + row, x = place.column + column;
#pragma unroll
        for (int q = 0; q < 2; q++) {
            int channel = first + lane + q * lanes;
            if (to.pools) {
#pragma unroll
                for (int p = 0; p < 4; p += 2) {
                    int64_t at = ((int64_t)(place.n * (to.h / 2) + y / 2) * (to.w / 2) + (x + p) / 2) * to.c + channel;
                    window_maximum<float> maximum;
                    maximum.begin(sum[q][0][p] + bias[q]);
                    maximum.take(sum[q][0][p + 1] + bias[q], 1);
                    maximum.take(sum[q][1][p] + bias[q], 2);
                    maximum.take(sum[q][1][p + 1] + bias[q], 3);
                    maximum.put(to.relu, to.y + at, to.index ? to.index + at : NULL);
                }
                continue;
            }
#pragma unroll
            for (int r = 0; r < 2; r++)
#pragma unroll
                for (int p = 0; p < 4; p++) {
                    float value = sum[q][r][p] + bias[q];
                    to.y[((int64_t)(place.n * to.h + y + r) * to.w + x + p) * to.c + channel] =
                        to.relu && value < 0 ? 0.0f : value;
                }
        }
    }
}

/* ---- grad_weight ---- */

enum { WEIGHT_THREADS = 128, WINDOWS = ROWS * COLUMNS / 4 };
static const int64_t FIRST_BLOCKS = 256;

/* The gradients of a window's pixels, four output channels: with a pool that of the window, where its maximum is.
 * Loaded while the window before is summed. */
template <bool POOLED> struct window_gradients {
    quad                            values[POOLED ? 1 : 4];
    positions                       at;
    __device__ __forceinline__ void fetch(const direct_image &dy, const direct_place &place, int window, int channel)
    {
        int y = place.row + window / (COLUMNS / 2) * 2, x = place.column + window % (COLUMNS / 2) * 2;
        if constexpr (POOLED) {
            int64_t from = ((int64_t)(place.n * (dy.h / 2) + y / 2) * (dy.w / 2) + x / 2) * dy.c + channel;
            values[0] = load_pack<4>(dy.data + from);
            at = load_pack<4>(dy.index + from);
        } else {
#pragma unroll
            for (int p = 0; p < 4; p++)
                values[p] =
                    load_pack<4>(dy.data + ((int64_t)(place.n * dy.h + y + p / 2) * dy.w + x + p % 2) * dy.c + channel);
        }
    }
    __device__ __forceinline__ void scatter(float (&g)[4][4]) const
    {
#pragma unroll
        for (int p = 0; p < 4; p++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                g[p][e] = POOLED ? (at.at[e] == p ? values[0].at[e] : 0.0f) : values[POOLED ? 0 : p].at[e];
    }
};

/* sum[tap][channel of x][output] += over a window's four pixels. */
static __device__ __forceinline__ void sum_window(const float *image, const float (&g)[4][4], float (&sum)[9][3][4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        quad x[4];
#pragma unroll
        for (int p = 0; p < 4; p++) x[p] = load_pack<4>(image + (i * ACROSS + p) * 4);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (i - r < 0 || i - r > 2) continue;
#pragma unroll
            for (int s = 0; s < 2; s++)
#pragma unroll
                for (int t = 0; t < 3; t++)
#pragma unroll
                    for (int c = 0; c < 3; c++)
#pragma unroll
                        for (int e = 0; e < 4; e++) sum[(i - r) * 3 + t][c][e] += x[s + t].at[c] * g[r * 2 + s][e];
        }
    }
}

/* Blocks: x: parts, y: tiles of output channels. */
template <int WIDTH, bool POOLED>
static __global__ void __launch_bounds__(WEIGHT_THREADS, 2)
    differentiate_first(direct_image from, direct_image dy, weight_parts parts)
{
    await_previous();
    constexpr int lanes = WIDTH / 4, shares = WEIGHT_THREADS / lanes; /* shares of the windows */
    DYNAMIC_SHARED(float, shared);
    int     lane = threadIdx.x % lanes, share = threadIdx.x / lanes, o = blockIdx.y * WIDTH, channel = o + lane * 4;
    int64_t first = blockIdx.x * parts.each, end = min(first + parts.each, parts.tiles);
    alignas(16) float sum[9][3][4] = {}, bias[4] = {};
    for (int64_t tile = first; tile < end; tile++) {
        direct_place             place = place_tile<ROWS, COLUMNS>(tile, from.h, from.w);
        window_gradients<POOLED> next;
        next.fetch(dy, place, share, channel);
        __syncthreads(); /* the tile before has been read */
        load_image(from, place, shared, WEIGHT_THREADS);
        __syncthreads();
#pragma unroll 1
        for (int window = share; window < WINDOWS; window += shares) {
            float g[4][4];
            next.scatter(g);
            if (window + shares < WINDOWS) next.fetch(dy, place, window + shares, channel);
            sum_window(shared + (window / (COLUMNS / 2) * 2 * ACROSS + window % (COLUMNS / 2) * 2) * 4, g, sum);
#pragma unroll
            for (int e = 0; e < 4; e++) bias[e] += (g[0][e] + g[1][e]) + (g[2][e] + g[3][e]);
        }
    }
    __syncthreads();
    constexpr int each = (TAPS + 1) * WIDTH; /* of a share */
    float        *mine = shared + share * each + lane * 4;
#pragma unroll
    for (int k = 0; k < TAPS; k++) store_pack(mine + k * WIDTH, *(quad *)&sum[k / 3][k % 3][0]);
    store_pack(mine + TAPS * WIDTH, *(quad *)&bias[0]);
    __syncthreads();
    for (int i = threadIdx.x; i < each / 4; i += WEIGHT_THREADS) {
        quad total = load_pack<4>(shared + i * 4);
#pragma unroll 8
        for (int s = 1; s < shares; s++) {
            quad other = load_pack<4>(shared + s * each + i * 4);
#pragma unroll
            for (int e = 0; e < 4; e++) total.at[e] += other.at[e];
        }
        int k = i * 4 / WIDTH, column = o + i * 4 % WIDTH;
        if (k < TAPS)
            store_pack(parts.sums + ((int64_t)blockIdx.x * TAPS + k) * parts.o + column, total);
        else if (parts.bias)
            store_pack(parts.bias + (int64_t)blockIdx.x * parts.o + column, total);
    }
}

/* ---- the operations ---- */

static bool    tiles_fit(const conv_shape &v) { return v.h % ROWS == 0 && v.w % COLUMNS == 0 && v.o % 16 == 0; }
static int64_t tiles_of(const conv_shape &v) { return (int64_t)v.n * (v.h / ROWS) * (v.w / COLUMNS); }
static int     width_of(const conv_shape &v) { return v.o % 32 == 0 ? 32 : 16; }
static int64_t most_of(const conv_shape &v) { return most_parts(FIRST_BLOCKS, v.o / width_of(v)); }

template <int WIDTH> static lk_status run_forward(const lk__kernel_call *call, const conv_shape &v)
{
    direct_image    from = {in_data<float>(call, 0), NULL, v.h, v.w, v.c};
    direct_epilogue to = {out_data<float>(call, 0),
                          out_data<uint8_t>(call, 1),
                          in_data<float>(call, 2),
                          v.h,
                          v.w,
                          v.o,
                          v.relu,
                          v.pool == 2};
    dim3            grid((unsigned)tiles_of(v), (unsigned)(v.o / WIDTH));
    LAUNCH_EARLY((convolve_first<WIDTH>), grid, FORWARD_THREADS, 0, cuda_stream(call), from, in_data<float>(call, 1),
                 to);
    return lk__cuda_launched(call);
}

template <int WIDTH> static lk_status run_weight(const lk__kernel_call *call, const conv_shape &v)
{
    constexpr int  bytes = WEIGHT_THREADS / (WIDTH / 4) * (TAPS + 1) * WIDTH * (int)sizeof(float);
    const uint8_t *index = v.pool > 1 ? in_data<uint8_t>(call, 2) : NULL;
    direct_image   x = {in_data<float>(call, 0), NULL, v.h, v.w, v.c},
                 dy = {in_data<float>(call, 1), index, v.h, v.w, v.o};
    weight_parts parts = divide_tiles(tiles_of(v), most_of(v), v, out_data<float>(call, 1) != NULL, call->workspace);
    dim3         grid((unsigned)parts.count, (unsigned)(v.o / WIDTH));
    if (index ? !allow_shared(differentiate_first<WIDTH, true>, bytes)
              : !allow_shared(differentiate_first<WIDTH, false>, bytes))
        return LK_EUNSUPPORTED;
    if (index)
        LAUNCH_EARLY((differentiate_first<WIDTH, true>), grid, WEIGHT_THREADS, bytes, cuda_stream(call), x, dy, parts);
    else
        LAUNCH_EARLY((differentiate_first<WIDTH, false>), grid, WEIGHT_THREADS, bytes, cuda_stream(call), x, dy, parts);
    launch_add_parts(call, parts);
    return lk__cuda_launched(call);
}

lk_status lk__cuda_conv_first_run(const lk__kernel_call *call, conv_direction direction)
{
    conv_shape v = lk__cuda_conv_shape(call, direction);
    if (!tiles_fit(v) || direction == CONV_GRAD_INPUT) return LK_EUNSUPPORTED;
    if (direction == CONV_FORWARD) return width_of(v) == 32 ? run_forward<32>(call, v) : run_forward<16>(call, v);
    return width_of(v) == 32 ? run_weight<32>(call, v) : run_weight<16>(call, v);
}

size_t lk__cuda_conv_first_workspace(const conv_shape &v)
{
    return tiles_fit(v) ? parts_bytes(tiles_of(v), most_of(v), v) : 0;
}
