/* test_transformers_golden.c - small GPT and Llama models against a reference in plain PyTorch with everything in f64:
 * the losses of 50 AdamW steps and the first gradients; and in f32 the first gradients of Hugging Face's own models.
 * The values come from golden/make_transformers.py, weights and batches from the same formula as there. */
#include "training_batch.h"

#include <lockstep/transformer.h>

enum { STEPS = 50, PROJECTIONS = 8, BATCH = 4, LENGTH = 16, VOCABULARY = 61 };

static const struct {
    const char           *name;
    lk_transformer_config config;
} models[] = {
    {"gpt/",
     {.size = sizeof(lk_transformer_config),
      .kind = LK_TRANSFORMER_GPT,
      .vocabulary = VOCABULARY,
      .context = 24,
      .layers = 2,
      .heads = 4,
      .width = 32,
      .norm_epsilon = 1e-5}},
    {"llama/",
     {.size = sizeof(lk_transformer_config),
      .kind = LK_TRANSFORMER_LLAMA,
      .vocabulary = VOCABULARY,
      .context = 32,
      .layers = 2,
      .heads = 4,
      .kv_heads = 2,
      .width = 32,
      .hidden = 88,
      .untied = true}},
    {"llama3/",
     {.size = sizeof(lk_transformer_config),
      .kind = LK_TRANSFORMER_LLAMA,
      .vocabulary = VOCABULARY,
      .context = 32,
      .layers = 2,
      .heads = 4,
      .kv_heads = 1,
      .head_width = 16,
      .width = 32,
      .hidden = 88,
      .attention_bias = true,
      .mlp_bias = true,
      .rope_theta = 500,
      .rope_scaling = LK_ROPE_LLAMA3,
      .rope_factor = 8,
      .rope_low = 1,
      .rope_high = 4,
      .rope_context = 8}},
};
enum { MODELS = sizeof models / sizeof *models };

typedef struct model_run {
    rig      rig;
    lk_dtype real;
    int32_t  tokens[BATCH * LENGTH], labels[BATCH * LENGTH];
} model_run;

/* make_transformers.py's batch(). */
static int fill_batch(model_run *s, int step)
{
    int counted = 0;
    for (int n = 0; n < BATCH; n++) {
        int64_t token = 0;
        for (int i = 0; i <= LENGTH; i++) {
            uint64_t b = number_bits(5000 + (uint64_t)step, (uint64_t)(n * (LENGTH + 1) + i));
            token = i == 0 || b >> 62 == 0 ? (int64_t)((b >> 32) % VOCABULARY) : (7 * token + 3) % VOCABULARY;
            if (i < LENGTH) s->tokens[n * LENGTH + i] = (int32_t)token;
            if (i == 0) continue;
            bool ignored = (b >> 8) % 16 == 0;
            s->labels[n * LENGTH + i - 1] = ignored ? -100 : (int32_t)token;
            counted += !ignored;
        }
    }
    return counted;
}

static void open_run(model_run *s, const lk_transformer_config *model, lk_dtype real)
{
    int64_t             dims[] = {BATCH, LENGTH};
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    lk_plan_config      config = LK_PLAN_CONFIG_INIT;
    *s = (model_run){.rig = rig_open(real, 2), .real = real};
    lk_tensor tokens = lk_input(s->rig.graph, "tokens", LK_I32, 2, dims),
              labels = lk_input(s->rig.graph, "label", LK_I32, 2, dims);
    lk_transformer_result made = lk_transformer(tokens, model);
    optimizer.kind = LK_ADAMW;
    optimizer.beta2 = 0.95;
    optimizer.weight_decay = 0.1;
    config.loss = lk_linear_cross_entropy(made.hidden, made.head, labels);
    config.optimizer = &optimizer;
    rig_plan(&s->rig, &config, 1);
    initialise(s->rig.store);
}

static double train(model_run *s, int step, int *counted)
{
    *counted = fill_batch(s, step);
    REQUIRE(lk_program_bind(s->rig.program, "tokens", s->tokens) == LK_OK &&
            lk_program_bind(s->rig.program, "label", s->labels) == LK_OK);
    REQUIRE(lk_program_train(s->rig.program, &(lk_step){.step = step, .count = BATCH, .rate = 1e-3}) == LK_OK, "%s",
            lk_context_error(s->rig.context));
    return rig_metrics(&s->rig).loss;
}

/* Norm and projections of every parameter's mean gradient, relative to its norm; returns the largest difference. */
static double check_gradients(model_run *s, lk__safetensors *file, const char *prefix, int counted, double tolerance)
{
    double worst = 0;
    for (size_t i = 0; i < lk_store_count(s->rig.store); i++) {
        lk_state state = lk_store_at(s->rig.store, i);
        if (state.buffer) continue;
        double     *expected = golden(file, prefix, state.name, NULL);
        const void *gradient = gradient_copy(s->rig.program, s->rig.store, state.name);
        int64_t     n = state_elements(&state);
        double      sum = 0;
        for (int64_t j = 0; j < n; j++) sum += pow(real_at(gradient, s->real, j) / counted, 2);
        double off = fabs(sqrt(sum) - expected[0]) / expected[0];
        for (int k = 0; k < PROJECTIONS; k++) {
            double dot = 0, direction = 0;
            for (int64_t j = 0; j < n; j++) {
                double u = 2 * number(seed_of(state.name) + 1 + (uint64_t)k, (uint64_t)j) - 1;
                dot += u * real_at(gradient, s->real, j) / counted;
                direction += u * u;
            }
            off = fmax(off, fabs(dot - expected[1 + k]) / (expected[0] * sqrt(direction)));
        }
        CHECK(off <= tolerance, "%s%s: the gradient is off by %g of its norm", prefix, state.name, off);
        worst = fmax(worst, off);
        free(expected);
    }
    return worst;
}

static void check_f64(const char *name, const lk_transformer_config *config)
{
    model_run s;
    char      prefix[64];
    int64_t   count;
    int       counted;
    double    worst = 0, gradients = 0;
    open_run(&s, config, LK_F64);
    lk__safetensors *file = golden_open(s.rig.context, "transformers.safetensors");
    double          *losses = golden(file, name, "losses", &count);
    snprintf(prefix, sizeof prefix, "%sgradient/", name);
    REQUIRE(count == STEPS);
    for (int step = 1; step <= STEPS; step++) {
        double loss = train(&s, step, &counted), off = fabs(loss - losses[step - 1]) / losses[step - 1];
        CHECK(off <= 1e-9, "%sstep %d: loss %.17g, the reference has %.17g", name, step, loss, losses[step - 1]);
        worst = fmax(worst, off);
        if (step == 1) gradients = check_gradients(&s, file, prefix, counted, 1e-9);
    }
    printf("     %s losses of %d steps within %.1e, first gradients within %.1e\n", name, STEPS, worst, gradients);
    free(losses);
    lk__safetensors_close(file);
    rig_close(&s.rig);
}

static void check_f32(const char *name, const lk_transformer_config *config)
{
    model_run s;
    char      prefix[64];
    int       counted;
    open_run(&s, config, LK_F32);
    lk__safetensors *file = golden_open(s.rig.context, "transformers.safetensors");
    snprintf(prefix, sizeof prefix, "%sf32_gradient/", name);
    train(&s, 1, &counted);
    double worst = check_gradients(&s, file, prefix, counted, 1e-5);
    printf("     %s first gradients in f32 within %.1e of those of transformers\n", name, worst);
    lk__safetensors_close(file);
    rig_close(&s.rig);
}

static void fifty_steps_in_f64_follow_the_reference(void)
{
    for (int i = 0; i < MODELS; i++) check_f64(models[i].name, &models[i].config);
}

static void first_gradients_in_f32_are_those_of_transformers(void)
{
    for (int i = 0; i < MODELS; i++) check_f32(models[i].name, &models[i].config);
}

int main(void)
{
    RUN(fifty_steps_in_f64_follow_the_reference);
    RUN(first_gradients_in_f32_are_those_of_transformers);
    return check_result();
}
