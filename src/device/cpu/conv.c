/* conv.c - data movement for convolutions: windows of images, patches, the fused max pool and its gradient. */
#include "device/cpu/conv.h"

static void zero(PACKED *to, int64_t count) { memset(to, 0, (size_t)count * sizeof *to); }

static inline void copy_packed(PACKED *to, const ELEMENT *from, int64_t n)
{
#if MATRIX
    memcpy(to, from, (size_t)n * sizeof *to);
#else
    copy_wide(to, from, n);
#endif
}

void copy_window(PACKED *to, window at, const ELEMENT *image, int64_t h, int64_t w, int64_t c, int64_t first,
                 int64_t width)
{
    int64_t left = min64(at.columns, max64(0, -at.column)); /* columns before the image */
    int64_t right = max64(left, min64(at.columns, w - at.column)), count = min64(width, c - first);
    for (int64_t r = 0; r < at.rows; r++, to += at.columns * width) {
        int64_t row = at.row + r;
        if (row < 0 || row >= h) {
            zero(to, at.columns * width);
            continue;
        }
        const ELEMENT *from = image + (row * w + at.column) * c + first;
        zero(to, left * width);
        if (width == c)
            copy_packed(to + left * width, from + left * c, (right - left) * c);
        else if (width == count)
            for (int64_t q = left; q < right; q++) copy_packed(to + q * width, from + q * c, width);
        else
            for (int64_t q = left; q < right; q++) {
                copy_packed(to + q * width, from + q * c, count);
                zero(to + q * width + count, width - count);
            }
        zero(to + right * width, (at.columns - right) * width);
    }
}

/* Patches of one output row. Kernel rows are copied in whole vectors: what follows, at last the next patch, overwrites
 * the excess. */
static inline void copy_row_patches(REAL *to, int64_t to_step, const PACKED *from, int64_t step, int64_t line,
                                    int64_t count, int64_t rows, int64_t run, int64_t vectors, int64_t tail)
{
    const vec one = {1};
    for (int64_t q = 0; q < count; q++, to += to_step, from += step) {
        for (int64_t i = 0; i < rows; i++)
            for (int64_t k = 0; k < vectors; k++) store(to + i * run + k * VL, load(from + i * line + k * VL));
        store(to + rows * run, one);
        for (int64_t k = 1; k < tail; k++) store(to + rows * run + k * VL, splat(0));
    }
}

void copy_patches(REAL *to, const conv *v, const PACKED *from, int64_t columns, int64_t rows)
{
    int64_t run = v->kw * v->cg, line = columns * v->cg, step = v->stride * v->cg, to_step = patch_step(v);
    int64_t tail = tiles_of(patch_deep(v) - v->kh * run, VL);
    for (int64_t r = 0; r < rows; r++, to += v->ow * to_step, from += v->stride * line) {
        if (v->kh == 3 && tiles_of(run, VL) == 1) /* unrolled */
            copy_row_patches(to, to_step, from, step, line, v->ow, 3, run, 1, tail);
        else if (v->kh == 3 && tiles_of(run, VL) == 3)
            copy_row_patches(to, to_step, from, step, line, v->ow, 3, run, 3, tail);
        else
            copy_row_patches(to, to_step, from, step, line, v->ow, v->kh, run, tiles_of(run, VL), tail);
    }
}

/* One pooled gradient to the pixels of its window: rows × columns of them from position `first` on, `row` elements
 * apart. */
static inline void scatter_gradient(PACKED *to, int64_t pixel, int64_t row, const ELEMENT *dy, const uint8_t *index,
                                    int64_t pool, int64_t first, int64_t rows, int64_t columns, int64_t channels)
{
    int64_t whole = channels / VL * VL;
    for (int64_t c = 0; c < whole; c += VL) {
        vec value = load(dy + c);
        vec argmax = load_argmax(index + c);
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < columns; j++)
                store(to + i * row + j * pixel + c,
                      choose(argmax == splat((REAL)(first + i * pool + j)), value, splat(0)));
    }
    for (int64_t c = whole; c < channels; c++)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < columns; j++)
                store_one(to + i * row + j * pixel + c, index[c] == first + i * pool + j ? load_one(dy + c) : 0);
}

/* The window's pixels from pooled row h, `count` channels of one block. */
static void expand_row(PACKED *to, window at, const conv *v, const ELEMENT *dy, const uint8_t *index, int64_t h,
                       int64_t count, int64_t width)
{
    int64_t p = v->pool, top = max64(h * p, at.row), rows = min64((h + 1) * p, at.row + at.rows) - top;
    int64_t first = max64(0, at.column), end = min64(v->yw * p, at.column + at.columns), row = at.columns * width;
    int64_t step = v->o, from = (h * v->yw + first / p) * step;
    PACKED *line = to + (top - at.row) * row - at.column * width;
    for (int64_t q = first, w = first / p; q < end; w++, from += step) {
        int64_t columns = min64((w + 1) * p, end) - q;
        PACKED *pixel = line + q * width;
        if (p == 2 && rows == 2 && columns == 2 && count == PANEL_COLUMNS) /* the loops are unrolled */
            scatter_gradient(pixel, width, row, dy + from, index + from, 2, 0, 2, 2, PANEL_COLUMNS);
        else if (p == 2 && rows == 2 && columns == 2)
            scatter_gradient(pixel, width, row, dy + from, index + from, 2, 0, 2, 2, count);
        else
            scatter_gradient(pixel, width, row, dy + from, index + from, p, (top - h * p) * p + q - w * p, rows,
                             columns, count);
        q += columns;
    }
}

void expand_window(PACKED *to, window at, const conv *v, const ELEMENT *dy, const uint8_t *index, int64_t first,
                   int64_t channels, int64_t width, int64_t block)
{
    int64_t p = v->pool, h = v->yh * p, w = v->yw * p, row = at.columns * width;
    int64_t left = min64(at.columns, max64(0, -at.column)), right = max64(left, min64(at.columns, w - at.column));
    if (p == 1 && width == channels) {
        copy_window(to, at, dy, h, w, v->o, first, width);
        return;
    }
    for (int64_t c = 0; c < channels; c += width, to += block) {
        int64_t count = min64(width, channels - c);
        for (int64_t r = 0; r < at.rows; r++) {
            bool outside = at.row + r < 0 || at.row + r >= h;
            if (outside || count < width) zero(to + r * row, row);
            if (outside) continue;
            zero(to + r * row, left * width);
            zero(to + r * row + right * width, (at.columns - right) * width);
            if (p > 1) continue;
            const ELEMENT *from = dy + ((at.row + r) * w + at.column) * v->o + first + c;
            PACKED        *pixel = to + r * row;
            if (count == PANEL_COLUMNS && width == PANEL_COLUMNS)
                for (int64_t q = left; q < right; q++)
                    copy_packed(pixel + q * PANEL_COLUMNS, from + q * v->o, PANEL_COLUMNS);
            else
                for (int64_t q = left; q < right; q++) copy_packed(pixel + q * width, from + q * v->o, count);
        }
        if (p == 1) continue;
        for (int64_t y = max64(0, at.row) / p; y < v->yh && y * p < at.row + at.rows; y++)
            expand_row(to, at, v, dy + first + c, index + first + c, y, count, width);
    }
}

/* VL channels of one window. */
static inline void pool_vector(const REAL *from, int64_t p, int64_t pixel, bool relu, ELEMENT *y, uint8_t *index)
{
    vec best = load(from);
    for (int64_t i = 1; i < p * p; i++) best = greater(best, load(from + i * pixel));
    vec argmax = splat((REAL)(p * p - 1));
    for (int64_t i = p * p - 2; index && i >= 0; i--) argmax = choose_argmax(load(from + i * pixel) == best, i, argmax);
    store_pooled(best, argmax, relu, y, index);
}

static inline void pool_scalar(const REAL *from, int64_t p, int64_t pixel, bool relu, ELEMENT *y, uint8_t *index)
{
    REAL    best = from[0];
    int64_t argmax = 0;
    for (int64_t i = 1; i < p * p; i++) {
        REAL x = from[i * pixel];
        if (x > best || (x != x && best == best)) best = x, argmax = i;
    }
    bool dead = relu && best <= 0;
    store_one(y, dead ? 0 : best);
    if (index) *index = dead ? 255 : (uint8_t)argmax;
}

static inline __attribute__((always_inline)) void pool_pixel(const REAL *from, int64_t p, int64_t channels, bool relu,
                                                             ELEMENT *y, uint8_t *index)
{
    int64_t c = 0;
    for (; c + VL <= channels; c += VL) pool_vector(from + c, p, channels, relu, y + c, index ? index + c : NULL);
    for (; c < channels; c++) pool_scalar(from + c, p, channels, relu, y + c, index ? index + c : NULL);
}

void pool_windows(const REAL *from, int64_t count, int64_t pool, int64_t channels, bool relu, ELEMENT *y,
                  uint8_t *index, int64_t step)
{
    for (int64_t i = 0; i < count; i++, from += pool * pool * channels, y += step) {
        uint8_t *argmax = index ? index + i * step : NULL;
        if (pool == 2 && relu && argmax) /* the common case unrolled */
            pool_pixel(from, 2, channels, true, y, argmax);
        else
            pool_pixel(from, pool, channels, relu, y, argmax);
    }
}
