/* train/checkpoint.h - saving with memory that was allocated beforehand, so that a save cannot run out of it. */
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

    struct lk__train_background *background; /* NULL: the caller waits for each save */
} lk__train_saver;

lk_status lk__saver_init(lk__train_saver *saver, lk_store *store);
void      lk__saver_free(lk__train_saver *saver); /* waits for a save in progress */
lk_status lk__saver_save(lk__train_saver *saver, const char *directory, const lk_progress *progress, int keep);

/* Prepares the directory for saves: creates it, checks that a save would replace no file of the user, and locks it. */
lk_status lk__checkpoint_open(lk_context *context, const char *directory, double timeout, lk__lock *lock);
bool      lk__checkpoint_newest(lk_context *context, const char *directory, int64_t *step); /* false: there is none */

/* ---- background.c: the store is copied, and a thread writes the copy while training continues ---- */
lk_status lk__saver_background(lk__train_saver *saver);    /* allocates the memory for it */
size_t    lk__saver_background_bytes(const lk_plan *plan); /* of LK_MEMORY_CHECKPOINT */
/* One save at a time: finish the previous one first. directory is borrowed until then. */
lk_status lk__saver_begin(lk__train_saver *saver, const char *directory, const lk_progress *progress, int keep);
/* Waits. LK_OK: it is on disk; LK_END: no save was in progress. */
lk_status lk__saver_finish(lk__train_saver *saver, lk_progress *progress, double *seconds);
bool      lk__saver_done(const lk__train_saver *saver);   /* a save has ended, and finish would not wait */
bool      lk__saver_failed(const lk__train_saver *saver); /* that save failed: finish sets the message */
void      lk__saver_background_free(lk__train_saver *saver);

#endif
