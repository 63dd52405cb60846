/* kernel/cpu/conv.h - what the three convolution kernels share: the geometry, padded copies of an image's rows, patches,
 * the fused pool and its way back. Images are (H, W, C) in memory, so the pixels under a kernel row are one run. */
#ifndef LK__CONV_H
#define LK__CONV_H

#include "kernel/cpu/gemm.h"

typedef struct conv {
    int64_t n, c, h, w;         /* x */
    int64_t o, kh, kw;          /* w */
    int64_t oh, ow;             /* of the convolution, before the pool */
    int64_t yh, yw;             /* of y and dy */
    int64_t stride, padding, groups, pool; /* pool >= 1 */
    int64_t cg, og;             /* channels of a group, in and out */
    int64_t panels;             /* of og */
    bool    relu;
} conv;

static inline conv conv_of(const lk__attrs *attrs, const int64_t *x, const int64_t *w)
{
    conv v = {.n = x[0], .c = x[1], .h = x[2], .w = x[3], .o = w[0], .kh = w[2], .kw = w[3]};
    v.stride = max64(1, attrs->stride);
    v.padding = attrs->padding;
    v.groups = max64(1, attrs->groups);
    v.pool = max64(1, attrs->pool);
    v.oh = (v.h + 2 * v.padding - v.kh) / v.stride + 1;
    v.ow = (v.w + 2 * v.padding - v.kw) / v.stride + 1;
    v.yh = v.oh / v.pool;
    v.yw = v.ow / v.pool;
    v.cg = v.c / v.groups;
    v.og = v.o / v.groups;
    v.panels = tiles_of(v.og, NR);
    v.relu = attrs->activation == LK__RELU;
    return v;
}

/* Rows and columns of an image that a scratch copy holds: from (row, column), which may lie outside and is zero there. */
typedef struct window {
    int64_t row, column, rows, columns;
} window;

/* to[r][q][0…width) = channels first … first+width of the image (h, w, c). */
#define copy_window KERNEL(copy_window)
void copy_window(REAL *to, window at, const REAL *image, int64_t h, int64_t w, int64_t c, int64_t first, int64_t width);

/* to[pixel][0…row): the kh*kw*cg values under the kernel, in the order (row, column, channel), then one, then zeros.
 * from is a window of x with `columns` columns of cg channels. Reads and writes up to VL past the ends. */
#define copy_patches KERNEL(copy_patches)
void copy_patches(REAL *to, int64_t row, const conv *v, const REAL *from, int64_t columns, int64_t rows);

/* The gradient before the pool, at the window's pixels and the channels first … first+channels of dy, zero outside:
 * to[channel / width * block + pixel * width + channel % width]. index may be NULL when there is no pool. */
#define expand_window KERNEL(expand_window)
void expand_window(REAL *to, window at, const conv *v, const REAL *dy, const uint8_t *index, int64_t first,
                   int64_t channels, int64_t width, int64_t block);

/* relu (if asked) and max pool of `count` windows that lie one after the other: from[window][position][channels] →
 * y[window][0…channels), a window's y and index `step` elements after the one before. index may be NULL. */
#define pool_windows KERNEL(pool_windows)
void pool_windows(const REAL *from, int64_t count, int64_t pool, int64_t channels, bool relu, REAL *y, uint8_t *index,
                  int64_t step);

/* Weights as panels of og: to[g][panel][(row, column, channel)][NR]. K is given the length `deep` by zero rows. */
#define pack_weights KERNEL(pack_weights)
void pack_weights(const conv *v, const REAL *w, REAL *to, int64_t deep, lk__pool *pool);

/* Below this a kernel row is too short for the vectors of micro_nn: patches are copied instead. */
static inline bool wants_patches(const conv *v) { return v->kw * v->cg < 16 && v->kh * v->kw > 1; }
static inline int64_t patch_row(const conv *v) { return round_to(v->kh * v->kw * v->cg + 1, MR > 4 ? MR : 4); }

#endif
