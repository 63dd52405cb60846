/* device/cuda/gemm.h - one matrix product, by cuBLASLt (blas.cu) or by our own kernel (products.cu): for linear, matmul
 * and their gradients, and for operations that consist of products (chunked linear + cross-entropy, attention).
 *
 * All matrices are row-major with a leading dimension; cuBLASLt, whose matrices are column-major, computes the
 * transposed product of the transposed matrices, so nothing is copied. Sums are f32, or f64 for f64, and are rounded
 * once where C is bf16. */
#ifndef LK__CUDA_GEMM_H
#define LK__CUDA_GEMM_H

#include "device/cuda/cuda.h"

/* C = activation(alpha A B + beta C + bias), for each of `batch`; or beta addend instead of beta C. Zeroed fields mean:
 * batch 1 and alpha 1 are written as such, all others are absent. m, n or batch may be 0 (nothing is written); with k 0
 * the sum is 0. */
typedef struct lk__cuda_product {
    int64_t     m, n, k, batch;
    lk_dtype    type;          /* of A, B and bias */
    lk_dtype    type_c;        /* of C, saved and sums: the same, or f32 where A and B are bf16 */
    const void *a;             /* (i, k) at a[i*a_ld + k]; transposed: at a[k*a_ld + i] */
    int64_t     a_ld, a_batch; /* elements; a_batch 0: the same A for all of the batch */
    bool        a_transposed;
    const void *b; /* (k, j) at b[k*b_ld + j]; transposed: at b[j*b_ld + k] */
    int64_t     b_ld, b_batch;
    bool        b_transposed;
    void       *c; /* (i, j) at c[i*c_ld + j] */
    int64_t     c_ld, c_batch;
    double      alpha, beta;
    const void *addend; /* what beta multiplies, in C's layout, with batch 1; NULL: C itself */
    /* Under by_heuristic a row of C must have the same bits for every m, as the results of a sample must not depend on
     * the number of samples: linear and its gradient by x. Otherwise the division of sums may depend on all of the
     * shape. */
    bool rows_apart;

    /* Epilogues, without beta and with batch 1. */
    const void  *bias;       /* n: added to every row */
    lk__op_unary activation; /* LK__IDENTITY, LK__RELU (keeps NaN), LK__GELU_TANH */
    bool         gradient;   /* with LK__GELU_TANH: C = (alpha A B) gelu'(saved) instead */
    /* GELU_TANH: what it was applied to, (i, j) at saved[i*c_ld + j], of type_c; written unless gradient */
    void *saved;
    /* m: the sum over k of each row of A; n: of each column of B; f32 for bf16. For bias gradients, which are sums over
     * the same rows as the weight's. At most one of them. */
    void *a_sums, *b_sums;

    void *workspace; /* lk__cuda_product_bytes; aligned to 16 */
} lk__cuda_product;

/* The most workspace of a product: what cuBLASLt recommends on Hopper. */
static const size_t LK__CUDA_PRODUCT_BYTES = (size_t)32 << 20;
/* Depends only on the shape of the results, so that plans are exact without a GPU; small products need little. Never
 * less for a larger shape. */
static inline size_t lk__cuda_product_bytes(int64_t m, int64_t n, int64_t batch)
{
    double bytes = (2 << 20) + 16.0 * (double)m * (double)n * (double)batch;
    return bytes < (double)LK__CUDA_PRODUCT_BYTES ? ((size_t)bytes + 255) / 256 * 256 : LK__CUDA_PRODUCT_BYTES;
}

/* Queues the product on the call's stream. */
lk_status lk__cuda_gemm(const lk__kernel_call *call, const lk__cuda_product *product);
/* Before the first run and before anything is captured in a graph: has cuBLASLt choose its algorithm, by measuring
 * where the device does that. Pointers may be NULL but say which operands there are ((void *)1 for present ones). */
lk_status lk__cuda_gemm_prepare(lk__device *device, const lk__cuda_product *product);

/* Our own kernel; and C = Σ over the batch of A B instead, where c_batch is not used. */
lk_status lk__cuda_gemm_plain(const lk__kernel_call *call, const lk__cuda_product *product);
lk_status lk__cuda_gemm_summed(const lk__kernel_call *call, const lk__cuda_product *product);

/* skinny.cu: products with up to 8 rows, as in generation, which the bytes of B bound. Their bits differ from the bits
 * of the same rows in a larger product, so they are not used with by_heuristic. */
bool      lk__cuda_skinny_support(const lk__cuda_device *device, const lk__cuda_product *product);
lk_status lk__cuda_skinny(const lk__kernel_call *call, const lk__cuda_product *product);

/* small_products.cu: products of f32 or bf16 without a batch, which spend most of their time starting and waiting for
 * memory. */
lk_status lk__cuda_small_product(const lk__kernel_call *call, const lk__cuda_product *product);

/* Whether products.cu would take it. */
bool lk__cuda_small_product_supports(const lk__cuda_device *device, const lk__cuda_product *product);
/* Both gradients of a linear layer, dw with A transposed and dx with none of A, in one launch. mask: NULL, or of dx's
 * type and layout: dx is also stored at `masked`, 0 where the mask is at most 0; masked may be dx's C, which then is
 * not stored apart. */
lk_status lk__cuda_small_gradients(const lk__kernel_call *call, const lk__cuda_product *dw, const lk__cuda_product *dx,
                                   const void *mask, void *masked);

/* linear.cu: the products that a node linear, linear_grad_input or linear_grad_weight is. The last: false where it is
 * more than one product. */
extern "C" lk__cuda_product lk__cuda_linear_product(const lk__kernel_call *call);
lk__cuda_product            lk__cuda_input_product(const lk__kernel_call *call);
bool                        lk__cuda_weight_product(const lk__kernel_call *call, lk__cuda_product *product);

/* blas.cu: LK_EUNSUPPORTED where cuBLASLt is missing or refuses the product; nothing was queued then. */
lk_status lk__cuda_blas_run(const lk__kernel_call *call, const lk__cuda_product *product);
lk_status lk__cuda_blas_prepare(lk__device *device, const lk__cuda_product *product);

/* LOCKSTEP_CUDA_PLAIN=1: no libraries, for tests of our kernels. */
bool lk__cuda_plain(void);
/* LOCKSTEP_CUDA_ANY_ORDER=1: also algorithms of the libraries that add in another order in each run, to measure what a
 * fixed one costs. */
bool lk__cuda_any_order(void);

/* column_sums.cu: sums[j] = Σ over rows of from[row*columns + j], as WIDE(type); where `index` (u8, of the same shape)
 * is 255 the element counts as 0. The rows of leaves are added leaf by leaf, then in the pairwise tree. Without leaves:
 * NULL. */
lk_status lk__cuda_column_sums(const lk__kernel_call *call, const void *from, lk_dtype type, const uint8_t *index,
                               int64_t rows, int64_t columns, const lk__kernel_leaves *leaves, void *sums,
                               void *workspace);
size_t    lk__cuda_column_sums_workspace(int64_t rows, int64_t columns); /* bytes, for leaves too */

#endif
