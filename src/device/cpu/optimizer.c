/* optimizer.c - the common scale of all gradients, SGD and Adam, with PyTorch's order of operations. Large parameters
 * are bound by memory: 7 streams for Adam, 8 where the parameter is also stored in bf16.
 *
 * Ranks that share their state update slices of a tensor, so an element may be in a whole vector here and behind the last one there. The
 * compiler chooses which product of a sum it fuses, and compiled twice it may choose differently: so the rest of a range is copied to
 * a vector of its own, which the same code updates.
 *
 * gradient_scale: 1 / weight (1 without a weight, 0 for a weight of 0), times clip / (norm + 1e-6) where that is below 1. */
#include "device/cpu/vmath.h"

#include <string.h>

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

/* ---- ranges ---- */

typedef void vectors_function(const update *u, int64_t begin, int64_t end); /* of whole vectors */
#define VECTORS static __attribute__((noinline)) void /* so that there is one copy of the code */

/* The arrays of the elements behind the last whole vector. */
typedef struct rest {
    REAL     gradient[VL], parameter[VL], momentum[VL], m[VL], v[VL];
    lk__bf16 stored[VL];
} rest;

static void copy_rest(void *to, const void *from, int64_t first, int64_t count, size_t size)
{
    if (from) memcpy(to, (const char *)from + (size_t)first * size, (size_t)count * size);
}
static void write_rest(void *to, const void *from, int64_t first, int64_t count, size_t size)
{
    if (to) memcpy((char *)to + (size_t)first * size, from, (size_t)count * size);
}

static void update_rest(const update *u, int64_t at, int64_t count, vectors_function *vectors)
{
    rest   r = {0};
    update one = *u;
    copy_rest(r.gradient, u->gradient, at, count, sizeof(REAL));
    copy_rest(r.parameter, u->parameter, at, count, sizeof(REAL));
    copy_rest(r.momentum, u->momentum, at, count, sizeof(REAL));
    copy_rest(r.m, u->m, at, count, sizeof(REAL));
    copy_rest(r.v, u->v, at, count, sizeof(REAL));
    one.gradient = r.gradient;
    one.parameter = r.parameter;
    one.momentum = u->momentum ? r.momentum : NULL;
    one.m = r.m;
    one.v = r.v;
    one.stored = r.stored;
    vectors(&one, 0, VL);
    write_rest(u->parameter, r.parameter, at, count, sizeof(REAL));
    write_rest(u->momentum, r.momentum, at, count, sizeof(REAL));
    write_rest(u->m, r.m, at, count, sizeof(REAL));
    write_rest(u->v, r.v, at, count, sizeof(REAL));
    write_rest(u->stored, r.stored, at, count, sizeof(lk__bf16));
}

static void update_tile(const update *u, int64_t tile, vectors_function *vectors)
{
    int64_t begin = tile_begin(u->n, u->tiles, tile), end = tile_begin(u->n, u->tiles, tile + 1);
    int64_t whole = begin + (end - begin) / VL * VL;
    vectors(u, begin, whole);
    if (whole < end) update_rest(u, whole, end - whole, vectors);
}

/* ---- SGD ---- */

INLINE void sgd_vectors(const update u, int64_t begin, int64_t end, lk__bf16 *stored)
{
    UNROLL_2
    for (int64_t i = begin; i < end; i += VL) {
        vec p = load_part(u.parameter + i, VL);
        vec g = load_part(u.gradient + i, VL) * u.scale + p * u.decay;
        if (u.momentum) {
            vec buffer = g;
            if (!u.first) buffer = load_part(u.momentum + i, VL) * u.factor + g * u.dampening;
            store_part(u.momentum + i, buffer, VL);
            g = u.nesterov ? g + buffer * u.factor : buffer;
        }
        p -= g * u.rate;
        store_part(u.parameter + i, p, VL);
        if (stored) store_part_bf16(stored + i, p, VL);
    }
}
VECTORS sgd_plain(const update *u, int64_t begin, int64_t end) { sgd_vectors(*u, begin, end, NULL); }
VECTORS sgd_stored(const update *u, int64_t begin, int64_t end) { sgd_vectors(*u, begin, end, u->stored); }

static void sgd_tile(void *argument, int64_t tile, int worker)
{
    const update *u = argument;
    (void)worker;
    update_tile(u, tile, u->stored ? sgd_stored : sgd_plain);
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

/* ---- Adam ---- */

/* The step of one vector. In f64 the divisions are PyTorch's; in f32 one of them is a multiplication. */
INLINE vec adam_step(const update *u, vec m, vec v)
{
#if LK_REAL_BITS == 32
    return u->step_size * m / (vsqrt(v) * u->correction + u->epsilon);
#else
    return u->step_size * (m / (vsqrt(v) / u->correction + u->epsilon));
#endif
}

INLINE void adam_vectors(const update u, int64_t begin, int64_t end, lk__bf16 *stored)
{
    UNROLL_2
    for (int64_t i = begin; i < end; i += VL) {
        vec p = load_part(u.parameter + i, VL);
        vec g = load_part(u.gradient + i, VL) * u.scale;
        if (u.decoupled)
            p *= u.shrink;
        else
            g += p * u.decay;
        vec m = load_part(u.m + i, VL);
        vec v = load_part(u.v + i, VL) * u.beta2 + g * g * u.beta2_rest;
        m += (g - m) * u.beta1_rest;
        store_part(u.m + i, m, VL);
        store_part(u.v + i, v, VL);
        p -= adam_step(&u, m, v);
        store_part(u.parameter + i, p, VL);
        if (stored) store_part_bf16(stored + i, p, VL);
    }
}
VECTORS adam_plain(const update *u, int64_t begin, int64_t end) { adam_vectors(*u, begin, end, NULL); }
VECTORS adam_stored(const update *u, int64_t begin, int64_t end) { adam_vectors(*u, begin, end, u->stored); }

static void adam_tile(void *argument, int64_t tile, int worker)
{
    const update *u = argument;
    (void)worker;
    update_tile(u, tile, u->stored ? adam_stored : adam_plain);
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
