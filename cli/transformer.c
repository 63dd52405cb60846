/* transformer.c - transformers from options: sizes, vocabulary, loss, and as many recomputed blocks as a memory budget
 * needs. */
#include "transformer.h"

#include "command.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_model(const char *model, const char *name) { return strcmp(model, name) == 0; }

/* "4GiB", "512MiB", "8GB": bytes; 0: invalid. */
static size_t parse_size(const char *text)
{
    static const struct {
        const char *unit;
        double      bytes;
    } units[] = {{"GiB", 1073741824.0}, {"MiB", 1048576.0}, {"KiB", 1024.0}, {"GB", 1e9}, {"MB", 1e6}, {"", 1}};
    char  *end;
    double number = strtod(text, &end);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (end != text && strcmp(end, units[i].unit) == 0 && number > 0 && number * units[i].bytes < 1e18)
            return (size_t)(number * units[i].bytes);
    return 0;
}

/* Options that a preset or a config.json decides. */
static int refuse_sizes(const char *name, const options *given)
{
    static const char *const sizes[] = {"layers", "heads",   "kv-heads",         "width", "hidden", "rope-theta",
                                        "untied", "experts", "experts-per-token"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (options_given(given, sizes[i])) {
            print_error(name,
                        "--%s does not apply to --model %s, whose configuration is fixed: omit it, or choose sizes "
                        "with --model gpt, llama, mixtral or encoder",
                        sizes[i], options_text(given, "model"));
            return EXIT_USER_ERROR;
        }
    return 0;
}

/* Options that only models with experts have. */
static int refuse_experts(const char *name, const options *given)
{
    static const char *const of_experts[] = {"experts", "experts-per-token", "router-loss"};
    for (size_t i = 0; i < sizeof of_experts / sizeof *of_experts; i++)
        if (options_given(given, of_experts[i])) {
            print_error(name, "--%s applies only to --model mixtral; %s has no experts", of_experts[i],
                        options_text(given, "model"));
            return EXIT_USER_ERROR;
        }
    return 0;
}

static int read_sizes(transformer *t, const char *name, const options *given)
{
    lk_transformer_config *c = &t->config;
    bool llama = c->kind == LK_TRANSFORMER_LLAMA, experts = is_model(options_text(given, "model"), "mixtral");
    static const char *const of_llama[] = {"kv-heads", "rope-theta", "untied"};
    for (size_t i = 0; i < sizeof of_llama / sizeof *of_llama; i++)
        if (options_given(given, of_llama[i]) && !llama) {
            print_error(name, "--%s applies only to --model llama and mixtral; %s does not use it", of_llama[i],
                        options_text(given, "model"));
            return EXIT_USER_ERROR;
        }
    if (!experts && refuse_experts(name, given)) return EXIT_USER_ERROR;
    if (experts) {
        c->experts = (int)options_integer(given, "experts");
        c->experts_per_token = (int)options_integer(given, "experts-per-token");
    }
    c->layers = options_integer(given, "layers");
    c->heads = options_integer(given, "heads");
    c->width = options_integer(given, "width");
    c->context = options_integer(given, "context");
    if (options_given(given, "hidden")) c->hidden = options_integer(given, "hidden");
    if (options_given(given, "kv-heads")) c->kv_heads = options_integer(given, "kv-heads");
    c->rope_theta = options_number(given, "rope-theta");
    c->untied = options_flag(given, "untied");
    if (c->kind == LK_TRANSFORMER_ENCODER) c->activation = LK_GELU;
    return 0;
}

static int read_recompute(transformer *t, const char *name, const options *given)
{
    bool blocks = options_given(given, "recompute-blocks"), all = options_flag(given, "recompute");
    if (blocks && all) {
        print_error(name, "--recompute and --recompute-blocks are mutually exclusive");
        return EXIT_USER_ERROR;
    }
    t->config.recompute = all ? -1 : blocks ? options_integer(given, "recompute-blocks") : 0;
    if (t->config.recompute > t->config.layers) {
        print_error(name, "--recompute-blocks %lld: %s has only %lld blocks", (long long)t->config.recompute,
                    options_text(given, "model"), (long long)t->config.layers);
        return EXIT_USER_ERROR;
    }
    return 0;
}

int transformer_budget(transformer *t, const char *name, const options *given)
{
    const char *memory = options_text(given, "memory");
    if (!memory) return 0;
    if (!t->used) {
        print_error(name, "--memory applies only to transformers, such as --model gpt; %s does not use it",
                    options_text(given, "model"));
        return EXIT_USER_ERROR;
    }
    if (t->config.recompute != 0) {
        print_error(name, "--memory chooses the blocks itself: remove --recompute and --recompute-blocks");
        return EXIT_USER_ERROR;
    }
    if ((t->budget = parse_size(memory)) == 0) {
        print_error(name, "--memory '%s': expected a number followed by KiB, MiB, GiB, MB or GB, such as 4GiB", memory);
        return EXIT_USER_ERROR;
    }
    return 0;
}

/* An option that only transformers use is a user error with any other model, instead of being ignored. */
static int refuse_options(const char *name, const options *given)
{
    static const option rows[] = {TRANSFORMER_OPTIONS, OPTIONS_END};
    for (const option *row = rows; row->name; row++)
        if (options_given(given, row->name)) {
            print_error(name, "--%s applies only to transformers, such as --model gpt; %s does not use it", row->name,
                        options_text(given, "model"));
            return EXIT_USER_ERROR;
        }
    return 0;
}

static int check_config(const transformer *t, const char *name)
{
    char                  why[300];
    lk_transformer_config c = t->config;
    if (c.vocabulary == 0) c.vocabulary = 1; /* the data's, later */
    if (lk_transformer_check(&c, why, sizeof why)) return 0;
    print_error(name, "--model %s", why);
    return EXIT_USER_ERROR;
}

/* A config.json, by its name, or a directory that has one: other files are shared objects. */
static bool is_config(const char *model)
{
    size_t      length = strlen(model);
    struct stat info;
    return (length > 5 && strcmp(model + length - 5, ".json") == 0) ||
           (strchr(model, '/') && stat(model, &info) == 0 && S_ISDIR(info.st_mode));
}

/* A checkpoint has the configuration that it was trained with: the file that it was read from may have been changed or
 * removed since, and its path may be relative to another directory. */
static const char *choose_config(const char *model, const options *given, const char *checkpoint)
{
    char path[4096];
    if (!checkpoint || options_chosen(given, "model")) return model;
    bool fits = snprintf(path, sizeof path, "%s/config.json", checkpoint) < (int)sizeof path;
    return fits && access(path, R_OK) == 0 ? checkpoint : model;
}

int transformer_make(transformer *t, const char *name, const options *given, const char *checkpoint,
                     lk_context *context)
{
    static const lk_transformer_config none = LK_TRANSFORMER_CONFIG_INIT;
    const char                        *model = options_text(given, "model");
    lk_transformer_config             *c = &t->config;
    int                                code = 0;
    *t = (transformer){.config = none, .used = true};
    bool llama = is_model(model, "llama") || is_model(model, "mixtral");
    bool kind = is_model(model, "gpt") || llama || is_model(model, "encoder");
    if (kind) {
        c->kind = is_model(model, "gpt") ? LK_TRANSFORMER_GPT : llama ? LK_TRANSFORMER_LLAMA : LK_TRANSFORMER_ENCODER;
        code = read_sizes(t, name, given);
    } else if (lk_transformer_preset(model, c)) {
        code = refuse_sizes(name, given);
    } else if (is_config(model)) {
        t->source = choose_config(model, given, checkpoint);
        lk_status status = lk_hf_config_read(context, t->source, c);
        if (status < 0 && t->source != model) /* damaged; the weights are checked by themselves */
            status = lk_hf_config_read(context, t->source = model, c);
        code = status < 0 ? report_as(name, options_chosen(given, "model") ? "--model: " : "", context, status)
                          : refuse_sizes(name, given);
    } else {
        t->used = false;
        return refuse_options(name, given);
    }
    if (code != 0) return code;
    t->length = options_given(given, "context") || kind ? options_integer(given, "context") : c->context;
    if (t->length > c->context) {
        print_error(name, "--context %lld: %s has only %lld positions", (long long)t->length, model,
                    (long long)c->context);
        return EXIT_USER_ERROR;
    }
    if (options_given(given, "vocabulary")) c->vocabulary = options_integer(given, "vocabulary");
    if (c->experts == 0 && !kind && refuse_experts(name, given)) return EXIT_USER_ERROR;
    if (options_given(given, "router-loss")) c->router_loss = options_number(given, "router-loss");
    if (options_given(given, "dropout")) c->dropout = c->attention_dropout = options_number(given, "dropout");
    const char *loss = options_text(given, "loss");
    if (strcmp(loss, "auto") != 0 && strcmp(loss, "cross_entropy") != 0) {
        print_error(name, "--loss %s: %s can be trained only with cross_entropy", loss, model);
        return EXIT_USER_ERROR;
    }
    code = read_recompute(t, name, given);
    return code != 0 ? code : check_config(t, name);
}

/* The vocabulary of the data, and the token that ends a document. */
static int use_vocabulary(transformer *t, const char *name, const char *model, const lk_dataset *data,
                          const lk_field *tokens)
{
    lk_text_info info;
    bool         text = lk_dataset_text(data, &info);
    int64_t      needed = text && info.vocabulary > tokens->classes ? info.vocabulary : tokens->classes;
    int32_t      end = text && info.tokenizer ? lk_tokenizer_end(info.tokenizer) : -1;
    if (t->config.vocabulary == 0) t->config.vocabulary = needed;
    if (t->config.eos < 0) t->config.eos = end;
    if (t->config.vocabulary == 0) {
        print_error(name, "the vocabulary of %s is unknown: set --vocabulary N or --tokenizer", lk_dataset_name(data));
        return EXIT_USER_ERROR;
    }
    if (needed > t->config.vocabulary) {
        print_error(name, "the data has a vocabulary of %lld tokens, but %s has one of %lld", (long long)needed, model,
                    (long long)t->config.vocabulary);
        return EXIT_USER_ERROR;
    }
    return 0;
}

bool transformer_new_head(const options *given)
{
    return options_known(given, "init-partial") && options_text(given, "init-partial");
}

/* Classes of a config.json may be more than those of the data, whose labels are numbers. */
static int64_t choose_classes(const transformer *t, const options *given, const lk_field *label)
{
    bool fits = t->source && !label->class_names && label->classes <= t->config.classes;
    return fits && !transformer_new_head(given) ? t->config.classes : label->classes;
}

int transformer_use_data(transformer *t, const char *name, const options *given, const lk_dataset *data,
                         const lk_field *recorded)
{
    const lk_field *tokens = lk_dataset_find(data, "tokens"), *label = lk_dataset_find(data, "label");
    bool            encoder = t->config.kind == LK_TRANSFORMER_ENCODER;
    const char     *model = options_text(given, "model");
    if (!label) label = recorded;
    if (!tokens || !label) {
        print_error(name,
                    "--model %s needs text (a field \"tokens\"%s), such as --data text:FILE --tokenizer char; "
                    "%s has none",
                    model, encoder ? ", and a \"label\" for each" : "", lk_dataset_name(data));
        return EXIT_USER_ERROR;
    }
    if (encoder != (label->rank == 0)) {
        print_error(
            name,
            encoder ? "--model %s predicts a class for each text; %s has no class labels: name their field with --label"
                    : "--model %s predicts the next token, but %s has a class for each text: use --model encoder to "
                      "predict classes",
            model, lk_dataset_name(data));
        return EXIT_USER_ERROR;
    }
    if (encoder) t->config.classes = choose_classes(t, given, label);
    return use_vocabulary(t, name, model, data, tokens);
}

double transformer_token_bytes(const lk_dataset *data)
{
    lk_text_info info;
    if (!data || !lk_dataset_text(data, &info) || info.tokens == 0) return 0;
    return info.scored > 0 ? (double)info.scored_bytes / (double)info.scored : (double)info.bytes / (double)info.tokens;
}

static lk_tensor optional_input(const lk_inputs *inputs, const char *name)
{
    return lk_inputs_has(inputs, name) ? lk_inputs_find(inputs, name) : (lk_tensor){0};
}

static lk_transformer_result record_transformer(const transformer *t, const lk_inputs *inputs)
{
    return lk_transformer(lk_inputs_find(inputs, "tokens"), &t->config,
                          .positions = optional_input(inputs, "positions"), .first = optional_input(inputs, "first"),
                          .lengths = optional_input(inputs, "length"));
}

lk_tensor transformer_logits(const transformer *t, const lk_inputs *inputs)
{
    return record_transformer(t, inputs).logits;
}

lk_tensor transformer_loss(const transformer *t, const lk_inputs *inputs, double label_smoothing)
{
    lk_tensor             label = lk_inputs_find(inputs, "label");
    lk_transformer_result r = record_transformer(t, inputs);
    if (t->config.kind == LK_TRANSFORMER_ENCODER)
        return lk_cross_entropy(r.logits, label, .label_smoothing = label_smoothing);
    lk_tensor loss = lk_linear_cross_entropy(r.hidden, r.head, label, .label_smoothing = label_smoothing);
    if (t->config.experts > 0) lk_moe_metrics(r.hidden);
    if (!(t->config.router_loss > 0)) return loss;
    lk_metric(loss, "cross_entropy");
    return lk_add(loss, lk_scale(lk_moe_balance(r.hidden), t->config.router_loss));
}

/* Bytes of the run's plan with so many recomputed blocks. */
static lk_status plan_bytes(transformer *t, int64_t blocks, lk_context *context, const lk_trainer_config *config,
                            size_t *bytes)
{
    lk_graph *graph = NULL;
    lk_plan  *plan = NULL;
    size_t    memory[LK_MEMORY_COUNT];
    t->config.recompute = blocks;
    lk_status status = lk_trainer_plan(context, config, &graph, &plan, memory);
    *bytes = 0;
    for (int i = 0; status >= 0 && i < LK_MEMORY_COUNT; i++) *bytes += memory[i];
    lk_plan_free(plan);
    lk_graph_free(graph);
    return status;
}

int transformer_fit(transformer *t, const char *name, lk_context *context, const lk_trainer_config *config)
{
    /* Backward begins with the last block, so recomputing that one too saves nothing and may need more. */
    int64_t low = 0, high = t->config.layers - 1; /* the answer is within */
    size_t  bytes;
    if (!t->used || t->budget == 0) return 0;
    lk_status status = plan_bytes(t, high, context, config, &bytes);
    if (status >= 0 && bytes > t->budget) {
        size_t all;
        status = plan_bytes(t, t->config.layers, context, config, &all);
        if (status >= 0 && all <= t->budget) return 0;
        if (all < bytes) bytes = all;
    }
    if (status >= 0 && bytes > t->budget) {
        print_error(name,
                    "--memory: even with blocks recomputed, at least %.2f MiB is needed, but %.2f MiB was given: use a "
                    "smaller batch or context",
                    (double)bytes / 1048576, (double)t->budget / 1048576);
        return EXIT_USER_ERROR;
    }
    while (status >= 0 && low < high) {
        int64_t middle = (low + high) / 2;
        status = plan_bytes(t, middle, context, config, &bytes);
        if (bytes <= t->budget)
            high = middle;
        else
            low = middle + 1;
    }
    t->config.recompute = high;
    return status < 0 ? report(name, context, status) : 0;
}
