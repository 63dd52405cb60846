/* adagrad.c - Adagrad, with PyTorch's order of operations. Bound by memory: 5 streams, 6 where the parameter is also
 * stored in bf16. */
#include "device/cpu/optimizer.h"

typedef struct adagrad_rule {
    REAL scale, rate, decay, epsilon;
} adagrad_rule;

INLINE void adagrad_vectors(const adagrad_rule u, const update_arrays a, int64_t begin, int64_t end, lk__bf16 *stored)
{
    UNROLL_2
    for (int64_t i = begin; i < end; i += VL) {
        vec p = load_part(a.parameter + i, VL);
        vec g = load_part(a.gradient + i, VL) * u.scale + p * u.decay;
        vec sum = load_part(a.moment[0] + i, VL) + g * g;
        store_part(a.moment[0] + i, sum, VL);
        p -= g / (vsqrt(sum) + u.epsilon) * u.rate;
        store_part(a.parameter + i, p, VL);
        if (stored) store_part_bf16(stored + i, p, VL);
    }
}
UPDATE_FUNCTIONS(adagrad)

void KERNEL(adagrad)(const lk__kernel_call *call)
{
    const lk__op_attrs *a = call->attrs;
    adagrad_rule        u = {.scale = gradient_factor(call)};
    u.rate = (REAL)(step_rate(call) / (1 + (double)(call->step->step - 1) * a->lr_decay));
    u.decay = (REAL)a->weight_decay;
    u.epsilon = (REAL)a->epsilon;
    run_update(call, 1, &u, adagrad_plain, adagrad_stored);
}
