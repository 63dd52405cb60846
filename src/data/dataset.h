/* data/dataset.h - what the makers of data sets and the loader know of one another. */
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
    const unsigned char    *features;    /* sample i begins at i × stride; NULL with callbacks, or when only probed */
    size_t                  stride;
    const int32_t          *labels;
    lk_dataset_get_callback get;
    void                   *user;
    void                   *owned_features; /* LK_MEMORY_DATA */
    size_t                  owned_feature_bytes;
    int32_t                *owned_labels;
    size_t                  owned_label_bytes;
};

/* A data set of that shape without its data; checks everything that every kind must keep. The caller fills in the
 * rest. */
lk_status lk__dataset_make(lk_context *context, const char *name, int64_t count, int rank, const int64_t *dims,
                           lk_dtype dtype, int classes, lk_dataset **dataset);
lk_status lk__dataset_own(lk_dataset *dataset, size_t feature_bytes); /* allocates features and labels */
size_t    lk__dataset_sample_bytes(const lk_dataset *dataset);

/* The sample in place, or in scratch (elements floats) when it comes from a callback. On failure writes a sentence to
 * message and leaves the context's alone, since it runs ahead of what the user asked for. */
lk_status lk__dataset_read(const lk_dataset *dataset, int64_t index, float *scratch, const void **features,
                           int32_t *label, char message[LK__DATASET_MESSAGE]);

/* Whether a loader can be made of this; context may be NULL: then there is no message. */
lk_status lk__loader_check(lk_context *context, const lk_loader_config *config);

/* ---- Files: parsers that take bytes from anywhere. ---- */

enum { LK__CIFAR_RECORD = 3073 };
/* How many records `bytes` hold. LK_EFORMAT with record and byte when they are not CIFAR-10's. */
lk_status lk__cifar_check(lk_context *context, const char *name, const unsigned char *bytes, size_t size,
                          int64_t *count);
bool      lk__cifar_exists(const char *directory,
                           lk_split    split); /* all files of the split, there or in cifar-10-batches-bin */

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
/* By path, plain or .gz; name and class_names as the data set will carry them. */
lk_status lk__idx_open(lk_context *context, const char *name, const char *images, const char *labels, int classes,
                       const char *const *class_names, bool probe, lk_dataset **dataset);
/* Which of path, path.gz and path without .gz is there: written to found. */
bool lk__idx_find(const char *path, char found[LK__PATH]);

lk_status lk__synthetic_make(lk_context *context, const lk_dataset_synthetic_config *config, bool probe,
                             lk_dataset **dataset);

#endif
