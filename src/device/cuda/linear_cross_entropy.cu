/* linear_cross_entropy.cu - the cross-entropy of a linear layer's outputs, and its gradients, without the matrix of all
 * logits: rows are processed in chunks whose logits fit the workspace, and each chunk's gradients are computed while
 * its logits are there. Bound by three products; between them each logit is read and replaced by its gradient
 * (entropy_rows.h). Logits are stored in the model's type: bf16 models round them, as they do all activations. */
#include "device/cuda/entropy_rows.h"
#include "device/cuda/gemm.h"

/* Logits of a chunk: at most CHUNK_BYTES, but at least FEWEST rows. A chunk costs a pass over dw, whose sums are read
 * and written again, so few and large ones are good: V = 50304 in bf16 gives 10496 rows, and dw's traffic is 3 % of the
 * products' time. Rows are a multiple of FEWEST, and chunks of a batch are of nearly the same size. */
static const int64_t CHUNK_BYTES = (int64_t)1 << 30, FEWEST = 256;

/* Elements from a row of logits to the next: rows begin at multiples of 16 bytes, for products and packs alike. */
static int64_t row_of(const lk__kernel_call *call, int64_t classes)
{
    int64_t pack = 16 / (int64_t)cuda_size(call->in[0].dtype);
    return cuda_tiles(classes, pack) * pack;
}
static int64_t logits_row(const lk__kernel_call *call) { return row_of(call, call->in[1].dims[0]); }

static int64_t most_rows(const lk__kernel_call *call)
{
    int64_t row = row_of(call, lk__whole_extent(&call->in[1], 0)) * (int64_t)cuda_size(call->in[0].dtype);
    int64_t rows = CHUNK_BYTES / (row > 0 ? row : 1) / FEWEST * FEWEST;
    return rows > FEWEST ? rows : FEWEST;
}

static int64_t chunk_rows(const lk__kernel_call *call)
{
    int64_t rows = call->in[0].dims[0], most = most_rows(call), chunks = cuda_tiles(rows, most);
    int64_t even = chunks > 0 ? cuda_tiles(cuda_tiles(rows, chunks), FEWEST) * FEWEST : 0;
    return even < rows ? even : rows;
}

/* Of a block for n packs or rows: about one each, whole warps. */
static unsigned block_threads(int64_t n)
{
    int64_t threads = cuda_tiles(n, 32) * 32;
    return (unsigned)(threads < 32 ? 32 : threads > ENTROPY_THREADS ? (int64_t)ENTROPY_THREADS : threads);
}

static size_t whole(size_t bytes) { return lk__round_up(bytes, 256); }
static size_t logits_space(const lk__kernel_call *call) /* a smaller count may have larger chunks */
{
    int64_t rows = call->in[0].dims[0], most = most_rows(call);
    return whole((size_t)((rows < most ? rows : most) * logits_row(call)) * cuda_size(call->in[0].dtype));
}
static size_t results_space(const lk__kernel_call *call)
{
    return whole((size_t)call->in[0].dims[0] * sizeof(row_result));
}

/* One block: the sums over all rows, in an order that depends on their number alone. Any output may be NULL. */
static __global__ void sum_rows(const row_result *results, int64_t rows, double *sum, double *weight, double *correct)
{
    __shared__ double shared[32];
    double            total[3] = {0, 0, 0};
    for (int64_t i = threadIdx.x; i < rows; i += blockDim.x) {
        row_result r = results[i];
        total[0] += r.loss;
        total[1] += r.weight;
        total[2] += r.correct;
    }
    for (int k = 0; k < 3; k++) {
        total[k] = block_sum(total[k], shared);
        __syncthreads();
    }
    if (threadIdx.x) return;
    if (sum) *sum = total[0];
    if (weight) *weight = total[1];
    if (correct) *correct = total[2];
}

template <typename W> static __global__ void fill_zeros(W *to, int64_t n) { EACH_INDEX(i, n) to[i] = 0; }

/* ---- products ---- */

typedef struct products {
    lk__cuda_product logits, dx, dw;
} products;

/* Of a chunk of `rows` rows. */
static products describe_products(const lk__kernel_call *call, int64_t rows)
{
    const lk__kernel_operand *x = &call->in[0], *w = &call->in[1];
    int64_t                   width = x->dims[1], classes = w->dims[0], row = logits_row(call);
    lk__cuda_product          common = {};
    products                  p;
    common.batch = 1;
    common.alpha = 1;
    common.type = common.type_c = x->dtype;

    p.logits = common; /* x w' */
    p.logits.rows_apart = true;
    p.logits.m = rows, p.logits.n = classes, p.logits.k = width;
    p.logits.a = x->data, p.logits.a_ld = width;
    p.logits.b = w->data, p.logits.b_ld = width, p.logits.b_transposed = true;
    p.logits.c = (void *)1, p.logits.c_ld = row;

    p.dx = common; /* dlogits w */
    p.dx.rows_apart = true;
    p.dx.m = rows, p.dx.n = width, p.dx.k = classes;
    p.dx.a = (void *)1, p.dx.a_ld = row;
    p.dx.b = w->data, p.dx.b_ld = width;
    p.dx.c = out_data<void>(call, 3), p.dx.c_ld = width;

    p.dw = common; /* dlogits' x, added over the chunks */
    p.dw.m = classes, p.dw.n = width, p.dw.k = rows;
    p.dw.a = (void *)1, p.dw.a_ld = row, p.dw.a_transposed = true;
    p.dw.b = x->data, p.dw.b_ld = width;
    p.dw.c = out_data<void>(call, 4), p.dw.c_ld = width;
    p.dw.type_c = x->dtype == LK_BF16 ? LK_F32 : x->dtype;
    return p;
}

extern "C" size_t lk__cuda_linear_cross_entropy_workspace(const lk__kernel_call *call, int threads)
{
    (void)threads;
    return LK__CUDA_PRODUCT_BYTES + logits_space(call) + results_space(call);
}

extern "C" lk_status lk__cuda_linear_cross_entropy_prepare(lk__device *device, const lk__device_kernel *kernel,
                                                           lk__kernel_call *call)
{
    int64_t   rows = chunk_rows(call), all = call->in[0].dims[0];
    lk_status status = LK_OK;
    (void)kernel;
    for (int64_t first = 0; first < all && status >= 0; first += rows) {
        products p = describe_products(call, all - first < rows ? all - first : rows);
        p.dw.beta = first > 0;
        if (first > rows && all - first >= rows) continue; /* as the chunk before */
        status = lk__cuda_gemm_prepare(device, &p.logits);
        if (status >= 0 && p.dx.c) status = lk__cuda_gemm_prepare(device, &p.dx);
        if (status >= 0 && p.dw.c) status = lk__cuda_gemm_prepare(device, &p.dw);
    }
    return status;
}

template <typename T> static lk_status differentiate(const lk__kernel_call *call, const entropy<T> &e, int64_t rows)
{
    LAUNCH((differentiate_rows<T, PACK(T)>), (unsigned)rows, block_threads(e.row / PACK(T)), 0, cuda_stream(call), e);
    return LK_OK;
}
template <> lk_status differentiate<bf16>(const lk__kernel_call *call, const entropy<bf16> &e, int64_t rows)
{
    if (entropy_rows_are_held(e.row)) return launch_held_rows(call, e, rows);
    LAUNCH((differentiate_rows<bf16, PACK(bf16)>), (unsigned)rows, block_threads(e.row / PACK(bf16)), 0,
           cuda_stream(call), e);
    return LK_OK;
}

/* The chunk of `rows` rows from `first` on. */
template <typename T>
static lk_status run_chunk(const lk__kernel_call *call, entropy<T> e, int64_t first, int64_t rows, void *workspace)
{
    int64_t   width = call->in[0].dims[1];
    products  p = describe_products(call, rows);
    lk_status status;
    p.logits.workspace = p.dx.workspace = p.dw.workspace = workspace;
    p.logits.a = p.dw.b = (const T *)call->in[0].data + first * width;
    p.logits.c = e.logits;
    p.dx.a = p.dw.a = e.logits;
    if ((status = lk__cuda_gemm(call, &p.logits)) < 0) return status;
    e.first = first;
    if ((status = differentiate(call, e, rows)) < 0) return status;
    if (p.dx.c) {
        p.dx.c = (T *)p.dx.c + first * width;
        if ((status = lk__cuda_gemm(call, &p.dx)) < 0) return status;
    }
    p.dw.beta = first > 0;
    return p.dw.c ? lk__cuda_gemm(call, &p.dw) : LK_OK;
}

extern "C" lk_status lk__cuda_linear_cross_entropy(const lk__kernel_call *call)
{
    int64_t all = call->in[0].dims[0], rows = chunk_rows(call);
    char   *at = (char *)call->workspace;
    BY_ELEMENT(call->in[0].dtype, T, {
        entropy<T> e = {};
        e.logits = (T *)(at + LK__CUDA_PRODUCT_BYTES);
        e.results = (row_result *)(at + LK__CUDA_PRODUCT_BYTES + logits_space(call));
        e.labels = in_data<int32_t>(call, 2);
        e.all_rows = all;
        e.classes = call->in[1].dims[0];
        e.row = logits_row(call);
        e.ignore = call->attrs->ignore_index;
        e.smoothing = call->attrs->label_smoothing;
        e.gradients = out_data<T>(call, 3) || out_data<WIDE(T)>(call, 4);
        e.invalid = call->invalid;
        for (int64_t first = 0; first < all; first += rows) {
            lk_status status = run_chunk(call, e, first, all - first < rows ? all - first : rows, at);
            if (status < 0) return status;
        }
        WIDE(T) *dw = out_data<WIDE(T)>(call, 4);
        int64_t weights = cuda_product(&call->in[1], 0, 2);
        if (dw && all == 0)
            LAUNCH((fill_zeros<WIDE(T)>), cuda_blocks(weights, 256), 256, 0, cuda_stream(call), dw, weights);
        LAUNCH(sum_rows, 1, block_threads(all), 0, cuda_stream(call), e.results, all, out_data<double>(call, 0),
               out_data<double>(call, 1), out_data<double>(call, 2));
    })
    return lk__cuda_launched(call);
}
