/* data/text/tokenizer.h - the internals of a tokenizer. Text goes through these steps, as in `tokenizers`: added tokens
 * that are not normalised; NFC; added tokens that are normalised; words; merges. */
#ifndef LK__TOKENIZER_H
#define LK__TOKENIZER_H

#include "data/text/added.h"
#include "data/text/bpe.h"
#include "data/text/pretokenize.h"
#include "data/text/vocabulary.h"

#include <lockstep/tokenizer.h>

enum { LK__TOKENIZER_FILES = 4, LK__TOKENIZER_AROUND = 8 /* tokens of a template before a text, and after it */ };

typedef enum lk__text_kind { LK__TEXT_BYTES, LK__TEXT_CHARACTERS, LK__TEXT_BPE } lk__text_kind;

struct lk_tokenizer {
    lk_context       *context;
    lk__text_kind     kind;
    lk__vocabulary    vocabulary;
    int32_t           single[256]; /* the id of each byte; with characters, of each ASCII character; -1: none */
    int32_t           prefix[LK__TOKENIZER_AROUND], suffix[LK__TOKENIZER_AROUND]; /* of the post-processor's template */
    int               prefix_count, suffix_count;
    int32_t           end, other_end; /* of a document; of special_tokens_map.json, where that is another one */
    bool              nfc, prefix_space, ignore_merges;
    lk__pretokenizer  pretokenizer;
    lk__bpe           bpe;
    lk__added         raw, normalized; /* added tokens, searched before and after normalisation */
    lk_tokenizer_file files[LK__TOKENIZER_FILES];
    int               files_count;
};

lk_status lk__tokenizer_create(lk_context *context, lk__text_kind kind, lk_tokenizer **tokenizer);
/* Keeps a copy of a file; a NUL follows the text. `name` is a literal. */
lk_status lk__tokenizer_keep_file(lk_tokenizer *tokenizer, const char *name, const char *text, size_t bytes);
/* Writes the files of a tokenizer that was read from none, and tokenizer_config.json where there is none. */
lk_status lk__tokenizer_write_files(lk_tokenizer *tokenizer);
/* Finds the end token; `name` is its name in tokenizer_config.json or special_tokens_map.json, or NULL. */
void lk__tokenizer_find_end(lk_tokenizer *tokenizer, const char *name);
/* Reads a tokenizer.json that is not yet kept as a file. */
lk_status lk__tokenizer_read_json(lk_context *context, const char *text, size_t bytes, lk_tokenizer **tokenizer);
lk_status lk__byte_tokenizer(lk_context *context, lk_tokenizer **tokenizer);

/* The pattern that splits text into characters, in the files of "char" tokenizers. */
#define LK__TOKENIZER_ANY_CHARACTER "[\\s\\S]"

/* The distinct characters of texts, for a "char" tokenizer. Zero it at first. */
typedef struct lk__text_characters {
    unsigned char seen[0x110000 / 8];
} lk__text_characters;
/* Adds the characters of a text. Invalid UTF-8 counts as U+FFFD, as when it is encoded; so a text in pieces must be cut
 * between characters. */
void lk__characters_add(lk__text_characters *characters, const char *text, size_t bytes);
/* LK_EINVAL: there are none. */
lk_status lk__characters_tokenizer(lk_context *context, const lk__text_characters *characters,
                                   lk_tokenizer **tokenizer);

#endif
