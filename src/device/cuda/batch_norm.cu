/* batch_norm.cu - batch norm over all but the channels, which are last in memory for images and for (N, C), as a matrix of rows ×
 * channels. Statistics are sums about the first row of each part of the rows, which is one of the numbers, so that a large mean costs no
 * digits; the parts are merged in double. Bound by memory: x is read twice in forward, and dy, x (and y, with relu) in backward. */
#include "device/cuda/columns.h"

/* Rows of a thread whose reads are in flight together: a gradient has three arrays. */
#define ROWS_AT_ONCE(gradient) ((gradient) ? 2 : 4)

/* ---- sums over parts of the rows ---- */

template <typename T> struct batch {
    typedef WIDE(T) W;
    const T *x, *dy, *out; /* out: y, of which relu's gradient needs the sign; NULL: no relu */
    const W *mean;         /* of gradients */
    double  *partial;      /* (parts, 2, channels): mean and sum of squares about it; or sums of g (x - mean) and of g */
};

/* Block (part, strip): see columns.h. */
template <typename T, int N, bool GRADIENT>
static __global__ void __launch_bounds__(COLUMN_THREADS) batch_sums(batch<T> p, column_layout l)
{
    typedef WIDE(T) W;
    constexpr int ROWS = ROWS_AT_ONCE(GRADIENT);
    __shared__ W  shared[COLUMN_THREADS * N];
    const int     pack = blockIdx.y * l.width + threadIdx.x % l.width, strip = blockIdx.y * l.width * N;
    const int64_t begin = part_begin(l.rows, l.parts, blockIdx.x), end = part_begin(l.rows, l.parts, blockIdx.x + 1);
    W             first[N], second[N], centre[N];
#pragma unroll
    for (int j = 0; j < N; j++) first[j] = second[j] = centre[j] = 0;
    if (pack < l.packs) {
        const int64_t c = (int64_t)pack * N;
#pragma unroll
        for (int j = 0; j < N; j++) centre[j] = GRADIENT ? p.mean[c + j] : load(p.x + begin * l.columns + c + j);
        for (int64_t row = begin + threadIdx.x / l.width; row < end; row += (int64_t)ROWS * l.height) {
            lk__pack<T, N> x[ROWS], dy[ROWS], out[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                int64_t at = (row + (int64_t)r * l.height) * l.columns + c;
                if (row + (int64_t)r * l.height >= end) continue;
                x[r] = load_pack<N>(p.x + at);
                if (GRADIENT) dy[r] = load_pack<N>(p.dy + at);
                if (GRADIENT && p.out) out[r] = load_pack<N>(p.out + at);
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (row + (int64_t)r * l.height >= end) continue;
#pragma unroll
                for (int j = 0; j < N; j++) {
                    W d = load(&x[r].at[j]) - centre[j], g = d;
                    if (GRADIENT) g = p.out && load(&out[r].at[j]) <= 0 ? (W)0 : load(&dy[r].at[j]);
                    first[j] += GRADIENT ? g * d : d;
                    second[j] += GRADIENT ? g : d * d;
                }
            }
        }
    }
    double a = strip_sum<N, W>(first, l, shared), b = strip_sum<N, W>(second, l, shared);
    int    c = strip + threadIdx.x;
    if ((int)threadIdx.x >= l.width * N || c >= l.columns) return;
    if (!GRADIENT) { /* about the part's own mean */
        double n = (double)(end - begin), offset = a / n, squares = b - a * offset;
        a = (double)load(p.x + begin * l.columns + c) + offset;
        b = squares < 0 ? 0 : squares; /* a NaN stays */
    }
    p.partial[((int64_t)blockIdx.x * 2) * l.columns + c] = a;
    p.partial[((int64_t)blockIdx.x * 2 + 1) * l.columns + c] = b;
}

template <typename T> static bool packs_fit(const batch<T> &p, int64_t channels)
{
    return channels % PACK(T) == 0 && (uintptr_t)p.x % 16 == 0 && (uintptr_t)p.dy % 16 == 0 && (uintptr_t)p.out % 16 == 0;
}

static int64_t row_count(const lk__kernel_operand *x) { return x->dims[0] * cuda_product(x, 2, x->rank); }

static column_layout layout_of(const lk__kernel_operand *x, bool packs)
{
    return column_layout_of(row_count(x), x->dims[1], packs ? (int)(16 / cuda_size(x->dtype)) : 1);
}

/* Bytes of the parts' sums, with or without packs. */
static size_t partial_bytes(const lk__kernel_operand *x)
{
    int64_t parts = layout_of(x, false).parts;
    if (x->dims[1] % (16 / (int64_t)cuda_size(x->dtype)) == 0) {
        int64_t packed = layout_of(x, true).parts;
        if (packed > parts) parts = packed;
    }
    return (size_t)(parts * 2 * x->dims[1]) * sizeof(double);
}

/* The number of parts. */
template <typename T, bool GRADIENT>
static int launch_sums(cudaStream_t stream, const batch<T> &p, const lk__kernel_operand *x, column_layout *layout)
{
    bool          packs = packs_fit(p, x->dims[1]);
    column_layout l = *layout = layout_of(x, packs);
    dim3          grid((unsigned)l.parts, (unsigned)l.strips);
    if (l.parts == 0 || l.strips == 0) return 0;
    if (packs)
        LAUNCH((batch_sums<T, PACK(T), GRADIENT>), grid, COLUMN_THREADS, 0, stream, p, l);
    else
        LAUNCH((batch_sums<T, 1, GRADIENT>), grid, COLUMN_THREADS, 0, stream, p, l);
    return l.parts;
}

/* ---- y = x factor + shift, then relu; dx = g factor + (x slope + shift) ---- */

template <typename T> struct affine {
    typedef WIDE(T) W;
    const T *x, *dy, *out;
    T       *y;
    const W *factor, *shift, *slope; /* slope NULL: the statistics are constants */
    int64_t  rows;
    int      columns, packs, width;
    bool     relu;
};

template <typename T, int N, bool GRADIENT>
static __global__ void __launch_bounds__(COLUMN_THREADS) batch_affine(affine<T> p)
{
    typedef WIDE(T) W;
    constexpr int ROWS = ROWS_AT_ONCE(GRADIENT);
    const int     pack = blockIdx.y * p.width + threadIdx.x % p.width, height = COLUMN_THREADS / p.width;
    const int64_t c = (int64_t)pack * N;
    if (pack >= p.packs) return;
    const int64_t  row = (int64_t)blockIdx.x * height * ROWS + threadIdx.x / p.width;
    const bool     moves = !GRADIENT || p.slope;
    lk__pack<T, N> x[ROWS], dy[ROWS], out[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        int64_t at = (row + (int64_t)r * height) * p.columns + c;
        if (row + (int64_t)r * height >= p.rows) continue;
        if (moves) x[r] = load_pack<N>(p.x + at);
        if (GRADIENT) dy[r] = load_pack<N>(p.dy + at);
        if (GRADIENT && p.out) out[r] = load_pack<N>(p.out + at);
    }
    W factor[N], shift[N], slope[N];
#pragma unroll
    for (int j = 0; j < N; j++) {
        factor[j] = p.factor[c + j];
        shift[j] = moves ? p.shift[c + j] : (W)0;
        slope[j] = GRADIENT && moves ? p.slope[c + j] : (W)0;
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        lk__pack<T, N> y;
        if (row + (int64_t)r * height >= p.rows) continue;
#pragma unroll
        for (int j = 0; j < N; j++) {
            W v;
            if (GRADIENT) {
                W g = p.out && load(&out[r].at[j]) <= 0 ? (W)0 : load(&dy[r].at[j]);
                v = g * factor[j];
                if (moves) v += load(&x[r].at[j]) * slope[j] + shift[j];
            } else {
                v = load(&x[r].at[j]) * factor[j] + shift[j];
                if (p.relu && v <= 0) v = 0; /* a NaN stays */
            }
            store(&y.at[j], v);
        }
        store_pack<N>(p.y + (row + (int64_t)r * height) * p.columns + c, y);
    }
}

template <typename T, bool GRADIENT>
static void launch_affine(cudaStream_t stream, affine<T> p, const lk__kernel_operand *x)
{
    bool packs = x->dims[1] % PACK(T) == 0 && (uintptr_t)p.x % 16 == 0 && (uintptr_t)p.y % 16 == 0 &&
                 (uintptr_t)p.dy % 16 == 0 && (uintptr_t)p.out % 16 == 0;
    column_layout l = layout_of(x, packs);
    p.rows = l.rows;
    p.columns = l.columns;
    p.packs = l.packs;
    p.width = l.width;
    dim3 grid((unsigned)cuda_tiles(l.rows, (int64_t)l.height * ROWS_AT_ONCE(GRADIENT)), (unsigned)l.strips);
    if (l.rows == 0 || l.strips == 0 || !p.y) return;
    if (packs)
        LAUNCH((batch_affine<T, PACK(T), GRADIENT>), grid, COLUMN_THREADS, 0, stream, p);
    else
        LAUNCH((batch_affine<T, 1, GRADIENT>), grid, COLUMN_THREADS, 0, stream, p);
}

/* ---- between the two: from the parts' sums to the coefficients, by channel ---- */

template <typename W> struct norm_channels {
    const double *partial;
    int           parts;
    int64_t       rows;
    const double *stats, *centre; /* batch_norm_apply: sums of all ranks, instead of partial */
    int           channels;
    const W      *w, *b;
    W            *mean, *rstd, *factor, *shift;
    double        epsilon, momentum;
    W            *running_mean, *running_var;
    int64_t      *batches;
    const lk__kernel_step *step; /* NULL: running statistics stay */
    const int32_t         *halted;
};

/* y's coefficients, mean, rstd and the running statistics of one channel, from the statistics of a batch of n rows. A batch without rows
 * changes nothing. */
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

/* The mean of all parts in all lanes of warp g, for channel g of the block's 32, and the sum of squares about it: the parts' own, and those
 * of the parts' means. */
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
        double sum = p.stats[1 + c], offset = sum / n;
        mean = p.centre[c] + offset;
        squares = fmax(p.stats[1 + p.channels + c] - sum * offset, 0.0); /* rounding may make it negative */
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
    if (c == 0) stats[0] = n;
    stats[1 + c] = rows ? n * offset : 0;
    stats[1 + channels + c] = rows ? squares + n * offset * offset : 0;
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

template <typename T, typename W> static void run_affine(const lk__kernel_call *call, const norm_channels<W> &p)
{
    affine<T> a = {};
    a.x = in_data<T>(call, 0);
    a.y = out_data<T>(call, 0);
    a.factor = p.factor;
    a.shift = p.shift;
    a.relu = call->attrs->activation == LK__RELU;
    launch_affine<T, false>(cuda_stream(call), a, &call->in[0]);
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
        run_affine<T, W>(call, p);
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
        LAUNCH((batch_statistics<W>), channel_blocks(layout.columns, 32), 1024, 0, cuda_stream(call), sums.partial, parts,
               layout.rows, layout.columns, in_data<W>(call, 1), out_data<double>(call, 0), out_data<double>(call, 1));
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
        run_affine<T, W>(call, p);
    })
    return lk__cuda_launched(call);
}

extern "C" lk_status lk__cuda_batch_norm_eval(const lk__kernel_call *call)
{
    if (call->in[0].dims[1] == 0) return LK_OK;
    BY_ELEMENT(call->in[0].dtype, T, {
        typedef WIDE(T) W;
        norm_channels<W> p = describe_norm<T>(call, call->workspace);
        LAUNCH((running_coefficients<W>), channel_blocks(p.channels, 128), 128, 0, cuda_stream(call), p);
        run_affine<T, W>(call, p);
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
    launch_affine<T, true>(cuda_stream(call), a, &call->in[1]);
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
    place_coefficients<W>(memory + partial_bytes(&call->in[1]), p.channels, &p.factor, &p.shift, EVAL ? NULL : &p.slope);
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
