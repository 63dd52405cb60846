/* device/batch.h - making the rows of a batch from samples in the device's memory. */
#ifndef LK__DEVICE_BATCH_H
#define LK__DEVICE_BATCH_H

#include "device/kernel.h"

/* ---- batches from samples in the device's memory ----
 *
 * The device makes the rows of a batch itself: a sample is found by its id or by its row, and is copied, or converted,
 * normalised, cropped and flipped with the numbers and the rounding of data/transform.c. */
enum { LK__DEVICE_FIELDS = 16, LK__DEVICE_CHANNELS = 16 };

typedef enum lk__device_conversion {
    LK__DEVICE_COPIED,     /* as stored */
    LK__DEVICE_WIDENED,    /* f32 to f64 */
    LK__DEVICE_TRANSFORMED /* u8 or f32, by the transform; field 0 alone */
} lk__device_conversion;

typedef struct lk__device_field {
    const char           *name; /* of the program's input; borrowed */
    lk__device_conversion how;
    lk_dtype              in, out;
    int64_t               elements; /* of a sample; below 2^31 */
    const char           *samples;  /* one behind the other, as stored */
} lk__device_field;

/* An image is (channels, height, width): 1, 1, elements where the axes do not matter. */
typedef struct lk__device_transform {
    int         channels, height, width;
    bool        per_channel; /* mean, std and table; else the first is used for all */
    int         padding, cutout;
    double      flip;
    uint32_t    crop_block, cutout_block; /* of random numbers, by sample */
    const void *table; /* of u8: (channels or 1, 256) results, in the device's memory; NULL: (v - mean) / std */
    double      mean[LK__DEVICE_CHANNELS], std[LK__DEVICE_CHANNELS];
} lk__device_transform;

typedef struct lk__device_gather {
    lk__device_field     fields[LK__DEVICE_FIELDS];
    int                  count;
    bool                 by_row; /* `samples` are those of the batch; else those of the whole set, by id */
    lk__device_transform transform;
} lk__device_gather;

/* One batch: where its step block and ids are read, and what is written. A header is a step block, and behind
 * LK__DEVICE_IDS bytes the ids of its samples; it may be in pinned memory of the host. */
enum { LK__DEVICE_IDS = 128 };
typedef struct lk__device_rows {
    int64_t rows;
    /* `ring_slots` of them, header_bytes apart; number *ring_slot % ring_slots is read. ring_slot NULL: the first */
    const char            *headers;
    const int64_t         *ring_slot; /* the device's */
    int                    ring_slots;
    size_t                 header_bytes;
    char                  *header;                /* the device's copy, which is written unless it is what is read */
    void                  *to[LK__DEVICE_FIELDS]; /* by field: (rows, elements) */
    lk__kernel_invalid_id *report;                /* is cleared; NULL: nothing is */
} lk__device_rows;

#endif
