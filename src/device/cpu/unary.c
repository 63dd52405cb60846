/* unary.c - functions of one element and their gradients, scale and fill. Bound by memory except where exp, log or pow
 * is called. */
#include "device/cpu/activate.h"
#include "device/cpu/vmath.h"
#include "device/functions.h"

typedef struct elementwise {
    const lk__op_attrs *attrs;
    const ELEMENT      *x, *saved;
    ELEMENT            *y;
    int64_t             n, tiles;
    REAL                scale;
} elementwise;

static void unary_tile(void *argument, int64_t tile, int worker)
{
    const elementwise *e = argument;
    int64_t            begin = tile_begin(e->n, e->tiles, tile), n = tile_begin(e->n, e->tiles, tile + 1) - begin;
    const ELEMENT     *x = e->x + begin;
    ELEMENT           *y = e->y + begin;
    const lk__op_attrs a = *e->attrs;
    (void)worker;
#define VALUE load_part(x + i, lanes)
#define CASE(constant, store, f, df) \
    case constant: MAP_VECTORS(store, y, i, n, f); break;
    switch (a.unary) {
        LK__CPU_FUNCTIONS(CASE)
    case LK__IDENTITY: memmove(y, x, (size_t)n * sizeof *y); break;
    }
#undef CASE
#undef VALUE
}

void KERNEL(unary)(const lk__kernel_call *call)
{
    elementwise e = {.attrs = call->attrs, .x = call->in[0].data, .y = call->out[0].data};
    e.n = lk__operand_elements(&call->out[0]);
    e.tiles = tile_count(e.n, 1, 0);
    lk__pool_run(call->pool, e.tiles, unary_tile, &e);
}

/* Functions that are fused have no attributes; there is code for no others. */
void activate(REAL *x, int64_t n, lk__op_unary function)
{
    const lk__op_attrs a = {.unary = function};
    (void)a;
#define VALUE load_part(x + i, lanes)
#define CASE(constant, store, f, df) \
    case constant: \
        if (LK__FUSED_FUNCTIONS >> (constant) & 1) EACH_VECTOR(i, n, store_part(x + i, f, lanes);); \
        break;
    switch (a.unary) {
        LK__CPU_FUNCTIONS(CASE)
    case LK__IDENTITY: break;
    }
#undef CASE
#undef VALUE
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
#define CASE(constant, store, f, df) \
    case constant: MAP_VECTORS(store, dx, i, n, df); break;
    switch (a.unary) {
        LK__CPU_FUNCTIONS(CASE)
    case LK__IDENTITY: memmove(dx, dy, (size_t)n * sizeof *dx); break;
    }
#undef CASE
#undef DY
#undef SAVED
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
