/* test_moe_reference.c - Mixtral and Qwen3-MoE in f64 against a model of naive loops: loss, with and without the
 * auxiliary loss, and the gradient of every parameter against finite differences of these loops. transformers computes
 * experts in f32 only; interop.py compares with it to 1e-5. */
#include "training_batch.h"

#include <lockstep/moe.h>
#include <lockstep/transformer.h>
#include <math.h>

enum { N = 2, T = 5, W = 8, VOCABULARY = 11, HEADS = 4, GROUPS = 2, D = 6, HIDDEN = 5, EXPERTS = 5, LAYERS = 2 };
enum { MOST_STATES = 64 };

typedef struct weights {
    lk_state states[MOST_STATES];
    double  *values[MOST_STATES]; /* owned copies */
    size_t   count;
} weights;

typedef struct reference {
    const lk_transformer_config *config;
    const weights               *weights;
    const int32_t               *tokens, *labels;                       /* (N, T) */
    double                       chosen[EXPERTS], probability[EXPERTS]; /* of all layers, for the auxiliary loss */
} reference;

/* ---- the model, by loops ---- */

static const double *weight_of(const reference *r, int layer, const char *name)
{
    char full[128];
    if (layer < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "model.layers.%d.%s", layer, name);
    for (size_t i = 0; i < r->weights->count; i++)
        if (strcmp(r->weights->states[i].name, full) == 0) return r->weights->values[i];
    REQUIRE(false, "there is no %s", full);
    return NULL;
}

static const double *expert_weight(const reference *r, int layer, int kind)
{
    static const char *const names[][2] = {{"block_sparse_moe.experts.*.w1.weight", "mlp.experts.*.gate_proj.weight"},
                                           {"block_sparse_moe.experts.*.w2.weight", "mlp.experts.*.down_proj.weight"},
                                           {"block_sparse_moe.experts.*.w3.weight", "mlp.experts.*.up_proj.weight"},
                                           {"block_sparse_moe.gate.weight", "mlp.gate.weight"}};
    return weight_of(r, layer, names[kind][r->config->qk_norm]);
}

static void multiply(const double *x, const double *weight, int out, int in, double *y)
{
    for (int o = 0; o < out; o++) {
        y[o] = 0;
        for (int i = 0; i < in; i++) y[o] += weight[o * in + i] * x[i];
    }
}

static void normalise(const double *x, const double *weight, int width, double epsilon, double *y)
{
    double sum = 0;
    for (int i = 0; i < width; i++) sum += x[i] * x[i];
    for (int i = 0; i < width; i++) y[i] = weight[i] * x[i] / sqrt(sum / width + epsilon);
}

/* The head at `position`, in place: pairs (i, i + D/2). */
static void rotate(double *x, int position, double theta)
{
    for (int i = 0; i < D / 2; i++) {
        double angle = position * pow(theta, -2.0 * i / D), a = x[i], b = x[i + D / 2];
        x[i] = a * cos(angle) - b * sin(angle);
        x[i + D / 2] = b * cos(angle) + a * sin(angle);
    }
}

/* `heads` queries or keys of a token, in place. norm NULL: none. */
static void finish_heads(const reference *r, const double *norm, int heads, int position, double *x)
{
    for (int k = 0; k < heads; k++) {
        if (norm) normalise(x + k * D, norm, D, r->config->norm_epsilon, x + k * D);
        rotate(x + k * D, position, r->config->rope_theta);
    }
}

static void attend_head(const double *q, double (*keys)[GROUPS * D], double (*values)[GROUPS * D], int last, double *y)
{
    double score[T], largest = -INFINITY, sum = 0;
    for (int s = 0; s <= last; s++) {
        score[s] = 0;
        for (int i = 0; i < D; i++) score[s] += q[i] * keys[s][i] / sqrt(D);
        largest = fmax(largest, score[s]);
    }
    for (int s = 0; s <= last; s++) sum += exp(score[s] - largest);
    for (int i = 0; i < D; i++) {
        y[i] = 0;
        for (int s = 0; s <= last; s++) y[i] += exp(score[s] - largest) / sum * values[s][i];
    }
}

/* Adds attention of one sequence. */
static void attend(const reference *r, int layer, double (*x)[W])
{
    bool   qwen = r->config->qk_norm;
    double q[T][HEADS * D], k[T][GROUPS * D], v[T][GROUPS * D];
    for (int t = 0; t < T; t++) {
        double h[W];
        normalise(x[t], weight_of(r, layer, "input_layernorm.weight"), W, r->config->norm_epsilon, h);
        multiply(h, weight_of(r, layer, "self_attn.q_proj.weight"), HEADS * D, W, q[t]);
        multiply(h, weight_of(r, layer, "self_attn.k_proj.weight"), GROUPS * D, W, k[t]);
        multiply(h, weight_of(r, layer, "self_attn.v_proj.weight"), GROUPS * D, W, v[t]);
        finish_heads(r, qwen ? weight_of(r, layer, "self_attn.q_norm.weight") : NULL, HEADS, t, q[t]);
        finish_heads(r, qwen ? weight_of(r, layer, "self_attn.k_norm.weight") : NULL, GROUPS, t, k[t]);
    }
    for (int t = 0; t < T; t++) {
        double y[HEADS * D], out[W];
        for (int head = 0; head < HEADS; head++) {
            int at = head / (HEADS / GROUPS) * D;
            attend_head(q[t] + head * D, (double(*)[GROUPS * D])(k[0] + at), (double(*)[GROUPS * D])(v[0] + at), t,
                        y + head * D);
        }
        multiply(y, weight_of(r, layer, "self_attn.o_proj.weight"), W, HEADS * D, out);
        for (int i = 0; i < W; i++) x[t][i] += out[i];
    }
}

static void run_expert(const reference *r, int layer, int e, const double *h, double *y)
{
    double gate[HIDDEN], up[HIDDEN];
    multiply(h, expert_weight(r, layer, 0) + e * HIDDEN * W, HIDDEN, W, gate);
    multiply(h, expert_weight(r, layer, 2) + e * HIDDEN * W, HIDDEN, W, up);
    for (int i = 0; i < HIDDEN; i++) up[i] *= gate[i] / (1 + exp(-gate[i]));
    multiply(up, expert_weight(r, layer, 1) + e * W * HIDDEN, W, HIDDEN, y);
}

/* Adds the experts of one token. */
static void mix(reference *r, int layer, double *x)
{
    double h[W], p[EXPERTS], y[W], largest = -INFINITY, sum = 0, total = 0;
    bool   used[EXPERTS] = {false};
    int    top[EXPERTS], k = r->config->experts_per_token;
    normalise(x, weight_of(r, layer, "post_attention_layernorm.weight"), W, r->config->norm_epsilon, h);
    multiply(h, expert_weight(r, layer, 3), EXPERTS, W, p);
    for (int e = 0; e < EXPERTS; e++) largest = fmax(largest, p[e]);
    for (int e = 0; e < EXPERTS; e++) sum += p[e] = exp(p[e] - largest);
    for (int e = 0; e < EXPERTS; e++) r->probability[e] += p[e] /= sum;
    for (int j = 0; j < k; j++) {
        top[j] = -1;
        for (int e = 0; e < EXPERTS; e++)
            if (!used[e] && (top[j] < 0 || p[e] > p[top[j]])) top[j] = e;
        used[top[j]] = true;
        r->chosen[top[j]]++;
        total += p[top[j]];
    }
    for (int j = 0; j < k; j++) {
        run_expert(r, layer, top[j], h, y);
        for (int i = 0; i < W; i++) x[i] += p[top[j]] / (r->config->plain_router ? 1 : total) * y[i];
    }
}

static double entropy(const reference *r, const double *x, int label)
{
    double h[W], logits[VOCABULARY], sum = 0;
    normalise(x, weight_of(r, -1, "model.norm.weight"), W, r->config->norm_epsilon, h);
    multiply(h, weight_of(r, -1, r->config->untied ? "lm_head.weight" : "model.embed_tokens.weight"), VOCABULARY, W,
             logits);
    for (int c = 0; c < VOCABULARY; c++) sum += exp(logits[c] - logits[label]);
    return log(sum);
}

/* The mean loss, with the auxiliary loss as transformers has it. */
static double loss_by_loops(reference *r)
{
    double x[N][T][W], loss = 0, balance = 0;
    memset(r->chosen, 0, sizeof r->chosen);
    memset(r->probability, 0, sizeof r->probability);
    for (int n = 0; n < N; n++) {
        for (int t = 0; t < T; t++)
            memcpy(x[n][t], weight_of(r, -1, "model.embed_tokens.weight") + r->tokens[n * T + t] * W, sizeof x[n][t]);
        for (int layer = 0; layer < LAYERS; layer++) {
            attend(r, layer, x[n]);
            for (int t = 0; t < T; t++) mix(r, layer, x[n][t]);
        }
        for (int t = 0; t < T; t++) loss += entropy(r, x[n][t], r->labels[n * T + t]) / (N * T);
    }
    for (int e = 0; e < EXPERTS; e++)
        balance += EXPERTS * r->chosen[e] / (N * T * LAYERS) * r->probability[e] / (N * T * LAYERS);
    return loss + r->config->router_loss * balance;
}

/* ---- both ---- */

static void copy_weights(const rig *r, weights *w)
{
    w->count = lk_store_count(r->store);
    REQUIRE(w->count <= MOST_STATES);
    for (size_t i = 0; i < w->count; i++) {
        w->states[i] = lk_store_at(r->store, i);
        REQUIRE((w->values[i] = malloc(state_bytes(&w->states[i]))) != NULL);
        memcpy(w->values[i], state_copy(r->store, w->states[i].name), state_bytes(&w->states[i]));
    }
}

static void check_gradients(rig *r, reference *loops, const weights *w, double mean)
{
    const double step = 1e-5;
    for (size_t i = 0; i < w->count; i++) {
        const lk_state *s = &w->states[i];
        const double   *gradient = gradient_copy(r->program, r->store, s->name);
        double          worst = 0, largest = 1e-2;
        REQUIRE(gradient, "%s has no gradient", s->name);
        for (int64_t k = 0; k < state_elements(s); k++) {
            double before = w->values[i][k], both[2];
            for (int side = 0; side < 2; side++) {
                w->values[i][k] = before + (side ? step : -step);
                both[side] = loss_by_loops(loops);
            }
            w->values[i][k] = before;
            double expected = (both[1] - both[0]) / (2 * step);
            worst = fmax(worst, fabs(gradient[k] / mean - expected));
            largest = fmax(largest, fabs(expected));
        }
        CHECK(worst <= 1e-7 * largest, "the gradient of %s differs by %g of %g", s->name, worst, largest);
    }
}

static void compare(lk_transformer_config config)
{
    int32_t             tokens[N * T], labels[N * T];
    int64_t             dims[] = {N, T};
    rig                 r = rig_open(LK_F64, 1);
    lk_plan_config      plan = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    weights             w;
    char                why[256] = "";
    config.kind = LK_TRANSFORMER_LLAMA;
    config.vocabulary = VOCABULARY, config.context = T, config.layers = LAYERS, config.width = W;
    config.heads = HEADS, config.kv_heads = GROUPS, config.head_width = D, config.hidden = HIDDEN;
    config.experts = EXPERTS, config.rope_theta = 100, config.norm_epsilon = 1e-5;
    for (int i = 0; i < N * T; i++) {
        tokens[i] = (int32_t)(number_bits(7, (uint64_t)i) % VOCABULARY);
        labels[i] = (int32_t)(number_bits(8, (uint64_t)i) % VOCABULARY);
    }
    REQUIRE(lk_transformer_check(&config, why, sizeof why), "%s", why);
    lk_tensor             in = lk_input(r.graph, "tokens", LK_I32, 2, dims);
    lk_transformer_result made = lk_transformer(in, &config);
    plan.loss = lk_linear_cross_entropy(made.hidden, made.head, lk_input(r.graph, "labels", LK_I32, 2, dims));
    if (config.router_loss > 0)
        plan.loss = lk_add(plan.loss, lk_scale(lk_moe_balance(made.hidden), config.router_loss));
    plan.optimizer = &sgd;
    rig_plan(&r, &plan, 1);
    initialise(r.store);
    copy_weights(&r, &w);
    REQUIRE(lk_program_bind(r.program, "tokens", tokens) == LK_OK &&
            lk_program_bind(r.program, "labels", labels) == LK_OK);
    REQUIRE(lk_program_compute(r.program, &(lk_step){.step = 1, .count = N}) == LK_OK, "%s",
            lk_context_error(r.context));
    reference  loops = {.config = &config, .weights = &w, .tokens = tokens, .labels = labels};
    lk_metrics m = rig_metrics(&r);
    double     expected = loss_by_loops(&loops);
    CHECK(fabs(m.loss - expected) <= 1e-12 * expected, "a loss of %.17g, not %.17g", m.loss, expected);
    check_gradients(&r, &loops, &w, m.weight);
    for (size_t i = 0; i < w.count; i++) free(w.values[i]);
    rig_close(&r);
}

static void mixtral_is_that_of_loops(void)
{
    compare((lk_transformer_config){.size = sizeof(lk_transformer_config), .experts_per_token = 2, .untied = true});
    compare((lk_transformer_config){.size = sizeof(lk_transformer_config), .experts_per_token = 3, .router_loss = 0.3});
}

static void qwen3_moe_is_that_of_loops(void)
{
    compare((lk_transformer_config){.size = sizeof(lk_transformer_config), .experts_per_token = 2, .qk_norm = true});
    compare((lk_transformer_config){.size = sizeof(lk_transformer_config),
                                    .experts_per_token = 3,
                                    .qk_norm = true,
                                    .plain_router = true,
                                    .router_loss = 0.3,
                                    .untied = true});
}

int main(void)
{
    RUN(mixtral_is_that_of_loops);
    RUN(qwen3_moe_is_that_of_loops);
    return check_result();
}
