/* generate.c - a call of generation: prompts fill the cache in chunks, then every step yields one token per prompt. On
 * the CPU, and where the caller requests logits, the host chooses it; on a GPU the device does, and steps are queued
 * ahead of the tokens that the host has read. */
#include "train/generator.h"

#include "base/config.h"
#include "base/hash.h"

#include <lockstep/program.h>
#include <string.h>

typedef struct continuation {
    int64_t                length, made; /* tokens of the prompt; new ones */
    uint64_t               hash;
    int64_t                earlier;      /* equal prompts before it */
    int32_t               *tokens;       /* that the next one is computed from: room for the context and one more */
    int64_t                used, filled; /* of these; of which the cache has keys and values */
    lk_generate_end        end;
    lk__generation_pending pending;
} continuation;

typedef struct call {
    lk_generator        *g;
    lk_generate_config   config;
    lk__device_sampling  sampling;
    lk__generation_stops stops;
    continuation        *of; /* one for each prompt */
    int32_t             *tokens;
    char                *text;
    size_t               room; /* of text for each prompt */
    lk_generate_times    times;
} call;

const char *lk_generate_end_name(lk_generate_end end)
{
    static const char *const names[] = {"", "eos", "stop", "tokens", "context", "canceled"};
    return (unsigned)end < sizeof names / sizeof *names ? names[end] : "";
}

static lk_status check_prompt(const call *c, int index)
{
    const lk_prompt *p = &c->config.prompts[index];
    lk_context      *context = c->g->context;
    if (p->count < 1 || !p->tokens)
        return lk__fail(context, LK_EINVAL, "prompt %d is empty: expected at least one token", index);
    if (p->count > c->g->config.context)
        return lk__fail(context, LK_EINVAL, "prompt %d has %lld tokens, but the context is only %lld", index,
                        (long long)p->count, (long long)c->g->config.context);
    for (int64_t i = 0; i < p->count; i++)
        if (p->tokens[i] < 0 || p->tokens[i] >= c->g->model.vocabulary)
            return lk__fail(context, LK_EINVAL,
                            "token %lld of prompt %d is %d, but the vocabulary has %lld tokens, 0 to %lld",
                            (long long)i, index, (int)p->tokens[i], (long long)c->g->model.vocabulary,
                            (long long)c->g->model.vocabulary - 1);
    return LK_OK;
}

static lk_status check_call(const call *c)
{
    const lk_generate_config *config = &c->config;
    lk_context               *context = c->g->context;
    if (config->prompts_count < 1 || config->prompts_count > c->g->config.batch || !config->prompts)
        return lk__fail(context, LK_EINVAL, "cannot generate for %d prompts: the generator takes 1 to %lld at once",
                        config->prompts_count, (long long)c->g->config.batch);
    if (!(config->temperature >= 0 && config->temperature <= 1e6) || config->top_k < 0 ||
        !(config->top_p >= 0 && config->top_p <= 1) || config->tokens < 0)
        return lk__fail(context, LK_EINVAL,
                        "temperature %g, top_k %lld, top_p %g and %lld tokens are invalid: none may be negative, "
                        "temperature must be at most 1e6, and top_p at most 1",
                        config->temperature, (long long)config->top_k, config->top_p, (long long)config->tokens);
    if (config->stop_count > 0 && !config->tokenizer)
        return lk__fail(context, LK_EINVAL, "stop strings need a tokenizer");
    if (config->stop_count < 0)
        return lk__fail(context, LK_EINVAL, "stop_count is %d; expected 0 or more", config->stop_count);
    for (int i = 0; i < config->stop_count; i++)
        if (!config->stop || !config->stop[i]) return lk__fail(context, LK_EINVAL, "stop string %d is NULL", i);
    for (int i = 0; i < config->prompts_count; i++) {
        lk_status status = check_prompt(c, i);
        if (status < 0) return status;
    }
    return LK_OK;
}

static size_t tokens_bytes(const call *c)
{
    return (size_t)(c->config.prompts_count * (c->g->config.context + 1)) * sizeof(int32_t);
}

static lk_status begin_call(call *c)
{
    lk_context *context = c->g->context;
    size_t      count = (size_t)c->config.prompts_count;
    if (!(c->of = lk__alloc(context, LK_MEMORY_OTHER, count * sizeof *c->of)) ||
        !(c->tokens = lk__alloc(context, LK_MEMORY_OTHER, tokens_bytes(c))))
        return LK_ENOMEM;
    if (c->config.tokenizer) {
        c->room = lk__pending_room(&c->stops, c->config.tokenizer);
        if (!(c->text = lk__alloc(context, LK_MEMORY_OTHER, count * c->room))) return LK_ENOMEM;
    }
    for (size_t i = 0; i < count; i++) {
        const lk_prompt *p = &c->config.prompts[i];
        continuation    *x = &c->of[i];
        size_t           bytes = (size_t)p->count * sizeof *p->tokens;
        *x = (continuation){.length = p->count, .used = p->count};
        x->tokens = c->tokens + (int64_t)i * (c->g->config.context + 1);
        memcpy(x->tokens, p->tokens, bytes);
        x->hash = lk__hash64(p->tokens, bytes, 0);
        for (size_t k = 0; k < i; k++) x->earlier += c->of[k].hash == x->hash;
        if (c->text) lk__pending_begin(&x->pending, c->text + i * c->room, c->room);
    }
    return LK_OK;
}

static void end_call(call *c)
{
    size_t count = (size_t)c->config.prompts_count;
    lk__free(c->g->context, LK_MEMORY_OTHER, c->text, count * c->room);
    lk__free(c->g->context, LK_MEMORY_OTHER, c->tokens, tokens_bytes(c));
    lk__free(c->g->context, LK_MEMORY_OTHER, c->of, count * sizeof *c->of);
}

/* The inputs of slot `at`: a token at a position; position below 0: none. */
static void set_input(lk_generator *g, int64_t at, int32_t token, int64_t position)
{
    bool used = position >= 0;
    g->inputs[LK__GENERATOR_TOKENS][at] = used ? token : 0;
    g->inputs[LK__GENERATOR_POSITIONS][at] = used ? (int32_t)position : 0;
    g->inputs[LK__GENERATOR_ROWS][at] = (int32_t)position;
    g->inputs[LK__GENERATOR_FIRST][at] =
        g->model.window > 0 && position >= g->model.window ? (int32_t)(position - g->model.window + 1) : 0;
    g->inputs[LK__GENERATOR_LAST][at] = (int32_t)position;
}

/* Tokens before the last one that are not in the cache: the most of any prompt. */
static int64_t missing_rows(const call *c)
{
    int64_t most = 0;
    for (int i = 0; i < c->config.prompts_count; i++) {
        const continuation *x = &c->of[i];
        if (x->end == LK_GENERATE_GOING && x->used - 1 - x->filled > most) most = x->used - 1 - x->filled;
    }
    return most;
}

/* Fills the cache, chunk by chunk: at first with the prompts. */
static lk_status fill_cache(call *c)
{
    lk_generator *g = c->g;
    int64_t       width = g->width[LK__GENERATOR_CHUNK];
    lk_status     status = LK_OK;
    while (status >= 0 && missing_rows(c) > 0) {
        for (int i = 0; i < c->config.prompts_count; i++) {
            continuation *x = &c->of[i];
            int64_t       end = x->end == LK_GENERATE_GOING ? x->used - 1 : x->filled;
            for (int64_t t = 0; t < width; t++) {
                bool used = x->filled < end;
                set_input(g, i * width + t, used ? x->tokens[x->filled] : 0, used ? x->filled : -1);
                x->filled += used;
                c->times.prompt_tokens += used;
            }
        }
        status = lk_program_run(g->program[LK__GENERATOR_CHUNK], LK_EVALUATE);
    }
    return status;
}

static bool is_end_token(const call *c, int32_t token)
{
    const lk_transformer_config *model = &c->g->model;
    if (c->config.ignore_eos) return false;
    for (int i = 0; i < model->more_eos_count; i++)
        if (token == model->more_eos[i]) return true;
    return token == model->eos || (c->config.tokenizer && lk_tokenizer_is_end(c->config.tokenizer, token));
}

/* Whether a continuation ends with its new token, apart from stop strings. */
static lk_generate_end end_of(const call *c, const continuation *x, int32_t token)
{
    if (is_end_token(c, token)) return LK_GENERATE_EOS;
    if (c->config.tokens > 0 && x->made >= c->config.tokens) return LK_GENERATE_TOKENS;
    return x->used > c->g->config.context && !c->config.slide ? LK_GENERATE_CONTEXT : LK_GENERATE_GOING;
}

/* Adds a token to those that the next one is computed from; where the context is full, only its latest half remains. */
static void append_token(const call *c, continuation *x, int32_t token)
{
    int64_t context = c->g->config.context, kept = context > 1 ? context / 2 : 1;
    x->tokens[x->used++] = token;
    x->made++;
    if (x->used <= context || !c->config.slide) return;
    memmove(x->tokens, x->tokens + x->used - kept, (size_t)kept * sizeof *x->tokens);
    x->used = kept;
    x->filled = 0;
}

static void add_text(call *c, continuation *x, lk_generated *out)
{
    const lk_tokenizer *tokenizer = c->config.tokenizer;
    bool                hidden = out->end == LK_GENERATE_EOS || lk_tokenizer_is_special(tokenizer, out->token);
    lk__generation_text token = {.hidden = hidden};
    token.text = lk_tokenizer_token(tokenizer, out->token, &token.bytes);
    if (lk__pending_add(&x->pending, &c->stops, token, out->end != LK_GENERATE_GOING)) out->end = LK_GENERATE_STOP;
    out->text = x->pending.out;
    out->bytes = x->pending.out_bytes;
}

/* A new token of prompt i, which is reported. logits: NULL, or what it was chosen from. */
static lk_status add_token(call *c, int i, int32_t token, const void *logits)
{
    continuation *x = &c->of[i];
    if (token < 0)
        return lk__fail(c->g->context, LK_ENAN,
                        "the logits for token %lld of prompt %d are not finite: the weights are damaged",
                        (long long)(x->length + x->made), i);
    append_token(c, x, token);
    c->times.tokens++;
    lk_generated out = {.prompt = i, .index = x->made - 1, .token = token, .logits = logits, .text = ""};
    out.end = end_of(c, x, token);
    if (c->config.tokenizer) add_text(c, x, &out);
    x->end = out.end;
    lk_status status = c->config.token ? c->config.token(c->config.user, &out) : LK_OK;
    if (status > 0 && x->end == LK_GENERATE_GOING) x->end = LK_GENERATE_CANCELED;
    return status;
}

/* Sets the inputs of a step; *going: the prompts that have not ended. */
static void set_inputs(call *c, int *going)
{
    *going = 0;
    for (int i = 0; i < c->config.prompts_count; i++) {
        continuation *x = &c->of[i];
        bool          runs = x->end == LK_GENERATE_GOING;
        set_input(c->g, i, runs ? x->tokens[x->used - 1] : 0, runs ? x->used - 1 : -1);
        *going += runs;
    }
}

/* ---- steps whose tokens the host chooses ---- */

static int32_t choose_token(call *c, int i, const void *logits)
{
    const continuation *x = &c->of[i];
    lk__kernel_call    *choice = &c->g->choice;
    lk__device_prompt   prompt = {.hash = x->hash, .earlier = x->earlier, .position = x->length + x->made};
    int32_t             chosen[LK__DEVICE_TOKEN_STEPS];
    choice->in[LK__TOKENS_LOGITS].data = (void *)logits;
    choice->in[LK__TOKENS_SAMPLING].data = &c->sampling;
    choice->out[LK__TOKENS_CHOSEN].data = chosen;
    choice->out[LK__TOKENS_PROMPTS].data = &prompt;
    c->g->kernel->run(choice);
    return chosen[0];
}

/* One token of every prompt that has not ended; *going: how many go on. */
static lk_status run_step(call *c, int *going)
{
    lk_generator *g = c->g;
    lk_program   *program = g->program[LK__GENERATOR_STEP];
    set_inputs(c, going);
    *going = 0;
    lk_status status = lk_program_run(program, LK_EVALUATE);
    if (status >= 0)
        status = lk_program_output_read(program, 0, g->logits, lk__generator_logits_bytes(g, c->config.prompts_count));
    c->times.steps++;
    for (int i = 0; i < c->config.prompts_count && status >= 0; i++) {
        continuation *x = &c->of[i];
        if (x->end != LK_GENERATE_GOING) continue;
        const void *logits = (const char *)g->logits + lk__generator_logits_bytes(g, i);
        x->filled++;
        status = add_token(c, i, choose_token(c, i, logits), c->config.no_logits ? NULL : logits);
        *going += x->end == LK_GENERATE_GOING;
    }
    return status;
}

/* ---- steps that are queued, and whose tokens the device chooses ----
 *
 * As many as no prompt needs the host for: until one has as many tokens as were asked for, or a full context. Where a
 * prompt ends before that, what is queued already is a token of the others; those of the prompt that ended are
 * dropped. */

enum { AHEAD = 2 }; /* steps in flight: the device has the next one when a step ends */

static int64_t steps_ahead(const call *c)
{
    int64_t least = INT64_MAX;
    for (int i = 0; i < c->config.prompts_count; i++) {
        const continuation *x = &c->of[i];
        if (x->end != LK_GENERATE_GOING) continue;
        int64_t left = c->g->config.context - x->used + 1, wanted = c->config.tokens - x->made;
        if (c->config.tokens > 0 && wanted < left) left = wanted;
        if (left < least) least = left;
    }
    return least;
}

static lk_status begin_queue(call *c)
{
    lk_generator *g = c->g;
    for (int i = 0; i < c->config.prompts_count; i++) {
        const continuation *x = &c->of[i];
        g->prompts[i] = (lk__device_prompt){.hash = x->hash, .earlier = x->earlier, .position = x->length + x->made};
    }
    return lk__tokens_begin(g->queue, &c->sampling, g->prompts);
}

/* Reads the tokens of the next step that was queued; *going: how many go on. */
static lk_status read_step(call *c, int *going)
{
    const int32_t *tokens;
    lk_status      status = lk__tokens_read(c->g->queue, &tokens);
    c->times.steps++;
    *going = 0;
    for (int i = 0; i < c->config.prompts_count && status >= 0; i++) {
        continuation *x = &c->of[i];
        if (x->end != LK_GENERATE_GOING) continue;
        x->filled++;
        status = add_token(c, i, tokens[i], NULL);
        *going += x->end == LK_GENERATE_GOING;
    }
    return status;
}

/* As run_step, over several steps. */
static lk_status run_queued(call *c, int *going)
{
    int     began;
    int64_t steps = steps_ahead(c), queued = 0, read = 0;
    set_inputs(c, &began);
    *going = began;
    lk_status status = begin_queue(c);
    while (status >= 0 && *going > 0 && read < steps) {
        while (status >= 0 && *going == began && queued < steps && queued - read < AHEAD) {
            status = lk__tokens_queue(c->g->queue);
            queued += status >= 0;
        }
        if (status < 0 || read == queued) break;
        status = read_step(c, going);
        read++;
    }
    for (const int32_t *dropped; read < queued; read++) { /* the cache is not to be written any more */
        lk_status ended = lk__tokens_read(c->g->queue, &dropped);
        if (status >= 0) status = ended;
    }
    return status;
}

lk_status lk_generate(lk_generator *g, const lk_generate_config *given, lk_generate_times *times)
{
    call      c = {.g = g, .config = LK_GENERATE_CONFIG_INIT};
    lk_status status = LK__CONFIG_READ(g->context, lk_generate_config, given, &c.config);
    c.stops = (lk__generation_stops){c.config.stop, c.config.stop_count};
    c.sampling = (lk__device_sampling){
        .temperature = c.config.temperature, .top_p = c.config.top_p, .top_k = c.config.top_k, .seed = c.config.seed};
    if (status < 0 || (status = check_call(&c)) < 0) return status;
    lk_step step = {.step = 1, .count = c.config.prompts_count};
    if ((status = begin_call(&c)) < 0) goto done;
    for (int which = 0; which < LK__GENERATOR_PROGRAMS && status >= 0; which++)
        status = lk_program_step(g->program[which], &step);
    if (status < 0) goto done;
    bool queued = g->queue && (c.config.no_logits || !c.config.token);
    for (int going = 1; going > 0 && status >= 0;) {
        double start = lk__now();
        status = fill_cache(&c);
        double filled = lk__now();
        c.times.prompt_seconds += filled - start;
        if (status >= 0) status = queued ? run_queued(&c, &going) : run_step(&c, &going);
        c.times.token_seconds += lk__now() - filled;
    }
    if (times) *times = c.times;
done:
    end_call(&c);
    return status < 0 ? status : LK_OK;
}
