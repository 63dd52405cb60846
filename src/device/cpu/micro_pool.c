/* micro_pool.c - a micro-kernel whose rows are the pixels of 2×2 pool windows: it keeps only their maxima, so that no
 * result before the pool is written to memory. Arithmetic bounds it. */
#include "device/cpu/unscheduled.h"

#include "device/cpu/conv.h"
#include "device/cpu/micro_tile.h"

/* VL channels of one window. */
INLINE void pool_rows(const tile *t, int row, int j, bool relu, ELEMENT *y, uint8_t *index)
{
    vec x0 = t->v[row][j], x1 = t->v[row + 1][j], x2 = t->v[row + 2][j], x3 = t->v[row + 3][j];
    vec best = greater(greater(x0, x1), greater(x2, x3)), argmax = splat(3);
    if (index) {
        argmax = choose_argmax(x2 == best, 2, argmax);
        argmax = choose_argmax(x0 == best, 0, choose_argmax(x1 == best, 1, argmax));
    }
    store_pooled(best, argmax, relu, y, index);
}

void micro_pool(int64_t windows, const REAL *const *a, const runs *r, const REAL *b, const REAL *start, bool relu,
                ELEMENT *y, uint8_t *index, int64_t step)
{
    for (int64_t w = 0; w < windows; w += MR / 4, a += MR / 4 * 4, y += MR / 4 * step) {
        const REAL *rows[MR];
        tile        t;
        int         count = (int)min64(MR / 4, windows - w);
        UNROLL
        for (int i = 0; i < MR; i++) rows[i] = a[i / 4 < count ? i : i % 4];
        UNROLL
        for (int i = 0; i < MR; i++) {
            UNROLL
            for (int j = 0; j < NV; j++) t.v[i][j] = load(start + j * VL);
        }
        add_runs(&t, rows, r, b);
        UNROLL
        for (int q = 0; q < MR / 4; q++) {
            if (q == count) break;
            uint8_t *at = index ? index + (w + q) * step : NULL;
            UNROLL
            for (int j = 0; j < NV; j++) pool_rows(&t, 4 * q, j, relu, y + q * step + j * VL, at ? at + j * VL : NULL);
        }
    }
}
