/* describe.c - describes a checkpoint: reads its state.json, the record of its run in it, and the header of its
 * weights. */
#include "train/describe.h"

#include "train/checkpoint.h"
#include "train/file.h"
#include "train/json_write.h"
#include "train/record.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { TEXT = 256 };

struct lk_description {
    lk_context      *context;
    lk__state        state;
    lk__record       record;
    bool             recorded;
    lk__safetensors *model;
    int64_t          parameters;
    char             path[PATH_MAX];
    char             version[TEXT], host[TEXT], user[TEXT], date[TEXT]; /* "": not saved */
};

/* ---- reading ---- */

static void read_text(const lk__json *object, const char *key, char out[TEXT])
{
    lk__json value;
    if (!lk__json_get(object, key, &value) || lk__json_string(&value, out, TEXT) >= TEXT) out[0] = 0;
}

static lk_status read_state(lk_description *d)
{
    const lk__json *root = &d->state.root;
    lk__json        value;
    char            file[PATH_MAX];
    read_text(root, "lockstep", d->version);
    if (lk__json_get(root, "written", &value)) {
        read_text(&value, "host", d->host);
        read_text(&value, "user", d->user);
        read_text(&value, "date", d->date);
    }
    if (!lk__json_get(root, "parameters", &value) || !lk__json_integer(&value, &d->parameters)) d->parameters = -1;
    lk_status status = lk__checkpoint_join(d->context, file, d->path, lk__checkpoint_files[0]);
    if (status >= 0) status = lk__safetensors_open(d->context, file, &d->model);
    if (status < 0 || !lk__json_get(root, "record", &value)) return status;
    d->recorded = true;
    return lk__record_read(d->context, d->path, &value, &d->record);
}

static void release_contents(lk_description *d)
{
    lk__safetensors_close(d->model);
    lk__record_free(&d->record);
    if (d->state.text) lk__state_close(&d->state);
    d->model = NULL;
    d->record = (lk__record){0};
    d->recorded = false;
    d->state = (lk__state){0};
}

static lk_status open_step(lk_description *d, const char *file, int64_t step)
{
    lk_status status = lk__state_open(d->context, file, step, &d->state);
    if (status >= 0) status = read_state(d);
    if (status < 0) release_contents(d);
    return status == LK_ENOENT ? LK_EFORMAT : status; /* a file of it is missing, not the checkpoint */
}

/* Opens the newest step whose state and whose weights' header can be read; damaged ones are skipped: loading reports
 * them. */
static lk_status open_newest(lk_description *d, const char *directory)
{
    int64_t   steps[LK__CHECKPOINT_STEPS];
    char      name[64], file[PATH_MAX];
    lk_status status = LK_ENOENT;
    size_t    count = lk__checkpoint_list(directory, steps, LK__CHECKPOINT_STEPS);
    for (size_t i = 0; i < count && i < LK__CHECKPOINT_STEPS; i++) {
        lk__checkpoint_name(steps[i], name);
        if ((status = lk__checkpoint_join(d->context, d->path, directory, name)) < 0 ||
            (status = lk__checkpoint_join(d->context, file, d->path, lk__checkpoint_files[2])) < 0)
            return status;
        if ((status = open_step(d, file, steps[i])) >= 0 || status == LK_ENOMEM) return status;
        if (access(d->path, F_OK) != 0) return status; /* removed meanwhile: the caller starts again */
    }
    if (count > 0) return status;
    /* not a directory of steps: perhaps that of one step */
    if (snprintf(d->path, sizeof d->path, "%s", directory) >= (int)sizeof d->path) return LK_ENOENT;
    if ((status = lk__checkpoint_join(d->context, file, directory, lk__checkpoint_files[2])) < 0) return status;
    return access(file, F_OK) == 0 ? open_step(d, file, -1) : LK_ENOENT;
}

lk_status lk__describe(lk_context *c, const char *directory, lk_description **description)
{
    *description = NULL;
    lk_description *d = lk__alloc(c, LK_MEMORY_OTHER, sizeof *d);
    lk_status       status = LK_ENOMEM;
    bool            removed = d != NULL;
    /* A run that saves at the same time may remove the step that is being read: then there is a newer one. */
    for (int attempt = 0; attempt < 10 && removed; attempt++) {
        *d = (lk_description){.context = c};
        status = open_newest(d, directory);
        removed = status < 0 && d->path[0] && access(d->path, F_OK) != 0 && access(directory, F_OK) == 0;
    }
    if (status >= 0)
        *description = d;
    else
        lk__free(c, LK_MEMORY_OTHER, d, sizeof *d);
    return status;
}

lk_status lk_checkpoint_describe(lk_context *c, const char *directory, lk_description **description)
{
    lk_status status = lk__describe(c, directory, description);
    return status == LK_ENOENT ? lk__checkpoint_missing(c, directory) : status;
}

void lk_description_free(lk_description *d)
{
    if (!d) return;
    release_contents(d);
    lk__free(d->context, LK_MEMORY_OTHER, d, sizeof *d);
}

/* ---- access ---- */

const lk_progress *lk_description_progress(const lk_description *d) { return &d->state.progress; }
const char        *lk_description_path(const lk_description *d) { return d->path; }
int64_t            lk_description_parameters(const lk_description *d) { return d->parameters; }
bool               lk_description_recorded(const lk_description *d) { return d->recorded; }
int                lk_description_options(const lk_description *d) { return (int)d->record.options_count; }
int                lk_description_fields(const lk_description *d) { return d->record.fields_count; }

const char *lk_description_text(const lk_description *d, const char *what)
{
    const struct {
        const char *what, *text;
    } all[] = {{"version", d->version},
               {"dtype", d->state.dtype},
               {"isa", d->state.isa},
               {"host", d->host},
               {"user", d->user},
               {"date", d->date},
               {"mesh", d->record.mesh ? d->record.mesh : ""},
               {lk__checkpoint_files[0], d->state.sha[0]},
               {lk__checkpoint_files[1], d->state.sha[1]},
               {lk__checkpoint_files[2], d->state.sha[2]}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(what, all[i].what) == 0) return all[i].text[0] ? all[i].text : NULL;
    for (size_t i = 0; i < d->state.files_count; i++)
        if (strcmp(what, d->state.files[i].name) == 0) return d->state.files[i].sha;
    return NULL;
}

const char *lk_description_file(const lk_description *d, int index)
{
    if (index < 0 || (size_t)index >= LK__CHECKPOINT_FILES + d->state.files_count) return NULL;
    return index < LK__CHECKPOINT_FILES ? lk__checkpoint_files[index]
                                        : d->state.files[index - LK__CHECKPOINT_FILES].name;
}

lk_status lk_description_verify(const lk_description *d)
{
    void *staging = lk__alloc(d->context, LK_MEMORY_OTHER, LK__FILE_STAGING);
    if (!staging) return LK_ENOMEM;
    lk_status status = lk__checkpoint_verify(d->context, d->path, &d->state, true, staging);
    lk__free(d->context, LK_MEMORY_OTHER, staging, LK__FILE_STAGING);
    return status;
}

lk_status lk__description_algorithms(const lk_description *d, char **lines, size_t *length)
{
    return lk__state_get_algorithms(&d->state, lines, length);
}

void lk__description_data(const lk_description *d, int64_t *samples, uint64_t *fingerprint)
{
    *samples = d->record.samples;
    *fingerprint = d->record.fingerprint;
}

const lk_record *lk_description_option(const lk_description *d, int index)
{
    return index >= 0 && index < lk_description_options(d) ? &d->record.options[index] : NULL;
}

const char *lk_description_find(const lk_description *d, const char *name)
{
    for (size_t i = 0; i < d->record.options_count; i++)
        if (strcmp(d->record.options[i].name, name) == 0) return d->record.options[i].value;
    return NULL;
}

const lk_field *lk_description_field(const lk_description *d, int index)
{
    return index >= 0 && index < d->record.fields_count ? &d->record.fields[index] : NULL;
}

bool lk_description_normalisation(const lk_description *d, lk_transform *transform)
{
    if (!d->record.normalised) return false;
    transform->channels = d->record.transform.channels;
    memcpy(transform->mean, d->record.transform.mean, sizeof transform->mean);
    memcpy(transform->std, d->record.transform.std, sizeof transform->std);
    return true;
}

size_t lk_description_tensors(const lk_description *d) { return lk__safetensors_count(d->model); }

lk_saved_tensor lk_description_tensor(const lk_description *d, size_t index)
{
    const lk__safetensors_tensor *t = lk__safetensors_at(d->model, index);
    if (!t) return (lk_saved_tensor){0};
    lk_saved_tensor saved = {.name = t->name, .dtype = t->dtype, .rank = t->rank};
    memcpy(saved.dims, t->dims, sizeof saved.dims);
    return saved;
}

/* ---- comparison with a data set ---- */

/* "image u8 (3, 32, 32) with 10 classes". */
static void describe_samples(const lk_field *first, const lk_field *label, const lk_field *target, char *out,
                             size_t size)
{
    size_t used = (size_t)snprintf(out, size, "%.64s %s (", first->name, lk_dtype_name(first->dtype));
    for (int i = 0; i < first->rank && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%lld", i ? ", " : "", (long long)first->dims[i]);
    if (used < size) used += (size_t)snprintf(out + used, size - used, ")");
    if (label && label->classes > 0 && used < size)
        used += (size_t)snprintf(out + used, size - used, " with %d classes", label->classes);
    if (target && used < size)
        snprintf(out + used, size - used, " and %lld %s to predict", (long long)lk_field_elements(target),
                 lk_field_elements(target) == 1 ? "number" : "numbers");
}

static const lk_field *find_saved(const lk_description *d, const char *name)
{
    for (int i = 0; i < d->record.fields_count; i++)
        if (strcmp(d->record.fields[i].name, name) == 0) return &d->record.fields[i];
    return NULL;
}

/* Classes are numbered by their names: a number with another name is another class. */
static lk_status check_class_names(const lk_description *d, const lk_field *saved, const lk_field *label)
{
    char theirs[LK__SHOWN], own[LK__SHOWN];
    if (!saved || !label || !saved->class_names || !label->class_names) return LK_OK;
    for (int i = 0; i < saved->classes && i < label->classes; i++)
        if (!lk__json_reads_back(saved->class_names[i], label->class_names[i] ? label->class_names[i] : ""))
            return lk__fail(d->context, LK_EMISMATCH,
                            "%s was trained on different classes: number %d is \"%s\" there and \"%s\" in the data set",
                            d->path, i, lk__shown(saved->class_names[i], theirs),
                            lk__shown(label->class_names[i] ? label->class_names[i] : "", own));
    return LK_OK;
}

/* A model reads its columns by their order. */
static lk_status check_column_names(const lk_description *d, const lk_field *saved, const lk_field *own)
{
    char        theirs[LK__SHOWN], ours[LK__SHOWN];
    const char *name;
    if (!saved->column_names || !own->column_names) return LK_OK;
    for (int64_t i = 0; i < saved->dims[0]; i++) {
        name = own->column_names[i] ? own->column_names[i] : "";
        if (!lk__json_reads_back(saved->column_names[i], name))
            return lk__fail(
                d->context, LK_EMISMATCH,
                "%s was trained on different columns, or in a different order: feature %lld is \"%s\" there and "
                "\"%s\" in the data set",
                d->path, (long long)i + 1, lk__shown(saved->column_names[i], theirs), lk__shown(name, ours));
    }
    return LK_OK;
}

lk_status lk_description_check(const lk_description *d, const lk_dataset *dataset)
{
    char            theirs[256], own[256];
    const lk_field *saved = lk_description_field(d, 0), *first = lk_dataset_field(dataset, 0);
    const lk_field *saved_label = find_saved(d, "label"), *label = lk_dataset_find(dataset, "label");
    const lk_field *saved_target = find_saved(d, "target"), *target = lk_dataset_find(dataset, "target");
    if (!saved || !first) return LK_OK;
    bool same = saved->rank == first->rank;
    for (int i = 0; same && i < saved->rank; i++) same = saved->dims[i] == first->dims[i];
    bool more = label && saved_label && saved_label->classes > 0 && label->classes > saved_label->classes;
    bool other = target && saved_target && lk_field_elements(target) != lk_field_elements(saved_target);
    if (same && !more && !other) {
        lk_status status = check_class_names(d, saved_label, label);
        return status < 0 ? status : check_column_names(d, saved, first);
    }
    describe_samples(saved, saved_label, saved_target, theirs, sizeof theirs);
    describe_samples(first, label, target, own, sizeof own);
    return lk__fail(d->context, LK_EMISMATCH, "%s was trained on samples of %s, but the data set %s has %s", d->path,
                    theirs, lk_dataset_name(dataset), own);
}
