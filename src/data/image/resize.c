/* resize.c - antialiased bilinear resizing in integers. Sums stay below 2^31: weights are at least 0 and add up to
 * 2^22, up to half a unit for each tap. */
#include "data/image/resize.h"

#include "base/base.h"

#include <math.h>
#include <string.h>

enum { BITS = 32 - 8 - 2 }; /* of a weight's fraction: Pillow's choice */
/* bytes of a row that are summed at once, a multiple of 3: their sums stay in registers */
enum { STRIP = 48 };

/* No output depends on more inputs. */
static int64_t count_taps(const lk__image_axis *axis)
{
    double  scale = axis->extent / (double)axis->out;
    int64_t taps = (int64_t)ceil(2 * (scale < 1 ? 1 : scale));
    return taps < axis->in ? taps : axis->in;
}

static size_t filter_bytes(const lk__image_axis *axis)
{
    return lk__round_up((size_t)(axis->out * (1 + count_taps(axis))) * sizeof(int32_t), LK__ALIGN);
}

size_t lk__resize_bytes(int channels, const lk__image_axis *across, const lk__image_axis *down)
{
    return filter_bytes(across) + filter_bytes(down) +
           lk__round_up((size_t)(down->in * across->out * channels) + STRIP, LK__ALIGN);
}

static double triangle(double x) { return fabs(x) < 1 ? 1 - fabs(x) : 0; }

/* Weights in double, normalised to a sum of 1, then rounded: the order of operations is Pillow's. */
static void fill_filter(lk__image_filter *f, const lk__image_axis *axis, int32_t *memory)
{
    double scale = axis->extent / (double)axis->out, support = scale < 1 ? 1 : scale;
    *f = (lk__image_filter){.out = axis->out, .taps = count_taps(axis), .first = memory, .weights = memory + axis->out};
    f->copies = axis->in == axis->out && axis->extent == (double)axis->in;
    for (int64_t i = 0; i < axis->out; i++) {
        double   centre = axis->begin + ((double)i + 0.5) * scale, sum = 0;
        int64_t  first = centre - support + 0.5 < 0 ? 0 : (int64_t)(centre - support + 0.5);
        int64_t  last = (int64_t)(centre + support + 0.5);
        int64_t  begin = first + f->taps > axis->in ? axis->in - f->taps : first;
        int32_t *weights = f->weights + i * f->taps;
        if (last > begin + f->taps) last = begin + f->taps; /* the end, or an input with weight 0 that rounding added */
        for (int64_t k = first; k < last; k++) sum += triangle(((double)k - centre + 0.5) * (1 / support));
        memset(weights, 0, (size_t)f->taps * sizeof *weights);
        for (int64_t k = first; k < last; k++) {
            double weight = triangle(((double)k - centre + 0.5) * (1 / support));
            if (sum != 0) weight /= sum;
            weights[k - begin] = (int32_t)(0.5 + weight * (1 << BITS));
        }
        f->first[i] = (int32_t)begin;
    }
}

void lk__resize_init(lk__image_resize *r, int channels, const lk__image_axis *across, const lk__image_axis *down,
                     void *memory)
{
    unsigned char *at = memory;
    r->channels = channels;
    fill_filter(&r->across, across, (int32_t *)at);
    at += filter_bytes(across);
    fill_filter(&r->down, down, (int32_t *)at);
    r->middle = at + filter_bytes(down);
}

static unsigned char to_byte(int32_t sum)
{
    int32_t value = sum >> BITS;
    return (unsigned char)(value > 255 ? 255 : value);
}

static void resize_grey_row(const lk__image_filter *f, const unsigned char *row, unsigned char *out)
{
    for (int64_t i = 0; i < f->out; i++) {
        const unsigned char *p = row + f->first[i];
        const int32_t       *weights = f->weights + i * f->taps;
        int32_t              sum = 1 << (BITS - 1);
        for (int64_t k = 0; k < f->taps; k++) sum += p[k] * weights[k];
        out[i] = to_byte(sum);
    }
}

static void resize_colour_row(const lk__image_filter *f, const unsigned char *row, unsigned char *out)
{
    for (int64_t i = 0; i < f->out; i++, out += 3) {
        const unsigned char *p = row + (size_t)f->first[i] * 3;
        const int32_t       *weights = f->weights + i * f->taps;
        int32_t              red = 1 << (BITS - 1), green = red, blue = red;
        for (int64_t k = 0; k < f->taps; k++, p += 3) {
            red += p[0] * weights[k];
            green += p[1] * weights[k];
            blue += p[2] * weights[k];
        }
        out[0] = to_byte(red), out[1] = to_byte(green), out[2] = to_byte(blue);
    }
}

void lk__resize_row(lk__image_resize *r, int64_t y, const unsigned char *row)
{
    unsigned char *out = r->middle + (size_t)(y * r->across.out) * (size_t)r->channels;
    if (r->across.copies)
        memcpy(out, row, (size_t)r->across.out * (size_t)r->channels);
    else if (r->channels == 1)
        resize_grey_row(&r->across, row, out);
    else
        resize_colour_row(&r->across, row, out);
}

/* A part of an output row from rows of the middle. Along the row, so that the compiler uses vectors; bound by
 * arithmetic. */
static void sum_strip(const lk__image_filter *f, int64_t y, const unsigned char *from, size_t stride,
                      unsigned char out[STRIP])
{
    int32_t        sums[STRIP];
    const int32_t *weights = f->weights + y * f->taps;
    for (int x = 0; x < STRIP; x++) sums[x] = 1 << (BITS - 1);
    from += (size_t)f->first[y] * stride;
    for (int64_t k = 0; k < f->taps; k++, from += stride)
        for (int x = 0; x < STRIP; x++) sums[x] += from[x] * weights[k];
    for (int x = 0; x < STRIP; x++) out[x] = to_byte(sums[x]);
}

void lk__resize_finish(const lk__image_resize *r, unsigned char *out)
{
    size_t stride = (size_t)r->across.out * (size_t)r->channels, plane = (size_t)(r->across.out * r->down.out);
    for (int64_t y = 0; y < r->down.out; y++) {
        for (size_t begin = 0; begin < stride; begin += STRIP) {
            unsigned char strip[STRIP];
            int           n = stride - begin < STRIP ? (int)(stride - begin) : STRIP;
            sum_strip(&r->down, y, r->middle + begin, stride, strip);
            unsigned char *to = out + (size_t)(y * r->across.out) + begin / (size_t)r->channels;
            if (r->channels == 1) {
                memcpy(to, strip, (size_t)n);
                continue;
            }
            for (int x = 0; x < n / 3; x++) {
                to[x] = strip[3 * x];
                to[x + plane] = strip[3 * x + 1];
                to[x + 2 * plane] = strip[3 * x + 2];
            }
        }
    }
}
