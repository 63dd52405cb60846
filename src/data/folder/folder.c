/* folder.c - the data set folder:DIR: image files in a subdirectory for each class. Where the splits are, which image
 * determines size and channels, and what is done about broken files is decided here, from the files alone, so that all
 * ranks agree. */
#define _GNU_SOURCE
#include "data/folder/folder.h"
#include "data/format.h"
#include "data/subset.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { LARGEST_SIDE = 16384 }; /* of a sample */

static lk_status check_options(lk_context *context, const lk_open_options *o)
{
    if (o->regression)
        return lk__fail(context, LK_EINVAL,
                        "folder: its labels are classes, but regression needs numbers: use a different loss");
    if (o->height < 0 || o->width < 0 || !o->height != !o->width || o->height > LARGEST_SIDE || o->width > LARGEST_SIDE)
        return lk__fail(context, LK_EINVAL, "folder: a size of %lldx%lld is invalid: height and width must be 1 to %d",
                        (long long)o->height, (long long)o->width, LARGEST_SIDE);
    if (o->channels != 0 && o->channels != 1 && o->channels != 3)
        return lk__fail(context, LK_EINVAL, "folder: %d channels are invalid: expected 1 (grey) or 3 (RGB)",
                        o->channels);
    if (!(o->holdout >= 0 && o->holdout < 1))
        return lk__fail(context, LK_EINVAL,
                        "folder: a hold-out fraction of %g is invalid: expected at least 0 and less than 1",
                        o->holdout);
    return LK_OK;
}

static bool is_directory(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

/* ---- which directory, which classes ---- */

/* The directories of the splits: with train/ and test/ (or val/), those; with train/ alone and nothing beside it, that;
 * so with test/, for the test set alone. Otherwise the directory itself: "train" may be a class. test is "" if there is
 * none. */
static lk_status find_splits(lk__data_folder *f, const char *directory, char train[LK__PATH], char test[LK__PATH])
{
    lk__data_folder_list beside = {.context = f->context};
    struct stat          about;
    size_t               length = strlen(directory);
    while (length > 1 && directory[length - 1] == '/') length--;
    if (length > LK__PATH - 16)
        return lk__fail(f->context, LK_EINVAL, "folder:%.64s…: the path is longer than %d bytes", directory, LK__PATH);
    if (stat(directory, &about) != 0)
        return lk__fail(f->context, LK_ENOENT, "folder:%s: cannot open the directory: %s", directory, strerror(errno));
    if (!S_ISDIR(about.st_mode))
        return lk__fail(f->context, LK_EINVAL,
                        "folder:%s: this is a file; give a directory with a subdirectory for each class", directory);
    lk__path(test, "%.*s/test", (int)length, directory);
    if (!is_directory(test)) lk__path(test, "%.*s/val", (int)length, directory);
    lk__path(train, "%.*s/train", (int)length, directory);
    bool      trained = is_directory(train), tested = is_directory(test), split = trained && tested;
    lk_status status = LK_OK;
    if (!split && (trained || (tested && f->split == LK_SPLIT_TEST))) {
        status = lk__data_folder_list_classes(&beside, directory);
        split = beside.classes_count == 1;
        lk__data_folder_list_free(&beside);
    }
    if (split && !trained) lk__path(train, "%s", test); /* its classes and shape */
    if (!split || !tested) test[0] = 0;
    if (!split) lk__path(train, "%.*s", (int)length, directory);
    return status;
}

/* ---- which files ---- */

static const char skip_advice[] = "; --skip-broken leaves such files out";

static lk_status fail_broken(const lk__data_folder *f, lk_status status, const char *path, const char *reason)
{
    return lk__fail(f->context, status, "%s %s%s", path, reason, skip_advice);
}

/* The first image in order whose header can be read determines the channels, and without a given size also the size. */
static lk_status choose_shape(lk__data_folder *f, const lk_open_options *o, bool *found)
{
    char           message[LK__IMAGE_MESSAGE];
    lk__image_info info;
    for (size_t i = 0; i < f->list.count; i++) {
        lk_status status = lk__data_folder_probe(f->context, lk__data_folder_path(f, i), &info, message);
        if (status == LK_ENOMEM) return status;
        if (status < 0 && !o->skip_broken) return fail_broken(f, status, lk__data_folder_path(f, i), message);
        if (status < 0) continue;
        lk__image_size(&info, &f->decoder.height, &f->decoder.width);
        if (o->height) f->decoder.height = o->height, f->decoder.width = o->width;
        f->decoder.target = (lk__image_target){o->channels           ? o->channels
                                               : info.components < 3 ? 1
                                                                     : 3,
                                               o->height, o->width};
        snprintf(f->first, sizeof f->first, "%s", lk__data_folder_path(f, i));
        *found = true;
        break;
    }
    return LK_OK;
}

static lk_status choose_shape_of_list(lk__data_folder *f, const lk_open_options *o)
{
    bool      found = false;
    lk_status status = choose_shape(f, o, &found);
    if (status < 0 || found) return status;
    return lk__fail(f->context, LK_EFORMAT, "%s: none of its %zu images can be read", f->title, f->list.count);
}

/* The test set has the shape of the training set: that is found in the first classes there. */
static lk_status choose_shape_of_train(lk__data_folder *f, const char *train, const lk_open_options *o)
{
    bool      found = false;
    lk_status status = LK_OK;
    for (size_t c = 0; c < f->list.classes_count && status == LK_OK && !found; c++) {
        f->list.count = 0;
        status = lk__data_folder_list_class(&f->list, train, c);
        if (status == LK_OK) status = choose_shape(f, o, &found);
    }
    f->list.count = 0;
    f->list.others = 0;
    if (status == LK_OK && !found)
        status = lk__fail(f->context, LK_EINVAL, "folder:%s: it has no PNG or JPEG files", train);
    return status;
}

static bool is_of_other_split(const lk__data_folder_list *list, size_t i, const void *user)
{
    const lk__data_folder *f = user;
    const char            *name = lk__data_folder_path(f, i) + strlen(f->root) + 1;
    (void)list;
    return lk__is_held_out(name, strlen(name), f->holdout) != (f->split == LK_SPLIT_TEST);
}

static lk_status hold_out(lk__data_folder *f)
{
    if (f->holdout <= 0) return LK_OK;
    lk__data_folder_list_drop(&f->list, is_of_other_split, f);
    if (f->list.count > 0) return LK_OK;
    return lk__fail(f->context, LK_EINVAL, "folder:%s: a hold-out of %g leaves no image for the %s set", f->root,
                    f->holdout, f->split == LK_SPLIT_TEST ? "test" : "training");
}

/* The list of the split, and the shape of its samples. LK_END: there is no such split. */
static lk_status select_files(lk__data_folder *f, const char *directory, const lk_open_options *o, bool probe)
{
    char      train[LK__PATH] = "", test[LK__PATH] = "";
    lk_status status = find_splits(f, directory, train, test);
    if (status < 0) return status;
    if (test[0] && o->holdout > 0)
        return lk__fail(f->context, LK_EINVAL, "folder:%s: %s is the test set; remove the hold-out of %g", directory,
                        test, o->holdout);
    if (f->split == LK_SPLIT_TEST && !test[0] && o->holdout <= 0) return LK_END;
    bool own = f->split == LK_SPLIT_TEST && test[0]; /* a directory of its own */
    f->holdout = test[0] ? 0 : o->holdout;
    snprintf(f->root, sizeof f->root, "%s", own ? test : train);
    snprintf(f->title, sizeof f->title, "folder:%s", f->root);
    if ((status = lk__data_folder_find_classes(f, train, o)) != LK_OK) return status;
    if (own && !f->expected) status = choose_shape_of_train(f, train, o);
    if (status == LK_OK) status = lk__data_folder_list_files(f, o, !own && !f->expected, probe);
    if (status == LK_OK && !f->first[0]) status = choose_shape_of_list(f, o);
    return status == LK_OK ? hold_out(f) : status;
}

/* ---- broken files ---- */

static bool is_broken(const lk__data_folder_list *list, size_t i, const void *user)
{
    (void)user;
    return list->files[i].broken;
}

/* Fails, or leaves broken files out and lists them. */
static lk_status resolve_broken(lk__data_folder *f, bool skip, bool probe)
{
    size_t broken = 0, all = f->list.count;
    for (size_t i = 0; i < all; i++) {
        if (!f->list.files[i].broken) continue;
        broken++;
        if (!skip) return fail_broken(f, LK_EFORMAT, lk__data_folder_path(f, i), f->list.files[i].broken);
        if (!probe)
            lk__log(f->context, LK_LOG_INFO, "left out: %s %s", lk__data_folder_path(f, i), f->list.files[i].broken);
    }
    if (!broken) return LK_OK;
    lk__data_folder_list_drop(&f->list, is_broken, NULL);
    if (f->list.count == 0)
        return lk__fail(f->context, LK_EFORMAT, "%s: none of its %zu images can be decoded", f->title, all);
    if (!probe)
        lk__log(f->context, LK_LOG_WARNING, "%s: %zu of %zu images are broken and were left out", f->title, broken,
                all);
    return LK_OK;
}

/* The passes that these options need. */
lk_status lk__data_folder_prepare(lk__data_folder *f, const lk_open_options *o, bool probe)
{
    lk_status status = f->first[0] ? LK_OK : choose_shape_of_list(f, o);
    if (status < 0) return status;
    f->skip_broken = o->skip_broken;
    if (!probe && o->cache) {
        status = lk__data_folder_cache_open(f, o->cache);
    } else {
        status = lk__data_folder_scan(f);
        if (status == LK_OK && !probe && o->skip_broken) status = lk__data_folder_decode_all(f, NULL, NULL);
    }
    return status < 0 ? status : resolve_broken(f, o->skip_broken, probe);
}

/* ---- the data set ---- */

static lk_status read_image(const lk_dataset *d, int64_t index, void *const *fields, void *scratch,
                            char message[LK__DATASET_MESSAGE])
{
    const lk__data_folder *f = d->state;
    char                   reason[LK__IMAGE_MESSAGE];
    if (!fields[0]) return LK_OK;
    const unsigned char *sample = f->cache ? lk__data_folder_cache_get(f->cache, f->list.files[index].number) : NULL;
    if (sample) {
        memcpy(fields[0], sample, lk__data_folder_sample_bytes(f));
        return LK_OK;
    }
    const char *path = lk__data_folder_path(f, (size_t)index);
    lk_status   status = lk__data_folder_decode(&f->decoder, path, scratch, fields[0], reason);
    if (status == LK_OK) return LK_OK;
    bool   advise = !f->skip_broken && strcmp(reason, lk__data_folder_changed) != 0;
    size_t length = strlen(path), most = LK__DATASET_MESSAGE - LK__IMAGE_MESSAGE - sizeof skip_advice - 8;
    snprintf(message, LK__DATASET_MESSAGE, "%s%s %s%s", length > most ? "…" : "",
             length > most ? path + length - most : path, reason, advise ? skip_advice : "");
    return status;
}

/* Of names and sizes: decoding takes long, and a time of the last change differs from copy to copy. */
static uint64_t make_fingerprint(const lk_dataset *d)
{
    const lk__data_folder *f = d->state;
    uint64_t               value = lk__fingerprint_add(1, &d->count, sizeof d->count);
    size_t                 root = f->root[0] ? strlen(f->root) + 1 : 0;
    for (size_t i = 0; i < f->list.count; i++) {
        const char *path = lk__data_folder_path(f, i) + root;
        value = lk__fingerprint_add(value, path, strlen(path));
        value = lk__fingerprint_add(value, &f->list.files[i].bytes, sizeof f->list.files[i].bytes);
        value = lk__fingerprint_add(value, &f->list.files[i].label, sizeof f->list.files[i].label);
    }
    return value ? value : 1;
}

static const char *name_sample(const lk_dataset *d, int64_t index)
{
    return lk__data_folder_path(d->state, (size_t)index);
}

void lk__data_folder_free(lk__data_folder *f)
{
    lk__data_folder_cache_close(f->cache);
    lk__data_folder_list_free(&f->list);
    lk__free(f->context, LK_MEMORY_OTHER, f, sizeof *f);
}

static void release_folder(lk_dataset *d) { lk__data_folder_free(d->state); }

void lk__data_folder_attach(lk__data_folder *f, lk_dataset *d, bool reads)
{
    if (reads) d->read = read_image;
    d->streamed = true;
    d->scratch = f->decoder.scratch;
    d->sample_name = name_sample;
    d->fingerprint = make_fingerprint;
    d->state = f;
    d->release = release_folder;
}

/* On success the data set owns the folder. */
static lk_status make_dataset(lk__data_folder *f, bool probe, lk_dataset **dataset)
{
    lk_dataset  *d = NULL;
    int64_t      dims[] = {f->decoder.target.channels, f->decoder.height, f->decoder.width};
    size_t       classes = f->expected ? (size_t)f->expected->classes : f->list.classes_count;
    size_t       names_bytes = f->list.classes_count * sizeof(char *);
    const char **names = names_bytes ? lk__alloc(f->context, LK_MEMORY_OTHER, names_bytes) : NULL;
    if (names_bytes && !names) return LK_ENOMEM;
    for (size_t i = 0; i < f->list.classes_count; i++) names[i] = lk__data_folder_class(&f->list, i);
    lk__dataset_labelled about = {.name = "folder",
                                  .count = (int64_t)f->list.count,
                                  .rank = 3,
                                  .dims = dims,
                                  .dtype = LK_U8,
                                  .classes = (int)classes,
                                  .class_names = f->expected ? f->expected->class_names : names};
    lk_status            status = lk__dataset_make_labelled(f->context, &about, &d);
    lk__free(f->context, LK_MEMORY_OTHER, names, names_bytes);
    if (status < 0) return status;
    if (!probe) {
        int32_t *labels = lk__dataset_column(d, 1);
        if (!labels) {
            lk_dataset_free(d);
            return LK_ENOMEM;
        }
        for (size_t i = 0; i < f->list.count; i++) labels[i] = f->list.files[i].label;
    }
    f->expected = NULL;
    lk__data_folder_attach(f, d, !probe);
    *dataset = d;
    return LK_OK;
}

lk_status lk__data_folder_create(lk_context *context, const lk_open_options *options, const char *title,
                                 lk__data_folder **folder)
{
    lk_status status = check_options(context, options);
    if (status < 0) return status;
    if (!lk__image_supported())
        return lk__fail(context, LK_EUNSUPPORTED,
                        "%.200s: this build cannot decode images; install libpng and libjpeg (libpng-dev, libjpeg-dev) "
                        "and rebuild Lockstep",
                        title);
    lk__data_folder *f = *folder = lk__alloc(context, LK_MEMORY_OTHER, sizeof *f);
    if (!f) return LK_ENOMEM;
    f->context = f->list.context = context;
    snprintf(f->title, sizeof f->title, "%s", title);
    return LK_OK;
}

static lk_status open_folder(lk_context *context, const lk__data_request *request, lk_dataset **dataset)
{
    const char            *directory = request->rest;
    const lk_open_options *options = request->options;
    bool                   probe = request->probe;
    lk__data_folder       *f;
    *dataset = NULL;
    if (!directory || !*directory)
        return lk__fail(context, LK_EINVAL, "folder needs a directory: folder:DIR, with a subdirectory for each class");
    lk_status status = lk__data_folder_create(context, options, "folder", &f);
    if (status < 0) return status;
    f->split = request->split;
    status = select_files(f, directory, options, probe);
    if (status == LK_OK) status = lk__data_folder_prepare(f, options, probe);
    if (status == LK_OK) status = make_dataset(f, probe, dataset);
    if (status == LK_OK && !probe && f->list.others > 0)
        lk__log(context, LK_LOG_INFO, "%s: ignoring %lld files that are not named .png, .jpg or .jpeg", f->title,
                (long long)f->list.others);
    if (status != LK_OK) lk__data_folder_free(f);
    return status;
}

const lk__data_format lk__data_format_folder = {
    .about = {.name = "folder",
              .form = "folder:DIR",
              .doc = "PNG and JPEG files, a subdirectory for each class",
              .options = "size channels cache skip-broken holdout unknown-label",
              .traits = LK_DATA_DECODED | LK_DATA_SUBFOLDERS},
    .open = open_folder,
};
