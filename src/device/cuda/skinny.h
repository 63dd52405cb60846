/* device/cuda/skinny.h - products with up to 8 rows, as in generation: one launch can run several products of the same
 * rows, with the norm that computes these rows, and with swiglu of two of the products. */
#ifndef LK__CUDA_SKINNY_H
#define LK__CUDA_SKINNY_H

#include "device/cuda/gemm.h"

enum { LK__FEW_PRODUCTS = 3 };

/* The rows of A are the norm of others, (m, k) of the product's type. Every block computes it; the first one writes
 * what it gives. */
typedef struct lk__cuda_row_norm {
    const void *x, *residual;  /* residual: added to x; NULL: nothing is */
    const void *weight, *bias; /* f32; NULL: 1 and 0 */
    void       *y, *sum;       /* the norm; x + residual, NULL: not needed */
    void       *mean, *rstd;   /* f32; NULL: not wanted */
    double      epsilon;
    bool        rms;
} lk__cuda_row_norm;

typedef struct lk__cuda_few_products {
    lk__cuda_product product[LK__FEW_PRODUCTS]; /* of the same A */
    int              count;
    /* no kernel that was queued shortly before writes B: it is read before that one has ended (overlap.h) */
    bool                     early;
    const lk__cuda_row_norm *norm; /* NULL: A is there; otherwise the products' a is not read */
    void *gated; /* silu(C of the first) times C of the second, of the products' type; NULL: not needed */
} lk__cuda_few_products;

bool      lk__cuda_few_products_support(const lk__cuda_device *device, const lk__cuda_few_products *products);
lk_status lk__cuda_run_few_products(const lk__kernel_call *call, const lk__cuda_few_products *products);

#endif
