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
            if (t->row.out == LK_F32)
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
    *t = (lk__data_transform){.row = {.in = field->dtype,
                                      .out = config->dtype,
                                      .per_channel = from->channels > 1,
                                      .padding = from->crop_padding,
                                      .cutout = from->cutout,
                                      .flip = from->flip,
                                      .table = table},
                              .augment = lk__transform_augments(from),
                              .buffered = needs_buffers(from),
                              .normalize = from->channels > 0 || field->dtype == LK_U8,
                              .from = *from};
    for (int i = 0; i < LK_MAX_CHANNELS; i++) {
        t->mean[i] = from->channels ? from->mean[from->channels > 1 ? i : 0] : 0.5;
        t->std[i] = from->channels ? from->std[from->channels > 1 ? i : 0] : 0.5;
    }
    t->row.channels = t->row.per_channel || t->augment ? dims[0] : 1;
    t->row.height = t->augment ? dims[1] : 1;
    t->row.width = lk_field_elements(field) / t->row.channels / t->row.height;
    if (table) fill_table(t, t->row.per_channel ? t->row.channels : 1, table);
}

lk__random lk__transform_random(uint64_t seed, int64_t epoch)
{
    return lk__random_make(seed, LK__FOR_AUGMENT, (uint64_t)epoch);
}

static void load_floats(const lk__data_transform *t, const void *sample, size_t elements, float *to)
{
    if (t->row.in == LK_F32)
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
    lk__augment_image   image = {t->row.channels, t->row.height, t->row.width};
    size_t              elements = (size_t)(image.channels * image.height * image.width);
    float *now = buffers, *next = buffers + lk__round_up(elements * sizeof(float), LK__ALIGN) / sizeof(float), *swap;
    load_floats(t, sample, elements, now);
#define SWAP() (swap = now, now = next, next = swap)
    if (from->resized_crop[1] > 0) {
        const double *ratio = from->resized_ratio[1] > 0 ? from->resized_ratio : default_ratio;
        lk__augment_resize(&image, now, lk__augment_draw_box(random, index, &image, from->resized_crop, ratio), next);
        SWAP();
    }
    if (t->row.padding || t->row.flip > 0) {
        lk__device_transform plain = t->row;
        plain.in = plain.out = LK_F32;
        plain.cutout = 0;
        lk__row_transform(&plain, random, index, now, next);
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

void lk__transform_apply(const lk__data_transform *t, const lk__transform_image *image, const void *sample, void *row)
{
    lk__device_transform how = t->row;
    if (t->normalize) how.mean = t->mean, how.std = t->std;
    if (t->buffered) {
        sample = change_image(t, image->random, image->index, sample, image->scratch);
        how.in = LK_F32;
        how.padding = 0;
        how.flip = 0;
    }
    lk__row_transform(&how, image->random, image->index, sample, row);
}
