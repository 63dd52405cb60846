/* products.cu - matrix products by our own kernel (tile.h), and the choice between it, cuBLASLt, and the kernels for
 * small products and few rows; see linear.cu for the operations. The kernel supports every size, type and layout; f64
 * uses it for numerical checks. */
#include "device/cuda/product_epilogue.h"
#include "device/cuda/tile.h"

#include <stdlib.h>

enum {
    CHUNK = 256,
    LONGEST = 4096
}; /* of k: sums in two levels have smaller rounding errors; part of the bits. Of a small product */

/* ---- the kernel ---- */

/* A product that is summed over a batch (each != 0) has k for all of the batch. */
struct plain_product {
    const lk__cuda_product *p;
    tile_job                job;
    int64_t                 each;
    cudaStream_t            stream;
};

template <typename T, bool A_ALONG_K, bool B_ALONG_K> static void run_layout(const plain_product &plain)
{
    typedef WIDE(T) W;
    const lk__cuda_product   *p = plain.p;
    tile_matrix<T, A_ALONG_K> a = {(const T *)p->a, p->a_ld, p->a_batch, p->m, plain.each};
    tile_matrix<T, B_ALONG_K> b = {(const T *)p->b, p->b_ld, p->b_batch, p->n, plain.each};
    multiply<W>(plain.stream, a, b, product_epilogue_of<T>(p), plain.job, plain.each ? 1 : p->batch);
}

template <typename T> static void run_plain(const plain_product &plain)
{
    const lk__cuda_product *p = plain.p;
    if (p->a_transposed && p->b_transposed)
        run_layout<T, false, true>(plain);
    else if (p->a_transposed)
        run_layout<T, false, false>(plain);
    else if (p->b_transposed)
        run_layout<T, true, true>(plain);
    else
        run_layout<T, true, false>(plain);
}

/* A block per chunk where there are too few tiles for a GPU and the chunks' sums fit the workspace. */
static bool splits_chunks(const lk__cuda_product *p, const tile_job &job, int64_t batch)
{
    int64_t tiles = cuda_tiles(p->m, small_tile::m) * cuda_tiles(p->n, small_tile::n) * batch;
    size_t  bytes = (size_t)(job.chunks * (p->m * p->n * batch + p->m + p->n)) * sizeof(double);
    return job.chunks > 1 && job.chunks < 65536 && tiles < 256 && p->workspace &&
           bytes <= lk__cuda_product_bytes(p->m, p->n, batch);
}

static lk_status queue_plain(const lk__kernel_call *call, const lk__cuda_product *p, int64_t summed)
{
    plain_product plain = {p, make_tile_job(p->m, p->n, summed ? p->k * summed : p->k, CHUNK), summed ? p->k : 0,
                           cuda_stream(call)};
    plain.job.a_sums = p->a_sums;
    plain.job.b_sums = p->b_sums;
    plain.job.split = splits_chunks(p, plain.job, summed ? 1 : p->batch);
    plain.job.partials = p->workspace;
    BY_ELEMENT(p->type, T, run_plain<T>(plain);)
    return lk__cuda_launched(call);
}

lk_status lk__cuda_gemm_plain(const lk__kernel_call *call, const lk__cuda_product *p)
{
    return queue_plain(call, p, 0);
}

lk_status lk__cuda_gemm_summed(const lk__kernel_call *call, const lk__cuda_product *p)
{
    return queue_plain(call, p, p->batch);
}

/* ---- which of the two ---- */

bool lk__cuda_plain(void)
{
#if defined(LK_CUDA_EMULATED)
    const char *tensor = lk__cuda_host.environment(
        NULL, LK__ENV_LOCKSTEP_CUDA_TENSOR); /* emulated tensor cores are slow: for their own tests */
    return !(tensor && tensor[0] == '1');
#else
    const char *value =
        lk__cuda_host.environment(NULL, LK__ENV_LOCKSTEP_CUDA_PLAIN); /* read each time: benchmarks change it */
    return value && value[0] && value[0] != '0';
#endif
}

bool lk__cuda_any_order(void)
{
    const char *value = lk__cuda_host.environment(NULL, LK__ENV_LOCKSTEP_CUDA_ANY_ORDER);
    return value && value[0] && value[0] != '0';
}

/* A product of so little work that starting it is most of its time. Where the bits of a row must not depend on the
 * number of rows, it is not looked at. */
static bool is_small(const lk__cuda_device *device, const lk__cuda_product *p)
{
    return device->base.by_heuristic ? p->n * p->k <= 1 << 13 : p->m * p->n * p->k * p->batch <= 1 << 20;
}

bool lk__cuda_small_product_supports(const lk__cuda_device *device, const lk__cuda_product *p)
{
    bool type = p->type == LK_F32 || p->type == LK_BF16;
    return type && p->batch == 1 && p->m > 0 && p->n > 0 && p->k > 0 && p->k <= LONGEST && is_small(device, p);
}

static bool use_library(const lk__cuda_device *device, const lk__cuda_product *p)
{
    return !lk__cuda_plain() && p->m > 0 && p->n > 0 && p->k > 0 && p->batch > 0 && !is_small(device, p);
}

lk_status lk__cuda_gemm(const lk__kernel_call *call, const lk__cuda_product *p)
{
    if (lk__cuda_skinny_support(cuda_device(call), p)) return lk__cuda_skinny(call, p);
    if (lk__cuda_small_product_supports(cuda_device(call), p)) return lk__cuda_small_product(call, p);
    if (use_library(cuda_device(call), p)) {
        lk_status status = lk__cuda_blas_run(call, p);
        if (status != LK_EUNSUPPORTED) return status;
    }
    return lk__cuda_gemm_plain(call, p);
}

lk_status lk__cuda_gemm_prepare(lk__device *device, const lk__cuda_product *p)
{
    lk__cuda_product there = *p; /* operands have no addresses yet */
    there.a = there.b = NULL;
    if (!lk__cuda_skinny_support((lk__cuda_device *)device, &there) && use_library((lk__cuda_device *)device, p))
        return lk__cuda_blas_prepare(device, p);
    return LK_OK;
}
