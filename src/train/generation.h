/* train/generation.h - the parts of generation: how a token is chosen, and which text is complete. */
#ifndef LK__GENERATION_H
#define LK__GENERATION_H

#include "base/base.h"

#include <lockstep/generate.h>

/* ---- sample.c ---- */

typedef struct lk__generation_candidate {
    double  weight; /* logit, then probability */
    int32_t token;
} lk__generation_candidate;

typedef struct lk__generation_sampling {
    double  temperature;
    int64_t top_k; /* 0: all */
    double  top_p; /* 0 and 1: all */
} lk__generation_sampling;

/* The token for a uniform number in (0, 1); scratch: one candidate for each logit. -1: no logit is finite, or one is
 * NaN. */
int32_t lk__sample(const lk__generation_sampling *sampling, lk_dtype type, const void *logits, int64_t vocabulary,
                   double uniform, lk__generation_candidate *scratch);
/* The number for a position of a prompt; `earlier` prompts of the call are equal to it. */
double lk__sample_uniform(uint64_t seed, uint64_t prompt_hash, int64_t earlier, int64_t position);

/* ---- stop.c ---- */

/* The bytes of one continuation that are not given out yet. Those of special tokens are compared with stop strings, and
 * never given. */
typedef struct lk__generation_pending {
    char  *text, *hidden; /* bytes; whether each is of a special token */
    size_t bytes, given;  /* held; of these, done with by the latest call */
    char  *out;           /* what the latest call gives */
    size_t out_bytes;
} lk__generation_pending;

typedef struct lk__generation_stops {
    const char *const *text;
    int                count;
} lk__generation_stops;

/* Bytes that a continuation needs: of the longest stop string, the longest token and a character, for each array. */
size_t lk__pending_room(const lk__generation_stops *stops, const lk_tokenizer *tokenizer);
void   lk__pending_begin(lk__generation_pending *pending, char *memory, size_t room);
/* Adds a token's bytes. pending->out has the pending->out_bytes bytes that are complete now, until the next call.
 * `last`: all that is held is given. True: a stop string ends the continuation, and what precedes it is given. */
bool lk__pending_add(lk__generation_pending *pending, const lk__generation_stops *stops, const char *text, size_t bytes,
                     bool hidden, bool last);

#endif
