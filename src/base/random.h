/* base/random.h - counter-based random numbers (Philox 4x32-10; Salmon et al., SC'11): a number is a function of its
 * purpose and position, never of a rank, a thread or the time. */
#ifndef LK__RANDOM_H
#define LK__RANDOM_H

#include <stdint.h>

typedef enum lk__random_purpose {
    LK__FOR_INIT = 1,
    LK__FOR_SHUFFLE,
    LK__FOR_AUGMENT,
    LK__FOR_DROPOUT,
    LK__FOR_SYNTHETIC,
    LK__FOR_MIXUP,
    LK__FOR_PERMUTATION,
    LK__FOR_SAMPLE
} lk__random_purpose;

/* (seed, purpose, stream) select the key; the meaning of a stream depends on the purpose: a parameter's name hash, an
 * epoch. */
typedef struct lk__random {
    uint32_t key[2];
    uint32_t high; /* purpose and folded stream */
} lk__random;

lk__random lk__random_make(uint64_t seed, lk__random_purpose purpose, uint64_t stream);
/* Four numbers for (item, index): for example a sample and an element / 4. */
void     lk__random4(const lk__random *random, uint64_t item, uint32_t index, uint32_t out[4]);
uint32_t lk__random_u32(const lk__random *random, uint64_t item, uint32_t index);
/* Uniform in [0, n) without bias, n >= 1. Consumes numbers from (item, index…) on; index is advanced. */
uint64_t lk__random_below(const lk__random *random, uint64_t item, uint32_t *index, uint64_t n);

enum { LK__RANDOM_BATCH = 32 }; /* indices whose numbers random_batch.h makes at once */

static inline double lk__random_unit(uint32_t bits) { return (bits + 0.5) * (1.0 / 4294967296.0); } /* (0, 1) */

#endif
