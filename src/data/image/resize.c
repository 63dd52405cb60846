/* resize.c - antialiased bilinear resizing in integers. Sums stay below 2^31: weights are at least 0 and add up to 2^22, up to
 * half a unit for each tap. */
#include "data/image/resize.h"

#include "base/base.h"

#include <math.h>
#include <string.h>

enum { BITS = 32 - 8 - 2 }; /* of a weight's fraction: Pillow's choice */

static int count_taps(const lk__image_axis *axis)
{
    double scale = axis->extent / (double)axis->out;
    return (int)ceil(scale < 1 ? 1 : scale) * 2 + 1;
}

static size_t filter_bytes(const lk__image_axis *axis)
{
    return lk__round_up((size_t)axis->out * (2 + (size_t)count_taps(axis)) * sizeof(int32_t), LK__ALIGN);
}

size_t lk__resize_bytes(int channels, const lk__image_axis *across, const lk__image_axis *down)
{
    return filter_bytes(across) + filter_bytes(down) +
           lk__round_up((size_t)(down->in * across->out * channels), LK__ALIGN);
}

static double triangle(double x) { return fabs(x) < 1 ? 1 - fabs(x) : 0; }

/* Weights in double, normalised to a sum of 1, then rounded: the order of operations is Pillow's. */
static void fill_filter(lk__image_filter *f, const lk__image_axis *axis, int32_t *memory)
{
    double scale = axis->extent / (double)axis->out, support = scale < 1 ? 1 : scale;
    *f = (lk__image_filter){.out = axis->out, .taps = count_taps(axis)};
    f->copies = axis->in == axis->out && axis->extent == (double)axis->in;
    f->first = memory;
    f->count = memory + axis->out;
    f->weights = memory + 2 * axis->out;
    for (int64_t i = 0; i < axis->out; i++) {
        double   centre = axis->begin + ((double)i + 0.5) * scale, sum = 0;
        int64_t  first = centre - support + 0.5 < 0 ? 0 : (int64_t)(centre - support + 0.5);
        int64_t  last = (int64_t)(centre + support + 0.5);
        int32_t *weights = f->weights + i * f->taps;
        if (last > axis->in) last = axis->in;
        for (int64_t k = first; k < last; k++) sum += triangle(((double)k - centre + 0.5) * (1 / support));
        for (int64_t k = first; k < last; k++) {
            double weight = triangle(((double)k - centre + 0.5) * (1 / support));
            if (sum != 0) weight /= sum;
            weights[k - first] = (int32_t)(0.5 + weight * (1 << BITS));
        }
        f->first[i] = (int32_t)first;
        f->count[i] = (int32_t)(last - first);
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
        for (int32_t k = 0; k < f->count[i]; k++) sum += p[k] * weights[k];
        out[i] = to_byte(sum);
    }
}

static void resize_colour_row(const lk__image_filter *f, const unsigned char *row, unsigned char *out)
{
    for (int64_t i = 0; i < f->out; i++, out += 3) {
        const unsigned char *p = row + (size_t)f->first[i] * 3;
        const int32_t       *weights = f->weights + i * f->taps;
        int32_t              red = 1 << (BITS - 1), green = red, blue = red;
        for (int32_t k = 0; k < f->count[i]; k++, p += 3) {
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

/* A row of the output from rows of the middle. Along the row, so that the compiler uses vectors; bound by arithmetic. */
enum { STRIP = 192 }; /* bytes of a row at once, a multiple of 3: their sums stay in the first-level cache */

static void sum_strip(const lk__image_filter *f, int64_t y, const unsigned char *from, size_t stride, int n,
                      unsigned char out[STRIP])
{
    int32_t        sums[STRIP];
    const int32_t *weights = f->weights + y * f->taps;
    from += (size_t)f->first[y] * stride;
    for (int x = 0; x < STRIP; x++) sums[x] = 1 << (BITS - 1);
    for (int32_t k = 0; k < f->count[y]; k++, from += stride) {
        int32_t weight = weights[k];
        for (int x = 0; x < n; x++) sums[x] += from[x] * weight;
    }
    for (int x = 0; x < n; x++) out[x] = to_byte(sums[x]);
}

void lk__resize_finish(const lk__image_resize *r, unsigned char *out)
{
    size_t stride = (size_t)r->across.out * (size_t)r->channels, plane = (size_t)(r->across.out * r->down.out);
    for (int64_t y = 0; y < r->down.out; y++) {
        for (size_t begin = 0; begin < stride; begin += STRIP) {
            unsigned char strip[STRIP];
            int           n = stride - begin < STRIP ? (int)(stride - begin) : STRIP;
            sum_strip(&r->down, y, r->middle + begin, stride, n, strip);
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
