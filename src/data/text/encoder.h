/* data/text/encoder.h - encoding text with memory that is kept from call to call: of words that were seen, and of
 * intermediate text. An encoder is for one thread; any number of them may share a tokenizer. */
#ifndef LK__ENCODER_H
#define LK__ENCODER_H

#include "data/text/tokenizer.h"

typedef struct lk__text_encoder lk__text_encoder;

/* `bytes`: about how much text will be encoded in all, which decides how many words are remembered; SIZE_MAX: a lot. */
lk_status lk__text_encoder_create(const lk_tokenizer *tokenizer, size_t bytes, lk__text_encoder **encoder);
void      lk__text_encoder_free(lk__text_encoder *encoder); /* NULL is fine; before its tokenizer */

/* Encodes a text as lk_tokenizer_encode does. *ids is valid until the next call. With `continues` the text is the
 * continuation of that of the call before, which was cut at lk__text_encoder_cut: the ids of all pieces together are
 * those of the whole text. `invalid` may be NULL. */
lk_status lk__text_encoder_encode(lk__text_encoder *encoder, const char *text, size_t bytes, bool continues,
                                  const int32_t **ids, size_t *count, size_t *invalid);
/* The same into the caller's memory; *count may be above `room`. */
lk_status lk__text_encoder_encode_into(lk__text_encoder *encoder, const char *text, size_t bytes, bool continues,
                                       int32_t *ids, size_t room, size_t *count, size_t *invalid);

/* The last place in a text that goes on behind `bytes` where it may be cut in two; 0: there is none, so more of it is
 * needed. */
size_t lk__text_encoder_cut(const lk_tokenizer *tokenizer, const char *text, size_t bytes);

#endif
