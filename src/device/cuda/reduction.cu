/* reduction.cu - sum and mean over axes, and their gradient. Adjacent axes that are treated alike are merged, so nearly
 * every sum is over the middle of (a, b, c). Sums are in double and divided by shapes alone: fixed parts of b, added in
 * order. Bound by bytes. */
#include "device/cuda/map.h"

/* x's axes, merged, without axes of size 1. */
typedef struct groups {
    int     rank;
    int64_t dims[LK_MAX_RANK];
    bool    reduced[LK_MAX_RANK];
    int64_t added; /* elements that go into one sum */
} groups;

static groups merge_axes(const lk__kernel_operand *x, uint32_t mask)
{
    groups g = {};
    g.added = 1;
    for (int axis = 0; axis < x->rank; axis++) {
        bool reduced = mask >> axis & 1;
        if (reduced) g.added *= x->dims[axis];
        if (x->dims[axis] == 1) continue;
        if (g.rank && g.reduced[g.rank - 1] == reduced) {
            g.dims[g.rank - 1] *= x->dims[axis];
        } else {
            g.dims[g.rank] = x->dims[axis];
            g.reduced[g.rank++] = reduced;
        }
    }
    return g;
}

typedef struct middle {
    int64_t a, b, c; /* y (a, c) = sum over b */
} middle;

/* True when the pattern is kept?-reduced?-kept?. */
static bool is_middle(const groups *g, middle *s)
{
    int64_t *slots[] = {&s->a, &s->b, &s->c};
    int      slot = 0;
    s->a = s->b = s->c = 1;
    for (int i = 0; i < g->rank; i++) {
        while (slot < 3 && g->reduced[i] != (slot == 1)) slot++;
        if (slot == 3) return false;
        *slots[slot++] = g->dims[i];
    }
    if (s->b == 1) s->c *= s->a, s->a = 1; /* nothing to add: one row to copy */
    return true;
}

enum {
    THREADS = 256,
    WARP_MOST = 512,   /* elements of a row that one warp adds */
    ROW_PART = 8192,   /* elements of a row that one block adds */
    SHORT_MOST = 64,   /* rows that one thread adds, for its columns */
    COLUMN_PART = 256, /* rows that one block adds, for 32 columns */
    COLUMN_LANES = THREADS / 32,
};

/* Parts of each sum; their results are in the workspace as (a, parts, c) where there are several. */
static int64_t middle_parts(const middle *s)
{
    if (s->c == 1) return s->b > ROW_PART ? cuda_tiles(s->b, ROW_PART) : 1;
    return s->b > COLUMN_PART ? cuda_tiles(s->b, COLUMN_PART) : 1;
}

/* ---- along contiguous elements ---- */

template <typename T> static __global__ void row_sums_kernel(const T *x, T *y, int64_t rows, int64_t n, double divisor)
{
    int64_t row = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    double  sum = 0;
    if (row >= rows) return;
#pragma unroll 4
    for (int64_t i = threadIdx.x % 32; i < n; i += 32) sum += (double)x[row * n + i];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) y[row] = (T)(sum / divisor);
}

/* A block for each part of each row; with one part it writes y. */
template <typename T>
static __global__ void row_parts_kernel(const T *x, T *y, double *partial, int64_t n, divider parts, double divisor)
{
    __shared__ double shared[32];
    int64_t           part = blockIdx.x, row = divide_off(part, parts), begin = part * ROW_PART;
    int64_t           end = begin + ROW_PART < n ? begin + ROW_PART : n;
    double            sum = 0;
#pragma unroll 8
    for (int64_t i = begin + threadIdx.x; i < end; i += THREADS) sum += (double)x[row * n + i];
    sum = block_sum(sum, shared);
    if (threadIdx.x) return;
    if (partial)
        partial[blockIdx.x] = sum;
    else
        y[row] = (T)(sum / divisor);
}

/* ---- along columns ---- */

/* Few rows: a thread adds those of its columns. */
template <typename T> struct short_sum_map {
    enum { PACKED = PACK(T) };
    const T *x;
    T       *y;
    int64_t  b, c;
    divider  over; /* c */
    double   divisor;
    template <int N> struct values {
        double sum[N];
    };
    template <int N> __device__ __forceinline__ void read(int64_t at, values<N> &v) const
    {
        int64_t  column = at, outer = divide_off(column, over);
        const T *from = x + outer * b * c + column;
        for (int i = 0; i < N; i++) v.sum[i] = 0;
#pragma unroll 4
        for (int64_t k = 0; k < b; k++) {
            lk__pack<T, N> p = load_pack<N>(from + k * c);
#pragma unroll
            for (int i = 0; i < N; i++) v.sum[i] += (double)p.at[i];
        }
    }
    template <int N> __device__ __forceinline__ void write(int64_t at, values<N> &v) const
    {
        lk__pack<T, N> p;
#pragma unroll
        for (int i = 0; i < N; i++) p.at[i] = (T)(v.sum[i] / divisor);
        store_pack<N>(y + at, p);
    }
};

/* What the lanes of a block added for each of its 32 columns; in thread (0, column). */
static __device__ __forceinline__ double add_lanes(double sum, double (*shared)[33])
{
    int column = threadIdx.x % 32, lane = threadIdx.x / 32;
    shared[lane][column] = sum;
    __syncthreads();
    for (int l = 1; lane == 0 && l < COLUMN_LANES; l++) sum += shared[l][column];
    return sum;
}

/* 32 columns and a part of the rows, eight at a time. FROM: T, or double for the parts' sums. */
template <typename FROM, typename T>
static __global__ void column_parts_kernel(const FROM *x, T *y, double *partial, middle s, divider tiles, divider parts,
                                           int64_t each, double divisor)
{
    __shared__ double shared[COLUMN_LANES][33];
    int64_t           tile = blockIdx.x, item = divide_off(tile, tiles), part = item, outer = divide_off(part, parts);
    int64_t           column = tile * 32 + threadIdx.x % 32, begin = part * each;
    int64_t           end = begin + each < s.b ? begin + each : s.b;
    double            sum = 0;
    if (column < s.c) {
#pragma unroll 4
        for (int64_t k = begin + threadIdx.x / 32; k < end; k += COLUMN_LANES)
            sum += (double)x[(outer * s.b + k) * s.c + column];
    }
    sum = add_lanes(sum, shared);
    if (threadIdx.x >= 32 || column >= s.c) return;
    if (partial)
        partial[item * s.c + column] = sum;
    else
        y[outer * s.c + column] = (T)(sum / divisor);
}

template <typename FROM, typename T>
static void launch_columns(const lk__kernel_call *call, const FROM *x, T *y, double *partial, middle s, int64_t parts,
                           int64_t each, double divisor)
{
    int64_t tiles = cuda_tiles(s.c, 32);
    LAUNCH((column_parts_kernel<FROM, T>), (unsigned)(tiles * parts * s.a), THREADS, 0, cuda_stream(call), x, y,
           partial, s, make_divider(tiles), make_divider(parts), each, divisor);
}

/* The parts' sums of each row: one block a row. */
template <typename T>
static __global__ void finish_rows_kernel(const double *partial, T *y, int64_t parts, double divisor)
{
    __shared__ double shared[32];
    double            sum = 0;
    for (int64_t i = threadIdx.x; i < parts; i += THREADS) sum += partial[blockIdx.x * parts + i];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) y[blockIdx.x] = (T)(sum / divisor);
}

template <typename T> static void sum_middle(const lk__kernel_call *call, middle s, double divisor)
{
    const T     *x = in_data<T>(call, 0);
    T           *y = out_data<T>(call, 0);
    int64_t      parts = middle_parts(&s);
    double      *partial = parts > 1 ? (double *)call->workspace : NULL;
    cudaStream_t stream = cuda_stream(call);
    if (s.c > 1 && s.b <= SHORT_MOST) {
        short_sum_map<T> f = {x, y, s.b, s.c, make_divider(s.c), divisor};
        launch_map(call, f, s.a * s.c, s.c % PACK(T) == 0 && is_aligned(x, 16) && is_aligned(y, 16));
    } else if (s.c > 1) {
        launch_columns(call, x, y, partial, s, parts, (int64_t)COLUMN_PART, divisor);
        if (parts > 1)
            launch_columns(call, (const double *)partial, y, NULL, middle{s.a, parts, s.c}, 1, parts, divisor);
    } else if (s.b <= WARP_MOST) {
        LAUNCH(row_sums_kernel<T>, (unsigned)cuda_tiles(s.a, THREADS / 32), THREADS, 0, stream, x, y, s.a, s.b,
               divisor);
    } else {
        LAUNCH(row_parts_kernel<T>, (unsigned)(s.a * parts), THREADS, 0, stream, x, y, partial, s.b,
               make_divider(parts), divisor);
        if (parts > 1) LAUNCH(finish_rows_kernel<T>, (unsigned)s.a, THREADS, 0, stream, partial, y, parts, divisor);
    }
}

/* ---- any pattern of axes: a warp for each element of y ---- */

typedef struct pattern {
    int     kept, reduced; /* axes, innermost first */
    int64_t kept_step[LK_MAX_RANK], step[LK_MAX_RANK], added;
    divider kept_dim[LK_MAX_RANK], dim[LK_MAX_RANK];
} pattern;

template <typename T> static __global__ void pattern_kernel(pattern p, const T *x, T *y, int64_t n, double divisor)
{
    int64_t out = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32, rest = out, base = 0;
    double  sum = 0;
    if (out >= n) return;
    for (int i = 0; i < p.kept; i++) {
        int64_t index = rest;
        rest = divide_off(index, p.kept_dim[i]);
        base += index * p.kept_step[i];
    }
    for (int64_t k = threadIdx.x % 32; k < p.added; k += 32) {
        int64_t at = base;
        rest = k;
        for (int i = 0; i < p.reduced; i++) {
            int64_t index = rest;
            rest = divide_off(index, p.dim[i]);
            at += index * p.step[i];
        }
        sum += (double)x[at];
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) y[out] = (T)(sum / divisor);
}

template <typename T> static void sum_pattern(const lk__kernel_call *call, const groups *g, int64_t n, double divisor)
{
    pattern p = {};
    int64_t step = 1;
    p.added = g->added;
    for (int i = g->rank - 1; i >= 0; step *= g->dims[i--]) {
        if (g->reduced[i]) {
            p.dim[p.reduced] = make_divider(g->dims[i]);
            p.step[p.reduced++] = step;
        } else {
            p.kept_dim[p.kept] = make_divider(g->dims[i]);
            p.kept_step[p.kept++] = step;
        }
    }
    LAUNCH(pattern_kernel<T>, (unsigned)cuda_tiles(n, THREADS / 32), THREADS, 0, cuda_stream(call), p,
           in_data<T>(call, 0), out_data<T>(call, 0), n, divisor);
}

/* ---- sum ---- */

template <typename T> struct constant_map {
    enum { PACKED = 1 };
    T *y, value;
    template <int N> struct values {
    };
    template <int N> __device__ __forceinline__ void read(int64_t, values<N> &) const {}
    template <int N> __device__ __forceinline__ void write(int64_t at, values<N> &) const { y[at] = value; }
};

static size_t parts_bytes(const lk__kernel_operand *x, uint32_t mask)
{
    groups g = merge_axes(x, mask);
    middle s;
    if (!is_middle(&g, &s)) return 0;
    int64_t parts = middle_parts(&s);
    return parts > 1 ? (size_t)(s.a * parts * s.c) * sizeof(double) : 0;
}

/* Also for a batch of one sample, whose axis is merged with others. */
extern "C" size_t lk__cuda_sum_workspace(const lk__kernel_call *call, int threads)
{
    size_t most = parts_bytes(&call->in[0], call->attrs->mask);
    (void)threads;
    for (int i = 0; i < call->in[0].rank; i++) {
        lk__kernel_operand x = call->in[0];
        x.dims[i] = 1;
        size_t bytes = parts_bytes(&x, call->attrs->mask);
        most = bytes > most ? bytes : most;
    }
    return most;
}

template <typename T> static void launch_sum(const lk__kernel_call *call)
{
    groups  g = merge_axes(&call->in[0], call->attrs->mask);
    int64_t n = lk__operand_elements(&call->out[0]);
    double  divisor = call->attrs->mean ? (double)g.added : 1;
    middle  s;
    if (n == 0) return;
    if (g.added == 0) /* sums of nothing; their mean is NaN, as in PyTorch */
        launch_map(call, constant_map<T>{out_data<T>(call, 0), (T)(0 / divisor)}, n, false);
    else if (is_middle(&g, &s))
        sum_middle<T>(call, s, divisor);
    else
        sum_pattern<T>(call, &g, n, divisor);
}

extern "C" lk_status lk__cuda_sum(const lk__kernel_call *call)
{
    BY_WIDE_ELEMENT(call->out[0].dtype, T, launch_sum<T>(call);)
    return lk__cuda_launched(call);
}

/* ---- expand ---- */

template <typename T> struct expand_map {
    enum { PACKED = PACK(T) };
    broadcast walk;
    const T  *dy;
    T        *dx, factor;
    template <int N> struct values {
        lk__pack<T, N> x;
    };
    template <int N> __device__ __forceinline__ void read(int64_t at, values<N> &v) const
    {
        int64_t offset[1];
        broadcast_offsets(walk, at, offset);
        v.x = load_stepped<N>(dy + offset[0], walk.step[0][walk.rank - 1]);
    }
    template <int N> __device__ __forceinline__ void write(int64_t at, values<N> &v) const
    {
#pragma unroll
        for (int i = 0; i < N; i++) v.x.at[i] *= factor;
        store_pack<N>(dx + at, v.x);
    }
};

template <typename T> static void launch_expand(const lk__kernel_call *call)
{
    groups        g = merge_axes(&call->out[0], call->attrs->mask);
    expand_map<T> f = {};
    int64_t       step = 1;
    f.dy = in_data<T>(call, 0);
    f.dx = out_data<T>(call, 0);
    f.factor = call->attrs->mean ? (T)(1 / (double)g.added) : (T)1;
    f.walk.operands = 1;
    for (int i = g.rank - 1; i >= 0; i--) {
        int64_t own = g.reduced[i] ? 0 : step;
        broadcast_axis(&f.walk, g.dims[i], &own);
        if (!g.reduced[i]) step *= g.dims[i];
    }
    broadcast_finish(&f.walk, lk__operand_elements(&call->out[0]));
    bool repeats = f.walk.step[0][f.walk.rank - 1] == 0;
    launch_map(call, f, f.walk.n,
               broadcast_packs(&f.walk, PACK(T)) && is_aligned(f.dx, 16) && (repeats || is_aligned(f.dy, 16)));
}

extern "C" lk_status lk__cuda_expand(const lk__kernel_call *call)
{
    BY_WIDE_ELEMENT(call->out[0].dtype, T, launch_expand<T>(call);)
    return lk__cuda_launched(call);
}
