/* encoder.c - a BERT-style encoder with a class for each sequence, as BertForSequenceClassification of Hugging Face:
 * norms after each residual, a pooler over the first token. */
#include "nn/transformer.h"

typedef struct encoder {
    const lk_transformer_config  *config;
    const lk_transformer_options *options;
} encoder;

static lk_tensor dense(lk_tensor x, const char *name, int64_t features, const encoder *m)
{
    lk_block_begin(x, name);
    lk_tensor weight = lk__nn_weight(x, "weight", features, lk_tensor_dim(x, -1), m->config->init_std);
    lk_tensor y = lk_f_linear(x, weight, lk__nn_zeros(x, "bias", features));
    lk_block_end(x);
    return y;
}

/* "output": dense, dropout, and the norm of the sum with the residual. */
static lk_tensor add_output(lk_tensor y, lk_tensor residual, const encoder *m)
{
    const lk_transformer_config *c = m->config;
    lk_block_begin(y, "output");
    y = lk__nn_drop(dense(y, "dense", c->width, m), c->dropout);
    y = lk_layer_norm(lk_add(y, residual), "LayerNorm", .epsilon = c->norm_epsilon);
    lk_block_end(y);
    return y;
}

static lk_tensor attend(lk_tensor x, const encoder *m)
{
    const lk_transformer_config  *c = m->config;
    const lk_transformer_options *o = m->options;
    lk_block_begin(x, "attention");
    lk_block_begin(x, "self");
    lk_tensor q = dense(x, "query", c->width, m), k = dense(x, "key", c->width, m), v = dense(x, "value", c->width, m);
    lk_tensor y = lk_attention(q, k, v, .heads = c->heads, .dropout = c->attention_dropout, .first = o->first,
                               .last = o->last, .lengths = o->lengths);
    lk_block_end(x);
    y = add_output(y, x, m);
    lk_block_end(x);
    return y;
}

static lk_tensor layer(lk_tensor x, const encoder *m, int64_t i)
{
    const lk_transformer_config *c = m->config;
    lk__nn_block_begin(x, i, lk__nn_recomputes(c, i));
    x = attend(x, m);
    lk_block_begin(x, "intermediate");
    lk_tensor y = lk__nn_activate(dense(x, "dense", c->hidden, m), c->activation);
    lk_block_end(x);
    x = add_output(y, x, m);
    lk_block_end(x);
    return x;
}

static lk_tensor table(lk_tensor x, const char *name, int64_t rows, const lk_transformer_config *c)
{
    lk_block_begin(x, name);
    lk_tensor weight = lk__nn_weight(x, "weight", rows, c->width, c->init_std);
    lk_block_end(x);
    return weight;
}

/* Every token is of the first type, as in sequences of one part. */
static lk_tensor embed(lk_tensor tokens, const encoder *m)
{
    const lk_transformer_config *c = m->config;
    lk_block_begin(tokens, "embeddings");
    lk_tensor words = table(tokens, "word_embeddings", c->vocabulary, c);
    lk_tensor positions = table(tokens, "position_embeddings", c->context, c);
    lk_tensor types = table(tokens, "token_type_embeddings", LK__TOKEN_TYPES, c);
    lk_tensor x = lk_add(lk_f_embedding(tokens, words), lk_slice(types, 0, 0, 1));
    x = lk__nn_add_positions(x, positions, m->options->positions);
    x = lk__nn_drop(lk_layer_norm(x, "LayerNorm", .epsilon = c->norm_epsilon), c->dropout);
    lk_block_end(tokens);
    return x;
}

/* tanh of a dense layer over the first token. */
static lk_tensor pool(lk_tensor x, const encoder *m)
{
    int64_t width = m->config->width;
    lk_block_begin(x, "pooler");
    lk_tensor first = lk_reshape(lk_slice(x, 1, 0, 1), 2, ((int64_t[]){-1, width}));
    lk_tensor y = lk_tanh(dense(first, "dense", width, m));
    lk_block_end(x);
    return y;
}

lk_transformer_result lk__nn_encoder(lk_tensor tokens, const lk_transformer_config *c,
                                     const lk_transformer_options *options)
{
    encoder m = {c, options};
    lk_block_begin(tokens, "bert");
    lk_tensor x = embed(tokens, &m);
    lk_block_begin(x, "encoder");
    lk_block_begin(x, "layer");
    for (int64_t i = 0; i < c->layers; i++) x = layer(x, &m, i);
    lk_block_end(x);
    lk_block_end(x);
    lk_tensor pooled = pool(x, &m);
    lk_block_end(tokens);
    return (lk_transformer_result){.hidden = x,
                                   .logits = dense(lk__nn_drop(pooled, c->dropout), "classifier", c->classes, &m)};
}
