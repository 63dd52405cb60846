/* data/dataset.h - data sets, shared by the files that read or generate them and the loader. */
#ifndef LK__DATASET_H
#define LK__DATASET_H

#include "base/base.h"
#include "data/path.h"
#include "data/stream.h"

#include <lockstep/data.h>

enum { LK__DATASET_MESSAGE = 512 };

struct lk_dataset {
    lk_context             *context;
    const char             *name; /* static */
    int64_t                 count;
    int                     rank;
    int64_t                 dims[LK_MAX_RANK];
    int64_t                 elements;
    lk_dtype                dtype;
    int                     classes;
    const char *const      *class_names; /* static, `classes` of them, or NULL */
    const unsigned char    *features;    /* sample i starts at i × stride; NULL with callbacks, or when only probed */
    size_t                  stride;
    const int32_t          *labels;
    lk_dataset_get_callback get;
    void                   *user;
    void                   *owned_features; /* LK_MEMORY_DATA */
    size_t                  owned_feature_bytes;
    int32_t                *owned_labels;
    size_t                  owned_label_bytes;
};

/* Creates a data set of that shape without data; checks the limits common to all kinds. The caller sets the rest. */
lk_status lk__dataset_make(lk_context *context, const char *name, int64_t count, int rank, const int64_t *dims,
                           lk_dtype dtype, int classes, lk_dataset **dataset);
lk_status lk__dataset_own(lk_dataset *dataset, size_t feature_bytes); /* allocates features and labels */
size_t    lk__dataset_sample_bytes(const lk_dataset *dataset);

/* The sample in place, or in scratch (elements floats) if it comes from a callback. On failure writes to message and
 * does not set the context's, since it runs ahead of what the user asked for. */
lk_status lk__dataset_read(const lk_dataset *dataset, int64_t index, float *scratch, const void **features,
                           int32_t *label, char message[LK__DATASET_MESSAGE]);

/* Checks a loader's config; context may be NULL: then there is no message. */
lk_status lk__loader_check(lk_context *context, const lk_loader_config *config);

/* ---- File formats. ---- */

enum { LK__CIFAR_RECORD = 3073 };
/* Counts the records in `bytes`. LK_EFORMAT if they are not CIFAR-10's: the message names record and byte. */
lk_status lk__cifar_check(lk_context *context, const char *name, const unsigned char *bytes, size_t size,
                          int64_t *count);
/* Whether the directory, or its cifar-10-batches-bin, holds all files of the split. */
bool lk__cifar_exists(const char *directory, lk_split split);

/* lk_dataset_cifar10; probe: names and sizes alone, see lk_dataset_probe. */
lk_status lk__cifar_open(lk_context *context, const char *directory, lk_split split, bool probe, lk_dataset **dataset);

enum { LK__IDX_RANK = 4 };
typedef struct lk__data_idx {
    int            rank;
    int64_t        dims[LK__IDX_RANK];
    unsigned char *bytes; /* LK_MEMORY_DATA; the product of dims */
    size_t         size;
} lk__data_idx;
lk_status lk__idx_read(lk__data_stream *stream, lk__data_idx *idx);
void      lk__idx_free(lk_context *context, lk__data_idx *idx);
lk_status lk__idx_dataset(lk_context *context, const char *name, lk__data_stream *images, lk__data_stream *labels,
                          int classes, const char *const *class_names, bool probe, lk_dataset **dataset);
/* By path, plain or .gz; name and class_names are those of the new data set. */
lk_status lk__idx_open(lk_context *context, const char *name, const char *images, const char *labels, int classes,
                       const char *const *class_names, bool probe, lk_dataset **dataset);
/* Writes to found which of path, path.gz and path without .gz exists. */
bool lk__idx_find(const char *path, char found[LK__PATH]);

lk_status lk__synthetic_make(lk_context *context, const lk_dataset_synthetic_config *config, bool probe,
                             lk_dataset **dataset);

#endif
