/* hf_model.c - a program for interop.sh: models of directories that transformers reads or wrote, on public headers
 * alone.
 *
 *   hf_model make CONFIG DIR [TOKENIZER]      new weights for a config.json, saved in DIR with config.json,
 *                                             generation_config.json and the tokenizer's files: "byte", a
 *                                             tokenizer.json, or a text for one of its characters
 *   hf_model logits DIR INPUT OUTPUT          the logits of a batch, as f32
 *   hf_model train DIR INPUT STEPS SAVE       trains on one batch with AdamW from the weights of DIR, prints the
 *                                             losses, saves
 *   hf_model gradients DIR INPUT OUTPUT       the gradients of a batch's mean loss: for each parameter a line with its
 *                                             name and its number of elements, then these as f32
 *   hf_model generate DIR COUNT ID...         the most probable tokens after those given
 *   hf_model encode DIR TEXT                  the tokens of a text file
 *
 * INPUT is i32: N, T, tokens (N, T), lengths (N), labels (N, T), or (N) for an encoder. */
#include <inttypes.h>
#include <lockstep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct model {
    lk_context           *context;
    lk_transformer_config config;
    const char          **classes; /* of an encoder */
    lk_hf_labels         *labels_read;
    lk_graph             *graph;
    lk_plan              *plan;
    lk_store             *store;
    lk_program           *program;
    int32_t               n, length, *tokens, *lengths, *labels;
} model;

static void check(const model *m, lk_status status, const char *what)
{
    if (status >= 0) return;
    fprintf(stderr, "%s: %s\n", what, lk_context_error(m->context));
    exit(1);
}

static void *allocate(size_t bytes)
{
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory) exit(1);
    return memory;
}

static bool is_encoder(const model *m) { return m->config.kind == LK_TRANSFORMER_ENCODER; }

static void read_config(model *m, const char *path)
{
    check(m, lk_hf_config_read(m->context, path, &m->config), "config.json");
    if (!is_encoder(m)) return;
    check(m, lk_hf_labels_read(m->context, path, &m->labels_read), "classes");
    m->classes = allocate((size_t)m->config.classes * sizeof *m->classes);
    for (int64_t i = 0; i < m->config.classes; i++) m->classes[i] = lk_hf_labels_at(m->labels_read, i);
}

static void read_batch(model *m, const char *path)
{
    int32_t size[2];
    FILE   *file = fopen(path, "rb");
    if (!file || fread(size, sizeof *size, 2, file) != 2) exit(1);
    m->n = size[0];
    m->length = size[1];
    size_t tokens = (size_t)m->n * (size_t)m->length, labels = is_encoder(m) ? (size_t)m->n : tokens;
    m->tokens = allocate(tokens * sizeof *m->tokens);
    m->lengths = allocate((size_t)m->n * sizeof *m->lengths);
    m->labels = allocate(labels * sizeof *m->labels);
    if (fread(m->tokens, sizeof *m->tokens, tokens, file) != tokens ||
        fread(m->lengths, sizeof *m->lengths, (size_t)m->n, file) != (size_t)m->n ||
        fread(m->labels, sizeof *m->labels, labels, file) != labels)
        exit(1);
    fclose(file);
}

/* The model over a batch of the size that was read; with a loss and an optimizer if `trains`. */
static void record(model *m, bool trains)
{
    int64_t             dims[] = {m->n, m->length};
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      plan = LK_PLAN_CONFIG_INIT;
    lk_tensor           none = {0};
    check(m, lk_graph_create(m->context, LK_F32, &m->graph), "graph");
    lk_tensor             tokens = lk_input(m->graph, "tokens", LK_I32, 2, dims);
    lk_tensor             lengths = is_encoder(m) ? lk_input(m->graph, "length", LK_I32, 1, dims) : none;
    lk_transformer_result made = lk_transformer(tokens, &m->config, .lengths = lengths);
    lk_tensor             logits = is_encoder(m) ? made.logits : lk_f_linear(made.hidden, made.head, none);
    if (trains) {
        lk_tensor labels = lk_input(m->graph, "label", LK_I32, is_encoder(m) ? 1 : 2, dims);
        plan.loss =
            is_encoder(m) ? lk_cross_entropy(logits, labels) : lk_linear_cross_entropy(made.hidden, made.head, labels);
        if (m->config.router_loss > 0)
            plan.loss = lk_add(plan.loss, lk_scale(lk_moe_balance(made.hidden), m->config.router_loss));
        optimizer.kind = LK_ADAMW;
        optimizer.weight_decay = 0.1;
        optimizer.decay_all = true;
        plan.optimizer = &optimizer;
    } else {
        plan.outputs = &logits;
        plan.outputs_count = 1;
    }
    check(m, lk_plan_create(m->graph, &plan, &m->plan), "plan");
    check(m, lk_store_create(m->plan, 1, &m->store), "store");
    check(m, lk_program_create(m->plan, m->store, NULL, &m->program), "program");
}

static void bind(model *m, bool trains)
{
    check(m, lk_program_bind(m->program, "tokens", m->tokens), "tokens");
    if (is_encoder(m)) check(m, lk_program_bind(m->program, "length", m->lengths), "lengths");
    if (trains) check(m, lk_program_bind(m->program, "label", m->labels), "labels");
}

static char *read_text(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    char *text = allocate(1 << 20);
    *bytes = file ? fread(text, 1, 1 << 20, file) : 0;
    if (!file || *bytes == 0) exit(1);
    fclose(file);
    return text;
}

static lk_tokenizer *open_tokenizer(const model *m, const char *name)
{
    lk_tokenizer *tokenizer;
    size_t        length = strlen(name), bytes;
    bool          text = length > 4 && strcmp(name + length - 4, ".txt") == 0;
    char         *content = text ? read_text(name, &bytes) : NULL;
    check(m,
          text ? lk_tokenizer_from_text(m->context, content, bytes, &tokenizer)
               : lk_tokenizer_open(m->context, name, &tokenizer),
          "tokenizer");
    free(content);
    return tokenizer;
}

static void save(model *m, const char *directory, int64_t step, const char *tokenizer_name)
{
    char                     config[8192], generation[512];
    lk_progress              progress = {.step = step};
    size_t                   bytes = lk_hf_config_write(&m->config, config, sizeof config, .class_names = m->classes);
    size_t                   more = lk_hf_generation_config_write(&m->config, generation, sizeof generation);
    lk_checkpoint_file       files[16] = {{"config.json", config, bytes}, {"generation_config.json", generation, more}};
    lk_tokenizer            *tokenizer = tokenizer_name ? open_tokenizer(m, tokenizer_name) : NULL;
    int                      count = more ? 2 : 1, tokenizer_count = 0;
    const lk_tokenizer_file *made = tokenizer ? lk_tokenizer_files(tokenizer, &tokenizer_count) : NULL;
    if (bytes == 0 || bytes >= sizeof config) exit(1);
    for (int i = 0; i < tokenizer_count && count < 16; i++)
        files[count++] = (lk_checkpoint_file){made[i].name, made[i].text, made[i].bytes};
    check(m, lk_checkpoint_save_files(m->store, directory, &progress, 1, files, count), "save");
    lk_tokenizer_free(tokenizer);
}

static void write_logits(model *m, const char *path)
{
    size_t rows = (size_t)m->n * (is_encoder(m) ? 1 : (size_t)m->length);
    size_t count = rows * (size_t)(is_encoder(m) ? m->config.classes : m->config.vocabulary);
    float *logits = allocate(count * sizeof *logits);
    check(m, lk_program_step(m->program, &(lk_step){.step = 1, .count = m->n}), "step");
    check(m, lk_program_run(m->program, LK_EVALUATE), "evaluate");
    check(m, lk_program_output_read(m->program, 0, logits, count * sizeof *logits), "logits");
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(logits, sizeof *logits, count, file) != count || fclose(file) != 0) exit(1);
    free(logits);
}

static void train(model *m, int64_t steps)
{
    for (int64_t step = 1; step <= steps; step++) {
        lk_metrics metrics;
        check(m, lk_program_train(m->program, &(lk_step){.step = step, .count = m->n, .rate = 1e-3}), "train");
        lk_program_metrics(m->program, &metrics);
        printf("%.9g\n", metrics.loss);
    }
}

static void write_gradients(model *m, const char *path)
{
    lk_metrics metrics;
    FILE      *file = fopen(path, "wb");
    if (!file) exit(1);
    check(m, lk_program_compute(m->program, &(lk_step){.step = 1, .count = m->n}), "compute");
    lk_program_metrics(m->program, &metrics);
    for (size_t i = 0; i < lk_store_count(m->store); i++) {
        lk_state state = lk_store_at(m->store, i);
        size_t   count = 1;
        if (state.buffer) continue;
        for (int k = 0; k < state.rank; k++) count *= (size_t)state.dims[k];
        float *gradient = allocate(count * sizeof *gradient);
        check(m, lk_program_gradient_read(m->program, state.name, gradient, count * sizeof *gradient), state.name);
        for (size_t k = 0; k < count; k++) gradient[k] = (float)(gradient[k] / metrics.weight);
        fprintf(file, "%s %zu\n", state.name, count);
        if (fwrite(gradient, sizeof *gradient, count, file) != count) exit(1);
        free(gradient);
    }
    if (fclose(file) != 0) exit(1);
}

static lk_status print_token(void *user, const lk_generated *generated)
{
    (void)user;
    printf("%d\n", generated->token);
    return LK_OK;
}

static void generate(model *m, const char *directory, int64_t tokens, int count, char **ids)
{
    int32_t             given[64];
    lk_prompt           prompt = {given, count};
    lk_generator       *generator;
    lk_generator_config config = LK_GENERATOR_CONFIG_INIT;
    lk_generate_config  call = LK_GENERATE_CONFIG_INIT;
    if (count > 64) exit(1);
    for (int i = 0; i < count; i++) given[i] = atoi(ids[i]);
    config.model = &m->config;
    config.weights = directory;
    call.prompts = &prompt;
    call.prompts_count = 1;
    call.tokens = tokens;
    call.temperature = 0;
    call.ignore_eos = true;
    call.token = print_token;
    check(m, lk_generator_create(m->context, &config, &generator), "generator");
    check(m, lk_generate(generator, &call, NULL), "generate");
    lk_generator_free(generator);
}

static void encode(model *m, const char *directory, const char *path)
{
    size_t        bytes, count;
    char         *text = read_text(path, &bytes);
    int32_t      *ids = allocate((3 * bytes + 1) * sizeof *ids);
    lk_tokenizer *tokenizer = open_tokenizer(m, directory);
    check(m, lk_tokenizer_encode(tokenizer, text, bytes, ids, 3 * bytes + 1, &count, NULL), "encode");
    for (size_t i = 0; i < count; i++) printf("%d\n", ids[i]);
    lk_tokenizer_free(tokenizer);
    free(ids);
    free(text);
}

/* The commands that record a model themselves. */
static void run_model(model *m, const char *command, int count, char **arguments)
{
    bool makes = strcmp(command, "make") == 0, differentiates = strcmp(command, "gradients") == 0;
    bool trains = strcmp(command, "train") == 0 || differentiates;
    m->n = m->length = 1;
    if (!makes) read_batch(m, arguments[3]);
    if (trains) m->config.dropout = m->config.attention_dropout = 0;
    record(m, trains);
    if (!makes) check(m, lk_weights_load(m->store, arguments[2]), "weights");
    if (!makes) bind(m, trains);
    if (makes)
        save(m, arguments[3], 0, count > 4 ? arguments[4] : NULL);
    else if (differentiates && count == 5)
        write_gradients(m, arguments[4]);
    else if (trains && count == 6)
        train(m, atoll(arguments[4])), save(m, arguments[5], atoll(arguments[4]), NULL);
    else if (count == 5)
        write_logits(m, arguments[4]);
}

int main(int count, char **arguments)
{
    model m = {.config = LK_TRANSFORMER_CONFIG_INIT};
    if (count < 4 || lk_context_create(NULL, &m.context) < 0) return 2;
    const char *command = arguments[1];
    read_config(&m, arguments[2]);
    if (strcmp(command, "generate") == 0)
        generate(&m, arguments[2], atoll(arguments[3]), count - 4, arguments + 4);
    else if (strcmp(command, "encode") == 0)
        encode(&m, arguments[2], arguments[3]);
    else
        run_model(&m, command, count, arguments);
    lk_program_free(m.program);
    lk_store_free(m.store);
    lk_plan_free(m.plan);
    lk_graph_free(m.graph);
    lk_hf_labels_free(m.labels_read);
    lk_context_free(m.context);
    free(m.classes);
    free(m.tokens);
    free(m.lengths);
    free(m.labels);
    return 0;
}
