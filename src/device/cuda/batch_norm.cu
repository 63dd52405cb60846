/* batch_norm.cu - batch norm over all but the channels, which are last in memory for images and for (N, C), as a matrix
 * of rows × channels. Statistics are sums of differences from the first row of each part of the rows, so that a large
 * mean does not lose digits; the parts are merged in double. Bound by memory: x is read twice in forward, and dy, x
 * (and y, with relu) in backward. */
#include "device/cuda/batch_norm.h"

/* ---- between the two passes: from the parts' sums to the coefficients, by channel ---- */

template <typename W> struct norm_channels {
    const double          *partial;
    int                    parts;
    int64_t                rows;
    const double          *stats, *centre; /* batch_norm_apply: sums of all ranks, instead of partial */
    int                    channels;
    const W               *w, *b;
    W                     *mean, *rstd, *factor, *shift;
    double                 epsilon, momentum;
    W                     *running_mean, *running_var;
    int64_t               *batches;
    const lk__kernel_step *step; /* NULL: running statistics stay */
    const int32_t         *halted;
};

/* y's coefficients, mean, rstd and the running statistics of one channel, from the statistics of a batch of n rows. A
 * batch without rows changes nothing. */
template <typename W>
static __device__ void normalise_channel(const norm_channels<W> &p, int c, double mean, double squares, double n)
{
    if (n == 0) {
        p.mean[c] = p.rstd[c] = 0;
        return;
    }
    double rstd = 1 / sqrt(squares / n + p.epsilon), factor = rstd * (p.w ? (double)p.w[c] : 1);
    p.mean[c] = (W)mean;
    p.rstd[c] = (W)rstd;
    p.factor[c] = (W)factor;
    p.shift[c] = (W)((p.b ? (double)p.b[c] : 0) - mean * factor);
    if (!p.step || !p.step->updates_buffers || (p.halted && *p.halted)) return;
    double keep = 1 - p.momentum, unbiased = squares / (n > 2 ? n - 1 : 1);
    if (p.running_mean) p.running_mean[c] = (W)(keep * (double)p.running_mean[c] + p.momentum * mean);
    if (p.running_var) p.running_var[c] = (W)(keep * (double)p.running_var[c] + p.momentum * unbiased);
    if (p.batches && c == 0) *p.batches += 1;
}

/* The mean of all parts in all lanes of warp g, for channel g of the block's 32, and the sum of squares about it: the
 * parts' own, and those of the parts' means. */
static __device__ __forceinline__ void merge_parts(const double *partial, int parts, int64_t rows, int channels,
                                                   double *mean, double *squares)
{
    __shared__ double shared[32][33], means[32];
    int               c = blockIdx.x * 32 + threadIdx.x % 32, group = threadIdx.x / 32;
    double            total = 0, about = 0;
    for (int part = group; c < channels && part < parts; part += 32)
        total += (double)(part_begin(rows, parts, part + 1) - part_begin(rows, parts, part)) *
                 partial[(int64_t)part * 2 * channels + c];
    *mean = groups_sum(total, shared) / (double)(rows > 0 ? rows : 1);
    if (threadIdx.x % 32 == 0) means[group] = *mean;
    __syncthreads();
    for (int part = group; c < channels && part < parts; part += 32) {
        double delta = partial[(int64_t)part * 2 * channels + c] - means[threadIdx.x % 32];
        about += partial[((int64_t)part * 2 + 1) * channels + c] +
                 (double)(part_begin(rows, parts, part + 1) - part_begin(rows, parts, part)) * delta * delta;
    }
    *squares = groups_sum(about, shared);
}

/* 1024 threads for 32 channels. */
template <typename W> static __global__ void __launch_bounds__(1024) batch_coefficients(norm_channels<W> p)
{
    double mean, squares;
    merge_parts(p.partial, p.parts, p.rows, p.channels, &mean, &squares);
    int c = blockIdx.x * 32 + threadIdx.x / 32;
    if (threadIdx.x % 32 == 0 && c < p.channels) normalise_channel(p, c, mean, squares, (double)p.rows);
}

/* From sums about a centre, over all ranks. */
template <typename W> static __global__ void sync_coefficients(norm_channels<W> p)
{
    int    c = blockIdx.x * blockDim.x + threadIdx.x;
    double n = p.stats[0], mean = 0, squares = 0;
    if (c >= p.channels) return;
    if (n > 0) {
        double sum = p.stats[p.channels + c], offset = sum / n;
        mean = p.centre[c] + offset;
        squares = fmax(p.stats[2 * p.channels + c] - sum * offset, 0.0); /* rounding may make it negative */
    }
    normalise_channel(p, c, mean, squares, n);
}

template <typename W>
static __global__ void __launch_bounds__(1024)
    batch_statistics(const double *partial, int parts, int64_t rows, int channels, const W *running_mean, double *stats,
                     double *centres)
{
    double mean, squares, n = (double)rows;
    merge_parts(partial, parts, rows, channels, &mean, &squares);
    int c = blockIdx.x * 32 + threadIdx.x / 32;
    if (threadIdx.x % 32 != 0 || c >= channels) return;
    double centre = running_mean ? (double)running_mean[c] : 0, offset = mean - centre;
    centres[c] = centre;
    stats[c] = n;
    stats[channels + c] = rows ? n * offset : 0;
    stats[2 * channels + c] = rows ? squares + n * offset * offset : 0;
}

/* Running statistics as constants. */
template <typename W> static __global__ void running_coefficients(norm_channels<W> p)
{
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= p.channels) return;
    double factor = (p.w ? (double)p.w[c] : 1) / sqrt((double)p.running_var[c] + p.epsilon);
    p.factor[c] = (W)factor;
    p.shift[c] = (W)((p.b ? (double)p.b[c] : 0) - (double)p.running_mean[c] * factor);
}

template <typename W> struct grad_channels {
    const double *partial; /* NULL: sums is given, or the statistics are constants */
    int           parts, channels;
    double        rows;
    const double *sums, *stats; /* of all ranks */
    double       *sums_out;
    const W      *w, *mean, *rstd, *variance; /* variance: running_var, instead of rstd */
    double        epsilon;
    W            *dw, *db, *factor, *shift, *slope; /* factor NULL: no dx; slope NULL: the statistics are constants */
};

/* dx's coefficients and the gradients of the weights of one channel, from the sums of g (x - mean) and of g. */
template <typename W>
static __device__ void grad_channel(const grad_channels<W> &p, int c, double product, double total, double n)
{
    W rstd = p.variance ? (W)(1 / sqrt((double)p.variance[c] + p.epsilon)) : p.rstd[c];
    if (p.dw) p.dw[c] = (W)(product * (double)rstd);
    if (p.db) p.db[c] = (W)total;
    if (p.sums_out) {
        p.sums_out[c] = product;
        p.sums_out[p.channels + c] = total;
    }
    if (!p.factor) return;
    double factor = (double)rstd * (p.w ? (double)p.w[c] : 1);
    p.factor[c] = (W)factor;
    if (!p.slope) return;
    double slope = -factor * (double)rstd * (double)rstd * product / n;
    p.slope[c] = (W)slope;
    p.shift[c] = (W)(-factor * total / n - slope * (double)p.mean[c]);
}

/* 1024 threads for 32 channels. */
template <typename W> static __global__ void __launch_bounds__(1024) grad_coefficients(grad_channels<W> p)
{
    __shared__ double shared[32][33];
    int               c = blockIdx.x * 32 + threadIdx.x % 32;
    double            product = 0, total = 0;
    for (int part = threadIdx.x / 32; c < p.channels && part < p.parts; part += 32) {
        product += p.partial[(int64_t)part * 2 * p.channels + c];
        total += p.partial[((int64_t)part * 2 + 1) * p.channels + c];
    }
    product = groups_sum(product, shared);
    total = groups_sum(total, shared);
    c = blockIdx.x * 32 + threadIdx.x / 32;
    if (threadIdx.x % 32 == 0 && c < p.channels) grad_channel(p, c, product, total, p.rows);
}

template <typename W> static __global__ void sync_grad_coefficients(grad_channels<W> p)
{
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c < p.channels) grad_channel(p, c, p.sums[c], p.sums[p.channels + c], fmax(p.stats[0], 1.0));
}

/* ---- the operations ---- */

/* Coefficients of a call, behind the parts' sums. */
static size_t coefficient_bytes(const lk__kernel_operand *x) { return (size_t)(3 * x->dims[1]) * sizeof(double); }
template <typename W> static void place_coefficients(void *memory, int64_t channels, W **factor, W **shift, W **slope)
{
    *factor = (W *)memory;
    *shift = *factor + channels;
    if (slope) *slope = *shift + channels;
}

extern "C" size_t lk__cuda_batch_norm_workspace(const lk__kernel_call *call, int)
{
    return partial_bytes(&call->in[0]) + coefficient_bytes(&call->in[0]);
}
extern "C" size_t lk__cuda_batch_norm_stats_workspace(const lk__kernel_call *call, int)
{
    return partial_bytes(&call->in[0]);
}
extern "C" size_t lk__cuda_batch_norm_apply_workspace(const lk__kernel_call *call, int)
{
    return coefficient_bytes(&call->in[0]);
}
extern "C" size_t lk__cuda_batch_norm_eval_workspace(const lk__kernel_call *call, int)
{
    return coefficient_bytes(&call->in[0]);
}
extern "C" size_t lk__cuda_batch_norm_grad_workspace(const lk__kernel_call *call, int)
{
    return partial_bytes(&call->in[1]) + coefficient_bytes(&call->in[1]);
}
extern "C" size_t lk__cuda_batch_norm_eval_grad_workspace(const lk__kernel_call *call, int)
{
    return partial_bytes(&call->in[1]) + coefficient_bytes(&call->in[1]);
}
extern "C" size_t lk__cuda_batch_norm_grad_stats_workspace(const lk__kernel_call *call, int)
{
    return partial_bytes(&call->in[1]);
}
extern "C" size_t lk__cuda_batch_norm_grad_apply_workspace(const lk__kernel_call *call, int)
{
    return coefficient_bytes(&call->in[1]);
}

/* The operands that batch_norm and batch_norm_apply share. */
template <typename T> static norm_channels<WIDE(T)> describe_norm(const lk__kernel_call *call, void *coefficients)
{
    typedef WIDE(T) W;
    norm_channels<W> p = {};
    p.channels = (int)call->in[0].dims[1];
    p.w = in_data<W>(call, 1);
    p.b = in_data<W>(call, 2);
    p.running_mean = (W *)in_data<W>(call, 3);
    p.running_var = (W *)in_data<W>(call, 4);
    p.batches = (int64_t *)in_data<int64_t>(call, 5);
    p.mean = out_data<W>(call, 1);
    p.rstd = out_data<W>(call, 2);
    p.epsilon = call->attrs->epsilon;
    p.momentum = call->attrs->momentum;
    p.step = call->attrs->update ? call->step_memory : NULL;
    p.halted = call->halted;
    place_coefficients<W>(coefficients, p.channels, &p.factor, &p.shift, NULL);
    return p;
}

/* residual: which input, if there is one. */
template <typename T, typename W>
static void run_affine(const lk__kernel_call *call, const norm_channels<W> &p, int residual)
{
    affine<T> a = {};
    a.x = in_data<T>(call, 0);
    a.dy = in_data<T>(call, residual);
    a.y = out_data<T>(call, 0);
    a.factor = p.factor;
    a.shift = p.shift;
    a.relu = call->attrs->activation == LK__RELU;
    if (a.dy)
        launch_affine<T, false, true>(cuda_stream(call), a, &call->in[0]);
    else
        launch_affine<T, false, false>(cuda_stream(call), a, &call->in[0]);
}

static unsigned channel_blocks(int64_t channels, int each) { return (unsigned)cuda_tiles(channels, each); }

extern "C" lk_status lk__cuda_batch_norm(const lk__kernel_call *call)
{
    if (call->in[0].dims[1] == 0) return LK_OK;
    BY_ELEMENT(call->in[0].dtype, T, {
        typedef WIDE(T) W;
        char            *memory = (char *)call->workspace;
        norm_channels<W> p = describe_norm<T>(call, memory + partial_bytes(&call->in[0]));
        batch<T>         sums = {};
        column_layout    layout;
        sums.x = in_data<T>(call, 0);
        p.partial = sums.partial = (double *)memory;
        p.parts = launch_sums<T, false>(cuda_stream(call), sums, &call->in[0], &layout);
        p.rows = layout.rows;
        LAUNCH((batch_coefficients<W>), channel_blocks(p.channels, 32), 1024, 0, cuda_stream(call), p);
        run_affine<T, W>(call, p, 6);
    })
    return lk__cuda_launched(call);
}

extern "C" lk_status lk__cuda_batch_norm_stats(const lk__kernel_call *call)
{
    if (call->in[0].dims[1] == 0) return LK_OK;
    BY_ELEMENT(call->in[0].dtype, T, {
        typedef WIDE(T) W;
        batch<T>      sums = {};
        column_layout layout;
        sums.x = in_data<T>(call, 0);
        sums.partial = (double *)call->workspace;
        int parts = launch_sums<T, false>(cuda_stream(call), sums, &call->in[0], &layout);
        LAUNCH((batch_statistics<W>), channel_blocks(layout.columns, 32), 1024, 0, cuda_stream(call), sums.partial,
               parts, layout.rows, layout.columns, in_data<W>(call, 1), out_data<double>(call, 0),
               out_data<double>(call, 1));
    })
    return lk__cuda_launched(call);
}

extern "C" lk_status lk__cuda_batch_norm_apply(const lk__kernel_call *call)
{
    if (call->in[0].dims[1] == 0) return LK_OK;
    BY_ELEMENT(call->in[0].dtype, T, {
        typedef WIDE(T) W;
        norm_channels<W> p = describe_norm<T>(call, call->workspace);
        p.stats = in_data<double>(call, 6);
        p.centre = in_data<double>(call, 7);
        LAUNCH((sync_coefficients<W>), channel_blocks(p.channels, 128), 128, 0, cuda_stream(call), p);
        run_affine<T, W>(call, p, LK__MAX_IN); /* none */
    })
    return lk__cuda_launched(call);
}

extern "C" lk_status lk__cuda_batch_norm_eval(const lk__kernel_call *call)
{
    if (call->in[0].dims[1] == 0) return LK_OK;
    BY_ELEMENT(call->in[0].dtype, T, {
        typedef WIDE(T) W;
        norm_channels<W> p = describe_norm<T>(call, call->workspace); /* whose batches is the residual: not used */
        LAUNCH((running_coefficients<W>), channel_blocks(p.channels, 128), 128, 0, cuda_stream(call), p);
        run_affine<T, W>(call, p, 5);
    })
    return lk__cuda_launched(call);
}

/* dy, x, [w], mean, rstd or variance, [y]: of the gradients with respect to x. */
template <typename T, typename W> static void run_grad_affine(const lk__kernel_call *call, const grad_channels<W> &p)
{
    affine<T> a = {};
    a.dy = in_data<T>(call, 0);
    a.x = in_data<T>(call, 1);
    a.out = !p.variance && call->attrs->activation == LK__RELU ? in_data<T>(call, 5) : NULL;
    a.y = out_data<T>(call, 0);
    a.factor = p.factor;
    a.shift = p.shift;
    a.slope = p.slope;
    launch_affine<T, true, false>(cuda_stream(call), a, &call->in[1]);
}

/* batch_norm_grad, and with running statistics as constants batch_norm_eval_grad. */
template <typename T, bool EVAL> static void run_grad(const lk__kernel_call *call)
{
    typedef WIDE(T) W;
    char            *memory = (char *)call->workspace;
    grad_channels<W> p = {};
    batch<T>         sums = {};
    column_layout    layout;
    p.w = in_data<W>(call, 2);
    p.mean = sums.mean = in_data<W>(call, 3);
    (EVAL ? p.variance : p.rstd) = in_data<W>(call, 4);
    p.dw = out_data<W>(call, 1);
    p.db = out_data<W>(call, 2);
    p.epsilon = call->attrs->epsilon;
    p.channels = (int)call->in[1].dims[1];
    place_coefficients<W>(memory + partial_bytes(&call->in[1]), p.channels, &p.factor, &p.shift,
                          EVAL ? NULL : &p.slope);
    sums.dy = in_data<T>(call, 0);
    sums.x = in_data<T>(call, 1);
    sums.out = !EVAL && call->attrs->activation == LK__RELU ? in_data<T>(call, 5) : NULL;
    p.partial = sums.partial = (double *)memory;
    if (!EVAL || p.dw || p.db) p.parts = launch_sums<T, true>(cuda_stream(call), sums, &call->in[1], &layout);
    int64_t rows = row_count(&call->in[1]);
    p.rows = (double)(rows > 0 ? rows : 1);
    LAUNCH((grad_coefficients<W>), channel_blocks(p.channels, 32), 1024, 0, cuda_stream(call), p);
    run_grad_affine<T, W>(call, p);
}

extern "C" lk_status lk__cuda_batch_norm_grad(const lk__kernel_call *call)
{
    if (call->in[1].dims[1] == 0) return LK_OK;
    BY_ELEMENT(call->in[1].dtype, T, { run_grad<T, false>(call); })
    return lk__cuda_launched(call);
}

extern "C" lk_status lk__cuda_batch_norm_eval_grad(const lk__kernel_call *call)
{
    if (call->in[1].dims[1] == 0) return LK_OK;
    BY_ELEMENT(call->in[1].dtype, T, { run_grad<T, true>(call); })
    return lk__cuda_launched(call);
}

extern "C" lk_status lk__cuda_batch_norm_grad_stats(const lk__kernel_call *call)
{
    if (call->in[1].dims[1] == 0) return LK_OK;
    BY_ELEMENT(call->in[1].dtype, T, {
        typedef WIDE(T) W;
        grad_channels<W> p = {};
        batch<T>         sums = {};
        column_layout    layout;
        sums.dy = in_data<T>(call, 0);
        sums.x = in_data<T>(call, 1);
        p.mean = sums.mean = in_data<W>(call, 2);
        p.rstd = in_data<W>(call, 3);
        sums.out = call->attrs->activation == LK__RELU ? in_data<T>(call, 4) : NULL;
        p.partial = sums.partial = (double *)call->workspace;
        p.parts = launch_sums<T, true>(cuda_stream(call), sums, &call->in[1], &layout);
        p.channels = layout.columns;
        p.rows = 1;
        p.sums_out = out_data<double>(call, 0);
        p.dw = out_data<W>(call, 1);
        p.db = out_data<W>(call, 2);
        LAUNCH((grad_coefficients<W>), channel_blocks(p.channels, 32), 1024, 0, cuda_stream(call), p);
    })
    return lk__cuda_launched(call);
}

extern "C" lk_status lk__cuda_batch_norm_grad_apply(const lk__kernel_call *call)
{
    if (call->in[1].dims[1] == 0) return LK_OK;
    BY_ELEMENT(call->in[1].dtype, T, {
        typedef WIDE(T) W;
        grad_channels<W> p = {};
        p.w = in_data<W>(call, 2);
        p.mean = in_data<W>(call, 3);
        p.rstd = in_data<W>(call, 4);
        p.sums = in_data<double>(call, 6);
        p.stats = in_data<double>(call, 7);
        p.channels = (int)call->in[1].dims[1];
        place_coefficients<W>(call->workspace, p.channels, &p.factor, &p.shift, &p.slope);
        LAUNCH((sync_grad_coefficients<W>), channel_blocks(p.channels, 128), 128, 0, cuda_stream(call), p);
        run_grad_affine<T, W>(call, p);
    })
    return lk__cuda_launched(call);
}
