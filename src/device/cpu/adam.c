/* adam.c - Adam and AdamW, with PyTorch's order of operations. Large parameters are bound by memory: 7 streams, 8
 * where the parameter is also stored in bf16. */
#include "device/cpu/optimizer.h"

typedef struct adam_rule {
    bool decoupled;
    REAL scale, decay;
    REAL shrink;                        /* adamw: 1 - rate * decay */
    REAL beta1_rest, beta2, beta2_rest; /* rest: 1 - beta */
    REAL step_size, correction, epsilon;
} adam_rule;

/* The step of one vector. In f64 the divisions are PyTorch's; in f32 one of them is a multiplication. */
INLINE vec adam_step(const adam_rule *u, vec m, vec v)
{
#if LK_REAL_BITS == 32
    return u->step_size * m / (vsqrt(v) * u->correction + u->epsilon);
#else
    return u->step_size * (m / (vsqrt(v) / u->correction + u->epsilon));
#endif
}

INLINE void adam_vectors(const adam_rule u, const update_arrays a, int64_t begin, int64_t end, lk__bf16 *stored)
{
    UNROLL_2
    for (int64_t i = begin; i < end; i += VL) {
        vec p = load_part(a.parameter + i, VL);
        vec g = load_part(a.gradient + i, VL) * u.scale;
        if (u.decoupled)
            p *= u.shrink;
        else
            g += p * u.decay;
        vec m = load_part(a.moment[0] + i, VL);
        vec v = load_part(a.moment[1] + i, VL) * u.beta2 + g * g * u.beta2_rest;
        m += (g - m) * u.beta1_rest;
        store_part(a.moment[0] + i, m, VL);
        store_part(a.moment[1] + i, v, VL);
        p -= adam_step(&u, m, v);
        store_part(a.parameter + i, p, VL);
        if (stored) store_part_bf16(stored + i, p, VL);
    }
}
UPDATE_FUNCTIONS(adam)

void KERNEL(adam)(const lk__kernel_call *call)
{
    const lk__op_attrs *a = call->attrs;
    double              t = (double)call->step->step, rate = step_rate(call);
    double              correction = sqrt(1 - pow(a->beta2, t));
    adam_rule           u = {.scale = gradient_factor(call), .decoupled = a->decoupled};
    u.decay = (REAL)a->weight_decay;
    u.shrink = (REAL)(1 - rate * a->weight_decay);
    u.beta1_rest = (REAL)(1 - a->beta1);
    u.beta2 = (REAL)a->beta2;
    u.beta2_rest = (REAL)(1 - a->beta2);
    u.step_size = (REAL)(rate / (1 - pow(a->beta1, t)));
    u.correction = (REAL)(REAL_DTYPE == LK_F32 ? 1 / correction : correction);
    u.epsilon = (REAL)a->epsilon;
    run_update(call, 2, &u, adam_plain, adam_stored);
}
