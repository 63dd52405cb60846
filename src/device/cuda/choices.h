/* device/cuda/choices.h - a cache file of measured choices: which algorithm of a library is the fastest for an operation and a shape, on
 * this GPU with these versions. A second start then measures nothing. */
#ifndef LK__CUDA_CHOICES_H
#define LK__CUDA_CHOICES_H

#include "device/cuda/cuda.h"

typedef struct lk__cuda_choices lk__cuda_choices;

/* Reads $XDG_CACHE_HOME/lockstep/cuda-algorithms, or the one in ~/.cache. `library`: name and version; choices of other versions, GPUs
 * and drivers stay in the file and are not found. NULL: no memory. A missing file is empty; one that is not ours is left alone, with a
 * line in the log. */
lk__cuda_choices *lk__cuda_choices_open(lk__cuda_device *device, const char *library);
void              lk__cuda_choices_close(lk__cuda_choices *choices); /* NULL is fine */
/* A choice of `bytes` bytes, at most LK__CUDA_CHOICE; false: there is none. */
bool lk__cuda_choices_find(const lk__cuda_choices *choices, const void *key, size_t key_bytes, void *choice,
                           size_t bytes);
/* Keeps it, and rewrites the file aside. What other processes have added to it meanwhile stays. */
void lk__cuda_choices_keep(lk__cuda_choices *choices, const void *key, size_t key_bytes, const void *choice,
                           size_t bytes);
enum { LK__CUDA_CHOICE = 256 };

#endif
