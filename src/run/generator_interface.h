/* run/generator_interface.h - the internal calls of a program that generation uses: steps whose tokens the device
 * chooses, so that the next step begins without the host, which reads the tokens later. */
#ifndef LK__GENERATOR_INTERFACE_H
#define LK__GENERATOR_INTERFACE_H

#include "device/device.h"
#include "device/tokens.h"

#include <lockstep/program.h>

typedef struct lk__run_tokens lk__run_tokens;

/* The program's inputs, i32 with one number per prompt. The device sets them for the next step: the token, and the same
 * number for the position, the row of the cache and the last key; with a window also the first key. */
typedef struct lk__run_token_inputs {
    const char *tokens, *positions, *rows, *first, *last; /* names; first: NULL without a window */
    int64_t     window;
} lk__run_token_inputs;

/* Steps of a program that evaluates and whose output 0 is the logits of each prompt, f32 or f64. *tokens NULL: its
 * device chooses no tokens. Free it before the program. */
lk_status lk__tokens_create(lk_program *program, const lk__run_token_inputs *inputs, lk__run_tokens **tokens);
void      lk__tokens_free(lk__run_tokens *tokens);
size_t    lk__tokens_memory(const lk__run_tokens *tokens, lk_memory kind); /* bytes that it holds */

/* Before the first step: copies the inputs that are bound, and what follows from them. One prompt for each sample of
 * the step. Nothing is queued. prompts: `step` is set here. */
lk_status lk__tokens_begin(lk__run_tokens *tokens, const lk__device_sampling *sampling,
                           const lk__device_prompt *prompts);
/* Queues a step; at most LK__DEVICE_TOKEN_STEPS that were not read. */
lk_status lk__tokens_queue(lk__run_tokens *tokens);
/* Waits for the first step that was not read: *chosen has a token for each prompt, -1: its logits are not finite. Until
 * the next call. */
lk_status lk__tokens_read(lk__run_tokens *tokens, const int32_t **chosen);

#endif
