/* transformer.c - configurations of transformers: defaults, presets, checks and sizes; and the call that records a
 * model of any kind. */
#include "nn/transformer.h"

#include <lockstep/device.h>
#include <stdio.h>
#include <string.h>

typedef struct preset {
    const char           *name;
    lk_transformer_config config;
} preset;

#define GPT2(layers_, heads_, width_)                                                                     \
    {.size = sizeof(lk_transformer_config), .kind = LK_TRANSFORMER_GPT, .vocabulary = 50257, .context = 1024, \
     .layers = (layers_), .heads = (heads_), .width = (width_), .bos = 50256, .eos = 50256, .pad = -1}

static const preset presets[] = {
    {"gpt2", GPT2(12, 12, 768)},
    {"gpt2-medium", GPT2(24, 16, 1024)},
    {"gpt2-large", GPT2(36, 20, 1280)},
    /* The shapes of Karpathy's stories15M and stories110M. */
    {"llama-15m",
     {.size = sizeof(lk_transformer_config),
      .kind = LK_TRANSFORMER_LLAMA,
      .vocabulary = 32000,
      .context = 256,
      .layers = 6,
      .heads = 6,
      .width = 288,
      .hidden = 768,
      .norm_epsilon = 1e-5,
      .bos = 1,
      .eos = 2,
      .pad = -1}},
    {"llama-110m",
     {.size = sizeof(lk_transformer_config),
      .kind = LK_TRANSFORMER_LLAMA,
      .vocabulary = 32000,
      .context = 1024,
      .layers = 12,
      .heads = 12,
      .width = 768,
      .hidden = 2048,
      .norm_epsilon = 1e-5,
      .bos = 1,
      .eos = 2,
      .pad = -1}},
    {"llama-3.2-1b",
     {.size = sizeof(lk_transformer_config),
      .kind = LK_TRANSFORMER_LLAMA,
      .vocabulary = 128256,
      .context = 131072,
      .layers = 16,
      .heads = 32,
      .kv_heads = 8,
      .head_width = 64,
      .width = 2048,
      .hidden = 8192,
      .norm_epsilon = 1e-5,
      .rope_theta = 500000,
      .rope_scaling = LK_ROPE_LLAMA3,
      .rope_factor = 32,
      .rope_low = 1,
      .rope_high = 4,
      .rope_context = 8192,
      .bos = 128000,
      .eos = 128001,
      .pad = -1}},
};

enum { PRESETS = sizeof presets / sizeof *presets };

const char *const *lk_transformer_presets(void)
{
    static const char *const names[] = {"gpt2",       "gpt2-medium",  "gpt2-large", "llama-15m",
                                        "llama-110m", "llama-3.2-1b", NULL};
    return names;
}

bool lk_transformer_preset(const char *name, lk_transformer_config *config)
{
    for (int i = 0; i < PRESETS; i++)
        if (strcmp(name, presets[i].name) == 0) {
            *config = presets[i].config;
            return true;
        }
    return false;
}

static int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

lk_transformer_config lk__nn_resolve(const lk_transformer_config *config)
{
    lk_transformer_config c = LK_TRANSFORMER_CONFIG_INIT;
    memcpy(&c, config, config->size < sizeof c ? config->size : sizeof c); /* of other versions of the header */
    c.size = sizeof c;
    bool llama = c.kind == LK_TRANSFORMER_LLAMA;
    if (c.kv_heads == 0) c.kv_heads = c.heads;
    if (c.head_width == 0 && c.heads > 0) c.head_width = c.width / c.heads;
    if (c.hidden == 0) c.hidden = llama ? round_up(8 * c.width / 3, 32) : 4 * c.width;
    if (!(c.norm_epsilon > 0)) c.norm_epsilon = llama ? 1e-6 : c.kind == LK_TRANSFORMER_ENCODER ? 1e-12 : 1e-5;
    if (!(c.init_std > 0)) c.init_std = 0.02;
    if (!(c.rope_theta > 0)) c.rope_theta = 10000;
    if (c.classes == 0) c.classes = 2;
    if (c.experts > 0 && c.experts_per_token == 0) c.experts_per_token = 2;
    return c;
}

/* ---- checks ---- */

static const char *kind_name(const lk_transformer_config *c)
{
    if (c->kind == LK_TRANSFORMER_LLAMA && c->qk_norm) return c->experts > 0 ? "qwen3_moe" : "qwen3";
    if (c->kind == LK_TRANSFORMER_LLAMA) return c->experts > 0 ? "mixtral" : "llama";
    return c->kind == LK_TRANSFORMER_GPT ? "gpt" : "encoder";
}

static bool check_sizes(const lk_transformer_config *c, char *why, size_t size)
{
    if ((unsigned)c->kind > LK_TRANSFORMER_ENCODER || (unsigned)c->activation > LK_SILU ||
        (unsigned)c->rope_scaling > LK_ROPE_LLAMA3) {
        snprintf(why, size, "invalid kind %d, activation %d or rope_scaling %d", (int)c->kind, (int)c->activation,
                 (int)c->rope_scaling);
        return false;
    }
    const struct {
        const char *name;
        int64_t     value, most;
    } sizes[] = {{"vocabulary", c->vocabulary, 1 << 28},
                 {"context", c->context, 1 << 28},
                 {"layers", c->layers, 4096},
                 {"heads", c->heads, 65536},
                 {"width", c->width, 1 << 24},
                 {"hidden", c->hidden, 1 << 26},
                 {"kv_heads", c->kv_heads, 65536},
                 {"classes", c->classes, 1 << 28}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < 1 || sizes[i].value > sizes[i].most) {
            snprintf(why, size, "%s is %lld; expected 1 to %lld", sizes[i].name, (long long)sizes[i].value,
                     (long long)sizes[i].most);
            return false;
        }
    return true;
}

static bool check_heads(const lk_transformer_config *c, bool width_given, char *why, size_t size)
{
    if (!width_given && c->width % c->heads != 0) {
        snprintf(why, size, "%lld heads do not divide the width %lld", (long long)c->heads, (long long)c->width);
        return false;
    }
    if (c->heads % c->kv_heads != 0) {
        snprintf(why, size, "%lld key/value heads do not divide %lld query heads", (long long)c->kv_heads,
                 (long long)c->heads);
        return false;
    }
    if (c->kind == LK_TRANSFORMER_LLAMA && c->head_width % 2 != 0) {
        snprintf(why, size, "rotary positions need an even head width; it is %lld", (long long)c->head_width);
        return false;
    }
    if (c->kind != LK_TRANSFORMER_LLAMA && (c->kv_heads != c->heads || c->head_width * c->heads != c->width)) {
        snprintf(why, size, "kv_heads and head_width apply only to llama");
        return false;
    }
    if (c->kind != LK_TRANSFORMER_LLAMA && c->qk_norm) {
        snprintf(why, size, "qk_norm applies only to llama");
        return false;
    }
    return true;
}

static bool check_rope(const lk_transformer_config *c, char *why, size_t size)
{
    bool scaled = c->rope_scaling != LK_ROPE_DEFAULT, llama3 = c->rope_scaling == LK_ROPE_LLAMA3;
    if (scaled && !(c->rope_factor >= 1)) {
        snprintf(why, size, "the rope scaling factor is %g; expected at least 1", c->rope_factor);
        return false;
    }
    if (llama3 && (c->rope_context < 1 || !(c->rope_low > 0) || !(c->rope_high > c->rope_low))) {
        snprintf(why, size,
                 "llama3 rope scaling needs an original context of at least 1, and a low frequency factor above 0 and "
                 "below the high one");
        return false;
    }
    return true;
}

static bool check_rates(const lk_transformer_config *c, char *why, size_t size)
{
    bool dropout = c->dropout >= 0 && c->dropout < 1 && c->attention_dropout >= 0 && c->attention_dropout < 1;
    if (!dropout) snprintf(why, size, "dropout must be at least 0 and below 1");
    return dropout;
}

static bool check_experts(const lk_transformer_config *c, char *why, size_t size)
{
    bool set = c->experts != 0 || c->experts_per_token != 0 || c->router_loss != 0 || c->plain_router;
    if (!set) return true;
    if (c->kind != LK_TRANSFORMER_LLAMA)
        snprintf(why, size, "experts apply only to llama");
    else if (c->experts < 1 || c->experts > 65536)
        snprintf(why, size, "experts is %d; expected 1 to 65536", c->experts);
    else if (c->experts_per_token < 1 || c->experts_per_token > c->experts)
        snprintf(why, size, "%d experts per token, but the model has only %d", c->experts_per_token, c->experts);
    else if (c->mlp_bias)
        snprintf(why, size, "experts cannot have a bias");
    else if (!(c->router_loss >= 0 && c->router_loss <= 1e6))
        snprintf(why, size, "the router loss factor is %g; expected 0 to 1e6", c->router_loss);
    else
        return true;
    return false;
}

bool lk_transformer_check(const lk_transformer_config *config, char *why, size_t bytes)
{
    char                  reason[256] = "";
    lk_transformer_config c = lk__nn_resolve(config);
    bool                  good = check_sizes(&c, reason, sizeof reason) &&
                check_heads(&c, config->head_width > 0, reason, sizeof reason) &&
                check_rope(&c, reason, sizeof reason) && check_rates(&c, reason, sizeof reason) &&
                check_experts(&c, reason, sizeof reason);
    if (!good && bytes > 0) snprintf(why, bytes, "%s: %s", kind_name(&c), reason);
    return good;
}

/* ---- sizes ---- */

static int64_t gpt_parameters(const lk_transformer_config *c)
{
    int64_t w = c->width, block = 4 * w + w * 3 * w + 3 * w + w * w + w + 2 * w * c->hidden + c->hidden + w;
    return c->vocabulary * w + c->context * w + c->layers * block + 2 * w;
}

static int64_t llama_parameters(const lk_transformer_config *c)
{
    int64_t w = c->width, q = c->heads * c->head_width, kv = c->kv_heads * c->head_width;
    int64_t attention = w * q + 2 * w * kv + q * w + (c->attention_bias ? q + 2 * kv + w : 0);
    int64_t mlp = 3 * w * c->hidden + (c->mlp_bias ? 2 * c->hidden + w : 0);
    if (c->experts > 0) mlp = c->experts * (mlp + w); /* and its row of the router */
    if (c->qk_norm) attention += 2 * c->head_width;
    return c->vocabulary * w * (c->untied ? 2 : 1) + c->layers * (attention + mlp + 2 * w) + w;
}

static int64_t encoder_parameters(const lk_transformer_config *c)
{
    int64_t w = c->width, block = 4 * (w * w + w) + 2 * w * c->hidden + c->hidden + w + 4 * w;
    int64_t embeddings = (c->vocabulary + c->context + LK__TOKEN_TYPES) * w + 2 * w;
    return embeddings + c->layers * block + w * w + w + c->classes * w + c->classes;
}

int64_t lk_transformer_parameters(const lk_transformer_config *config)
{
    lk_transformer_config c = lk__nn_resolve(config);
    return c.kind == LK_TRANSFORMER_GPT     ? gpt_parameters(&c)
           : c.kind == LK_TRANSFORMER_LLAMA ? llama_parameters(&c)
                                            : encoder_parameters(&c);
}

/* Rows of these are looked up; the embedding of tokens is also the head's product where the two are tied. */
static int64_t looked_up(const lk_transformer_config *c)
{
    if (c->kind == LK_TRANSFORMER_GPT) return c->context * c->width;
    if (c->kind == LK_TRANSFORMER_LLAMA) return c->untied ? c->vocabulary * c->width : 0;
    return (c->vocabulary + c->context + LK__TOKEN_TYPES) * c->width;
}

/* Of the experts that a token does not use. */
static int64_t unused_parameters(const lk_transformer_config *c)
{
    return c->experts > 0 ? c->layers * (c->experts - c->experts_per_token) * 3 * c->width * c->hidden : 0;
}

double lk_transformer_flops(const lk_transformer_config *config, int64_t length)
{
    lk_transformer_config c = lk__nn_resolve(config);
    int64_t               parameters = lk_transformer_parameters(&c) - looked_up(&c) - unused_parameters(&c);
    double                once = 0; /* in a sequence: the pooler and the head of an encoder */
    if (c.kind == LK_TRANSFORMER_ENCODER)
        once = (double)(c.width * c.width + c.width + c.classes * c.width + c.classes);
    return 6.0 * ((double)parameters - once + (length > 0 ? once / (double)length : 0)) +
           12.0 * (double)c.layers * (double)(c.heads * c.head_width) * (double)length;
}

/* ---- recording ---- */

lk_tensor lk__nn_weight(lk_tensor x, const char *name, int64_t rows, int64_t columns, double std)
{
    return lk_parameter(x.graph, name, 2, ((int64_t[]){rows, columns}), .init = LK_INIT_NORMAL, .a = std);
}

lk_tensor lk__nn_zeros(lk_tensor x, const char *name, int64_t size)
{
    return lk_parameter(x.graph, name, 1, &size, .init = LK_INIT_ZERO, .no_decay = true);
}

lk_tensor lk__nn_activate(lk_tensor x, lk_activation activation)
{
    return activation == LK_GELU_TANH ? lk_gelu(x, .tanh = true)
           : activation == LK_GELU    ? lk_gelu(x)
           : activation == LK_RELU    ? lk_relu(x)
                                      : lk_silu(x);
}

lk_tensor lk__nn_drop(lk_tensor x, double probability) { return probability > 0 ? lk_dropout(x, probability) : x; }

bool lk__nn_recomputes(const lk_transformer_config *c, int64_t i) { return c->recompute < 0 || i < c->recompute; }

/* On a GPU, whose arithmetic waits for memory, they are kept where they take little of it: up to 3 GiB in bf16. */
bool lk__nn_computes_again(lk_tensor x, const lk_transformer_config *c)
{
    double tokens = (double)lk_tensor_dim(x, 0) * (double)lk_tensor_dim(x, 1);
    double bytes = 2 * tokens * (double)c->layers * (double)(c->hidden + 2 * c->width);
    return bytes > 3.0 * (1 << 30) || lk_context_on_host(lk_graph_context(x.graph));
}

void lk__nn_block_begin(lk_tensor x, int64_t i, bool recompute)
{
    char name[32];
    snprintf(name, sizeof name, "%lld", (long long)i);
    lk_block_begin(x, name, .recompute = recompute);
}

static bool is_usable(lk_tensor x) { return x.graph && x.id >= 0 && lk_graph_status(x.graph) == LK_OK; }

/* Tokens (N, T) of at most `context` positions. */
static bool check_tokens(lk_tensor tokens, const lk_transformer_config *c)
{
    if (!is_usable(tokens)) return false;
    if (lk_tensor_rank(tokens) != 2 || lk_tensor_dtype(tokens) != LK_I32) {
        lk_graph_fail(tokens.graph, "%s needs i32 token ids (N, T), such as text data; the input is %s with %d axes",
                      kind_name(c), lk_dtype_name(lk_tensor_dtype(tokens)), lk_tensor_rank(tokens));
        return false;
    }
    if (lk_tensor_dim(tokens, 1) > c->context) {
        lk_graph_fail(tokens.graph, "%s has %lld positions, but sequences have %lld tokens", kind_name(c),
                      (long long)c->context, (long long)lk_tensor_dim(tokens, 1));
        return false;
    }
    return true;
}

lk_tensor lk__nn_add_positions(lk_tensor x, lk_tensor table, lk_tensor positions)
{
    if (positions.graph) return lk_add(x, lk_f_embedding(positions, table));
    int64_t length = lk_tensor_dim(x, 1);
    return lk_add(x, length < lk_tensor_dim(table, 0) ? lk_slice(table, 0, 0, length) : table);
}

lk_tensor lk__nn_cached(lk_tensor x, const char *name, const lk_transformer_options *o)
{
    if (o->cache <= 0) return x;
    int64_t dims[] = {lk_tensor_dim(x, 0), o->cache, lk_tensor_dim(x, 2)};
    return lk_cache_write(lk_buffer(x.graph, name, lk_graph_dtype(x.graph), 3, dims, 0, .not_saved = true), x, o->rows);
}

static bool check_cache(lk_tensor tokens, const lk_transformer_config *c, const lk_transformer_options *o)
{
    bool right = o->cache == 0 || (o->cache > 0 && c->kind != LK_TRANSFORMER_ENCODER && o->positions.graph &&
                                   o->rows.graph && o->last.graph && !o->lengths.graph);
    if (!right)
        lk_graph_fail(
            tokens.graph,
            "%s with a cache of %lld rows: only gpt and llama support a cache, and only with positions, rows and last",
            kind_name(c), (long long)o->cache);
    return right;
}

lk_transformer_result lk_transformer_at(lk_site site, lk_tensor tokens, const lk_transformer_config *config,
                                        lk_transformer_options options)
{
    char                  why[300];
    lk_transformer_config c = lk__nn_resolve(config);
    (void)site;
    if (is_usable(tokens) && !lk_transformer_check(config, why, sizeof why)) lk_graph_fail(tokens.graph, "%s", why);
    if (!check_tokens(tokens, &c) || !check_cache(tokens, &c, &options)) {
        lk_tensor none = {tokens.graph, -1};
        return (lk_transformer_result){none, none, none};
    }
    return c.kind == LK_TRANSFORMER_GPT     ? lk__nn_gpt(tokens, &c, &options)
           : c.kind == LK_TRANSFORMER_LLAMA ? lk__nn_llama(tokens, &c, &options)
                                            : lk__nn_encoder(tokens, &c, &options);
}
