/* sgd.c - SGD, with PyTorch's order of operations. Large parameters are bound by memory: 3 streams, 5 with momentum,
 * and one more where the parameter is also stored in bf16. */
#include "device/cpu/optimizer.h"

typedef struct sgd_rule {
    bool first, nesterov;
    REAL scale, rate, decay, factor, dampening; /* factor: momentum */
} sgd_rule;

INLINE void sgd_vectors(const sgd_rule u, const update_arrays a, int64_t begin, int64_t end, lk__bf16 *stored)
{
    REAL *momentum = a.moment[0];
    UNROLL_2
    for (int64_t i = begin; i < end; i += VL) {
        vec p = load_part(a.parameter + i, VL);
        vec g = load_part(a.gradient + i, VL) * u.scale + p * u.decay;
        if (momentum) {
            vec buffer = g;
            if (!u.first) buffer = load_part(momentum + i, VL) * u.factor + g * u.dampening;
            store_part(momentum + i, buffer, VL);
            g = u.nesterov ? g + buffer * u.factor : buffer;
        }
        p -= g * u.rate;
        store_part(a.parameter + i, p, VL);
        if (stored) store_part_bf16(stored + i, p, VL);
    }
}
UPDATE_FUNCTIONS(sgd)

void KERNEL(sgd)(const lk__kernel_call *call)
{
    const lk__op_attrs *a = call->attrs;
    sgd_rule            u = {.scale = gradient_factor(call), .rate = (REAL)step_rate(call)};
    u.decay = (REAL)a->weight_decay;
    u.factor = (REAL)a->momentum;
    u.dampening = (REAL)(1 - a->dampening);
    u.nesterov = a->nesterov;
    u.first = call->step->step == 1;
    run_update(call, 1, &u, sgd_plain, sgd_stored);
}
