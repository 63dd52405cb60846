/* swiglu.c - silu(gate) · up, and its gradients (Shazeer 2020). exp bounds it where operands are in the cache, else
 * memory. */
#include "device/cpu/vmath.h"

typedef struct gated {
    const ELEMENT *dy, *gate, *up;
    ELEMENT       *y, *dgate, *dup;
    int64_t        n, tiles;
} gated;

static void forward_tile(void *argument, int64_t tile, int worker)
{
    const gated *g = argument;
    int64_t      begin = tile_begin(g->n, g->tiles, tile), n = tile_begin(g->n, g->tiles, tile + 1) - begin;
    (void)worker;
    EACH_VECTOR(i, n, {
        vec x = load_part(g->gate + begin + i, lanes);
        store_part(g->y + begin + i, x * vsigmoid(x) * load_part(g->up + begin + i, lanes), lanes);
    });
}

static void backward_tile(void *argument, int64_t tile, int worker)
{
    const gated *g = argument;
    int64_t      begin = tile_begin(g->n, g->tiles, tile), n = tile_begin(g->n, g->tiles, tile + 1) - begin;
    (void)worker;
    EACH_VECTOR(i, n, {
        vec x = load_part(g->gate + begin + i, lanes), s = vsigmoid(x), d = load_part(g->dy + begin + i, lanes);
        vec u = load_part(g->up + begin + i, lanes);
        if (g->dgate) store_part(g->dgate + begin + i, d * u * s * (R(1.0) + x * (R(1.0) - s)), lanes);
        if (g->dup) store_part(g->dup + begin + i, d * x * s, lanes);
    });
}

void KERNEL(swiglu)(const lk__kernel_call *call)
{
    gated g = {.gate = call->in[0].data, .up = call->in[1].data, .y = call->out[0].data};
    g.n = lk__operand_elements(&call->in[0]);
    g.tiles = tile_count(g.n, 1, 0);
    lk__pool_run(call->pool, g.tiles, forward_tile, &g);
}

void KERNEL(swiglu_grad)(const lk__kernel_call *call)
{
    gated g = {.dy = call->in[0].data, .gate = call->in[1].data, .up = call->in[2].data};
    g.dgate = output(call, 0);
    g.dup = output(call, 1);
    g.n = lk__operand_elements(&call->in[0]);
    g.tiles = tile_count(g.n, 1, 0);
    lk__pool_run(call->pool, g.tiles, backward_tile, &g);
}
