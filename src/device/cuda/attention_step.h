/* device/cuda/attention_step.h - attention of a step of generation, together with what precedes it: queries, keys and
 * values are taken from the rows of products, rotated, and written into the cache. */
#ifndef LK__CUDA_ATTENTION_STEP_H
#define LK__CUDA_ATTENTION_STEP_H

#include "device/cuda/cuda.h"

/* One row for each sample: where it is, and how it is made. */
typedef struct lk__cuda_step_row {
    const void    *data;
    int64_t        step;      /* elements from a sample's row to the next */
    const void    *table;     /* rotated by it: (limit, width of a head), f32; NULL: as it is */
    const int32_t *positions; /* (samples) */
    int64_t        limit;
    void          *copy; /* where the row, as it is used, is stored densely; NULL: nowhere */
} lk__cuda_step_row;

typedef struct lk__cuda_attention_step {
    const lk__kernel_call *attention;
    lk__cuda_step_row      q, k, v;
    void                  *k_cache, *v_cache; /* (samples, s, width) */
    const int32_t         *rows;              /* (samples): where k and v go; below 0: nowhere */
} lk__cuda_attention_step;

bool      lk__cuda_attention_step_supports(const lk__cuda_attention_step *step);
lk_status lk__cuda_run_attention_step(const lk__cuda_attention_step *step);

#endif
