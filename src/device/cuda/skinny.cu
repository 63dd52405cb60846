/* skinny.cu - products whose A has up to 8 rows: every element of B is read once, 16 bytes at a time, and multiplied
 * with all rows. The bytes of B bound it: generation reads all weights for each token. Where these are few, latency
 * does: a thread requests all its first elements of B before it waits for the previous kernel, which computes A. Sums
 * are divided over lanes by the shape alone, and in the same way for any number of rows. */
#include "device/cuda/skinny_call.h"

enum { MOST = 8, ROW_THREADS = 512 };
enum { NORM_BYTES = 28 << 10 }; /* of rows that a block keeps */
enum { NORM_COLUMNS = 24576 };  /* of products (k, n) with a norm, which each of their many blocks computes */

/* ---- B (k, n): C lanes side by side have a pack of columns each, the others of a block every DEEP-th k ---- */

/* AHEAD: packs that a thread asks for before it waits. With few of them two blocks fit on a multiprocessor: the other
 * is one of the next kernel. */
template <typename T, int R, int C, int AHEAD, bool NORM>
static __global__ void __launch_bounds__(ROW_THREADS, R <= 2 && AHEAD <= 6 ? 2 : 1) multiply_rows(skinny_call<T> f)
{
    typedef WIDE(T) W;
    constexpr int N = PACK(T), DEEP = ROW_THREADS / C, WARPS = ROW_THREADS / 32;
    DYNAMIC_SHARED(T, rows);
    __shared__ W shared[WARPS][R][C * N];
    const auto  &p = f.of[0];
    int          side = threadIdx.x % C, lane = threadIdx.x % 32, warp = threadIdx.x / 32, begin = threadIdx.x / C;
    int64_t      first = (int64_t)blockIdx.x * C * N, column = first + side * N;
    int          end = column < p.n ? f.k : 0;
    const T     *b = p.b + column;
    uint4        w[AHEAD];
    W            sums[R][N] = {};
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (begin + i * DEEP < end) w[i] = load_bits(b + (begin + i * DEEP) * p.b_ld);
    if (p.to.bias && threadIdx.x == 0) prefetch_line(p.to.bias + first);
    if (NORM) stage_norm<T, ROW_THREADS>(f, rows);
    await_previous();
    const T *a = NORM ? rows : f.a;
    int64_t  ld = NORM ? f.k : f.a_ld;
    if constexpr (NORM) {
        copies_wait<0>();
        normalise_rows<T, R, ROW_THREADS>(f, rows);
        __syncthreads();
    }
    auto add_row = [&](int q, const uint4 &pack) {
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

/* ---- launches ---- */

template <typename T> static skinny_call<T> describe_call(const lk__cuda_few_products *products)
{
    typedef WIDE(T) W;
    const lk__cuda_product  *first = &products->product[0];
    const lk__cuda_row_norm *norm = products->norm;
    skinny_call<T>           f = {};
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

template <typename T, int R, int C, int AHEAD>
static void launch_ahead(const lk__kernel_call *call, const skinny_call<T> &f, size_t shared)
{
    unsigned blocks = (unsigned)cuda_tiles(f.of[0].n, C * PACK(T));
    if (f.x)
        LAUNCH_EARLY_IF(f.early, (multiply_rows<T, R, C, AHEAD, true>), blocks, ROW_THREADS, shared, cuda_stream(call),
                        f);
    else
        LAUNCH_EARLY_IF(f.early, (multiply_rows<T, R, C, AHEAD, false>), blocks, ROW_THREADS, 0, cuda_stream(call), f);
}

template <typename T, int R, int C>
static void launch_rows(const lk__kernel_call *call, const skinny_call<T> &f, size_t shared)
{
    if constexpr (R > 2)
        launch_ahead<T, R, C, 4>(call, f, shared);
    else if (f.k <= 6 * (ROW_THREADS / C))
        launch_ahead<T, R, C, 6>(call, f, shared);
    else
        launch_ahead<T, R, C, 12>(call, f, shared);
}

template <typename T, int R>
static void run_rows(const lk__kernel_call *call, const skinny_call<T> &f, const lk__cuda_few_products *products)
{
    size_t  shared = products->norm ? norm_bytes(f) : 0;
    int64_t n = f.of[0].n;
    if (n >= 1536) /* enough blocks with 64 bytes of a row each */
        launch_rows<T, R, 4>(call, f, shared);
    else
        launch_rows<T, R, 2>(call, f, shared);
}

template <typename T> static void run_few(const lk__kernel_call *call, const lk__cuda_few_products *products)
{
    skinny_call<T> f = describe_call<T>(products);
    if (products->product[0].b_transposed)
        lk__skinny_transposed(call, f);
    else if (f.m == 1)
        run_rows<T, 1>(call, f, products);
    else if (f.m == 2)
        run_rows<T, 2>(call, f, products);
    else if (f.m <= 4)
        run_rows<T, 4>(call, f, products);
    else
        run_rows<T, 8>(call, f, products);
}

static bool packs_align(const void *p, int64_t ld, int64_t pack) { return (uintptr_t)p % 16 == 0 && ld % pack == 0; }

bool lk__cuda_skinny_support(const lk__cuda_device *device, const lk__cuda_product *p)
{
    int64_t pack = p->type == LK_BF16 ? PACK(bf16) : PACK(float);
    if (device->base.by_heuristic || p->m < 1 || p->m > MOST || p->batch != 1 || p->a_transposed || p->a_sums ||
        p->b_sums)
        return false;
    if ((p->type != LK_BF16 && p->type != LK_F32) || p->n * p->k < 1 << 14 || p->k > INT32_MAX / 2 ||
        p->n > INT32_MAX / 4)
        return false;
    if (!packs_align(p->b, p->b_ld, pack)) return false;
    return p->b_transposed ? p->k % pack == 0 && packs_align(p->a, p->a_ld, pack) : p->n % pack == 0;
}

static bool norm_supports(const lk__cuda_row_norm *norm, const lk__cuda_product *p)
{
    int64_t pack = p->type == LK_BF16 ? PACK(bf16) : PACK(float);
    size_t  size = p->type == LK_BF16 ? 2 : 4;
    return p->k % pack == 0 && (size_t)(p->m * p->k) * size <= NORM_BYTES && packs_align(norm->x, 0, pack) &&
           packs_align(norm->residual, 0, pack) && packs_align(norm->y, 0, pack) && packs_align(norm->sum, 0, pack) &&
           packs_align(norm->weight, 0, pack) && packs_align(norm->bias, 0, pack);
}

bool lk__cuda_few_products_support(const lk__cuda_device *device, const lk__cuda_few_products *products)
{
    const lk__cuda_product *first = &products->product[0];
    int64_t                 columns = 0;
    if (products->norm && !norm_supports(products->norm, first)) return false;
    for (int i = 0; i < products->count; i++) {
        lk__cuda_product p = products->product[i];
        if (products->norm) p.a = NULL; /* in the block's memory */
        if (!lk__cuda_skinny_support(device, &p) || p.m != first->m || p.k != first->k || p.type != first->type ||
            p.b_transposed != first->b_transposed || p.a != (products->norm ? NULL : first->a))
            return false;
        columns += p.n;
    }
    if (products->count > 1 && !first->b_transposed) return false;
    if (products->norm && !first->b_transposed && columns > NORM_COLUMNS) return false; /* its own costs less */
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

lk_status lk__cuda_skinny(const lk__kernel_call *call, const lk__cuda_product *p)
{
    lk__cuda_few_products one = {};
    one.product[0] = *p;
    one.count = 1;
    return lk__cuda_run_few_products(call, &one);
}
