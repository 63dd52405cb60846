/* transformer.h - the options of transformers, their configuration, and their loss. */
#ifndef TRANSFORMER_H
#define TRANSFORMER_H

#include "options.h"

#include <lockstep.h>

#define TRANSFORMER_NAMES "gpt|llama|mixtral|encoder|gpt2|gpt2-medium|gpt2-large|llama-15m|llama-110m|llama-3.2-1b"

/* Rows of an option table. */
#define TRANSFORMER_OPTIONS                                                                                           \
    INTEGER("layers", "N", "6", 1, 4096, "gpt, llama, mixtral, encoder: number of blocks", .flags = OPTION_FIXED),    \
        INTEGER("heads", "N", "6", 1, 65536,                                                                          \
                "gpt, llama, mixtral, encoder: number of attention heads; must divide "                            \
                "--width", .flags = OPTION_FIXED),                                                                 \
        INTEGER("kv-heads", "N", NULL, 1, 65536,                                                                      \
                "llama, mixtral: number of key/value heads; must divide --heads (default --heads)",                   \
                .flags = OPTION_FIXED),                                                                               \
        INTEGER("width", "N", "384", 1, 1 << 24, "gpt, llama, mixtral, encoder: width of the hidden states",          \
                .flags = OPTION_FIXED),                                                                               \
        INTEGER("experts", "N", "8", 1, 65536, "mixtral: experts (feed-forward networks) per block",                  \
                .flags = OPTION_FIXED),                                                                               \
        INTEGER("experts-per-token", "N", "2", 1, 65536, "mixtral: experts that each token uses",                     \
                .flags = OPTION_FIXED),                                                                               \
        NUMBER("router-loss", "X", "0", 0, 1e6,                                                                       \
               "mixtral: weight of the auxiliary load-balancing loss; 0.02 is usual"),                                \
        INTEGER("vocabulary", "N", NULL, 1, 1 << 28, "transformers: rows of the embedding (default: tokens of the "   \
                                                     "tokenizer)",                                                    \
                .flags = OPTION_FIXED),                                                                               \
        NUMBER("dropout", "P", "0", 0, 0.999, "transformers: dropout of embeddings, residuals and attention"),        \
        NUMBER("rope-theta", "X", "10000", 1, 1e12, "llama, mixtral: base of the rotary frequencies",                 \
               .flags = OPTION_FIXED),                                                                                \
        FLAG("untied", "llama, mixtral: the output layer does not share the embedding's "                             \
                       "weights", .flags = OPTION_FIXED),                                                             \
        INTEGER("recompute-blocks", "N", NULL, 0, 4096,                                                               \
                "transformers: recompute the first N blocks in the backward pass")

/* A row of those that plan memory. */
#define MEMORY_OPTION                                                                                                  \
    TEXT("memory", "SIZE", NULL, "transformers: recompute as few blocks as needed for a rank to fit in SIZE, such as " \
         "4GiB; `lockstep plan` prints how many")

/* A transformer as a command uses it. */
typedef struct transformer {
    bool                  used; /* --model names one */
    lk_transformer_config config;
    const char *source; /* where a config.json was read: it, or the directory of a checkpoint; NULL: none was */
    int64_t     length; /* tokens of a sequence */
    size_t      budget; /* --memory in bytes; 0: none */
} transformer;

/* Reads --model and its options before the data is opened. checkpoint: the directory that is loaded or resumed, or
 * NULL; its config.json replaces one that its record names. Not a transformer: t->used stays false. 0, or the exit
 * status after the error was printed. */
int transformer_make(transformer *t, const char *command_name, const options *given, const char *checkpoint,
                     lk_context *context);
/* Reads --memory, which only some commands have. */
int transformer_budget(transformer *t, const char *command_name, const options *given);
/* Whether only the body of the weights is loaded: the classes are those of the data. */
bool transformer_new_head(const options *given);
/* After transformer_make: the vocabulary, or the number of classes, of the data set; recorded: the label of training,
 * where the data set has none. */
int transformer_use_data(transformer *t, const char *command_name, const options *given, const lk_dataset *data,
                         const lk_field *recorded);
/* Bytes of text for each token of a data set, in an evaluation for each that is scored; 0: not known. */
double transformer_token_bytes(const lk_dataset *data);
/* Records an encoder: the logits of its classes (N, classes). */
lk_tensor transformer_logits(const transformer *t, const lk_inputs *inputs);
/* Records the model and its loss over the fields of text data. */
lk_tensor transformer_loss(const transformer *t, const lk_inputs *inputs, double label_smoothing);
/* Sets the fewest recomputed blocks whose plan fits --memory; nothing without it. config's model reads `t`. */
int transformer_fit(transformer *t, const char *command_name, lk_context *context, const lk_trainer_config *config);

#endif
