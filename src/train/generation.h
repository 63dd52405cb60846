/* train/generation.h - a part of generation: decides which text is complete. */
#ifndef LK__GENERATION_H
#define LK__GENERATION_H

#include "base/base.h"

#include <lockstep/generate.h>

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
typedef struct lk__generation_text {
    const char *text; /* NULL: there is none */
    size_t      bytes;
    bool        hidden; /* of a special token */
} lk__generation_text;

/* Adds a token's bytes. pending->out has the pending->out_bytes bytes that are complete now, until the next call.
 * `last`: all that is held is given. True: a stop string ends the continuation, and what precedes it is given. */
bool lk__pending_add(lk__generation_pending *pending, const lk__generation_stops *stops, lk__generation_text token,
                     bool last);

#endif
