/* train/huggingface.h - config.json as text, and declarations shared by its reader and its writer. */
#ifndef LK__HUGGINGFACE_H
#define LK__HUGGINGFACE_H

#include "base/base.h"
#include "base/json.h"

#include <lockstep/huggingface.h>

/* An architecture of transformers and the model that it is here. */
typedef struct lk__huggingface_architecture {
    const char         *name;       /* in "architectures" */
    const char         *model_type; /* and in "model_type" */
    lk_transformer_kind kind;
} lk__huggingface_architecture;

enum {
    LK__HF_GPT,
    LK__HF_LLAMA,
    LK__HF_MISTRAL,
    LK__HF_MIXTRAL,
    LK__HF_QWEN3,
    LK__HF_QWEN3_MOE,
    LK__HF_BERT,
    LK__HF_ARCHITECTURES
};
/* The ones that are written, and read also by their model_type. */
extern const lk__huggingface_architecture lk__hf_architectures[LK__HF_ARCHITECTURES];

/* Like lk_hf_config_read and lk_hf_labels_read, of text in memory; `label` starts messages. */
lk_status lk__hf_config_parse(lk_context *context, const char *label, const char *text, size_t length,
                              lk_transformer_config *config);
lk_status lk__hf_labels_parse(lk_context *context, const char *label, const char *text, size_t length,
                              lk_hf_labels **labels);

/* ---- huggingface_read.c: members of a JSON object ---- */

enum { LK__HF_ASKED = 96 };

/* Members are read one after the other; after the first failure the others do nothing. */
typedef struct lk__huggingface_reader {
    lk_context *context;
    const char *label;
    lk__json    root;
    lk_status   status;              /* of the first failure */
    const char *asked[LK__HF_ASKED]; /* keys of the root that lk__hf_get was asked for, once each */
    int         asked_count;
} lk__huggingface_reader;

/* Opens the text of a config.json; the reader borrows it. */
lk_status lk__hf_open(lk__huggingface_reader *reader, lk_context *context, const char *label, const char *text,
                      size_t length);
/* The member of that key, which may be written once; false if it is missing or null. */
bool lk__hf_get(lk__huggingface_reader *reader, const lk__json *object, const char *key, lk__json *value);
/* Fails with key and value: LABEL: "key" is VALUE: REASON. */
void lk__hf_refuse(lk__huggingface_reader *reader, const char *key, const lk__json *value, const char *reason, ...)
    __attribute__((format(printf, 4, 5)));

/* `missing` where the object has no such key. An integer is 1 to 2^31 - 1, a number finite. null is refused, as
 * transformers does. */
int64_t lk__hf_integer(lk__huggingface_reader *reader, const lk__json *object, const char *key, int64_t missing);
double  lk__hf_number(lk__huggingface_reader *reader, const lk__json *object, const char *key, double missing);
double  lk__hf_positive(lk__huggingface_reader *reader, const lk__json *object, const char *key, double missing);
bool    lk__hf_flag(lk__huggingface_reader *reader, const lk__json *object, const char *key, bool missing);

/* Refuse any other value than the one that is supported; a key may be missing. null counts as false; of a text it is
 * fine with `null`. */
void lk__hf_require_flag(lk__huggingface_reader *reader, const char *key, bool supported);
void lk__hf_require_text(lk__huggingface_reader *reader, const char *key, const char *supported, bool null);
void lk__hf_require_one(lk__huggingface_reader *reader, const lk__json *object, const char *key); /* the number 1 */
void lk__hf_require_null(lk__huggingface_reader *reader, const char *key, const char *reason);
/* Refuses anything but null, false, 0 and what has no members. */
void lk__hf_require_nothing(lk__huggingface_reader *reader, const char *key, const char *reason);

/* ---- huggingface_keys.c: keys that other code of transformers than the model's reads ---- */

enum { LK__HF_UNKNOWN = 512 };
/* Refuses the values that change what a model computes. */
void lk__hf_check_shared_keys(lk__huggingface_reader *reader, const lk_transformer_config *config);
/* The keys that neither were asked for nor are known to change nothing, as `"a", "b"`; "" where there are none. */
void lk__hf_list_unknown(const lk__huggingface_reader *reader, char out[LK__HF_UNKNOWN]);

/* ---- huggingface_tokens.c ---- */

/* Sets bos, eos, more_eos and pad; the ids are used for missing keys. The vocabulary is set. */
void lk__hf_read_tokens(lk__huggingface_reader *reader, lk_transformer_config *config, int64_t bos, int64_t eos,
                        int64_t pad);
/* Adds the tokens of the text of a generation_config.json: those that end a text, and others that the config.json does
 * not have. */
lk_status lk__hf_generation_parse(lk_context *context, const char *label, const char *text, size_t length,
                                  lk_transformer_config *config);

/* ---- huggingface_rope.c ---- */

void lk__hf_read_rope(lk__huggingface_reader *reader, lk_transformer_config *config);

#endif
