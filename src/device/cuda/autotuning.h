/* device/cuda/autotuning.h - chooses a library's algorithm for an operation and a shape: from a cache file of earlier
 * measurements on this GPU with these versions, or from a list that rank 0 or a checkpoint gives to a program. Also
 * lists the algorithms that the program's kernels use (device/kernels.h, choose_begin).
 *
 * Measuring ends when a program has spent its time on it (LOCKSTEP_CUDA_TUNING_SECONDS): run/tuning.c prepares the
 * costliest kernels first, and the remaining ones use the library's first algorithm, which is then recorded in the file
 * and the list. Where nothing is measured at all, the first algorithm depends only on shapes and versions, and is not
 * listed. */
#ifndef LK__CUDA_CHOICES_H
#define LK__CUDA_CHOICES_H

#include "device/cuda/cuda.h"

enum { LK__CUDA_CHOICE = 256 }; /* bytes of a choice, at most */

/* What is chosen for. Both as bytes without undefined ones. */
typedef struct lk__cuda_question {
    const char *library; /* name and version */
    const void *key;     /* operation and shape */
    size_t      bytes;
} lk__cuda_question;

typedef enum lk__cuda_answer {
    CHOICE_NONE,
    CHOICE_KEPT, /* measured before, by this process or another */
    /* it was measured on the same GPU with the same versions, but perhaps with another layout of memory: check that it
     * can run */
    CHOICE_GIVEN,
    CHOICE_FIRST, /* the library's first algorithm, since there was no time to measure: lk__cuda_choice_first */
} lk__cuda_answer;

/* A choice of `bytes` bytes. A given choice that was measured on another GPU, or with other versions, does not count,
 * which is said once per program. */
lk__cuda_answer lk__cuda_choice_find(lk__cuda_device *device, const lk__cuda_question *question, void *choice,
                                     size_t bytes);
/* Whether a choice that is not found is to be measured now, until lk__cuda_choice_keep; otherwise the library's first
 * algorithm is taken. */
bool lk__cuda_choice_measures(lk__cuda_device *device);
/* The library's first algorithm was taken: for CHOICE_FIRST, or because no time was left. Adds that to the program's
 * list and, where it is new, to the file. Does nothing where only given choices count and this is not one of them. */
void lk__cuda_choice_first(lk__cuda_device *device, const lk__cuda_question *question);
/* A measurement outside of programs begins: it has all of the time. */
void   lk__cuda_tuning_restart(lk__cuda_device *device);
double lk__cuda_tuning_clock(void); /* seconds */
/* For `lockstep info`: the file, and what is in it; false: there is none. */
bool lk__cuda_tuning_text(char *text, size_t bytes);
/* Keeps a measured choice in the file, $XDG_CACHE_HOME/lockstep/cuda-algorithms or the one in ~/.cache, which is
 * rewritten aside. What other processes have added to it meanwhile stays. */
void lk__cuda_choice_keep(lk__cuda_device *device, const lk__cuda_question *question, const void *choice, size_t bytes);
/* Adds a choice to the program's list. */
void lk__cuda_choice_use(lk__cuda_device *device, const lk__cuda_question *question, const void *choice, size_t bytes);
/* A choice that was given cannot be run: said once per program. */
void lk__cuda_choice_refuse(lk__cuda_device *device, const lk__cuda_question *question);

/* device/kernels.h's hooks. */
lk_status lk__cuda_choose_begin(lk__device *device, const char *text, const char *whose, bool only);
size_t    lk__cuda_list_tuned(lk__device *device, char *text, size_t bytes, bool *mismatch);
void      lk__cuda_tuning_free(lk__cuda_tuning *tuning); /* NULL is fine */

#endif
