/* train/lock.h - one writer to a checkpoint directory: a lock that lives as long as the process that took it. */
#ifndef LK__LOCK_H
#define LK__LOCK_H

#include "base/base.h"

typedef struct lk__lock {
    int     fd; /* -1: none is held */
    long    pid;
    int64_t byte; /* of the lock file: the one that stands for this holder */
} lk__lock;

#define LK__LOCK_INIT {-1, 0, 0}

/* Takes the lock of a directory that exists. LK_EINVAL after `patience` seconds in which another process, or another trainer of
 * this one, held it: host, pid and since when are said. Where the filesystem has no locks, a warning is logged and none is held. */
lk_status lk__lock_take(lk_context *context, const char *directory, double patience, lk__lock *lock);
void      lk__lock_release(lk__lock *lock); /* fine when none is held */
/* Whether take would succeed; changes nothing. */
lk_status lk__lock_check(lk_context *context, const char *directory, double patience);

/* Seconds that the start of a run waits: a restart (TORCHELASTIC_RESTART_COUNT, SLURM_RESTART_COUNT) for its predecessor, a
 * first start not at all. */
double lk__lock_patience(void);

#endif
