/* loader_data.h - shared by the tests of loaders: a context, and data sets of numbers and of images. */
#ifndef LOADER_DATA_H
#define LOADER_DATA_H

#include "base/base.h"
#include "test_data.h"

static lk_context *context;

/* Arrays of n samples: feature k of sample i is i + k / 1000, label i % 5. */
static inline lk_dataset *make_counting(int64_t n, int64_t elements)
{
    float   *features = malloc((size_t)(n * elements) * sizeof *features);
    int32_t *labels = malloc((size_t)n * sizeof *labels);
    for (int64_t i = 0; i < n; i++) {
        labels[i] = (int32_t)(i % 5);
        for (int64_t k = 0; k < elements; k++) features[i * elements + k] = (float)i + (float)k / 1000;
    }
    lk_field                 fields[] = {{.name = "features", .dtype = LK_F32, .rank = 1, .dims = {elements}},
                                         {.name = "label", .dtype = LK_I32, .classes = 5}};
    lk_dataset_arrays_config c = LK_DATASET_ARRAYS_CONFIG_INIT;
    c.count = n, c.fields = fields, c.fields_count = 2, c.copy = true;
    c.data = (const void *[]){features, labels};
    lk_dataset *d;
    CHECK_OK(context, lk_dataset_from_arrays(context, &c, &d));
    free(features), free(labels);
    return d;
}

static inline lk_dataset *make_images(int64_t channels, int64_t height, int64_t width, int64_t n, lk_dtype dtype)
{
    lk_dataset_synthetic_config c = LK_DATASET_SYNTHETIC_CONFIG_INIT;
    lk_dataset                 *d;
    c.count = n, c.rank = 3, c.dims[0] = channels, c.dims[1] = height, c.dims[2] = width, c.dtype = dtype, c.seed = 3;
    CHECK_OK(context, lk_dataset_synthetic(context, &c, &d));
    return d;
}

#endif
