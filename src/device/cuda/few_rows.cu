/* few_rows.cu - products whose A has up to 8 rows: every element of B is read once, 16 bytes at a time, and multiplied with all rows. The
 * bytes of B bound it: generation reads all weights for each token. Where these are few, latency does: a thread asks for all its first
 * elements of B before it waits for the kernel before, which makes A. Sums are divided over lanes by the shape alone, and in the same
 * way for any number of rows. */
#include "device/cuda/few_rows.h"
#include "device/cuda/product_epilogue.h"

enum { MOST = 8, ROW_THREADS = 512, COLUMN_THREADS = 256, COLUMN_WARPS = COLUMN_THREADS / 32 };
enum { NORM_BYTES = 32 << 10 }; /* of rows that a block keeps */
enum { NORM_BLOCKS = 384 }; /* of products with a norm, which every block computes: their warps take several columns */

template <typename T> struct few_call {
    typedef WIDE(T) W;
    struct part {
        const T            *b;
        int64_t             b_ld, n;
        product_epilogue<T> to;
    };
    const T *a;
    int64_t  a_ld;
    int      k, m, count;
    part     of[LK__FEW_PRODUCTS];
    T       *gated;
    bool     early;
    /* the norm; x NULL: none */
    const T *x, *residual;
    const W *weight, *bias;
    T       *y, *sum;
    W       *mean, *rstd;
    W        epsilon;
    bool     rms;
};

/* ---- packs as they are read: 16 bytes in four registers, whatever the elements ---- */

static __device__ __forceinline__ uint4 load_bits(const void *p) { return *(const uint4 *)p; }

static __device__ __forceinline__ float real_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static __device__ __forceinline__ void unpack(const uint4 &p, float (&to)[8]) /* bf16: the upper half of an f32 */
{
    uint32_t words[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to[2 * i] = real_of(words[i] << 16);
        to[2 * i + 1] = real_of(words[i] & 0xffff0000u);
    }
}
static __device__ __forceinline__ void unpack(const uint4 &p, float (&to)[4])
{
    to[0] = real_of(p.x), to[1] = real_of(p.y), to[2] = real_of(p.z), to[3] = real_of(p.w);
}

/* ---- the norm: a warp a row, whose elements stay its lanes' ---- */

template <typename T, int N> static __device__ __forceinline__ void add_pack(lk__pack<T, N> *x, const lk__pack<T, N> &y)
{
#pragma unroll
    for (int e = 0; e < N; e++) store(&x->at[e], load(&x->at[e]) + load(&y.at[e]));
}

template <int N, typename W>
static __device__ __forceinline__ void load_wide(const W *p, int64_t at, W otherwise, W (&to)[N])
{
#pragma unroll
    for (int e = 0; e < N; e++) to[e] = p ? p[at + e] : otherwise;
}

template <typename T> static __device__ void normalise_row(const few_call<T> &f, int row, T *to)
{
    typedef WIDE(T) W;
    constexpr int N = PACK(T);
    int           lane = threadIdx.x % 32;
    bool          writes = blockIdx.x == 0;
    int64_t       from = (int64_t)row * f.k;
    W             mean = 0, squares = 0;
#pragma unroll 3
    for (int i = lane * N; i < f.k; i += 32 * N) {
        lk__pack<T, N> x = load_pack<N>(f.x + from + i);
        if (f.residual) add_pack<T, N>(&x, load_pack<N>(f.residual + from + i));
        if (writes && f.sum) store_pack<N>(f.sum + from + i, x);
        store_pack<N>(to + i, x);
#pragma unroll
        for (int e = 0; e < N; e++) mean += load(&x.at[e]);
    }
    mean = f.rms ? (W)0 : warp_sum(mean) / (W)f.k;
#pragma unroll 3
    for (int i = lane * N; i < f.k; i += 32 * N) {
        lk__pack<T, N> x = load_pack<N>(to + i);
#pragma unroll
        for (int e = 0; e < N; e++) squares += (load(&x.at[e]) - mean) * (load(&x.at[e]) - mean);
    }
    W rstd = (W)1 / (W)sqrt(warp_sum(squares) / (W)f.k + f.epsilon);
#pragma unroll 1
    for (int i = lane * N; i < f.k; i += 32 * N) {
        lk__pack<T, N> x = load_pack<N>(to + i), y;
        W              w[N], b[N];
        load_wide<N>(f.weight, i, (W)1, w);
        load_wide<N>(f.bias, i, (W)0, b);
#pragma unroll
        for (int e = 0; e < N; e++) store(&y.at[e], (load(&x.at[e]) - mean) * rstd * w[e] + b[e]);
        store_pack<N>(to + i, y);
        if (writes && f.y) store_pack<N>(f.y + from + i, y);
    }
    if (writes && lane == 0 && f.mean) f.mean[row] = mean;
    if (writes && lane == 0 && f.rstd) f.rstd[row] = rstd;
}

/* What the norm and the epilogue read later, while the kernel before still runs. */
template <typename T> static __device__ __forceinline__ void prefetch_norm(const few_call<T> &f)
{
    int at = (int)threadIdx.x * (128 / (int)sizeof(WIDE(T)));
    if (at >= f.k) return;
    if (f.weight) prefetch_line(f.weight + at);
    if (f.bias) prefetch_line(f.bias + at);
}

/* A: as it is, or, NORM, made in `rows`. */
template <bool NORM, typename T>
static __device__ __forceinline__ const T *input_rows(const few_call<T> &f, T *rows, int64_t *ld)
{
    *ld = NORM ? f.k : f.a_ld;
    if constexpr (NORM) {
        for (int row = threadIdx.x / 32; row < f.m; row += blockDim.x / 32) normalise_row(f, row, rows + row * f.k);
        __syncthreads();
        return rows;
    }
    return f.a;
}

/* ---- B (k, n): C lanes side by side have a pack of columns each, the others of a block every DEEP-th k ---- */

/* AHEAD: packs that a thread asks for before it waits. With few of them two blocks fit on a multiprocessor: the other is one of the next
 * kernel. */
template <typename T, int R, int C, int AHEAD, bool NORM>
static __global__ void __launch_bounds__(ROW_THREADS, R <= 2 && AHEAD <= 6 ? 2 : 1) multiply_rows(few_call<T> f)
{
    typedef WIDE(T) W;
    constexpr int N = PACK(T), DEEP = ROW_THREADS / C, WARPS = ROW_THREADS / 32;
    DYNAMIC_SHARED(T, rows);
    __shared__ W shared[WARPS][R][C * N];
    const auto  &p = f.of[0];
    int          side = threadIdx.x % C, lane = threadIdx.x % 32, warp = threadIdx.x / 32, begin = threadIdx.x / C;
    int64_t      first = (int64_t)blockIdx.x * C * N, column = first + side * N, ld;
    int          end = column < p.n ? f.k : 0;
    const T     *b = p.b + column;
    uint4        w[AHEAD];
    W            sums[R][N] = {};
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (begin + i * DEEP < end) w[i] = load_bits(b + (begin + i * DEEP) * p.b_ld);
    if (p.to.bias && threadIdx.x == 0) prefetch_line(p.to.bias + first);
    if (NORM) prefetch_norm(f);
    await_previous();
    const T *a = input_rows<NORM>(f, rows, &ld);
    auto     add_row = [&](int q, const uint4 &pack) {
        float row[N];
        unpack(pack, row);
#pragma unroll
        for (int r = 0; r < R; r++) {
            W x = load(a + (r < f.m ? r : 0) * ld + q);
#pragma unroll
            for (int e = 0; e < N; e++) sums[r][e] += x * row[e];
        }
    };
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (begin + i * DEEP < end) add_row(begin + i * DEEP, w[i]);
#pragma unroll 4
    for (int q = begin + AHEAD * DEEP; q < end; q += DEEP) add_row(q, load_bits(b + q * p.b_ld));
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int e = 0; e < N; e++) {
            W x = sums[r][e];
            for (int offset = 16; offset >= C; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
            if (lane < C) shared[warp][r][lane * N + e] = x;
        }
    __syncthreads();
    for (int i = threadIdx.x; i < R * C * N; i += ROW_THREADS) {
        int r = i / (C * N), at = i % (C * N);
        W   total = 0;
#pragma unroll
        for (int v = 0; v < WARPS; v++) total += shared[v][r][at];
        if (r < f.m && first + at < p.n) p.to.put_one(0, r, first + at, total);
    }
}

/* ---- B transposed, (n, k): a warp has a column of C, or U of them, and its lanes every 32nd pack of k ---- */

template <typename T> struct column_place {
    const T *b; /* NULL: there is none */
    int      part;
    int64_t  column;
};

/* Column u of item `item`: the same one of both parts where they are gated; otherwise neighbours, part after part. */
template <typename T, int U>
static __device__ __forceinline__ column_place<T> find_column(const few_call<T> &f, int64_t item, int u)
{
    column_place<T> place = {NULL, f.gated ? u : 0, f.gated ? item : item * U + u};
    while (!f.gated && place.part + 1 < f.count && place.column >= f.of[place.part].n)
        place.column -= f.of[place.part++].n;
    const auto &p = f.of[place.part];
    if (place.column < p.n) place.b = p.b + place.column * p.b_ld;
    return place;
}

template <typename T, int U, int AHEAD>
static __device__ __forceinline__ void load_ahead(const column_place<T> (&at)[U], int p, int k, uint4 (&w)[U][AHEAD])
{
    constexpr int N = PACK(T);
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
#pragma unroll
        for (int u = 0; u < U; u++)
            if (at[u].b && p + i * 32 * N < k) w[u][i] = load_bits(at[u].b + p + i * 32 * N);
}

template <typename W> static __device__ __forceinline__ W silu(W x) { return x / ((W)1 + (W)exp(-x)); }

/* C rounded as it is stored. */
template <typename T> static __device__ __forceinline__ WIDE(T) rounded(WIDE(T) x)
{
    T narrow;
    store(&narrow, x);
    return load(&narrow);
}

template <typename T, int R, int U, bool NORM>
static __global__ void __launch_bounds__(COLUMN_THREADS, R > 2  ? 2
                                                         : NORM ? 3
                                                                : 4) multiply_columns(few_call<T> f, int64_t items)
{
    typedef WIDE(T) W;
    constexpr int N = PACK(T), AHEAD = 8 / U;
    DYNAMIC_SHARED(T, rows);
    int             lane = threadIdx.x % 32, p = lane * N;
    int64_t         first = (int64_t)blockIdx.x * COLUMN_WARPS + threadIdx.x / 32, ld;
    uint4           w[U][AHEAD];
    column_place<T> at[U];
#pragma unroll
    for (int u = 0; u < U; u++) at[u] = first < items ? find_column<T, U>(f, first, u) : column_place<T>{NULL, 0, 0};
    load_ahead(at, p, f.k, w);
    if (NORM) prefetch_norm(f);
    await_previous();
    const T *a = input_rows<NORM>(f, rows, &ld);
    for (int64_t item = first; item < items; item += (int64_t)gridDim.x * COLUMN_WARPS) {
        W sums[U][R] = {};
        if (item != first) {
#pragma unroll
            for (int u = 0; u < U; u++) at[u] = find_column<T, U>(f, item, u);
        }
        for (int begin = p; begin < f.k; begin += AHEAD * 32 * N) {
            if (item != first || begin != p) load_ahead(at, begin, f.k, w);
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                int q = begin + i * 32 * N;
                if (q >= f.k) continue;
                float row[U][N];
#pragma unroll
                for (int u = 0; u < U; u++) unpack(w[u][i], row[u]);
#pragma unroll
                for (int r = 0; r < R; r++) {
                    float x[N];
                    unpack(load_bits(a + (r < f.m ? r : 0) * ld + q), x);
#pragma unroll
                    for (int u = 0; u < U; u++)
#pragma unroll
                        for (int e = 0; e < N; e++)
                            sums[u][r] += x[e] * row[u][e]; /* of a column that is not there: unused */
                }
            }
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            W c[U] = {};
#pragma unroll
            for (int u = 0; u < U; u++) {
                const product_epilogue<T> &to = f.of[at[u].part].to;
                W                          total = warp_sum(sums[u][r]);
                int64_t                    place = r * to.ld + at[u].column;
                if (lane != 0 || r >= f.m || !at[u].b) continue;
                c[u] = to.finish(place, at[u].column, total);
                to.write(to.c, place, c[u]);
            }
            if (U == 2 && f.gated && lane == 0 && r < f.m)
                store(f.gated + r * f.of[0].n + at[0].column, silu(rounded<T>(c[0])) * rounded<T>(c[U - 1]));
        }
    }
}

/* ---- launches ---- */

template <typename T> static few_call<T> describe_call(const lk__cuda_few_products *products)
{
    typedef WIDE(T) W;
    const lk__cuda_product  *first = &products->product[0];
    const lk__cuda_row_norm *norm = products->norm;
    few_call<T>              f = {};
    f.a = (const T *)first->a;
    f.a_ld = first->a_ld;
    f.k = (int)first->k;
    f.m = (int)first->m;
    f.count = products->count;
    f.gated = (T *)products->gated;
    f.early = products->early;
    for (int i = 0; i < products->count; i++) {
        const lk__cuda_product *p = &products->product[i];
        f.of[i].b = (const T *)p->b;
        f.of[i].b_ld = p->b_ld;
        f.of[i].n = p->n;
        f.of[i].to = product_epilogue_of<T>(p);
    }
    if (!norm) return f;
    f.x = (const T *)norm->x;
    f.residual = (const T *)norm->residual;
    f.weight = (const W *)norm->weight;
    f.bias = (const W *)norm->bias;
    f.y = (T *)norm->y;
    f.sum = (T *)norm->sum;
    f.mean = (W *)norm->mean;
    f.rstd = (W *)norm->rstd;
    f.epsilon = (W)norm->epsilon;
    f.rms = norm->rms;
    return f;
}

template <typename T, int R, int U>
static void launch_columns(const lk__kernel_call *call, const few_call<T> &f, int64_t items, size_t shared)
{
    int64_t blocks = cuda_tiles(items, COLUMN_WARPS);
    if (f.x && blocks > NORM_BLOCKS) blocks = NORM_BLOCKS;
    if (f.x)
        LAUNCH_EARLY_IF(f.early, (multiply_columns<T, R, U, true>), (unsigned)blocks, COLUMN_THREADS, shared,
                        cuda_stream(call), f, items);
    else
        LAUNCH_EARLY_IF(f.early, (multiply_columns<T, R, U, false>), (unsigned)blocks, COLUMN_THREADS, 0,
                        cuda_stream(call), f, items);
}

template <typename T, int R, int C, int AHEAD>
static void launch_ahead(const lk__kernel_call *call, const few_call<T> &f, size_t shared)
{
    unsigned blocks = (unsigned)cuda_tiles(f.of[0].n, C * PACK(T));
    if (f.x)
        LAUNCH_EARLY_IF(f.early, (multiply_rows<T, R, C, AHEAD, true>), blocks, ROW_THREADS, shared, cuda_stream(call),
                        f);
    else
        LAUNCH_EARLY_IF(f.early, (multiply_rows<T, R, C, AHEAD, false>), blocks, ROW_THREADS, 0, cuda_stream(call), f);
}

template <typename T, int R, int C>
static void launch_rows(const lk__kernel_call *call, const few_call<T> &f, size_t shared)
{
    if constexpr (R > 2)
        launch_ahead<T, R, C, 4>(call, f, shared);
    else if (f.k <= 6 * (ROW_THREADS / C))
        launch_ahead<T, R, C, 6>(call, f, shared);
    else
        launch_ahead<T, R, C, 12>(call, f, shared);
}

/* Short columns go two by two, so that a lane has enough reads in flight. */
template <typename T, int R> static void run_rows(const lk__kernel_call *call, const lk__cuda_few_products *products)
{
    constexpr int N = PACK(T);
    few_call<T>   f = describe_call<T>(products);
    size_t        shared = products->norm ? (size_t)(f.m * f.k) * sizeof(T) : 0;
    int64_t       n = f.of[0].n, columns = 0;
    for (int i = 0; i < f.count; i++) columns += f.of[i].n;
    if (products->product[0].b_transposed) {
        if (f.gated)
            launch_columns<T, R, 2>(call, f, n, shared);
        else if (f.count == 1 && f.k <= 4 * 32 * N && n >= 8192)
            launch_columns<T, R, 2>(call, f, cuda_tiles(n, 2), shared);
        else
            launch_columns<T, R, 1>(call, f, columns, shared);
    } else if (n >= 1536) /* enough blocks with 64 bytes of a row each */
        launch_rows<T, R, 4>(call, f, shared);
    else
        launch_rows<T, R, 2>(call, f, shared);
}

template <typename T> static void run_few(const lk__kernel_call *call, const lk__cuda_few_products *products)
{
    int64_t m = products->product[0].m;
    if (m == 1)
        run_rows<T, 1>(call, products);
    else if (m == 2)
        run_rows<T, 2>(call, products);
    else if (m <= 4)
        run_rows<T, 4>(call, products);
    else
        run_rows<T, 8>(call, products);
}

static bool packs_align(const void *p, int64_t ld, int64_t pack) { return (uintptr_t)p % 16 == 0 && ld % pack == 0; }

bool lk__cuda_few_rows_suit(const lk__cuda_device *device, const lk__cuda_product *p)
{
    int64_t pack = p->type == LK_BF16 ? PACK(bf16) : PACK(float);
    if (device->base.by_heuristic || p->m < 1 || p->m > MOST || p->batch != 1 || p->a_transposed || p->a_sums ||
        p->b_sums)
        return false;
    if ((p->type != LK_BF16 && p->type != LK_F32) || p->n * p->k < 1 << 14 || p->k > INT32_MAX / 2) return false;
    if (!packs_align(p->b, p->b_ld, pack)) return false;
    return p->b_transposed ? p->k % pack == 0 && packs_align(p->a, p->a_ld, pack) : p->n % pack == 0;
}

static bool norm_suits(const lk__cuda_row_norm *norm, const lk__cuda_product *p)
{
    int64_t pack = p->type == LK_BF16 ? PACK(bf16) : PACK(float);
    size_t  size = p->type == LK_BF16 ? 2 : 4;
    return p->k % pack == 0 && (size_t)(p->m * p->k) * size <= NORM_BYTES && packs_align(norm->x, 0, pack) &&
           packs_align(norm->residual, 0, pack) && packs_align(norm->y, 0, pack) && packs_align(norm->sum, 0, pack);
}

bool lk__cuda_few_products_suit(const lk__cuda_device *device, const lk__cuda_few_products *products)
{
    const lk__cuda_product *first = &products->product[0];
    int64_t                 columns = 0;
    if (products->norm && !norm_suits(products->norm, first)) return false;
    for (int i = 0; i < products->count; i++) {
        lk__cuda_product p = products->product[i];
        if (products->norm) p.a = NULL; /* in the block's memory */
        if (!lk__cuda_few_rows_suit(device, &p) || p.m != first->m || p.k != first->k || p.type != first->type ||
            p.b_transposed != first->b_transposed || p.a != (products->norm ? NULL : first->a))
            return false;
        columns += p.n;
    }
    if (products->count > 1 && !first->b_transposed) return false;
    if (products->norm && columns > 64 * NORM_BLOCKS) return false; /* a norm of its own costs less */
    return !products->gated ||
           (products->count == 2 && products->product[1].n == first->n && first->type_c == first->type);
}

lk_status lk__cuda_run_few_products(const lk__kernel_call *call, const lk__cuda_few_products *products)
{
    if (products->product[0].type == LK_BF16)
        run_few<bf16>(call, products);
    else
        run_few<float>(call, products);
    return lk__cuda_launched(call);
}

lk_status lk__cuda_few_rows(const lk__kernel_call *call, const lk__cuda_product *p)
{
    lk__cuda_few_products one = {};
    one.product[0] = *p;
    one.count = 1;
    return lk__cuda_run_few_products(call, &one);
}
