/* data/text/vocabulary.h - tokens by id and by name. */
#ifndef LK__VOCABULARY_H
#define LK__VOCABULARY_H

#include "base/base.h"

typedef struct lk__text_token {
    size_t   name, text; /* in the pool: as a file spells the token, and the bytes that it stands for */
    uint32_t name_length, length;
    bool     exists, special;
    bool     in_model; /* false: only among the added tokens */
} lk__text_token;

typedef struct lk__text_slot {
    uint32_t hash; /* most names that are not found end here, without a look at a token */
    int32_t  id;   /* + 1; 0: free */
} lk__text_slot;

typedef struct lk__vocabulary {
    lk_context     *context;
    lk__text_token *tokens; /* by id */
    size_t          count, capacity; /* count: the largest id + 1 */
    size_t          used;            /* ids that exist */
    size_t          longest_name;
    char           *pool;
    size_t          pool_used, pool_capacity;
    lk__text_slot  *slots; /* a hash table of names */
    size_t          slots_count;
} lk__vocabulary;

/* Ids may leave gaps, but not large ones: a damaged file must not decide how much memory is used. */
enum { LK__VOCABULARY_GAP = 1 << 16 };

typedef struct lk__vocabulary_entry {
    const char *name;
    size_t      name_length;
    const char *text; /* that it stands for; NULL: the same as its name */
    size_t      length;
} lk__vocabulary_entry;
/* Adds a token. LK_EFORMAT: the id or the name exists, or the id is out of range for
 * `expected` tokens. */
lk_status lk__vocabulary_add(lk__vocabulary *vocabulary, int64_t id, const lk__vocabulary_entry *entry,
                             size_t expected);
int32_t   lk__vocabulary_find(const lk__vocabulary *vocabulary, const char *name, size_t length); /* -1: none */
void      lk__vocabulary_free(lk__vocabulary *vocabulary);

/* NULL: there is no such id */
const lk__text_token *lk__vocabulary_token(const lk__vocabulary *vocabulary, int64_t id);

#endif
