/* data/text/bpe.h - merges of byte-pair encoding: which pairs of tokens become one, and in which order. */
#ifndef LK__BPE_H
#define LK__BPE_H

#include "base/base.h"

typedef struct lk__bpe_merge {
    uint64_t pair; /* left << 32 | right */
    uint32_t rank; /* lower ones are merged first */
    int32_t  id;   /* what the pair becomes */
} lk__bpe_merge;

typedef struct lk__bpe {
    lk__bpe_merge *merges; /* a hash table by pair */
    size_t         slots;  /* a power of two; 0: there are no merges */
    /* 4 bits a slot: 0 where no pair of that hash exists. Most pairs do not, and this stays in the cache */
    uint64_t *filter;
} lk__bpe;

lk_status lk__bpe_create(lk_context *context, size_t merges, lk__bpe *bpe);
void lk__bpe_add(lk__bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t id); /* replaces an equal pair */
void lk__bpe_free(lk_context *context, lk__bpe *bpe);

/* Memory for long words; zero it at first. */
typedef struct lk__bpe_scratch {
    uint32_t *before, *after;
    size_t    before_room, after_room;
    uint64_t *heap;
    size_t    heap_room;
} lk__bpe_scratch;
void lk__bpe_scratch_free(lk_context *context, lk__bpe_scratch *scratch);

/* Merges in place, always the pair of lowest rank, and of several such pairs the leftmost. *count: the ids of the word,
 * before and after. */
lk_status lk__bpe_apply(lk_context *context, const lk__bpe *bpe, lk__bpe_scratch *scratch, int32_t *ids, size_t *count);

#endif
