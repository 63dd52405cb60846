/* data/text/encoder.h - encodes text. Words that were seen before and buffers of intermediate text are kept from call
 * to call. An encoder is for one thread; any number of them may share a tokenizer. */
#ifndef LK__ENCODER_H
#define LK__ENCODER_H

#include "data/text/tokenizer.h"

typedef struct lk__text_encoder lk__text_encoder;

/* `bytes`: about how much text will be encoded in all, which decides how many words are remembered; SIZE_MAX: a lot. */
lk_status lk__text_encoder_create(const lk_tokenizer *tokenizer, size_t bytes, lk__text_encoder **encoder);
void      lk__text_encoder_free(lk__text_encoder *encoder); /* NULL is fine; before its tokenizer */

/* With `continues`, the text continues the text of the previous call, which was cut at lk__text_encoder_cut: all pieces
 * together have the ids of the whole text. */
typedef struct lk__text_span {
    const char *text;
    size_t      bytes;
    bool        continues;
} lk__text_span;

typedef struct lk__text_encoded {
    const int32_t *ids; /* valid until the next call */
    size_t         count;
    size_t         invalid; /* sequences that are not UTF-8 */
} lk__text_encoded;

/* Encodes a text as lk_tokenizer_encode does. */
lk_status lk__text_encoder_encode(lk__text_encoder *encoder, lk__text_span span, lk__text_encoded *encoded);
/* The same into the caller's memory; the count may be above `room`. */
lk_status lk__text_encoder_encode_into(lk__text_encoder *encoder, lk__text_span span, int32_t *ids, size_t room,
                                       lk__text_encoded *encoded);

/* The last place where a text that continues after `bytes` may be cut in two; 0: there is none, so more of it is
 * needed. */
size_t lk__text_encoder_cut(const lk_tokenizer *tokenizer, const char *text, size_t bytes);

#endif
