/* transform.c - conversion to float, normalisation, and the random changes in their order. Bytes are converted by a
 * table of 256 values for each channel: a look-up costs less than a division, and the table's values are rounded as
 * PyTorch rounds. */
#include "data/transform.h"

#include "base/base.h"
#include "data/augment/augment.h"

#include <string.h>

/* Changes that need the image as floats, in a buffer. */
static bool needs_buffers(const lk_transform *t)
{
    const double *jitter = t->color_jitter;
    return t->resized_crop[1] > 0 || t->rotate > 0 || jitter[0] > 0 || jitter[1] > 0 || jitter[2] > 0 || jitter[3] > 0;
}

bool lk__transform_augments(const lk_transform *t)
{
    return t->crop_padding || t->flip > 0 || t->cutout > 0 || needs_buffers(t);
}

bool lk__transform_mixes(const lk_transform *t) { return t->mixup > 0 || t->mixup_fields; }

lk_transform lk__transform_evaluation(const lk_transform *t)
{
    lk_transform plain = LK_TRANSFORM_INIT;
    plain.raw = t->raw;
    plain.channels = t->channels;
    memcpy(plain.mean, t->mean, sizeof plain.mean);
    memcpy(plain.std, t->std, sizeof plain.std);
    plain.mixup_fields = lk__transform_mixes(t);
    return plain;
}

bool lk__transform_used(const lk_loader_config *config)
{
    const lk_transform *t = &config->transform;
    lk_dtype            in = lk_dataset_field(config->dataset, 0)->dtype;
    return !t->raw && (in == LK_U8 || (in == LK_F32 && (t->channels > 0 || lk__transform_augments(t))));
}

size_t lk__transform_bytes(const lk_loader_config *config)
{
    if (lk_dataset_field(config->dataset, 0)->dtype != LK_U8 || config->transform.raw) return 0;
    int64_t channels = config->transform.channels > 1 ? config->transform.channels : 1;
    return (size_t)channels * 256 * lk_dtype_size(config->dtype);
}

size_t lk__transform_scratch(const lk_loader_config *config)
{
    size_t elements = (size_t)lk_field_elements(lk_dataset_field(config->dataset, 0));
    if (!lk__transform_used(config) || !needs_buffers(&config->transform)) return 0;
    return 2 * lk__round_up(elements * sizeof(float), LK__ALIGN);
}

/* Each operation rounds to the type of the result: v / 255, minus mean, divided by std. */
static void fill_table(const lk__data_transform *t, int64_t tables, void *table)
{
    for (int64_t c = 0; c < tables; c++) {
        for (int v = 0; v < 256; v++) {
            if (t->out == LK_F32)
                ((float *)table)[c * 256 + v] = ((float)v / 255.0f - (float)t->mean[c]) / (float)t->std[c];
            else
                ((double *)table)[c * 256 + v] = (v / 255.0 - t->mean[c]) / t->std[c];
        }
    }
}

void lk__transform_init(lk__data_transform *t, const lk_loader_config *config, void *table)
{
    const lk_transform *from = &config->transform;
    const lk_field     *field = lk_dataset_field(config->dataset, 0);
    const int64_t      *dims = field->dims;
    *t = (lk__data_transform){.in = field->dtype,
                              .out = config->dtype,
                              .padding = from->crop_padding,
                              .flip = from->flip,
                              .augment = lk__transform_augments(from),
                              .buffered = needs_buffers(from),
                              .from = *from,
                              .table = table};
    t->normalize = from->channels > 0 || t->in == LK_U8;
    for (int i = 0; i < LK_MAX_CHANNELS; i++) {
        t->mean[i] = from->channels ? from->mean[from->channels > 1 ? i : 0] : 0.5;
        t->std[i] = from->channels ? from->std[from->channels > 1 ? i : 0] : 0.5;
    }
    t->per_channel = from->channels > 1;
    t->channels = t->per_channel || t->augment ? dims[0] : 1;
    t->height = t->augment ? dims[1] : 1;
    t->width = lk_field_elements(field) / t->channels / t->height;
    if (table) fill_table(t, t->per_channel ? t->channels : 1, table);
}

lk__random lk__transform_random(uint64_t seed, int64_t epoch)
{
    return lk__random_make(seed, LK__FOR_AUGMENT, (uint64_t)epoch);
}

typedef struct crop {
    int64_t down, right; /* offset from a pixel of the row to the pixel of the sample */
    bool    flip;
} crop;

/* For each pair of types: `value` converts one element, given table, mean and std of its channel. The three inner loops
 * run along a row; without augmentation a row is a whole channel. Bound by the bytes written. */
#define DEFINE_APPLY(name, from, to, value)                                                             \
    static void name(const lk__data_transform *t, const crop *p, const from *sample, to *out)             \
    {                                                                                                   \
        int64_t width = t->width, begin = p->right < 0 ? -p->right : 0;                                 \
        int64_t end = p->right > 0 ? width - p->right : width;                                          \
        if (begin > width) begin = width;                                                               \
        if (end < begin) end = begin;                                                                   \
        for (int64_t c = 0; c < t->channels; c++) {                                                     \
            int64_t   k = t->per_channel ? c : 0;                                                       \
            const to *table = t->table ? (const to *)t->table + k * 256 : NULL;                         \
            to        mean = t->normalize ? (to)t->mean[k] : 0, std = t->normalize ? (to)t->std[k] : 1; \
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

static crop draw_crop(const lk__data_transform *t, const lk__random *random, int64_t index)
{
    uint32_t draw[4];
    lk__random4(random, (uint64_t)index, LK__DRAW_CROP, draw);
    return (crop){scale_to_range(draw[0], 2 * t->padding + 1) - t->padding,
                  scale_to_range(draw[1], 2 * t->padding + 1) - t->padding, lk__random_unit(draw[2]) < t->flip};
}

static void load_floats(const lk__data_transform *t, const void *sample, size_t elements, float *to)
{
    if (t->in == LK_F32)
        memcpy(to, sample, elements * sizeof *to);
    else
        for (size_t i = 0; i < elements; i++) to[i] = (float)((const unsigned char *)sample)[i] / 255.0f;
}

/* The changed image in one of the two buffers, not normalised. */
static const float *change_image(const lk__data_transform *t, const lk__random *random, int64_t index,
                                 const void *sample, float *buffers)
{
    static const double default_ratio[2] = {3.0 / 4, 4.0 / 3};
    const lk_transform *from = &t->from;
    lk__augment_image   image = {t->channels, t->height, t->width};
    size_t              elements = (size_t)(t->channels * t->height * t->width);
    float *now = buffers, *next = buffers + lk__round_up(elements * sizeof(float), LK__ALIGN) / sizeof(float), *swap;
    load_floats(t, sample, elements, now);
#define SWAP() (swap = now, now = next, next = swap)
    if (from->resized_crop[1] > 0) {
        const double *ratio = from->resized_ratio[1] > 0 ? from->resized_ratio : default_ratio;
        lk__augment_resize(&image, now, lk__augment_draw_box(random, index, &image, from->resized_crop, ratio), next);
        SWAP();
    }
    if (t->padding || t->flip > 0) {
        lk__data_transform plain = *t;
        crop               p = draw_crop(t, random, index);
        plain.normalize = false;
        float_to_float(&plain, &p, now, next);
        SWAP();
    }
    if (from->rotate > 0) {
        uint32_t draw[4];
        lk__random4(random, (uint64_t)index, LK__DRAW_ROTATE, draw);
        lk__augment_rotate(&image, now, from->rotate * (2 * lk__random_unit(draw[0]) - 1), next);
        SWAP();
    }
#undef SWAP
    lk__augment_jitter jitter = lk__augment_draw_jitter(random, index, from->color_jitter);
    lk__augment_color(&image, now, &jitter, from->color_jitter);
    return now;
}

/* Zeros in a square around a random pixel, as far as it is inside of the image. */
static void cut_out(const lk__data_transform *t, const lk__random *random, int64_t index, void *row)
{
    uint32_t draw[4];
    lk__random4(random, (uint64_t)index, LK__DRAW_CUTOUT, draw);
    int64_t top = scale_to_range(draw[0], t->height) - t->from.cutout / 2, bottom = top + t->from.cutout;
    int64_t left = scale_to_range(draw[1], t->width) - t->from.cutout / 2, right = left + t->from.cutout;
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

void lk__transform_apply(const lk__data_transform *t, const lk__random *random, int64_t index, const void *sample,
                         void *row, void *scratch)
{
    crop     p = {0};
    lk_dtype in = t->in;
    if (t->buffered) {
        sample = change_image(t, random, index, sample, scratch);
        in = LK_F32;
    } else if (t->padding || t->flip > 0) {
        p = draw_crop(t, random, index);
    }
    if (in == LK_U8 && t->out == LK_F32)
        bytes_to_float(t, &p, sample, row);
    else if (in == LK_U8)
        bytes_to_double(t, &p, sample, row);
    else if (t->out == LK_F32)
        float_to_float(t, &p, sample, row);
    else
        float_to_double(t, &p, sample, row);
    if (t->from.cutout > 0) cut_out(t, random, index, row);
}
