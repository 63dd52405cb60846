/* data/text/added.h - added tokens: text that is always one token, wherever it stands. */
#ifndef LK__ADDED_H
#define LK__ADDED_H

#include "base/base.h"

typedef struct lk__added_token {
    char   *text; /* owned, `length` bytes */
    size_t  length;
    int32_t id;
    bool    strip_left, strip_right; /* it takes the white space beside it */
} lk__added_token;

typedef struct lk__added {
    lk__added_token *tokens; /* by their bytes */
    size_t           count, capacity;
    size_t           longest;
    bool             first[256]; /* the bytes that begin one */
    size_t           firsts;     /* how many */
} lk__added;

/* Copies the text, which is not empty. Sort once all are added. */
lk_status lk__added_add(lk_context *context, lk__added *added, const char *text, size_t length,
                        const lk__added_token *token);
void      lk__added_sort(lk__added *added);
void      lk__added_free(lk_context *context, lk__added *added);

/* The leftmost token in text[from, bytes), the longest of those that begin there, and where it begins; NULL: none. */
const lk__added_token *lk__added_find(const lk__added *added, const char *text, size_t bytes, size_t from,
                                      size_t *start);

#endif
