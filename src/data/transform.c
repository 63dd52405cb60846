/* transform.c - conversion to float, normalisation, crop, flip. Bytes are converted by a table of 256 values for each
 * channel: a look-up costs less than a division, and the table's values are rounded as PyTorch rounds. */
#include "data/transform.h"

#include "base/base.h"

#include <string.h>

static bool augments(const lk_transform *t) { return t->crop_padding || t->flip > 0; }

bool lk__transform_used(const lk_loader_config *config)
{
    const lk_transform *t = &config->transform;
    lk_dtype            in = lk_dataset_field(config->dataset, 0)->dtype;
    return !t->raw && (in == LK_U8 || (in == LK_F32 && (t->channels > 0 || augments(t))));
}

size_t lk__transform_bytes(const lk_loader_config *config)
{
    if (lk_dataset_field(config->dataset, 0)->dtype != LK_U8 || config->transform.raw) return 0;
    int64_t channels = config->transform.channels > 1 ? config->transform.channels : 1;
    return (size_t)channels * 256 * lk_dtype_size(config->dtype);
}

lk_status lk__transform_check(lk_context *context, const lk_loader_config *config)
{
    const lk_transform *t = &config->transform;
    const lk_field     *field = lk_dataset_field(config->dataset, 0);
    const int64_t      *dims = field->dims;
    int                 rank = field->rank;
    if (t->size != sizeof *t) return lk__fail(context, LK_EINVAL, "initialise a transform with LK_TRANSFORM_INIT");
    if ((t->raw || (field->dtype != LK_U8 && field->dtype != LK_F32)) && (t->channels || augments(t)))
        return lk__fail(context, LK_EINVAL, "a transform of %s is invalid: %s", field->name,
                        t->raw ? "it is raw, so it stays as it is stored"
                               : "only u8 and f32 are normalised, cropped and flipped");
    if (t->channels < 0 || t->channels > LK_MAX_CHANNELS || (t->channels > 1 && (rank != 3 || dims[0] != t->channels)))
        return lk__fail(
            context, LK_EINVAL,
            "a transform with mean and std for %d channels is invalid: a sample has %lld (at most %d, or 1 for all)",
            t->channels, rank == 3 ? (long long)dims[0] : 1LL, LK_MAX_CHANNELS);
    for (int i = 0; i < t->channels; i++)
        if (!(t->std[i] > 0) || t->std[i] - t->std[i] != 0 || t->mean[i] - t->mean[i] != 0) /* infinite or NaN */
            return lk__fail(context, LK_EINVAL,
                            "a transform with mean %g and std %g for channel %d is invalid: std must be above 0",
                            t->mean[i], t->std[i], i);
    if (!(t->flip >= 0 && t->flip <= 1))
        return lk__fail(context, LK_EINVAL, "a flip probability of %g is invalid: 0 to 1 is allowed", t->flip);
    if (t->crop_padding < 0 || t->crop_padding > 4096)
        return lk__fail(context, LK_EINVAL, "a crop padding of %d pixels is invalid: 0 to 4096 are allowed",
                        t->crop_padding);
    if (augments(t) && rank != 3)
        return lk__fail(context, LK_EINVAL,
                        "crop and flip need samples of (channels, height, width); these have %d axes", rank);
    return LK_OK;
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
                              .augment = augments(from),
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

void lk__transform_apply(const lk__data_transform *t, const lk__random *random, int64_t index, const void *sample,
                         void *row)
{
    crop p = {0};
    if (t->augment) {
        uint32_t draw[4];
        lk__random4(random, (uint64_t)index, 0, draw);
        p.down = scale_to_range(draw[0], 2 * t->padding + 1) - t->padding;
        p.right = scale_to_range(draw[1], 2 * t->padding + 1) - t->padding;
        p.flip = lk__random_unit(draw[2]) < t->flip;
    }
    if (t->in == LK_U8 && t->out == LK_F32)
        bytes_to_float(t, &p, sample, row);
    else if (t->in == LK_U8)
        bytes_to_double(t, &p, sample, row);
    else if (t->out == LK_F32)
        float_to_float(t, &p, sample, row);
    else
        float_to_double(t, &p, sample, row);
}
