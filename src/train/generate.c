/* generate.c - generation: two programs over one store, one for chunks of prompts and one for a token of each, that share the cache of keys
 * and values. All memory is allocated before the first step. The last token of a prompt runs in the second program, so the first
 * computes no logits, and the planner leaves out what its last layer would need for them. */
#include "train/generation.h"

#include "base/config.h"
#include "base/hash.h"
#include "train/load.h"

#include <lockstep/program.h>
#include <string.h>

enum { CHUNK, STEP, PROGRAMS };
enum { TOKENS, POSITIONS, ROWS, FIRST, LAST, INPUTS };
enum { COPIED = 1 << 16 }; /* elements that are copied at a time from another store */

static const char *const input_names[INPUTS] = {"tokens", "positions", "rows", "first", "last"};

struct lk_generator {
    lk_context               *context;
    lk_generator_config       config;
    lk_transformer_config     model;
    lk_graph                 *graph[PROGRAMS];
    lk_plan                  *plan[PROGRAMS];
    lk_store                 *store;
    lk_program               *program[PROGRAMS];
    int64_t                   width[PROGRAMS]; /* tokens of each prompt in a run */
    int32_t                  *inputs[INPUTS];  /* (batch, width) */
    void                     *logits;          /* (batch, vocabulary) */
    lk__generation_candidate *candidates;      /* vocabulary of them */
};

/* ---- creation ---- */

static size_t inputs_bytes(const lk_generator *g)
{
    return (size_t)(g->config.batch * g->width[CHUNK]) * sizeof(int32_t);
}
static size_t logits_bytes(const lk_generator *g)
{
    return (size_t)(g->config.batch * g->model.vocabulary) * lk_dtype_size(g->config.dtype);
}
static size_t candidates_bytes(const lk_generator *g)
{
    return (size_t)g->model.vocabulary * sizeof(lk__generation_candidate);
}

static lk_status check_config(lk_context *c, lk_generator_config *config)
{
    if (!config->model) return lk__fail(c, LK_EINVAL, "lk_generator_config.model is missing");
    char why[300];
    if (!lk_transformer_check(config->model, why, sizeof why)) return lk__fail(c, LK_EINVAL, "%s", why);
    if (config->model->kind == LK_TRANSFORMER_ENCODER)
        return lk__fail(c, LK_EINVAL, "an encoder gives classes, not text: gpt or llama is needed");
    if (config->weights && config->store) return lk__fail(c, LK_EINVAL, "weights and a store exclude each other");
    if (config->batch == 0) config->batch = 1;
    if (config->context == 0) config->context = config->model->context;
    if (config->chunk == 0) config->chunk = 32;
    if (config->context < 1 || config->context > config->model->context)
        return lk__fail(c, LK_EINVAL, "a context of %lld tokens: the model has 1 to %lld positions",
                        (long long)config->context, (long long)config->model->context);
    if (config->batch < 1 || config->batch > 1 << 20 || config->chunk < 1)
        return lk__fail(c, LK_EINVAL, "%lld prompts at once in chunks of %lld tokens: 1 to 1048576, and at least 1",
                        (long long)config->batch, (long long)config->chunk);
    if (config->chunk > config->context) config->chunk = config->context;
    return LK_OK;
}

/* The model over the cache, and the logits, which the program of chunks does not compute: both have the same states. */
static lk_status record_model(lk_generator *g, int which)
{
    int64_t   dims[] = {g->config.batch, g->width[which]};
    lk_tensor in[INPUTS] = {{0}};
    lk_status status = lk_graph_create(g->context, g->config.dtype, &g->graph[which]);
    if (status < 0) return status;
    for (int i = 0; i < INPUTS; i++)
        if (i != FIRST || g->model.window > 0) in[i] = lk_input(g->graph[which], input_names[i], LK_I32, 2, dims);
    lk_transformer_result result = lk_transformer(in[TOKENS], &g->model, .positions = in[POSITIONS], .first = in[FIRST],
                                                  .last = in[LAST], .cache = g->config.context, .rows = in[ROWS]);
    lk_tensor             logits = lk_f_linear(result.hidden, result.head, ((lk_tensor){0}));
    lk_plan_config        plan = LK_PLAN_CONFIG_INIT;
    plan.policy = g->config.policy;
    plan.outputs = &logits;
    plan.outputs_count = which == STEP ? 1 : 0;
    return lk_plan_create(g->graph[which], &plan, &g->plan[which]);
}

/* One parameter of another store, which may have another type. */
static lk_status copy_state(lk_generator *g, const lk_state *to, void *buffer)
{
    lk_state from;
    int64_t  elements = 1;
    bool     same = lk_store_find(g->config.store, to->name, &from) && from.rank == to->rank;
    for (int i = 0; i < to->rank; i++) {
        elements *= to->dims[i];
        same = same && from.dims[i] == to->dims[i];
    }
    if (!same)
        return lk__fail(g->context, LK_EMISMATCH,
                        "the store has no \"%s\" of the model's shape: it is of another model", to->name);
    size_t from_size = lk_dtype_size(from.dtype), size = lk_dtype_size(to->dtype);
    char  *converted = from.dtype == to->dtype ? buffer : (char *)buffer + COPIED * sizeof(double);
    for (int64_t at = 0; at < elements; at += COPIED) {
        int64_t   count = elements - at < COPIED ? elements - at : COPIED;
        lk_status status =
            lk_store_read(g->config.store, to->name, LK_STATE_VALUE, at, count, buffer, (size_t)count * from_size);
        if (status < 0) return status;
        if (from.dtype != to->dtype) lk__load_convert(from.dtype, buffer, to->dtype, converted, (size_t)count);
        status = lk_store_write(g->store, to->name, LK_STATE_VALUE, at, count, converted, (size_t)count * size);
        if (status < 0) return status;
    }
    return LK_OK;
}

static lk_status copy_store(lk_generator *g)
{
    size_t    bytes = 2 * COPIED * sizeof(double);
    void     *buffer = lk__alloc(g->context, LK_MEMORY_OTHER, bytes);
    lk_status status = buffer ? LK_OK : LK_ENOMEM;
    for (size_t i = 0; i < lk_store_count(g->store) && status >= 0; i++) {
        lk_state state = lk_store_at(g->store, i);
        if (!state.not_saved) status = copy_state(g, &state, buffer);
    }
    lk__free(g->context, LK_MEMORY_OTHER, buffer, bytes);
    return status;
}

static lk_status make_programs(lk_generator *g)
{
    lk_status status = lk_store_create(g->plan[CHUNK], g->config.seed, &g->store);
    if (status >= 0 && g->config.weights) status = lk_weights_load(g->store, g->config.weights);
    if (status >= 0 && g->config.store) status = copy_store(g);
    for (int which = 0; which < PROGRAMS && status >= 0; which++) {
        status = lk_program_create(g->plan[which], g->store, NULL, &g->program[which]);
        for (int i = 0; i < INPUTS && status >= 0; i++)
            if (i != FIRST || g->model.window > 0)
                status = lk_program_bind(g->program[which], input_names[i], g->inputs[i]);
    }
    return status;
}

lk_status lk_generator_create(lk_context *context, const lk_generator_config *given, lk_generator **generator)
{
    lk_generator_config config = LK_GENERATOR_CONFIG_INIT;
    *generator = NULL;
    lk_status status = LK__CONFIG_READ(context, lk_generator_config, given, &config);
    if (status >= 0) status = check_config(context, &config);
    if (status < 0) return status;
    lk_generator *g = lk__alloc(context, LK_MEMORY_OTHER, sizeof *g);
    if (!g) return LK_ENOMEM;
    g->context = context;
    g->config = config;
    g->model = *config.model;
    g->config.model = &g->model;
    g->model.dropout = g->model.attention_dropout = 0;
    if (g->model.kind == LK_TRANSFORMER_LLAMA) g->model.context = config.context; /* rows of the table of angles */
    g->width[CHUNK] = config.chunk;
    g->width[STEP] = 1;
    for (int which = 0; which < PROGRAMS && status >= 0; which++) status = record_model(g, which);
    for (int i = 0; i < INPUTS && status >= 0; i++)
        if (!(g->inputs[i] = lk__alloc(context, LK_MEMORY_WORKSPACE, inputs_bytes(g)))) status = LK_ENOMEM;
    if (status >= 0 && (!(g->logits = lk__alloc(context, LK_MEMORY_WORKSPACE, logits_bytes(g))) ||
                        !(g->candidates = lk__alloc(context, LK_MEMORY_WORKSPACE, candidates_bytes(g)))))
        status = LK_ENOMEM;
    if (status >= 0) status = make_programs(g);
    g->config.weights = NULL; /* borrowed */
    g->config.store = NULL;
    if (status < 0) {
        lk_generator_free(g);
        return status;
    }
    *generator = g;
    return LK_OK;
}

void lk_generator_free(lk_generator *g)
{
    if (!g) return;
    for (int i = 0; i < INPUTS; i++) lk__free(g->context, LK_MEMORY_WORKSPACE, g->inputs[i], inputs_bytes(g));
    lk__free(g->context, LK_MEMORY_WORKSPACE, g->logits, logits_bytes(g));
    lk__free(g->context, LK_MEMORY_WORKSPACE, g->candidates, candidates_bytes(g));
    for (int which = 0; which < PROGRAMS; which++) lk_program_free(g->program[which]);
    lk_store_free(g->store);
    for (int which = 0; which < PROGRAMS; which++) {
        lk_plan_free(g->plan[which]);
        lk_graph_free(g->graph[which]);
    }
    lk__free(g->context, LK_MEMORY_OTHER, g, sizeof *g);
}

/* The store belongs to the first plan; both programs have activations and a workspace. */
size_t lk_generator_memory(const lk_generator *g, lk_memory kind)
{
    bool   stored = kind == LK_MEMORY_PARAMETERS || kind == LK_MEMORY_MASTER || kind == LK_MEMORY_BUFFERS;
    size_t bytes = kind == LK_MEMORY_WORKSPACE ? INPUTS * inputs_bytes(g) + logits_bytes(g) + candidates_bytes(g) : 0;
    if (kind == LK_MEMORY_OTHER) return 0;
    for (int which = 0; which < (stored ? 1 : PROGRAMS); which++) bytes += lk_plan_memory(g->plan[which], kind);
    return bytes;
}

size_t lk_generator_weight_bytes(const lk_generator *g)
{
    size_t total = 0;
    for (size_t i = 0; i < lk_store_count(g->store); i++) {
        lk_state s = lk_store_at(g->store, i);
        bool     looked_up = strcmp(s.name, "transformer.wpe.weight") == 0 ||
                         (g->model.untied && strcmp(s.name, "model.embed_tokens.weight") == 0);
        size_t elements = 1;
        for (int k = 0; k < s.rank; k++) elements *= (size_t)s.dims[k];
        if (!s.buffer && !looked_up) total += elements * lk_dtype_size(s.stored);
    }
    return total;
}

/* ---- one call ---- */

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
    lk_generator           *g;
    lk_generate_config      config;
    lk__generation_sampling sampling;
    lk__generation_stops    stops;
    continuation           *of; /* one for each prompt */
    int32_t                *tokens;
    char                   *text;
    size_t                  room; /* of text for each prompt */
    lk_generate_times       times;
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
        return lk__fail(context, LK_EINVAL, "prompt %d is empty: at least one token is needed", index);
    if (p->count > c->g->config.context)
        return lk__fail(context, LK_EINVAL, "prompt %d has %lld tokens: the context is %lld", index,
                        (long long)p->count, (long long)c->g->config.context);
    for (int64_t i = 0; i < p->count; i++)
        if (p->tokens[i] < 0 || p->tokens[i] >= c->g->model.vocabulary)
            return lk__fail(context, LK_EINVAL, "token %lld of prompt %d is %d: the vocabulary has %lld, 0 to %lld",
                            (long long)i, index, (int)p->tokens[i], (long long)c->g->model.vocabulary,
                            (long long)c->g->model.vocabulary - 1);
    return LK_OK;
}

static lk_status check_call(const call *c)
{
    const lk_generate_config *config = &c->config;
    lk_context               *context = c->g->context;
    if (config->prompts_count < 1 || config->prompts_count > c->g->config.batch || !config->prompts)
        return lk__fail(context, LK_EINVAL, "%d prompts: the generator takes 1 to %lld at once", config->prompts_count,
                        (long long)c->g->config.batch);
    if (!(config->temperature >= 0 && config->temperature <= 1e6) || config->top_k < 0 ||
        !(config->top_p >= 0 && config->top_p <= 1) || config->tokens < 0)
        return lk__fail(context, LK_EINVAL,
                        "temperature %g, top_k %lld, top_p %g and %lld tokens: none is below 0, and top_p is at most 1",
                        config->temperature, (long long)config->top_k, config->top_p, (long long)config->tokens);
    if (config->stop_count > 0 && !config->tokenizer)
        return lk__fail(context, LK_EINVAL, "stop strings need a tokenizer");
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
        if (c->text) x->pending.text = c->text + i * c->room;
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
    g->inputs[TOKENS][at] = used ? token : 0;
    g->inputs[POSITIONS][at] = used ? (int32_t)position : 0;
    g->inputs[ROWS][at] = (int32_t)position;
    g->inputs[FIRST][at] =
        g->model.window > 0 && position >= g->model.window ? (int32_t)(position - g->model.window + 1) : 0;
    g->inputs[LAST][at] = (int32_t)position;
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
    int64_t       width = g->width[CHUNK];
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
        status = lk_program_run(g->program[CHUNK], LK_EVALUATE);
    }
    return status;
}

static bool is_end_token(const call *c, int32_t token)
{
    if (c->config.ignore_eos) return false;
    return token == c->g->model.eos || (c->config.tokenizer && token == lk_tokenizer_end(c->config.tokenizer));
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
    size_t              bytes = 0;
    bool                shown = out->end != LK_GENERATE_EOS && !lk_tokenizer_is_special(tokenizer, out->token);
    const char         *text = shown ? lk_tokenizer_token(tokenizer, out->token, &bytes) : NULL;
    if (lk__pending_add(&x->pending, &c->stops, text, text ? bytes : 0, out->end != LK_GENERATE_GOING))
        out->end = LK_GENERATE_STOP;
    out->text = x->pending.text;
    out->bytes = x->pending.given;
}

/* Chooses the next token of prompt i from its logits, and reports it. */
static lk_status choose_token(call *c, int i)
{
    lk_generator *g = c->g;
    continuation *x = &c->of[i];
    int64_t       position = x->length + x->made; /* of the new token */
    const void   *logits = (const char *)g->logits + (size_t)(i * g->model.vocabulary) * lk_dtype_size(g->config.dtype);
    double        uniform = lk__sample_uniform(c->config.seed, x->hash, x->earlier, position);
    int32_t token = lk__sample(&c->sampling, g->config.dtype, logits, g->model.vocabulary, uniform, g->candidates);
    if (token < 0)
        return lk__fail(g->context, LK_ENAN,
                        "the logits for token %lld of prompt %d are not finite: the weights are damaged",
                        (long long)position, i);
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

/* One token of every prompt that has not ended; *going: whether one goes on. */
static lk_status run_step(call *c, bool *going)
{
    lk_generator *g = c->g;
    *going = false;
    for (int i = 0; i < c->config.prompts_count; i++) {
        continuation *x = &c->of[i];
        bool          runs = x->end == LK_GENERATE_GOING;
        set_input(g, i, runs ? x->tokens[x->used - 1] : 0, runs ? x->used - 1 : -1);
        x->filled += runs;
    }
    size_t    bytes = logits_bytes(g) / (size_t)g->config.batch * (size_t)c->config.prompts_count;
    lk_status status = lk_program_run(g->program[STEP], LK_EVALUATE);
    if (status >= 0) status = lk_program_output_read(g->program[STEP], 0, g->logits, bytes);
    c->times.steps++;
    for (int i = 0; i < c->config.prompts_count && status >= 0; i++) {
        if (c->of[i].end != LK_GENERATE_GOING) continue;
        status = choose_token(c, i);
        *going |= c->of[i].end == LK_GENERATE_GOING;
    }
    return status;
}

lk_status lk_generate(lk_generator *g, const lk_generate_config *given, lk_generate_times *times)
{
    call      c = {.g = g, .config = LK_GENERATE_CONFIG_INIT};
    lk_status status = LK__CONFIG_READ(g->context, lk_generate_config, given, &c.config);
    c.stops = (lk__generation_stops){c.config.stop, c.config.stop_count};
    c.sampling = (lk__generation_sampling){c.config.temperature, c.config.top_k, c.config.top_p};
    if (status < 0 || (status = check_call(&c)) < 0) return status;
    lk_step step = {.step = 1, .count = c.config.prompts_count};
    if ((status = begin_call(&c)) < 0) goto done;
    for (int which = 0; which < PROGRAMS && status >= 0; which++) status = lk_program_step(g->program[which], &step);
    if (status < 0) goto done;
    for (bool going = true; going && status >= 0;) {
        double start = lk__now();
        status = fill_cache(&c);
        double filled = lk__now();
        c.times.prompt_seconds += filled - start;
        if (status >= 0) status = run_step(&c, &going);
        c.times.token_seconds += lk__now() - filled;
    }
    if (times) *times = c.times;
done:
    end_call(&c);
    return status < 0 ? status : LK_OK;
}
