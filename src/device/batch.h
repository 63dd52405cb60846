/* device/batch.h - converts stored samples to the rows of a batch: the operands of sample_rows, and one row on the
 * host. */
#ifndef LK__DEVICE_BATCH_H
#define LK__DEVICE_BATCH_H

#include "base/random.h"
#include "device/kernel.h"

enum { LK__DEVICE_FIELDS = 16, LK__DEVICE_CHANNELS = 16 };

/* The blocks of four random numbers of a sample: each purpose of augmentation has its own. */
enum { LK__DRAW_CROP = 0, LK__DRAW_ROTATE = 1, LK__DRAW_CUTOUT = 2, LK__DRAW_JITTER = 3, LK__DRAW_BOX = 16 };

/* How a sample becomes a row: v is table[v] where it is a byte, else (v - mean) / std; then a crop of the image, with
 * zeros around it as they are stored, a flip, and a square of zeros. An image is (channels, height, width): 1, 1,
 * elements where the axes do not matter. */
typedef struct lk__device_transform {
    lk_dtype      in, out; /* u8 or f32; f32 or f64 */
    int64_t       channels, height, width;
    bool          per_channel; /* mean, std and table; else the first is used for all */
    int           padding, cutout;
    double        flip;
    const void   *table;      /* of u8: (channels or 1, 256) results */
    const double *mean, *std; /* of f32: channels or 1; NULL: 0 and 1 */
} lk__device_transform;

/* sample_row.c: one row on the host; `random`: of augmentation in this epoch. */
void lk__row_transform(const lk__device_transform *transform, const lk__random *random, int64_t id, const void *sample,
                       void *row);

/* ---- what a device makes of a set ---- */

typedef struct lk__device_field {
    const char *name; /* of the program's input; borrowed */
    lk_dtype    in, out;
    int64_t     elements; /* of a sample; below 2^31 */
    void       *samples;  /* in the device's memory, one after the other, as stored; NULL: they are sent */
} lk__device_field;

typedef struct lk__device_gather {
    lk__device_field     fields[LK__DEVICE_FIELDS];
    int                  count;
    lk_dtype             element;     /* of the numbers that rows have: f32 or f64 */
    int64_t              samples;     /* of the set */
    bool                 by_row;      /* the batch's samples; else the whole set's, by id */
    bool                 transformed; /* field 0 is; others are copied, or converted from f32 to f64 */
    lk__device_transform transform;   /* its arrays are in the device's memory, mean followed by std */
} lk__device_gather;

/* ---- the operation ---- */

/* Operands of sample_rows. A header is a step block and, at offset LK__DEVICE_IDS, the ids of its samples; headers may
 * be in pinned memory of the host. With table or normal, the first of the samples is transformed: it is (N, C, H, W),
 * and its rows too. call->invalid is cleared. */
enum { LK__DEVICE_IDS = 128 };
enum {
    LK__ROWS_HEADERS,   /* (slots, bytes) */
    LK__ROWS_RING_SLOT, /* modulo the slots: which of them is read; absent: the first */
    LK__ROWS_TABLE,     /* (channels or 1, 256) */
    LK__ROWS_NORMAL,    /* (2, channels or 1) */
    LK__ROWS_SAMPLES,   /* this and those after it */
};
enum {
    LK__ROWS_HEADER, /* written unless it is what is read */
    LK__ROWS_OUT,    /* this and those after it: rows of the samples in the same order */
    LK__ROWS_FIELDS = LK__MAX_OUT - LK__ROWS_OUT,
};

/* How the first field of a call is transformed; .table and .mean are the operands' memory. false: it is not. */
static inline bool lk__rows_transform(const lk__kernel_call *call, lk__device_transform *t)
{
    const lk__kernel_operand *table = &call->in[LK__ROWS_TABLE], *normal = &call->in[LK__ROWS_NORMAL];
    const lk__kernel_operand *samples = &call->in[LK__ROWS_SAMPLES];
    if (!table->data && !normal->data) return false;
    t->in = samples->dtype;
    t->out = call->out[LK__ROWS_OUT].dtype;
    t->channels = samples->dims[1];
    t->height = samples->dims[2];
    t->width = samples->dims[3];
    t->per_channel = (table->data ? table->dims[0] : normal->dims[1]) > 1;
    t->padding = (int)call->attrs->padding;
    t->cutout = (int)call->attrs->cutout;
    t->flip = call->attrs->probability;
    t->table = table->data;
    t->mean = (const double *)normal->data;
    t->std = t->mean ? t->mean + normal->dims[1] : NULL;
    return true;
}

/* Elements of a sample. */
static inline int64_t lk__rows_elements(const lk__kernel_operand *x)
{
    int64_t n = 1;
    for (int i = 1; i < x->rank; i++) n *= x->dims[i];
    return n;
}

#endif
