/* train/huggingface.h - config.json as text, and what its reader and its writer share. */
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

enum { LK__HF_GPT, LK__HF_LLAMA, LK__HF_MISTRAL, LK__HF_BERT, LK__HF_ARCHITECTURES };
/* The ones that are written, and read also by their model_type. */
extern const lk__huggingface_architecture lk__hf_architectures[LK__HF_ARCHITECTURES];

/* As lk_hf_config_read and lk_hf_labels_read, of text in memory; `label` starts messages. */
lk_status lk__hf_config_parse(lk_context *context, const char *label, const char *text, size_t length,
                              lk_transformer_config *config);
lk_status lk__hf_labels_parse(lk_context *context, const char *label, const char *text, size_t length,
                              lk_hf_labels **labels);

/* ---- huggingface_read.c: members of a JSON object ---- */

/* Members are read one after the other; after the first failure the others do nothing. */
typedef struct lk__huggingface_reader {
    lk_context *context;
    const char *label;
    lk__json    root;
    lk_status   status; /* of the first failure */
} lk__huggingface_reader;

/* Opens the text of a config.json; the reader borrows it. */
lk_status lk__hf_open(lk__huggingface_reader *reader, lk_context *context, const char *label, const char *text,
                      size_t length);
/* The member of that key, which may be written once; false if it is missing or null. */
bool lk__hf_get(lk__huggingface_reader *reader, const lk__json *object, const char *key, lk__json *value);
/* Fails with key and value: LABEL: "key" is VALUE: REASON. */
void lk__hf_refuse(lk__huggingface_reader *reader, const char *key, const lk__json *value, const char *reason, ...)
    __attribute__((format(printf, 4, 5)));

/* `missing` where the object has no such key. An integer is 1 to 2^31 - 1, a number finite. */
int64_t lk__hf_integer(lk__huggingface_reader *reader, const lk__json *object, const char *key, int64_t missing);
double  lk__hf_number(lk__huggingface_reader *reader, const lk__json *object, const char *key, double missing);
bool    lk__hf_flag(lk__huggingface_reader *reader, const lk__json *object, const char *key, bool missing);

#endif
