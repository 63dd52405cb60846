/* choose_tokens.c - chooses the next token of each prompt from its logits, and writes the inputs of the next step.
 * Sorting and choosing are scalar and in double, whatever the logits' type (device/choose_token.c); rows run in
 * parallel. */
#include "device/cpu/cpu.h"
#include "device/tokens.h"

typedef struct choice {
    const lk__kernel_call     *call;
    const lk__device_sampling *sampling;
    lk__device_prompt         *prompts;
    int32_t                   *output[LK__TOKENS_OUTPUTS];
    int64_t                    rows, vocabulary;
} choice;

static void take_token(const choice *c, int64_t row, int32_t token)
{
    lk__device_prompt *p = &c->prompts[row];
    int64_t            window = c->call->attrs->window;
    int32_t *const    *to = c->output;
    to[LK__TOKENS_CHOSEN][p->step % LK__DEVICE_TOKEN_STEPS * c->rows + row] = token;
    p->step++;
    p->position++;
    if (!to[LK__TOKENS_PLACES] || to[LK__TOKENS_PLACES][row] < 0) return;
    int32_t place = ++to[LK__TOKENS_PLACES][row];
    if (to[LK__TOKENS_TOKENS]) to[LK__TOKENS_TOKENS][row] = token < 0 ? 0 : token;
    if (to[LK__TOKENS_POSITIONS]) to[LK__TOKENS_POSITIONS][row] = place;
    if (to[LK__TOKENS_LAST]) to[LK__TOKENS_LAST][row] = place;
    if (to[LK__TOKENS_FIRST]) to[LK__TOKENS_FIRST][row] = place >= window ? (int32_t)(place - window + 1) : 0;
}

static void choose_row(void *argument, int64_t row, int worker)
{
    const choice            *c = argument;
    const lk__device_prompt *p = &c->prompts[row];
    lk__tokens_row           logits = {(const REAL *)c->call->in[LK__TOKENS_LOGITS].data + row * c->vocabulary,
                             LK_REAL_BITS == 64 ? LK_F64 : LK_F32, c->vocabulary};
    lk__tokens_candidate    *scratch = (lk__tokens_candidate *)c->call->workspace + worker * c->vocabulary;
    double                   uniform = lk__sample_uniform(c->sampling->seed, p->hash, p->earlier, p->position);
    take_token(c, row, lk__sample(c->sampling, &logits, uniform, scratch));
}

size_t KERNEL(choose_tokens_workspace)(const lk__kernel_call *call, int threads)
{
    return (size_t)call->in[LK__TOKENS_LOGITS].dims[1] * (size_t)threads * sizeof(lk__tokens_candidate);
}

void KERNEL(choose_tokens)(const lk__kernel_call *call)
{
    const int64_t *dims = call->in[LK__TOKENS_LOGITS].dims;
    choice         c = {.call = call,
                        .sampling = call->in[LK__TOKENS_SAMPLING].data,
                        .prompts = call->out[LK__TOKENS_PROMPTS].data,
                        .rows = dims[0],
                        .vocabulary = dims[1]};
    for (int i = 0; i < call->outputs; i++)
        if (i != LK__TOKENS_PROMPTS) c.output[i] = call->out[i].data;
    lk__pool_run(call->pool, c.rows, choose_row, &c);
}
