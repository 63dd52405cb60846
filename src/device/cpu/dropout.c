/* dropout.c - zeroes elements at random and scales the rest by 1 / (1 - p). Whether an element is kept is a function of
 * (seed, epoch, op, sample, element of the sample), so the gradient draws the same numbers. Philox bounds it. */
#include "base/random.h"
#include "device/cpu/lanes.h"

enum { BATCH = LK__RANDOM_BATCH };

typedef struct dropping {
    const ELEMENT *x;
    ELEMENT       *y;
    const int64_t *ids;
    int64_t        rows, columns, known, pieces, tiles; /* each row is split into pieces */
    uint32_t       threshold;                           /* draws below it zero the element */
    REAL           scale;
    lk__random     random;
} dropping;

enum { PIECE = 4096 }; /* elements; a multiple of 4 BATCH */

static void drop_piece(const dropping *d, int64_t row, int64_t begin, int64_t end)
{
    uint64_t       item = (uint64_t)(d->ids && row < d->known ? d->ids[row] : row);
    const ELEMENT *x = d->x + row * d->columns;
    ELEMENT       *y = d->y + row * d->columns;
    const uint32_t threshold = d->threshold;
    const REAL     scale = d->scale;
    uint32_t       bits[4][BATCH];
    int64_t        at = begin;
    for (; at + 4 * BATCH <= end; at += 4 * BATCH) {
        lk__random4_batch(&d->random, item, (uint32_t)(at / 4), bits);
        for (int64_t j = 0; j < BATCH; j++)
            for (int k = 0; k < 4; k++) {
                REAL kept = load_one(x + at + 4 * j + k) * scale;
                store_one(y + at + 4 * j + k, bits[k][j] >= threshold ? kept : 0);
            }
    }
    if (at == end) return;
    lk__random4_batch(&d->random, item, (uint32_t)(at / 4), bits);
    for (int64_t i = 0; i < end - at; i++)
        store_one(y + at + i, bits[i & 3][i >> 2] >= threshold ? load_one(x + at + i) * scale : 0);
}

static void dropout_tile(void *argument, int64_t tile, int worker)
{
    const dropping *d = argument;
    int64_t         items = d->rows * d->pieces, end = tile_begin(items, d->tiles, tile + 1);
    (void)worker;
    for (int64_t item = tile_begin(items, d->tiles, tile); item < end; item++) {
        int64_t begin = item % d->pieces * PIECE;
        drop_piece(d, item / d->pieces, begin, min64(d->columns, begin + PIECE));
    }
}

void KERNEL(dropout)(const lk__kernel_call *call)
{
    const lk__kernel_operand *x = &call->in[0];
    double                    p = call->attrs->probability;
    int64_t  rows = call->attrs->rows > 1 ? call->attrs->rows : 1; /* of a sample, where a reshape merged axes */
    uint64_t turn = call->step->sample_ids ? (uint64_t)call->step->epoch : ~(uint64_t)call->step->step;
    uint64_t mixed = turn * 0x9E3779B97F4A7C15u; /* different streams for neighbouring epochs */
    dropping d = {.x = x->data, .y = call->out[0].data, .ids = call->step->sample_ids};
    d.known = call->step->count;
    d.rows = (x->rank ? x->dims[0] : 1) / rows;
    d.columns = dims_product(x, 1, x->rank) * rows;
    d.pieces = tiles_of(d.columns, PIECE);
    /* lk__random_unit(bits) >= p, without the conversion of each draw. */
    double threshold = ceil(p * 4294967296.0 - 0.5);
    if (threshold > 4294967295.0) { /* nothing is kept */
        memset(d.y, 0, (size_t)(d.rows * d.columns) * sizeof *d.y);
        return;
    }
    d.threshold = threshold > 0 ? (uint32_t)threshold : 0;
    d.scale = (REAL)(1 / (1 - p));
    d.random = lk__random_make(call->step->seed, LK__FOR_DROPOUT, call->attrs->stream ^ mixed);
    d.tiles = tile_count(d.rows * d.pieces, min64(d.columns, PIECE), 0);
    lk__pool_run(call->pool, d.tiles, dropout_tile, &d);
}
