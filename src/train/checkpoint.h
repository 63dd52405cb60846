/* train/checkpoint.h - saving with memory that was taken beforehand, so that a save cannot fail for want of it. */
#ifndef LK__CHECKPOINT_H
#define LK__CHECKPOINT_H

#include "run/store.h"
#include "train/lock.h"
#include "train/safetensors.h"

#include <lockstep/checkpoint.h>

typedef struct lk__train_saver {
    lk_context             *context;
    lk_store               *store;
    void                   *staging; /* lk__safetensors_staging_bytes */
    lk__safetensors_tensor *tensors; /* room for the larger of the two files' tables */
    char (*names)[256];              /* of optimizer tensors */
    size_t bytes;                    /* of all three */

    struct lk__train_background *background; /* NULL: saves are made while the caller waits */
} lk__train_saver;

lk_status lk__saver_init(lk__train_saver *saver, lk_store *store);
void      lk__saver_free(lk__train_saver *saver); /* waits for what is being written */
lk_status lk__saver_save(lk__train_saver *saver, const char *directory, const lk_progress *progress, int keep);

/* Makes the directory ready for saves: it is there, holds nothing of the user's that a save would replace, and is locked. */
lk_status lk__checkpoint_open(lk_context *context, const char *directory, double patience, lk__lock *lock);
bool      lk__checkpoint_newest(lk_context *context, const char *directory, int64_t *step); /* false: there is none */

/* ---- background.c: a copy of the store is taken, and a thread writes it while training goes on ---- */
lk_status lk__saver_background(lk__train_saver *saver);    /* takes the memory for it */
size_t    lk__saver_background_bytes(const lk_plan *plan); /* of LK_MEMORY_CHECKPOINT */
/* One at a time: finish the one before first. directory is borrowed until then. */
lk_status lk__saver_begin(lk__train_saver *saver, const char *directory, const lk_progress *progress, int keep);
/* Waits. LK_OK: it is on the disk; LK_END: there was none under way. */
lk_status lk__saver_finish(lk__train_saver *saver, lk_progress *progress, double *seconds);
bool      lk__saver_done(const lk__train_saver *saver);   /* one was under way, and finish would not wait for it */
bool      lk__saver_failed(const lk__train_saver *saver); /* that one failed: finish says why */
void      lk__saver_background_free(lk__train_saver *saver);

#endif
