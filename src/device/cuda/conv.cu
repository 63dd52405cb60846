/* conv.cu - conv2d and its gradients by our own kernels, for every shape and type; cuDNN's are in conv_dnn.cu.
 *
 * Weights, which are (O, C/groups, kh, kw), are first stored as matrices whose rows are (tap, channel), so that
 * neighbouring threads read neighbouring elements. */
#include "device/cuda/conv_ways.h"
#include "device/cuda/gemm.h"

enum { CHUNK = 512 }; /* of the sums over taps and channels; see tile.h */

static size_t round_up(size_t bytes) { return (bytes + 255) / 256 * 256; }

/* Whether four channels can be loaded at once: for f32, as f64 is for numerical checks and bf16 has tensor cores. */
template <typename T> static constexpr int PACKED = sizeof(T) == sizeof(float) ? 4 : 1;
static bool is_aligned(const lk__kernel_operand *x) { return (uintptr_t)x->data % 32 == 0; }
static bool loads_packs(const lk__kernel_call *call, const conv_shape &v)
{
    return v.cg % 4 == 0 && v.og % 4 == 0 && is_aligned(&call->in[0]) && is_aligned(&call->in[1]);
}

/* ---- forward ---- */

/* Bias, relu and a 2×2 pool, whose windows are the four rows that a thread has. */
template <typename T> struct forward_epilogue {
    typedef WIDE(T) W;
    T              *y;
    uint8_t        *index;
    const T        *bias;
    int64_t         rows; /* pixels before the pool */
    int             o, og;
    bool            relu, pools;
    __device__ void select(int64_t group)
    {
        y += group * og;
        if (index) index += group * og;
        if (bias) bias += group * og;
    }
    __device__ void put(int64_t row, int64_t column, const W (&sums)[4][4]) const
    {
#pragma unroll
        for (int q = 0; q < 4; q++) {
            if (column + q >= og) return;
            W b = bias ? load(bias + column + q) : (W)0;
            if (pools) {
                window_maximum<W> maximum;
                maximum.begin(sums[0][q] + b);
#pragma unroll
                for (int r = 1; r < 4; r++) maximum.take(sums[r][q] + b, r);
                int64_t at = row / 4 * o + column + q;
                if (row < rows) maximum.put(relu, y + at, index ? index + at : NULL);
                continue;
            }
#pragma unroll
            for (int r = 0; r < 4; r++) {
                W x = sums[r][q] + b;
                if (row + r < rows) store(y + (row + r) * o + column + q, relu && x < 0 ? (W)0 : x);
            }
        }
    }
    __device__ void put_one(int64_t, int64_t, int64_t, W) const {} /* the sums are never split */
};

/* Sums with the bias, as they are: what a pool of another size reads, or what other ranks add their summands to. */
template <typename T> struct forward_wide_epilogue {
    typedef WIDE(T) W;
    W              *to;
    const T        *bias;
    int64_t         rows;
    int             o, og;
    __device__ void select(int64_t group)
    {
        to += group * og;
        if (bias) bias += group * og;
    }
    __device__ void put(int64_t row, int64_t column, const W (&sums)[4][4]) const
    {
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int q = 0; q < 4; q++)
                if (row + r < rows && column + q < og)
                    to[(row + r) * o + column + q] = sums[r][q] + (bias ? load(bias + column + q) : (W)0);
    }
    __device__ void put_one(int64_t, int64_t, int64_t, W) const {}
};

/* The pool of other sizes: from the convolution's results in the order of windows. */
template <typename T>
static __global__ void pool_windows(const WIDE(T) * from, int area, int64_t o, int64_t n, bool relu, T *y,
                                    uint8_t *index)
{
    EACH_INDEX(i, n)
    {
        int64_t window = i / o, channel = i % o;
        const WIDE(T) *at = from + window * area * o + channel;
        window_maximum<WIDE(T)> maximum;
        maximum.begin(at[0]);
        for (int q = 1; q < area; q++) maximum.take(at[q * o], q);
        maximum.put(relu, y + i, index ? index + i : NULL);
    }
}

static bool pools_apart(const conv_shape &v) { return v.pool > 2; }

/* N: how many channels are loaded at once. */
template <typename T, int N> static void run_forward(const lk__kernel_call *call, const conv_shape &v)
{
    typedef WIDE(T) W;
    cudaStream_t stream = cuda_stream(call);
    T           *weights = (T *)call->workspace;
    bool         wide = lk__cuda_conv_gives_sums(call);
    W           *full =
        wide ? out_data<W>(call, 0) : (W *)((char *)call->workspace + round_up((size_t)weights_of(v) * sizeof(T)));
    const T *bias = in_data<T>(call, 2);
    int      deep = v.taps * v.cg;
    pack<T>(stream, v, in_data<T>(call, 1), weights, false);
    patches_by_pixel<T, N>   a = {in_data<T>(call, 0), v};
    tile_matrix<T, false, N> b = {weights, v.og, (int64_t)deep * v.og, v.og, 0};
    tile_job                 job = make_tile_job(v.pixels_y, v.og, deep, CHUNK);
    if (!pools_apart(v) && !wide) {
        forward_epilogue<T> to = {out_data<T>(call, 0), out_data<uint8_t>(call, 1), bias, v.pixels_y, v.o, v.og, v.relu,
                                  v.pool == 2};
        multiply<W>(stream, a, b, to, job, v.groups);
        return;
    }
    forward_wide_epilogue<T> to = {full, bias, v.pixels_y, v.o, v.og};
    multiply<W>(stream, a, b, to, job, v.groups);
    if (wide) return;
    int64_t n = v.windows * v.o;
    LAUNCH((pool_windows<T>), cuda_blocks(n, 256), 256, 0, stream, full, v.pool * v.pool, v.o, n, v.relu,
           out_data<T>(call, 0), out_data<uint8_t>(call, 1));
}

static lk_status own_forward(const lk__kernel_call *call)
{
    conv_shape v = lk__cuda_conv_shape(call, CONV_FORWARD);
    if (v.windows <= 0 || v.o <= 0) return LK_OK;
    if (!conv_fits(v)) return lk__cuda_no_kernel(call);
    BY_ELEMENT(call->in[0].dtype, T, {
        if (loads_packs(call, v))
            run_forward<T, PACKED<T>>(call, v);
        else
            run_forward<T, 1>(call, v);
    })
    return lk__cuda_launched(call);
}

static size_t forward_workspace(const lk__kernel_call *call)
{
    conv_shape v = lk__cuda_conv_shape(call, CONV_FORWARD);
    size_t     size = cuda_size(call->in[0].dtype), wide = size < 4 ? 4 : size;
    return round_up((size_t)weights_of(v) * size) + (pools_apart(v) ? (size_t)(v.pixels_y * v.o) * wide : 0);
}

/* ---- grad_input ---- */

/* Y: the type of the results, T or that of sums. */
template <typename T, typename Y> struct input_epilogue {
    typedef WIDE(T) W;
    Y              *dx;
    int64_t         rows;
    int             c, cg;
    __device__ void select(int64_t group) { dx += group * cg; }
    __device__ void put(int64_t row, int64_t column, const W (&sums)[4][4]) const
    {
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int q = 0; q < 4; q++)
                if (row + r < rows && column + q < cg) store(dx + (row + r) * c + column + q, sums[r][q]);
    }
    __device__ void put_one(int64_t, int64_t, int64_t, W) const {}
};

template <typename T, int N> static void run_input(const lk__kernel_call *call, const conv_shape &v)
{
    T  *weights = (T *)call->workspace;
    int deep = v.taps * v.og;
    pack<T>(cuda_stream(call), v, in_data<T>(call, 1), weights, true);
    gradient_by_pixel<T, N>  a = {in_data<T>(call, 0), v.pool > 1 ? in_data<uint8_t>(call, 2) : NULL, v};
    tile_matrix<T, false, N> b = {weights, v.cg, (int64_t)deep * v.cg, v.cg, 0};
    tile_job                 job = make_tile_job(v.pixels_x, v.cg, deep, CHUNK);
    if (lk__cuda_conv_gives_sums(call)) {
        input_epilogue<T, WIDE(T)> to = {out_data<WIDE(T)>(call, 0), v.pixels_x, v.c, v.cg};
        multiply<WIDE(T)>(cuda_stream(call), a, b, to, job, v.groups);
        return;
    }
    input_epilogue<T, T> to = {out_data<T>(call, 0), v.pixels_x, v.c, v.cg};
    multiply<WIDE(T)>(cuda_stream(call), a, b, to, job, v.groups);
}

static lk_status own_input(const lk__kernel_call *call)
{
    conv_shape v = lk__cuda_conv_shape(call, CONV_GRAD_INPUT);
    if (v.pixels_x <= 0 || v.c <= 0) return LK_OK;
    if (!conv_fits(v)) return lk__cuda_no_kernel(call);
    BY_ELEMENT(call->in[0].dtype, T, {
        if (loads_packs(call, v))
            run_input<T, PACKED<T>>(call, v);
        else
            run_input<T, 1>(call, v);
    })
    return lk__cuda_launched(call);
}

static size_t input_workspace(const lk__kernel_call *call)
{
    return (size_t)weights_of(lk__cuda_conv_shape(call, CONV_GRAD_INPUT)) * cuda_size(call->in[0].dtype);
}

/* ---- grad_weight ---- */

/* Chunks of pixels: enough blocks for a GPU, as long as their sums fit; short ones, as they are added in order. */
static const int64_t PARTIALS = 32 << 20; /* bytes */
static tile_job      weight_job(const conv_shape &v, int64_t *each)
{
    int64_t n = (int64_t)v.taps * v.cg, tiles = cuda_tiles(v.og, 32) * cuda_tiles(n, 32) * v.groups;
    int64_t wanted = tiles > 0 && tiles < 512 ? 512 / tiles : 1, longest = cuda_tiles(v.pixels_y, wanted);
    int64_t chunk = cuda_tiles(longest < 128 ? 128 : longest > 2048 ? 2048 : longest, 16) * 16;
    *each = ((int64_t)v.o * n + v.o) * (int64_t)sizeof(double);
    tile_job job = make_tile_job(v.og, n, v.pixels_y, chunk);
    job.split = job.chunks > 1 && job.chunks < 65536 && job.chunks * *each <= PARTIALS;
    job.in_lanes = true;
    return job;
}

template <typename T, int N, int P> static lk_status run_weight(const lk__kernel_call *call, const conv_shape &v)
{
    typedef WIDE(T) W;
    const T                  *x = in_data<T>(call, 0), *dy = in_data<T>(call, 1);
    const uint8_t            *index = v.pool > 1 ? in_data<uint8_t>(call, 2) : NULL;
    gradient_by_channel<T, N> a = {dy, index, v};
    patches_by_tap<T, P>      b = {x, v};
    weight_epilogue<T>        to = {out_data<W>(call, 0), v.cg, v.og, v.taps, v.by_cg};
    int64_t                   each;
    tile_job                  job = weight_job(v, &each);
    bool                      alone = v.groups > 1;
    job.partials = call->workspace;
    if (!alone) job.a_sums = out_data<W>(call, 1);
    multiply<W>(cuda_stream(call), a, b, to, job, v.groups);
    if (!alone || !out_data<W>(call, 1)) return LK_OK;
    return lk__cuda_column_sums(call, dy, call->in[1].dtype, index, v.windows, v.o, NULL, out_data<W>(call, 1),
                                call->workspace);
}

static lk_status own_weight(const lk__kernel_call *call)
{
    conv_shape v = lk__cuda_conv_shape(call, CONV_GRAD_WEIGHT);
    if (!conv_fits(v)) return lk__cuda_no_kernel(call);
    lk_status status = LK_OK;
    BY_ELEMENT(call->in[0].dtype, T, {
        status = loads_packs(call, v)                        ? run_weight<T, PACKED<T>, PACKED<T>>(call, v)
                 : v.og % 4 == 0 && is_aligned(&call->in[1]) ? run_weight<T, PACKED<T>, 1>(call, v)
                                                             : run_weight<T, 1, 1>(call, v);
    })
    return status < 0 ? status : lk__cuda_launched(call);
}

static size_t weight_workspace(const lk__kernel_call *call)
{
    conv_shape v = lk__cuda_conv_shape(call, CONV_GRAD_WEIGHT);
    int64_t    each;
    tile_job   job = weight_job(v, &each);
    int64_t    partials = job.chunks > 1 ? job.chunks * each : 0; /* fewer samples may have fewer, which are split */
    int64_t    sums = v.groups > 1 ? (int64_t)lk__cuda_column_sums_workspace(v.windows, v.o) : 0;
    if (partials > PARTIALS) partials = PARTIALS;
    return (size_t)(partials > sums ? partials : sums);
}

/* ---- the operations ---- */

conv_shape lk__cuda_conv_shape(const lk__kernel_call *call, conv_direction direction)
{
    const int64_t *x = direction == CONV_GRAD_INPUT ? call->out[0].dims : call->in[0].dims;
    return conv_of(call->attrs, x, direction == CONV_GRAD_WEIGHT ? call->out[0].dims : call->in[1].dims);
}

lk_status lk__cuda_conv_own(const lk__kernel_call *call, conv_direction direction)
{
    lk_status status = lk__cuda_conv_tensor_run(call, direction);
    if (status == LK_EUNSUPPORTED) status = lk__cuda_conv_direct_run(call, direction);
    if (status != LK_EUNSUPPORTED) return status;
    return direction == CONV_FORWARD      ? own_forward(call)
           : direction == CONV_GRAD_INPUT ? own_input(call)
                                          : own_weight(call);
}

/* cuDNN's images have the type of its operands. */
static bool may_use_library(const lk__kernel_call *call, conv_direction direction)
{
    return direction == CONV_GRAD_WEIGHT || !lk__cuda_conv_gives_sums(call);
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

size_t lk__cuda_conv_workspace(const lk__kernel_call *call, conv_direction direction)
{
    size_t own = direction == CONV_FORWARD      ? forward_workspace(call)
                 : direction == CONV_GRAD_INPUT ? input_workspace(call)
                                                : weight_workspace(call);
    own = larger(own, lk__cuda_conv_tensor_workspace(call, direction));
    own = larger(own, lk__cuda_conv_direct_workspace(call, direction));
    return may_use_library(call, direction) ? larger(own, lk__cuda_conv_dnn_workspace(call, direction)) : own;
}

static lk_status run_convolution(const lk__kernel_call *call, conv_direction direction)
{
    lk_status status = may_use_library(call, direction) ? lk__cuda_conv_dnn_run(call, direction) : LK_EUNSUPPORTED;
    return status == LK_EUNSUPPORTED ? lk__cuda_conv_own(call, direction) : status;
}

#define CONVOLUTION(name, direction)                                                                               \
    extern "C" lk_status lk__cuda_##name(const lk__kernel_call *call) { return run_convolution(call, direction); } \
    extern "C" size_t    lk__cuda_##name##_workspace(const lk__kernel_call *call, int)                             \
    {                                                                                                              \
        return lk__cuda_conv_workspace(call, direction);                                                           \
    }                                                                                                              \
    extern "C" lk_status lk__cuda_##name##_prepare(lk__device      *device, const lk__device_kernel *,             \
                                                   lk__kernel_call *call)                                          \
    {                                                                                                              \
        return may_use_library(call, direction) ? lk__cuda_conv_dnn_prepare(device, call, direction) : LK_OK;      \
    }

CONVOLUTION(conv2d, CONV_FORWARD)
CONVOLUTION(conv2d_grad_input, CONV_GRAD_INPUT)
CONVOLUTION(conv2d_grad_weight, CONV_GRAD_WEIGHT)
