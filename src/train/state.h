/* train/state.h - state.json of a checkpoint. */
#ifndef LK__STATE_H
#define LK__STATE_H

#include "base/base.h"

#include <lockstep/checkpoint.h>

/* LK_EINVAL if the numbers are inconsistent; `what` starts the message. */
lk_status lk__progress_check(lk_context *context, const char *what, const lk_progress *progress);

enum { LK__STATE_DTYPE = 8 }; /* bytes of the precision's name: "f32", "f64", "bf16" */

/* model, optimizer: SHA-256 of the files. dtype: the precision of the run. */
lk_status lk__state_write(lk_context *context, const char *path, void *staging, size_t staging_bytes,
                          const lk_progress *progress, const char *dtype, const char *model, const char *optimizer);
/* LK_EFORMAT if it is damaged, inconsistent, or of another step than its directory's name. sha: of the model and of the
 * optimizer. dtype is "" where an older version wrote the file. */
lk_status lk__state_read(lk_context *context, const char *path, int64_t step, lk_progress *progress,
                         char dtype[LK__STATE_DTYPE], char sha[2][65]);

#endif
