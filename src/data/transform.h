/* data/transform.h - transforms a stored sample into a row of a batch. */
#ifndef LK__TRANSFORM_H
#define LK__TRANSFORM_H

#include "device/batch.h"

#include <lockstep/data.h>

typedef struct lk__data_transform {
    lk__device_transform row; /* without mean and std; its table is borrowed */
    bool                 augment;
    bool                 buffered; /* changes that need the image as floats, in a buffer */
    bool                 normalize;
    double               mean[LK_MAX_CHANNELS], std[LK_MAX_CHANNELS];
    lk_transform         from;
} lk__data_transform;

bool lk__transform_used(const lk_loader_config *config); /* field 0 is transformed; else it is copied as it is stored */
size_t lk__transform_bytes(const lk_loader_config *config);   /* of the table */
size_t lk__transform_scratch(const lk_loader_config *config); /* of a worker's buffers */
/* Whether something is drawn for each image, and whether batches have the fields of mixup. */
bool lk__transform_augments(const lk_transform *transform);
bool lk__transform_mixes(const lk_transform *transform);
/* The same without random changes: for a test set. */
lk_transform lk__transform_evaluation(const lk_transform *transform);
lk_status    lk__transform_check(lk_context *context, const lk_loader_config *config);
/* config is valid, and lk__transform_used; table has lk__transform_bytes and is borrowed. */
void lk__transform_init(lk__data_transform *transform, const lk_loader_config *config, void *table);

/* The random numbers of augmentation in this epoch. */
lk__random lk__transform_random(uint64_t seed, int64_t epoch);
/* Which image it is, and lk__transform_scratch bytes for its changes. */
typedef struct lk__transform_image {
    const lk__random *random;
    int64_t           index;
    void             *scratch;
} lk__transform_image;
void lk__transform_apply(const lk__data_transform *transform, const lk__transform_image *image, const void *sample,
                         void *row);

#endif
