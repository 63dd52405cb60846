/* conv_tensor.cu - convolutions of bf16 by tensor cores (tensor_tile.h), where the channels of a group are multiples of
 * 8 and no pool is fused. Gradients of weights are f32, and a sample's results have the same bits in every batch; cuDNN
 * guarantees neither. */
#include "device/cuda/conv_ways.h"
#include "device/cuda/gemm.h"
#include "device/cuda/tensor_tile.h"

bool lk__cuda_conv_tensor_supports(const lk__kernel_call *call, const conv_shape &v)
{
    return call->in[0].dtype == LK_BF16 && v.pool == 1 && v.cg % 8 == 0 && v.og % 8 == 0 && conv_fits(v);
}

/* ---- the weight's gradient: chunks of pixels ---- */

static const int64_t PARTIALS = 32 << 20; /* bytes of their sums */

/* A chunk per block, as many as fill a GPU and fit. */
static tile_job weight_job(const conv_shape &v)
{
    int64_t n = (int64_t)v.taps * v.cg, each = (int64_t)v.o * n * (int64_t)sizeof(float);
    int64_t tiles = cuda_tiles(v.og, v.og <= 64 ? 64 : 128) * cuda_tiles(n, 128) * v.groups;
    int64_t wanted = tiles > 0 ? 512 / tiles : 1, most = PARTIALS / (each > 0 ? each : 1);
    if (wanted > most) wanted = most;
    int64_t  chunk = cuda_tiles(cuda_tiles(v.pixels_y, wanted < 1 ? 1 : wanted), 32) * 32;
    tile_job job = make_tile_job(v.og, n, v.pixels_y, chunk < 256 ? 256 : chunk);
    job.split = job.chunks > 1;
    job.in_lanes = true;
    return job;
}

size_t lk__cuda_conv_tensor_workspace(const lk__kernel_call *call, conv_direction direction)
{
    conv_shape v = lk__cuda_conv_shape(call, direction);
    if (!lk__cuda_conv_tensor_supports(call, v)) return 0;
    if (direction != CONV_GRAD_WEIGHT) return (size_t)weights_of(v) * sizeof(bf16);
    size_t each = (size_t)weights_of(v) * sizeof(float), partials = (size_t)weight_job(v).chunks * each;
    size_t sums = lk__cuda_column_sums_workspace(v.windows, v.o);
    return partials > sums ? partials : sums;
}

/* ---- forward and the input's gradient: pixels × channels ---- */

/* Y: the type of the results, that of sums where other ranks have summands too. */
template <typename Y> struct image_epilogue {
    Y              *to;
    const bf16     *bias;
    int             channels, of_group;
    bool            relu;
    __device__ void select(int64_t group)
    {
        to += group * of_group;
        if (bias) bias += group * of_group;
    }
    __device__ void put_pair(int64_t row, int64_t column, float x, float y) const
    {
        lk__pack<Y, 2> pair;
        if (bias) x += load(bias + column), y += load(bias + column + 1);
        store(&pair.at[0], relu && x < 0 ? 0.0f : x);
        store(&pair.at[1], relu && y < 0 ? 0.0f : y);
        store_pack(to + row * channels + column, pair);
    }
};

template <typename A, typename Y>
static void multiply_images(const lk__kernel_call *call, const A &a, const bf16 *any, const conv_shape &v, bool input,
                            const image_epilogue<Y> &to)
{
    cudaStream_t             stream = cuda_stream(call);
    bf16                    *weights = (bf16 *)call->workspace;
    int                      columns = input ? v.cg : v.og;
    int64_t                  deep = (int64_t)v.taps * (input ? v.og : v.cg);
    tile_matrix<bf16, false> b = {weights, columns, deep * columns, columns, 0};
    tile_job                 job = make_tile_job(input ? v.pixels_x : v.pixels_y, columns, deep, deep > 0 ? deep : 1);
    pack<bf16>(stream, v, in_data<bf16>(call, 1), weights, input);
    if (columns <= 64)
        launch_tensor_tiles<tensor_shape<128, 64>>(stream, a, b, to, job, v.groups, any);
    else
        launch_tensor_tiles<tensor_shape<128, 128>>(stream, a, b, to, job, v.groups, any);
}

template <typename Y> static void run_forward(const lk__kernel_call *call, const conv_shape &v)
{
    patches_by_pixel<bf16> a = {in_data<bf16>(call, 0), v};
    image_epilogue<Y>      to = {out_data<Y>(call, 0), in_data<bf16>(call, 2), v.o, v.og, v.relu};
    multiply_images(call, a, a.x, v, false, to);
}

template <typename Y> static void run_input(const lk__kernel_call *call, const conv_shape &v)
{
    gradient_by_pixel<bf16> a = {in_data<bf16>(call, 0), NULL, v};
    image_epilogue<Y>       to = {out_data<Y>(call, 0), NULL, v.c, v.cg, false};
    multiply_images(call, a, in_data<bf16>(call, 1), v, true, to); /* dy may be empty; the weights are not */
}

/* ---- the weight's gradient ---- */

struct weight_pairs : weight_epilogue<bf16> {
    __device__ void put_pair(int64_t row, int64_t column, float x, float y) const
    {
        put_at(dw, row, column, x);
        put_at(dw, row, column + 1, y);
    }
};

static lk_status run_weight(const lk__kernel_call *call, const conv_shape &v)
{
    cudaStream_t              stream = cuda_stream(call);
    gradient_by_channel<bf16> a = {in_data<bf16>(call, 1), NULL, v};
    patches_by_tap<bf16>      b = {in_data<bf16>(call, 0), v};
    weight_pairs              to;
    tile_job                  job = weight_job(v);
    int64_t                   results = job.m * job.n * v.groups;
    to.dw = out_data<float>(call, 0), to.cg = v.cg, to.og = v.og, to.taps = v.taps, to.by_cg = v.by_cg;
    job.partials = call->workspace;
    if (v.og <= 64)
        launch_tensor_tiles<tensor_shape<64, 128>>(stream, a, b, to, job, v.groups, a.dy);
    else
        launch_tensor_tiles<tensor_shape<128, 128>>(stream, a, b, to, job, v.groups, a.dy);
    if (job.split)
        LAUNCH((add_chunks_in_lanes<float, weight_pairs>), (unsigned)cuda_tiles(results, 32), 256, 0, stream, to, job,
               (int64_t)v.groups, results);
    if (!out_data<float>(call, 1)) return LK_OK;
    return lk__cuda_column_sums(call, a.dy, LK_BF16, NULL, v.windows, v.o, NULL, out_data<float>(call, 1),
                                call->workspace);
}

static bool is_aligned(const lk__kernel_operand *x) { return (uintptr_t)x->data % 16 == 0; }

lk_status lk__cuda_conv_tensor_run(const lk__kernel_call *call, conv_direction direction)
{
    conv_shape v = lk__cuda_conv_shape(call, direction);
    bool       aligned = is_aligned(&call->in[0]) && is_aligned(&call->in[1]) && is_aligned(&call->out[0]);
    if (lk__cuda_plain() || !lk__cuda_conv_tensor_supports(call, v) || !aligned || v.windows <= 0)
        return LK_EUNSUPPORTED;
    if (direction == CONV_GRAD_WEIGHT) {
        lk_status status = run_weight(call, v);
        return status < 0 ? status : lk__cuda_launched(call);
    }
    bool sums = lk__cuda_conv_gives_sums(call);
    if (direction == CONV_FORWARD)
        sums ? run_forward<float>(call, v) : run_forward<bf16>(call, v);
    else
        sums ? run_input<float>(call, v) : run_input<bf16>(call, v);
    return lk__cuda_launched(call);
}
