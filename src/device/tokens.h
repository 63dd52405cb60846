/* device/tokens.h - choosing the next token of each prompt from its logits. */
#ifndef LK__DEVICE_TOKENS_H
#define LK__DEVICE_TOKENS_H

#include "base/base.h"

/* How the next token of a prompt is chosen: as train/sample.c does. */
typedef struct lk__device_sampling {
    double   temperature; /* 0: the most probable token */
    double   top_p;       /* 0 and 1: all */
    int64_t  top_k;       /* 0: all */
    uint64_t seed;
} lk__device_sampling;

/* A prompt whose tokens the device chooses. */
typedef struct lk__device_prompt {
    uint64_t hash; /* with `earlier`, `position` and the seed: the random number (lk__sample_uniform) */
    int64_t  earlier;
    int64_t  position; /* of the next token; the device counts it, and the steps, on */
    int64_t  step;
} lk__device_prompt;

/* A token for each row of logits, which becomes the input of the next step. Addresses are the device's. */
enum { LK__DEVICE_TOKEN_STEPS = 4 }; /* whose tokens are kept for the host */
typedef struct lk__device_tokens {
    const void                *logits; /* (rows, vocabulary) of type f32 or f64 */
    lk_dtype                   type;
    int64_t                    rows, vocabulary;
    bool                       sorts;    /* top_k or top_p leave some out */
    const lk__device_sampling *sampling; /* what both hold changes after the work was recorded */
    lk__device_prompt         *prompts;
    /* inputs of the next step, one a row; first: NULL, or by window */
    int32_t *tokens, *positions, *places, *first, *last;
    int64_t  window;
    /* the host's, from alloc_host: (LK__DEVICE_TOKEN_STEPS, rows), by step; -1: no logit is finite, or one is NaN */
    int32_t *chosen;
    void    *workspace; /* zeroed once; tokens_workspace bytes */
} lk__device_tokens;

#endif
