/* fields.c - maps the arrays of a file to the fields of a data set. Names, types and shapes decide which array is which
 * field, by the rules in docs/data.md; a file for which they do not decide is refused. */
#include "data/array/array.h"

#include "data/labels.h"
#include "data/subset.h"

#include <string.h>
#include <strings.h>

static const struct {
    const char    *name, *numpy;
    size_t         size;
    lk__dtype_kind kind;
} types[LK__ARRAY_TYPE_COUNT] = {
#define TYPE_ROW(id, name, bytes, kind, sums, memory, number, load, store, safetensors, order, numpy, text) \
    {text, numpy, bytes, LK__DTYPE_##kind},
    LK__ARRAY_TYPES(TYPE_ROW)
#undef TYPE_ROW
};

const char *lk__array_type_name(lk__array_type type) { return types[type].name; }
const char *lk__array_type_numpy(lk__array_type type) { return types[type].numpy; }
size_t      lk__array_type_size(lk__array_type type) { return types[type].size; }
bool        lk__array_type_is_float(lk__array_type type) { return types[type].kind != LK__DTYPE_INTEGER; }

const char *lk__array_show(const lk__array *a, char out[LK__ARRAY_SHOWN])
{
    if (a->alone)
        snprintf(out, LK__ARRAY_SHOWN, "%s", a->file);
    else
        snprintf(out, LK__ARRAY_SHOWN, "%s: array '%s'", a->file, a->name);
    return out;
}

lk_status lk__array_measure(lk_context *context, lk__array *a)
{
    char     label[LK__ARRAY_SHOWN];
    uint64_t size = types[a->type].size;
    if (a->rank < 1)
        return lk__fail(context, LK_EFORMAT,
                        "%s is a single number: expected an array with the samples along its first axis",
                        lk__array_show(a, label));
    for (int i = 0; i < a->rank; i++) {
        if (a->dims[i] < 1)
            return lk__fail(context, LK_EFORMAT, "%s has no elements: axis %d has length %lld",
                            lk__array_show(a, label), i, (long long)a->dims[i]);
        if (__builtin_mul_overflow(size, (uint64_t)a->dims[i], &size) || size > INT64_MAX / 16)
            return lk__fail(context, LK_EFORMAT, "%s is too large to address", lk__array_show(a, label));
    }
    a->size = (size_t)size;
    return LK_OK;
}

/* ---- Which array is what. ---- */

typedef enum part { PART_ALL, PART_TRAIN, PART_TEST, PART_VALIDATION } part;

/* x_train, train_x, x_test, …: the part that an array belongs to, and its name without it. */
static part split_name(const char *name, char base[LK__ARRAY_NAME])
{
    static const struct {
        const char *word;
        part        part;
    } words[] = {{"train", PART_TRAIN}, {"test", PART_TEST}, {"val", PART_VALIDATION}, {"valid", PART_VALIDATION}};
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t n = strlen(words[i].word);
        if (length <= n + 1) continue;
        if (strncasecmp(name, words[i].word, n) == 0 && name[n] == '_') {
            snprintf(base, LK__ARRAY_NAME, "%s", name + n + 1);
            return words[i].part;
        }
        if (name[length - n - 1] == '_' && strcasecmp(name + length - n, words[i].word) == 0) {
            snprintf(base, LK__ARRAY_NAME, "%.*s", (int)(length - n - 1), name);
            return words[i].part;
        }
    }
    snprintf(base, LK__ARRAY_NAME, "%s", name);
    return PART_ALL;
}

static bool is_among(const char *name, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcasecmp(name, names[i]) == 0) return true;
    return false;
}

static bool is_input_name(const char *name)
{
    static const char *const names[] = {"x", "features", "image", "images"};
    return is_among(name, names, sizeof names / sizeof *names);
}

static bool is_label_name(const char *name)
{
    static const char *const names[] = {"y", "label", "labels", "target", "targets"};
    return is_among(name, names, sizeof names / sizeof *names);
}

typedef enum role { ROLE_OTHER, ROLE_INPUT, ROLE_LABEL } role;

/* An array on its way to a field. */
typedef struct entry {
    const lk__array *array;
    char             name[LK__ARRAY_NAME];
    role             role;
    lk_field         field;
    bool             channels_last;
} entry;

typedef struct entries {
    entry list[LK_MAX_FIELDS];
    int   count;
} entries;

/* The arrays of one part of the file, or of all of it. LK_END: the file has no test set of its own, and needs a
 * hold-out. */
static lk_status select_part(lk_context *context, const lk__data_request *request, const lk__array_list *file,
                             entries *out, bool *own_test)
{
    const lk__array *arrays = file->arrays;
    int              count = file->count;
    lk_split         split = request->split;
    char             base[LK__ARRAY_NAME];
    const lk__array *by_part[4] = {0};
    for (int i = 0; i < count; i++) by_part[split_name(arrays[i].name, base)] = &arrays[i];
    bool parted = by_part[PART_TRAIN] || by_part[PART_TEST];
    *own_test = by_part[PART_TEST] != NULL;
    if (parted && by_part[PART_ALL])
        return lk__fail(context, LK_EFORMAT,
                        "%s has separate arrays for training and test, such as '%s', but '%s' belongs to neither",
                        arrays->file, (by_part[PART_TRAIN] ? by_part[PART_TRAIN] : by_part[PART_TEST])->name,
                        by_part[PART_ALL]->name);
    if (parted && !by_part[PART_TRAIN] && split != LK_SPLIT_TEST)
        return lk__fail(context, LK_EFORMAT, "%s has '%s', but no array for training, such as 'x_train'", arrays->file,
                        by_part[PART_TEST]->name);
    if (*own_test && request->options->holdout > 0)
        return lk__fail(context, LK_EINVAL, "%s has its own test set ('%s'): do not hold out samples", arrays->file,
                        by_part[PART_TEST]->name);
    part wanted = !parted ? PART_ALL : split == LK_SPLIT_TEST && *own_test ? PART_TEST : PART_TRAIN;
    for (int i = 0; i < count; i++) {
        entry e = {.array = &arrays[i]};
        part  p = split_name(arrays[i].name, e.name);
        if (parted ? p != wanted : false) continue;
        if (!parted) snprintf(e.name, sizeof e.name, "%s", arrays[i].name); /* only 'val_…': names like any other */
        if (out->count == LK_MAX_FIELDS)
            return lk__fail(context, LK_EFORMAT, "%s has more than %d arrays, the maximum number of fields of a sample",
                            arrays->file, LK_MAX_FIELDS);
        out->list[out->count++] = e;
    }
    return LK_OK;
}

/* The one entry with that role by its name; the label's name may be given, and the label may be missing if it is
 * `optional`. */
static lk_status assign_roles(lk_context *context, const char *label, bool optional, entries *all)
{
    const entry *found[3] = {0};
    bool         exact = false; /* names are compared without case, unless one is exactly the given one */
    for (int i = 0; label && i < all->count; i++) exact |= strcmp(all->list[i].name, label) == 0;
    for (int i = 0; i < all->count; i++) {
        entry *e = &all->list[i];
        bool   given = label && (exact ? strcmp : strcasecmp)(e->name, label) == 0;
        if (label ? *label && given : is_label_name(e->name))
            e->role = ROLE_LABEL;
        else if (is_input_name(e->name))
            e->role = ROLE_INPUT;
        if (e->role == ROLE_OTHER) continue;
        if (found[e->role])
            return lk__fail(context, LK_EFORMAT, "%s has two arrays that could be the %s: '%s' and '%s'; rename one",
                            e->array->file, e->role == ROLE_LABEL ? "label" : "input", found[e->role]->array->name,
                            e->array->name);
        found[e->role] = e;
    }
    if (label && *label && !found[ROLE_LABEL] && !optional)
        return lk__fail(context, LK_EINVAL, "%s has no array '%s' for the label", all->list[0].array->file, label);
    if (!found[ROLE_INPUT]) /* the first that is no label, with its own name */
        for (int i = 0; i < all->count && !found[ROLE_INPUT]; i++)
            if (all->list[i].role == ROLE_OTHER) {
                all->list[i].role = ROLE_INPUT;
                found[ROLE_INPUT] = &all->list[i];
            }
    if (!found[ROLE_INPUT])
        return lk__fail(context, LK_EFORMAT,
                        "%s has no array other than the label '%s': expected an input, such as 'x'",
                        all->list[0].array->file, found[ROLE_LABEL]->array->name);
    return LK_OK;
}

/* Input first, then the label, then the rest in the order of the file. */
static void sort_entries(entries *all)
{
    entries sorted = {0};
    role    order[] = {ROLE_INPUT, ROLE_LABEL, ROLE_OTHER};
    for (int r = 0; r < 3; r++)
        for (int i = 0; i < all->count; i++)
            if (all->list[i].role == order[r]) sorted.list[sorted.count++] = all->list[i];
    *all = sorted;
}

/* ---- Fields. ---- */

/* The type that an array has in a data set, unless it is a label. */
static lk_dtype field_type(lk__array_type type)
{
    switch (type) {
    case LK__ARRAY_U8: return LK_U8;
    case LK__ARRAY_I8:
    case LK__ARRAY_U16:
    case LK__ARRAY_I16:
    case LK__ARRAY_I32: return LK_I32;
    case LK__ARRAY_U32:
    case LK__ARRAY_I64: return LK_I64;
    default: return LK_F32;
    }
}

static void set_sample_dims(lk_field *f, const lk__array *a)
{
    f->rank = a->rank - 1;
    memcpy(f->dims, a->dims + 1, (size_t)f->rank * sizeof *f->dims);
}

static bool is_channels(int64_t n) { return n == 1 || n == 3; }

/* (N, H, W) and (N, C, H, W) or (N, H, W, C) with 1 or 3 channels, of bytes, are images. */
static lk_status make_image(lk_context *context, entry *e, bool *image)
{
    const lk__array *a = e->array;
    lk_field        *f = &e->field;
    char             label[LK__ARRAY_SHOWN];
    *image = a->type == LK__ARRAY_U8 && (a->rank == 3 || a->rank == 4);
    if (!*image) return LK_OK;
    if (a->rank == 3) {
        f->rank = 3;
        f->dims[0] = 1, f->dims[1] = a->dims[1], f->dims[2] = a->dims[2];
        return LK_OK;
    }
    bool first = is_channels(a->dims[1]), last = is_channels(a->dims[3]);
    if (first == last)
        return lk__fail(context, LK_EFORMAT,
                        "%s is uint8 (%lld, %lld, %lld, %lld): %s; images must be (N, C, H, W) or (N, H, W, C) with 1 "
                        "or 3 channels; an array of float32 is used as is: np.float32(x) / 255",
                        lk__array_show(a, label), (long long)a->dims[0], (long long)a->dims[1], (long long)a->dims[2],
                        (long long)a->dims[3],
                        first ? "its channels may be along the second or the last axis"
                              : "neither its second nor its last axis has length 1 or 3");
    e->channels_last = last && a->dims[3] > 1;
    f->rank = 3;
    f->dims[0] = a->dims[last ? 3 : 1], f->dims[1] = a->dims[last ? 1 : 2], f->dims[2] = a->dims[last ? 2 : 3];
    return LK_OK;
}

/* An array for a field that the model was trained on: integers become f32 where it was that; nothing else is converted,
 * so that no value means something else. */
static lk_status expect_type(lk_context *context, entry *e, const lk_field *expected)
{
    char     label[LK__ARRAY_SHOWN];
    lk_dtype own = e->field.dtype, type = expected->dtype;
    bool     whole = own == LK_U8 || own == LK_I32 || own == LK_I64;
    e->field.dtype = type;
    if (own == type || (type == LK_F32 && whole) || (type == LK_I64 && whole)) return LK_OK;
    if (type == LK_I32 && whole) return lk__array_check_i32(context, e->array);
    return lk__fail(context, LK_EMISMATCH, "%s is %s, but the model was trained on %s: %s",
                    lk__array_show(e->array, label), lk__array_type_name(e->array->type), lk_dtype_name(type),
                    type == LK_U8 ? "np.uint8 converts values from 0 to 255" : "np.int32 converts whole numbers");
}

/* `expected`: of the samples of training; NULL: not known. */
static lk_status make_input(lk_context *context, entry *e, const lk_field *expected)
{
    bool      image = false;
    lk_status status = LK_OK;
    e->field = (lk_field){.name = e->name, .dtype = field_type(e->array->type)};
    set_sample_dims(&e->field, e->array);
    if (e->field.rank == 0) e->field.rank = 1, e->field.dims[0] = 1; /* (N): one feature */
    if (expected) status = expect_type(context, e, expected);
    if (status == LK_OK && (!expected || expected->dtype == LK_U8)) status = make_image(context, e, &image);
    if (status < 0) return status;
    if (is_input_name(e->name))
        snprintf(e->name, sizeof e->name, "%s", expected ? expected->name : image ? "image" : "features");
    return LK_OK;
}

/* A label by the classes of training. */
static lk_status make_known_label(lk_context *context, entry *e, lk__labels *known)
{
    const lk__array *a = e->array;
    char             label[LK__ARRAY_SHOWN];
    snprintf(e->name, sizeof e->name, "label");
    e->field = (lk_field){.name = e->name, .dtype = LK_I32};
    set_sample_dims(&e->field, a);
    if (a->rank == 1 || (a->rank == 2 && a->dims[1] == 1)) e->field.rank = 0; /* (N, 1) is (N) */
    if (e->field.rank != known->field->rank)
        return lk__fail(context, LK_EMISMATCH,
                        "%s has labels with %d axes, but the model was trained on labels with %d",
                        lk__array_show(a, label), e->field.rank, known->field->rank);
    e->field.classes = known->field->classes;
    e->field.class_names = known->field->class_names;
    return lk__array_check_classes(context, a, known);
}

/* `test`: of a test set of its own, which need not have all classes. */
static lk_status make_label(lk_context *context, entry *e, bool regression, bool test)
{
    const lk__array *a = e->array;
    lk__array_labels labels;
    char             label[LK__ARRAY_SHOWN];
    lk_status        status = lk__array_survey_labels(context, a, regression, &labels);
    if (status < 0) return status;
    bool single = a->rank == 1 || (a->rank == 2 && a->dims[1] == 1); /* (N, 1) is (N) */
    bool target = regression || !labels.whole || (lk__array_type_is_float(a->type) && !single);
    snprintf(e->name, sizeof e->name, "%s", target ? "target" : "label");
    e->field = (lk_field){.name = e->name, .dtype = target ? LK_F32 : LK_I32};
    set_sample_dims(&e->field, a);
    if (single) e->field.rank = 0;
    if (target) return LK_OK;
    if (labels.largest >= INT32_MAX)
        return lk__fail(context, LK_EFORMAT, "%s has the label %.0f: class numbers must be below %d",
                        lk__array_show(a, label), labels.largest, INT32_MAX);
    if (labels.largest == 0 && !test)
        return lk__fail(context, LK_EFORMAT, "%s has only the label 0: expected at least two classes",
                        lk__array_show(a, label));
    e->field.classes = (int)labels.largest + 1;
    return LK_OK;
}

static lk_status make_other(lk_context *context, entry *e, const lk_open_options *options)
{
    const lk_field *expected = lk__expected_field(options, e->name);
    e->field = (lk_field){.name = e->name, .dtype = field_type(e->array->type)};
    set_sample_dims(&e->field, e->array);
    return expected ? expect_type(context, e, expected) : LK_OK;
}

static lk_status make_fields(lk_context *context, entries *all, const lk_open_options *options, bool test,
                             lk__labels *known)
{
    char first[LK__ARRAY_SHOWN], second[LK__ARRAY_SHOWN];
    bool regression = options->regression || lk__expected_field(options, "target");
    for (int i = 0; i < all->count; i++) {
        entry           *e = &all->list[i];
        const lk__array *a = e->array, *input = all->list[0].array;
        lk_status        status = LK_OK;
        if (a->dims[0] != input->dims[0])
            return lk__fail(context, LK_EFORMAT, "%s has %lld rows, but %s has %lld", lk__array_show(input, first),
                            (long long)input->dims[0], lk__array_show(a, second), (long long)a->dims[0]);
        if (e->role == ROLE_INPUT)
            status = make_input(context, e, options->expected);
        else if (e->role == ROLE_LABEL && known->field)
            status = make_known_label(context, e, known);
        else if (e->role == ROLE_LABEL)
            status = make_label(context, e, regression, test);
        else
            status = make_other(context, e, options);
        if (status < 0) return status;
    }
    return LK_OK;
}

/* ---- Columns. ---- */

static bool is_stored_as(lk__array_type type, lk_dtype dtype)
{
    return (type == LK__ARRAY_U8 && dtype == LK_U8) || (type == LK__ARRAY_I32 && dtype == LK_I32) ||
           (type == LK__ARRAY_I64 && dtype == LK_I64) || (type == LK__ARRAY_F32 && dtype == LK_F32);
}

/* In place where the file has the field's type, else converted. */
static lk_status fill_column(lk_dataset *d, int i, const entry *e)
{
    const lk__array *a = e->array;
    size_t           alignment = (uintptr_t)a->data % lk_dtype_size(e->field.dtype);
    lk_status        status = LK_OK;
    if (is_stored_as(a->type, e->field.dtype) && !a->deflated && !e->channels_last && alignment == 0) {
        d->columns[i] = a->data;
    } else {
        void *column = lk__dataset_column(d, i);
        if (!column) return LK_ENOMEM;
        status = e->channels_last ? lk__array_read_channels_first(d->context, a, column)
                                  : lk__array_read(d->context, a, e->field.dtype, column);
    }
    if (status == LK_OK && e->field.dtype == LK_F32)
        status = lk__array_check_finite(d->context, a, (const float *)d->columns[i]);
    return status;
}

static void release_maps(lk_dataset *d)
{
    lk__map *maps = d->state;
    lk__map_close(&maps[0]);
    lk__map_close(&maps[1]);
    lk__free(d->context, LK_MEMORY_OTHER, maps, 2 * sizeof *maps);
}

/* The data set owns the mappings that its columns point into. */
static lk_status keep_maps(lk_dataset *d, lk__map maps[2])
{
    lk__map *kept = lk__alloc(d->context, LK_MEMORY_OTHER, 2 * sizeof *kept);
    if (!kept) return LK_ENOMEM;
    memcpy(kept, maps, 2 * sizeof *kept);
    maps[0] = maps[1] = (lk__map){0};
    d->state = kept;
    d->release = release_maps;
    return LK_OK;
}

lk_status lk__array_dataset(lk_context *context, const lk__data_request *request, lk__array_list *list,
                            lk_dataset **dataset)
{
    const lk_open_options *options = request->options;
    lk_split               split = request->split;
    entries                all = {0};
    lk_field               fields[LK_MAX_FIELDS];
    lk_dataset            *d = NULL;
    lk__labels             known = {.context = context};
    bool                   probe = request->probe, own_test = false;
    *dataset = NULL;
    lk_status status = select_part(context, request, list, &all, &own_test);
    if (status == LK_OK && split == LK_SPLIT_TEST && !own_test && options->holdout == 0) status = LK_END;
    if (status != LK_OK || (status = assign_roles(context, options->label, options->label_optional, &all)) < 0)
        goto done;
    sort_entries(&all);
    const lk_field *label = lk__expected_field(options, "label");
    bool            classes = label && label->classes > 0;
    if ((status = lk__labels_begin(context, classes ? label : NULL, options->skip_unknown, &known)) < 0 ||
        (status = make_fields(context, &all, options, split == LK_SPLIT_TEST && own_test, &known)) < 0)
        goto done;
    for (int i = 0; i < all.count; i++) fields[i] = all.list[i].field;
    if ((status = lk__dataset_make(
             context, &(lk__dataset_about){list->kind, all.list[0].array->dims[0], fields, all.count}, &d)) < 0)
        goto done;
    for (int i = 0; !probe && i < all.count; i++)
        if ((status = fill_column(d, i, &all.list[i])) < 0) goto done;
    if (!probe && (status = keep_maps(d, list->maps)) < 0) goto done;
    if ((status = lk__labels_drop(&known, list->arrays->file, probe, d)) < 0) goto done;
    if (!own_test && (status = lk__dataset_hold_out(d, split, options->holdout, NULL)) < 0) goto done;
    *dataset = d;
    d = NULL;
done:
    lk_dataset_free(d);
    lk__labels_free(&known);
    for (int i = 0; i < 2; i++) lk__map_close(&list->maps[i]);
    return status;
}
