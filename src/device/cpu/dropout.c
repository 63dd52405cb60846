/* dropout.c - zeroes elements at random and scales the rest by 1 / (1 - p). Whether an element is kept is a function of
 * (seed, epoch, op, sample, element of the whole sample), so the gradient draws the same numbers. Philox bounds it. */
#include "base/random_batch.h"
#include "device/cpu/lanes.h"
#include "device/sample_part.h"

enum { BATCH = LK__RANDOM_BATCH };

typedef struct dropping {
    const ELEMENT  *x;
    ELEMENT        *y;
    const int64_t  *ids;
    lk__sample_part part;
    int64_t         known, runs, pieces, tiles; /* runs of a sample, each of which is split into pieces */
    uint32_t        threshold;                  /* draws below it zero the element */
    REAL            scale;
    lk__random      random;
} dropping;

enum { PIECE = 4096 }; /* elements; a multiple of 4 BATCH */

/* `count` elements from x on, which are those from `at` on of the whole sample `item`. */
static void drop_elements(const dropping *d, uint64_t item, int64_t at, const ELEMENT *x, ELEMENT *y, int64_t count)
{
    const uint32_t threshold = d->threshold;
    const REAL     scale = d->scale;
    uint32_t       bits[4][BATCH];
    while (count > 0) {
        int64_t skip = at & 3, some = min64(count, 4 * BATCH - skip);
        lk__random4_batch(&d->random, item, (uint32_t)(at / 4), bits);
        if (some == 4 * BATCH)
            for (int64_t j = 0; j < BATCH; j++)
                for (int k = 0; k < 4; k++) {
                    REAL kept = load_one(x + 4 * j + k) * scale;
                    store_one(y + 4 * j + k, bits[k][j] >= threshold ? kept : 0);
                }
        else
            for (int64_t i = 0; i < some; i++)
                store_one(y + i, bits[(i + skip) & 3][(i + skip) >> 2] >= threshold ? load_one(x + i) * scale : 0);
        at += some, x += some, y += some, count -= some;
    }
}

static void dropout_tile(void *argument, int64_t tile, int worker)
{
    const dropping        *d = argument;
    const lk__sample_part *p = &d->part;
    int64_t                items = p->samples * d->runs * d->pieces, end = tile_begin(items, d->tiles, tile + 1);
    (void)worker;
    for (int64_t item = tile_begin(items, d->tiles, tile); item < end; item++) {
        int64_t  begin = item % d->pieces * PIECE, run = item / d->pieces % d->runs;
        int64_t  sample = item / d->pieces / d->runs, whole = sample + p->first;
        int64_t  from = sample * p->elements + run * p->length + begin;
        uint64_t id = (uint64_t)(d->ids && whole < d->known ? d->ids[whole] : whole);
        drop_elements(d, id, lk__sample_run(p, run) + begin, d->x + from, d->y + from, min64(PIECE, p->length - begin));
    }
}

void KERNEL(dropout)(const lk__kernel_call *call)
{
    double   p = call->attrs->probability;
    uint64_t turn = call->step->sample_ids ? (uint64_t)call->step->epoch : ~(uint64_t)call->step->step;
    uint64_t mixed = turn * 0x9E3779B97F4A7C15u; /* different streams for neighbouring epochs */
    dropping d = {.x = call->in[0].data, .y = call->out[0].data, .ids = call->step->sample_ids};
    d.known = call->step->count;
    d.part = lk__sample_part_of(&call->in[0], call->attrs->rows);
    if (d.part.elements == 0) return;
    d.runs = d.part.elements / d.part.length;
    d.pieces = tiles_of(d.part.length, PIECE);
    /* lk__random_unit(bits) >= p, without the conversion of each draw. */
    double threshold = ceil(p * 4294967296.0 - 0.5);
    if (threshold > 4294967295.0) { /* nothing is kept */
        memset(d.y, 0, (size_t)(d.part.samples * d.part.elements) * sizeof *d.y);
        return;
    }
    d.threshold = threshold > 0 ? (uint32_t)threshold : 0;
    d.scale = (REAL)(1 / (1 - p));
    d.random = lk__random_make(call->step->seed, LK__FOR_DROPOUT, call->attrs->stream ^ mixed);
    d.tiles = tile_count(d.part.samples * d.runs * d.pieces, min64(d.part.length, PIECE), 0);
    lk__pool_run(call->pool, d.tiles, dropout_tile, &d);
}
