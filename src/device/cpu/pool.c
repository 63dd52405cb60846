/* pool.c - max, average and global average pooling of images (channels last), and their gradients. Vectors run along
 * the channels; an image belongs to one tile in the gradients, so overlapping windows add in a fixed order: in dx
 * itself, or in a worker's scratch where ELEMENT is narrower than REAL. Bound by memory. */
#include "device/cpu/columns.h"

typedef struct window {
    const ELEMENT *x; /* the larger image of a forward, dy of a gradient */
    ELEMENT       *y;
    REAL          *sums; /* a worker's image, of gradients that are added where ELEMENT is narrower */
    uint8_t       *index;
    const uint8_t *saved;
    int64_t        images, channels, height, width, out_height, out_width; /* height × width is the larger image */
    int64_t        kernel, stride, padding, tiles;
    int64_t        first_channel, all_channels; /* of global_avg_pool2d: where a part of the channels is in the whole */
} window;

static window describe_call(const lk__kernel_call *call, const lk__kernel_operand *large,
                            const lk__kernel_operand *small)
{
    window w = {.x = call->in[0].data, .y = call->out[0].data, .images = large->dims[0], .channels = large->dims[1]};
    w.height = large->dims[2];
    w.width = large->dims[3];
    w.out_height = small->dims[2];
    w.out_width = small->dims[3];
    w.kernel = call->attrs->kernel;
    w.stride = call->attrs->stride;
    w.padding = call->attrs->padding;
    return w;
}

/* The part of a window inside the image: rows and columns of the window, from … to-1. */
typedef struct span {
    int64_t from, to, at; /* at: the position in the image of the window's position 0 */
} span;

static span clip(int64_t out, int64_t size, const window *w)
{
    int64_t at = out * w->stride - w->padding;
    return (span){max64(0, -at), min64(w->kernel, size - at), at};
}

typedef uint8_t positions __attribute__((vector_size(VL)));

INLINE ivec load_index(const uint8_t *p, int64_t lanes)
{
    if (lanes == VL) {
        positions bytes;
        memcpy(&bytes, p, sizeof bytes);
        return __builtin_convertvector(bytes, ivec);
    }
    ivec v = {0};
    for (int64_t l = 0; l < lanes; l++) v[l] = p[l];
    return v;
}

/* The maximum of a window; the first of equal values counts, and NaN is above all numbers. */
INLINE void max_window(const window *w, const ELEMENT *image, span r, span s, int64_t c, int64_t lanes, ELEMENT *y,
                       uint8_t *index)
{
    vec  best = splat(-INFINITY);
    ivec where = {0};
    where += (INTEGER)(r.from * w->kernel + s.from);
    for (int64_t row = r.from; row < r.to; row++) {
        const ELEMENT *x = image + ((r.at + row) * w->width + s.at) * w->channels + c;
        for (int64_t column = s.from; column < s.to; column++) {
            vec  v = load_part(x + column * w->channels, lanes);
            ivec wins = (v > best) | (v != v);
            best = choose(wins, v, best);
            ivec here = (ivec){0} + (INTEGER)(row * w->kernel + column);
            where = (wins & here) | (~wins & where);
        }
    }
    store_part_exact(y, best, lanes);
    positions bytes = __builtin_convertvector(where, positions);
    if (index && lanes == VL)
        memcpy(index, &bytes, sizeof bytes);
    else if (index)
        for (int64_t l = 0; l < lanes; l++) index[l] = bytes[l];
}

static void max_tile(void *argument, int64_t tile, int worker)
{
    const window w = *(const window *)argument;
    int64_t      rows = w.images * w.out_height, end = tile_begin(rows, w.tiles, tile + 1);
    (void)worker;
    for (int64_t item = tile_begin(rows, w.tiles, tile); item < end; item++) {
        const ELEMENT *image = w.x + item / w.out_height * w.height * w.width * w.channels;
        span           r = clip(item % w.out_height, w.height, &w);
        for (int64_t out = 0; out < w.out_width; out++) {
            span     s = clip(out, w.width, &w);
            int64_t  at = (item * w.out_width + out) * w.channels;
            ELEMENT *y = w.y + at;
            uint8_t *index = w.index ? w.index + at : NULL;
            EACH_VECTOR(c, w.channels, max_window(&w, image, r, s, c, lanes, y + c, index ? index + c : NULL););
        }
    }
}

void KERNEL(max_pool2d)(const lk__kernel_call *call)
{
    window w = describe_call(call, &call->in[0], &call->out[0]);
    w.index = output(call, 1);
    w.tiles = tile_count(w.images * w.out_height, w.out_width * w.channels * w.kernel * w.kernel, 0);
    if (w.out_width * w.channels == 0) return;
    lk__pool_run(call->pool, w.tiles, max_tile, &w);
}

/* Where an image's gradients are added: in dx, or in this worker's sums, which then go to dx. */
static REAL *clear_sums(const window *w, ELEMENT *dx, int64_t size, int worker)
{
    REAL *sums = NARROW ? w->sums + worker * size : (REAL *)(void *)dx;
    memset(sums, 0, (size_t)size * sizeof *sums);
    return sums;
}

#if NARROW
static size_t sums_bytes(const lk__kernel_operand *dx, int threads)
{
    return (size_t)(dims_product(dx, 1, dx->rank) * threads) * sizeof(REAL);
}
size_t KERNEL(max_pool2d_grad_workspace)(const lk__kernel_call *call, int threads)
{
    return sums_bytes(&call->out[0], threads);
}
size_t KERNEL(avg_pool2d_grad_workspace)(const lk__kernel_call *call, int threads)
{
    return sums_bytes(&call->out[0], threads);
}
#endif

/* Windows that do not overlap: every element of dx is written once. */
static void scatter_disjoint(const window *w, const ELEMENT *dy, const uint8_t *index, ELEMENT *dx, int64_t row,
                             int64_t column)
{
    span r = clip(row, w->height, w), s = clip(column, w->width, w);
    for (int64_t i = r.from; i < r.to; i++) {
        for (int64_t j = s.from; j < s.to; j++) {
            ELEMENT *to = dx + ((r.at + i) * w->width + s.at + j) * w->channels;
            ivec     here = (ivec){0} + (INTEGER)(i * w->kernel + j);
            EACH_VECTOR(c, w->channels, {
                vec d = load_part(dy + c, lanes);
                store_part_exact(to + c, choose(load_index(index + c, lanes) == here, d, splat(0)), lanes);
            });
        }
    }
}

static void scatter_overlapping(const window *w, const ELEMENT *dy, const uint8_t *index, REAL *dx, int64_t row,
                                int64_t column)
{
    REAL *corner = dx + ((row * w->stride - w->padding) * w->width + column * w->stride - w->padding) * w->channels;
    for (int64_t c = 0; c < w->channels; c++) {
        int64_t i = index[c] / w->kernel, j = index[c] % w->kernel;
        corner[(i * w->width + j) * w->channels + c] += load_one(dy + c);
    }
}

static void max_grad_tile(void *argument, int64_t tile, int worker)
{
    const window *w = argument;
    int64_t       end = tile_begin(w->images, w->tiles, tile + 1), outs = w->out_height * w->out_width;
    int64_t       size = w->height * w->width * w->channels;
    bool          disjoint = w->stride >= w->kernel;
    for (int64_t image = tile_begin(w->images, w->tiles, tile); image < end; image++) {
        ELEMENT *dx = w->y + image * size;
        REAL    *sums = disjoint ? NULL : clear_sums(w, dx, size, worker);
        if (disjoint && (w->stride != w->kernel || w->padding || w->height % w->kernel || w->width % w->kernel))
            memset(dx, 0, (size_t)size * sizeof *dx); /* elements that no window covers */
        for (int64_t out = 0; out < outs; out++) {
            const ELEMENT *dy = w->x + (image * outs + out) * w->channels;
            const uint8_t *index = w->saved + (image * outs + out) * w->channels;
            if (disjoint)
                scatter_disjoint(w, dy, index, dx, out / w->out_width, out % w->out_width);
            else
                scatter_overlapping(w, dy, index, sums, out / w->out_width, out % w->out_width);
        }
        if (NARROW && !disjoint) copy_narrow(dx, sums, size);
    }
}

void KERNEL(max_pool2d_grad)(const lk__kernel_call *call)
{
    window w = describe_call(call, &call->out[0], &call->in[0]);
    w.saved = call->in[1].data;
    w.sums = call->workspace;
    w.tiles = tile_count(w.images, w.height * w.width * w.channels, 0);
    lk__pool_run(call->pool, w.tiles, max_grad_tile, &w);
}

static void avg_tile(void *argument, int64_t tile, int worker)
{
    const window w = *(const window *)argument;
    int64_t      rows = w.images * w.out_height, end = tile_begin(rows, w.tiles, tile + 1);
    REAL         divisor = (REAL)(w.kernel * w.kernel);
    (void)worker;
    for (int64_t item = tile_begin(rows, w.tiles, tile); item < end; item++) {
        const ELEMENT *image = w.x + item / w.out_height * w.height * w.width * w.channels;
        span           r = clip(item % w.out_height, w.height, &w);
        for (int64_t out = 0; out < w.out_width; out++) {
            span     s = clip(out, w.width, &w);
            ELEMENT *y = w.y + (item * w.out_width + out) * w.channels;
            EACH_VECTOR(c, w.channels, {
                vec sum = {0};
                for (int64_t i = r.from; i < r.to; i++)
                    for (int64_t j = s.from; j < s.to; j++)
                        sum += load_part(image + ((r.at + i) * w.width + s.at + j) * w.channels + c, lanes);
                store_part(y + c, sum / divisor, lanes);
            });
        }
    }
}

void KERNEL(avg_pool2d)(const lk__kernel_call *call)
{
    window w = describe_call(call, &call->in[0], &call->out[0]);
    w.tiles = tile_count(w.images * w.out_height, w.out_width * w.channels * w.kernel * w.kernel, 0);
    if (w.out_width * w.channels == 0) return;
    lk__pool_run(call->pool, w.tiles, avg_tile, &w);
}

static void avg_grad_tile(void *argument, int64_t tile, int worker)
{
    const window w = *(const window *)argument;
    int64_t      end = tile_begin(w.images, w.tiles, tile + 1), outs = w.out_height * w.out_width;
    int64_t      size = w.height * w.width * w.channels;
    REAL         divisor = (REAL)(w.kernel * w.kernel);
    for (int64_t image = tile_begin(w.images, w.tiles, tile); image < end; image++) {
        ELEMENT *dx = w.y + image * size;
        REAL    *sums = clear_sums(&w, dx, size, worker);
        for (int64_t out = 0; out < outs; out++) {
            const ELEMENT *dy = w.x + (image * outs + out) * w.channels;
            span           r = clip(out / w.out_width, w.height, &w), s = clip(out % w.out_width, w.width, &w);
            EACH_VECTOR(c, w.channels, {
                vec d = load_part(dy + c, lanes) / divisor;
                for (int64_t i = r.from; i < r.to; i++) {
                    REAL *to = sums + ((r.at + i) * w.width + s.at) * w.channels + c;
                    for (int64_t j = s.from; j < s.to; j++)
                        store_part(to + j * w.channels, load_part(to + j * w.channels, lanes) + d, lanes);
                }
            });
        }
        if (NARROW) copy_narrow(dx, sums, size);
    }
}

void KERNEL(avg_pool2d_grad)(const lk__kernel_call *call)
{
    window w = describe_call(call, &call->out[0], &call->in[0]);
    w.sums = call->workspace;
    w.tiles = tile_count(w.images, w.height * w.width * w.channels, 0);
    lk__pool_run(call->pool, w.tiles, avg_grad_tile, &w);
}

INLINE void pixel_term(const void *data, int64_t row, int64_t column, int64_t lanes, vec *first, vec *second)
{
    const window *w = data;
    (void)second;
    *first = load_part(w->x + row * w->channels + column, lanes);
}

static void global_tile(void *argument, int64_t tile, int worker)
{
    const window *w = argument;
    int64_t       pixels = w->height * w->width, end = tile_begin(w->images, w->tiles, tile + 1);
    enum { STRIP = 64 * VL };
    double sums[STRIP];
    (void)worker;
    for (int64_t image = tile_begin(w->images, w->tiles, tile); image < end; image++) {
        for (int64_t c = 0, n; c < w->channels; c += n) {
            window  strip = *w;
            int64_t at = (w->first_channel + c) % STRIP, begin = w->first_channel + c - at; /* of the whole's strip */
            int64_t whole = min64(STRIP, w->all_channels - begin);
            n = min64(whole - at, w->channels - c);
            strip.x += c;
            memset(sums, 0, sizeof sums);
            sum_columns_of(pixel_term, &strip, image * pixels, (image + 1) * pixels, n, at, whole, sums, NULL);
            for (int64_t i = 0; i < n; i++)
                store_one(w->y + image * w->channels + c + i, (REAL)(sums[i] / (double)pixels));
        }
    }
}

void KERNEL(global_avg_pool2d)(const lk__kernel_call *call)
{
    const lk__kernel_operand *x = &call->in[0];
    window                    w = {.x = x->data, .y = call->out[0].data, .images = x->dims[0]};
    w.channels = x->dims[1], w.height = x->dims[2], w.width = x->dims[3];
    w.first_channel = x->part ? x->part->first[1] : 0;
    w.all_channels = x->part ? x->part->whole[1] : w.channels;
    w.tiles = tile_count(w.images, w.channels * w.height * w.width, 0);
    lk__pool_run(call->pool, w.tiles, global_tile, &w);
}

static void global_grad_tile(void *argument, int64_t tile, int worker)
{
    const window w = *(const window *)argument;
    int64_t      pixels = w.height * w.width, end = tile_begin(w.images, w.tiles, tile + 1);
    REAL         divisor = (REAL)pixels;
    (void)worker;
    for (int64_t image = tile_begin(w.images, w.tiles, tile); image < end; image++) {
        const ELEMENT *dy = w.x + image * w.channels;
        for (int64_t pixel = 0; pixel < pixels; pixel++) {
            ELEMENT *dx = w.y + (image * pixels + pixel) * w.channels;
            EACH_VECTOR(c, w.channels, store_part(dx + c, load_part(dy + c, lanes) / divisor, lanes););
        }
    }
}

void KERNEL(global_avg_pool2d_grad)(const lk__kernel_call *call)
{
    const lk__kernel_operand *dx = &call->out[0];
    window w = {.x = call->in[0].data, .y = dx->data, .images = dx->dims[0], .channels = dx->dims[1]};
    w.height = dx->dims[2];
    w.width = dx->dims[3];
    w.tiles = tile_count(w.images, w.channels * w.height * w.width, 0);
    lk__pool_run(call->pool, w.tiles, global_grad_tile, &w);
}
