/* data/text/tokenizer_json.h - declarations shared by the files that read the parts of a tokenizer.json. */
#ifndef LK__TOKENIZER_JSON_H
#define LK__TOKENIZER_JSON_H

#include "base/json.h"
#include "data/text/tokenizer.h"

/* A string of the file, decoded, in memory that is used again for the next one. Zero it at first. */
typedef struct lk__tokenizer_string {
    char  *text; /* a NUL follows it */
    size_t length, room;
} lk__tokenizer_string;
/* LK_EFORMAT: the value is not a string. `what` names it. */
lk_status lk__tokenizer_decode_string(lk_context *context, const lk__json *value, const char *what,
                                      lk__tokenizer_string *string);
void      lk__tokenizer_string_free(lk_context *context, lk__tokenizer_string *string);

/* LK_EFORMAT: "PART is VALUE, which is not supported: SUPPORTED". */
lk_status lk__tokenizer_refuse(lk_context *context, const char *part, const lk__json *value, const char *supported);

/* A member of an object that is not null; false: it is missing or null. */
bool lk__tokenizer_member(const lk__json *object, const char *key, lk__json *value);
/* A boolean member; *value stays as it is if there is none. LK_EFORMAT: it is something else. */
lk_status lk__tokenizer_bool(lk_context *context, const lk__json *object, const char *part, const char *key,
                             bool *value);
/* Whether the member "type" of an object is `name`. */
bool lk__tokenizer_is(const lk__json *object, const char *name);

/* The parts, in the order in which they are read; `root` is the whole file. */
lk_status lk__tokenizer_read_normalizer(lk_tokenizer *tokenizer, const lk__json *root);
lk_status lk__tokenizer_read_pretokenizer(lk_tokenizer *tokenizer, const lk__json *root);
lk_status lk__tokenizer_check_ends(lk_tokenizer *tokenizer, const lk__json *root); /* post-processor and decoder */
lk_status lk__tokenizer_check_template(const lk_tokenizer *tokenizer); /* last: its tokens are in the vocabulary */
lk_status lk__tokenizer_read_model(lk_tokenizer *tokenizer, const lk__json *root);
lk_status lk__tokenizer_read_added(lk_tokenizer *tokenizer, const lk__json *root);

#endif
