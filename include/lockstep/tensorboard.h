/* tensorboard.h - event files that TensorBoard shows as curves. */
#ifndef LOCKSTEP_TENSORBOARD_H
#define LOCKSTEP_TENSORBOARD_H

#include <lockstep/base.h>
#include <lockstep/context.h>

LK_BEGIN_DECLS

typedef struct lk_tensorboard lk_tensorboard; /* one event file being written; use from one thread */

/* Makes directory if need be, and in it events.out.tfevents.TIME.HOST.PID.lockstep, a new file each time: files of
 * earlier runs are left alone, and TensorBoard joins them. All memory is taken here. */
LK_API lk_status lk_tensorboard_create(lk_context *context, const char *directory, lk_tensorboard **tensorboard);

/* A point of the curve `tag` ("loss/train": UTF-8, at most 1024 bytes), kept as f32. wall_time is in seconds since 1970;
 * 0 means now. Written to the file when 64 KiB have gathered, or 5 s after the last time. Allocates nothing. When
 * writing has failed once, it and every later call return that failure. */
LK_API lk_status lk_tensorboard_add_scalar(lk_tensorboard *tensorboard, const char *tag, int64_t step, double value,
                                           double wall_time);

LK_API lk_status   lk_tensorboard_flush(lk_tensorboard *tensorboard); /* what has gathered is in the file */
LK_API const char *lk_tensorboard_path(const lk_tensorboard *tensorboard); /* of the file; lives as the handle */
LK_API void        lk_tensorboard_free(lk_tensorboard *tensorboard); /* flushes; NULL is fine */

LK_END_DECLS
#endif
