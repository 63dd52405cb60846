/* gather.c - what a device needs to make batches itself. Samples are copied in the order of the data set, without gaps,
 * whatever the files' records look like and whichever samples a subset keeps: a sample's number is its place. */
#include "data/gather.h"

#include "data/augment/augment.h"
#include "data/batch.h"

#include <limits.h>
#include <math.h>
#include <string.h>

enum { PART = 1 << 20, ALIGNED = 256 }; /* bytes that are packed at a time; of a field's first sample */

_Static_assert((int)LK__DEVICE_FIELDS == LK_MAX_FIELDS && (int)LK__DEVICE_CHANNELS == LK_MAX_CHANNELS,
               "device/batch.h");

/* ---- what it can do ---- */

/* Whether it has memory that is not the host's, and a kernel that makes rows of this type. */
static bool makes_rows(lk__device *device, lk_dtype type)
{
    static const lk__kernel_call none;
    const lk__device_backend    *backend = device->backend;
    return backend->memory.available && backend->kernels.find(device, LK__OP_sample_rows, type, &none).run;
}

/* Why it cannot compute the changes of a sample. */
static const char *changes_refused(lk__device *device, const lk_loader_config *c)
{
    const lk_transform *t = &c->transform;
    if (!makes_rows(device, c->dtype)) return "kernels run on the CPU";
    if (lk__transform_mixes(t)) return "mixup is computed by the host";
    if (lk__transform_scratch(c) > 0)
        return "random resized crops, rotations and color jitter are computed by the host";
    for (int i = 0; i < lk_dataset_fields(c->dataset); i++)
        if (lk_field_elements(lk_dataset_field(c->dataset, i)) > INT_MAX) return "a sample has too many elements";
    return NULL;
}

const char *lk__gather_refused(lk__device *device, const lk_loader_config *c)
{
    const char *why = changes_refused(device, c);
    if (why) return why;
    return c->dataset->read || c->dataset->streamed || c->dataset->text
               ? "samples of this data set are created on demand, not kept in memory"
               : NULL;
}

bool lk__gather_sends_bytes(lk__device *device, const lk_loader_config *c)
{
    return !changes_refused(device, c) && lk_dataset_field(c->dataset, 0)->dtype == LK_U8 && lk__transform_used(c);
}

lk_loader_config lk__gather_stored(const lk_loader_config *c)
{
    lk_loader_config stored = *c;
    stored.transform = (lk_transform)LK_TRANSFORM_INIT;
    stored.transform.raw = true;
    return stored;
}

/* ---- what it is told ---- */

void lk__gather_describe(const lk_loader_config *c, bool by_row, lk__device_gather *g)
{
    lk__batch_maker maker;
    lk__batch_init(&maker, c, NULL);
    *g = (lk__device_gather){.count = maker.count,
                             .element = c->dtype,
                             .samples = lk_dataset_count(c->dataset),
                             .by_row = by_row,
                             .transformed = lk__transform_used(c)};
    for (int i = 0; i < g->count; i++) {
        const lk_field *stored = lk_dataset_field(c->dataset, i);
        g->fields[i] = (lk__device_field){.name = stored->name,
                                          .in = stored->dtype,
                                          .out = maker.fields[i].dtype,
                                          .elements = lk_field_elements(stored)};
        if (by_row && i > 0) g->fields[i].in = g->fields[i].out; /* the loader's */
    }
    if (g->transformed) g->transform = maker.transform.row;
}

/* Of mean and std, by which numbers that are not bytes are normalised. */
static size_t normal_bytes(const lk_loader_config *c)
{
    int64_t channels = c->transform.channels > 1 ? c->transform.channels : 1;
    bool    used = lk__transform_used(c) && lk_dataset_field(c->dataset, 0)->dtype != LK_U8;
    return used ? (size_t)(2 * channels) * sizeof(double) : 0;
}

/* Where field i begins, or behind the last one the table or mean and std, or behind that the end. */
static size_t offset_of(const lk_loader_config *c, bool by_row, int i)
{
    size_t offset = 0;
    int    fields = lk_dataset_fields(c->dataset);
    for (int k = 0; k < i && k < fields && !by_row; k++)
        offset += lk__round_up((size_t)lk_dataset_count(c->dataset) * lk_field_bytes(lk_dataset_field(c->dataset, k)),
                               ALIGNED);
    return i > fields ? offset + lk__round_up(lk__transform_bytes(c) + normal_bytes(c), ALIGNED)
                      : offset; /* one is 0 */
}

size_t lk__gather_bytes(const lk_loader_config *c, bool by_row)
{
    return offset_of(c, by_row, lk_dataset_fields(c->dataset) + 1);
}

/* ---- copying ---- */

static const unsigned char *sample_of(const lk_dataset *d, int field, int64_t index)
{
    return d->columns[field] + (size_t)lk__dataset_stored(d, index) * d->strides[field];
}

static lk_status check_classes(const lk__gather_memory *m, const lk_dataset *d, int field)
{
    char message[LK__DATASET_MESSAGE];
    for (int64_t i = 0; d->fields[field].classes && i < d->count; i++)
        if (lk__dataset_check(d, i, field, (const int32_t *)sample_of(d, field, i), message) < 0)
            return lk__fail(m->device->context, LK_EINVAL, "%s", message);
    return LK_OK;
}

static lk_status copy_field(lk__gather_memory *m, const lk_dataset *d, int field, char *to, char *part)
{
    size_t    bytes = lk_field_bytes(&d->fields[field]);
    int64_t   most = bytes < PART ? (int64_t)(PART / bytes) : 1;
    lk_status status = check_classes(m, d, field);
    if (status >= 0 && !d->kept && d->strides[field] == bytes)
        return lk__device_write(m->device, NULL, to, d->columns[field], (size_t)d->count * bytes);
    for (int64_t i = 0, n; i < d->count && status >= 0; i += n) {
        const void *from = sample_of(d, field, i);
        n = d->count - i < most ? d->count - i : most;
        for (int64_t k = 0; k < n && bytes <= PART; k++)
            memcpy(part + (size_t)k * bytes, sample_of(d, field, i + k), bytes);
        status =
            lk__device_write(m->device, NULL, to + (size_t)i * bytes, bytes <= PART ? part : from, (size_t)n * bytes);
    }
    return status;
}

static lk_status copy_table(lk__gather_memory *m, const lk_loader_config *c, char *to)
{
    size_t             bytes = lk__transform_bytes(c);
    lk__data_transform transform;
    void              *table = bytes ? lk__alloc(m->device->context, LK_MEMORY_OTHER, bytes) : NULL;
    if (bytes == 0) return LK_OK;
    if (!table) return LK_ENOMEM;
    lk__transform_init(&transform, c, table);
    lk_status status = lk__device_write(m->device, NULL, to, table, bytes);
    lk__free(m->device->context, LK_MEMORY_OTHER, table, bytes);
    m->gather.transform.table = to;
    return status;
}

static lk_status copy_normal(lk__gather_memory *m, const lk_loader_config *c, char *to)
{
    size_t             bytes = normal_bytes(c), channels = bytes / (2 * sizeof(double));
    double             normal[2 * LK_MAX_CHANNELS];
    lk__data_transform transform;
    if (bytes == 0) return LK_OK;
    lk__transform_init(&transform, c, NULL);
    for (size_t i = 0; i < channels; i++) {
        normal[i] = transform.normalize ? transform.mean[i] : 0;
        normal[channels + i] = transform.normalize ? transform.std[i] : 1;
    }
    m->gather.transform.mean = (const double *)(const void *)to;
    m->gather.transform.std = m->gather.transform.mean + channels;
    return lk__device_write(m->device, NULL, to, normal, bytes);
}

lk_status lk__gather_create(lk__device *device, const lk_loader_config *c, bool by_row, lk__gather_memory *m)
{
    const lk_dataset *d = c->dataset;
    *m = (lk__gather_memory){.device = device, .bytes = lk__gather_bytes(c, by_row)};
    lk__gather_describe(c, by_row, &m->gather);
    if (!by_row && !d->columns[0])
        return lk__fail(device->context, LK_EINVAL,
                        "the data set was only probed, not opened: its samples cannot be read");
    lk_status status = lk__device_alloc(device, LK_MEMORY_DATA, m->bytes, &m->memory);
    char     *part = status >= 0 && !by_row ? lk__alloc(device->context, LK_MEMORY_OTHER, PART) : NULL;
    if (status >= 0 && !by_row && !part) status = LK_ENOMEM;
    for (int i = 0; i < m->gather.count && status >= 0 && !by_row; i++) {
        char *to = m->memory + offset_of(c, by_row, i);
        m->gather.fields[i].samples = to;
        status = copy_field(m, d, i, to, part);
    }
    if (status >= 0) status = copy_table(m, c, m->memory + offset_of(c, by_row, lk_dataset_fields(d)));
    if (status >= 0) status = copy_normal(m, c, m->memory + offset_of(c, by_row, lk_dataset_fields(d)));
    lk__free(device->context, LK_MEMORY_OTHER, part, PART);
    return status;
}

void lk__gather_free(lk__gather_memory *m)
{
    if (m->memory) lk__device_free(m->device, LK_MEMORY_DATA, m->memory, m->bytes);
    *m = (lk__gather_memory){.device = NULL};
}

bool lk__gather_finite(const lk_dataset *d, const int64_t *indices, int64_t count)
{
    for (int i = 0; i < d->fields_count; i++) {
        int64_t elements = lk_field_elements(&d->fields[i]);
        for (int64_t k = 0; k < count && d->fields[i].dtype == LK_F32; k++) {
            const float *sample = (const float *)sample_of(d, i, indices[k]);
            for (int64_t j = 0; j < elements; j++)
                if (!isfinite(sample[j])) return false;
        }
    }
    return true;
}
