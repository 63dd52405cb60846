/* tensorboard.h - event files for TensorBoard. */
#ifndef LOCKSTEP_TENSORBOARD_H
#define LOCKSTEP_TENSORBOARD_H

#include <lockstep/base.h>
#include <lockstep/context.h>

LK_BEGIN_DECLS

typedef struct lk_tensorboard lk_tensorboard; /* one event file being written; use from one thread */

/* Creates the directory if necessary, and in it a new file events.out.tfevents.TIME.HOST.PID.lockstep: files of earlier
 * runs stay unchanged, and TensorBoard combines them. All memory is allocated here. */
LK_API lk_status lk_tensorboard_create(lk_context *context, const char *directory, lk_tensorboard **tensorboard);

/* Adds a point to the curve `tag` ("loss/train": UTF-8, at most 1024 bytes), stored as f32. wall_time is in seconds
 * since 1970; 0 means now. Points are written to the file when 64 KiB are buffered, or 5 s after the previous write.
 * Allocates nothing. After a failed write, every later call returns that failure. */
LK_API lk_status lk_tensorboard_add_scalar(lk_tensorboard *tensorboard, const char *tag, int64_t step, double value,
                                           double wall_time);

LK_API lk_status lk_tensorboard_flush(lk_tensorboard *tensorboard); /* writes buffered points to the file */
/* the path of the file; valid until lk_tensorboard_free */
LK_API const char *lk_tensorboard_path(const lk_tensorboard *tensorboard);
LK_API void        lk_tensorboard_free(lk_tensorboard *tensorboard); /* flushes; NULL is fine */

LK_END_DECLS
#endif
