/* test_tokens.c - tokens that the device chooses: against the host's choice from the same logits, and whole generations
 * against those in which the host chooses, on the device and on the CPU. Devices that choose none are compared with
 * themselves in nothing.
 *
 * ctest: timeout 240 */
#include "support.h"

#include "device/device.h"
#include "device/tokens.h"
#include "train/generation.h"

#include <math.h>

/* ---- one step ---- */

enum { ROWS = 3, MOST = 5003 };

typedef struct step {
    lk__op_attrs        attrs;
    lk__kernel_call     work;
    lk__device_kernel   kernel;
    lk__device_sampling sampling;
    lk__device_prompt   prompts[ROWS];
    int32_t             inputs[5][ROWS]; /* in the order of the outputs: places, tokens, positions, first, last */
    int32_t             chosen[LK__DEVICE_TOKEN_STEPS][ROWS];
    lk__device_stream  *stream;
    lk_dtype            type;
    int64_t             vocabulary;
    size_t              bytes, workspace;
    char               *memory, *scratch; /* the device's: logits, then the other operands */
} step;

static size_t logits_bytes(const step *s)
{
    return lk__round_up((size_t)(ROWS * s->vocabulary) * lk_dtype_size(s->type), 64);
}

static void set_operand(lk__kernel_operand *o, lk_dtype type, int rank, int64_t first, int64_t second)
{
    *o = (lk__kernel_operand){.data = (void *)1, .dtype = type, .rank = rank, .dims = {first, second}};
}

static void describe_step(step *s, int64_t vocabulary)
{
    lk__kernel_operand *in = s->work.in, *out = s->work.out;
    s->attrs.window = 4;
    s->work.attrs = &s->attrs;
    s->work.inputs = LK__TOKENS_INPUTS;
    s->work.outputs = LK__TOKENS_OUTPUTS;
    set_operand(&in[LK__TOKENS_LOGITS], s->type, 2, ROWS, vocabulary);
    set_operand(&in[LK__TOKENS_SAMPLING], LK_U8, 1, sizeof s->sampling, 0);
    set_operand(&out[LK__TOKENS_CHOSEN], LK_I32, 2, LK__DEVICE_TOKEN_STEPS, ROWS);
    set_operand(&out[LK__TOKENS_PROMPTS], LK_U8, 2, ROWS, sizeof *s->prompts);
    for (int i = LK__TOKENS_PLACES; i < LK__TOKENS_OUTPUTS; i++) set_operand(&out[i], LK_I32, 1, ROWS, 0);
}

static void open_step(lk__device *d, step *s, lk_dtype type, int64_t vocabulary)
{
    const lk__device_backend *b = d->backend;
    s->type = type, s->vocabulary = vocabulary;
    describe_step(s, vocabulary);
    s->kernel = b->kernels.find(d, LK__OP_choose_tokens, type, &s->work);
    REQUIRE(s->kernel.run && s->kernel.workspace);
    s->bytes = logits_bytes(s) + sizeof s->sampling + sizeof s->prompts + sizeof s->inputs + sizeof s->chosen;
    s->workspace = s->kernel.workspace(&s->work, lk_context_threads(d->context));
    REQUIRE(b->memory.stream_create(d, &s->stream) == LK_OK &&
            lk__device_alloc(d, LK_MEMORY_OTHER, s->bytes, &s->memory) == LK_OK &&
            lk__device_alloc(d, LK_MEMORY_OTHER, s->workspace, &s->scratch) == LK_OK);
    s->work.device = d;
    s->work.stream = s->stream;
    s->work.pool = lk__context_pool(d->context);
    s->work.workspace = s->scratch;
    char *at = s->memory + logits_bytes(s);
    s->work.in[LK__TOKENS_LOGITS].data = s->memory;
    s->work.in[LK__TOKENS_SAMPLING].data = at;
    s->work.out[LK__TOKENS_PROMPTS].data = at += sizeof s->sampling;
    at += sizeof s->prompts;
    for (int i = LK__TOKENS_PLACES; i < LK__TOKENS_OUTPUTS; i++, at += sizeof *s->inputs) s->work.out[i].data = at;
    s->work.out[LK__TOKENS_CHOSEN].data = at;
    if (s->kernel.prepare) REQUIRE(s->kernel.prepare(d, &s->kernel, &s->work) == LK_OK);
}

static void close_step(lk__device *d, step *s)
{
    lk__device_free(d, LK_MEMORY_OTHER, s->memory, s->bytes);
    lk__device_free(d, LK_MEMORY_OTHER, s->scratch, s->workspace);
    d->backend->memory.stream_free(d, s->stream);
}

/* Writes what the host has, and runs the step. */
static void run_step(lk__device *d, step *s, const void *logits)
{
    const lk__kernel_operand *in = s->work.in, *out = s->work.out;
    void                     *inputs = out[LK__TOKENS_PLACES].data, *prompts = out[LK__TOKENS_PROMPTS].data;
    size_t                    bytes = (size_t)(ROWS * s->vocabulary) * lk_dtype_size(s->type);
    s->attrs.sorts = lk__sampling_sorts(&s->sampling, s->vocabulary);
    REQUIRE(d->backend->memory.fill(d, s->stream, s->scratch, 0xa5, s->workspace) == LK_OK); /* undefined contents */
    REQUIRE(lk__device_write(d, s->stream, in[LK__TOKENS_LOGITS].data, logits, bytes) == LK_OK &&
            lk__device_write(d, s->stream, in[LK__TOKENS_SAMPLING].data, &s->sampling, sizeof s->sampling) == LK_OK &&
            lk__device_write(d, s->stream, prompts, s->prompts, sizeof s->prompts) == LK_OK &&
            lk__device_write(d, s->stream, inputs, s->inputs, sizeof s->inputs) == LK_OK);
    REQUIRE(s->kernel.run(&s->work) == LK_OK &&
            lk__device_read(d, s->stream, s->prompts, prompts, sizeof s->prompts) == LK_OK &&
            lk__device_read(d, s->stream, s->inputs, inputs, sizeof s->inputs) == LK_OK &&
            lk__device_read(d, s->stream, s->chosen, out[LK__TOKENS_CHOSEN].data, sizeof s->chosen) == LK_OK);
}

/* Logits of row r: random; ties; -infinity; very different ones; then rows that are errors. */
static double logit(int kind, int r, int64_t i)
{
    double x = 8 * number(100 + (uint64_t)r, (uint64_t)i) - 4;
    if (kind == 1) x = round(x);
    if (kind == 2 && i % 3 != 1) x = -INFINITY;
    if (kind == 3) x *= 40;
    if (kind == 4 && r == 1 && i == 2) x = (double)NAN;
    if (kind == 5 && r == 2) x = i == 1 ? INFINITY : x;
    if (kind == 6 && r == 0) x = -INFINITY;
    return x;
}

static void fill_logits(void *to, lk_dtype type, int kind, int64_t n)
{
    for (int r = 0; r < ROWS; r++)
        for (int64_t i = 0; i < n; i++) {
            double x = logit(kind, r, i);
            if (type == LK_F64)
                ((double *)to)[r * n + i] = x;
            else
                ((float *)to)[r * n + i] = (float)x;
        }
}

/* Row 2 has no prompt: its inputs stay. */
static void compare_step(lk__device *d, step *s, const void *logits, const char *what)
{
    static lk__tokens_candidate scratch[MOST];
    int64_t                     n = s->vocabulary, at = s->prompts[0].step;
    for (int r = 0; r < ROWS; r++) s->inputs[0][r] = r < 2 ? 2 + r : -1;
    lk__device_prompt before[ROWS];
    memcpy(before, s->prompts, sizeof before);
    run_step(d, s, logits);
    for (int r = 0; r < ROWS; r++) {
        const lk__device_prompt *p = &before[r];
        double                   uniform = lk__sample_uniform(s->sampling.seed, p->hash, p->earlier, p->position);
        const char              *row = (const char *)logits + (size_t)(r * n) * lk_dtype_size(s->type);
        int32_t                  token = lk__sample(&s->sampling, &(lk__tokens_row){row, s->type, n}, uniform, scratch);
        int32_t                  chosen = s->chosen[at % LK__DEVICE_TOKEN_STEPS][r];
        CHECK(token == chosen, "%s, row %d of %d: token %d, not %d", what, r, (int)n, chosen, token);
        CHECK(s->prompts[r].step == at + 1 && s->prompts[r].position == p->position + 1);
        if (r == 2) {
            CHECK(s->inputs[0][r] == -1 && s->inputs[2][r] == 0);
            continue;
        }
        CHECK(s->inputs[1][r] == (token < 0 ? 0 : token) && s->inputs[2][r] == 3 + r && s->inputs[0][r] == 3 + r &&
              s->inputs[3][r] == r && s->inputs[4][r] == 3 + r);
    }
}

static void check_choices(lk__device *d, lk_dtype type, int64_t vocabulary, int kinds)
{
    static const lk__device_sampling settings[] = {
        {0, 0, 0, 1},    {1, 0, 0, 2},     {0.7, 0, 5, 3},  {1.5, 0.9, 0, 4},   {1, 0.5, 40, 5}, {0.05, 0, 0, 6},
        {1, 1e-9, 0, 7}, {1, 0.999, 0, 8}, {2, 0, 3000, 9}, {1, 0.8, 3000, 10}, {0, 0.5, 9, 11}, {1, 1, 1, 12}};
    static double logits[ROWS * MOST];
    step          s = {0};
    open_step(d, &s, type, vocabulary);
    for (int kind = 0; kind < kinds; kind++) {
        fill_logits(logits, type, kind, vocabulary);
        for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
            char what[64];
            snprintf(what, sizeof what, "%s, logits %d, setting %d", lk_dtype_name(type), kind, (int)i);
            s.sampling = settings[i];
            for (int r = 0; r < ROWS; r++)
                s.prompts[r] = (lk__device_prompt){
                    .hash = (uint64_t)(r * 77 + kind), .earlier = r, .position = 11 * r + kind, .step = (int64_t)i};
            memset(s.inputs, 0, sizeof s.inputs);
            compare_step(d, &s, logits, what);
        }
    }
    close_step(d, &s);
}

static void the_device_chooses_what_the_host_does(void)
{
    lk_context *context;
    REQUIRE(lk_context_create(NULL, &context) == LK_OK);
    lk__device *d = lk__context_device(context);
    step        large = {.type = LK_F32};
    describe_step(&large, INT64_C(1) << 40);
    CHECK(!d->backend->recording.record_begin ||
          !d->backend->kernels.find(d, LK__OP_choose_tokens, LK_F32, &large.work).run);
    check_choices(d, LK_F32, 7, 7);
    check_choices(d, LK_F32, 300, 7);
    check_choices(d, LK_F32, MOST, 2);
    check_choices(d, LK_F64, 101, 3);
    lk_context_free(context);
}

/* ---- whole generations ---- */

enum { CONTEXT = 17, VOCABULARY = 53, PROMPTS = 3, NEW = 8 };

typedef struct collected {
    int64_t         count[PROMPTS];
    int32_t         tokens[PROMPTS][64];
    lk_generate_end end[PROMPTS];
    int64_t         cancel; /* prompt 1, after so many tokens; 0: never */
    bool            logits; /* were there */
} collected;

static lk_status collect(void *user, const lk_generated *g)
{
    collected *c = user;
    int64_t    i = c->count[g->prompt]++;
    REQUIRE(i == g->index && i < 64 && c->end[g->prompt] == LK_GENERATE_GOING);
    c->tokens[g->prompt][i] = g->token;
    c->end[g->prompt] = g->end;
    c->logits |= g->logits != NULL;
    return c->cancel && g->prompt == 1 && i + 1 >= c->cancel ? LK_END : LK_OK;
}

static lk_context *open_on(const char *device)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_context       *context;
    config.device = device;
    REQUIRE(lk_context_create(&config, &context) == LK_OK);
    return context;
}

static lk_generator *open_generator(lk_context *context, int which, lk_policy policy)
{
    lk_transformer_config m = LK_TRANSFORMER_CONFIG_INIT;
    lk_generator_config   config = LK_GENERATOR_CONFIG_INIT;
    lk_generator         *g;
    m.kind = which == 0 ? LK_TRANSFORMER_GPT : LK_TRANSFORMER_LLAMA;
    m.vocabulary = VOCABULARY, m.context = CONTEXT, m.layers = 1, m.heads = 4, m.width = which == 0 ? 128 : 256,
    m.init_std = 0.15;
    if (which == 1) m.kv_heads = 2, m.hidden = 96, m.window = 5;
    config.model = &m, config.batch = PROMPTS, config.chunk = 4, config.policy = policy, config.seed = 9;
    REQUIRE(lk_generator_create(context, &config, &g) == LK_OK, "%s", lk_context_error(context));
    return g;
}

static const int32_t   tokens[] = {1, 7, 3, 20, 44, 51, 0, 5, 5, 9};
static const lk_prompt prompts[PROMPTS] = {{tokens, 10}, {tokens + 3, 1}, {tokens + 3, 1}};

static collected generate(lk_generator *g, lk_generate_config config, bool by_host, int64_t cancel)
{
    collected         c = {.cancel = cancel};
    lk_generate_times times;
    config.prompts = prompts, config.prompts_count = PROMPTS, config.token = collect, config.user = &c;
    config.no_logits = !by_host;
    REQUIRE(lk_generate(g, &config, &times) == LK_OK);
    CHECK(c.logits == by_host);
    int64_t sum = 0;
    for (int i = 0; i < PROMPTS; i++) sum += c.count[i];
    CHECK(times.tokens == sum && times.steps > 0 && times.prompt_tokens >= 9);
    return c;
}

static void expect_equal(const collected *a, const collected *b, const char *what)
{
    for (int i = 0; i < PROMPTS; i++) {
        CHECK(a->count[i] == b->count[i] && a->end[i] == b->end[i], "%s, prompt %d: %d and %d tokens", what, i,
              (int)a->count[i], (int)b->count[i]);
        CHECK(memcmp(a->tokens[i], b->tokens[i], sizeof a->tokens[i]) == 0, "%s, prompt %d", what, i);
    }
}

/* Greedy, sampled with all settings; ends by count, by context, by the callback, and a full context that goes on. */
static void steps_that_are_queued_give_the_tokens_of_steps_that_are_waited_for(void)
{
    lk_context *context = open_on(NULL);
    for (int which = 0; which < 2; which++) {
        lk_generator *g = open_generator(context, which, which == 0 ? LK_POLICY_BF16 : LK_POLICY_RECORDED);
        for (int how = 0; how < 5; how++) {
            lk_generate_config config = LK_GENERATE_CONFIG_INIT;
            char               what[48];
            snprintf(what, sizeof what, "model %d, setting %d", which, how);
            config.ignore_eos = how == 1;
            config.seed = 5, config.tokens = how == 3 ? 0 : how == 4 ? 24 : NEW, config.slide = how == 4;
            config.temperature = how == 0 ? 0 : 1.1, config.top_k = how == 2 ? 9 : 0, config.top_p = how == 2 ? 0.9 : 0;
            int64_t   cancel = how == 1 ? 3 : 0;
            collected host = generate(g, config, true, cancel), device = generate(g, config, false, cancel);
            expect_equal(&host, &device, what);
            CHECK(how != 1 || (device.count[1] == 3 && device.count[0] == NEW));
            CHECK(how != 3 || (device.end[0] == LK_GENERATE_CONTEXT && device.count[0] == CONTEXT - 9));
            if (how == 0 && which == 0) continue; /* bf16 rounds otherwise on the CPU */
            if (how > 0) continue;
            lk_context   *cpu = open_on("cpu");
            lk_generator *other = open_generator(cpu, which, LK_POLICY_RECORDED);
            collected     there = generate(other, config, true, 0);
            expect_equal(&there, &device, "the CPU");
            lk_generator_free(other);
            lk_context_free(cpu);
        }
        lk_generator_free(g);
    }
    lk_context_free(context);
}

static lk_status fail_at_third(void *user, const lk_generated *g)
{
    (void)user;
    return g->index == 2 ? LK_EINVAL : LK_OK;
}

/* What is queued ends before the call returns; the next one begins anew. */
static void a_callback_that_fails_ends_the_call(void)
{
    lk_context        *context = open_on(NULL);
    lk_generator      *g = open_generator(context, 0, LK_POLICY_RECORDED);
    lk_generate_config config = LK_GENERATE_CONFIG_INIT;
    config.tokens = NEW;
    collected before = generate(g, config, false, 0);
    config.prompts = prompts, config.prompts_count = PROMPTS, config.token = fail_at_third, config.no_logits = true;
    CHECK(lk_generate(g, &config, NULL) == LK_EINVAL);
    collected after = generate(g, config, false, 0);
    expect_equal(&before, &after, "after a failure");
    for (int kind = 0; kind < LK_MEMORY_OTHER; kind++)
        CHECK(lk_context_memory(context, kind) == lk_generator_memory(g, kind), "%s", lk_memory_name(kind));
    lk_generator_free(g);
    lk_context_free(context);
}

int main(void)
{
    RUN(the_device_chooses_what_the_host_does);
    RUN(steps_that_are_queued_give_the_tokens_of_steps_that_are_waited_for);
    RUN(a_callback_that_fails_ends_the_call);
    return check_result();
}
