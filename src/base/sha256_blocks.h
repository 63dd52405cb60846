/* base/sha256_blocks.h - the inner function of SHA-256, one version for each instruction set. */
#ifndef LK__SHA256_BLOCKS_H
#define LK__SHA256_BLOCKS_H

#include "base/hash.h"

typedef struct lk__sha256_kind {
    const char    *name; /* "sha2" (ARMv8), "sha-ni" (x86), "portable" */
    lk__sha256_add add;
} lk__sha256_kind;

/* The versions that this build and this machine have, fastest first; the portable one is last. NULL after it. */
const lk__sha256_kind *lk__sha256_kind_at(int index);

lk__sha256_add lk__sha256_choose(void);

#endif
