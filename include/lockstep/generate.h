/* generate.h - text generation with a language model (gpt, llama): prompts are processed in chunks, then continued one
 * token at a time, with a cache of the keys and values of all earlier tokens. A prompt gives the same tokens in a batch
 * as on its own. */
#ifndef LOCKSTEP_GENERATE_H
#define LOCKSTEP_GENERATE_H

#include <lockstep/mesh.h>
#include <lockstep/store.h>
#include <lockstep/tokenizer.h>
#include <lockstep/transformer.h>

LK_BEGIN_DECLS

typedef struct lk_generator lk_generator; /* a model with its weights and cache; use from one thread */

typedef struct lk_generator_config {
    size_t                       size LK_ZERO;  /* sizeof this struct; set by LK_GENERATOR_CONFIG_INIT */
    const lk_transformer_config *model LK_ZERO; /* gpt or llama; copied */
    /* a path for lk_weights_load: a checkpoint, a Hugging Face directory or a safetensors file */
    const char     *weights LK_ZERO;
    const lk_store *store LK_ZERO; /* or a store of this model to copy the weights from, such as a training program's */
    uint64_t        seed LK_ZERO;  /* of the initial weights, if neither of these is given */
    int64_t         batch LK_ZERO; /* maximum number of prompts at once; 0 means 1 */
    /* maximum number of tokens in a prompt plus its continuation; 0 means the model's context */
    int64_t   context LK_ZERO;
    int64_t   chunk LK_ZERO;  /* tokens of each prompt computed at once; 0 means 32 */
    lk_dtype  dtype LK_ZERO;  /* LK_F32 or LK_F64 */
    lk_policy policy LK_ZERO; /* LK_POLICY_BF16: weights, activations and cache in bf16 */
    /* The ranks that generate together. All must pass the same config and make the same calls; each receives all
     * tokens. NULL: one rank. Borrowed. */
    lk_comm *comm LK_ZERO;
    /* The mesh of these ranks: the axis tensor splits the weights and the cache, and pipeline splits the layers; data
     * is not supported. NULL: a single axis, tensor. Borrowed. */
    const lk_mesh *mesh LK_ZERO;
} lk_generator_config;
#define LK_GENERATOR_CONFIG_INIT            \
    {                                       \
        .size = sizeof(lk_generator_config) \
    }

LK_API lk_status lk_generator_create(lk_context *context, const lk_generator_config *config, lk_generator **generator);
LK_API void      lk_generator_free(lk_generator *generator); /* NULL is fine; before its context */
/* Only plans: returns the memory that lk_generator_create would use, by kind, or fails as it would. With a mesh but no
 * comm, it plans for the mesh's rank. */
LK_API lk_status lk_generator_plan(lk_context *context, const lk_generator_config *config,
                                   size_t memory[LK_MEMORY_COUNT]);
/* The planned bytes of that kind that a generator uses. They are exact, except that 0 is returned for
 * LK_MEMORY_OTHER. */
LK_API size_t lk_generator_memory(const lk_generator *generator, lk_memory kind);
/* Bytes of weights that each step reads: all parameters except those looked up by token or position. */
LK_API size_t lk_generator_weight_bytes(const lk_generator *generator);

typedef struct lk_prompt {
    const int32_t *tokens;
    int64_t        count; /* at least 1 */
} lk_prompt;

/* Why a continuation ended. */
typedef enum lk_generate_end {
    LK_GENERATE_GOING,   /* it has not ended */
    LK_GENERATE_EOS,     /* a token that ends a text: the model's eos or more_eos, or the tokenizer's end token */
    LK_GENERATE_STOP,    /* a stop string */
    LK_GENERATE_TOKENS,  /* as many tokens as requested */
    LK_GENERATE_CONTEXT, /* as many tokens as the context holds */
    LK_GENERATE_CANCELED /* the callback ended it */
} lk_generate_end;
/* "eos", "stop", "tokens", "context", "canceled"; "" while the continuation has not ended */
LK_API const char *lk_generate_end_name(lk_generate_end end);

/* A new token of one prompt's continuation. */
typedef struct lk_generated {
    int             prompt; /* index of the prompt */
    int64_t         index;  /* of the token within the continuation, from 0 */
    int32_t         token;
    lk_generate_end end;
    /* the logits from which it was chosen: one per token of the vocabulary, in the generator's dtype, valid during the
     * call; NULL with no_logits */
    const void *logits;
    /* With a tokenizer: the text that this token completes, in whole UTF-8 characters and without an ending that may
     * become a stop string; at the end, all the remaining text, up to the stop string. Special tokens have no text.
     * Valid during the call. */
    const char *text;
    size_t      bytes;
} lk_generated;

typedef struct lk_generate_config {
    size_t           size LK_ZERO; /* sizeof this struct; set by LK_GENERATE_CONFIG_INIT */
    const lk_prompt *prompts LK_ZERO;
    int              prompts_count LK_ZERO; /* at most the generator's batch */
    int64_t          tokens LK_ZERO;      /* maximum number of new tokens per prompt; 0: up to the end of the context */
    double           temperature LK_ZERO; /* divides the logits; 0: the most probable token (greedy) */
    int64_t          top_k LK_ZERO;       /* choose among the top_k most probable tokens; 0: all */
    double           top_p LK_ZERO; /* choose among the smallest set whose probabilities add up to this; 0 or 1: all */
    uint64_t         seed LK_ZERO;
    bool             ignore_eos LK_ZERO;
    /* When the context is full, continue with its most recent half, which is recomputed. Otherwise the continuation
     * ends there. */
    bool slide LK_ZERO;
    /* strings that end a continuation, even if they span several tokens or are special tokens; they require a
     * tokenizer */
    const char *const  *stop LK_ZERO;
    int                 stop_count LK_ZERO;
    const lk_tokenizer *tokenizer LK_ZERO; /* for text and stop strings; NULL: token ids only */
    /* Called for each new token, prompt by prompt in every step. A negative result ends lk_generate with that status;
     * LK_END ends this prompt's continuation. */
    lk_status (*token)(void *user, const lk_generated *generated) LK_ZERO;
    void *user LK_ZERO;
    /* The callback needs no logits. A GPU then chooses the tokens, and steps are queued ahead of the callback;
     * otherwise every step waits until the logits are copied and the host has chosen the tokens. */
    bool no_logits LK_ZERO;
} lk_generate_config;
#define LK_GENERATE_CONFIG_INIT                              \
    {                                                        \
        .size = sizeof(lk_generate_config), .temperature = 1 \
    }

typedef struct lk_generate_times {
    /* number of prompt tokens computed in chunks: all but the last of each prompt and, with slide, those that were
     * recomputed */
    int64_t prompt_tokens;
    double  prompt_seconds;
    int64_t steps, tokens; /* one token at a time: number of steps, and of new tokens over all prompts */
    double  token_seconds;
} lk_generate_times;

/* Continues every prompt, from an empty cache. A random number is a function of (seed, the prompt's tokens, the number
 * of identical prompts before it, position), so tokens do not depend on the rest of the batch. LK_EINVAL: a prompt is
 * empty, is longer than the context, or has a token that is not in the vocabulary. LK_ENAN: logits are not finite.
 * times may be NULL. */
LK_API lk_status lk_generate(lk_generator *generator, const lk_generate_config *config, lk_generate_times *times);

LK_END_DECLS
#endif
