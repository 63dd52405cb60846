/* gpt.c - GPT-2 as GPT2LMHeadModel of Hugging Face: its names, its Conv1D weights (in, out), the head tied to the
 * embedding. */
#include "nn/transformer.h"

#include <math.h>

typedef struct gpt {
    const lk_transformer_config  *config;
    const lk_transformer_options *options;
    double                        residual_std; /* of the layers that add to the residual stream */
} gpt;

/* Hugging Face's Conv1D. */
static lk_tensor conv1d(lk_tensor x, const char *name, int64_t features, double std)
{
    lk_block_begin(x, name);
    lk_tensor weight = lk__nn_weight(x, "weight", lk_tensor_dim(x, -1), features, std);
    lk_tensor y = lk_addmm(lk__nn_zeros(x, "bias", features), x, weight);
    lk_block_end(x);
    return y;
}

/* Attention of queries, keys and values that are side by side; with a cache, to the rows that were kept. */
static lk_tensor attend_packed(lk_tensor qkv, const gpt *m)
{
    const lk_transformer_config  *c = m->config;
    const lk_transformer_options *o = m->options;
    lk_tensor                     none = {0};
    if (o->cache == 0)
        return lk_attention(qkv, none, none, .heads = c->heads, .causal = true, .dropout = c->attention_dropout,
                            .first = o->first, .last = o->last, .lengths = o->lengths);
    lk_tensor k = lk__nn_cached(lk_slice(qkv, 2, c->width, c->width), "key_cache", o);
    lk_tensor v = lk__nn_cached(lk_slice(qkv, 2, 2 * c->width, c->width), "value_cache", o);
    return lk_attention(lk_slice(qkv, 2, 0, c->width), k, v, .heads = c->heads, .first = o->first, .last = o->last);
}

/* A norm or an activation is cheap to compute, and its result as large as any: each is in one block with the product
 * that reads it, and backward computes it again instead of keeping it (lk__nn_computes_again). The product itself is
 * not computed again, since nothing reads that. */
static lk_tensor norm_and_conv1d(lk_tensor x, const char *norm, const char *part, const char *name, int64_t features,
                                 const gpt *m)
{
    lk_block_begin(x, "", .recompute = lk__nn_computes_again(x, m->config));
    lk_tensor y = lk_layer_norm(x, norm, .epsilon = m->config->norm_epsilon);
    lk_block_begin(x, part);
    y = conv1d(y, name, features, m->config->init_std);
    lk_block_end(x);
    lk_block_end(x);
    return y;
}

static lk_tensor attend(lk_tensor x, const gpt *m)
{
    const lk_transformer_config *c = m->config;
    lk_tensor                    qkv = norm_and_conv1d(x, "ln_1", "attn", "c_attn", 3 * c->width, m);
    lk_block_begin(x, "attn");
    lk_tensor y = conv1d(attend_packed(qkv, m), "c_proj", c->width, m->residual_std);
    lk_block_end(x);
    return lk__nn_drop(y, c->dropout);
}

static lk_tensor feed_forward(lk_tensor x, const gpt *m)
{
    const lk_transformer_config *c = m->config;
    lk_tensor                    h = norm_and_conv1d(x, "ln_2", "mlp", "c_fc", c->hidden, m);
    lk_block_begin(x, "mlp", .recompute = lk__nn_computes_again(x, c));
    lk_tensor y = conv1d(lk__nn_activate(h, c->activation), "c_proj", c->width, m->residual_std);
    lk_block_end(x);
    return lk__nn_drop(y, c->dropout);
}

static lk_tensor layer(lk_tensor x, const gpt *m, int64_t i)
{
    const lk_transformer_config *c = m->config;
    lk__nn_block_begin(x, i, lk__nn_recomputes(c, i));
    x = lk_add(x, attend(x, m));
    x = lk_add(x, feed_forward(x, m));
    lk_block_end(x);
    return x;
}

static lk_tensor table(lk_tensor tokens, const char *name, int64_t rows, const lk_transformer_config *c)
{
    lk_block_begin(tokens, name);
    lk_tensor weight = lk__nn_weight(tokens, "weight", rows, c->width, c->init_std);
    lk_block_end(tokens);
    return weight;
}

lk_transformer_result lk__nn_gpt(lk_tensor tokens, const lk_transformer_config *c,
                                 const lk_transformer_options *options)
{
    gpt m = {c, options, c->init_std / sqrt(2.0 * (double)c->layers)};
    lk_block_begin(tokens, "transformer");
    lk_tensor wte = table(tokens, "wte", c->vocabulary, c), wpe = table(tokens, "wpe", c->context, c);
    lk_tensor x = lk__nn_drop(lk__nn_add_positions(lk_f_embedding(tokens, wte), wpe, options->positions), c->dropout);
    lk_block_begin(x, "h");
    for (int64_t i = 0; i < c->layers; i++) x = layer(x, &m, i);
    lk_block_end(x);
    x = lk_layer_norm(x, "ln_f", .epsilon = c->norm_epsilon);
    lk_block_end(tokens);
    return (lk_transformer_result){.hidden = x, .head = wte};
}
