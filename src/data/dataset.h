/* data/dataset.h - data sets, shared by the files that read or generate them and the loader. */
#ifndef LK__DATASET_H
#define LK__DATASET_H

#include "base/base.h"
#include "data/path.h"
#include "data/stream.h"

#include <lockstep/data.h>

enum { LK__DATASET_MESSAGE = 512 };

typedef struct lk__labels lk__labels; /* data/labels.h */

/* Writes the fields of a sample that have no column. Workers call it concurrently. On failure writes to message and
 * does not set the context's, since it runs ahead of what the user asked for. */
typedef lk_status (*lk__dataset_read_sample)(const lk_dataset *dataset, int64_t index, void *const *fields,
                                             void *scratch, char message[LK__DATASET_MESSAGE]);

struct lk_dataset {
    lk_context *context;
    const char *name;                  /* static: the kind */
    int64_t     count;                 /* samples that callers see */
    lk_field    fields[LK_MAX_FIELDS]; /* their names and class names are in `names` */
    int         fields_count;
    void       *names;
    size_t      names_bytes;

    /* sample i of field k is at columns[k] + i × strides[k]; NULL: `read` makes it */
    const unsigned char *columns[LK_MAX_FIELDS];
    size_t               strides[LK_MAX_FIELDS];
    void                *owned[LK_MAX_FIELDS]; /* LK_MEMORY_DATA */
    size_t               owned_bytes[LK_MAX_FIELDS];

    lk__dataset_read_sample read;         /* NULL: every field has a column, or the data set was only probed */
    size_t                  scratch;      /* bytes of `scratch` for each thread that reads */
    void                   *state;        /* of `read` */
    void (*release)(lk_dataset *dataset); /* frees state; NULL: nothing to free */
    const char *(*sample_name)(const lk_dataset *dataset, int64_t index); /* NULL: samples have no names */
    uint64_t (*fingerprint)(const lk_dataset *dataset); /* without reading samples; NULL: they are read for it */
    int64_t *kept; /* a subset: sample i is number kept[i] of what was read; NULL: all. LK_MEMORY_DATA */
    size_t   kept_bytes;

    bool unlabelled; /* samples may be without a label: LK_NO_LABEL */
    /* samples are read when they are needed; set also by a probe, which has no `read` */
    bool                streamed;
    bool                computed_order; /* of an epoch, where there are many samples: see data/order.h */
    const lk_text_info *text;           /* part of state; NULL: it is no text */
};

/* The number of names in column_names. */
static inline int64_t lk__field_columns(const lk_field *f) { return f->rank == 0 ? 1 : f->dims[0]; }

typedef struct lk__dataset_about {
    const char     *name;
    int64_t         count; /* of samples */
    const lk_field *fields;
    int             fields_count;
} lk__dataset_about;
/* Creates a data set of these fields without data; checks the limits common to all kinds. The caller sets the rest. */
lk_status lk__dataset_make(lk_context *context, const lk__dataset_about *about, lk_dataset **dataset);
/* The same with one input, "image" if it has three axes and is u8, else "features", and an i32 "label". */
typedef struct lk__dataset_labelled {
    const char        *name;
    int64_t            count;
    int                rank; /* of the input */
    const int64_t     *dims;
    lk_dtype           dtype;
    int                classes;
    const char *const *class_names; /* NULL: none */
} lk__dataset_labelled;
lk_status lk__dataset_make_labelled(lk_context *context, const lk__dataset_labelled *about, lk_dataset **dataset);
/* Allocates a column for field i (LK_MEMORY_DATA), freed with the data set; NULL: out of memory. */
void *lk__dataset_column(lk_dataset *dataset, int i);
/* The index of a sample among the samples that were read. */
static inline int64_t lk__dataset_stored(const lk_dataset *d, int64_t index)
{
    return d->kept ? d->kept[index] : index;
}

typedef struct lk__dataset_room {
    void *const *fields;  /* each with lk_field_bytes */
    void        *scratch; /* of dataset->scratch bytes */
} lk__dataset_room;
/* By field: where the sample is: in its column, or in room.fields[i], which is written. Checks class numbers. */
lk_status lk__dataset_read(const lk_dataset *dataset, int64_t index, lk__dataset_room room, const void **sample,
                           char message[LK__DATASET_MESSAGE]);

/* fingerprint.c: the same for the same samples, and most likely another number for others; of large data sets by a part
 * of them. 0: not known. */
lk_status lk__dataset_fingerprint(const lk_dataset *dataset, uint64_t *fingerprint);
uint64_t  lk__fingerprint_add(uint64_t value, const void *data, size_t bytes); /* the next value, of these bytes too */

/* Checks the class numbers of a field of a sample; LK_EINVAL: message is set. */
lk_status lk__dataset_check(const lk_dataset *dataset, int64_t index, int field, const int32_t *values,
                            char message[LK__DATASET_MESSAGE]);

/* The samples of a, then those of b. Takes both, also when it fails. */
lk_status lk__dataset_join(lk_dataset *a, lk_dataset *b, lk_dataset **dataset);

/* Checks a loader's config; context may be NULL: then there is no message. */
lk_status lk__loader_check(lk_context *context, const lk_loader_config *config);
/* The same for the caller's config, which may be of another version; *own gets what it means. */
lk_status lk__loader_read(lk_context *context, const lk_loader_config *given, lk_loader_config *own);

/* A loader whose batches consist only of indices: no fields, no workers; for devices that make the rest
 * (data/gather.h). */
lk_status lk__loader_create_indices(lk_context *context, const lk_loader_config *config, lk_loader **loader);
size_t    lk__loader_indices_bytes(const lk_loader_config *config); /* as lk_loader_bytes */

/* ---- File formats. ---- */

/* What a format is asked to open (data/format.h). */
typedef struct lk__data_request {
    const char            *rest; /* of the name, after its colon; NULL: nothing */
    lk_split               split;
    const lk_open_options *options;
    bool                   probe; /* see lk_dataset_probe */
} lk__data_request;

enum { LK__CIFAR_RECORD = 3073 };
/* Counts the records in `bytes`. LK_EFORMAT if they are not CIFAR-10's: the message names record and byte. */
lk_status lk__cifar_check(lk_context *context, const char *name, const unsigned char *bytes, size_t size,
                          int64_t *count);
/* Whether the directory, or its cifar-10-batches-bin, holds all files of the split. */
bool lk__cifar_exists(const char *directory, lk_split split);

/* lk_dataset_cifar10; probe: only names and sizes, see lk_dataset_probe. */
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
/* A data set in two files. */
typedef struct lk__data_idx_config {
    const char        *name;
    int                classes; /* 0: the largest label + 1 */
    const char *const *class_names;
    lk__labels        *known; /* data/labels.h; NULL: none */
    bool               probe;
} lk__data_idx_config;
lk_status lk__idx_dataset(lk_context *context, const lk__data_idx_config *config, lk__data_stream *images,
                          lk__data_stream *labels, lk_dataset **dataset);
/* By path, plain or .gz. */
lk_status lk__idx_open(lk_context *context, const lk__data_idx_config *config, const char *images, const char *labels,
                       lk_dataset **dataset);
/* Writes to found which of path, path.gz and path without .gz exists. */
bool lk__idx_find(const char *path, char found[LK__PATH]);

lk_status lk__synthetic_make(lk_context *context, const lk_dataset_synthetic_config *config, bool probe,
                             lk_dataset **dataset);
/* Token sequences of dims[0] tokens out of `classes`. */
lk_status lk__synthetic_tokens_make(lk_context *context, const lk_dataset_synthetic_config *config, bool probe,
                                    lk_dataset **dataset);

#endif
