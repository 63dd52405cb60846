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

/* Takes the ids of a piece, and those around a document where there are any, in several calls; a failure ends the
 * pass. */
typedef lk_status (*lk__text_sink)(void *user, const lk__text_piece *piece, const int32_t *ids, size_t count);

/* Whether the ids begin with the tokenizer's prefix, because the text spells it. */
bool lk__text_has_prefix(const lk_tokenizer *tokenizer, const int32_t *ids, size_t count);

typedef struct lk__text_encoding {
    const lk_tokenizer *tokenizer;
    bool          around; /* the tokens of its template precede and follow each document, unless its text has them */
    int32_t       end;    /* follows a document, unless the template ends with it; -1: nothing does */
    lk__text_sink sink;
    void         *user;
} lk__text_encoding;
/* Encodes every piece. An empty corpus is LK_EFORMAT. */
lk_status lk__text_encode(lk__text_corpus *corpus, const lk__text_encoding *how, lk__text_totals *totals);

#endif
