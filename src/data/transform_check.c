/* transform_check.c - checks whether a transform is valid for a data set. */
#include "base/base.h"
#include "data/transform.h"

#include <string.h>

#define REFUSE(...) return lk__fail(context, LK_EINVAL, __VA_ARGS__)

/* 0, 0 or an interval above 0. */
static bool is_interval(const double v[2], double most)
{
    return (v[0] == 0 && v[1] == 0) || (v[0] > 0 && v[0] <= v[1] && v[1] <= most);
}

static lk_status check_crops(lk_context *context, const lk_transform *t)
{
    if (!(t->flip >= 0 && t->flip <= 1)) REFUSE("a flip probability of %g is invalid: expected 0 to 1", t->flip);
    if (t->crop_padding < 0 || t->crop_padding > 4096)
        REFUSE("a crop padding of %d pixels is invalid: expected 0 to 4096", t->crop_padding);
    if (!is_interval(t->resized_crop, 1))
        REFUSE("a random resized crop of %g to %g of the image is invalid: expected two numbers above 0 and at most 1, "
               "the smaller one first",
               t->resized_crop[0], t->resized_crop[1]);
    if (!is_interval(t->resized_ratio, 1e6))
        REFUSE("a random resized crop with aspect ratios from %g to %g is invalid: expected two numbers above 0 and at "
               "most 1e6, the smaller one first",
               t->resized_ratio[0], t->resized_ratio[1]);
    if (!(t->rotate >= 0 && t->rotate <= 180))
        REFUSE("a rotation by %g degrees is invalid: expected 0 to 180", t->rotate);
    if (t->cutout < 0 || t->cutout > 4096) REFUSE("a cutout of %d pixels is invalid: expected 0 to 4096", t->cutout);
    return LK_OK;
}

static lk_status check_jitter(lk_context *context, const lk_transform *t, const lk_field *field)
{
    static const char *const names[] = {"brightness", "contrast", "saturation", "hue"};
    bool                     any = false, color = t->color_jitter[2] > 0 || t->color_jitter[3] > 0;
    for (int i = 0; i < 4; i++) {
        double most = i == 3 ? 0.5 : 1000;
        any = any || t->color_jitter[i] > 0;
        if (!(t->color_jitter[i] >= 0 && t->color_jitter[i] <= most))
            REFUSE("a color jitter with %s %g is invalid: expected 0 to %g", names[i], t->color_jitter[i], most);
    }
    if (any && field->dims[0] != 1 && field->dims[0] != 3)
        REFUSE("a color jitter needs images of 1 or 3 channels; these have %lld", (long long)field->dims[0]);
    if (color && field->dims[0] == 1)
        REFUSE("a color jitter of saturation or hue needs images of 3 channels; these have 1");
    return LK_OK;
}

static lk_status check_mixup(lk_context *context, const lk_loader_config *config)
{
    const lk_transform *t = &config->transform;
    const lk_field *input = lk_dataset_field(config->dataset, 0), *label = lk_dataset_find(config->dataset, "label");
    if (!(t->mixup >= 0 && t->mixup <= 1000)) REFUSE("a mixup of %g is invalid: expected 0 to 1000", t->mixup);
    if (!lk__transform_mixes(t)) return LK_OK;
    if (t->raw || (input->dtype != LK_U8 && input->dtype != LK_F32))
        REFUSE("mixup needs an input of u8 or f32 that is not raw; %s is %s", input->name, lk_dtype_name(input->dtype));
    if (!label || label->dtype != LK_I32 || label->rank != 0)
        REFUSE("mixup needs a field \"label\": an i32 class number");
    if (lk_dataset_find(config->dataset, "label_2") || lk_dataset_find(config->dataset, "mix"))
        REFUSE("mixup appends the fields \"label_2\" and \"mix\", which the data set already has");
    if (lk_dataset_fields(config->dataset) + 2 > LK_MAX_FIELDS)
        REFUSE("mixup appends two fields to the %d of the data set: at most %d are supported",
               lk_dataset_fields(config->dataset), LK_MAX_FIELDS);
    return LK_OK;
}

lk_status lk__transform_check(lk_context *context, const lk_loader_config *config)
{
    const lk_transform *t = &config->transform;
    const lk_field     *field = lk_dataset_field(config->dataset, 0);
    const int64_t      *dims = field->dims;
    int                 rank = field->rank;
    if (t->size != sizeof *t) return lk__fail(context, LK_EINVAL, "initialise a transform with LK_TRANSFORM_INIT");
    if ((t->raw || (field->dtype != LK_U8 && field->dtype != LK_F32)) && (t->channels || lk__transform_augments(t)))
        return lk__fail(context, LK_EINVAL, "a transform of %s is invalid: %s", field->name,
                        t->raw ? "raw is set, so its values are not converted"
                               : "only u8 and f32 are normalised and augmented");
    if (t->channels < 0 || t->channels > LK_MAX_CHANNELS || (t->channels > 1 && (rank != 3 || dims[0] != t->channels)))
        return lk__fail(context, LK_EINVAL,
                        "a transform with mean and std for %d channels is invalid: a sample has %lld channels (at most "
                        "%d are supported; 1 applies to all)",
                        t->channels, rank == 3 ? (long long)dims[0] : 1LL, LK_MAX_CHANNELS);
    for (int i = 0; i < t->channels; i++)
        if (!(t->std[i] > 0) || t->std[i] - t->std[i] != 0 || t->mean[i] - t->mean[i] != 0) /* infinite or NaN */
            return lk__fail(
                context, LK_EINVAL,
                "a transform with mean %g and std %g for channel %d is invalid: both must be finite, and std above 0",
                t->mean[i], t->std[i], i);
    lk_status status = check_crops(context, t);
    if (status < 0) return status;
    if (lk__transform_augments(t) && rank != 3)
        return lk__fail(context, LK_EINVAL,
                        "augmentation needs images (channels, height, width); these samples have %d axes", rank);
    if ((status = check_jitter(context, t, field)) < 0) return status;
    return check_mixup(context, config);
}
