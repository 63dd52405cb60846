/* train/lock.h - the lock of a checkpoint directory: one writer at a time; it ends with the process that holds it. */
#ifndef LK__LOCK_H
#define LK__LOCK_H

#include "base/base.h"

typedef struct lk__lock {
    int     fd; /* -1: not held */
    long    pid;
    int64_t byte;      /* the byte of the lock file that this holder has locked */
    int     directory; /* open, so that no other directory can get its inode number; -1: none */
} lk__lock;

#define LK__LOCK_INIT {-1, 0, 0, -1}

/* Acquires the lock of an existing directory. LK_EINVAL if another process, or another trainer of this process, still
 * holds it after `timeout` seconds: the message names host, pid and start time. If the filesystem has no locks, logs a
 * warning and holds none. */
lk_status lk__lock_acquire(lk_context *context, const char *directory, double timeout, lk__lock *lock);

/* Where the lock that was acquired for `directory` is now. */
typedef enum lk__lock_place {
    LK__LOCK_IN_PLACE,
    LK__LOCK_LOST, /* the directory is there, without the file that is locked: others can lock it */
    LK__LOCK_MOVED /* the path names another directory, or none */
} lk__lock_place;
lk__lock_place lk__lock_find(const lk__lock *lock, const char *directory);
void           lk__lock_release(lk__lock *lock); /* no effect if not held */
/* Checks whether acquire would succeed; changes nothing. */
lk_status lk__lock_check(lk_context *context, const char *directory, double timeout);

/* For readers that remove what a writer left: without waiting, true if the lock is free; then nobody can acquire it
 * until lk__lock_idle_end, which must come within the 10 s that a writer waits. False also without a lock file, which
 * every writer creates, and where the filesystem has no locks. Changes nothing and sets no message. */
bool lk__lock_idle_begin(const char *directory, int *fd);
void lk__lock_idle_end(int fd);

/* Seconds that the start of a run waits for the lock: 10 after a restart (TORCHELASTIC_RESTART_COUNT,
 * SLURM_RESTART_COUNT), when the previous process may still be ending; otherwise 0. */
double lk__lock_timeout(const lk_context *context);

#endif
