/* test_transformers.c - gpt, llama and encoder: the same training at any number of ranks and leaves, with
 * recomputation, with packed documents and with padded sequences; and their sizes.
 *
 * ctest: timeout 300, ranks 4, label threaded */
#include "comm_ranks.h"
#include "copies.h"

#include <lockstep.h>

enum { SAMPLES = 22, LENGTH = 11, VOCABULARY = 29, CLASSES = 3, BATCH = 8, STEPS = 4 };

/* ---- data: packed documents, and padded sequences with a class ---- */

static int32_t tokens[SAMPLES][LENGTH], next[SAMPLES][LENGTH], positions[SAMPLES][LENGTH], first[SAMPLES][LENGTH];
static int32_t lengths[SAMPLES], classes[SAMPLES];

static void fill_samples(void)
{
    for (int i = 0; i < SAMPLES; i++) {
        int start = 0;
        for (int k = 0; k < LENGTH; k++) {
            if (number_bits(2, (uint64_t)(i * LENGTH + k)) % 4 == 0) start = k; /* a document begins */
            tokens[i][k] = (int32_t)(number_bits(1, (uint64_t)(i * LENGTH + k)) % VOCABULARY);
            positions[i][k] = k - start;
            first[i][k] = start;
        }
        for (int k = 0; k < LENGTH; k++) /* nothing is predicted at the end of a document */
            next[i][k] = k + 1 < LENGTH && first[i][k + 1] == first[i][k] ? tokens[i][k + 1] : -100;
        next[i][0] = 5; /* one at least */
        lengths[i] = 1 + (int32_t)(number_bits(3, (uint64_t)i) % LENGTH);
        classes[i] = (int32_t)(number_bits(4, (uint64_t)i) % CLASSES);
    }
}

static const lk_field packed_fields[] = {
    {.name = "tokens", .dtype = LK_I32, .rank = 1, .dims = {LENGTH}},
    {.name = "label", .dtype = LK_I32, .rank = 1, .dims = {LENGTH}},
    {.name = "positions", .dtype = LK_I32, .rank = 1, .dims = {LENGTH}},
    {.name = "first", .dtype = LK_I32, .rank = 1, .dims = {LENGTH}},
};
static const void *const packed_data[] = {tokens, next, positions, first};
static const lk_field    padded_fields[] = {
       {.name = "tokens", .dtype = LK_I32, .rank = 1, .dims = {LENGTH}},
       {.name = "length", .dtype = LK_I32},
       {.name = "label", .dtype = LK_I32, .classes = CLASSES},
};
static const void *const padded_data[] = {tokens, lengths, classes};

/* ---- models ---- */

static lk_transformer_config make_config(lk_transformer_kind kind)
{
    lk_transformer_config c = LK_TRANSFORMER_CONFIG_INIT;
    c.kind = kind;
    c.vocabulary = VOCABULARY;
    c.context = LENGTH + 2;
    c.layers = 2;
    c.heads = 4;
    c.width = 24;
    if (kind == LK_TRANSFORMER_LLAMA) c.kv_heads = 2, c.window = 6;
    c.classes = CLASSES;
    c.init_std = 0.2;
    return c;
}

static lk_tensor record_loss(const lk_inputs *inputs, void *user)
{
    const lk_transformer_config *c = user;
    lk_tensor                    ids = lk_inputs_find(inputs, "tokens"), label = lk_inputs_find(inputs, "label");
    if (c->kind == LK_TRANSFORMER_ENCODER) {
        lk_transformer_result r = lk_transformer(ids, c, .lengths = lk_inputs_find(inputs, "length"));
        return lk_cross_entropy(r.logits, label);
    }
    lk_transformer_result r = lk_transformer(ids, c, .positions = lk_inputs_find(inputs, "positions"),
                                             .first = lk_inputs_find(inputs, "first"));
    return lk_linear_cross_entropy(r.hidden, r.head, label);
}

/* ---- training on some ranks ---- */

typedef struct run {
    lk_transformer_config config;
    lk_dtype              dtype;
    lk_policy             policy;
    int                   leaves, accumulate;
    double                losses[STEPS]; /* of rank 0 */
    uint64_t              hash;
    int64_t               parameters;
    size_t                activations;
} run;

static int keep_loss(void *user, const lk_event *e)
{
    run *r = user;
    if (r && e->kind == LK_EVENT_STEP) r->losses[e->step - 1] = e->loss;
    return 0;
}

static void train_rank(rank_test *t)
{
    run                     *r = t->user;
    bool                     encoder = r->config.kind == LK_TRANSFORMER_ENCODER;
    lk_dataset_arrays_config arrays = LK_DATASET_ARRAYS_CONFIG_INIT;
    lk_trainer_config        config = LK_TRAINER_CONFIG_INIT;
    lk_dataset              *data;
    lk_trainer              *trainer;
    arrays.count = SAMPLES;
    arrays.fields = encoder ? padded_fields : packed_fields;
    arrays.fields_count = encoder ? 3 : 4;
    arrays.data = encoder ? padded_data : packed_data;
    REQUIRE(lk_dataset_from_arrays(t->context, &arrays, &data) == LK_OK, "%s", lk_context_error(t->context));
    config.loss = record_loss;
    config.model_user = &r->config;
    config.train = data;
    config.dtype = r->dtype;
    config.policy = r->policy;
    config.batch = BATCH;
    config.steps = STEPS;
    config.optimizer.kind = LK_ADAMW;
    config.optimizer.lr = 0.01;
    config.optimizer.clip = 1;
    config.seed = 3;
    config.comm = t->size > 1 ? t->comm : NULL;
    config.leaves = r->leaves;
    config.accumulate = r->accumulate;
    config.event = keep_loss;
    config.event_user = t->rank == 0 ? r : NULL;
    REQUIRE(lk_trainer_create(t->context, &config, &trainer) == LK_OK, "%s", lk_context_error(t->context));
    CHECK(lk_trainer_run(trainer) == LK_OK, "%s", lk_context_error(t->context));
    if (t->rank == 0) {
        r->hash = lk_store_hash(lk_trainer_store(trainer));
        r->parameters = lk_store_parameters(lk_trainer_store(trainer));
        r->activations = lk_context_memory(t->context, LK_MEMORY_ACTIVATIONS);
    }
    lk_trainer_free(trainer);
    lk_dataset_free(data);
}

static run train(lk_transformer_kind kind, int world, lk_dtype dtype, int leaves, int accumulate)
{
    run r = {.config = make_config(kind), .dtype = dtype, .leaves = leaves, .accumulate = accumulate};
    if (dtype == LK_BF16) r.dtype = LK_F32, r.policy = LK_POLICY_BF16;
    run_ranks(world, NULL, train_rank, &r);
    return r;
}

static const char *kind_names[] = {"gpt", "llama", "encoder", "mixtral"};

static void ranks_micro_batches_and_leaves_give_the_same_losses(void)
{
    for (int kind = 0; kind < 3; kind++) {
        static const int cases[][3] = {{2, 0, 1}, {3, 0, 1}, {1, 0, 3}, {2, 0, 2}, {1, 8, 1}, {3, 8, 1}};
        run              one = train((lk_transformer_kind)kind, 1, LK_F64, 0, 1);
        CHECK(one.losses[STEPS - 1] != one.losses[0]);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            run other = train((lk_transformer_kind)kind, cases[i][0], LK_F64, cases[i][1], cases[i][2]);
            for (int k = 0; k < STEPS; k++)
                CHECK(fabs(other.losses[k] - one.losses[k]) <= 1e-9 * one.losses[k],
                      "%s, %d ranks, %d leaves, %d micro-batches, step %d: %.15g instead of %.15g", kind_names[kind],
                      cases[i][0], cases[i][1], cases[i][2], k, other.losses[k], one.losses[k]);
        }
    }
}

static void reproducible_runs_have_the_same_bits_at_any_world_size(void)
{
    static const lk_dtype types[] = {LK_F32, LK_BF16};
    for (int kind = 0; kind < 3; kind++)
        for (int type = 0; type < 2; type++) {
            run one = train((lk_transformer_kind)kind, 1, types[type], BATCH, 1);
            for (int world = 2; world <= 4; world++) {
                run other = train((lk_transformer_kind)kind, world, types[type], BATCH, 1);
                CHECK(other.hash == one.hash, "%s in %s: %d ranks give other bits", kind_names[kind],
                      lk_dtype_name(types[type]), world);
            }
        }
}

static void recomputed_blocks_change_memory_and_no_bit(void)
{
    for (int kind = 0; kind < 4; kind++) { /* the last is a llama with experts */
        run all = {.config = make_config(kind < 3 ? (lk_transformer_kind)kind : LK_TRANSFORMER_LLAMA),
                   .dtype = LK_F32,
                   .accumulate = 1};
        if (kind == 3) all.config.experts = 4;
        run none = all;
        all.config.layers = none.config.layers = 5;
        all.config.recompute = -1;
        run some = all;
        some.config.recompute = 2;
        run_ranks(1, NULL, train_rank, &none);
        run_ranks(1, NULL, train_rank, &some);
        run_ranks(1, NULL, train_rank, &all);
        CHECK(all.hash == none.hash && some.hash == none.hash, "%s", kind_names[kind]);
        CHECK(all.activations < some.activations && some.activations < none.activations, "%s: %zu, %zu, %zu bytes",
              kind_names[kind], all.activations, some.activations, none.activations);
    }
}

static void sizes_are_those_of_the_store(void)
{
    for (int variant = 0; variant < 8; variant++) {
        run r = {.config = make_config(variant < 3 ? (lk_transformer_kind)variant : LK_TRANSFORMER_LLAMA),
                 .dtype = LK_F32,
                 .accumulate = 1};
        if (variant == 3) r.config.untied = r.config.attention_bias = r.config.mlp_bias = true;
        if (variant == 4) r.config.head_width = 10, r.config.hidden = 40;
        if (variant == 5 || variant == 7) r.config.experts = 5, r.config.experts_per_token = 3;
        if (variant >= 6) r.config.qk_norm = true;
        run_ranks(1, NULL, train_rank, &r);
        CHECK(r.parameters == lk_transformer_parameters(&r.config), "variant %d: %lld, and %lld by its config", variant,
              (long long)r.parameters, (long long)lk_transformer_parameters(&r.config));
    }
    /* As published: 124.4 M, 354.8 M, 774.0 M; 1,235.8 M. */
    static const struct {
        const char *name;
        int64_t     parameters;
    } presets[] = {{"gpt2", 124439808},     {"gpt2-medium", 354823168}, {"gpt2-large", 774030080},
                   {"llama-15m", 15191712}, {"llama-110m", 109529856},  {"llama-3.2-1b", 1235814400}};
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        lk_transformer_config c;
        char                  why[256] = "";
        REQUIRE(lk_transformer_preset(presets[i].name, &c) && lk_transformer_check(&c, why, sizeof why), "%s", why);
        CHECK(lk_transformer_parameters(&c) == presets[i].parameters, "%s: %lld", presets[i].name,
              (long long)lk_transformer_parameters(&c));
        CHECK(strcmp(lk_transformer_presets()[i], presets[i].name) == 0);
    }
    CHECK(!lk_transformer_preset("gpt3", &(lk_transformer_config){0}));
}

/* ---- one forward run ---- */

typedef struct forward {
    lk_context *context;
    lk_graph   *graph;
    lk_plan    *plan;
    lk_store   *store;
    lk_program *program;
    size_t      bytes; /* of the logits */
} forward;

/* A program over (rows, length) tokens whose output is the logits, in f64. */
static forward make_forward(const lk_transformer_config *c, int64_t rows, int64_t length, bool bounds)
{
    forward           f = {0};
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_plan_config    plan = LK_PLAN_CONFIG_INIT;
    lk_tensor         none = {0}, begin = none, where = none, sizes = none;
    int64_t           dims[] = {rows, length};
    config.threads = 1;
    REQUIRE(lk_context_create(&config, &f.context) == LK_OK && lk_graph_create(f.context, LK_F64, &f.graph) == LK_OK);
    lk_tensor ids = lk_input(f.graph, "tokens", LK_I32, 2, dims);
    bool      encoder = c->kind == LK_TRANSFORMER_ENCODER;
    if (bounds && !encoder)
        begin = lk_input(f.graph, "first", LK_I32, 2, dims), where = lk_input(f.graph, "positions", LK_I32, 2, dims);
    if (bounds && encoder) sizes = lk_input(f.graph, "length", LK_I32, 1, dims);
    lk_transformer_result r = lk_transformer(ids, c, .positions = where, .first = begin, .lengths = sizes);
    lk_tensor             logits = encoder ? r.logits : lk_f_linear(r.hidden, r.head, none);
    plan.outputs = &logits;
    plan.outputs_count = 1;
    f.bytes = (size_t)(rows * (encoder ? c->classes : length * c->vocabulary)) * sizeof(double);
    REQUIRE(lk_plan_create(f.graph, &plan, &f.plan) == LK_OK, "%s", lk_context_error(f.context));
    REQUIRE(lk_store_create(f.plan, 7, &f.store) == LK_OK);
    REQUIRE(lk_program_create(f.plan, f.store, NULL, &f.program) == LK_OK);
    return f;
}

static const double *run_forward(forward *f, int64_t rows)
{
    lk_step step = {.step = 1, .count = rows};
    REQUIRE(lk_program_step(f->program, &step) == LK_OK);
    REQUIRE(lk_program_run(f->program, LK_EVALUATE) == LK_OK, "%s", lk_context_error(f->context));
    return output_copy(f->program, 0, f->bytes);
}

/* By the shapes of its products: a multiply-add of each weight and token in forward, two in backward. */
static void lookups_are_not_arithmetic(void)
{
    enum { WIDTH = 32, HIDDEN = 48, LAYERS = 3, LENGTH = 8, VOCABULARY = 1000, CLASSES = 5 };
    lk_transformer_config c = LK_TRANSFORMER_CONFIG_INIT;
    c.layers = LAYERS, c.heads = 2, c.width = WIDTH, c.hidden = HIDDEN, c.context = 16, c.classes = CLASSES;
    double attention = 12.0 * LAYERS * WIDTH * LENGTH;
    for (int kind = 0; kind < 5; kind++) { /* and llamas with their own head and, the last, with 2 of 8 experts */
        bool encoder = kind == LK_TRANSFORMER_ENCODER, llama = kind == LK_TRANSFORMER_LLAMA || kind >= 3;
        c.kind = kind >= 3 ? LK_TRANSFORMER_LLAMA : (lk_transformer_kind)kind;
        c.untied = kind == 3;
        c.experts = kind == 4 ? 8 : 0;
        c.vocabulary = VOCABULARY;
        double hidden = kind == 4 ? 2 * HIDDEN + 8.0 / 3 : HIDDEN; /* the router is 8 × width */
        double products = LAYERS * (4.0 * WIDTH * WIDTH + (llama ? 3 : 2) * WIDTH * hidden) +
                          (encoder ? (WIDTH + CLASSES) * WIDTH / (double)LENGTH : WIDTH * VOCABULARY);
        double flops = lk_transformer_flops(&c, LENGTH) - attention;
        /* biases and norms are added, not multiplied, and count as parameters, too */
        CHECK(flops >= 6 * products && flops <= 6 * (products + (LAYERS * 16 + 4) * WIDTH), "kind %d: %g and %g", kind,
              flops, 6 * products);
    }
}

static void free_forward(forward *f)
{
    lk_program_free(f->program);
    lk_store_free(f->store);
    lk_plan_free(f->plan);
    lk_graph_free(f->graph);
    lk_context_free(f->context);
}

static void packed_documents_are_as_documents_alone(void)
{
    enum { A = 4, B = LENGTH - A };
    for (int kind = 0; kind < 2; kind++) {
        lk_transformer_config c = make_config((lk_transformer_kind)kind);
        int32_t               ids[LENGTH], begin[LENGTH], where[LENGTH];
        for (int k = 0; k < LENGTH; k++) ids[k] = tokens[3][k], begin[k] = k < A ? 0 : A, where[k] = k - begin[k];
        forward all = make_forward(&c, 1, LENGTH, true), a = make_forward(&c, 1, A, false),
                b = make_forward(&c, 1, B, false);
        lk_program_bind(all.program, "tokens", ids);
        lk_program_bind(all.program, "first", begin);
        lk_program_bind(all.program, "positions", where);
        lk_program_bind(a.program, "tokens", ids);
        lk_program_bind(b.program, "tokens", ids + A);
        const double *packed = run_forward(&all, 1), *one = run_forward(&a, 1), *two = run_forward(&b, 1);
        for (int i = 0; i < LENGTH * VOCABULARY; i++) {
            double alone = i < A * VOCABULARY ? one[i] : two[i - A * VOCABULARY];
            CHECK(fabs(packed[i] - alone) <= 1e-12 * (1 + fabs(alone)), "%s, logit %d: %.15g, alone %.15g",
                  kind_names[kind], i, packed[i], alone);
        }
        free_forward(&all);
        free_forward(&a);
        free_forward(&b);
    }
}

static void padding_changes_no_class(void)
{
    lk_transformer_config c = make_config(LK_TRANSFORMER_ENCODER);
    forward               f = make_forward(&c, SAMPLES, LENGTH, true);
    int32_t               other[SAMPLES][LENGTH];
    double                before[SAMPLES * CLASSES];
    memcpy(other, tokens, sizeof other);
    lk_program_bind(f.program, "tokens", other);
    lk_program_bind(f.program, "length", lengths);
    memcpy(before, run_forward(&f, SAMPLES), sizeof before);
    for (int i = 0; i < SAMPLES; i++)
        for (int k = lengths[i]; k < LENGTH; k++) other[i][k] = (other[i][k] + 1 + k) % VOCABULARY;
    CHECK(memcmp(before, run_forward(&f, SAMPLES), sizeof before) == 0);
    for (int i = 0; i < SAMPLES; i++) { /* and each alone, without padding */
        forward one = make_forward(&c, 1, lengths[i], false);
        lk_program_bind(one.program, "tokens", other[i]);
        const double *logits = run_forward(&one, 1);
        for (int k = 0; k < CLASSES; k++)
            CHECK(fabs(logits[k] - before[i * CLASSES + k]) <= 1e-12, "sequence %d of %d tokens", i, lengths[i]);
        free_forward(&one);
    }
    free_forward(&f);
}

/* ---- mistakes ---- */

static void impossible_configurations_are_named(void)
{
    static const struct {
        lk_transformer_config change;
        const char           *text;
    } cases[] = {
        {{.heads = 5}, "5 heads do not divide the width 24"},
        {{.kind = LK_TRANSFORMER_LLAMA, .kv_heads = 3}, "3 key/value heads do not divide 4 query heads"},
        {{.kind = LK_TRANSFORMER_LLAMA, .head_width = 5}, "even head width"},
        {{.kv_heads = 2}, "apply only to llama"},
        {{.qk_norm = true}, "qk_norm applies only to llama"},
        {{.vocabulary = -1}, "vocabulary is -1"},
        {{.layers = -3}, "layers is -3"},
        {{.dropout = 1}, "dropout"},
        {{.experts = 4}, "experts apply only to llama"},
        {{.kind = LK_TRANSFORMER_LLAMA, .experts = 2, .experts_per_token = 3},
         "3 experts per token, but the model has only 2"},
        {{.kind = LK_TRANSFORMER_LLAMA, .experts = -1}, "experts is -1"},
        {{.kind = LK_TRANSFORMER_LLAMA, .rope_scaling = LK_ROPE_LINEAR}, "factor is 0"},
        {{.kind = LK_TRANSFORMER_LLAMA, .rope_scaling = LK_ROPE_LLAMA3, .rope_factor = 8}, "original context"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const lk_transformer_config *change = &cases[i].change;
        lk_transformer_config        c = make_config(LK_TRANSFORMER_GPT);
        char                         why[300] = "";
        c.kind = change->kind;
        if (change->heads) c.heads = change->heads;
        if (change->kv_heads) c.kv_heads = change->kv_heads;
        if (change->head_width) c.head_width = change->head_width;
        if (change->vocabulary) c.vocabulary = change->vocabulary;
        if (change->layers) c.layers = change->layers;
        c.dropout = change->dropout;
        c.qk_norm = change->qk_norm;
        c.experts = change->experts;
        c.experts_per_token = change->experts_per_token;
        c.rope_scaling = change->rope_scaling;
        c.rope_factor = change->rope_factor;
        CHECK(!lk_transformer_check(&c, why, sizeof why) && strstr(why, cases[i].text), "case %zu: %s", i, why);
    }
}

static void unfit_tokens_are_named(void)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_context       *context;
    config.threads = 1;
    REQUIRE(lk_context_create(&config, &context) == LK_OK);
    for (int i = 0; i < 3; i++) {
        static const char *const texts[] = {"but sequences have", "i32 token ids (N, T)", "heads do not divide"};
        lk_transformer_config    c = make_config(LK_TRANSFORMER_GPT);
        lk_graph                *graph;
        int64_t                  dims[] = {2, LENGTH + (i == 0 ? 3 : 0), 2};
        if (i == 2) c.heads = 5;
        REQUIRE(lk_graph_create(context, LK_F32, &graph) == LK_OK);
        lk_tensor x = i == 1 ? lk_input(graph, "x", LK_F32, 2, dims) : lk_input(graph, "x", LK_I32, 2, dims);
        (void)lk_transformer(x, &c);
        CHECK(strstr(lk_graph_error(graph), texts[i]), "%s", lk_graph_error(graph));
        lk_graph_free(graph);
    }
    lk_context_free(context);
}

int main(void)
{
    fill_samples();
    RUN(ranks_micro_batches_and_leaves_give_the_same_losses);
    RUN(reproducible_runs_have_the_same_bits_at_any_world_size);
    RUN(recomputed_blocks_change_memory_and_no_bit);
    RUN(sizes_are_those_of_the_store);
    RUN(lookups_are_not_arithmetic);
    RUN(packed_documents_are_as_documents_alone);
    RUN(padding_changes_no_class);
    RUN(impossible_configurations_are_named);
    RUN(unfit_tokens_are_named);
    return check_result();
}
