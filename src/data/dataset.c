/* dataset.c - functions for all data sets, and the user's data sets: arrays in memory and callbacks. */
#include "data/dataset.h"
#include "base/config.h"

#include <stdio.h>
#include <string.h>

int64_t lk_field_elements(const lk_field *field)
{
    int64_t elements = 1;
    for (int i = 0; i < field->rank; i++) elements *= field->dims[i];
    return elements;
}

size_t lk_field_bytes(const lk_field *field) { return (size_t)lk_field_elements(field) * lk_dtype_size(field->dtype); }

const char *lk_field_class_name(const lk_field *field, int64_t label)
{
    return field->class_names && label >= 0 && label < field->classes ? field->class_names[label] : NULL;
}

static lk_status check_field(lk_context *context, const char *name, int64_t count, const lk_field *f)
{
    int64_t elements = 1, total;
    if (!f->name || !*f->name) return lk__fail(context, LK_EINVAL, "data set %s: a field has no name", name);
    if (f->rank < 0 || f->rank >= LK_MAX_RANK) /* a batch has one axis more */
        return lk__fail(context, LK_EINVAL, "data set %s: the field %s has rank %d; expected 0 to %d", name, f->name,
                        f->rank, LK_MAX_RANK - 1);
    if (f->dtype != LK_U8 && f->dtype != LK_F32 && f->dtype != LK_I32 && f->dtype != LK_I64)
        return lk__fail(context, LK_EINVAL, "data set %s: the field %s is %s; expected u8, i32, i64 or f32", name,
                        f->name, lk_dtype_name(f->dtype));
    if (f->classes < 0 || (f->classes && f->dtype != LK_I32))
        return lk__fail(context, LK_EINVAL,
                        "data set %s: the field %s has %d classes and type %s; the number of classes must not be "
                        "negative, and class numbers must be i32",
                        name, f->name, f->classes, lk_dtype_name(f->dtype));
    if (f->column_names && f->rank > 1)
        return lk__fail(context, LK_EINVAL,
                        "data set %s: the field %s has column names and %d axes; expected at most 1 axis", name,
                        f->name, f->rank);
    for (int i = 0; i < f->rank; i++)
        if (f->dims[i] < 1)
            return lk__fail(context, LK_EINVAL,
                            "data set %s: the field %s has an axis (%d) of length %lld; expected at least 1", name,
                            f->name, i, (long long)f->dims[i]);
    for (int i = 0; i < f->rank; i++)
        if (__builtin_mul_overflow(elements, f->dims[i], &elements)) elements = INT64_MAX;
    /* × 8: a batch may hold doubles */
    if (elements == INT64_MAX || __builtin_mul_overflow(elements, count, &total) ||
        __builtin_mul_overflow(total, (int64_t)8, &total))
        return lk__fail(context, LK_EINVAL, "data set %s is too large to address", name);
    return LK_OK;
}

static lk_status check_fields(lk_context *context, const char *name, int64_t count, const lk_field *fields, int n)
{
    lk_status status = LK_OK;
    if (count < 1)
        return lk__fail(context, LK_EINVAL, "data set %s has %lld samples; expected at least 1", name,
                        (long long)count);
    if (n < 1 || n > LK_MAX_FIELDS || !fields)
        return lk__fail(context, LK_EINVAL, "data set %s: a sample has %d fields; expected 1 to %d", name, n,
                        LK_MAX_FIELDS);
    for (int i = 0; i < n && status >= 0; i++) {
        status = check_field(context, name, count, &fields[i]);
        for (int k = 0; k < i && status >= 0; k++)
            if (strcmp(fields[i].name, fields[k].name) == 0)
                status = lk__fail(context, LK_EINVAL, "data set %s: two fields are named %s", name, fields[i].name);
    }
    return status;
}

static size_t list_bytes(const char *const *names, int64_t count)
{
    size_t bytes = 0;
    for (int64_t i = 0; names && i < count; i++) bytes += sizeof(char *) + (names[i] ? strlen(names[i]) + 1 : 0);
    return bytes;
}

/* Bytes of a field's copy: pointers to the names of classes and columns, then texts. */
static size_t names_bytes(const lk_field *f)
{
    return lk__round_up(strlen(f->name) + 1 + list_bytes(f->class_names, f->classes) +
                            list_bytes(f->column_names, lk__field_columns(f)),
                        sizeof(char *));
}

static const char *copy_text(char **at, const char *text)
{
    size_t      bytes = strlen(text) + 1;
    const char *copy = memcpy(*at, text, bytes);
    *at += bytes;
    return copy;
}

static const char *const *copy_list(const char **to, char **at, const char *const *names, int64_t count)
{
    for (int64_t i = 0; names && i < count; i++) to[i] = names[i] ? copy_text(at, names[i]) : NULL;
    return names ? to : NULL;
}

static void copy_names(lk_field *to, const lk_field *from, char *memory)
{
    const char **classes = (const char **)memory, **columns = classes + (from->class_names ? from->classes : 0);
    char        *at = (char *)(columns + (from->column_names ? lk__field_columns(from) : 0));
    to->name = copy_text(&at, from->name);
    to->class_names = copy_list(classes, &at, from->class_names, from->classes);
    to->column_names = copy_list(columns, &at, from->column_names, lk__field_columns(from));
}

lk_status lk__dataset_make(lk_context *context, const lk__dataset_about *about, lk_dataset **dataset)
{
    const lk_field *fields = about->fields;
    int             n = about->fields_count;
    *dataset = NULL;
    lk_status status = check_fields(context, about->name, about->count, fields, n);
    if (status < 0) return status;
    lk_dataset *d = lk__alloc(context, LK_MEMORY_OTHER, sizeof *d);
    if (!d) return LK_ENOMEM;
    *d = (lk_dataset){.context = context, .name = about->name, .count = about->count, .fields_count = n};
    for (int i = 0; i < n; i++) d->names_bytes += names_bytes(&fields[i]);
    char *at = d->names = lk__alloc(context, LK_MEMORY_OTHER, d->names_bytes);
    if (!at) {
        lk_dataset_free(d);
        return LK_ENOMEM;
    }
    for (int i = 0; i < n; i++, at += names_bytes(&fields[i - 1])) {
        d->fields[i] = fields[i];
        d->strides[i] = lk_field_bytes(&fields[i]);
        copy_names(&d->fields[i], &fields[i], at);
    }
    *dataset = d;
    return LK_OK;
}

lk_status lk__dataset_make_labelled(lk_context *context, const lk__dataset_labelled *about, lk_dataset **dataset)
{
    bool     image = about->dtype == LK_U8 && about->rank == 3;
    lk_field fields[] = {
        {.name = image ? "image" : "features", .dtype = about->dtype, .rank = about->rank},
        {.name = "label", .dtype = LK_I32, .classes = about->classes, .class_names = about->class_names},
    };
    for (int i = 0; i < about->rank && i < LK_MAX_RANK; i++) fields[0].dims[i] = about->dims[i];
    return lk__dataset_make(context, &(lk__dataset_about){about->name, about->count, fields, 2}, dataset);
}

void *lk__dataset_column(lk_dataset *d, int i)
{
    d->strides[i] = lk_field_bytes(&d->fields[i]);
    d->owned_bytes[i] = (size_t)d->count * d->strides[i];
    d->owned[i] = lk__alloc(d->context, LK_MEMORY_DATA, d->owned_bytes[i]);
    d->columns[i] = d->owned[i];
    return d->owned[i];
}

void lk_dataset_free(lk_dataset *d)
{
    if (!d) return;
    if (d->release) d->release(d);
    for (int i = 0; i < d->fields_count; i++) lk__free(d->context, LK_MEMORY_DATA, d->owned[i], d->owned_bytes[i]);
    lk__free(d->context, LK_MEMORY_DATA, d->kept, d->kept_bytes);
    lk__free(d->context, LK_MEMORY_OTHER, d->names, d->names_bytes);
    lk__free(d->context, LK_MEMORY_OTHER, d, sizeof *d);
}

lk_status lk__dataset_check(const lk_dataset *d, int64_t index, int field, const int32_t *values,
                            char message[LK__DATASET_MESSAGE])
{
    const lk_field *f = &d->fields[field];
    for (int64_t i = 0, n = lk_field_elements(f); i < n; i++) {
        if ((values[i] >= 0 && values[i] < f->classes) || (values[i] == LK_NO_LABEL && d->unlabelled)) continue;
        snprintf(message, LK__DATASET_MESSAGE, "sample %lld of %lld has %s %d: labels of %d classes are 0 to %d",
                 (long long)index, (long long)d->count, f->name, values[i], f->classes, f->classes - 1);
        return LK_EINVAL;
    }
    return LK_OK;
}

static lk_status check_arrays(lk_context *context, const lk_dataset_arrays_config *config)
{
    if (!config->fields || !config->data)
        return lk__fail(context, LK_EINVAL, "a data set from arrays needs fields and their data");
    for (int i = 0; i < config->fields_count && config->fields_count <= LK_MAX_FIELDS; i++)
        if (!config->data[i])
            return lk__fail(context, LK_EINVAL, "a data set from arrays needs data for its field %d (%s)", i,
                            config->fields[i].name ? config->fields[i].name : "without a name");
    return LK_OK;
}

static lk_status take_arrays(lk_dataset *d, const lk_dataset_arrays_config *config)
{
    char message[LK__DATASET_MESSAGE];
    for (int i = 0; i < d->fields_count; i++) {
        const int32_t *values = config->data[i];
        int64_t        each = lk_field_elements(&d->fields[i]);
        for (int64_t row = 0; d->fields[i].classes && row < d->count; row++)
            if (lk__dataset_check(d, row, i, values + row * each, message) < 0)
                return lk__fail(d->context, LK_EINVAL, "%s", message);
        d->columns[i] = config->data[i];
        if (!config->copy) continue;
        if (!lk__dataset_column(d, i)) return LK_ENOMEM;
        memcpy(d->owned[i], config->data[i], d->owned_bytes[i]);
    }
    return LK_OK;
}

lk_status lk_dataset_from_arrays(lk_context *context, const lk_dataset_arrays_config *given, lk_dataset **dataset)
{
    lk_dataset_arrays_config        read = LK_DATASET_ARRAYS_CONFIG_INIT;
    const lk_dataset_arrays_config *config = &read;
    lk_dataset                     *d = NULL;
    *dataset = NULL;
    lk_status status = LK__CONFIG_READ(context, lk_dataset_arrays_config, given, &read);
    if (status < 0 || (status = check_arrays(context, config)) < 0 ||
        (status = lk__dataset_make(
             context, &(lk__dataset_about){"arrays", config->count, config->fields, config->fields_count}, &d)) < 0)
        return status;
    if ((status = take_arrays(d, config)) < 0) {
        lk_dataset_free(d);
        return status;
    }
    *dataset = d;
    return LK_OK;
}

typedef struct callbacks {
    lk_dataset_get_callback get;
    void                   *user;
} callbacks;

static lk_status call_get(const lk_dataset *d, int64_t index, void *const *fields, void *scratch,
                          char message[LK__DATASET_MESSAGE])
{
    const callbacks *c = d->state;
    (void)scratch;
    lk_status status = c->get(c->user, index, fields);
    if (status == LK_OK) return LK_OK;
    snprintf(message, LK__DATASET_MESSAGE, "sample %lld of %lld: the data set's callback returned %s (%s)",
             (long long)index, (long long)d->count, lk_status_name(status), lk_status_text(status));
    return status < 0 ? status : LK_EINVAL;
}

static void free_callbacks(lk_dataset *d) { lk__free(d->context, LK_MEMORY_OTHER, d->state, sizeof(callbacks)); }

lk_status lk_dataset_from_callbacks(lk_context *context, const lk_dataset_callbacks_config *given, lk_dataset **dataset)
{
    lk_dataset_callbacks_config config = LK_DATASET_CALLBACKS_CONFIG_INIT;
    lk_dataset                 *d = NULL;
    *dataset = NULL;
    lk_status status = LK__CONFIG_READ(context, lk_dataset_callbacks_config, given, &config);
    if (status < 0) return status;
    if (!config.get) return lk__fail(context, LK_EINVAL, "a data set from callbacks needs a get function");
    status = lk__dataset_make(context,
                              &(lk__dataset_about){"callbacks", config.count, config.fields, config.fields_count}, &d);
    if (status < 0) return status;
    callbacks *c = d->state = lk__alloc(context, LK_MEMORY_OTHER, sizeof *c);
    if (!c) {
        lk_dataset_free(d);
        return LK_ENOMEM;
    }
    *c = (callbacks){config.get, config.user};
    d->read = call_get;
    d->release = free_callbacks;
    *dataset = d;
    return LK_OK;
}

lk_status lk__dataset_read(const lk_dataset *d, int64_t index, lk__dataset_room room, const void **sample,
                           char message[LK__DATASET_MESSAGE])
{
    int64_t   stored = lk__dataset_stored(d, index);
    lk_status status = LK_OK;
    if (d->read)
        status = d->read(d, stored, room.fields, room.scratch, message);
    else if (!d->columns[0]) {
        snprintf(message, LK__DATASET_MESSAGE, "the data set was only probed, not opened: its samples cannot be read");
        return LK_EINVAL;
    }
    for (int i = 0; i < d->fields_count && status >= 0; i++) {
        sample[i] = d->columns[i] ? d->columns[i] + (size_t)stored * d->strides[i] : room.fields[i];
        /* Also for arrays: borrowed ones may have changed since they were checked. */
        if (d->fields[i].classes) status = lk__dataset_check(d, index, i, sample[i], message);
    }
    return status;
}

/* Memory for one sample of each field that has no column and that the caller does not want, then the reader's
 * scratch. */
static size_t room_bytes(const lk_dataset *d, void *const *fields)
{
    size_t bytes = lk__round_up(d->scratch, LK__ALIGN);
    for (int i = 0; i < d->fields_count; i++)
        if (!d->columns[i] && !fields[i]) bytes += lk__round_up(lk_field_bytes(&d->fields[i]), LK__ALIGN);
    return bytes;
}

lk_status lk_dataset_get(const lk_dataset *d, int64_t index, void *const *fields)
{
    char        message[LK__DATASET_MESSAGE];
    const void *sample[LK_MAX_FIELDS];
    void       *room[LK_MAX_FIELDS] = {0};
    size_t      bytes = room_bytes(d, fields);
    if (index < 0 || index >= d->count)
        return lk__fail(d->context, LK_EINVAL, "sample %lld is out of range: the data set has %lld samples",
                        (long long)index, (long long)d->count);
    char *memory = bytes ? lk__alloc(d->context, LK_MEMORY_OTHER, bytes) : NULL, *at = memory;
    if (bytes && !memory) return LK_ENOMEM;
    for (int i = 0; i < d->fields_count; i++) {
        room[i] = fields[i] ? fields[i] : at;
        if (!d->columns[i] && !fields[i]) at += lk__round_up(lk_field_bytes(&d->fields[i]), LK__ALIGN);
    }
    lk_status status = lk__dataset_read(d, index, (lk__dataset_room){room, at}, sample, message);
    for (int i = 0; i < d->fields_count && status >= 0; i++)
        if (fields[i] && sample[i] != fields[i]) memcpy(fields[i], sample[i], lk_field_bytes(&d->fields[i]));
    lk__free(d->context, LK_MEMORY_OTHER, memory, bytes);
    return status < 0 ? lk__fail(d->context, status, "%s", message) : LK_OK;
}

const char *lk_dataset_name(const lk_dataset *d) { return d->name; }
int64_t     lk_dataset_count(const lk_dataset *d) { return d->count; }
int         lk_dataset_fields(const lk_dataset *d) { return d->fields_count; }

const lk_field *lk_dataset_field(const lk_dataset *d, int i)
{
    return i >= 0 && i < d->fields_count ? &d->fields[i] : NULL;
}

const lk_field *lk_dataset_find(const lk_dataset *d, const char *name)
{
    for (int i = 0; i < d->fields_count; i++)
        if (strcmp(d->fields[i].name, name) == 0) return &d->fields[i];
    return NULL;
}

const char *lk_dataset_sample_name(const lk_dataset *d, int64_t index)
{
    const char *name =
        d->sample_name && index >= 0 && index < d->count ? d->sample_name(d, lk__dataset_stored(d, index)) : NULL;
    return name ? name : "";
}
