/* dataset.c - what all data sets share, and data sets of the user: arrays in memory and callbacks. */
#include "data/dataset.h"

#include <stdio.h>
#include <string.h>

lk_status lk__dataset_make(lk_context *context, const char *name, int64_t count, int rank, const int64_t *dims,
                           lk_dtype dtype, int classes, lk_dataset **dataset)
{
    *dataset = NULL;
    if (count < 1)
        return lk__fail(context, LK_EINVAL, "a data set (%s) of %lld samples is invalid: at least 1 is needed", name,
                        (long long)count);
    if (rank < 1 || rank >= LK_MAX_RANK) /* a batch has one axis more */
        return lk__fail(context, LK_EINVAL, "a data set (%s) of rank %d is invalid: samples have 1 to %d axes", name,
                        rank, LK_MAX_RANK - 1);
    if (dtype != LK_U8 && dtype != LK_F32)
        return lk__fail(context, LK_EINVAL, "a data set (%s) of %s is invalid: samples are u8 or f32", name,
                        lk_dtype_name(dtype));
    if (classes < 0)
        return lk__fail(context, LK_EINVAL, "a data set (%s) of %d classes is invalid: it must be 0 or more", name,
                        classes);
    int64_t elements = 1, total;
    for (int i = 0; i < rank; i++) {
        if (dims[i] < 1)
            return lk__fail(context, LK_EINVAL, "a data set (%s) whose axis %d is %lld long is invalid: at least 1",
                            name, i, (long long)dims[i]);
        /* × 8: a batch may hold doubles */
        if (__builtin_mul_overflow(elements, dims[i], &elements) || __builtin_mul_overflow(elements, count, &total) ||
            __builtin_mul_overflow(total, (int64_t)8, &total))
            return lk__fail(context, LK_EINVAL, "the data set (%s) is too large to address", name);
    }
    lk_dataset *d = lk__alloc(context, LK_MEMORY_OTHER, sizeof *d);
    if (!d) return LK_ENOMEM;
    *d = (lk_dataset){.context = context,
                      .name = name,
                      .count = count,
                      .rank = rank,
                      .elements = elements,
                      .dtype = dtype,
                      .classes = classes,
                      .stride = (size_t)elements * lk_dtype_size(dtype)};
    memcpy(d->dims, dims, (size_t)rank * sizeof *dims);
    *dataset = d;
    return LK_OK;
}

lk_status lk__dataset_own(lk_dataset *d, size_t feature_bytes)
{
    d->owned_feature_bytes = feature_bytes;
    d->owned_label_bytes = (size_t)d->count * sizeof *d->owned_labels;
    d->owned_features = lk__alloc(d->context, LK_MEMORY_DATA, d->owned_feature_bytes);
    d->owned_labels = lk__alloc(d->context, LK_MEMORY_DATA, d->owned_label_bytes);
    d->features = d->owned_features;
    d->labels = d->owned_labels;
    return d->owned_features && d->owned_labels ? LK_OK : LK_ENOMEM;
}

size_t lk__dataset_sample_bytes(const lk_dataset *d) { return (size_t)d->elements * lk_dtype_size(d->dtype); }

void lk_dataset_free(lk_dataset *d)
{
    if (!d) return;
    lk__free(d->context, LK_MEMORY_DATA, d->owned_features, d->owned_feature_bytes);
    lk__free(d->context, LK_MEMORY_DATA, d->owned_labels, d->owned_label_bytes);
    lk__free(d->context, LK_MEMORY_OTHER, d, sizeof *d);
}

lk_status lk_dataset_from_arrays(lk_context *context, const lk_dataset_arrays_config *config, lk_dataset **dataset)
{
    *dataset = NULL;
    if (!config || config->size != sizeof *config)
        return lk__fail(context, LK_EINVAL,
                        "a data set from arrays: initialise its config with LK_DATASET_ARRAYS_CONFIG_INIT");
    if (!config->features || !config->labels)
        return lk__fail(context, LK_EINVAL, "a data set from arrays needs both features and labels");
    lk_dataset *d = NULL;
    lk_status   status = lk__dataset_make(context, "arrays", config->count, config->rank, config->dims, config->dtype,
                                          config->classes, &d);
    if (status < 0) return status;
    for (int64_t i = 0; config->classes && i < config->count; i++) {
        if (config->labels[i] >= 0 && config->labels[i] < config->classes) continue;
        status = lk__fail(context, LK_EINVAL, "sample %lld has label %d: labels of %d classes are 0 to %d",
                          (long long)i, config->labels[i], config->classes, config->classes - 1);
        goto fail;
    }
    d->features = config->features;
    d->labels = config->labels;
    if (config->copy) {
        if ((status = lk__dataset_own(d, (size_t)d->count * d->stride)) < 0) goto fail;
        memcpy(d->owned_features, config->features, d->owned_feature_bytes);
        memcpy(d->owned_labels, config->labels, d->owned_label_bytes);
    }
    *dataset = d;
    return LK_OK;
fail:
    lk_dataset_free(d);
    return status;
}

lk_status lk_dataset_from_callbacks(lk_context *context, const lk_dataset_callbacks_config *config, lk_dataset **dataset)
{
    *dataset = NULL;
    if (!config || config->size != sizeof *config)
        return lk__fail(context, LK_EINVAL,
                        "a data set from callbacks: initialise its config with LK_DATASET_CALLBACKS_CONFIG_INIT");
    if (!config->get) return lk__fail(context, LK_EINVAL, "a data set from callbacks needs a get function");
    lk_status status = lk__dataset_make(context, "callbacks", config->count, config->rank, config->dims, LK_F32,
                                        config->classes, dataset);
    if (status < 0) return status;
    (*dataset)->get = config->get;
    (*dataset)->user = config->user;
    return LK_OK;
}

lk_status lk__dataset_read(const lk_dataset *d, int64_t index, float *scratch, const void **features, int32_t *label,
                           char message[LK__DATASET_MESSAGE])
{
    if (d->get) {
        *label = 0;
        lk_status status = d->get(d->user, index, scratch, label);
        if (status != LK_OK) {
            snprintf(message, LK__DATASET_MESSAGE, "sample %lld of %lld: the data set's callback returned %s (%s)",
                     (long long)index, (long long)d->count, lk_status_name(status), lk_status_text(status));
            return status < 0 ? status : LK_EINVAL;
        }
        *features = scratch;
    } else if (!d->features) {
        snprintf(message, LK__DATASET_MESSAGE, "the data set was probed, not opened: its samples cannot be read");
        return LK_EINVAL;
    } else {
        *features = d->features + (size_t)index * d->stride;
        *label = d->labels[index];
    }
    /* Also for arrays: borrowed ones may have changed since they were checked. */
    if (d->classes && (*label < 0 || *label >= d->classes)) {
        snprintf(message, LK__DATASET_MESSAGE, "sample %lld of %lld has label %d: labels of %d classes are 0 to %d",
                 (long long)index, (long long)d->count, *label, d->classes, d->classes - 1);
        return LK_EINVAL;
    }
    return LK_OK;
}

lk_status lk_dataset_get(const lk_dataset *d, int64_t index, void *features, int32_t *label)
{
    char        message[LK__DATASET_MESSAGE];
    const void *stored = NULL;
    if (index < 0 || index >= d->count)
        return lk__fail(d->context, LK_EINVAL, "sample %lld is out of range: the data set has %lld", (long long)index,
                        (long long)d->count);
    lk_status status = lk__dataset_read(d, index, features, &stored, label, message);
    if (status < 0) return lk__fail(d->context, status, "%s", message);
    if (stored != features) memcpy(features, stored, lk__dataset_sample_bytes(d));
    return LK_OK;
}

const char    *lk_dataset_name(const lk_dataset *d) { return d->name; }
int64_t        lk_dataset_count(const lk_dataset *d) { return d->count; }
int            lk_dataset_rank(const lk_dataset *d) { return d->rank; }
const int64_t *lk_dataset_dims(const lk_dataset *d) { return d->dims; }
int64_t        lk_dataset_elements(const lk_dataset *d) { return d->elements; }
lk_dtype       lk_dataset_dtype(const lk_dataset *d) { return d->dtype; }
int            lk_dataset_classes(const lk_dataset *d) { return d->classes; }

const char *lk_dataset_class_name(const lk_dataset *d, int label)
{
    return d->class_names && label >= 0 && label < d->classes ? d->class_names[label] : NULL;
}
