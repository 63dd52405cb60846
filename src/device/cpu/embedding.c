/* embedding.c - rows of a table by id, and the gradient of the table. A row of the gradient belongs to one tile, which
 * adds in the order of the ids. An id out of range gives zeros, which put no NaN into statistics, and is reported. If
 * an operand is a part of the table, an id in another part gives zeros too, so the sum of the parts' results is the
 * result of the whole table. */
#include "device/cpu/lanes.h"

typedef struct lookup {
    const int32_t *ids;
    const ELEMENT *from; /* the table, or dy */
    ELEMENT       *to;
    REAL          *sums; /* the gradient of the table */
    int64_t        count, rows, columns, tiles;
    int64_t        whole, origin; /* rows of the whole table, and the first of this part */
    int64_t       *invalid;       /* position of the first id out of range */
} lookup;

static void embedding_tile(void *argument, int64_t tile, int worker)
{
    const lookup *e = argument;
    int64_t       end = tile_begin(e->count, e->tiles, tile + 1);
    (void)worker;
    for (int64_t i = tile_begin(e->count, e->tiles, tile); i < end; i++) {
        ELEMENT *y = e->to + i * e->columns;
        int64_t  id = e->ids[i], row = id - e->origin;
        if (row >= 0 && row < e->rows) {
            memcpy(y, e->from + row * e->columns, (size_t)e->columns * sizeof *y);
        } else {
            memset(y, 0, (size_t)e->columns * sizeof *y);
            if (id < 0 || id >= e->whole) keep_first(e->invalid, i);
        }
    }
}

void KERNEL(embedding)(const lk__kernel_call *call)
{
    int64_t invalid = INT64_MAX;
    lookup  e = {.ids = call->in[0].data, .from = call->in[1].data, .to = call->out[0].data, .invalid = &invalid};
    e.count = lk__operand_elements(&call->in[0]);
    e.rows = call->in[1].dims[0];
    e.whole = lk__whole_extent(&call->in[1], 0);
    e.origin = lk__part_first(&call->in[1], 0);
    e.columns = call->in[1].dims[1];
    e.tiles = tile_count(e.count, e.columns, 0);
    if (e.columns > 0) lk__pool_run(call->pool, e.tiles, embedding_tile, &e);
    report_invalid(call, LK__OP_embedding, e.ids, invalid, e.whole);
}

static void embedding_grad_tile(void *argument, int64_t tile, int worker)
{
    const lookup *e = argument;
    int64_t       begin = tile_begin(e->rows, e->tiles, tile), end = tile_begin(e->rows, e->tiles, tile + 1);
    (void)worker;
    memset(e->sums + begin * e->columns, 0, (size_t)((end - begin) * e->columns) * sizeof *e->sums);
    for (int64_t i = 0; i < e->count; i++) {
        int64_t row = e->ids[i] - e->origin;
        if (row < begin || row >= end) continue;
        const ELEMENT *dy = e->from + i * e->columns;
        REAL          *to = e->sums + row * e->columns;
        int64_t        c = 0;
        for (; c + VL <= e->columns; c += VL) store(to + c, load(to + c) + load(dy + c));
        for (; c < e->columns; c++) to[c] += load_one(dy + c);
    }
}

void KERNEL(embedding_grad)(const lk__kernel_call *call)
{
    lookup e = {.ids = call->in[0].data, .from = call->in[1].data, .sums = call->out[0].data};
    e.count = lk__operand_elements(&call->in[0]);
    e.rows = call->out[0].dims[0];
    e.origin = lk__part_first(&call->out[0], 0);
    e.columns = call->out[0].dims[1];
    e.tiles = tile_count(e.rows, e.columns, PARTS); /* every tile reads all ids: few, large tiles */
    if (e.columns > 0) lk__pool_run(call->pool, e.tiles, embedding_grad_tile, &e);
}
