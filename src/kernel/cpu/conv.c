/* conv.c - the movements of data around convolutions: windows of images, patches, the fused max pool and its way back. */
#include "kernel/cpu/conv.h"

static void zero(REAL *to, int64_t count) { memset(to, 0, (size_t)count * sizeof(REAL)); }

void copy_window(REAL *to, window at, const REAL *image, int64_t h, int64_t w, int64_t c, int64_t first, int64_t width)
{
    int64_t left = min64(at.columns, max64(0, -at.column)); /* columns before the image */
    int64_t right = max64(left, min64(at.columns, w - at.column));
    for (int64_t r = 0; r < at.rows; r++, to += at.columns * width) {
        int64_t row = at.row + r;
        if (row < 0 || row >= h) {
            zero(to, at.columns * width);
            continue;
        }
        const REAL *from = image + (row * w + at.column) * c + first;
        zero(to, left * width);
        if (width == c)
            memcpy(to + left * width, from + left * c, (size_t)((right - left) * c) * sizeof(REAL));
        else
            for (int64_t q = left; q < right; q++) memcpy(to + q * width, from + q * c, (size_t)width * sizeof(REAL));
        zero(to + right * width, (at.columns - right) * width);
    }
}

void copy_patches(REAL *to, int64_t row, const conv *v, const REAL *from, int64_t columns, int64_t rows)
{
    int64_t run = v->kw * v->cg, deep = v->kh * run;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t q = 0; q < v->ow; q++, to += row) {
            const REAL *at = from + (r * columns + q) * v->stride * v->cg;
            REAL       *p = to;
            for (int64_t i = 0; i < v->kh; i++, at += columns * v->cg, p += run)
                for (int64_t k = 0; k < run; k++) p[k] = at[k];
            to[deep] = 1;
            for (int64_t k = deep + 1; k < row; k++) to[k] = 0;
        }
}

/* Channels' worth of one pooled gradient to one pixel: dy where the winner is `position`, else zero. */
static inline void route(REAL *to, const REAL *dy, const uint8_t *index, int position, int64_t channels)
{
    for (int64_t c = 0; c < channels; c++) to[c] = index[c] == position ? dy[c] : 0;
}

void expand_window(REAL *to, window at, const conv *v, const REAL *dy, const uint8_t *index, int64_t first,
                   int64_t channels, int64_t width, int64_t block)
{
    int64_t p = v->pool;
    for (int64_t c = 0; c < channels; c += width, to += block) {
        int64_t count = min64(width, channels - c);
        REAL   *pixel = to;
        for (int64_t r = at.row; r < at.row + at.rows; r++)
            for (int64_t q = at.column; q < at.column + at.columns; q++, pixel += width) {
                if (r < 0 || r >= v->yh * p || q < 0 || q >= v->yw * p) {
                    zero(pixel, width);
                    continue;
                }
                int64_t from = ((r / p) * v->yw + q / p) * v->o + first + c;
                if (p == 1)
                    memcpy(pixel, dy + from, (size_t)count * sizeof(REAL));
                else
                    route(pixel, dy + from, index + from, (int)(r % p * p + q % p), count);
                if (count < width) zero(pixel + count, width - count);
            }
    }
}

/* The first greatest of the p × p values wins, and a NaN beats all, as in PyTorch. */
static inline void pool_pixel(const conv *v, const REAL *from, REAL *y, uint8_t *index)
{
    int64_t p = v->pool;
    for (int64_t c = 0; c < v->og; c++) {
        REAL best = from[c];
        int  winner = 0;
        for (int64_t i = 0; i < p; i++)
            for (int64_t j = 0; j < p; j++) {
                REAL x = from[(i * v->ow + j) * v->og + c];
                if (x > best || (x != x && best == best)) {
                    best = x;
                    winner = (int)(i * p + j);
                }
            }
        if (v->relu && best <= 0) {
            best = 0;
            winner = 255;
        }
        y[c] = best;
        if (index) index[c] = (uint8_t)winner;
    }
}

void pool_rows(const conv *v, const REAL *from, int64_t rows, REAL *y, uint8_t *index)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t q = 0; q < v->yw; q++) {
            int64_t at = (r * v->yw + q) * v->o;
            pool_pixel(v, from + (r * v->pool * v->ow + q * v->pool) * v->og, y + at, index ? index + at : NULL);
        }
}

typedef struct weights {
    const conv *v;
    const REAL *from;
    REAL       *to;
    int64_t     deep;
} weights;

static void pack_panel(void *argument, int64_t tile, int worker)
{
    const weights *job = argument;
    const conv    *v = job->v;
    int64_t        group = tile / v->panels, panel = tile % v->panels, taps = v->kh * v->kw, deep = taps * v->cg;
    int64_t        columns = min64(NR, v->og - panel * NR);
    const REAL    *w = job->from + (group * v->og + panel * NR) * deep;
    REAL          *to = job->to + tile * job->deep * NR;
    (void)worker;
    if (columns < NR)
        zero(to, job->deep * NR);
    else
        zero(to + deep * NR, (job->deep - deep) * NR);
    for (int64_t j = 0; j < columns; j++)
        for (int64_t c = 0; c < v->cg; c++)
            for (int64_t t = 0; t < taps; t++) to[(t * v->cg + c) * NR + j] = w[j * deep + c * taps + t];
}

void pack_weights(const conv *v, const REAL *w, REAL *to, int64_t deep, lk__pool *pool)
{
    weights job = {v, w, to, deep};
    int64_t tiles = v->groups * v->panels;
    if (tiles * deep * NR >= 1 << 16)
        lk__pool_run(pool, tiles, pack_panel, &job);
    else /* a wake-up costs more */
        for (int64_t tile = 0; tile < tiles; tile++) pack_panel(&job, tile, 0);
}
