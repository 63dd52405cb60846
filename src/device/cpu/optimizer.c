/* optimizer.c - the common scale of all gradients, SGD and Adam, with PyTorch's order of operations. Large parameters
 * are bound by memory: 7 streams for Adam, 8 where the parameter is also stored in bf16.
 *
 * gradient_scale: 1 / weight (1 without a weight, 0 for a weight of 0), times clip / (norm + 1e-6) where that is below 1. */
#include "device/cpu/vmath.h"

typedef struct update {
    const REAL *gradient;
    REAL       *parameter, *momentum, *m, *v;
    lk__bf16   *stored; /* the parameter after the update, rounded; NULL: not wanted */
    int64_t     n, tiles;
    bool        first, nesterov, decoupled;
    REAL        scale, rate, decay, factor, dampening; /* sgd; factor: momentum */
    REAL        shrink;                                /* adamw: 1 - rate * decay */
    REAL        beta1_rest, beta2, beta2_rest;         /* adam; rest: 1 - beta */
    REAL        step_size, correction, epsilon;
} update;

static double scalar(const double *x, double otherwise) { return x ? *x : otherwise; }

void KERNEL(gradient_scale)(const lk__kernel_call *call)
{
    double weight = scalar(input(call, 0), 1), squares = 0, clip = call->attrs->clip;
    for (int i = 1; i < call->inputs; i++) squares += scalar(input(call, i), 0);
    double scale = weight == 0 ? 0 : 1 / weight;
    double norm = sqrt(squares) * scale;
    double factor = clip / (norm + 1e-6);
    /* A NaN norm makes the scale NaN: it must not count as a small one. */
    *(double *)call->out[0].data = clip > 0 && !(factor >= 1) ? scale * factor : scale;
    if (output(call, 1)) *(double *)output(call, 1) = norm;
}

INLINE void sgd_range(const update u, int64_t begin, int64_t n, lk__bf16 *stored)
{
    const REAL *gradient = u.gradient + begin;
    REAL       *parameter = u.parameter + begin, *momentum = u.momentum ? u.momentum + begin : NULL;
    EACH_VECTOR(i, n, {
        vec p = load_part(parameter + i, lanes);
        vec g = load_part(gradient + i, lanes) * u.scale + p * u.decay;
        if (momentum) {
            vec buffer = g;
            if (!u.first) buffer = load_part(momentum + i, lanes) * u.factor + g * u.dampening;
            store_part(momentum + i, buffer, lanes);
            g = u.nesterov ? g + buffer * u.factor : buffer;
        }
        p -= g * u.rate;
        store_part(parameter + i, p, lanes);
        if (stored) store_part_bf16(stored + i, p, lanes);
    });
}

static void sgd_tile(void *argument, int64_t tile, int worker)
{
    const update u = *(const update *)argument;
    int64_t      begin = tile_begin(u.n, u.tiles, tile), n = tile_begin(u.n, u.tiles, tile + 1) - begin;
    (void)worker;
    if (u.stored)
        sgd_range(u, begin, n, u.stored + begin);
    else
        sgd_range(u, begin, n, NULL);
}

void KERNEL(sgd)(const lk__kernel_call *call)
{
    const lk__op_attrs *a = call->attrs;
    update              u = {.gradient = call->in[0].data, .parameter = call->out[0].data};
    if (a->momentum != 0) u.momentum = output(call, 1);
    u.stored = output(call, 2);
    u.n = lk__operand_elements(&call->out[0]);
    u.scale = (REAL)scalar(input(call, 1), 1);
    u.rate = (REAL)(call->step->rate * a->lr_scale);
    u.decay = (REAL)a->weight_decay;
    u.factor = (REAL)a->momentum;
    u.dampening = (REAL)(1 - a->dampening);
    u.nesterov = a->nesterov;
    u.first = call->step->step == 1;
    u.tiles = tile_count(u.n, 1, 0);
    lk__pool_run(call->pool, u.tiles, sgd_tile, &u);
}

/* The step of one vector. In f64 the divisions are PyTorch's; in f32 one of them is a multiplication. */
INLINE vec adam_step(const update *u, vec m, vec v)
{
#if LK_REAL_BITS == 32
    return u->step_size * m / (vsqrt(v) * u->correction + u->epsilon);
#else
    return u->step_size * (m / (vsqrt(v) / u->correction + u->epsilon));
#endif
}

INLINE void adam_range(const update u, int64_t begin, int64_t n, lk__bf16 *stored)
{
    const REAL *gradient = u.gradient + begin;
    REAL       *parameter = u.parameter + begin, *first = u.m + begin, *second = u.v + begin;
    EACH_VECTOR(i, n, {
        vec p = load_part(parameter + i, lanes);
        vec g = load_part(gradient + i, lanes) * u.scale;
        if (u.decoupled)
            p *= u.shrink;
        else
            g += p * u.decay;
        vec m = load_part(first + i, lanes);
        vec v = load_part(second + i, lanes) * u.beta2 + g * g * u.beta2_rest;
        m += (g - m) * u.beta1_rest;
        store_part(first + i, m, lanes);
        store_part(second + i, v, lanes);
        p -= adam_step(&u, m, v);
        store_part(parameter + i, p, lanes);
        if (stored) store_part_bf16(stored + i, p, lanes);
    });
}

static void adam_tile(void *argument, int64_t tile, int worker)
{
    const update u = *(const update *)argument;
    int64_t      begin = tile_begin(u.n, u.tiles, tile), n = tile_begin(u.n, u.tiles, tile + 1) - begin;
    (void)worker;
    if (u.stored)
        adam_range(u, begin, n, u.stored + begin);
    else
        adam_range(u, begin, n, NULL);
}

void KERNEL(adam)(const lk__kernel_call *call)
{
    const lk__op_attrs *a = call->attrs;
    update              u = {.gradient = call->in[0].data, .parameter = call->out[0].data};
    double              t = (double)call->step->step, rate = call->step->rate * a->lr_scale;
    double              correction = sqrt(1 - pow(a->beta2, t));
    u.m = call->out[1].data;
    u.v = call->out[2].data;
    u.stored = output(call, 3);
    u.n = lk__operand_elements(&call->out[0]);
    u.scale = (REAL)scalar(input(call, 1), 1);
    u.decoupled = a->decoupled;
    u.decay = (REAL)a->weight_decay;
    u.shrink = (REAL)(1 - rate * a->weight_decay);
    u.beta1_rest = (REAL)(1 - a->beta1);
    u.beta2 = (REAL)a->beta2;
    u.beta2_rest = (REAL)(1 - a->beta2);
    u.step_size = (REAL)(rate / (1 - pow(a->beta1, t)));
    u.correction = (REAL)(REAL_DTYPE == LK_F32 ? 1 / correction : correction);
    u.epsilon = (REAL)a->epsilon;
    u.tiles = tile_count(u.n, 1, 0);
    lk__pool_run(call->pool, u.tiles, adam_tile, &u);
}
