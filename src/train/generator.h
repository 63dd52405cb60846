/* train/generator.h - a generator: its programs, their store and inputs. */
#ifndef LK__GENERATOR_H
#define LK__GENERATOR_H

#include "run/generator_interface.h"
#include "train/generation.h"

enum { LK__GENERATOR_CHUNK, LK__GENERATOR_STEP, LK__GENERATOR_PROGRAMS };
enum {
    LK__GENERATOR_TOKENS,
    LK__GENERATOR_POSITIONS,
    LK__GENERATOR_ROWS,
    LK__GENERATOR_FIRST,
    LK__GENERATOR_LAST,
    LK__GENERATOR_INPUTS
};

struct lk_generator {
    lk_context             *context;
    lk_generator_config     config;
    lk_transformer_config   model;
    lk_graph               *graph[LK__GENERATOR_PROGRAMS];
    lk_plan                *plan[LK__GENERATOR_PROGRAMS];
    lk_store               *store;
    lk_program             *program[LK__GENERATOR_PROGRAMS];
    int64_t                 width[LK__GENERATOR_PROGRAMS]; /* tokens of each prompt in a run */
    int32_t                *inputs[LK__GENERATOR_INPUTS];  /* (batch, width) */
    void                   *logits;                        /* (batch, vocabulary) */
    const lk__kernel_entry *kernel;                        /* the CPU's choose_tokens, where the host chooses */
    lk__kernel_call         choice;                        /* for one prompt */
    lk__run_tokens         *queue;   /* steps whose tokens the device chooses; NULL: it does not */
    lk__device_prompt      *prompts; /* with a queue: batch of them */
};

/* Bytes of the logits of this many prompts. */
static inline size_t lk__generator_logits_bytes(const lk_generator *g, int64_t prompts)
{
    return (size_t)(prompts * g->model.vocabulary) * lk_dtype_size(g->config.dtype);
}

#endif
