/* train/checkpoint.h - saving with memory that was taken beforehand, so that a save cannot fail for want of it. */
#ifndef LK__CHECKPOINT_H
#define LK__CHECKPOINT_H

#include "run/store.h"
#include "train/safetensors.h"

#include <lockstep/checkpoint.h>

typedef struct lk__saver {
    lk_context     *context;
    lk_store       *store;
    void           *staging; /* lk__safetensors_staging_bytes */
    lk__safetensor *tensors; /* room for the larger of the two files' tables */
    char (*names)[256];      /* of optimizer tensors */
    size_t bytes;            /* of all three */
} lk__saver;

lk_status lk__saver_init(lk__saver *saver, lk_store *store);
void      lk__saver_free(lk__saver *saver);
lk_status lk__saver_save(lk__saver *saver, const char *directory, const lk_progress *progress, int keep);

#endif
