/* unary.c - functions of one element and their gradients, scale and fill. Bound by memory except where exp, log or pow is
 * called. */
#include "device/cpu/vmath.h"

#define SQRT_HALF R(0.70710678118654752440)
#define INVERSE_SQRT_2PI R(0.39894228040143267794)
#define SQRT_2_OVER_PI R(0.79788456080286535588)
#define GELU_CUBIC R(0.044715)

typedef struct elementwise {
    const lk__op_attrs *attrs;
    const ELEMENT      *x, *saved;
    ELEMENT            *y;
    int64_t             n, tiles;
    REAL                scale;
} elementwise;

/* relu keeps NaN, as in PyTorch. */
INLINE vec relu(vec x) { return choose(x <= 0, splat(0), x); }
INLINE vec gelu(vec x) { return R(0.5) * x * (R(1.0) + verf(x * SQRT_HALF)); }
/* (1 + tanh u) / 2 is the sigmoid of 2 u: one exp instead of tanh's polynomials. */
INLINE vec gelu_tanh(vec x)
{
    return x / (R(1.0) + vexp_bounded(R(-2.0) * SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x)));
}
/* The lower bound first, as in PyTorch: where it is above the upper bound, the result is the upper bound. NaN is kept. */
INLINE vec clamp(vec x, REAL low, REAL high)
{
    x = choose(x < low, splat(low), x);
    return choose(x > high, splat(high), x);
}
INLINE vec leaky_relu(vec x, REAL slope) { return choose(x > 0, x, x * slope); }
INLINE vec pow_slope(vec x, double p) { return p == 0 ? splat(0) : vpow(x, p - 1) * (REAL)p; }
INLINE vec silu(vec x) { return x / (R(1.0) + vexp(-x)); }

INLINE vec gelu_slope(vec x)
{
    vec cdf = R(0.5) * (R(1.0) + verf(x * SQRT_HALF));
    return cdf + x * (vexp(R(-0.5) * x * x) * INVERSE_SQRT_2PI);
}
INLINE vec gelu_tanh_slope(vec x)
{
    vec square = x * x;
    vec sigmoid = R(1.0) / (R(1.0) + vexp_bounded(R(-2.0) * SQRT_2_OVER_PI * (x + GELU_CUBIC * square * x)));
    vec inner = R(2.0) * SQRT_2_OVER_PI * (R(1.0) + R(3.0) * GELU_CUBIC * square);
    vec flat = sigmoid * (R(1.0) - sigmoid);
    /* Where the sigmoid's derivative is 0 the inner derivative may be infinite: their product is 0. */
    return sigmoid + choose(flat == 0, splat(0), x * flat * inner);
}
INLINE vec silu_slope(vec x)
{
    vec s = vsigmoid(x);
    return choose(s == 0, splat(0), s * (R(1.0) + x * (R(1.0) - s)));
}

static void unary_tile(void *argument, int64_t tile, int worker)
{
    const elementwise *e = argument;
    int64_t            begin = tile_begin(e->n, e->tiles, tile), n = tile_begin(e->n, e->tiles, tile + 1) - begin;
    const ELEMENT     *x = e->x + begin;
    ELEMENT           *y = e->y + begin;
    const lk__op_attrs a = *e->attrs;
    (void)worker;
#define MAP_TO(store, f) MAP_VECTORS(store, y, i, n, f(load_part(x + i, lanes)))
#define MAP(f) MAP_TO(store_part, f)
    switch (a.unary) {
    case LK__IDENTITY: memmove(y, x, (size_t)n * sizeof *y); break;
    case LK__RELU: MAP_TO(store_part_exact, relu); break;
    case LK__GELU: MAP(gelu); break;
    case LK__GELU_TANH: MAP(gelu_tanh); break;
    case LK__SILU: MAP(silu); break;
    case LK__SIGMOID: MAP(vsigmoid); break;
    case LK__TANH: MAP(vtanh); break;
    case LK__EXP: MAP(vexp); break;
    case LK__LOG: MAP(vlog); break;
    case LK__SQRT: MAP(vsqrt); break;
#define POW(x) vpow(x, a.exponent)
    case LK__POW: MAP(POW); break;
#define CLAMP(x) clamp(x, (REAL)a.minimum, (REAL)a.maximum)
    case LK__CLAMP: MAP(CLAMP); break;
#define LEAKY_RELU(x) leaky_relu(x, (REAL)a.slope)
    case LK__LEAKY_RELU: MAP(LEAKY_RELU); break;
    }
#undef POW
#undef CLAMP
#undef LEAKY_RELU
#undef MAP
#undef MAP_TO
}

void KERNEL(unary)(const lk__kernel_call *call)
{
    elementwise e = {.attrs = call->attrs, .x = call->in[0].data, .y = call->out[0].data};
    e.n = lk__operand_elements(&call->out[0]);
    e.tiles = tile_count(e.n, 1, 0);
    lk__pool_run(call->pool, e.tiles, unary_tile, &e);
}

static void unary_grad_tile(void *argument, int64_t tile, int worker)
{
    const elementwise *e = argument;
    int64_t            begin = tile_begin(e->n, e->tiles, tile), n = tile_begin(e->n, e->tiles, tile + 1) - begin;
    const ELEMENT     *dy = e->x + begin, *saved = e->saved + begin;
    ELEMENT           *dx = e->y + begin;
    const lk__op_attrs a = *e->attrs;
    (void)worker;
#define DY load_part(dy + i, lanes)
#define SAVED load_part(saved + i, lanes)
#define MAP_TO(store, expression) MAP_VECTORS(store, dx, i, n, expression)
#define MAP(expression) MAP_TO(store_part, expression)
    switch (a.unary) {
    case LK__IDENTITY: memmove(dx, dy, (size_t)n * sizeof *dx); break;
    case LK__RELU: MAP_TO(store_part_exact, choose(SAVED <= 0, splat(0), DY)); break;
    case LK__GELU: MAP(DY * gelu_slope(SAVED)); break;
    case LK__GELU_TANH: MAP(DY * gelu_tanh_slope(SAVED)); break;
    case LK__SILU: MAP(DY * silu_slope(SAVED)); break;
    case LK__SIGMOID: MAP(DY * ((R(1.0) - SAVED) * SAVED)); break;
    case LK__TANH: MAP(DY * (R(1.0) - SAVED * SAVED)); break;
    case LK__EXP: MAP(DY * SAVED); break;
    case LK__LOG: MAP(DY / SAVED); break;
    case LK__SQRT: MAP(DY / (SAVED + SAVED)); break;
    case LK__POW: MAP(DY * pow_slope(SAVED, a.exponent)); break;
    case LK__CLAMP: MAP(choose((SAVED >= (REAL)a.minimum) & (SAVED <= (REAL)a.maximum), DY, splat(0))); break;
    case LK__LEAKY_RELU: MAP(choose(SAVED > 0, DY, DY * (REAL)a.slope)); break;
    }
#undef DY
#undef SAVED
#undef MAP
#undef MAP_TO
}

void KERNEL(unary_grad)(const lk__kernel_call *call)
{
    elementwise e = {.attrs = call->attrs, .x = call->in[0].data, .saved = call->in[1].data};
    e.y = call->out[0].data;
    e.n = lk__operand_elements(&call->out[0]);
    e.tiles = tile_count(e.n, 1, 0);
    lk__pool_run(call->pool, e.tiles, unary_grad_tile, &e);
}

static void scale_tile(void *argument, int64_t tile, int worker)
{
    const elementwise e = *(const elementwise *)argument;
    int64_t           begin = tile_begin(e.n, e.tiles, tile), n = tile_begin(e.n, e.tiles, tile + 1) - begin;
    (void)worker;
    EACH_VECTOR(i, n, store_part(e.y + begin + i, load_part(e.x + begin + i, lanes) * e.scale, lanes););
}

void KERNEL(scale_by)(const lk__kernel_call *call)
{
    elementwise e = {.x = call->in[0].data, .y = call->out[0].data, .scale = (REAL) * (const double *)call->in[1].data};
    e.n = lk__operand_elements(&call->out[0]);
    e.tiles = tile_count(e.n, 1, 0);
    lk__pool_run(call->pool, e.tiles, scale_tile, &e);
}

void KERNEL(scale)(const lk__kernel_call *call)
{
    elementwise e = {.x = call->in[0].data, .y = call->out[0].data, .scale = (REAL)call->attrs->scale};
    e.n = lk__operand_elements(&call->out[0]);
    e.tiles = tile_count(e.n, 1, 0);
    lk__pool_run(call->pool, e.tiles, scale_tile, &e);
}

static void fill_tile(void *argument, int64_t tile, int worker)
{
    const elementwise e = *(const elementwise *)argument;
    int64_t           begin = tile_begin(e.n, e.tiles, tile), n = tile_begin(e.n, e.tiles, tile + 1) - begin;
    (void)worker;
    EACH_VECTOR(i, n, store_part(e.y + begin + i, splat(e.scale), lanes););
}

void KERNEL(fill)(const lk__kernel_call *call)
{
    elementwise e = {.y = call->out[0].data, .scale = (REAL)call->attrs->scale};
    e.n = lk__operand_elements(&call->out[0]);
    e.tiles = tile_count(e.n, 1, 0);
    lk__pool_run(call->pool, e.tiles, fill_tile, &e);
}
