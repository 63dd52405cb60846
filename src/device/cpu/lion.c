/* lion.c - Lion (Chen et al. 2023, algorithm 2): the sign of an average of gradients, and decoupled weight decay.
 * Bound by memory: 5 streams, 6 where the parameter is also stored in bf16. */
#include "device/cpu/optimizer.h"

typedef struct lion_rule {
    REAL scale, rate, shrink;                    /* shrink: 1 - rate * decay */
    REAL beta1, beta1_rest, beta2, beta2_rest; /* rest: 1 - beta */
} lion_rule;

/* 1, -1, or x itself where it is 0 or a NaN, so that a NaN is seen in the parameters. */
INLINE vec sign_of(vec x) { return choose(x > 0, splat(1), choose(x < 0, splat(-1), x)); }

INLINE void lion_vectors(const lion_rule u, const update_arrays a, int64_t begin, int64_t end, lk__bf16 *stored)
{
    UNROLL_2
    for (int64_t i = begin; i < end; i += VL) {
        vec p = load_part(a.parameter + i, VL), m = load_part(a.moment[0] + i, VL);
        vec g = load_part(a.gradient + i, VL) * u.scale;
        vec step = sign_of(m * u.beta1 + g * u.beta1_rest);
        p = p * u.shrink - step * u.rate;
        store_part(a.moment[0] + i, m * u.beta2 + g * u.beta2_rest, VL);
        store_part(a.parameter + i, p, VL);
        if (stored) store_part_bf16(stored + i, p, VL);
    }
}
UPDATE_FUNCTIONS(lion)

void KERNEL(lion)(const lk__kernel_call *call)
{
    const lk__op_attrs *a = call->attrs;
    double              rate = step_rate(call);
    lion_rule           u = {.scale = gradient_factor(call), .rate = (REAL)rate};
    u.shrink = (REAL)(1 - rate * a->weight_decay);
    u.beta1 = (REAL)a->beta1;
    u.beta1_rest = (REAL)(1 - a->beta1);
    u.beta2 = (REAL)a->beta2;
    u.beta2_rest = (REAL)(1 - a->beta2);
    run_update(call, 1, &u, lion_plain, lion_stored);
}
