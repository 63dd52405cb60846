/* synthetic.c - made-up data: each class has a mean, each sample is its class's mean and noise. Images have means that are
 * constant over blocks of 4 × 4 pixels, since convolution and pooling would average finer ones away. */
#include "base/random.h"
#include "data/dataset.h"

#include <string.h>

enum { MEANS, LABELS, NOISE }; /* streams of random numbers */
enum { BLOCK = 4 };

/* About normal, mean 0 and variance 1: the sum of four bytes (Irwin and Hall), quick and the same on every machine. */
static float gauss(uint32_t bits)
{
    int sum = (int)(bits & 255) + (int)(bits >> 8 & 255) + (int)(bits >> 16 & 255) + (int)(bits >> 24);
    return (float)(sum - 510) * (1.0f / 147.7983f); /* sqrt(4 (256² - 1) / 12) */
}

/* Means in -1 … 1, one for each class and element. */
static void make_means(const lk_dataset *d, uint64_t seed, float *means)
{
    lk__random random = lk__random_make(seed, LK__FOR_SYNTHETIC, MEANS);
    int64_t    width = d->dims[d->rank - 1], height = d->rank >= 2 ? d->dims[d->rank - 2] : 1;
    bool       image = d->rank == 3;
    for (int64_t c = 0; c < d->classes; c++) {
        for (int64_t i = 0; i < d->elements; i++) {
            int64_t x = i % width, y = i / width % height, plane = i / (width * height);
            int64_t cell = image ? (plane * height + y / BLOCK) * width + x / BLOCK : i;
            means[c * d->elements + i] = (float)(2 * lk__random_unit(lk__random_u32(&random, (uint64_t)c, (uint32_t)cell)) - 1);
        }
    }
}

static void fill_floats(const lk_dataset *d, const lk__random *noise, uint64_t number, const float *mean, float *out)
{
    uint32_t bits[4];
    for (int64_t i = 0; i < d->elements; i++) {
        if (i % 4 == 0) lk__random4(noise, number, (uint32_t)(i / 4), bits);
        out[i] = mean[i] + gauss(bits[i % 4]);
    }
}

/* 128 ± 40 by class, ± 64 of noise: never out of a byte's range. */
static void fill_bytes(const lk_dataset *d, const lk__random *noise, uint64_t number, const float *mean, unsigned char *out)
{
    uint32_t bits[4];
    for (int64_t i = 0; i < d->elements; i++) {
        if (i % 16 == 0) lk__random4(noise, number, (uint32_t)(i / 16), bits);
        int wave = (int)(bits[i / 4 % 4] >> 8 * (i % 4) & 127) - 64;
        out[i] = (unsigned char)(128 + (int)(40 * mean[i]) + wave);
    }
}

lk_status lk_dataset_synthetic(lk_context *context, const lk_dataset_synthetic_config *config, lk_dataset **dataset)
{
    static const lk_dataset_synthetic_config defaults = LK_DATASET_SYNTHETIC_CONFIG_INIT;
    lk_dataset                              *d = NULL;
    float                                   *means = NULL;
    size_t                                   mean_bytes = 0;
    *dataset = NULL;
    if (!config) config = &defaults;
    if (config->size != sizeof *config)
        return lk__fail(context, LK_EINVAL, "synthetic data: begin its config with LK_DATASET_SYNTHETIC_CONFIG_INIT");
    if (config->classes < 1 || config->first < 0)
        return lk__fail(context, LK_EINVAL, "synthetic data of %d classes from sample %lld on: at least 1 class and sample 0",
                        config->classes, (long long)config->first);
    lk_status status = lk__dataset_make(context, "synthetic", config->count, config->rank, config->dims, config->dtype,
                                        config->classes, &d);
    if (status < 0) return status;
    if (d->elements > UINT32_MAX || __builtin_mul_overflow((size_t)d->elements * sizeof *means, (size_t)d->classes, &mean_bytes)) {
        status = lk__fail(context, LK_EINVAL, "synthetic samples of %lld values: too large", (long long)d->elements);
        goto fail;
    }
    if ((status = lk__dataset_own(d, (size_t)d->count * d->stride)) < 0) goto fail;
    means = lk__alloc(context, LK_MEMORY_DATA, mean_bytes);
    if (!means) {
        status = LK_ENOMEM;
        goto fail;
    }
    make_means(d, config->seed, means);
    lk__random labels = lk__random_make(config->seed, LK__FOR_SYNTHETIC, LABELS);
    lk__random noise = lk__random_make(config->seed, LK__FOR_SYNTHETIC, NOISE);
    for (int64_t i = 0; i < d->count; i++) {
        uint64_t       number = (uint64_t)(config->first + i);
        uint32_t       index = 0;
        int64_t        label = (int64_t)lk__random_below(&labels, number, &index, (uint64_t)d->classes);
        unsigned char *out = (unsigned char *)d->owned_features + (size_t)i * d->stride;
        d->owned_labels[i] = (int32_t)label;
        if (d->dtype == LK_U8)
            fill_bytes(d, &noise, number, means + label * d->elements, out);
        else
            fill_floats(d, &noise, number, means + label * d->elements, (float *)out);
    }
    *dataset = d;
    d = NULL;
fail:
    lk__free(context, LK_MEMORY_DATA, means, mean_bytes);
    lk_dataset_free(d);
    return status;
}
