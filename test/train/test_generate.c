/* test_generate.c - generation: sampling against sorted probabilities, text and stop strings against the whole text,
 * and the tokens of a generator against a program without a cache that computes the whole prefix anew for every token.
 *
 * ctest: timeout 300 */
#define _GNU_SOURCE
#include "support.h"

#include "base/hash.h"
#include "device/tokens.h"
#include "failing_allocator.h"
#include "train/generation.h"

/* ---- sampling ---- */

typedef struct ranked {
    double logit, p;
    int    token;
} ranked;

static int larger_first(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    return x->logit != y->logit ? (x->logit < y->logit ? 1 : -1) : x->token - y->token;
}

#define SAMPLING(t, k, p) {.temperature = t, .top_k = k, .top_p = p}

static int32_t sample_token(const lk__device_sampling *s, lk_dtype type, const void *logits, int64_t n, double uniform,
                            lk__tokens_candidate *scratch)
{
    return lk__sample(s, &(lk__tokens_row){logits, type, n}, uniform, scratch);
}

/* The probability of each token by its definition: sorted, cut after k, renormalised, cut once p is reached,
 * renormalised. */
static void naive_probabilities(const float *logits, int n, const lk__device_sampling *s, double *p)
{
    REQUIRE(n > 0);
    ranked *r = calloc((size_t)n, sizeof *r);
    double  total = 0, sum = 0;
    int     kept = s->top_k && s->top_k < n ? (int)s->top_k : n;
    for (int i = 0; i < n; i++) r[i] = (ranked){(double)logits[i] / s->temperature, 0, i};
    qsort(r, (size_t)n, sizeof *r, larger_first);
    for (int i = 0; i < kept; i++) total += r[i].p = exp(r[i].logit - r[0].logit);
    for (int i = 0; i < kept; i++) {
        r[i].p /= total;
        if (s->top_p > 0 && s->top_p < 1 && sum >= s->top_p) r[i].p = 0;
        sum += r[i].p;
    }
    for (int i = 0; i < n; i++) p[i] = 0;
    for (int i = 0; i < kept; i++) p[r[i].token] = r[i].p / sum;
    free(r);
}

/* A uniform number is mapped to a token: the share of evenly spaced numbers that a token gets is its probability. */
static void every_token_gets_its_probability(void)
{
    enum { MOST = 300, NUMBERS = 4000 };
    static const lk__device_sampling settings[] = {SAMPLING(1, 0, 0),      SAMPLING(0.7, 5, 0),    SAMPLING(1, 1, 0),
                                                   SAMPLING(2, 0, 0.9),    SAMPLING(0.5, 40, 0.5), SAMPLING(1, 1000, 1),
                                                   SAMPLING(1.3, 0, 0.01), SAMPLING(1, 3, 0.999),  SAMPLING(0.05, 0, 0),
                                                   SAMPLING(1, 7, 0.6)};
    float                            logits[MOST];
    double                           p[MOST], share[MOST];
    lk__tokens_candidate             scratch[MOST];
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        for (int n = 1; n <= MOST; n = n * 3 + 1) {
            for (int t = 0; t < n; t++) {
                logits[t] = (float)(6 * number(7 + i, (uint64_t)t) - 3);
                if (t % 5 == 4) logits[t] = logits[t - 1]; /* ties */
                share[t] = 0;
            }
            naive_probabilities(logits, n, &settings[i], p);
            for (int u = 0; u < NUMBERS; u++)
                share[sample_token(&settings[i], LK_F32, logits, n, (u + 0.5) / NUMBERS, scratch)] += 1.0 / NUMBERS;
            for (int t = 0; t < n; t++)
                CHECK(fabs(share[t] - p[t]) <= 2.0 / NUMBERS && (share[t] == 0 || p[t] > 0),
                      "setting %zu, token %d of %d: %g, not %g", i, t, n, share[t], p[t]);
        }
}

static void greedy_takes_the_first_maximum(void)
{
    const lk__device_sampling greedy = SAMPLING(0, 5, 0.5);
    const float               logits[] = {-3, 2, 7, 7, 1}, bad[] = {1, NAN, 2}, none[] = {-INFINITY, -INFINITY},
                most[] = {1, INFINITY};
    const double         wide[] = {1, 2, 2 + 1e-12};
    lk__tokens_candidate scratch[5];
    for (int u = 1; u < 10; u++) CHECK(sample_token(&greedy, LK_F32, logits, 5, u / 10.0, scratch) == 2);
    CHECK(sample_token(&greedy, LK_F64, wide, 3, 0.5, scratch) == 2);
    CHECK(sample_token(&greedy, LK_F32, bad, 3, 0.5, scratch) == -1 &&
          sample_token(&greedy, LK_F32, none, 2, 0.5, scratch) == -1);
    CHECK(sample_token(&greedy, LK_F32, most, 2, 0.5, scratch) == -1);
    /* A token that is excluded by -INFINITY is never chosen. */
    const float               two[] = {0, -INFINITY, 0};
    const lk__device_sampling all = SAMPLING(1, 0, 0);
    for (int u = 0; u < 100; u++) CHECK(sample_token(&all, LK_F32, two, 3, (u + 0.5) / 100, scratch) != 1);
}

static void random_numbers_are_uniform_and_differ(void)
{
    double sum = 0, squares = 0, previous = 0;
    for (int i = 0; i < 10000; i++) {
        double u = lk__sample_uniform(1, 99, i % 3, i);
        CHECK(u > 0 && u < 1 && u != previous);
        sum += u, squares += u * u, previous = u;
    }
    CHECK(fabs(sum / 10000 - 0.5) < 0.01 && fabs(squares / 10000 - 1.0 / 3) < 0.01);
    CHECK(lk__sample_uniform(1, 2, 0, 4) == lk__sample_uniform(1, 2, 0, 4));
    CHECK(lk__sample_uniform(1, 2, 0, 4) != lk__sample_uniform(2, 2, 0, 4));
    CHECK(lk__sample_uniform(1, 2, 0, 4) != lk__sample_uniform(1, 3, 0, 4));
    CHECK(lk__sample_uniform(1, 2, 0, 4) != lk__sample_uniform(1, 2, 1, 4));
}

/* ---- text ---- */

static bool ends_within_character(const char *text, size_t bytes)
{
    size_t i = 0;
    while (i < bytes) {
        unsigned char c = (unsigned char)text[i];
        i += c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    }
    return i > bytes;
}

/* The text in tokens of drawn lengths: what is given out, token by token, is the text up to the first stop string. */
static void text_is_given_in_whole_characters_up_to_a_stop_string(void)
{
    static const char *const texts[] = {"Hello, wörld! 日本語のテキスト 🙂🙃 end. END", "abababac",
                                        "xENxENDx", "", "🙂"};
    static const char *const stops[][3] = {{"END", "本語", NULL}, {"ababac", NULL}, {"END", "NX", NULL},
                                           {"\n\n", NULL},        {NULL},           {"🙂", NULL}};
    for (size_t a = 0; a < sizeof texts / sizeof *texts; a++)
        for (size_t b = 0; b < sizeof stops / sizeof *stops; b++)
            for (uint64_t draw = 0; draw < 50; draw++) {
                const char            *text = texts[a];
                lk__generation_stops   s = {stops[b], 0};
                size_t                 length = strlen(text), want = length, used = 0, at = 0;
                bool                   stopped = false;
                char                   room[768], out[256];
                lk__generation_pending p;
                lk__pending_begin(&p, room, sizeof room);
                while (s.text[s.count]) {
                    const char *found = strstr(text, s.text[s.count++]);
                    if (found && (size_t)(found - text) < want) want = (size_t)(found - text);
                }
                for (int step = 0; !stopped && step < 200; step++) {
                    size_t n = (size_t)(number(draw, (uint64_t)step) * 6), left = length - at;
                    if (n > left) n = left;
                    bool last = at + n == length;
                    stopped = lk__pending_add(&p, &s, (lk__generation_text){text + at, n, false}, last);
                    CHECK(stopped || last || !ends_within_character(p.out, p.out_bytes), "within a character");
                    memcpy(out + used, p.out, p.out_bytes);
                    used += p.out_bytes, at += n;
                    if (last) break;
                }
                CHECK(used == want && memcmp(out, text, want) == 0 && stopped == (want < length),
                      "\"%s\": %zu bytes, not %zu", text, used, want);
            }
}

/* Special tokens have no text of their own, and still end a continuation where a stop string spells them, alone or with
 * other text. */
static void stop_strings_may_spell_special_tokens(void)
{
    static const struct {
        const char *text;
        bool        special;
    } tokens[] = {{"Hi", false},     {"<|x|>", true}, {" you", false}, {"\n", false},
                  {"<|end|>", true}, {"\n", false},   {"more", false}};
    static const struct {
        const char *stop, *given;
    } cases[] = {{"<|end|>", "Hi you\n"},     {"<|end|>\n", "Hi you\n"}, {"\n<|end|>", "Hi you"},
                 {"<|x|> you", "Hi"},         {"<|e", "Hi you\n"},       {"Hi you", "Hi you\n\nmore"},
                 {"absent", "Hi you\n\nmore"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char                   room[768], out[256] = "";
        lk__generation_stops   stops = {&cases[i].stop, 1};
        lk__generation_pending p;
        bool                   stopped = false;
        lk__pending_begin(&p, room, sizeof room);
        for (size_t k = 0; k < sizeof tokens / sizeof *tokens && !stopped; k++) {
            bool last = k + 1 == sizeof tokens / sizeof *tokens;
            stopped = lk__pending_add(
                &p, &stops, (lk__generation_text){tokens[k].text, strlen(tokens[k].text), tokens[k].special}, last);
            strncat(out, p.out, p.out_bytes);
        }
        CHECK(strcmp(out, cases[i].given) == 0, "\"%s\": \"%s\", not \"%s\"", cases[i].stop, out, cases[i].given);
    }
}

/* ---- a generator against the whole prefix ---- */

enum { CONTEXT = 80, VOCABULARY = 61, NEW = 64, PROMPTS = 4 };

static lk_transformer_config model_of(int which)
{
    lk_transformer_config m = LK_TRANSFORMER_CONFIG_INIT;
    m.kind = which == 0 ? LK_TRANSFORMER_GPT : LK_TRANSFORMER_LLAMA;
    m.vocabulary = VOCABULARY, m.context = CONTEXT, m.layers = 2, m.heads = 4, m.width = 32;
    m.init_std = 0.3; /* logits that differ */
    m.dropout = m.attention_dropout = 0.1;
    if (which > 0) m.kv_heads = 2, m.hidden = 48;
    if (which == 2) m.window = 11, m.untied = true;
    return m;
}

/* The model without a cache: tokens (1, CONTEXT) → logits. Tokens after the last do not matter, since attention is
 * causal. */
typedef struct whole {
    rig     r;
    int32_t tokens[CONTEXT];
} whole;

static void open_whole(whole *w, const lk_transformer_config *model, lk_dtype real)
{
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    w->r = rig_open(real, 1);
    lk_tensor             in = lk_input(w->r.graph, "tokens", LK_I32, 2, ((int64_t[]){1, CONTEXT}));
    lk_transformer_result result = lk_transformer(in, model);
    lk_tensor             logits = lk_f_linear(result.hidden, result.head, ((lk_tensor){0}));
    config.outputs = &logits;
    config.outputs_count = 1;
    rig_plan(&w->r, &config, 5);
    REQUIRE(lk_program_bind(w->r.program, "tokens", w->tokens) == LK_OK);
    REQUIRE(lk_program_step(w->r.program, &(lk_step){.step = 1, .count = 1}) == LK_OK);
}

/* The logits after `count` tokens. */
static void whole_logits(whole *w, const int32_t *tokens, int64_t count, void *logits)
{
    size_t size = lk_dtype_size(lk_graph_dtype(w->r.graph)), bytes = CONTEXT * VOCABULARY * size;
    char  *all = copy_room(bytes);
    memset(w->tokens, 0, sizeof w->tokens);
    memcpy(w->tokens, tokens, (size_t)count * sizeof *tokens);
    REQUIRE(lk_program_run(w->r.program, LK_EVALUATE) == LK_OK, "%s", lk_context_error(w->r.context));
    REQUIRE(lk_program_output_read(w->r.program, 0, all, bytes) == LK_OK);
    memcpy(logits, all + (size_t)(count - 1) * VOCABULARY * size, VOCABULARY * size);
}

/* What the callback collects: tokens and their logits of each prompt. */
typedef struct collected {
    lk_dtype        real;
    int64_t         count[PROMPTS];
    int32_t         tokens[PROMPTS][CONTEXT + 1];
    double          logits[PROMPTS][CONTEXT + 1][VOCABULARY];
    lk_generate_end end[PROMPTS];
    char            text[PROMPTS][1024];
    size_t          bytes[PROMPTS];
    int64_t         cancel; /* after so many tokens; 0: never */
} collected;

static lk_status collect(void *user, const lk_generated *g)
{
    collected *c = user;
    int64_t    i = c->count[g->prompt]++;
    REQUIRE(i == g->index && i <= CONTEXT && c->end[g->prompt] == LK_GENERATE_GOING);
    c->tokens[g->prompt][i] = g->token;
    for (int64_t v = 0; g->logits && v < VOCABULARY; v++) c->logits[g->prompt][i][v] = real_at(g->logits, c->real, v);
    c->end[g->prompt] = g->end;
    REQUIRE(c->bytes[g->prompt] + g->bytes < sizeof c->text[0]);
    memcpy(c->text[g->prompt] + c->bytes[g->prompt], g->text, g->bytes);
    c->bytes[g->prompt] += g->bytes;
    return c->cancel && c->count[g->prompt] >= c->cancel ? LK_END : LK_OK;
}

static lk_generator *open_generator(lk_context *context, const lk_transformer_config *model, const lk_store *store,
                                    lk_dtype real, int64_t batch)
{
    lk_generator_config config = LK_GENERATOR_CONFIG_INIT;
    lk_generator       *g;
    config.model = model, config.store = store, config.dtype = real, config.batch = batch, config.chunk = 5;
    REQUIRE(lk_generator_create(context, &config, &g) == LK_OK, "%s", lk_context_error(context));
    return g;
}

static const int32_t first_prompt[] = {1, 7, 3, 20, 44, 60, 0, 5, 5, 9, 11, 13, 2}, second_prompt[] = {33},
                     third_prompt[] = {8, 2, 8, 2, 8};
static const lk_prompt prompts[PROMPTS] = {
    {first_prompt, 13}, {second_prompt, 1}, {third_prompt, 5}, {third_prompt, 5}};

static lk_generate_config sampling_of(int which)
{
    lk_generate_config c = LK_GENERATE_CONFIG_INIT;
    c.tokens = NEW, c.seed = 3;
    c.temperature = which == 0 ? 0 : which == 1 ? 0.9 : 1.2;
    c.top_k = which == 1 ? 12 : 0;
    c.top_p = which == 2 ? 0.8 : 0;
    return c;
}

static collected *generate(lk_generator *g, lk_dtype real, const lk_prompt *p, int count, lk_generate_config config)
{
    static collected results[8];
    static int       next;
    collected       *c = &results[next++ % 8];
    memset(c, 0, sizeof *c);
    c->real = real;
    config.prompts = p, config.prompts_count = count, config.token = collect, config.user = c;
    REQUIRE(lk_generate(g, &config, NULL) == LK_OK);
    return c;
}

/* The same tokens as from the whole prefix, and logits to the tolerance. */
static void compare_with_whole(whole *w, const collected *c, int index, const lk_prompt *p,
                               const lk_generate_config *config, int64_t earlier, double tolerance)
{
    lk_dtype             real = c->real;
    int32_t              tokens[CONTEXT + 1];
    double               most = 0, largest = 1;
    lk__tokens_candidate scratch[VOCABULARY];
    lk__device_sampling  s = SAMPLING(config->temperature, config->top_k, config->top_p);
    int64_t              count = p->count;
    memcpy(tokens, p->tokens, (size_t)count * sizeof *tokens);
    for (int64_t i = 0; i < c->count[index]; i++, count++) {
        char   logits[VOCABULARY * sizeof(double)];
        double u = lk__sample_uniform(config->seed, lk__hash64(p->tokens, (size_t)p->count * 4, 0), earlier, count);
        whole_logits(w, tokens, count, logits);
        for (int v = 0; v < VOCABULARY; v++) {
            double apart = fabs(real_at(logits, real, v) - c->logits[index][i][v]);
            if (!(apart <= most)) most = apart; /* fmax here is an internal error of gcc 12 */
            if (fabs(c->logits[index][i][v]) > largest) largest = fabs(c->logits[index][i][v]);
        }
        tokens[count] = sample_token(&s, real, logits, VOCABULARY, u, scratch);
        CHECK(tokens[count] == c->tokens[index][i], "prompt %d, new token %d: %d with a cache, %d without", index,
              (int)i, c->tokens[index][i], tokens[count]);
        if (tokens[count] != c->tokens[index][i]) return;
    }
    CHECK(most <= tolerance * largest, "prompt %d: logits up to %g differ by %g", index, largest, most);
}

static void compare_model(int which, lk_dtype real, double tolerance)
{
    lk_transformer_config model = model_of(which);
    whole                 w;
    open_whole(&w, &model, real);
    lk_generator *all = open_generator(w.r.context, &model, w.r.store, real, PROMPTS + 1);
    lk_generator *one = open_generator(w.r.context, &model, w.r.store, real, 1);
    for (int how = real == LK_F64 ? 2 : 0; how < 3; how++) {
        lk_generate_config config = sampling_of(how);
        collected         *batch = generate(all, real, prompts, PROMPTS, config);
        for (int i = 0; i < PROMPTS; i++) {
            CHECK(batch->count[i] == NEW && batch->end[i] == LK_GENERATE_TOKENS);
            compare_with_whole(&w, batch, i, &prompts[i], &config, i == 3, tolerance);
            if (i == 3) continue; /* the same prompt as 2: other numbers */
            collected *alone = generate(one, real, &prompts[i], 1, config);
            CHECK(alone->count[0] == NEW && memcmp(alone->tokens[0], batch->tokens[i], sizeof alone->tokens[0]) == 0);
            CHECK(memcmp(alone->logits[0], batch->logits[i], sizeof alone->logits[0]) == 0, "prompt %d: bits", i);
        }
        bool same = memcmp(batch->tokens[2], batch->tokens[3], sizeof batch->tokens[2]) == 0;
        CHECK(same == (how == 0), "equal prompts: greedy gives the same, sampling does not");
    }
    lk_generator_free(all);
    lk_generator_free(one);
    rig_close(&w.r);
}

static void a_cache_changes_no_token(void)
{
    for (int which = 0; which < 3; which++) {
        compare_model(which, LK_F32, 1e-5);
        compare_model(which, LK_F64, 1e-12);
    }
}

/* Past the context, the latest half of it goes on: against the model over exactly these tokens. Prompts reach the end
 * at different times. */
static void a_full_context_goes_on_with_its_latest_half(void)
{
    lk_transformer_config model = model_of(0);
    lk_generate_config    config = LK_GENERATE_CONFIG_INIT;
    lk__tokens_candidate  scratch[VOCABULARY];
    whole                 w;
    open_whole(&w, &model, LK_F32);
    lk_generator_config made = LK_GENERATOR_CONFIG_INIT;
    lk_generator       *g;
    enum { ROOM = 21 };
    made.model = &model, made.store = w.r.store, made.batch = 3, made.context = ROOM, made.chunk = 4;
    REQUIRE(lk_generator_create(w.r.context, &made, &g) == LK_OK, "%s", lk_context_error(w.r.context));
    config.tokens = NEW, config.slide = true, config.temperature = 0;
    collected *c = generate(g, LK_F32, prompts, 3, config);
    for (int p = 0; p < 3; p++) {
        int32_t window[ROOM + 1];
        int64_t used = prompts[p].count;
        memcpy(window, prompts[p].tokens, (size_t)used * sizeof *window);
        CHECK(c->count[p] == NEW && c->end[p] == LK_GENERATE_TOKENS);
        for (int64_t i = 0; i < c->count[p]; i++) {
            float logits[VOCABULARY];
            whole_logits(&w, window, used, logits);
            int32_t token = sample_token(&(lk__device_sampling){0}, LK_F32, logits, VOCABULARY, 0.5, scratch);
            CHECK(token == c->tokens[p][i], "prompt %d, token %d: %d, not %d", p, (int)i, c->tokens[p][i], token);
            window[used++] = token;
            if (used > ROOM) memmove(window, window + used - ROOM / 2, ROOM / 2 * sizeof *window), used = ROOM / 2;
        }
    }
    lk_generator_free(g);
    rig_close(&w.r);
}

/* ---- ends ---- */

static void every_end_is_reached(void)
{
    lk_transformer_config model = model_of(0);
    lk_tokenizer         *tokenizer;
    lk_context           *context;
    model.vocabulary = 256;
    REQUIRE(lk_context_create(NULL, &context) == LK_OK);
    REQUIRE(lk_tokenizer_open(context, "byte", &tokenizer) == LK_OK, "%s", lk_context_error(context));
    lk_generator_config made = LK_GENERATOR_CONFIG_INIT;
    lk_generator       *g;
    made.model = &model, made.batch = 2;
    REQUIRE(lk_generator_create(context, &made, &g) == LK_OK, "%s", lk_context_error(context));

    /* The context: a prompt that fills it gets one token. */
    lk_generate_config config = LK_GENERATE_CONFIG_INIT;
    int32_t            full[CONTEXT] = {0};
    config.tokens = 0, config.tokenizer = tokenizer;
    collected *c = generate(g, LK_F32, (lk_prompt[]){{full, CONTEXT}, {full, CONTEXT - 3}}, 2, config);
    CHECK(c->count[0] == 1 && c->end[0] == LK_GENERATE_CONTEXT && c->count[1] == 4 && c->end[1] == LK_GENERATE_CONTEXT);
    CHECK(c->bytes[0] == 1 && (unsigned char)c->text[0][0] == (unsigned char)c->tokens[0][0]);

    /* A stop string of the 10th and 11th byte; the text ends before it, the ids with its last token. */
    config.tokens = 40;
    c = generate(g, LK_F32, prompts, 1, config);
    char stop[3] = {c->text[0][9], c->text[0][10], 0};
    REQUIRE(c->count[0] == 40 && c->bytes[0] == 40 && stop[0] && stop[1]);
    char       *found = memmem(c->text[0], 40, stop, 2);
    const char *stops[] = {"never", stop};
    config.stop = stops, config.stop_count = 2;
    collected *stopped = generate(g, LK_F32, prompts, 1, config);
    CHECK(stopped->end[0] == LK_GENERATE_STOP && stopped->bytes[0] == (size_t)(found - c->text[0]) &&
          stopped->count[0] == found - c->text[0] + 2 && memcmp(stopped->text[0], c->text[0], stopped->bytes[0]) == 0);
    config.stop_count = 0;

    /* The callback. */
    config.prompts = prompts, config.prompts_count = 2, config.token = collect;
    collected *canceled = copy_room(sizeof *canceled);
    canceled->cancel = 3;
    config.user = canceled;
    lk_generate_times times;
    REQUIRE(lk_generate(g, &config, &times) == LK_OK);
    CHECK(canceled->count[0] == 3 && canceled->count[1] == 3 && times.tokens == 6 && times.steps == 3 &&
          times.prompt_tokens == 12);
    lk_generator_free(g);

    /* eos: of the model. */
    model.eos = c->tokens[0][7];
    int64_t first = 0;
    while (c->tokens[0][first] != model.eos) first++;
    REQUIRE(lk_generator_create(context, &made, &g) == LK_OK, "%s", lk_context_error(context));
    config.token = NULL;
    collected *ended = generate(g, LK_F32, prompts, 1, config);
    CHECK(ended->count[0] == first + 1 && ended->end[0] == LK_GENERATE_EOS && ended->bytes[0] == (size_t)first);
    config.ignore_eos = true;
    ended = generate(g, LK_F32, prompts, 1, config);
    CHECK(ended->count[0] == 40 && ended->end[0] == LK_GENERATE_TOKENS &&
          strcmp(lk_generate_end_name(ended->end[0]), "tokens") == 0);
    lk_generator_free(g);
    lk_tokenizer_free(tokenizer);
    lk_context_free(context);
}

/* ---- memory ---- */

static void memory_is_what_was_planned_and_steps_allocate_nothing(void)
{
    for (int policy = LK_POLICY_RECORDED; policy <= LK_POLICY_BF16; policy++) {
        lk_transformer_config model = model_of(1);
        lk_generator_config   config = LK_GENERATOR_CONFIG_INIT;
        lk_context           *context;
        lk_generator         *g;
        REQUIRE(lk_context_create(NULL, &context) == LK_OK);
        size_t before = lk_context_memory(context, LK_MEMORY_OTHER);
        config.model = &model, config.batch = 3, config.policy = (lk_policy)policy;
        REQUIRE(lk_generator_create(context, &config, &g) == LK_OK, "%s", lk_context_error(context));
        for (int kind = 0; kind < LK_MEMORY_OTHER; kind++)
            CHECK(lk_context_memory(context, kind) == lk_generator_memory(g, kind), "%s: %zu held, %zu planned",
                  lk_memory_name(kind), lk_context_memory(context, kind), lk_generator_memory(g, kind));
        /* Keys and values of 2 layers, 2 heads of 8, and the table of angles. */
        size_t size = policy == LK_POLICY_BF16 ? 2 : 4, cache = 3 * CONTEXT * 16 * 2 * 2 * size;
        CHECK(lk_generator_memory(g, LK_MEMORY_BUFFERS) >= cache &&
              lk_generator_memory(g, LK_MEMORY_BUFFERS) < cache + CONTEXT * 8 * 8);
        uint64_t made[2];
        for (int i = 0; i < 2; i++) { /* as many calls of the allocator for 2 tokens as for 60 */
            lk_generate_config generate = LK_GENERATE_CONFIG_INIT;
            uint64_t           start = lk_context_allocations(context);
            generate.prompts = prompts, generate.prompts_count = 3, generate.tokens = i ? 60 : 2;
            REQUIRE(lk_generate(g, &generate, NULL) == LK_OK, "%s", lk_context_error(context));
            made[i] = lk_context_allocations(context) - start;
        }
        CHECK(made[0] == made[1] && made[0] <= 3, "%d and %d allocations", (int)made[0], (int)made[1]);
        lk_generator_free(g);
        CHECK(lk_context_memory(context, LK_MEMORY_OTHER) == before);
        lk_context_free(context);
    }
}

/* A context, a generator from a store and a few tokens, with the allocator of `m`. */
static lk_status attempt(meter *m)
{
    lk_transformer_config model = model_of(1);
    lk_context_config     config = LK_CONTEXT_CONFIG_INIT;
    lk_generator_config   made = LK_GENERATOR_CONFIG_INIT;
    lk_generate_config    ask = LK_GENERATE_CONFIG_INIT;
    lk_context           *context;
    lk_generator         *g = NULL;
    lk_tokenizer         *tokenizer = NULL;
    config.allocator = metered(m), config.threads = 1;
    lk_status status = lk_context_create(&config, &context);
    if (status < 0) return status;
    model.layers = 1, model.vocabulary = 256;
    made.model = &model;
    ask.prompts = prompts, ask.prompts_count = 1, ask.tokens = 3;
    if ((status = lk_tokenizer_open(context, "byte", &tokenizer)) >= 0 &&
        (status = lk_generator_create(context, &made, &g)) >= 0) {
        ask.tokenizer = tokenizer;
        status = lk_generate(g, &ask, NULL);
    }
    CHECK(status >= 0 || *lk_context_error(context), "%s fails without a message", lk_status_name(status));
    lk_generator_free(g);
    lk_tokenizer_free(tokenizer);
    lk_context_free(context);
    return status;
}

static void a_failing_allocation_gives_enomem_and_loses_nothing(void)
{
    int64_t n = 0;
    for (bool hit = true; hit && n < 100000; n++) {
        meter     m = {.left = n};
        lk_status status = attempt(&m);
        hit = m.hit;
        CHECK(status == (hit ? LK_ENOMEM : LK_OK), "allocation %d: %s", (int)n, lk_status_name(status));
        CHECK(m.outstanding == 0, "allocation %d: %d bytes are lost", (int)n, (int)m.outstanding);
    }
    CHECK(n > 50, "%d allocations", (int)n);
}

/* ---- what is refused ---- */

#define REFUSED(call, code, words)                                                                        \
    do {                                                                                                  \
        lk_status status_ = (call);                                                                       \
        CHECK(status_ == (code) && strstr(lk_context_error(context), words), "%s: %s", lk_status_name(status_), \
              lk_context_error(context));                                                                 \
    } while (0)

static void mistakes_are_named(void)
{
    lk_transformer_config model = model_of(0), other = model_of(1);
    lk_generator_config   config = LK_GENERATOR_CONFIG_INIT;
    lk_generate_config    ask = LK_GENERATE_CONFIG_INIT;
    lk_generator         *g;
    whole                 w;
    open_whole(&w, &other, LK_F32);
    lk_context *context = w.r.context;
    REFUSED(lk_generator_create(context, &config, &g), LK_EINVAL, "model is missing");
    config.model = &model;
    config.store = w.r.store;
    REFUSED(lk_generator_create(context, &config, &g), LK_EMISMATCH, "it belongs to a different model");
    config.weights = "here";
    REFUSED(lk_generator_create(context, &config, &g), LK_EINVAL, "are mutually exclusive");
    config.store = NULL;
    config.weights = NULL;
    config.context = CONTEXT + 1;
    REFUSED(lk_generator_create(context, &config, &g), LK_EINVAL,
            "a context of 81 tokens is invalid: the model supports 1 to 80");
    config.context = 10;
    config.batch = -1;
    REFUSED(lk_generator_create(context, &config, &g), LK_EINVAL, "-1 prompts at once");
    config.batch = 2;
    REQUIRE(lk_generator_create(context, &config, &g) == LK_OK, "%s", lk_context_error(context));
    REFUSED(lk_generate(g, &ask, NULL), LK_EINVAL, "0 prompts: the generator takes 1 to 2");
    ask.prompts = prompts, ask.prompts_count = 3;
    REFUSED(lk_generate(g, &ask, NULL), LK_EINVAL, "3 prompts");
    ask.prompts_count = 2;
    REFUSED(lk_generate(g, &ask, NULL), LK_EINVAL, "prompt 0 has 13 tokens, but the context is only 10");
    ask.prompts = (lk_prompt[]){{first_prompt, 3}, {first_prompt, 0}};
    REFUSED(lk_generate(g, &ask, NULL), LK_EINVAL, "prompt 1 is empty");
    ask.prompts = (lk_prompt[]){{first_prompt, 3}, {(int32_t[]){4, VOCABULARY}, 2}};
    REFUSED(lk_generate(g, &ask, NULL), LK_EINVAL,
            "token 1 of prompt 1 is 61, but the vocabulary has 61 tokens, 0 to 60");
    ask.prompts = prompts + 1;
    ask.top_p = 1.5;
    REFUSED(lk_generate(g, &ask, NULL), LK_EINVAL, "and top_p at most 1");
    ask.top_p = 0;
    ask.temperature = NAN;
    REFUSED(lk_generate(g, &ask, NULL), LK_EINVAL, "none may be negative");
    ask.temperature = 1;
    ask.stop = (const char *[]){"x"};
    ask.stop_count = 1;
    REFUSED(lk_generate(g, &ask, NULL), LK_EINVAL, "stop strings need a tokenizer");
    ask.stop_count = 0;
    CHECK(lk_generate(g, &ask, NULL) == LK_OK);
    lk_generator_free(g);
    model.kind = LK_TRANSFORMER_ENCODER, model.classes = 3;
    REFUSED(lk_generator_create(context, &config, &g), LK_EINVAL, "an encoder predicts classes, not text");
    rig_close(&w.r);
}

static void a_cache_needs_positions_rows_and_bounds(void)
{
    for (int missing = 0; missing < 5; missing++) {
        lk_transformer_config model = model_of(0);
        rig                   r = rig_open(LK_F32, 1);
        lk_tensor             in[4], none = {0};
        const char           *names[] = {"tokens", "positions", "rows", "last"};
        for (int i = 0; i < 4; i++)
            in[i] = i == missing + 1 ? none : lk_input(r.graph, names[i], LK_I32, 2, ((int64_t[]){2, 3}));
        if (missing == 3) model.kind = LK_TRANSFORMER_ENCODER, model.classes = 2;
        lk_transformer_result y = lk_transformer(in[0], &model, .positions = in[1], .rows = in[2], .last = in[3],
                                                 .cache = missing == 4 ? -1 : 9);
        CHECK(y.hidden.id < 0 && strstr(lk_graph_error(r.graph),
                                        "only gpt and llama support a cache, and only with positions, rows and last"),
              "%s", lk_graph_error(r.graph));
        rig_close(&r);
    }
}

/* Weights of NaN: an error, not a token. */
/* The bytes that each of so many ranks along tensor would have. */
static void plan_ranks(lk_context *context, const lk_transformer_config *model, const char *axes,
                       size_t memory[LK_MEMORY_COUNT])
{
    lk_generator_config config = LK_GENERATOR_CONFIG_INIT;
    lk_mesh_config      about = LK_MESH_CONFIG_INIT;
    lk_mesh            *mesh;
    about.axes = axes;
    REQUIRE(lk_mesh_create(context, &about, &mesh) == LK_OK);
    config.model = model;
    config.mesh = mesh;
    config.batch = 3;
    CHECK(lk_generator_plan(context, &config, memory) == LK_OK, "%s: %s", axes, lk_context_error(context));
    lk_mesh_free(mesh);
}

static void ranks_along_tensor_split_the_cache_by_heads(void)
{
    lk_transformer_config model = LK_TRANSFORMER_CONFIG_INIT;
    lk_context           *context;
    REQUIRE(lk_context_create(NULL, &context) == LK_OK);
    size_t one[LK_MEMORY_COUNT], memory[LK_MEMORY_COUNT];
    model.kind = LK_TRANSFORMER_GPT;
    model.layers = 2, model.heads = 4, model.width = 32, model.context = 24, model.vocabulary = 50;
    plan_ranks(context, &model, "tensor=1", one);
    for (int ranks = 2; ranks <= 4; ranks *= 2) {
        char axes[16];
        snprintf(axes, sizeof axes, "tensor=%d", ranks);
        plan_ranks(context, &model, axes, memory);
        CHECK(memory[LK_MEMORY_BUFFERS] * (size_t)ranks == one[LK_MEMORY_BUFFERS], "%s: %zu bytes of %zu", axes,
              memory[LK_MEMORY_BUFFERS], one[LK_MEMORY_BUFFERS]);
        CHECK(memory[LK_MEMORY_PARAMETERS] < one[LK_MEMORY_PARAMETERS]);
    }
    lk_context_free(context);
}

static void damaged_weights_are_an_error(void)
{
    lk_transformer_config model = model_of(0);
    whole                 w;
    lk_state              s;
    float                 bad = NAN;
    open_whole(&w, &model, LK_F32);
    REQUIRE(lk_store_find(w.r.store, "transformer.ln_f.weight", &s));
    REQUIRE(lk_store_write(w.r.store, s.name, LK_STATE_VALUE, 3, 1, &bad, sizeof bad) == LK_OK);
    lk_generator      *g = open_generator(w.r.context, &model, w.r.store, LK_F32, 1);
    lk_generate_config ask = LK_GENERATE_CONFIG_INIT;
    ask.prompts = prompts, ask.prompts_count = 1;
    CHECK(lk_generate(g, &ask, NULL) == LK_ENAN && strstr(lk_context_error(w.r.context), "not finite"));
    lk_generator_free(g);
    rig_close(&w.r);
}

int main(void)
{
    RUN(every_token_gets_its_probability);
    RUN(greedy_takes_the_first_maximum);
    RUN(random_numbers_are_uniform_and_differ);
    RUN(text_is_given_in_whole_characters_up_to_a_stop_string);
    RUN(stop_strings_may_spell_special_tokens);
    RUN(a_cache_changes_no_token);
    RUN(a_full_context_goes_on_with_its_latest_half);
    RUN(every_end_is_reached);
    RUN(memory_is_what_was_planned_and_steps_allocate_nothing);
    RUN(a_failing_allocation_gives_enomem_and_loses_nothing);
    RUN(mistakes_are_named);
    RUN(a_cache_needs_positions_rows_and_bounds);
    RUN(ranks_along_tensor_split_the_cache_by_heads);
    RUN(damaged_weights_are_an_error);
    return check_result();
}
