/* data/folder/folder.h - a data set of image files: the list of files, the passes over them, the cache of decoded
 * samples. */
#ifndef LK__FOLDER_H
#define LK__FOLDER_H

#include "data/dataset.h"
#include "data/image/image.h"

typedef struct lk__data_folder_file {
    size_t  path;           /* offset in text */
    size_t  directory;      /* length of the path's directory, for the order */
    int64_t bytes, changed; /* size; time of the last change in nanoseconds */
    char   *broken;         /* why it cannot be decoded; NULL: it can, as far as is known. Owned */
    size_t  number;         /* in the cache, which also has the files that are broken */
    int32_t label;
} lk__data_folder_file;

typedef struct lk__data_folder_list {
    lk_context           *context;
    lk__data_folder_file *files;
    size_t                count, capacity;
    char                 *text; /* paths and class names, each with a NUL */
    size_t                text_bytes, text_capacity;
    size_t               *classes; /* offsets in text, in byte order */
    size_t                classes_count, classes_capacity;
    int64_t               others;   /* files that are not called .png, .jpg or .jpeg */
    bool                  any_name; /* files are listed whatever they are called */
} lk__data_folder_list;

static inline const char *lk__data_folder_class(const lk__data_folder_list *l, size_t i)
{
    return l->text + l->classes[i];
}

/* Adds the subdirectories of root, in byte order, as classes. */
lk_status lk__data_folder_list_classes(lk__data_folder_list *list, const char *root);
/* Adds the images below root/CLASS, in the order of torchvision's ImageFolder: by directory, then by name. A class
 * without a directory adds none. */
lk_status lk__data_folder_list_class(lk__data_folder_list *list, const char *root, size_t label);
/* The same for a subdirectory of any name, for a class of that number. */
lk_status lk__data_folder_list_directory(lk__data_folder_list *list, const char *root, const char *name, size_t label);
/* Adds a file, whatever its name, or the images below a directory, in the same order. */
lk_status lk__data_folder_list_path(lk__data_folder_list *list, const char *path);
/* Removes files for which `drop` returns true; the others keep their order. */
void lk__data_folder_list_drop(lk__data_folder_list *list,
                               bool (*drop)(const lk__data_folder_list *list, size_t i, const void *user),
                               const void *user);
void lk__data_folder_list_free(lk__data_folder_list *list);

/* How files are decoded. */
typedef struct lk__data_folder_decoder {
    lk__image_target target;        /* height 0: the files have the size of a sample */
    int64_t          height, width; /* of a sample */
    size_t           scratch;       /* bytes: the largest need of all files */
} lk__data_folder_decoder;

typedef struct lk__data_folder_cache lk__data_folder_cache;

/* The state of a data set. */
typedef struct lk__data_folder {
    lk_context             *context;
    lk_split                split;
    double                  holdout;
    char                    title[LK__PATH + 8]; /* begins messages: "folder:DIR", or "images" for single files */
    char                    root[LK__PATH];      /* the directory of the classes; "" for single files */
    char                    first[LK__PATH];     /* the image that determines the size and the channels */
    lk__data_folder_list    list;
    lk__data_folder_decoder decoder;
    const lk_field         *expected;    /* the label of training, while the folder is opened; NULL: not known */
    lk__data_folder_cache  *cache;       /* NULL: none */
    bool                    skip_broken; /* files that cannot be decoded were left out when it was opened */
} lk__data_folder;

/* the reason where a file is not what it was when the data set was opened */
extern const char lk__data_folder_changed[];

static inline const char *lk__data_folder_path(const lk__data_folder *f, size_t i)
{
    return f->list.text + f->list.files[i].path;
}
static inline size_t lk__data_folder_sample_bytes(const lk__data_folder *f)
{
    return (size_t)(f->decoder.target.channels * f->decoder.height * f->decoder.width);
}

/* Reads a header. Failures write a reason, as lk__image_probe does. */
lk_status lk__data_folder_probe(lk_context *context, const char *path, lk__image_info *info,
                                char message[LK__IMAGE_MESSAGE]);
/* Decodes a file into a sample. scratch has decoder->scratch bytes. Any thread. */
lk_status lk__data_folder_decode(const lk__data_folder_decoder *decoder, const char *path, void *scratch,
                                 unsigned char *sample, char message[LK__IMAGE_MESSAGE]);

/* Both passes run on as many threads as the context has, and set `broken` of files that fail. */
/* Reads every header; sets decoder.scratch. LK_EINVAL: an image has a different size from `first`, and is not
 * resized. */
lk_status lk__data_folder_scan(lk__data_folder *folder);
/* Decodes every file. put, unless NULL, gets each sample, concurrently. */
typedef lk_status (*lk__data_folder_put)(void *user, size_t i, const unsigned char *sample);
lk_status lk__data_folder_decode_all(lk__data_folder *folder, lk__data_folder_put put, void *user);

/* Maps the file of decoded samples in `directory`; if it is missing, damaged or for other files, creates it, for which
 * it runs both passes. Sets what they set either way. Another process that creates the same one is waited for. */
lk_status lk__data_folder_cache_open(lk__data_folder *folder, const char *directory);
/* The sample of the file with that number; NULL: it is damaged, and the cache will be created again at the next start.
 * Any thread. */
const unsigned char *lk__data_folder_cache_get(lk__data_folder_cache *cache, size_t number);
void                 lk__data_folder_cache_close(lk__data_folder_cache *cache); /* NULL is fine */

/* ---- classes.c: which classes, and their files. ---- */

/* Sets the classes: the classes of training where they are known, else the subdirectories of `train`, of which there
 * must be two. */
lk_status lk__data_folder_find_classes(lk__data_folder *folder, const char *train, const lk_open_options *options);
/* Lists the files of folder->root by class. A subdirectory that is not one of the classes is refused, or left out.
 * `every`: each class must have files. */
lk_status lk__data_folder_list_files(lk__data_folder *folder, const lk_open_options *options, bool every, bool quiet);

/* ---- shared by folder.c and files.c ---- */

/* Checks the options and the build; a folder without files. */
lk_status lk__data_folder_create(lk_context *context, const lk_open_options *options, const char *title,
                                 lk__data_folder **folder);
void      lk__data_folder_free(lk__data_folder *folder);
/* For a list of files: chooses the shape of a sample by its first image and the options, unless it is chosen already,
 * and runs the passes; broken files are an error, or are left out. */
lk_status lk__data_folder_prepare(lk__data_folder *folder, const lk_open_options *options, bool probe);
/* Gives the folder to a data set, whose field 0 it reads if `reads`. */
void lk__data_folder_attach(lk__data_folder *folder, lk_dataset *dataset, bool reads);

#endif
