/* llama.c - Llama as LlamaForCausalLM of Hugging Face: its names and shapes, RoPE with the pairs (i, i + D/2) of a
 * head; Mixtral as MixtralForCausalLM, which differs in its feed-forward networks; and Qwen3ForCausalLM and
 * Qwen3MoeForCausalLM, which also normalise queries and keys. */
#include "nn/transformer.h"

#include <lockstep/moe.h>
#include <math.h>
#include <stdlib.h>

typedef struct llama {
    const lk_transformer_config  *config;
    const lk_transformer_options *options;
    lk_tensor                     rope; /* (positions, head_width): cosines, sines */
} llama;

/* ---- rotary positions ---- */

/* Llama 3's scaling: frequencies with a wavelength above context / low are divided by the factor, those below context /
 * high stay, and in between both are interpolated. */
static double scale_llama3(const lk_transformer_config *c, double frequency)
{
    double wavelength = 2 * acos(-1) / frequency, context = (double)c->rope_context;
    if (wavelength < context / c->rope_high) return frequency;
    if (wavelength > context / c->rope_low) return frequency / c->rope_factor;
    double smooth = (context / wavelength - c->rope_low) / (c->rope_high - c->rope_low);
    return (1 - smooth) * frequency / c->rope_factor + smooth * frequency;
}

static double rope_frequency(const lk_transformer_config *c, int64_t i)
{
    double frequency = pow(c->rope_theta, -2.0 * (double)i / (double)c->head_width);
    return c->rope_scaling == LK_ROPE_LLAMA3   ? scale_llama3(c, frequency)
           : c->rope_scaling == LK_ROPE_LINEAR ? frequency / c->rope_factor
                                               : frequency;
}

static void fill_rope(const lk_transformer_config *c, int64_t rows, bool wide, void *out)
{
    int64_t half = c->head_width / 2;
    for (int64_t i = 0; i < half; i++) {
        double frequency = rope_frequency(c, i);
        for (int64_t row = 0; row < rows; row++) {
            double  angle = (double)row * frequency;
            int64_t at = row * 2 * half + i;
            if (wide)
                ((double *)out)[at] = cos(angle), ((double *)out)[at + half] = sin(angle);
            else
                ((float *)out)[at] = (float)cos(angle), ((float *)out)[at + half] = (float)sin(angle);
        }
    }
}

static lk_tensor record_rope(lk_tensor tokens, const lk_transformer_config *c, bool positions)
{
    int64_t rows = positions ? c->context : lk_tensor_dim(tokens, 1), dims[] = {rows, c->head_width};
    bool    wide = lk_graph_dtype(tokens.graph) == LK_F64;
    void   *table = malloc((size_t)(rows * c->head_width) * (wide ? sizeof(double) : sizeof(float)));
    if (!table) {
        lk_graph_fail(tokens.graph, "out of memory: cannot allocate the table of %lld rotary positions",
                      (long long)rows);
        return (lk_tensor){tokens.graph, -1};
    }
    fill_rope(c, rows, wide, table);
    lk_tensor t = lk_constant(tokens.graph, wide ? LK_F64 : LK_F32, 2, dims, table);
    free(table);
    return t;
}

/* ---- layers ---- */

static lk_tensor project(lk_tensor x, const char *name, int64_t features, bool bias, const llama *m)
{
    lk_block_begin(x, name);
    lk_tensor weight = lk__nn_weight(x, "weight", features, lk_tensor_dim(x, -1), m->config->init_std);
    lk_tensor y = lk_f_linear(x, weight, bias ? lk__nn_zeros(x, "bias", features) : (lk_tensor){0});
    lk_block_end(x);
    return y;
}

/* Each head of x (N, T, heads · D) by itself, all with the same weight (D). */
static lk_tensor normalise_heads(lk_tensor x, const char *name, int64_t heads, const llama *m)
{
    int64_t   n = lk_tensor_dim(x, 0), t = lk_tensor_dim(x, 1), d = m->config->head_width;
    lk_tensor y = lk_reshape(x, 4, ((int64_t[]){n, t, heads, d}));
    y = lk_rms_norm(y, name, .epsilon = m->config->norm_epsilon);
    return lk_reshape(y, 3, ((int64_t[]){n, t, heads * d}));
}

static lk_tensor attend(lk_tensor x, const llama *m)
{
    const lk_transformer_config  *c = m->config;
    const lk_transformer_options *o = m->options;
    int64_t                       queries = c->heads * c->head_width, keys = c->kv_heads * c->head_width;
    lk_block_begin(x, "", .recompute = lk__nn_computes_again(x, c)); /* as in gpt.c */
    lk_tensor h = lk_rms_norm(x, "input_layernorm", .epsilon = c->norm_epsilon);
    lk_block_begin(x, "self_attn");
    lk_tensor q = project(h, "q_proj", queries, c->attention_bias, m);
    lk_tensor k = project(h, "k_proj", keys, c->attention_bias, m);
    lk_tensor v = project(h, "v_proj", keys, c->attention_bias, m);
    lk_block_end(x);
    lk_block_end(x);
    lk_block_begin(x, "self_attn");
    if (c->qk_norm) {
        q = normalise_heads(q, "q_norm", c->heads, m);
        k = normalise_heads(k, "k_norm", c->kv_heads, m);
    }
    q = lk_rope(q, m->rope, c->heads, o->positions);
    k = lk_rope(k, m->rope, c->kv_heads, o->positions);
    bool      whole = o->cache == 0; /* the keys are those of the tokens */
    lk_tensor y =
        lk_attention(q, lk__nn_cached(k, "key_cache", o), lk__nn_cached(v, "value_cache", o), .heads = c->heads,
                     .kv_heads = c->kv_heads, .causal = whole, .window = whole ? c->window : 0,
                     .dropout = c->attention_dropout, .first = o->first, .last = o->last, .lengths = o->lengths);
    y = project(y, "o_proj", c->width, c->attention_bias, m);
    lk_block_end(x);
    return lk__nn_drop(y, c->dropout);
}

static lk_tensor feed_forward(lk_tensor x, const llama *m)
{
    const lk_transformer_config *c = m->config;
    lk_block_begin(x, "", .recompute = lk__nn_computes_again(x, c));
    lk_tensor h = lk_rms_norm(x, "post_attention_layernorm", .epsilon = c->norm_epsilon);
    lk_block_begin(x, "mlp");
    lk_tensor gate = project(h, "gate_proj", c->hidden, c->mlp_bias, m);
    lk_tensor up = project(h, "up_proj", c->hidden, c->mlp_bias, m);
    lk_block_end(x);
    lk_block_end(x);
    lk_block_begin(x, "mlp", .recompute = lk__nn_computes_again(x, c));
    lk_tensor y = project(lk_swiglu(gate, up), "down_proj", c->width, c->mlp_bias, m);
    lk_block_end(x);
    return lk__nn_drop(y, c->dropout);
}

/* The experts are the part of the model that is large: their results are kept, not computed again. */
static lk_tensor mix_experts(lk_tensor x, const llama *m)
{
    static const char *const     of_qwen[] = {"gate_proj", "down_proj", "up_proj"};
    const lk_transformer_config *c = m->config;
    lk_tensor                    h = lk_rms_norm(x, "post_attention_layernorm", .epsilon = c->norm_epsilon);
    lk_moe_options               o = {.experts = c->experts,
                                      .k = c->experts_per_token,
                                      .hidden = c->hidden,
                                      .plain_weights = c->plain_router,
                                      .std = c->init_std,
                                      .names = c->qk_norm ? of_qwen : NULL};
    lk_moe_result                r = lk_moe_at(LK_HERE, h, c->qk_norm ? "mlp" : "block_sparse_moe", o);
    return lk__nn_drop(r.y, c->dropout);
}

static lk_tensor layer(lk_tensor x, const llama *m, int64_t i)
{
    const lk_transformer_config *c = m->config;
    lk__nn_block_begin(x, i, lk__nn_recomputes(c, i));
    x = lk_add(x, attend(x, m));
    x = lk_add(x, c->experts > 0 ? mix_experts(x, m) : feed_forward(x, m));
    lk_block_end(x);
    return x;
}

lk_transformer_result lk__nn_llama(lk_tensor tokens, const lk_transformer_config *c,
                                   const lk_transformer_options *options)
{
    llama m = {c, options, record_rope(tokens, c, options->positions.graph != NULL)};
    lk_block_begin(tokens, "model");
    lk_block_begin(tokens, "embed_tokens");
    lk_tensor embedding = lk__nn_weight(tokens, "weight", c->vocabulary, c->width, c->init_std), head = embedding;
    lk_block_end(tokens);
    lk_tensor x = lk__nn_drop(lk_f_embedding(tokens, embedding), c->dropout);
    lk_block_begin(x, "layers");
    for (int64_t i = 0; i < c->layers; i++) x = layer(x, &m, i);
    lk_block_end(x);
    x = lk_rms_norm(x, "norm", .epsilon = c->norm_epsilon);
    lk_block_end(tokens);
    if (c->untied) {
        lk_block_begin(tokens, "lm_head");
        head = lk__nn_weight(tokens, "weight", c->vocabulary, c->width, c->init_std);
        lk_block_end(tokens);
    }
    return (lk_transformer_result){.hidden = x, .head = head};
}
