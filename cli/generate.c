/* generate.c - `lockstep generate`: continues prompts with a saved language model, and prints the text as it is
 * generated. */
#define _GNU_SOURCE
#include "bandwidth.h"
#include "characters.h"
#include "command.h"
#include "device.h"
#include "environment.h"
#include "json.h"
#include "precision.h"
#include "progress.h"
#include "prompts.h"
#include "ranks.h"

#include <lockstep/checkpoint.h>
#include <lockstep/huggingface.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_STOPS = 64 };

static const option generate_options[] = {
    TEXT("load", "DIR", NULL,
         "The model: a directory written by `lockstep train --save` or Hugging Face transformers, with config.json, "
         "the weights and, for text, tokenizer.json"),
    PROMPT_OPTIONS,
    HEADING("Continuation"),
    INTEGER("tokens", "N", "100", 1, 1e9,
            "Maximum number of new tokens for each prompt; the model's context may end the text earlier"),
    NUMBER("temperature", "T", "1", 0, 1000,
           "Divides the logits: values below 1 make the text more predictable. 0: always the most probable token"),
    INTEGER("top-k", "K", "0", 0, 1e9, "Choose from the K most probable tokens; 0: from all"),
    NUMBER("top-p", "P", "1", 0, 1, "Choose from the fewest tokens whose probabilities add up to P"),
    INTEGER("seed", "N", "0", 0, 9e15,
            "Seed for choosing tokens. A prompt's text does not depend on the other prompts"),
    TEXTS("stop", "TEXT", "Stop before this text, even if it spans several tokens; may be repeated"),
    FLAG("ignore-eos", "Continue after the end-of-text token"),
    FLAG("slide",
         "When the model's context is full, continue from its most recent half; otherwise the text ends there"),
    HEADING("Output"),
    FLAG("ids", "Print the new tokens as ids, one line per prompt"),
    FLAG("json", "Print a line of JSON for each prompt: prompt, ids, text, end (eos, stop, tokens or context)"),
    FLAG("timing", "Also measure the memory bandwidth and compare the speed with it"),
    HEADING("Ranks"),
    RANKS_OPTION(
        "Start N ranks on this host, each of which holds and computes a part of the model: a number, gpu (one per "
        "GPU), cpu (one per core), or auto. `lockstep run`, torchrun, mpirun and srun can start them, too; then give "
        "--mesh"),
    TEXT_SUGGESTED("mesh", "AXES", NULL, "tensor=",
                   "The mesh of ranks, as named axes and their sizes; -n 4 alone is tensor=4. tensor: each rank along "
                   "it computes a part of every large operation and holds a part of the key/value cache",
                   .of = "ranks"),
    TRANSPORT_OPTIONS,
    HEADING("Running"),
    CHOICE("dtype", "TYPE", "f32", PRECISION_CHOICES,
           "Precision. With types narrower than f32, weights, activations and cache have that type; sums are f32"),
    INTEGER("threads", "N", "0", 0, 256,
            "Compute threads; 0: one per core that this process may use. The number does not affect results"),
    DEVICE_OPTIONS,
    OVERCOMMIT_OPTION,
    CONFIG,
    OPTIONS_END,
};

/* What was generated for one prompt. */
typedef struct result {
    int32_t        *ids;
    char           *text;
    size_t          count, ids_room, bytes, text_room;
    lk_generate_end end;
} result;

typedef struct generation {
    setup                 ranks; /* its context, comm and mesh */
    lk_context           *context;
    bool                  first;     /* the rank that prints */
    lk_tokenizer         *tokenizer; /* NULL: ids alone */
    lk_generator         *generator;
    lk_transformer_config model;
    prompts               prompts;
    result               *results;
    const char           *stops[MOST_STOPS];
    int                   stop_count;
    progress              work;    /* of long work within a call */
    bool                  streams; /* text is printed as it comes */
    character_stream      stream;  /* of that */
} generation;

static void log_line(void *user, lk_log_level level, const char *text)
{
    const generation *g = user;
    if (level >= LK_LOG_INFO && g->first)
        print_note("generate", "%s%s", level >= LK_LOG_WARNING ? "warning: " : "", text);
}

static int create_context(generation *g, const options *given, int threads)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    config.threads = threads;
    config.log_user = g;
    g->first = environment_rank() <= 0;
    int code = device_choose("generate", given, &config.device);
    if (code != 0) return code;
    config.overcommit = options_flag(given, "overcommit");
    config.log = log_line;
    if (environment_rank() <= 0) config.progress = progress_work;
    config.progress_user = &g->work;
    lk_status status = lk_context_create(&config, &g->context);
    if (status < 0) return report("generate", NULL, status);
    g->ranks.context = g->context;
    return 0;
}

/* ---- ranks ---- */

/* Ranks of a launcher work together with --mesh; without it, each is a command of its own. */
static bool has_ranks(const options *given)
{
    return options_find(given, "mesh") || lk_environment_get(NULL, "LOCKSTEP_STARTED_RANKS");
}

static int check_standard_input(const options *given)
{
    const char *file = options_text(given, "prompt-file");
    if (!file || strcmp(file, "-") != 0) return 0;
    print_error("generate", "--prompt-file -: several ranks cannot share standard input; give a file");
    return EXIT_USER_ERROR;
}

static int join_ranks(generation *g, const options *given)
{
    setup *s = &g->ranks;
    if (!has_ranks(given)) return 0;
    int code = ranks_join(s, "generate", given);
    if (code == 0 && s->config.comm) code = check_standard_input(given);
    if (code == 0) code = ranks_mesh(s, "generate", given, s->config.comm ? lk_comm_size(s->config.comm) : 1);
    g->first = !s->config.comm || lk_comm_rank(s->config.comm) == 0;
    return code;
}

/* ---- the model ---- */

static bool needs_tokenizer(const generation *g, const options *given)
{
    return !(prompts_are_ids(given) && options_flag(given, "ids")) || g->stop_count > 0;
}

static int open_tokenizer(generation *g, const options *given)
{
    const char *load = options_text(given, "load");
    if (!needs_tokenizer(g, given)) return 0;
    lk_status status = lk_tokenizer_open(g->context, load, &g->tokenizer);
    if (status == LK_ENOENT) {
        print_error("generate",
                    "--load %s: there is no tokenizer.json, so only token ids are supported: --prompt-ids and --ids",
                    load);
        return EXIT_USER_ERROR;
    }
    if (status < 0) return report_as("generate", "--load: ", g->context, status);
    if (lk_tokenizer_vocabulary(g->tokenizer) > g->model.vocabulary) {
        print_error("generate", "--load %s: its tokenizer has %lld tokens, but the model has %lld", load,
                    (long long)lk_tokenizer_vocabulary(g->tokenizer), (long long)g->model.vocabulary);
        return EXIT_USER_ERROR;
    }
    return 0;
}

/* A checkpoint without config.json is that of another kind of model. False: it is not, or not known. */
static bool report_other_model(generation *g, const char *load)
{
    lk_description *description;
    char            path[4096];
    bool            fits = snprintf(path, sizeof path, "%s/config.json", load) < (int)sizeof path;
    if (!fits || access(path, F_OK) == 0) return false;
    if (lk_checkpoint_describe(g->context, load, &description) < 0) return false;
    const char *model = lk_description_find(description, "model");
    print_error("generate",
                "--load %s: this is a checkpoint of %s%s, which does not generate text: generate needs a language "
                "model (gpt, llama), whose checkpoints hold config.json",
                load, model ? "--model " : "a different model", model ? model : "");
    lk_description_free(description);
    return true;
}

static int read_model(generation *g, const options *given)
{
    static const lk_transformer_config none = LK_TRANSFORMER_CONFIG_INIT;
    const char                        *load = options_text(given, "load");
    struct stat                        about;
    g->model = none;
    if (stat(load, &about) == 0 && !S_ISDIR(about.st_mode)) {
        print_error("generate", "--load %s is a file: give the directory with config.json and the weights", load);
        return EXIT_USER_ERROR;
    }
    if (report_other_model(g, load)) return EXIT_USER_ERROR;
    lk_status status = lk_hf_config_read(g->context, load, &g->model);
    if (status < 0) return report_as("generate", "--load: ", g->context, status);
    if (g->model.kind != LK_TRANSFORMER_ENCODER) return 0;
    print_error("generate", "--load %s: an encoder predicts classes, not text", load);
    return EXIT_USER_ERROR;
}

/* The cache holds the longest prompt and its continuation, or the whole context where that is less. */
static int make_config(generation *g, const options *given, lk_generator_config *config)
{
    int64_t longest = 1;
    int     which = 0;
    for (int i = 0; i < g->prompts.count; i++)
        if (g->prompts.tokens[i].count > longest) longest = g->prompts.tokens[i].count, which = i;
    if (longest > g->model.context) {
        print_error("generate", "prompt %d has %lld tokens, but the model's context is %lld: shorten it", which,
                    (long long)longest, (long long)g->model.context);
        return EXIT_USER_ERROR;
    }
    int64_t wanted = longest + options_integer(given, "tokens");
    config->model = &g->model;
    config->weights = options_text(given, "load");
    config->batch = g->prompts.count;
    config->context = wanted < g->model.context ? wanted : g->model.context;
    config->comm = g->ranks.config.comm;
    config->mesh = g->ranks.mesh;
    lk_policy_parse(options_text(given, "dtype"), &config->policy, &config->dtype);
    return 0;
}

static int create_generator(generation *g, const options *given)
{
    lk_generator_config config = LK_GENERATOR_CONFIG_INIT;
    int                 code = make_config(g, given, &config);
    if (code != 0) return code;
    lk_status status = lk_generator_create(g->context, &config, &g->generator);
    return status < 0 ? report_as("generate", "--load: ", g->context, status) : 0;
}

/* ---- results ---- */

/* Room for `count` elements of `size` bytes in an array that has *room; NULL: out of memory, and it is as before. */
static void *grow(void *array, size_t *room, size_t count, size_t size)
{
    size_t wanted = 2 * count + 64;
    if (count <= *room) return array;
    void *grown = realloc(array, wanted * size);
    if (grown) *room = wanted;
    return grown;
}

static bool append_ids(result *r, int32_t id)
{
    int32_t *ids = grow(r->ids, &r->ids_room, r->count + 1, sizeof *ids);
    if (!ids) return false;
    r->ids = ids;
    ids[r->count++] = id;
    return true;
}

static bool append_text(result *r, const char *text, size_t bytes)
{
    char *all = grow(r->text, &r->text_room, r->bytes + bytes, 1);
    if (!all) return bytes == 0;
    r->text = all;
    if (bytes) memcpy(all + r->bytes, text, bytes);
    r->bytes += bytes;
    return true;
}

static lk_status take_token(void *user, const lk_generated *made)
{
    generation *g = user;
    result     *r = &g->results[made->prompt];
    r->end = made->end;
    if (g->streams && g->first) {
        characters_write(&g->stream, stdout, made->text, made->bytes);
        fflush(stdout);
    }
    return append_ids(r, made->token) && append_text(r, made->text, made->bytes) ? LK_OK : LK_ENOMEM;
}

static void print_json(const generation *g, int i)
{
    const result *r = &g->results[i];
    const prompt *p = &g->prompts.of[i];
    json          j = json_to(stdout);
    json_open(&j, NULL, '{');
    if (p->text) json_bytes(&j, "prompt", p->text, p->bytes);
    json_open(&j, "prompt_ids", '[');
    for (size_t k = 0; k < p->count; k++) json_integer(&j, NULL, p->ids[k]);
    json_close(&j, ']');
    json_open(&j, "ids", '[');
    for (size_t k = 0; k < r->count; k++) json_integer(&j, NULL, r->ids[k]);
    json_close(&j, ']');
    if (g->tokenizer) json_bytes(&j, "text", r->text, r->bytes);
    json_text(&j, "end", lk_generate_end_name(r->end));
    json_close(&j, '}');
    json_line(&j);
}

static void print_results(generation *g, const options *given)
{
    for (int i = 0; i < g->prompts.count; i++) {
        const result *r = &g->results[i];
        if (options_flag(given, "json")) {
            print_json(g, i);
        } else if (options_flag(given, "ids")) {
            for (size_t k = 0; k < r->count; k++) printf("%s%d", k ? " " : "", (int)r->ids[k]);
            printf("\n");
        } else {
            if (!g->streams) {
                if (i) printf("\n");
                characters_write(&g->stream, stdout, g->prompts.of[i].text, g->prompts.of[i].bytes);
                characters_write(&g->stream, stdout, r->text, r->bytes);
            }
            characters_end(&g->stream, stdout);
            printf("\n");
        }
        if (r->end == LK_GENERATE_CONTEXT)
            print_note("generate", "%s%lld tokens fill the model's context, so the text ends here",
                       g->prompts.count > 1 ? "one of the prompts: " : "", (long long)g->model.context);
    }
    fflush(stdout);
}

static void print_times(const generation *g, const options *given, const lk_generate_times *t)
{
    char   prompt[96] = "", limit[96] = "";
    double tokens = t->token_seconds > 0 ? (double)t->tokens / t->token_seconds : 0;
    double read = t->token_seconds > 0
                      ? (double)lk_generator_weight_bytes(g->generator) * (double)t->steps / t->token_seconds
                      : 0;
    /* The last token of a prompt is computed with the first new one. */
    long long given_tokens = 0;
    for (int i = 0; i < g->prompts.count; i++) given_tokens += g->prompts.tokens[i].count;
    int used = snprintf(prompt, sizeof prompt, "prompt: %lld token%s", given_tokens, given_tokens == 1 ? "" : "s");
    if (t->prompt_tokens > 0 && t->prompt_seconds > 0)
        used += snprintf(prompt + used, sizeof prompt - (size_t)used, ", %.1f tokens/s",
                         (double)t->prompt_tokens / t->prompt_seconds);
    snprintf(prompt + used, sizeof prompt - (size_t)used, "; ");
    if (options_flag(given, "timing")) {
        double memory = bandwidth_measure(lk_context_threads(g->context));
        if (memory > 0)
            snprintf(limit, sizeof limit, ", %.0f %% of the memory bandwidth of %.2f GB/s", 100 * read / memory,
                     1e-9 * memory);
    }
    print_note("generate", "%s%lld new tokens, %.1f tokens/s, weights read at %.2f GB/s%s", prompt,
               (long long)t->tokens, tokens, 1e-9 * read, limit);
}

/* ---- the command ---- */

static int check_options(generation *g, const options *given)
{
    const char *wrong =
        !options_text(given, "load") ? "--load is missing: expected a directory with config.json and weights"
        : options_flag(given, "json") && options_flag(given, "ids") ? "--json already prints the ids: omit --ids"
        : options_number(given, "top-p") == 0
            ? "--top-p 0 leaves no token to choose from; for the most probable token, use --temperature 0 or --top-k 1"
            : NULL;
    while (!wrong && (g->stops[g->stop_count] = options_text_at(given, "stop", g->stop_count)))
        if (++g->stop_count == MOST_STOPS) wrong = "--stop: at most 63 strings are supported";
    if (wrong) print_error("generate", "%s", wrong);
    return wrong ? EXIT_USER_ERROR : 0;
}

static int generate(generation *g, const options *given)
{
    lk_generate_config config = LK_GENERATE_CONFIG_INIT;
    lk_generate_times  times;
    config.prompts = g->prompts.tokens;
    config.prompts_count = g->prompts.count;
    config.tokens = options_integer(given, "tokens");
    config.temperature = options_number(given, "temperature");
    config.top_k = options_integer(given, "top-k");
    config.top_p = options_number(given, "top-p");
    config.seed = (uint64_t)options_integer(given, "seed");
    config.ignore_eos = options_flag(given, "ignore-eos");
    config.slide = options_flag(given, "slide");
    config.stop = g->stops;
    config.stop_count = g->stop_count;
    config.tokenizer = g->tokenizer;
    config.token = take_token;
    config.user = g;
    config.no_logits = true;
    g->streams = g->prompts.count == 1 && !options_flag(given, "json") && !options_flag(given, "ids");
    if (!(g->results = calloc((size_t)g->prompts.count, sizeof *g->results))) return EXIT_FAILED;
    bool prints = g->streams && g->first;
    if (prints) characters_write(&g->stream, stdout, g->prompts.of[0].text, g->prompts.of[0].bytes);
    lk_status status = lk_generate(g->generator, &config, &times);
    if (status < 0 && prints) printf("\n");
    if (status < 0) return report("generate", g->context, status);
    if (!g->first) return 0;
    print_results(g, given);
    print_times(g, given, &times);
    return 0;
}

/* Everything before the generator is created, which is the same in all ranks. */
static int prepare(generation *g, const options *given)
{
    int code = read_model(g, given);
    if (code == 0) code = open_tokenizer(g, given);
    return code != 0 ? code : prompts_encode(&g->prompts, given, g->context, g->tokenizer, &g->model);
}

static void free_generation(generation *g)
{
    for (int i = 0; g->results && i < g->prompts.count; i++) {
        free(g->results[i].ids);
        free(g->results[i].text);
    }
    free(g->results);
    prompts_free(&g->prompts);
    lk_generator_free(g->generator);
    lk_tokenizer_free(g->tokenizer);
    ranks_leave(&g->ranks);
    lk_mesh_free(g->ranks.mesh);
    lk_context_free(g->context);
}

/* Checks everything that is known before ranks are started, so that a user error is found once, in one process. */
static int check_run(const options *given, int ranks)
{
    generation          g = {0};
    lk_generator_config config = LK_GENERATOR_CONFIG_INIT;
    size_t              memory[LK_MEMORY_COUNT];
    char                axes[32];
    int                 code = check_options(&g, given);
    if (code == 0 && ranks > 1) code = check_standard_input(given);
    if (code == 0) code = prompts_read(&g.prompts, given);
    if (code == 0) code = create_context(&g, given, 1);
    if (code == 0) code = prepare(&g, given);
    if (code == 0) code = ranks_mesh(&g.ranks, "generate", given, ranks);
    if (code == 0 && !g.ranks.mesh && ranks > 1) {
        lk_mesh_config mesh = LK_MESH_CONFIG_INIT;
        snprintf(axes, sizeof axes, "tensor=%d", ranks);
        mesh.axes = axes;
        lk_status status = lk_mesh_create(g.context, &mesh, &g.ranks.mesh);
        if (status < 0) code = report("generate", g.context, status);
    }
    if (code == 0) code = make_config(&g, given, &config);
    if (code == 0) {
        lk_status status = lk_generator_plan(g.context, &config, memory);
        if (status < 0) code = report("generate", g.context, status);
    }
    free_generation(&g);
    return code;
}

static int run_generate(const options *given)
{
    generation g = {0};
    int        code;
    if (ranks_start("generate", given, check_run, &code)) return code;
    code = check_options(&g, given);
    if (code == 0) code = create_context(&g, given, (int)options_integer(given, "threads"));
    if (code == 0) code = join_ranks(&g, given);
    if (code == 0) code = prompts_read(&g.prompts, given);
    if (code == 0) code = prepare(&g, given);
    if (code == 0) code = create_generator(&g, given);
    if (code == 0) code = generate(&g, given);
    if (code != 0) ranks_abort(&g.ranks);
    free_generation(&g);
    return code;
}

const command command_generate = {
    "generate",
    "continue text with a saved language model",
    "Continues each prompt token by token and prints the prompt with its continuation; with a single prompt, tokens "
    "are printed as they are generated. The keys and values of earlier tokens are kept, so a token costs one pass over "
    "the weights. Without a prompt, the text begins with the model's own first token.\n\n"
    "With several ranks (-n, --mesh), each holds a part of the weights and of the cache; the tokens are the same as "
    "with one rank unless a different rounding of sums changes the choice of one.\n\n"
    "The speed is printed on standard error.\n\n"
    "Examples: lockstep generate --load runs/shakespeare --prompt \"ROMEO:\" --tokens 200 --temperature 0.8 --top-k "
    "200; lockstep generate --load some-hf-directory --prompt-ids 15496,11 --ids --temperature 0; lockstep generate -n "
    "2 --mesh tensor=2 --load runs/big --prompt \"Once\"",
    NULL,
    0,
    0,
    generate_options,
    run_generate,
};
