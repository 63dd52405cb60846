/* huggingface.h - config.json and generation_config.json of Hugging Face's transformers, for the models of
 * transformer.h: GPT2LMHeadModel, LlamaForCausalLM, MistralForCausalLM (a llama with a window), MixtralForCausalLM (a
 * llama with experts), Qwen3ForCausalLM and Qwen3MoeForCausalLM (these two with norms of queries and keys) and
 * BertForSequenceClassification. Weights are loaded by lk_weights_load. */
#ifndef LOCKSTEP_HUGGINGFACE_H
#define LOCKSTEP_HUGGINGFACE_H

#include <lockstep/context.h>
#include <lockstep/transformer.h>

LK_BEGIN_DECLS

/* Reads a config.json, or the one in a directory, as versions 4 and 5 of transformers write it. Missing keys get the
 * defaults of transformers; keys that do not change what the model computes are ignored, and a warning in the log names
 * unknown keys. The tokens that end a text include those in a generation_config.json in the same directory; ids beyond
 * the vocabulary are ignored. LK_EFORMAT: transformer.h does not support the model (unknown architecture, activation,
 * position type, …); the message names the key and its value. LK_ENOENT: there is no such file. */
LK_API lk_status lk_hf_config_read(lk_context *context, const char *path, lk_transformer_config *config);

typedef struct lk_hf_options {
    int                reserved LK_ZERO;
    lk_dtype           dtype LK_ZERO;       /* of the saved weights: LK_F32 or LK_F64 */
    const char *const *class_names LK_ZERO; /* encoder: one for each class; NULL: "LABEL_0", … */
} lk_hf_options;

/* Writes a config.json for versions 4 and 5. Returns its length and stores at most size - 1 bytes and a NUL, like
 * snprintf. 0: transformers has no such model, for example a llama with a window and biases. */
LK_API size_t lk_hf_config_write_at(const lk_transformer_config *config, char *out, size_t size, lk_hf_options options);
#define lk_hf_config_write(config, out, size, ...) \
    lk_hf_config_write_at(config, out, size, LK_OPTIONS(lk_hf_options, ##__VA_ARGS__))
/* The same for generation_config.json, which contains the tokens that begin, end and pad a text. Returns 0 for an
 * encoder, which does not generate text. */
LK_API size_t lk_hf_generation_config_write(const lk_transformer_config *config, char *out, size_t size);

typedef struct lk_hf_labels lk_hf_labels; /* the class names in a config.json (id2label); read-only */

/* Reads the class names of an encoder; LK_EFORMAT as above. */
LK_API lk_status   lk_hf_labels_read(lk_context *context, const char *path, lk_hf_labels **labels);
LK_API int64_t     lk_hf_labels_count(const lk_hf_labels *labels);
LK_API const char *lk_hf_labels_at(const lk_hf_labels *labels, int64_t index); /* NULL past the last */
LK_API void        lk_hf_labels_free(lk_hf_labels *labels);                    /* NULL is fine; before its context */

LK_END_DECLS
#endif
