/* group_norm.cu - group norm and its gradient. The channels of a group are contiguous, so a group of a sample is one
 * row. A block has one group of a fixed part of the samples, and reads each of its rows again, from the cache. The
 * gradients of weight and bias are sums over a part's samples, which are added in order. Bound by memory. */
#include "device/cuda/columns.h"

enum { GROUP_THREADS = 256, GROUP_BLOCKS = 1056 };

template <typename T> struct grouped {
    typedef WIDE(T) W;
    const T *x, *dy;
    const W *w, *b, *saved_mean, *saved_rstd;
    T       *y;
    W       *mean, *rstd;
    int64_t  samples, size; /* size: elements of a channel */
    int      channels, groups, parts;
    double   epsilon;
    double  *partial; /* (parts, 2, channels): dw, db; NULL: not wanted */
};

/* The channel of element i within its group. Division by 32 bits is several times as fast. */
static __device__ __forceinline__ int64_t channel_of(int64_t i, int64_t size)
{
    return (uint64_t)i >> 32 == 0 && (uint64_t)size >> 32 == 0 ? (int64_t)((uint32_t)i / (uint32_t)size) : i / size;
}

template <typename T> static __global__ void __launch_bounds__(GROUP_THREADS) group_rows(grouped<T> p)
{
    typedef WIDE(T) W;
    __shared__ double shared[32];
    const int64_t     each = p.channels / p.groups, n = each * p.size, rows = p.samples * p.groups;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const T      *x = p.x + row * n;
        const int64_t first = row % p.groups * each;
        double        total = 0, squares = 0;
        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) total += (double)load(x + i);
        W mean = (W)(block_sum(total, shared) / (double)n);
        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
            W d = load(x + i) - mean;
            squares += (double)d * (double)d;
        }
        W rstd = (W)(1 / sqrt(block_sum(squares, shared) / (double)n + p.epsilon));
        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
            int64_t c = first + channel_of(i, p.size);
            store(p.y + row * n + i, (load(x + i) - mean) * rstd * (p.w ? p.w[c] : (W)1) + (p.b ? p.b[c] : (W)0));
        }
        if (threadIdx.x == 0) {
            p.mean[row] = mean;
            p.rstd[row] = rstd;
        }
    }
}

/* dx = rstd (g - mean(g) - xhat mean(g xhat)), with g = dy w and xhat = (x - mean) rstd. Block (part, group). `width`
 * threads, a power of 2 up to a warp, sum a channel. */
template <typename T> static __global__ void __launch_bounds__(GROUP_THREADS) group_rows_grad(grouped<T> p, int width)
{
    typedef WIDE(T) W;
    __shared__ double shared[32];
    const int64_t     each = p.channels / p.groups, n = each * p.size, first = blockIdx.y * each;
    const int         lane = threadIdx.x % width, unit = threadIdx.x / width, units = blockDim.x / width;
    const int64_t     end = part_begin(p.samples, p.parts, blockIdx.x + 1),
                  begin = part_begin(p.samples, p.parts, blockIdx.x);
    double *dw = p.partial ? p.partial + (int64_t)blockIdx.x * 2 * p.channels + first : NULL;
    double *db = dw ? dw + p.channels : NULL;
    for (int64_t sample = begin; sample < end; sample++) {
        const int64_t row = sample * p.groups + blockIdx.y;
        const T      *x = p.x + row * n, *dy = p.dy + row * n;
        const W       mean = p.saved_mean[row], rstd = p.saved_rstd[row];
        double        total = 0, product = 0;
        for (int64_t from = 0; from < each; from += units) { /* all threads: shuffles are of whole warps */
            int64_t c = from + unit;
            double  sum = 0, moment = 0;
            for (int64_t i = c * p.size + lane; c < each && i < (c + 1) * p.size; i += width) {
                W d = load(dy + i);
                sum += (double)d;
                moment += (double)d * (double)(load(x + i) - mean);
            }
            for (int offset = width / 2; offset > 0; offset /= 2) {
                sum += __shfl_xor_sync(0xffffffffu, sum, offset);
                moment += __shfl_xor_sync(0xffffffffu, moment, offset);
            }
            if (lane != 0 || c >= each) continue;
            double w = p.w ? (double)p.w[first + c] : 1;
            total += w * sum;
            product += w * moment;
            if (!dw) continue;
            dw[c] = (sample > begin ? dw[c] : 0) + moment * (double)rstd; /* the same thread's in every sample */
            db[c] = (sample > begin ? db[c] : 0) + sum;
        }
        W level = (W)(block_sum(total, shared) / (double)n);
        W slope = (W)(block_sum(product, shared) / (double)n * (double)rstd * (double)rstd); /* of x - mean */
        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
            W g = load(dy + i) * (p.w ? p.w[first + channel_of(i, p.size)] : (W)1);
            store(p.y + row * n + i, (g - level - (load(x + i) - mean) * slope) * rstd);
        }
    }
}

/* Parts of the samples: blocks enough for a GPU, over all groups. */
static int sample_parts(int64_t samples, int64_t groups)
{
    int64_t most = cuda_tiles(GROUP_BLOCKS, groups > 0 ? groups : 1);
    return (int)(samples < most ? samples : most);
}

template <typename T> static grouped<T> describe_operand(const lk__kernel_operand *x, const lk__op_attrs *attrs)
{
    grouped<T> p = {};
    p.samples = x->dims[0];
    p.channels = (int)x->dims[1];
    p.groups = (int)attrs->groups;
    p.size = cuda_product(x, 2, x->rank);
    p.parts = sample_parts(p.samples, p.groups);
    p.epsilon = attrs->epsilon;
    return p;
}

extern "C" lk_status lk__cuda_group_norm(const lk__kernel_call *call)
{
    BY_ELEMENT(call->in[0].dtype, T, {
        typedef WIDE(T) W;
        grouped<T> p = describe_operand<T>(&call->in[0], call->attrs);
        p.x = in_data<T>(call, 0);
        p.w = in_data<W>(call, 1);
        p.b = in_data<W>(call, 2);
        p.y = out_data<T>(call, 0);
        p.mean = out_data<W>(call, 1);
        p.rstd = out_data<W>(call, 2);
        if (p.samples > 0 && p.groups > 0)
            LAUNCH((group_rows<T>), cuda_blocks(p.samples * p.groups, 1), GROUP_THREADS, 0, cuda_stream(call), p);
    })
    return lk__cuda_launched(call);
}

static bool wants_weights(const lk__kernel_call *call) { return out_data<void>(call, 1) || out_data<void>(call, 2); }

extern "C" size_t lk__cuda_group_norm_grad_workspace(const lk__kernel_call *call, int)
{
    const lk__kernel_operand *x = &call->in[1];
    int64_t                   parts = sample_parts(x->dims[0], call->attrs->groups);
    return wants_weights(call) ? (size_t)(parts * 2 * x->dims[1]) * sizeof(double) : 0;
}

extern "C" lk_status lk__cuda_group_norm_grad(const lk__kernel_call *call)
{
    BY_ELEMENT(call->in[1].dtype, T, {
        typedef WIDE(T) W;
        grouped<T> p = describe_operand<T>(&call->in[1], call->attrs);
        int        width = 1;
        while (width < 32 && width < p.size) width *= 2;
        p.dy = in_data<T>(call, 0);
        p.x = in_data<T>(call, 1);
        p.w = in_data<W>(call, 2);
        p.saved_mean = in_data<W>(call, 3);
        p.saved_rstd = in_data<W>(call, 4);
        p.y = out_data<T>(call, 0);
        p.partial = wants_weights(call) ? (double *)call->workspace : NULL;
        if (p.parts > 0 && p.groups > 0)
            LAUNCH((group_rows_grad<T>), dim3((unsigned)p.parts, (unsigned)p.groups), GROUP_THREADS, 0,
                   cuda_stream(call), p, width);
        if (p.partial)
            launch_weight_parts<double, W>(cuda_stream(call), p.partial, p.parts, p.channels, 2, out_data<W>(call, 1),
                                           out_data<W>(call, 2));
    })
    return lk__cuda_launched(call);
}
