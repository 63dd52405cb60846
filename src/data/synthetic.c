/* synthetic.c - generated data: each class has a mean, each sample is its class's mean plus noise. The means of images
 * are constant over blocks of 4 × 4 pixels, since convolution and pooling would average finer ones away. */
#include "base/config.h"
#include "base/random.h"
#include "data/dataset.h"

enum { MEANS, LABELS, NOISE }; /* streams of random numbers */
enum { BLOCK = 4 };

/* 64 bits for (key, index): the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA'14). Keys come from Philox, one
 * for each class or sample; for values within them speed matters more than quality. */
static uint64_t random_bits(uint64_t key, uint64_t index)
{
    uint64_t z = key + index * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static uint64_t key_of(const lk__random *random, uint64_t item)
{
    uint32_t bits[4];
    lk__random4(random, item, 0, bits);
    return (uint64_t)bits[0] << 32 | bits[1];
}

/* Approximately normal, mean 0 and variance 1: the sum of four bytes (Irwin-Hall), fast and equal on every machine. */
static float random_normal(uint32_t bits)
{
    int sum = (int)(bits & 255) + (int)(bits >> 8 & 255) + (int)(bits >> 16 & 255) + (int)(bits >> 24);
    return (float)(sum - 510) * (1.0f / 147.7983f); /* sqrt(4 (256² - 1) / 12) */
}

/* Means, one for each class and element: -1 … 1, or 24 … 104 for bytes. */
static void make_means(const lk_field *f, int64_t classes, uint64_t seed, void *means)
{
    lk__random random = lk__random_make(seed, LK__FOR_SYNTHETIC, MEANS);
    int64_t    width = f->dims[f->rank - 1], height = f->rank >= 2 ? f->dims[f->rank - 2] : 1;
    int64_t    elements = lk_field_elements(f);
    for (int64_t c = 0; c < classes; c++) {
        uint64_t key = key_of(&random, (uint64_t)c);
        for (int64_t i = 0; i < elements; i++) {
            int64_t x = i % width, y = i / width % height, plane = i / (width * height);
            int64_t cell = f->rank == 3 ? (plane * height + y / BLOCK) * width + x / BLOCK : i;
            double  mean = 2 * lk__random_unit((uint32_t)random_bits(key, (uint64_t)cell)) - 1;
            if (f->dtype == LK_U8)
                ((unsigned char *)means)[c * elements + i] = (unsigned char)(64 + 40 * mean);
            else
                ((float *)means)[c * elements + i] = (float)mean;
        }
    }
}

static void fill_floats(int64_t elements, uint64_t key, const float *mean, float *out)
{
    for (int64_t i = 0; i < elements; i++) out[i] = mean[i] + random_normal((uint32_t)random_bits(key, (uint64_t)i));
}

/* The mean plus noise of 0 … 127, which stays in a byte's range. */
static void fill_bytes(int64_t elements, uint64_t key, const unsigned char *mean, unsigned char *out)
{
    int64_t i = 0;
    for (; i + 8 <= elements; i += 8) {
        uint64_t noise = random_bits(key, (uint64_t)i);
        for (int k = 0; k < 8; k++) out[i + k] = (unsigned char)(mean[i + k] + (noise >> 8 * k & 127));
    }
    for (uint64_t noise = random_bits(key, (uint64_t)i); i < elements; i++, noise >>= 8)
        out[i] = (unsigned char)(mean[i] + (noise & 127));
}

static lk_status check_config(lk_context *context, const lk_dataset_synthetic_config *config)
{
    if (config->classes < 1 || config->first < 0)
        return lk__fail(context, LK_EINVAL,
                        "synthetic data with %d classes and first sample %lld is invalid: expected at least 1 class, "
                        "and a first sample of at least 0",
                        config->classes, (long long)config->first);
    if (config->rank < 1)
        return lk__fail(context, LK_EINVAL, "synthetic data of rank %d is invalid: samples must have at least 1 axis",
                        config->rank);
    return LK_OK;
}

static void fill_samples(lk_dataset *d, const lk_dataset_synthetic_config *config, const unsigned char *means,
                         unsigned char *samples, int32_t *numbers)
{
    const lk_field *input = &d->fields[0];
    int64_t         elements = lk_field_elements(input);
    size_t          stride = d->strides[0];
    lk__random      labels = lk__random_make(config->seed, LK__FOR_SYNTHETIC, LABELS);
    lk__random      noise = lk__random_make(config->seed, LK__FOR_SYNTHETIC, NOISE);
    for (int64_t i = 0; i < d->count; i++) {
        uint64_t       number = (uint64_t)(config->first + i), key = key_of(&noise, number);
        uint32_t       index = 0;
        size_t         label = (size_t)lk__random_below(&labels, number, &index, (uint64_t)config->classes);
        unsigned char *out = samples + (size_t)i * stride;
        numbers[i] = (int32_t)label;
        if (input->dtype == LK_U8)
            fill_bytes(elements, key, means + label * stride, out);
        else
            fill_floats(elements, key, (const float *)(means + label * stride), (float *)out);
    }
}

/* The samples of d, which has none yet; mean_bytes: of the means of all classes. */
static lk_status make_samples(lk_dataset *d, const lk_dataset_synthetic_config *config, size_t mean_bytes)
{
    unsigned char *samples = lk__dataset_column(d, 0);
    int32_t       *numbers = lk__dataset_column(d, 1);
    unsigned char *means = lk__alloc(d->context, LK_MEMORY_DATA, mean_bytes);
    bool           allocated = samples && numbers && means;
    if (allocated) {
        make_means(&d->fields[0], config->classes, config->seed, means);
        fill_samples(d, config, means, samples, numbers);
    }
    lk__free(d->context, LK_MEMORY_DATA, means, mean_bytes);
    return allocated ? LK_OK : LK_ENOMEM;
}

lk_status lk__synthetic_make(lk_context *context, const lk_dataset_synthetic_config *given, bool probe,
                             lk_dataset **dataset)
{
    lk_dataset_synthetic_config        read = LK_DATASET_SYNTHETIC_CONFIG_INIT;
    const lk_dataset_synthetic_config *config = &read;
    lk_dataset                        *d = NULL;
    size_t                             mean_bytes = 0;
    *dataset = NULL;
    lk_status status = LK__CONFIG_READ(context, lk_dataset_synthetic_config, given, &read);
    if (status >= 0) status = check_config(context, config);
    if (status < 0) return status;
    status = lk__dataset_make_labelled(context,
                                       &(lk__dataset_labelled){.name = "synthetic",
                                                               .count = config->count,
                                                               .rank = config->rank,
                                                               .dims = config->dims,
                                                               .dtype = config->dtype,
                                                               .classes = config->classes},
                                       &d);
    if (status < 0) return status;
    if ((config->dtype != LK_U8 && config->dtype != LK_F32) ||
        __builtin_mul_overflow(d->strides[0], (size_t)config->classes, &mean_bytes))
        status = lk__fail(
            context, LK_EINVAL,
            "synthetic data with %d classes of %lld values of type %s is too large, or the type is neither u8 nor f32",
            config->classes, (long long)lk_field_elements(&d->fields[0]), lk_dtype_name(config->dtype));
    if (status >= 0 && !probe) status = make_samples(d, config, mean_bytes);
    if (status < 0)
        lk_dataset_free(d);
    else
        *dataset = d;
    return status;
}

lk_status lk_dataset_synthetic(lk_context *context, const lk_dataset_synthetic_config *config, lk_dataset **dataset)
{
    return lk__synthetic_make(context, config, false, dataset);
}
