/* device/cuda/batch_norm.h - the two passes of batch norm over its matrix of rows × channels: sums over parts of the
 * rows, and a linear function of each element with coefficients by channel. Bound by memory. */
#ifndef LK__CUDA_BATCH_NORM_H
#define LK__CUDA_BATCH_NORM_H

#include "device/cuda/columns.h"

/* Rows of a thread whose reads are in flight together; `several` arrays are read. */
#define ROWS_AT_ONCE(several) ((several) ? 2 : 4)

/* ---- sums over parts of the rows ---- */

template <typename T> struct batch {
    typedef WIDE(T) W;
    const T *x, *dy, *out; /* out: y, of which relu's gradient needs the sign; NULL: no relu */
    const W *mean;         /* of gradients */
    double  *partial; /* (parts, 2, channels): mean and sum of squares about it; or sums of g (x - mean) and of g */
};

/* Block (part, strip): see columns.h. */
template <typename T, int N, bool GRADIENT>
static __global__ void __launch_bounds__(COLUMN_THREADS) batch_sums(batch<T> p, column_layout l)
{
    typedef WIDE(T) W;
    constexpr int ROWS = ROWS_AT_ONCE(GRADIENT);
    __shared__ lk__pack<W, N> shared[COLUMN_THREADS];
    const int                 pack = blockIdx.y * l.width + threadIdx.x % l.width, strip = blockIdx.y * l.width * N;
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
    return channels % PACK(T) == 0 && (uintptr_t)p.x % 16 == 0 && (uintptr_t)p.dy % 16 == 0 &&
           (uintptr_t)p.out % 16 == 0;
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

/* ---- y = x factor + shift [+ residual], then relu; dx = g factor + (x slope + shift) ---- */

template <typename T> struct affine {
    typedef WIDE(T) W;
    const T *x, *dy, *out; /* dy: of a forward, the residual; NULL: none */
    T       *y;
    const W *factor, *shift, *slope; /* slope NULL: the statistics are constants */
    int64_t  rows;
    int      columns, packs, width;
    bool     relu;
};

template <typename T, int N, bool GRADIENT, bool RESIDUAL>
static __global__ void __launch_bounds__(COLUMN_THREADS) batch_affine(affine<T> p)
{
    typedef WIDE(T) W;
    constexpr int ROWS = ROWS_AT_ONCE(GRADIENT || RESIDUAL);
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
        if (GRADIENT || RESIDUAL) dy[r] = load_pack<N>(p.dy + at);
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
                if (RESIDUAL) v += load(&dy[r].at[j]);
                if (p.relu && v <= 0) v = 0; /* a NaN stays */
            }
            store(&y.at[j], v);
        }
        store_pack<N>(p.y + (row + (int64_t)r * height) * p.columns + c, y);
    }
}

template <typename T, bool GRADIENT, bool RESIDUAL>
static void launch_affine(cudaStream_t stream, affine<T> p, const lk__kernel_operand *x)
{
    bool packs = x->dims[1] % PACK(T) == 0 && (uintptr_t)p.x % 16 == 0 && (uintptr_t)p.y % 16 == 0 &&
                 (uintptr_t)p.dy % 16 == 0 && (uintptr_t)p.out % 16 == 0;
    column_layout l = layout_of(x, packs);
    p.rows = l.rows;
    p.columns = l.columns;
    p.packs = l.packs;
    p.width = l.width;
    dim3 grid((unsigned)cuda_tiles(l.rows, (int64_t)l.height * ROWS_AT_ONCE(GRADIENT || RESIDUAL)), (unsigned)l.strips);
    if (l.rows == 0 || l.strips == 0 || !p.y) return;
    if (packs)
        LAUNCH((batch_affine<T, PACK(T), GRADIENT, RESIDUAL>), grid, COLUMN_THREADS, 0, stream, p);
    else
        LAUNCH((batch_affine<T, 1, GRADIENT, RESIDUAL>), grid, COLUMN_THREADS, 0, stream, p);
}

#endif
