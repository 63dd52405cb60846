/* layer_norm.cu - layer norm and RMS norm over the last dims, and their gradients. A row of up to 1024 elements is one
 * warp's, one of up to 8192 one block's: it is read once and kept in registers between the sums and the result, while
 * the next ones are on their way into shared memory. Longer rows are read again. Bound by memory: x and y in forward,
 * dy, x and dx in backward, and the residual in both (bench/cuda_memory.cu).
 *
 * The gradients of weight and bias are sums over the rows of a fixed part, in registers of the threads that own the
 * columns; the parts' sums are then added in order. */
#include "device/cuda/async_copy.h"
#include "device/cuda/columns.h"

enum { WARP_ROW = 1024, BLOCK_ROW = 8192, BLOCK_EACH = 16, NORM_WARPS = 8, GRAD_WARPS = 6, LONG_THREADS = 512 };

template <typename T> struct row_norm {
    typedef WIDE(T) W;
    const T *x, *dy, *residual;               /* residual: added to x in forward, to dx in backward; NULL: nothing is */
    const W *w, *b, *saved_mean, *saved_rstd; /* w, b: may be NULL */
    T       *y, *sum;                         /* y: dx in backward; sum: x + residual, unless NULL */
    W       *mean, *rstd;
    int64_t  rows, n;
    W        epsilon;
    W       *partial; /* (parts, 2 or 1, n): sums for dw and db; NULL: not wanted */
    int      parts, processors;
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

#define EACH_PACK(k, i, n) \
    _Pragma("unroll") for (int k = 0, i = me * N; k < EACH / N; k++, i += threads * N) if (i < (n))

/* Rows that are copied ahead of the one in registers: a slot of shared memory each, 4 bytes for each element of a row
 * and operand in all. */
#define ROWS_AHEAD(T) (sizeof(T) < 4 ? 4 / (int)sizeof(T) : 1)

/* Rows `row`, `row` + step, … of K operands on their way into shared memory. A thread copies what it reads itself, so
 * no thread waits for another one, and neither registers nor the number of warps limit the bytes in flight: an H200
 * needs about 40 KiB of them for each multiprocessor. Rows that are not in packs are read when they are needed. */
template <typename T, int N, int EACH, int K> struct row_queue {
    const T *operand[K];
    T       *slots; /* (ROWS_AHEAD(T), K, n), of the threads of a row */
    int64_t  row, step, end;
    int      n, me, threads, slot;

    /* Starts the copies of the next row. Past the end they are none, which are waited for like others. */
    __device__ __forceinline__ void push()
    {
        if constexpr (N > 1) {
            static_assert(N * sizeof(T) == 16, "what copy_pack copies");
            if (row < end) {
#pragma unroll
                for (int o = 0; o < K; o++) EACH_PACK(k, i, n)
                copy_pack(slots + (slot * K + o) * n + i, operand[o] + row * n + i, true);
            }
            copies_commit();
            slot = slot + 1 == ROWS_AHEAD(T) ? 0 : slot + 1;
            row += step;
        }
    }
    /* A pack of the oldest row, whose copies are complete. */
    __device__ __forceinline__ lk__pack<T, N> at(int o, int i) const
    {
        if constexpr (N > 1)
            return load_pack<N>(slots + (slot * K + o) * n + i);
        else
            return load_pack<N>(operand[o] + row * n + i);
    }
    /* After the last pack of a row was read: its slot is for the next one. */
    __device__ __forceinline__ void pop()
    {
        if constexpr (N > 1)
            push();
        else
            row += step;
    }
};

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

/* w or b of the columns of a thread: HELD in registers, where these suffice, or read for each row. */
template <typename W, int N, int EACH, bool HELD> struct row_weights {
    const W       *from;
    W              otherwise;
    lk__pack<W, N> held[HELD ? EACH / N : 1];

    __device__ __forceinline__ row_weights(const W *w, W constant, int n, int me, int threads)
        : from(w), otherwise(constant)
    {
        if constexpr (HELD) EACH_PACK(k, i, n) held[k] = load_weights<N, W>(from, i, otherwise);
    }
    __device__ __forceinline__ lk__pack<W, N> at(int k, int i) const
    {
        if constexpr (HELD)
            return held[k];
        else
            return load_weights<N, W>(from, i, otherwise);
    }
};

/* x + residual, rounded to the type in which others read it. */
template <typename T, int N>
static __device__ __forceinline__ void add_pack(lk__pack<T, N> *x, const lk__pack<T, N> &residual)
{
#pragma unroll
    for (int j = 0; j < N; j++) store(&x->at[j], load(&x->at[j]) + load(&residual.at[j]));
}

/* Blocks of warps of which a multiprocessor must have registers for two. */
#define TWO_BLOCKS(T, N, WARP) ((WARP) && sizeof(T) <= 4 && (N) > 1 ? 2 : 1)
#define HOLDS_WEIGHTS(T, N, EACH, WARP) ((WARP) && sizeof(T) <= 4 && (N) > 1 && (EACH) <= 24)

/* Warps have every gridDim-th row, so that a small number of rows is spread over all multiprocessors. */
template <typename T, int N, int EACH, bool WARP, bool RMS, bool RESIDUAL>
static __global__ void __launch_bounds__(WARP ? NORM_WARPS * 32 : BLOCK_ROW / BLOCK_EACH, TWO_BLOCKS(T, N, WARP))
    norm_rows(row_norm<T> p)
{
    typedef WIDE(T) W;
    await_previous();
    __shared__ W shared[32];
    DYNAMIC_SHARED(T, slots);
    constexpr int  OPERANDS = RESIDUAL ? 2 : 1;
    constexpr bool HELD = HOLDS_WEIGHTS(T, N, EACH, WARP);
    const int      n = (int)p.n, threads = WARP ? 32 : blockDim.x, me = WARP ? threadIdx.x % 32 : threadIdx.x;
    const int      warp = WARP ? threadIdx.x / 32 : 0;
    const int64_t  first = blockIdx.x + (int64_t)gridDim.x * warp, step = (int64_t)gridDim.x * (WARP ? NORM_WARPS : 1);
    lk__pack<T, N> x[EACH / N];
    row_queue<T, N, EACH, OPERANDS> rows = {
        {p.x}, slots + warp * (ROWS_AHEAD(T) * OPERANDS) * n, first, step, p.rows, n, me, threads, 0};
    if constexpr (RESIDUAL) rows.operand[1] = p.residual;
#pragma unroll
    for (int i = 0; i < ROWS_AHEAD(T); i++) rows.push();
    if (first >= p.rows) return; /* a warp: only a block's threads wait for one another */
    const row_weights<W, N, EACH, HELD> w(p.w, 1, n, me, threads), b(p.b, 0, n, me, threads);
    for (int64_t row = first; row < p.rows; row += step) {
        copies_wait<ROWS_AHEAD(T) - 1>();
        EACH_PACK(k, i, n)
        {
            x[k] = rows.at(0, i);
            if constexpr (RESIDUAL) add_pack<T, N>(&x[k], rows.at(1, i));
        }
        rows.pop();
        if constexpr (RESIDUAL)
            if (p.sum) EACH_PACK(k, i, n) store_pack<N>(p.sum + row * p.n + i, x[k]);
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
            const lk__pack<W, N> scale = w.at(k, i), offset = b.at(k, i);
            lk__pack<T, N>       y;
#pragma unroll
            for (int j = 0; j < N; j++) store(&y.at[j], (load(&x[k].at[j]) - mean) * rstd * scale.at[j] + offset.at[j]);
            store_pack<N>(p.y + row * p.n + i, y);
        }
        if (me == 0) {
            if (!RMS && p.mean) p.mean[row] = mean;
            if (p.rstd) p.rstd[row] = rstd;
        }
    }
}

/* What forward saved of a row; read a row ahead, as a thread would wait for it as long as for the row itself. */
template <typename W, bool RMS> struct row_statistics {
    W mean, rstd;

    __device__ __forceinline__ row_statistics(const W *saved_mean, const W *saved_rstd, int64_t row, int64_t end)
        : mean(0), rstd(0)
    {
        if (row >= end) return;
        if constexpr (!RMS) mean = saved_mean[row];
        rstd = saved_rstd[row];
    }
};

/* What a thread sums over the rows of its part, for its columns. */
template <typename W, int EACH> struct weight_sums {
    W dw[EACH], db[EACH];
};

/* A row's sums over its columns: of dy w, and of dy w (x - mean). */
template <typename W> struct row_products {
    W total, product;
};
template <typename T, int N, int EACH, bool RMS, bool HELD>
static __device__ __forceinline__ row_products<WIDE(T)> add_weight_row(
    weight_sums<WIDE(T), EACH> *sums, const lk__pack<T, N> (&x)[EACH / N], const lk__pack<T, N> (&dy)[EACH / N],
    const row_weights<WIDE(T), N, EACH, HELD> &weight, int n, int me, int threads, WIDE(T) mean, WIDE(T) rstd)
{
    typedef WIDE(T) W;
    row_products<W> row = {0, 0};
    EACH_PACK(k, i, n)
    {
        const lk__pack<W, N> w = weight.at(k, i);
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

/* A thread's sums for its columns, to the block's part of p.partial; those of warps are first stored in `shared`,
 * (GRAD_WARPS, n), and added in the warps' order. */
template <typename W, int N, int EACH, bool WARP>
static __device__ __forceinline__ void write_weight_sums(W *to, const W (&sums)[EACH], int n, int me, int threads,
                                                         W *shared)
{
    W *own = WARP ? shared + threadIdx.x / 32 * n : to;
    if (WARP) __syncthreads(); /* others may still read what was there */
    constexpr int M = N < PACK(W) ? N : PACK(W);
    EACH_PACK(k, i, n)
#pragma unroll
    for (int j = 0; j < N; j += M) {
        lk__pack<W, M> pack;
#pragma unroll
        for (int m = 0; m < M; m++) pack.at[m] = sums[k * N + j + m];
        store_pack<M>(own + i + j, pack);
    }
    if (!WARP) return;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        W sum = shared[i];
#pragma unroll
        for (int warp = 1; warp < GRAD_WARPS; warp++) sum += shared[warp * n + i];
        to[i] = sum;
    }
}

/* dx = rstd (g - mean(g) - xhat mean(g xhat)), with g = dy w and xhat = (x - mean) rstd; RMS norm has no mean(g). Block
 * i has part i of the rows. */
template <typename T, int N, int EACH, bool WARP, bool RMS, bool RESIDUAL>
static __global__ void __launch_bounds__(WARP ? GRAD_WARPS * 32 : BLOCK_ROW / BLOCK_EACH, TWO_BLOCKS(T, N, WARP))
    norm_rows_grad(row_norm<T> p)
{
    typedef WIDE(T) W;
    await_previous();
    __shared__ W shared[32];
    DYNAMIC_SHARED(unsigned char, bytes);
    constexpr int  AHEAD = ROWS_AHEAD(T), OPERANDS = RESIDUAL ? 3 : 2, PENDING = AHEAD * (RESIDUAL ? 2 : 1) - 1;
    constexpr bool HELD = HOLDS_WEIGHTS(T, N, EACH, WARP);
    const int      n = (int)p.n, threads = WARP ? 32 : blockDim.x, me = WARP ? threadIdx.x % 32 : threadIdx.x;
    const int      warp = WARP ? threadIdx.x / 32 : 0, step = WARP ? GRAD_WARPS : 1;
    const int64_t  end = part_begin(p.rows, p.parts, blockIdx.x + 1);
    const int64_t  first = part_begin(p.rows, p.parts, blockIdx.x) + warp;
    T             *slots = (T *)bytes + warp * (AHEAD * OPERANDS) * n;
    lk__pack<T, N> x[EACH / N], dy[EACH / N];
    row_queue<T, N, EACH, 2> rows = {{p.x, p.dy}, slots, first, step, end, n, me, threads, 0};
    row_queue<T, N, EACH, 1> residual = {{p.residual}, slots + 2 * AHEAD * n, first, step, end, n, me, threads, 0};
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        rows.push();
        if constexpr (RESIDUAL) residual.push();
    }
    const row_weights<W, N, EACH, HELD> w(p.w, 1, n, me, threads);
    weight_sums<W, EACH>                sums;
#pragma unroll
    for (int j = 0; j < EACH; j++) sums.dw[j] = sums.db[j] = 0;
    row_statistics<W, RMS> next(p.saved_mean, p.saved_rstd, first, end);
    for (int64_t row = first; row < end; row += step) {
        const W mean = next.mean, rstd = next.rstd;
        next = row_statistics<W, RMS>(p.saved_mean, p.saved_rstd, row + step, end);
        copies_wait<PENDING>();
        EACH_PACK(k, i, n)
        {
            x[k] = rows.at(0, i);
            dy[k] = rows.at(1, i);
        }
        rows.pop();
        row_products<W> products = add_weight_row<T, N, EACH, RMS>(&sums, x, dy, w, n, me, threads, mean, rstd);
        W               level = RMS ? 0 : row_sum<WARP>(products.total, shared) / (W)n;
        W               slope = row_sum<WARP>(products.product, shared) / (W)n * rstd * rstd; /* of x - mean */
        if constexpr (RESIDUAL) copies_wait<PENDING>();
        EACH_PACK(k, i, n)
        {
            const lk__pack<W, N> scale = w.at(k, i);
            lk__pack<T, N>       dx;
            if constexpr (RESIDUAL) dx = residual.at(0, i);
#pragma unroll
            for (int j = 0; j < N; j++) {
                W g = load(&dy[k].at[j]) * scale.at[j], c = load(&x[k].at[j]) - mean;
                W d = (g - level - c * slope) * rstd;
                if constexpr (RESIDUAL) d += load(&dx.at[j]);
                store(&dx.at[j], d);
            }
            store_pack<N>(p.y + row * p.n + i, dx);
        }
        if constexpr (RESIDUAL) residual.pop();
    }
    if (!p.partial) return;
    W *to = p.partial + (int64_t)blockIdx.x * (RMS ? 1 : 2) * p.n;
    write_weight_sums<W, N, EACH, WARP>(to, sums.dw, n, me, threads, (W *)bytes);
    if constexpr (!RMS) write_weight_sums<W, N, EACH, WARP>(to + n, sums.db, n, me, threads, (W *)bytes);
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
    p->processors = cuda_device(call)->processors;
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

/* Bytes of shared memory for rows in packs: the slots of each of `rows` that a block has at once. */
template <typename T> static size_t slot_bytes(const row_norm<T> &p, int rows, int operands)
{
    return (size_t)(rows * ROWS_AHEAD(T) * operands) * (size_t)p.n * sizeof(T);
}

/* At most 96 KiB, which all GPUs since 8.0 have. More than 48 KiB, with up to 1 KiB of variables, must be requested; a
 * failure makes the launch fail. */
template <typename K> static void allow_shared(K kernel, size_t bytes)
{
    lk__prefer_shared(kernel);
    if (bytes > 47 << 10) (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

/* As many blocks as the multiprocessors have room for, which loop over the rows: grids have no part in the results. */
template <typename T> static unsigned norm_blocks(const row_norm<T> &p, int each)
{
    int64_t blocks = (int64_t)p.processors * each;
    return (unsigned)(p.rows < blocks ? p.rows : blocks);
}

template <typename T, int N, int EACH, bool RMS, bool RESIDUAL>
static void launch_warps(cudaStream_t stream, const row_norm<T> &p)
{
    size_t bytes = N > 1 ? slot_bytes(p, NORM_WARPS, RESIDUAL ? 2 : 1) : 0;
    allow_shared(norm_rows<T, N, EACH, true, RMS, RESIDUAL>, bytes);
    LAUNCH_EARLY((norm_rows<T, N, EACH, true, RMS, RESIDUAL>), norm_blocks(p, 2), NORM_WARPS * 32, bytes, stream, p);
}

template <typename T, int N, bool RMS, bool RESIDUAL>
static void launch_blocks(cudaStream_t stream, const row_norm<T> &p)
{
    int    threads = (int)cuda_tiles(p.n, BLOCK_EACH * 32) * 32;
    size_t bytes = slot_bytes(p, 1, RESIDUAL ? 2 : 1);
    allow_shared(norm_rows<T, N, BLOCK_EACH, false, RMS, RESIDUAL>, bytes);
    LAUNCH_EARLY((norm_rows<T, N, BLOCK_EACH, false, RMS, RESIDUAL>), norm_blocks(p, 1024 / threads), threads, bytes,
                 stream, p);
}

template <typename T, bool RMS, bool RESIDUAL> static void launch_norm(cudaStream_t stream, const row_norm<T> &p)
{
    if (p.rows == 0 || p.n == 0) return;
    bool packs = packs_fit(p);
    if (is_long(p.n, packs))
        LAUNCH((norm_long<T, RMS>), cuda_blocks(p.rows, 1), LONG_THREADS, 0, stream, p);
    else if (!packs)
        launch_warps<T, 1, 32, RMS, RESIDUAL>(stream, p);
    else if constexpr (sizeof(T) <= 4) {
        if (p.n <= 512)
            launch_warps<T, PACK(T), 16, RMS, RESIDUAL>(stream, p);
        else if (p.n <= 768)
            launch_warps<T, PACK(T), 24, RMS, RESIDUAL>(stream, p);
        else if (p.n <= WARP_ROW)
            launch_warps<T, PACK(T), 32, RMS, RESIDUAL>(stream, p);
        else
            launch_blocks<T, PACK(T), RMS, RESIDUAL>(stream, p);
    }
}

template <typename T, int N, int EACH, bool RMS, bool RESIDUAL>
static void launch_warps_grad(cudaStream_t stream, const row_norm<T> &p)
{
    size_t slots = N > 1 ? slot_bytes(p, GRAD_WARPS, RESIDUAL ? 3 : 2) : 0;
    size_t sums = (size_t)(p.partial ? GRAD_WARPS * p.n : 0) * sizeof *p.partial, bytes = slots > sums ? slots : sums;
    allow_shared(norm_rows_grad<T, N, EACH, true, RMS, RESIDUAL>, bytes);
    LAUNCH_EARLY((norm_rows_grad<T, N, EACH, true, RMS, RESIDUAL>), (unsigned)p.parts, GRAD_WARPS * 32, bytes, stream,
                 p);
}

template <typename T, int N, bool RMS, bool RESIDUAL>
static void launch_blocks_grad(cudaStream_t stream, const row_norm<T> &p)
{
    unsigned threads = (unsigned)cuda_tiles(p.n, BLOCK_EACH * 32) * 32;
    size_t   bytes = slot_bytes(p, 1, RESIDUAL ? 3 : 2);
    allow_shared(norm_rows_grad<T, N, BLOCK_EACH, false, RMS, RESIDUAL>, bytes);
    LAUNCH_EARLY((norm_rows_grad<T, N, BLOCK_EACH, false, RMS, RESIDUAL>), (unsigned)p.parts, threads, bytes, stream,
                 p);
}

template <typename T, bool RMS, bool RESIDUAL> static void launch_grad(cudaStream_t stream, const row_norm<T> &p)
{
    if (p.rows == 0 || p.n == 0) return;
    bool packs = packs_fit(p);
    if (is_long(p.n, packs)) {
        LAUNCH((norm_long_grad<T, RMS>), cuda_blocks(p.rows, 1), LONG_THREADS, 0, stream, p);
        if (p.partial)
            LAUNCH((long_weight_sums<T, RMS>), dim3((unsigned)cuda_tiles(p.n, COLUMN_THREADS), (unsigned)p.parts),
                   COLUMN_THREADS, 0, stream, p);
    } else if (!packs)
        launch_warps_grad<T, 1, 32, RMS, RESIDUAL>(stream, p);
    else if constexpr (sizeof(T) <= 4) {
        if (p.n <= 512)
            launch_warps_grad<T, PACK(T), 16, RMS, RESIDUAL>(stream, p);
        else if (p.n <= 768)
            launch_warps_grad<T, PACK(T), 24, RMS, RESIDUAL>(stream, p);
        else if (p.n <= WARP_ROW)
            launch_warps_grad<T, PACK(T), 32, RMS, RESIDUAL>(stream, p);
        else
            launch_blocks_grad<T, PACK(T), RMS, RESIDUAL>(stream, p);
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
    if (p.residual)
        launch_norm<T, RMS, true>(cuda_stream(call), p);
    else
        launch_norm<T, RMS, false>(cuda_stream(call), p);
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
    if (p.residual)
        launch_grad<T, RMS, true>(cuda_stream(call), p);
    else
        launch_grad<T, RMS, false>(cuda_stream(call), p);
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
