/* data/batch.h - converts samples to rows of a batch: which fields a batch has, where a sample is read to, how it is
 * converted. */
#ifndef LK__BATCH_H
#define LK__BATCH_H

#include "data/dataset.h"
#include "data/transform.h"

typedef enum lk__batch_conversion {
    LK__BATCH_COPIED,      /* as stored */
    LK__BATCH_WIDENED,     /* f32 to f64 */
    LK__BATCH_TRANSFORMED, /* field 0: lk__transform_apply */
    LK__BATCH_MIXED,       /* "label_2" and "mix", which follow the data set's fields */
} lk__batch_conversion;

typedef struct lk__batch_field {
    lk__batch_conversion how;
    size_t               row;     /* bytes of a sample in the batch */
    size_t               scratch; /* bytes of a sample in a worker's scratch; 0: it is not read to there */
} lk__batch_field;

typedef struct lk__batch_maker {
    const lk_loader_config *config;
    lk_field                fields[LK_MAX_FIELDS]; /* as in the batches */
    lk__batch_field         conversions[LK_MAX_FIELDS];
    int                     count, label; /* fields; which of them is "label", for mixup */
    bool                    in_memory;    /* every field is a column of the data set: nothing is read or mixed */
    size_t             buffers, partner; /* bytes of a worker's scratch for the transform, and for a partner of mixup */
    lk__data_transform transform;
} lk__batch_maker;

/* From a valid config. */
int      lk__batch_fields(const lk_loader_config *config);
lk_field lk__batch_field_of(const lk_loader_config *config, int i);
size_t   lk__batch_scratch(const lk_loader_config *config); /* bytes of a worker's scratch, a multiple of LK__ALIGN */

/* Borrows config; table has lk__transform_bytes and is borrowed. */
void lk__batch_init(lk__batch_maker *maker, const lk_loader_config *config, void *table);

/* A row that is to be written: of a batch, from a sample, by a worker. */
typedef struct lk__batch_row {
    void *const      *fields; /* of the batch */
    int64_t           row;
    int64_t           index, epoch; /* of the sample */
    const lk__random *random;       /* lk__transform_random of the epoch */
    char             *scratch;      /* the worker's */
    char             *message;      /* LK__DATASET_MESSAGE bytes, for a failure */
} lk__batch_row;

/* Reads the sample and writes its row of every field. */
lk_status lk__batch_put(const lk__batch_maker *maker, const lk__batch_row *row);
/* Prefetches the beginning of a sample in memory that will be put soon: shuffled samples are in no order that hardware
 * detects. */
static inline void lk__batch_prefetch(const lk__batch_maker *m, int64_t index)
{
    enum { LINE = 64, MOST = 512 }; /* bytes */
    const lk_dataset *d = m->config->dataset;
    if (!m->in_memory) return;
    const unsigned char *sample = d->columns[0] + (size_t)lk__dataset_stored(d, index) * d->strides[0];
    for (size_t at = 0; at < d->strides[0] && at < MOST; at += LINE) __builtin_prefetch(sample + at, 0, 3);
}
/* Zeros in rows [count, capacity) of every field. */
void lk__batch_clear(const lk__batch_maker *maker, void *const *fields, int64_t count, int64_t capacity);

#endif
