/* record.c - writes and reads the record of a run. It is written once, when the trainer is created; saves copy it. */
#include "train/record.h"

#include "train/json_write.h"
#include "train/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- writing ---- */

static void write_options(lk__json_writer *w, const lk_trainer_config *config)
{
    lk__json_put(w, "\"options\":{");
    for (int i = 0; i < config->record_count; i++) {
        if (i) lk__json_put(w, ",");
        lk__json_put_string(w, config->record[i].name);
        lk__json_put(w, ":");
        lk__json_put_string(w, config->record[i].value);
    }
    lk__json_put(w, "}");
}

static void write_names(lk__json_writer *w, const char *key, const char *const *names, int64_t count)
{
    lk__json_put(w, ",\"%s\":[", key);
    for (int64_t i = 0; i < count; i++) {
        if (i) lk__json_put(w, ",");
        lk__json_put_string(w, names[i] ? names[i] : "");
    }
    lk__json_put(w, "]");
}

static void write_field(lk__json_writer *w, const lk_field *field)
{
    lk__json_put(w, "{\"name\":");
    lk__json_put_string(w, field->name);
    lk__json_put(w, ",\"dtype\":\"%s\",\"dims\":[", lk_dtype_name(field->dtype));
    for (int i = 0; i < field->rank; i++) lk__json_put(w, "%s%lld", i ? "," : "", (long long)field->dims[i]);
    lk__json_put(w, "]");
    if (field->classes > 0) lk__json_put(w, ",\"classes\":%d", field->classes);
    if (field->classes > 0 && field->class_names) write_names(w, "class_names", field->class_names, field->classes);
    if (field->column_names && field->rank == 1) write_names(w, "column_names", field->column_names, field->dims[0]);
    if (field->column_names && field->rank == 0) {
        lk__json_put(w, ",\"column_name\":");
        lk__json_put_string(w, field->column_names[0]);
    }
    lk__json_put(w, "}");
}

static void write_numbers(lk__json_writer *w, const char *key, const double *numbers, int count)
{
    lk__json_put(w, "\"%s\":[", key);
    for (int i = 0; i < count; i++) {
        if (i) lk__json_put(w, ",");
        lk__json_put_number(w, numbers[i]);
    }
    lk__json_put(w, "]");
}

/* Field 0 as the model reads it, with the defaults of lk_transform written out. */
static void write_normalisation(lk__json_writer *w, const lk_transform *t, const lk_field *first)
{
    static const double half = 0.5;
    bool                set = t->channels > 0 && t->channels <= LK_MAX_CHANNELS;
    if (t->raw || (!set && first->dtype != LK_U8)) {
        lk__json_put(w, "\"normalisation\":null");
        return;
    }
    lk__json_put(w, "\"normalisation\":{");
    write_numbers(w, "mean", set ? t->mean : &half, set ? t->channels : 1);
    lk__json_put(w, ",");
    write_numbers(w, "std", set ? t->std : &half, set ? t->channels : 1);
    lk__json_put(w, "}");
}

size_t lk__record_write(const lk_trainer_config *config, uint64_t fingerprint, char *out, size_t size)
{
    lk__json_writer   w = {out, size, 0};
    lk__mesh_grid     mesh = lk__trainer_mesh(config);
    char              axes[LK__MESH_TEXT];
    const lk_dataset *data = config->train ? config->train : config->test;
    lk__json_put(&w, "{");
    write_options(&w, config);
    lk__json_put(&w, ",\"fields\":[");
    for (int i = 0; i < lk_dataset_fields(data); i++) {
        if (i) lk__json_put(&w, ",");
        write_field(&w, lk_dataset_field(data, i));
    }
    lk__json_put(&w, "],");
    write_normalisation(&w, &config->transform, lk_dataset_field(data, 0));
    if (config->train)
        lk__json_put(&w, ",\"data\":{\"samples\":%lld,\"fingerprint\":\"%016llx\"}",
                     (long long)lk_dataset_count(config->train), (unsigned long long)fingerprint);
    lk__json_put(&w, ",\"mesh\":\"%s\"}", lk__mesh_format(&mesh, axes));
    return w.used;
}

/* ---- reading ---- */

/* Decodes a string into the record's memory; NULL: it is none, or contains a NUL. Decoded text is never longer than its
 * JSON. */
static const char *store_string(lk__record *r, const lk__json *value)
{
    char  *out = r->strings + r->strings_used;
    size_t room = r->strings_bytes - r->strings_used, length = lk__json_string(value, out, room);
    if (length == SIZE_MAX || length >= room || strlen(out) != length) return NULL;
    r->strings_used += length + 1;
    return out;
}

static bool read_options(lk__record *r, const lk__json *object)
{
    lk__json      key, value;
    lk__json_walk walk = lk__json_begin(object);
    for (size_t i = 0; lk__json_next(&walk, &key, &value); i++) {
        r->options[i].name = store_string(r, &key);
        r->options[i].value = store_string(r, &value);
        if (!r->options[i].name || !r->options[i].value) return false;
        r->options_count = i + 1;
    }
    return true;
}

static bool read_dims(const lk__json *array, lk_field *field)
{
    lk__json      value;
    lk__json_walk walk = lk__json_begin(array);
    int64_t       elements = 1;
    while (lk__json_next(&walk, NULL, &value)) {
        int64_t dim;
        if (field->rank == LK_MAX_RANK || !lk__json_integer(&value, &dim) || dim < 1 || dim > INT32_MAX) return false;
        if (__builtin_mul_overflow(elements, dim, &elements)) return false;
        field->dims[field->rank++] = dim;
    }
    return array->kind == LK__JSON_ARRAY;
}

/* A list of exactly `count` names, or none. */
static bool read_names(lk__record *r, const lk__json *object, const char *key, int64_t count, const char *const **list)
{
    lk__json value, name;
    if (!lk__json_get(object, key, &value)) return true;
    if (value.kind != LK__JSON_ARRAY || lk__json_count(&value) != (size_t)count ||
        r->names_count - r->names_used < (size_t)count)
        return false;
    const char  **names = r->names + r->names_used;
    lk__json_walk walk = lk__json_begin(&value);
    for (int64_t i = 0; i < count && lk__json_next(&walk, NULL, &name); i++)
        if (!(names[i] = store_string(r, &name))) return false;
    r->names_used += (size_t)count;
    *list = names;
    return true;
}

static bool read_classes(lk__record *r, const lk__json *object, lk_field *field)
{
    lk__json value;
    int64_t  classes;
    if (!lk__json_get(object, "classes", &value)) return true;
    if (!lk__json_integer(&value, &classes) || classes < 1 || classes > INT32_MAX) return false;
    field->classes = (int)classes;
    return read_names(r, object, "class_names", classes, &field->class_names);
}

static bool read_columns(lk__record *r, const lk__json *object, lk_field *field)
{
    lk__json value;
    if (field->rank == 0 && lk__json_get(object, "column_name", &value)) {
        const char **name = r->names + r->names_used++; /* counted by count_names */
        field->column_names = name;
        return (*name = store_string(r, &value)) != NULL;
    }
    if (field->rank != 1) return !lk__json_get(object, "column_names", &value);
    return read_names(r, object, "column_names", field->dims[0], &field->column_names);
}

static bool read_fields(lk__record *r, const lk__json *array)
{
    lk__json      object, value;
    lk__json_walk walk = lk__json_begin(array);
    while (lk__json_next(&walk, NULL, &object)) {
        char type[8];
        if (r->fields_count == LK_MAX_FIELDS) return false;
        lk_field *field = &r->fields[r->fields_count++];
        if (!lk__json_get(&object, "name", &value) || !(field->name = store_string(r, &value)) ||
            !lk__json_get(&object, "dtype", &value) || lk__json_string(&value, type, sizeof type) >= sizeof type ||
            !lk_dtype_parse(type, &field->dtype) || !lk__json_get(&object, "dims", &value) ||
            !read_dims(&value, field) || !read_classes(r, &object, field) || !read_columns(r, &object, field))
            return false;
    }
    return array->kind == LK__JSON_ARRAY;
}

static int read_numbers(const lk__json *object, const char *key, double numbers[LK_MAX_CHANNELS])
{
    lk__json array, value;
    int      count = 0;
    if (!lk__json_get(object, key, &array)) return 0;
    lk__json_walk walk = lk__json_begin(&array);
    for (; lk__json_next(&walk, NULL, &value); count++)
        if (count == LK_MAX_CHANNELS || !lk__json_number(&value, &numbers[count])) return 0;
    return count;
}

static bool read_normalisation(lk__record *r, const lk__json *object)
{
    lk_transform *t = &r->transform;
    if (object->kind == LK__JSON_NULL) return true;
    t->channels = read_numbers(object, "mean", t->mean);
    if (t->channels < 1 || read_numbers(object, "std", t->std) != t->channels) return false;
    for (int i = 0; i < t->channels; i++)
        if (!(t->std[i] > 0)) return false;
    return r->normalised = true;
}

/* Older records have none of it. */
static void read_data(lk__record *r, const lk__json *object)
{
    lk__json value, data;
    char     digits[17];
    if (!lk__json_get(object, "data", &data)) return;
    if (!lk__json_get(&data, "samples", &value) || !lk__json_integer(&value, &r->samples)) r->samples = 0;
    if (lk__json_get(&data, "fingerprint", &value) && lk__json_string(&value, digits, sizeof digits) == 16)
        r->fingerprint = strtoull(digits, NULL, 16);
}

/* Older records have none. False: it is not a text. */
static bool read_mesh(lk__record *r, const lk__json *object)
{
    lk__json value;
    return !lk__json_get(object, "mesh", &value) || (r->mesh = store_string(r, &value));
}

/* Names of classes and columns of all fields, to allocate their list. */
static size_t count_names(const lk__json *fields)
{
    lk__json      object, names;
    lk__json_walk walk = lk__json_begin(fields);
    size_t        count = 0;
    while (lk__json_next(&walk, NULL, &object)) {
        if (lk__json_get(&object, "class_names", &names)) count += lk__json_count(&names);
        if (lk__json_get(&object, "column_names", &names)) count += lk__json_count(&names);
        if (lk__json_get(&object, "column_name", &names)) count++;
    }
    return count;
}

static bool allocate(lk__record *r, const lk__json *object, const lk__json *options, const lk__json *fields)
{
    size_t pairs = lk__json_count(options);
    r->strings_bytes = object->length;
    r->names_count = count_names(fields);
    r->strings = lk__alloc(r->context, LK_MEMORY_OTHER, r->strings_bytes);
    if (r->names_count) r->names = lk__alloc(r->context, LK_MEMORY_OTHER, r->names_count * sizeof *r->names);
    if (pairs) r->options = lk__alloc(r->context, LK_MEMORY_OTHER, (r->options_room = pairs) * sizeof *r->options);
    return r->strings && (r->names || !r->names_count) && (r->options || !pairs);
}

lk_status lk__record_read(lk_context *c, const char *path, const lk__json *object, lk__record *r)
{
    lk__json options, fields, normalisation;
    *r = (lk__record){.context = c, .transform = LK_TRANSFORM_INIT};
    bool good = lk__json_get(object, "options", &options) && options.kind == LK__JSON_OBJECT &&
                lk__json_get(object, "fields", &fields) && lk__json_get(object, "normalisation", &normalisation);
    if (good && !allocate(r, object, &options, &fields)) return LK_ENOMEM;
    if (good) read_data(r, object);
    if (good && read_options(r, &options) && read_fields(r, &fields) && read_normalisation(r, &normalisation) &&
        read_mesh(r, object))
        return LK_OK;
    return lk__fail(c, LK_EFORMAT, "%s: this version of Lockstep cannot read its record of the run", path);
}

void lk__record_free(lk__record *r)
{
    if (!r->context) return;
    lk__free(r->context, LK_MEMORY_OTHER, r->strings, r->strings_bytes);
    lk__free(r->context, LK_MEMORY_OTHER, r->names, r->names_count * sizeof *r->names);
    lk__free(r->context, LK_MEMORY_OTHER, r->options, r->options_room * sizeof *r->options);
    *r = (lk__record){0};
}
