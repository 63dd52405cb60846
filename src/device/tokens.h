/* device/tokens.h - choosing the next token of each prompt from its logits: the operands of choose_tokens. */
#ifndef LK__DEVICE_TOKENS_H
#define LK__DEVICE_TOKENS_H

#include "base/base.h"

/* How the next token of a prompt is chosen: by temperature, top-k and top-p, in this order. */
typedef struct lk__device_sampling {
    double   temperature; /* 0: the most probable token */
    double   top_p;       /* 0 and 1: all */
    int64_t  top_k;       /* 0: all */
    uint64_t seed;
} lk__device_sampling;

/* A prompt whose tokens are chosen. */
typedef struct lk__device_prompt {
    uint64_t hash; /* with `earlier`, `position` and the seed: the random number (lk__sample_uniform) */
    int64_t  earlier;
    int64_t  position; /* of the next token; the kernel counts it, and the steps, on */
    int64_t  step;
    uint64_t ended; /* for kernels of many threads: the parts of its row that are done; 0 between steps */
} lk__device_prompt;

enum { LK__DEVICE_TOKEN_STEPS = 4 }; /* whose tokens are kept for the host */

/* Operands of choose_tokens. A token for each row of logits becomes the input of the next step. Where work is recorded,
 * sampling and prompts change after it. */
enum {
    LK__TOKENS_LOGITS, /* (rows, vocabulary) */
    LK__TOKENS_SAMPLING,
    LK__TOKENS_INPUTS,
};
enum {
    LK__TOKENS_CHOSEN, /* (LK__DEVICE_TOKEN_STEPS, rows), by step; -1: no logit is finite, or one is NaN */
    LK__TOKENS_PROMPTS,
    LK__TOKENS_PLACES, /* in the cache; below 0: a row without a prompt, or whose prompt has ended */
    LK__TOKENS_TOKENS, /* this and those below: inputs of the next step */
    LK__TOKENS_POSITIONS,
    LK__TOKENS_FIRST, /* by the attribute `window` */
    LK__TOKENS_LAST,
    LK__TOKENS_OUTPUTS,
};

/* Whether tokens are left out: the attribute `sorts`. */
static inline bool lk__sampling_sorts(const lk__device_sampling *s, int64_t vocabulary)
{
    return s->temperature > 0 && ((s->top_k > 0 && s->top_k < vocabulary) || (s->top_p > 0 && s->top_p < 1));
}

/* ---- choose_token.c: one row, on the host ---- */

typedef struct lk__tokens_candidate {
    double  weight; /* logit, then probability */
    int32_t token;
} lk__tokens_candidate;

typedef struct lk__tokens_row {
    const void *logits;
    lk_dtype    type; /* f32 or f64 */
    int64_t     vocabulary;
} lk__tokens_row;

/* The token for a uniform number in (0, 1); scratch: one candidate for each logit. -1: no logit is finite, or one is
 * NaN. */
int32_t lk__sample(const lk__device_sampling *sampling, const lk__tokens_row *row, double uniform,
                   lk__tokens_candidate *scratch);
/* The number for a position of a prompt; `earlier` prompts of the call are equal to it. */
double lk__sample_uniform(uint64_t seed, uint64_t prompt_hash, int64_t earlier, int64_t position);

#endif
