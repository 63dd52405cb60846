/* tokenizer.h - converts text to token ids and back: as bytes, as characters, or with byte-level BPE as in Hugging
 * Face's `tokenizers`. */
#ifndef LOCKSTEP_TOKENIZER_H
#define LOCKSTEP_TOKENIZER_H

#include <lockstep/context.h>

LK_BEGIN_DECLS

typedef struct lk_tokenizer lk_tokenizer; /* immutable: threads may share one */

/* "byte" (256 tokens: the id is the byte), a tokenizer.json, or a directory that contains one (a checkpoint, a Hugging
 * Face model). tokenizer_config.json and special_tokens_map.json in the same directory are read too, for the end token.
 * LK_ENOENT: there is no such file. LK_EFORMAT: the message names the part of the file that is not supported, and its
 * value. */
LK_API lk_status lk_tokenizer_open(lk_context *context, const char *name, lk_tokenizer **tokenizer);
/* The same from the text of a tokenizer.json in memory, which is copied; messages begin with `label`. */
LK_API lk_status lk_tokenizer_from_json(lk_context *context, const char *label, const char *text, size_t bytes,
                                        lk_tokenizer **tokenizer);
/* Creates a tokenizer with a token for each distinct character (code point) of the text, in code-point order.
 * LK_EINVAL: the text is empty. */
LK_API lk_status lk_tokenizer_from_text(lk_context *context, const char *text, size_t bytes, lk_tokenizer **tokenizer);
LK_API void      lk_tokenizer_free(lk_tokenizer *tokenizer); /* NULL is fine; before its context */

LK_API const char *lk_tokenizer_kind(const lk_tokenizer *tokenizer);       /* "byte", "char", "bpe" */
LK_API int64_t     lk_tokenizer_vocabulary(const lk_tokenizer *tokenizer); /* the largest id + 1 */
/* The token that ends a document: eos_token in tokenizer_config.json, or else in special_tokens_map.json, or else
 * <|endoftext|>, <|end_of_text|> or </s>; -1: none. */
LK_API int32_t lk_tokenizer_end(const lk_tokenizer *tokenizer);
/* Whether this token ends a generated text: lk_tokenizer_end, or eos_token in special_tokens_map.json if that is a
 * different token. */
LK_API bool lk_tokenizer_is_end(const lk_tokenizer *tokenizer, int32_t id);
/* The tokens that the file's post-processor puts before a text (Llama 3's <|begin_of_text|>) and after it.
 * lk_tokenizer_encode does not add them; text data sets and lk_data_tokenize add both to each document, and `lockstep
 * generate` puts the prefix before a prompt. */
LK_API const int32_t *lk_tokenizer_prefix(const lk_tokenizer *tokenizer, int *count);
LK_API const int32_t *lk_tokenizer_suffix(const lk_tokenizer *tokenizer, int *count);
LK_API int32_t        lk_tokenizer_begin(const lk_tokenizer *tokenizer); /* the first of the prefix; -1: none */
/* the id of the token that is spelled this way in the file; -1: there is none */
LK_API int32_t lk_tokenizer_find(const lk_tokenizer *tokenizer, const char *token);
/* The bytes that a token stands for, or the text of an added token; NULL: no token has that id. Not NUL-terminated;
 * valid while the tokenizer exists. A token's bytes need not be whole characters. */
LK_API const char *lk_tokenizer_token(const lk_tokenizer *tokenizer, int32_t id, size_t *bytes);
LK_API bool lk_tokenizer_is_special(const lk_tokenizer *tokenizer, int32_t id); /* false if there is no such id */

/* Encodes text. *count becomes the number of tokens, even if it exceeds `room`; tokens past `room` are not stored, so
 * room 0 only counts (ids may be NULL). There are at most 3 * bytes + 1 tokens, and ordinary text has far fewer tokens
 * than bytes. Added tokens are recognised in the text, and no other tokens are inserted (as with
 * add_special_tokens=False in `tokenizers`). Invalid UTF-8 becomes U+FFFD, as with errors="replace" in Python; *invalid
 * (may be NULL) counts the replacements. A "byte" tokenizer keeps every byte and replaces none. LK_EINVAL: a character
 * is not in the vocabulary; the message names the character and its byte offset. */
LK_API lk_status lk_tokenizer_encode(const lk_tokenizer *tokenizer, const char *text, size_t bytes, int32_t *ids,
                                     size_t room, size_t *count, size_t *invalid);
/* Writes the text of the ids, without special tokens and without a NUL, and returns its length in bytes, even if it
 * exceeds `room`; bytes past `room` are not stored. Unknown ids are skipped. If the ids end in the middle of a
 * character, so does the text. */
LK_API size_t lk_tokenizer_decode(const lk_tokenizer *tokenizer, const int32_t *ids, size_t count, char *text,
                                  size_t room);

/* The files from which AutoTokenizer in `transformers` can open this tokenizer: tokenizer.json, tokenizer_config.json
 * and others. Files from which the tokenizer was read are returned unchanged. Valid while the tokenizer exists. */
typedef struct lk_tokenizer_file {
    const char *name, *text;
    size_t      bytes; /* of the text; a NUL follows them */
} lk_tokenizer_file;
LK_API const lk_tokenizer_file *lk_tokenizer_files(const lk_tokenizer *tokenizer, int *count);

LK_END_DECLS
#endif
