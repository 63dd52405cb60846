/* device/cuda/attention_fast.h - attention in bf16 on tensor cores by our own kernels, for heads 64 or 128 wide and
 * every mask. */
#ifndef LK__CUDA_ATTENTION_FAST_H
#define LK__CUDA_ATTENTION_FAST_H

#include "device/cuda/attention.h"

#include <stdlib.h>

/* Whether these kernels compute it. They are not libraries: the emulation runs them, so lk__cuda_plain does not answer
 * for them. */
static inline bool attention_is_fast(const lk__kernel_call *call, const attention_view<bf16> &a)
{
    const char *plain = lk__cuda_host.environment(NULL, LK__ENV_LOCKSTEP_CUDA_PLAIN);
    if (plain && plain[0] && plain[0] != '0') return false;
    return (a.d == 64 || a.d == 128) && a.aligned && a.t > 1 && a.scale > 0 && cuda_device(call)->capability >= 80;
}

/* What the gradient has beside the view. */
typedef struct attention_fast_gradients {
    const bf16  *dy;
    const float *lse, *delta;  /* (batch, heads, t) */
    bf16        *dq, *dk, *dv; /* of head 0, laid out as q, k and v; NULL: not needed */
} attention_fast_gradients;

lk_status lk__cuda_attention_fast(const lk__kernel_call *call, const attention_view<bf16> &a, bf16 *y, float *lse);
lk_status lk__cuda_attention_fast_grad(const lk__kernel_call *call, const attention_view<bf16> &a,
                                       const attention_fast_gradients &g);

#endif
