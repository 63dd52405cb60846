/* layer_norm.cu - layer norm and RMS norm over the last dims, and their gradients. A row of up to 1024 elements is one
 * warp's, one of up to 8192 one block's: it is read once and kept in registers between the sums and the result (in
 * forward while the next row is being read). Longer rows are read again. Bound by memory: x and y in forward, dy, x and
 * dx in backward.
 *
 * The gradients of weight and bias are sums over the rows of a fixed part, in registers of the threads that own the
 * columns; the parts' sums are then added in order. */
#include "device/cuda/columns.h"

enum { WARP_ROW = 1024, BLOCK_ROW = 8192, BLOCK_EACH = 16, NORM_WARPS = 4, GRAD_WARPS = 8, LONG_THREADS = 512 };

template <typename T> struct row_norm {
    typedef WIDE(T) W;
    const T *x, *dy, *residual;               /* residual: added to x in forward, to dx in backward; NULL: nothing is */
    const W *w, *b, *saved_mean, *saved_rstd; /* w, b: may be NULL */
    T       *y, *sum;                         /* y: dx in backward; sum: x + residual, unless NULL */
    W       *mean, *rstd;
    int64_t  rows, n;
    W        epsilon;
    W       *partial; /* (parts, 2 or 1, n): sums for dw and db; NULL: not wanted */
    int      parts;
};

static __device__ __forceinline__ float  inverse_root(float x) { return 1.0f / sqrtf(x); }
static __device__ __forceinline__ double inverse_root(double x) { return 1.0 / sqrt(x); }

/* Over the threads of a row. */
template <bool WARP, typename W> static __device__ __forceinline__ W row_sum(W x, W *shared)
{
    if constexpr (WARP)
        return warp_sum(x);
    else
        return block_sum(x, shared);
}

/* ---- rows in registers: thread `me` of `threads` has packs me, me + threads, … of N elements, EACH elements in
 * all ---- */

#define EACH_PACK(k, i, n)                                                                 \
    _Pragma("unroll") for (int k = 0, i = me * N; k < EACH / N; k++, i += threads * N) \
        if (i < (n))

template <typename T, int N, int EACH>
static __device__ __forceinline__ void load_row(const T *row, int n, int me, int threads,
                                                lk__pack<T, N> (&to)[EACH / N])
{
    EACH_PACK(k, i, n) to[k] = load_pack<N>(row + i);
}

/* Brings a row into the L2 cache: reads ahead without the registers that it would take. */
template <typename T> static __device__ __forceinline__ void prefetch_row(const T *row, int n, int me, int threads)
{
#if !defined(LK_CUDA_EMULATED)
    for (int i = me * 128; i < n * (int)sizeof(T); i += threads * 128) /* lines of 128 bytes */
        asm volatile("prefetch.global.L2 [%0];" ::"l"((const char *)row + i));
#else
    (void)row, (void)n, (void)me, (void)threads;
#endif
}

/* The numbers of a pack of w or b, or of a constant where there is none. */
template <int N, typename W>
static __device__ __forceinline__ lk__pack<W, N> load_weights(const W *w, int i, W otherwise)
{
    lk__pack<W, N> pack;
    if (w) return load_pack<N>(w + i);
#pragma unroll
    for (int j = 0; j < N; j++) pack.at[j] = otherwise;
    return pack;
}

/* x + residual, rounded to the type in which others read it. */
template <typename T, int N>
static __device__ __forceinline__ void add_pack(lk__pack<T, N> *x, const lk__pack<T, N> &residual)
{
#pragma unroll
    for (int j = 0; j < N; j++) store(&x->at[j], load(&x->at[j]) + load(&residual.at[j]));
}

/* Blocks of a multiprocessor that the registers must allow: enough bytes in flight, where rows are short and elements
 * narrow. */
#define NORM_BLOCKS(T, EACH, WARP, RESIDUAL) ((WARP) && sizeof(T) <= 4 && (EACH) <= 24 ? ((RESIDUAL) ? 3 : 4) : 1)

template <typename T, int N, int EACH, bool WARP, bool RMS, bool RESIDUAL>
static __global__ void __launch_bounds__(WARP ? NORM_WARPS * 32 : BLOCK_ROW / BLOCK_EACH,
                                         NORM_BLOCKS(T, EACH, WARP, RESIDUAL)) norm_rows(row_norm<T> p)
{
    typedef WIDE(T) W;
    __shared__ W   shared[32];
    const int      n = (int)p.n, threads = WARP ? 32 : blockDim.x, me = WARP ? threadIdx.x % 32 : threadIdx.x;
    const int64_t  first = WARP ? (int64_t)blockIdx.x * NORM_WARPS + threadIdx.x / 32 : blockIdx.x;
    const int64_t  step = WARP ? (int64_t)gridDim.x * NORM_WARPS : gridDim.x;
    lk__pack<T, N> x[EACH / N], next[EACH / N], residual[EACH / N], next_residual[EACH / N];
    lk__pack<W, N> w[EACH / N], b[EACH / N]; /* of a warp's rows, which are short */
    if constexpr (WARP) {
        EACH_PACK(k, i, n) w[k] = load_weights<N, W>(p.w, i, 1);
        EACH_PACK(k, i, n) b[k] = load_weights<N, W>(p.b, i, 0);
    }
    if (first < p.rows) {
        load_row<T, N, EACH>(p.x + first * p.n, n, me, threads, x);
        if constexpr (RESIDUAL) load_row<T, N, EACH>(p.residual + first * p.n, n, me, threads, residual);
    }
    for (int64_t row = first; row < p.rows; row += step) {
        if (row + step < p.rows) {
            load_row<T, N, EACH>(p.x + (row + step) * p.n, n, me, threads, next);
            if constexpr (RESIDUAL)
                load_row<T, N, EACH>(p.residual + (row + step) * p.n, n, me, threads, next_residual);
        }
        if constexpr (RESIDUAL) {
            EACH_PACK(k, i, n)
            {
                add_pack<T, N>(&x[k], residual[k]);
                if (p.sum) store_pack<N>(p.sum + row * p.n + i, x[k]);
            }
        }
        W mean = 0, squares = 0;
        if constexpr (!RMS) {
            EACH_PACK(k, i, n)
            for (int j = 0; j < N; j++) mean += load(&x[k].at[j]);
            mean = row_sum<WARP>(mean, shared) / (W)n;
        }
        EACH_PACK(k, i, n)
        for (int j = 0; j < N; j++) {
            W d = load(&x[k].at[j]) - mean;
            squares += d * d;
        }
        W rstd = inverse_root(row_sum<WARP>(squares, shared) / (W)n + p.epsilon);
        EACH_PACK(k, i, n)
        {
            lk__pack<T, N> y;
            if constexpr (!WARP) {
                w[k] = load_weights<N, W>(p.w, i, 1);
                b[k] = load_weights<N, W>(p.b, i, 0);
            }
#pragma unroll
            for (int j = 0; j < N; j++) store(&y.at[j], (load(&x[k].at[j]) - mean) * rstd * w[k].at[j] + b[k].at[j]);
            store_pack<N>(p.y + row * p.n + i, y);
        }
        if (me == 0) {
            if (!RMS && p.mean) p.mean[row] = mean;
            if (p.rstd) p.rstd[row] = rstd;
        }
#pragma unroll
        for (int k = 0; k < EACH / N; k++) {
            x[k] = next[k];
            if constexpr (RESIDUAL) residual[k] = next_residual[k];
        }
    }
}

/* What a thread sums over the rows of its part, for its columns. */
template <typename W, int EACH> struct weight_sums {
    W dw[EACH], db[EACH];
};

/* A row's sums over its columns: of dy w, and of dy w (x - mean). */
template <typename W> struct row_products {
    W total, product;
};
template <typename T, int N, int EACH, bool RMS>
static __device__ __forceinline__ row_products<WIDE(T)> add_weight_row(weight_sums<WIDE(T), EACH> *sums,
                                                                       const lk__pack<T, N> (&x)[EACH / N],
                                                                       const lk__pack<T, N> (&dy)[EACH / N],
                                                                       const WIDE(T) * weight, int n, int me,
                                                                       int threads, WIDE(T) mean, WIDE(T) rstd)
{
    typedef WIDE(T) W;
    row_products<W> row = {0, 0};
    EACH_PACK(k, i, n)
    {
        lk__pack<W, N> w = load_weights<N, W>(weight, i, 1);
#pragma unroll
        for (int j = 0; j < N; j++) {
            W d = load(&dy[k].at[j]), c = load(&x[k].at[j]) - mean, g = d * w.at[j];
            sums->dw[k * N + j] += d * (c * rstd);
            if (!RMS) sums->db[k * N + j] += d;
            if (!RMS) row.total += g;
            row.product += g * c;
        }
    }
    return row;
}

/* The block's sums to its part of p.partial; those of warps are added one after the other, in `shared`, (2, n). */
template <typename T, int N, int EACH, bool WARP, bool RMS>
static __device__ __forceinline__ void write_weight_sums(const row_norm<T> &p, const weight_sums<WIDE(T), EACH> &sums,
                                                         int n, int me, int threads, WIDE(T) * shared)
{
    WIDE(T) *to = p.partial + (int64_t)blockIdx.x * (RMS ? 1 : 2) * p.n;
    if constexpr (WARP) {
        for (int turn = 0; turn < GRAD_WARPS; turn++) {
            if ((int)threadIdx.x / 32 == turn) {
                EACH_PACK(k, i, n)
                for (int j = 0; j < N; j++) {
                    shared[i + j] = turn ? shared[i + j] + sums.dw[k * N + j] : sums.dw[k * N + j];
                    if (!RMS) shared[n + i + j] = turn ? shared[n + i + j] + sums.db[k * N + j] : sums.db[k * N + j];
                }
            }
            __syncthreads();
        }
        for (int i = threadIdx.x; i < (RMS ? n : 2 * n); i += blockDim.x) to[i] = shared[i];
    } else {
        EACH_PACK(k, i, n)
        for (int j = 0; j < N; j++) {
            to[i + j] = sums.dw[k * N + j];
            if (!RMS) to[n + i + j] = sums.db[k * N + j];
        }
    }
}

/* dx = rstd (g - mean(g) - xhat mean(g xhat)), with g = dy w and xhat = (x - mean) rstd; RMS norm has no mean(g). Block
 * i has part i of the rows. */
template <typename T, int N, int EACH, bool WARP, bool RMS, bool RESIDUAL>
static __global__ void __launch_bounds__(WARP ? GRAD_WARPS * 32 : BLOCK_ROW / BLOCK_EACH,
                                         WARP && sizeof(T) <= 4 && EACH <= 24 ? 2 : 1) norm_rows_grad(row_norm<T> p)
{
    typedef WIDE(T) W;
    __shared__ W shared[32];
    DYNAMIC_SHARED(W, warp_sums);
    const int            n = (int)p.n, threads = WARP ? 32 : blockDim.x, me = WARP ? threadIdx.x % 32 : threadIdx.x;
    const int            step = WARP ? GRAD_WARPS : 1;
    const int64_t        end = part_begin(p.rows, p.parts, blockIdx.x + 1);
    const int64_t        first = part_begin(p.rows, p.parts, blockIdx.x) + (WARP ? (int)threadIdx.x / 32 : 0);
    lk__pack<T, N>       x[EACH / N], dy[EACH / N];
    weight_sums<W, EACH> sums;
#pragma unroll
    for (int j = 0; j < EACH; j++) sums.dw[j] = sums.db[j] = 0;
    for (int64_t row = first; row < end; row += step) {
        load_row<T, N, EACH>(p.x + row * p.n, n, me, threads, x);
        load_row<T, N, EACH>(p.dy + row * p.n, n, me, threads, dy);
        if constexpr (RESIDUAL) prefetch_row(p.residual + row * p.n, n, me, threads);
        if (row + step < end) {
            prefetch_row(p.x + (row + step) * p.n, n, me, threads);
            prefetch_row(p.dy + (row + step) * p.n, n, me, threads);
        }
        W               mean = RMS ? (W)0 : p.saved_mean[row], rstd = p.saved_rstd[row];
        row_products<W> products = add_weight_row<T, N, EACH, RMS>(&sums, x, dy, p.w, n, me, threads, mean, rstd);
        W               level = RMS ? 0 : row_sum<WARP>(products.total, shared) / (W)n;
        W               slope = row_sum<WARP>(products.product, shared) / (W)n * rstd * rstd; /* of x - mean */
        EACH_PACK(k, i, n)
        {
            lk__pack<W, N> w = load_weights<N, W>(p.w, i, 1);
            lk__pack<T, N> dx;
            if constexpr (RESIDUAL) dx = load_pack<N>(p.residual + row * p.n + i);
#pragma unroll
            for (int j = 0; j < N; j++) {
                W g = load(&dy[k].at[j]) * w.at[j], c = load(&x[k].at[j]) - mean;
                W d = (g - level - c * slope) * rstd;
                if constexpr (RESIDUAL) d += load(&dx.at[j]);
                store(&dx.at[j], d);
            }
            store_pack<N>(p.y + row * p.n + i, dx);
        }
    }
    if (p.partial) write_weight_sums<T, N, EACH, WARP, RMS>(p, sums, n, me, threads, warp_sums);
}

/* ---- rows that are too long for registers: one block each, sums in double ---- */

template <typename T, bool RMS> static __global__ void __launch_bounds__(LONG_THREADS) norm_long(row_norm<T> p)
{
    typedef WIDE(T) W;
    __shared__ double shared[32];
    for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
        const T *x = p.x + row * p.n;
        double   total = 0, squares = 0;
        if (p.residual) { /* each thread reads again what it wrote itself */
            for (int64_t i = threadIdx.x; i < p.n; i += blockDim.x)
                store(p.sum + row * p.n + i, load(x + i) + load(p.residual + row * p.n + i));
            x = p.sum + row * p.n;
        }
        for (int64_t i = threadIdx.x; !RMS && i < p.n; i += blockDim.x) total += (double)load(x + i);
        W mean = RMS ? (W)0 : (W)(block_sum(total, shared) / (double)p.n);
        for (int64_t i = threadIdx.x; i < p.n; i += blockDim.x) {
            W d = load(x + i) - mean;
            squares += (double)d * (double)d;
        }
        W rstd = (W)inverse_root(block_sum(squares, shared) / (double)p.n + (double)p.epsilon);
        for (int64_t i = threadIdx.x; i < p.n; i += blockDim.x)
            store(p.y + row * p.n + i, (load(x + i) - mean) * rstd * (p.w ? p.w[i] : (W)1) + (p.b ? p.b[i] : (W)0));
        if (threadIdx.x == 0) {
            if (!RMS && p.mean) p.mean[row] = mean;
            if (p.rstd) p.rstd[row] = rstd;
        }
    }
}

template <typename T, bool RMS> static __global__ void __launch_bounds__(LONG_THREADS) norm_long_grad(row_norm<T> p)
{
    typedef WIDE(T) W;
    __shared__ double shared[32];
    for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
        const T *x = p.x + row * p.n, *dy = p.dy + row * p.n;
        W        mean = RMS ? (W)0 : p.saved_mean[row], rstd = p.saved_rstd[row];
        double   total = 0, product = 0;
        for (int64_t i = threadIdx.x; i < p.n; i += blockDim.x) {
            W g = load(dy + i) * (p.w ? p.w[i] : (W)1);
            total += (double)g;
            product += (double)g * (double)(load(x + i) - mean);
        }
        W level = RMS ? (W)0 : (W)(block_sum(total, shared) / (double)p.n);
        W slope = (W)(block_sum(product, shared) / (double)p.n * (double)rstd * (double)rstd);
        for (int64_t i = threadIdx.x; i < p.n; i += blockDim.x) {
            W g = load(dy + i) * (p.w ? p.w[i] : (W)1);
            W d = (g - level - (load(x + i) - mean) * slope) * rstd;
            store(p.y + row * p.n + i, p.residual ? d + load(p.residual + row * p.n + i) : d);
        }
    }
}

/* Part blockIdx.y of the rows, a column per thread. */
template <typename T, bool RMS> static __global__ void __launch_bounds__(COLUMN_THREADS) long_weight_sums(row_norm<T> p)
{
    typedef WIDE(T) W;
    int64_t column = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t end = part_begin(p.rows, p.parts, blockIdx.y + 1);
    double  dw = 0, db = 0;
    if (column >= p.n) return;
    for (int64_t row = part_begin(p.rows, p.parts, blockIdx.y); row < end; row++) {
        W d = load(p.dy + row * p.n + column), c = load(p.x + row * p.n + column) - (RMS ? (W)0 : p.saved_mean[row]);
        dw += (double)(d * (c * p.saved_rstd[row]));
        db += (double)d;
    }
    W *to = p.partial + (int64_t)blockIdx.y * (RMS ? 1 : 2) * p.n + column;
    to[0] = (W)dw;
    if (!RMS) to[p.n] = (W)db;
}

/* ---- launching ---- */

template <typename T> static void set_extents(row_norm<T> *p, const lk__kernel_call *call, const lk__kernel_operand *x)
{
    int axis = call->attrs->axis;
    p->rows = cuda_product(x, 0, x->rank - axis);
    p->n = cuda_product(x, x->rank - axis, x->rank);
    p->epsilon = (WIDE(T))call->attrs->epsilon;
}

/* Parts of the rows for the sums of weights: a warp or block has one row at least. */
static int weight_parts(int64_t rows, int64_t n)
{
    int64_t most = n <= WARP_ROW ? WEIGHT_PARTS : 2 * WEIGHT_PARTS, each = n <= WARP_ROW ? GRAD_WARPS : 1;
    if (n > BLOCK_ROW) most = 32; /* the columns give blocks enough */
    int64_t parts = cuda_tiles(rows, each);
    return (int)(parts < most ? parts : most);
}

static bool aligned(const void *memory) { return (uintptr_t)memory % 32 == 0; }

/* Rows in f64, and those that are no whole number of packs, are rare: they are read element by element, and kept in
 * registers only where they are short. Each kernel more is compiled for every architecture. */
template <typename T> static bool packs_fit(const row_norm<T> &p)
{
    return sizeof(T) <= 4 && p.n % PACK(T) == 0 && (uintptr_t)p.x % 16 == 0 && (uintptr_t)p.y % 16 == 0 &&
           (uintptr_t)p.dy % 16 == 0 && (uintptr_t)p.residual % 16 == 0 && (uintptr_t)p.sum % 16 == 0 && aligned(p.w) &&
           aligned(p.b);
}

static bool is_long(int64_t n, bool packs) { return n > (packs ? BLOCK_ROW : WARP_ROW); }

template <typename T, int N, int EACH, bool RMS> static void launch_warps(cudaStream_t stream, const row_norm<T> &p)
{
    /* Several rows for each warp, which keeps w and b: grids have no part in the results. */
    int64_t blocks = cuda_tiles(p.rows, NORM_WARPS * (p.rows >= 16384 ? 4 : 1));
    if (p.residual)
        LAUNCH((norm_rows<T, N, EACH, true, RMS, true>), cuda_blocks(blocks, 1), NORM_WARPS * 32, 0, stream, p);
    else
        LAUNCH((norm_rows<T, N, EACH, true, RMS, false>), cuda_blocks(blocks, 1), NORM_WARPS * 32, 0, stream, p);
}

template <typename T, int N, bool RMS> static void launch_blocks(cudaStream_t stream, const row_norm<T> &p)
{
    unsigned threads = (unsigned)cuda_tiles(p.n, BLOCK_EACH * 32) * 32;
    if (p.residual)
        LAUNCH((norm_rows<T, N, BLOCK_EACH, false, RMS, true>), cuda_blocks(p.rows, 1), threads, 0, stream, p);
    else
        LAUNCH((norm_rows<T, N, BLOCK_EACH, false, RMS, false>), cuda_blocks(p.rows, 1), threads, 0, stream, p);
}

template <typename T, bool RMS> static void launch_norm(cudaStream_t stream, const row_norm<T> &p)
{
    if (p.rows == 0 || p.n == 0) return;
    bool packs = packs_fit(p);
    if (is_long(p.n, packs))
        LAUNCH((norm_long<T, RMS>), cuda_blocks(p.rows, 1), LONG_THREADS, 0, stream, p);
    else if (!packs)
        launch_warps<T, 1, 32, RMS>(stream, p);
    else if constexpr (sizeof(T) <= 4) {
        if (p.n <= 512)
            launch_warps<T, PACK(T), 16, RMS>(stream, p);
        else if (p.n <= 768)
            launch_warps<T, PACK(T), 24, RMS>(stream, p);
        else if (p.n <= WARP_ROW)
            launch_warps<T, PACK(T), 32, RMS>(stream, p);
        else
            launch_blocks<T, PACK(T), RMS>(stream, p);
    }
}

template <typename T, int N, int EACH, bool RMS>
static void launch_warps_grad(cudaStream_t stream, const row_norm<T> &p)
{
    size_t bytes = (size_t)(p.partial ? 2 * p.n : 0) * sizeof *p.partial;
    if (p.residual)
        LAUNCH((norm_rows_grad<T, N, EACH, true, RMS, true>), (unsigned)p.parts, GRAD_WARPS * 32, bytes, stream, p);
    else
        LAUNCH((norm_rows_grad<T, N, EACH, true, RMS, false>), (unsigned)p.parts, GRAD_WARPS * 32, bytes, stream, p);
}

template <typename T, int N, bool RMS> static void launch_blocks_grad(cudaStream_t stream, const row_norm<T> &p)
{
    unsigned threads = (unsigned)cuda_tiles(p.n, BLOCK_EACH * 32) * 32;
    if (p.residual)
        LAUNCH((norm_rows_grad<T, N, BLOCK_EACH, false, RMS, true>), (unsigned)p.parts, threads, 0, stream, p);
    else
        LAUNCH((norm_rows_grad<T, N, BLOCK_EACH, false, RMS, false>), (unsigned)p.parts, threads, 0, stream, p);
}

template <typename T, bool RMS> static void launch_grad(cudaStream_t stream, const row_norm<T> &p)
{
    if (p.rows == 0 || p.n == 0) return;
    bool packs = packs_fit(p);
    if (is_long(p.n, packs)) {
        LAUNCH((norm_long_grad<T, RMS>), cuda_blocks(p.rows, 1), LONG_THREADS, 0, stream, p);
        if (p.partial)
            LAUNCH((long_weight_sums<T, RMS>), dim3((unsigned)cuda_tiles(p.n, COLUMN_THREADS), (unsigned)p.parts),
                   COLUMN_THREADS, 0, stream, p);
    } else if (!packs)
        launch_warps_grad<T, 1, 32, RMS>(stream, p);
    else if constexpr (sizeof(T) <= 4) {
        if (p.n <= 512)
            launch_warps_grad<T, PACK(T), 16, RMS>(stream, p);
        else if (p.n <= 768)
            launch_warps_grad<T, PACK(T), 24, RMS>(stream, p);
        else if (p.n <= WARP_ROW)
            launch_warps_grad<T, PACK(T), 32, RMS>(stream, p);
        else
            launch_blocks_grad<T, PACK(T), RMS>(stream, p);
    }
}

template <typename T, bool RMS> static void run_norm(const lk__kernel_call *call)
{
    typedef WIDE(T) W;
    row_norm<T> p = {};
    set_extents(&p, call, &call->in[0]);
    p.x = in_data<T>(call, 0);
    p.w = in_data<W>(call, 1);
    p.b = RMS ? NULL : in_data<W>(call, 2);
    p.residual = in_data<T>(call, RMS ? 2 : 3);
    p.y = out_data<T>(call, 0);
    p.mean = RMS ? NULL : out_data<W>(call, 1);
    p.rstd = out_data<W>(call, RMS ? 1 : 2);
    p.sum = out_data<T>(call, RMS ? 2 : 3);
    launch_norm<T, RMS>(cuda_stream(call), p);
}

extern "C" lk_status lk__cuda_layer_norm(const lk__kernel_call *call)
{
    BY_ELEMENT(call->in[0].dtype, T, { run_norm<T, false>(call); })
    return lk__cuda_launched(call);
}

extern "C" lk_status lk__cuda_rms_norm(const lk__kernel_call *call)
{
    BY_ELEMENT(call->in[0].dtype, T, { run_norm<T, true>(call); })
    return lk__cuda_launched(call);
}

/* Operand 1 of both gradients is x. */
static size_t grad_workspace(const lk__kernel_call *call, int sums)
{
    const lk__kernel_operand *x = &call->in[1];
    int64_t                   rows = cuda_product(x, 0, x->rank - call->attrs->axis),
            n = cuda_product(x, x->rank - call->attrs->axis, x->rank);
    bool wanted = out_data<void>(call, 1) || (sums == 2 && out_data<void>(call, 2));
    return wanted ? (size_t)(weight_parts(rows, n) * sums * n) * (x->dtype == LK_F64 ? 8 : 4) : 0;
}

extern "C" size_t lk__cuda_layer_norm_grad_workspace(const lk__kernel_call *call, int)
{
    return grad_workspace(call, 2);
}
extern "C" size_t lk__cuda_rms_norm_grad_workspace(const lk__kernel_call *call, int) { return grad_workspace(call, 1); }

template <typename T, bool RMS> static void run_grad(const lk__kernel_call *call)
{
    typedef WIDE(T) W;
    row_norm<T> p = {};
    W          *dw = out_data<W>(call, 1), *db = RMS ? NULL : out_data<W>(call, 2);
    set_extents(&p, call, &call->in[1]);
    p.dy = in_data<T>(call, 0);
    p.x = in_data<T>(call, 1);
    p.w = in_data<W>(call, 2);
    p.saved_mean = RMS ? NULL : in_data<W>(call, 3);
    p.saved_rstd = in_data<W>(call, RMS ? 3 : 4);
    p.residual = in_data<T>(call, RMS ? 4 : 5);
    p.y = out_data<T>(call, 0);
    p.partial = dw || db ? (W *)call->workspace : NULL;
    p.parts = weight_parts(p.rows, p.n);
    launch_grad<T, RMS>(cuda_stream(call), p);
    if (p.partial) launch_weight_parts<W, W>(cuda_stream(call), p.partial, p.parts, p.n, RMS ? 1 : 2, dw, db);
}

extern "C" lk_status lk__cuda_layer_norm_grad(const lk__kernel_call *call)
{
    BY_ELEMENT(call->in[1].dtype, T, { run_grad<T, false>(call); })
    return lk__cuda_launched(call);
}

extern "C" lk_status lk__cuda_rms_norm_grad(const lk__kernel_call *call)
{
    BY_ELEMENT(call->in[1].dtype, T, { run_grad<T, true>(call); })
    return lk__cuda_launched(call);
}
