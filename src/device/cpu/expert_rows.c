/* expert_rows.c - groups rows by expert and restores their order, and computes the gradient of the weights of the
 * experts' results. Bound by memory: a row is read and written once for each of its experts. */
#include "device/cpu/lanes.h"

typedef struct grouped {
    const ELEMENT *from, *other, *weight;
    ELEMENT       *to;
    const int32_t *at; /* order or place */
    int64_t        rows, k, columns, tiles;
} grouped;

static inline bool is_place(const grouped *g, int64_t i) { return g->at[i] >= 0 && g->at[i] < g->rows * g->k; }

static void scale_row(ELEMENT *to, const ELEMENT *from, REAL by, int64_t columns)
{
    int64_t c = 0;
    for (; c + VL <= columns; c += VL) store(to + c, load(from + c) * splat(by));
    if (c < columns) store_part(to + c, load_part(from + c, columns - c) * splat(by), columns - c);
}

static void gather_tile(void *argument, int64_t tile, int worker)
{
    const grouped *g = argument;
    int64_t        end = tile_begin(g->rows * g->k, g->tiles, tile + 1);
    size_t         bytes = (size_t)g->columns * sizeof(ELEMENT);
    (void)worker;
    for (int64_t i = tile_begin(g->rows * g->k, g->tiles, tile); i < end; i++) {
        ELEMENT       *to = g->to + i * g->columns;
        int64_t        from = g->at[i];
        const ELEMENT *x = g->from + (is_place(g, i) ? from / g->k : 0) * g->columns;
        if (!is_place(g, i))
            memset(to, 0, bytes);
        else if (g->weight)
            scale_row(to, x, load_one(g->weight + from), g->columns);
        else
            memcpy(to, x, bytes);
    }
}

/* A vector of the sum over the experts of row i. */
INLINE vec sum_part(const grouped *g, int64_t i, int64_t c, int64_t lanes)
{
    vec sum = splat(0);
    for (int64_t j = i * g->k; j < (i + 1) * g->k; j++) {
        if (!is_place(g, j)) continue;
        const ELEMENT *y = g->from + g->at[j] * g->columns + c;
        vec            term = load_part(y, lanes);
        sum += g->weight ? splat(load_one(g->weight + j)) * term : term;
    }
    return sum;
}

static void combine_tile(void *argument, int64_t tile, int worker)
{
    const grouped *g = argument;
    int64_t        end = tile_begin(g->rows, g->tiles, tile + 1);
    (void)worker;
    for (int64_t i = tile_begin(g->rows, g->tiles, tile); i < end; i++) {
        ELEMENT *to = g->to + i * g->columns;
        int64_t  c = 0;
        for (; c + VL <= g->columns; c += VL) store(to + c, sum_part(g, i, c, VL));
        if (c < g->columns) store_part(to + c, sum_part(g, i, c, g->columns - c), g->columns - c);
    }
}

static void weight_tile(void *argument, int64_t tile, int worker)
{
    const grouped *g = argument;
    int64_t        end = tile_begin(g->rows * g->k, g->tiles, tile + 1);
    (void)worker;
    for (int64_t i = tile_begin(g->rows * g->k, g->tiles, tile); i < end; i++) {
        REAL total = 0;
        if (is_place(g, i)) {
            const ELEMENT *dx = g->from + i / g->k * g->columns, *y = g->other + g->at[i] * g->columns;
            SUM_VECTORS(total, c, g->columns, load_part(dx + c, lanes) * load_part(y + c, lanes));
        }
        store_one(g->to + i, total);
    }
}

void KERNEL(gather_rows)(const lk__kernel_call *call)
{
    const lk__kernel_operand *place = &call->in[2];
    grouped g = {.from = call->in[0].data, .weight = input(call, 3), .to = call->out[0].data, .at = call->in[1].data};
    g.rows = place->dims[0], g.k = place->dims[1], g.columns = call->out[0].dims[1];
    g.tiles = tile_count(g.rows * g.k, g.columns, 0);
    if (g.columns > 0) lk__pool_run(call->pool, g.tiles, gather_tile, &g);
}

void KERNEL(combine_rows)(const lk__kernel_call *call)
{
    const lk__kernel_operand *place = &call->in[2];
    grouped g = {.from = call->in[0].data, .weight = input(call, 3), .to = call->out[0].data, .at = place->data};
    g.rows = place->dims[0], g.k = place->dims[1], g.columns = call->out[0].dims[1];
    g.tiles = tile_count(g.rows, g.k * g.columns, 0);
    if (g.columns > 0) lk__pool_run(call->pool, g.tiles, combine_tile, &g);
}

void KERNEL(combine_rows_grad_weight)(const lk__kernel_call *call)
{
    const lk__kernel_operand *place = &call->in[2];
    grouped g = {.from = call->in[0].data, .other = call->in[1].data, .to = call->out[0].data, .at = place->data};
    g.rows = place->dims[0], g.k = place->dims[1], g.columns = call->in[0].dims[1];
    g.tiles = tile_count(g.rows * g.k, g.columns, 0);
    lk__pool_run(call->pool, g.tiles, weight_tile, &g);
}
