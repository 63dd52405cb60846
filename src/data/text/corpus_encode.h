/* data/text/corpus_encode.h - the token ids of documents: encoding a corpus, and keeping or counting the ids. */
#ifndef LK__TEXT_CORPUS_ENCODE_H
#define LK__TEXT_CORPUS_ENCODE_H

#include "data/text/corpus.h"
#include "data/text/ids.h"

#include <lockstep/tokenizer.h>

/* Opens the tokenizer of lk_open_options. "char" reads the corpus for its characters. */
lk_status lk__text_tokenizer(lk__text_corpus *corpus, const char *name, lk_tokenizer **tokenizer);

typedef struct lk__text_totals {
    int64_t documents, bytes;
    int64_t invalid; /* sequences that are not UTF-8; the first of them in … */
    int     invalid_file;
} lk__text_totals;

/* Takes the ids of a piece, then the end token, where one follows; a failure ends the pass. */
typedef lk_status (*lk__text_sink)(void *user, const lk__text_piece *piece, const int32_t *ids, size_t count);

/* Encodes every piece; `end` follows the last of each document; -1: nothing does. An empty corpus is LK_EFORMAT. */
lk_status lk__text_encode(lk__text_corpus *corpus, const lk_tokenizer *tokenizer, int32_t end, lk__text_sink sink,
                          void *user, lk__text_totals *totals);

/* Ids in memory (LK_MEMORY_DATA), in as few bytes as the vocabulary needs. */
typedef struct lk__text_store {
    lk_context    *context;
    unsigned char *bytes;
    size_t         capacity; /* bytes */
    int            width;    /* bytes of an id: 1, 2 or 4 */
    bool           counting; /* nothing is kept */
    int64_t        count;
} lk__text_store;

int       lk__text_width(int64_t vocabulary);
lk_status lk__text_store_add(lk__text_store *store, const int32_t *ids, size_t count);
void      lk__text_store_free(lk__text_store *store);
/* Writes ids in `width` bytes each, the lowest byte first. */
void lk__text_pack(const int32_t *ids, size_t count, int width, unsigned char *out);

#endif
