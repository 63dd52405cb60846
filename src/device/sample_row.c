/* sample_row.c - converts one sample to one row of a batch on the host: conversion, normalisation, crop, flip, and a
 * square set to 0. It is called by loaders and by the CPU's kernel of sample_rows. */
#include "device/batch.h"

#include <string.h>

typedef struct crop {
    int64_t down, right; /* offset from a pixel of the row to the pixel of the sample */
    bool    flip;
} crop;

/* For each pair of types: `value` converts one element, given table, mean and std of its channel. The three inner loops
 * run along a row; without augmentation a row is a whole channel. Bound by the bytes written. */
#define DEFINE_APPLY(name, from, to, value)                                                             \
    static void name(const lk__device_transform *t, const crop *p, const from *sample, to *out)             \
    {                                                                                                   \
        int64_t width = t->width, begin = p->right < 0 ? -p->right : 0;                                 \
        int64_t end = p->right > 0 ? width - p->right : width;                                          \
        if (begin > width) begin = width;                                                               \
        if (end < begin) end = begin;                                                                   \
        for (int64_t c = 0; c < t->channels; c++) {                                                     \
            int64_t   k = t->per_channel ? c : 0;                                                       \
            const to *table = t->table ? (const to *)t->table + k * 256 : NULL;                         \
            to        mean = t->mean ? (to)t->mean[k] : 0, std = t->mean ? (to)t->std[k] : 1; \
            (void)table, (void)mean, (void)std;                                                         \
            const from nothing = 0;                                                                     \
            const to   border = value(nothing);                                                         \
            for (int64_t y = 0; y < t->height; y++) {                                                   \
                int64_t     source = y + p->down;                                                       \
                bool        outside = source < 0 || source >= t->height;                                \
                const from *line = sample + (c * t->height + (outside ? 0 : source)) * width;           \
                to         *row = out + (c * t->height + y) * width;                                    \
                int64_t     first = outside ? width : begin, last = outside ? width : end;              \
                for (int64_t x = 0; x < first; x++) row[x] = border;                                    \
                for (int64_t x = first; x < last; x++) row[x] = value(line[x + p->right]);              \
                for (int64_t x = last; x < width; x++) row[x] = border;                                 \
                for (int64_t x = 0; p->flip && x < width / 2; x++) {                                    \
                    to swap = row[x];                                                                   \
                    row[x] = row[width - 1 - x];                                                        \
                    row[width - 1 - x] = swap;                                                          \
                }                                                                                       \
            }                                                                                           \
        }                                                                                               \
    }
#define LOOK_UP(v) table[v]
#define ARITHMETIC(v) ((v)-mean) / std
DEFINE_APPLY(bytes_to_float, unsigned char, float, LOOK_UP)
DEFINE_APPLY(bytes_to_double, unsigned char, double, LOOK_UP)
DEFINE_APPLY(float_to_float, float, float, ARITHMETIC)
DEFINE_APPLY(float_to_double, float, double, ARITHMETIC)

static int64_t scale_to_range(uint32_t bits, int64_t n) { return (int64_t)((uint64_t)bits * (uint64_t)n >> 32); }

static crop draw_crop(const lk__device_transform *t, const lk__random *random, int64_t index)
{
    uint32_t draw[4];
    lk__random4(random, (uint64_t)index, LK__DRAW_CROP, draw);
    return (crop){scale_to_range(draw[0], 2 * t->padding + 1) - t->padding,
                  scale_to_range(draw[1], 2 * t->padding + 1) - t->padding, lk__random_unit(draw[2]) < t->flip};
}

/* Zeros in a square around a random pixel, as far as it is inside of the image. */
static void cut_out(const lk__device_transform *t, const lk__random *random, int64_t index, void *row)
{
    uint32_t draw[4];
    lk__random4(random, (uint64_t)index, LK__DRAW_CUTOUT, draw);
    int64_t top = scale_to_range(draw[0], t->height) - t->cutout / 2, bottom = top + t->cutout;
    int64_t left = scale_to_range(draw[1], t->width) - t->cutout / 2, right = left + t->cutout;
    size_t  size = lk_dtype_size(t->out);
    if (top < 0) top = 0;
    if (left < 0) left = 0;
    if (bottom > t->height) bottom = t->height;
    if (right > t->width) right = t->width;
    for (int64_t c = 0; c < t->channels; c++)
        for (int64_t y = top; y < bottom; y++)
            memset((char *)row + (size_t)((c * t->height + y) * t->width + left) * size, 0,
                   (size_t)(right - left) * size);
}

void lk__row_transform(const lk__device_transform *t, const lk__random *random, int64_t id, const void *sample,
                       void *row)
{
    crop p = {0};
    if (t->padding || t->flip > 0) p = draw_crop(t, random, id);
    if (t->in == LK_U8 && t->out == LK_F32)
        bytes_to_float(t, &p, sample, row);
    else if (t->in == LK_U8)
        bytes_to_double(t, &p, sample, row);
    else if (t->out == LK_F32)
        float_to_float(t, &p, sample, row);
    else
        float_to_double(t, &p, sample, row);
    if (t->cutout > 0) cut_out(t, random, id, row);
}
