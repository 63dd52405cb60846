/* nn/transformer.h - what the kinds of transformers share. It uses only public headers. */
#ifndef LK__TRANSFORMER_H
#define LK__TRANSFORMER_H

#include <lockstep/transformer.h>

enum { LK__TOKEN_TYPES = 2 }; /* of BERT: rows of token_type_embeddings, of which the first is used */

/* The configuration with its defaults filled in. */
lk_transformer_config lk__nn_resolve(const lk_transformer_config *config);

lk_transformer_result lk__nn_gpt(lk_tensor tokens, const lk_transformer_config *config,
                                 const lk_transformer_options *options);
lk_transformer_result lk__nn_llama(lk_tensor tokens, const lk_transformer_config *config,
                                   const lk_transformer_options *options);
lk_transformer_result lk__nn_encoder(lk_tensor tokens, const lk_transformer_config *config,
                                     const lk_transformer_options *options);

/* A parameter under the open blocks. std 0: zeros; norms are lk_layer_norm's and lk_rms_norm's. */
lk_tensor lk__nn_weight(lk_tensor x, const char *name, int64_t rows, int64_t columns, double std);
lk_tensor lk__nn_zeros(lk_tensor x, const char *name, int64_t size);
lk_tensor lk__nn_activate(lk_tensor x, lk_activation activation);
/* lk_dropout, or x where the probability is 0. */
lk_tensor lk__nn_drop(lk_tensor x, double probability);
/* (N, T, width): the embeddings of tokens plus the embeddings of their positions. */
lk_tensor lk__nn_add_positions(lk_tensor x, lk_tensor table, lk_tensor positions);
/* Keys or values (N, T, W) of the tokens or, with a cache, of all tokens (N, rows, W); `name` is its buffer's. */
lk_tensor lk__nn_cached(lk_tensor x, const char *name, const lk_transformer_options *options);
/* A name scope for block i of a stack: "h.3". */
void lk__nn_block_begin(lk_tensor x, int64_t i, bool recompute);
bool lk__nn_recomputes(const lk_transformer_config *config, int64_t i);
/* Whether norms and activations are computed again in backward instead of being kept. x is (N, T, width). */
bool lk__nn_computes_again(lk_tensor x, const lk_transformer_config *config);

#endif
