/* data/text/corpus_encode.h - encoding the documents of a corpus. */
#ifndef LK__TEXT_CORPUS_ENCODE_H
#define LK__TEXT_CORPUS_ENCODE_H

#include "data/text/corpus.h"

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

#endif
