/* rmsprop.c - RMSprop, with PyTorch's order of operations. Bound by memory: 5 streams, and 2 more each for the
 * average of gradients (centered) and the momentum. */
#include "device/cpu/optimizer.h"

enum { SQUARES, AVERAGE, MOMENTUM, MOMENTS }; /* the last but one and the last where the settings need them */

typedef struct rmsprop_rule {
    REAL scale, rate, decay, alpha, alpha_rest, epsilon, factor; /* rest: 1 - alpha; factor: momentum */
} rmsprop_rule;

INLINE void rmsprop_vectors(const rmsprop_rule u, const update_arrays a, int64_t begin, int64_t end, lk__bf16 *stored)
{
    REAL *squares = a.moment[SQUARES], *average = a.moment[AVERAGE], *momentum = a.moment[MOMENTUM];
    UNROLL_2
    for (int64_t i = begin; i < end; i += VL) {
        vec p = load_part(a.parameter + i, VL);
        vec g = load_part(a.gradient + i, VL) * u.scale + p * u.decay;
        vec square = load_part(squares + i, VL) * u.alpha + g * g * u.alpha_rest, variance = square;
        store_part(squares + i, square, VL);
        if (average) {
            vec mean = load_part(average + i, VL);
            mean += (g - mean) * u.alpha_rest;
            store_part(average + i, mean, VL);
            variance = square - mean * mean;
            variance = choose(variance < 0, splat(0), variance); /* by rounding; a NaN stays one */
        }
        vec step = g / (vsqrt(variance) + u.epsilon);
        if (momentum) {
            step += load_part(momentum + i, VL) * u.factor;
            store_part(momentum + i, step, VL);
        }
        p -= step * u.rate;
        store_part(a.parameter + i, p, VL);
        if (stored) store_part_bf16(stored + i, p, VL);
    }
}
UPDATE_FUNCTIONS(rmsprop)

void KERNEL(rmsprop)(const lk__kernel_call *call)
{
    const lk__op_attrs *a = call->attrs;
    rmsprop_rule        u = {.scale = gradient_factor(call), .rate = (REAL)step_rate(call)};
    u.decay = (REAL)a->weight_decay;
    u.alpha = (REAL)a->alpha;
    u.alpha_rest = (REAL)(1 - a->alpha);
    u.epsilon = (REAL)a->epsilon;
    u.factor = (REAL)a->momentum;
    run_update(call, MOMENTS, &u, rmsprop_plain, rmsprop_stored);
}
