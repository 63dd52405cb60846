/* device/cuda/choose_tokens.h - what the kernels that choose tokens share: their memory, the random number of a row,
 * and the use of its token. */
#ifndef LK__CUDA_CHOOSE_TOKENS_H
#define LK__CUDA_CHOOSE_TOKENS_H

#include "device/cuda/backend.h"
#include "device/cuda/random.h"

#include <math.h>

/* Of a chunk of a row, or of all of it. */
struct chunk_result {
    double  most, total; /* the largest logit, NaN where there is one; the sum of exp((logit - most) / temperature) */
    int64_t best; /* the first token with that logit; of a row, -1: it has NaN, or no finite logit is its largest */
};

/* a weight: exp((logit - most) / temperature) in units of 2^-44; 2^19 of them can be added */
typedef unsigned long long whole;

/* The operands of choose_tokens. */
struct token_operands {
    const void                *logits; /* (rows, vocabulary) of type f32 or f64 */
    lk_dtype                   type;
    int64_t                    rows, vocabulary, window;
    bool                       sorts;
    const lk__device_sampling *sampling;
    lk__device_prompt         *prompts;
    int32_t                   *chosen, *places, *tokens, *positions, *first, *last;
};

struct sampler {
    token_operands t;
    int64_t        chunks;
    chunk_result  *results; /* (rows, chunks) */
    chunk_result  *all;     /* (rows) */
    whole         *weights; /* (rows, vocabulary), where tokens are left out */
};

/* lk__sample_uniform of the row's prompt. */
static __device__ inline double uniform_of(const sampler &s, int64_t row)
{
    const lk__device_prompt *p = s.t.prompts + row;
    lk__random               random = random_make(s.t.sampling->seed, LK__FOR_SAMPLE, p->hash);
    uint32_t                 bits[4];
    random4(random, (uint64_t)p->earlier, (uint32_t)p->position, bits);
    return ((double)(((uint64_t)bits[0] << 32 | bits[1]) >> 11) + 0.5) * 1.1102230246251565e-16; /* 2^-53 */
}

static __device__ __forceinline__ double weight_of(double logit, double most, double temperature)
{
    return exp((logit - most) / temperature);
}

/* One thread a row. A row without a place has no prompt, or one that has ended. */
static __device__ inline void take_token(const sampler &s, int64_t row, int64_t token)
{
    lk__device_prompt *p = s.t.prompts + row;
    s.t.chosen[p->step % LK__DEVICE_TOKEN_STEPS * s.t.rows + row] = (int32_t)token;
    p->step++;
    p->position++;
    if (!s.t.places || s.t.places[row] < 0) return;
    int32_t place = ++s.t.places[row];
    if (s.t.tokens) s.t.tokens[row] = token < 0 ? 0 : (int32_t)token;
    if (s.t.positions) s.t.positions[row] = place;
    if (s.t.last) s.t.last[row] = place;
    if (s.t.first) s.t.first[row] = place >= s.t.window ? (int32_t)(place - s.t.window + 1) : 0;
}

/* choose_top.cu: once the rows' largest logits are known. */
void lk__cuda_choose_top(cudaStream_t stream, const sampler *s);

#endif
