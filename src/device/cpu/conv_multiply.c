/* conv_multiply.c - multiplies patches, which are read in place, by weights; packs weights. */
#include "device/cpu/conv.h"

void conv_multiply(const conv_product *p, int64_t count, const PACKED *const *from, REAL *const *to, PACKED *scratch)
{
    int64_t depth = conv_depth(&p->r);
    (void)scratch;
    for (int64_t j = 0; j < p->columns; j += NR)
        micro_nn(count, from, &p->r, p->weights + j * depth, p->start ? p->start + j : zeros, to, j,
                 min64(NR, p->columns - j));
}

int64_t conv_scratch(const runs *r)
{
    (void)r;
    return 0;
}

enum { TRANSPOSED = 64 }; /* rows of a panel that are transposed at a time */

typedef struct weights {
    const conv    *v;
    const ELEMENT *from;
    REAL          *to;
} weights;

static void pack_panel(void *argument, int64_t tile, int worker)
{
    const weights *job = argument;
    const conv    *v = job->v;
    int64_t        group = tile / v->panels, panel = tile % v->panels, taps = v->kh * v->kw, deep = taps * v->cg;
    int64_t        columns = min64(NR, v->og - panel * NR);
    const ELEMENT *w = job->from + (group * v->og + panel * NR) * deep;
    REAL          *to = job->to + tile * deep * NR, rows[TRANSPOSED * NR];
    (void)worker;
    if (columns < NR) memset(rows, 0, sizeof rows);
    for (int64_t first = 0, channel = 0, tap = 0; first < deep; first += TRANSPOSED) {
        int64_t count = min64(TRANSPOSED, deep - first);
        transpose_wide(rows, NR, w + first, deep, columns, count);
        for (int64_t i = 0; i < count; i++) { /* (channel, tap) → (tap, channel) */
            memcpy(to + (tap * v->cg + channel) * NR, rows + i * NR, NR * sizeof(REAL));
            if (++tap == taps) tap = 0, channel++;
        }
    }
}

void pack_weights(const conv *v, const ELEMENT *w, REAL *to, lk__pool *pool)
{
    weights job = {v, w, to};
    int64_t tiles = v->groups * v->panels;
    if (v->o * v->cg * v->kh * v->kw >= 1 << 16)
        lk__pool_run(pool, tiles, pack_panel, &job);
    else /* waking threads costs more */
        for (int64_t tile = 0; tile < tiles; tile++) pack_panel(&job, tile, 0);
}
