/* transformer.h - GPT-2-, Llama- and BERT-style models with Hugging Face's names, shapes and initial distributions. It
 * uses only graph.h and nn.h. */
#ifndef LOCKSTEP_TRANSFORMER_H
#define LOCKSTEP_TRANSFORMER_H

#include <lockstep/nn.h>

LK_BEGIN_DECLS

typedef enum lk_transformer_kind {
    LK_TRANSFORMER_GPT, /* GPT2LMHeadModel: learned positions, layer norm, Conv1D weights (in, out), tied head */
    /* LlamaForCausalLM: RoPE, RMS norm, SwiGLU, grouped-query attention. With experts it is MixtralForCausalLM; with
     * qk_norm, Qwen3ForCausalLM; with both, Qwen3MoeForCausalLM */
    LK_TRANSFORMER_LLAMA,
    LK_TRANSFORMER_ENCODER /* BertForSequenceClassification: classifies padded sequences */
} lk_transformer_kind;

/* Hugging Face's gelu_new, gelu, relu and silu */
typedef enum lk_activation { LK_GELU_TANH, LK_GELU, LK_RELU, LK_SILU } lk_activation;

typedef enum lk_rope_scaling { LK_ROPE_DEFAULT, LK_ROPE_LINEAR, LK_ROPE_LLAMA3 } lk_rope_scaling;

typedef struct lk_transformer_config {
    size_t              size LK_ZERO; /* sizeof this struct; set by LK_TRANSFORMER_CONFIG_INIT */
    lk_transformer_kind kind LK_ZERO;
    int64_t             vocabulary LK_ZERO;
    int64_t             context LK_ZERO; /* maximum number of positions */
    int64_t             layers LK_ZERO, heads LK_ZERO, width LK_ZERO;
    int64_t             kv_heads LK_ZERO;   /* llama; 0 means heads */
    int64_t             head_width LK_ZERO; /* llama; 0 means width / heads */
    /* of the feed-forward layers; 0 means 4 · width (llama: 8/3 · width, rounded up to a multiple of 32) */
    int64_t hidden LK_ZERO;
    int64_t classes LK_ZERO;                          /* encoder */
    bool    untied LK_ZERO;                           /* llama: the head has its own weights, lm_head.weight */
    bool    attention_bias LK_ZERO, mlp_bias LK_ZERO; /* llama */
    /* llama: each token attends only to the last `window` tokens; 0: all */
    int64_t         window LK_ZERO;
    lk_activation   activation LK_ZERO;   /* gpt, encoder; llama always uses SwiGLU, with silu */
    double          norm_epsilon LK_ZERO; /* 0 means 1e-5 (llama: 1e-6, encoder: 1e-12) */
    double          init_std LK_ZERO;     /* 0 means 0.02 */
    double          dropout LK_ZERO;      /* probability, for embeddings and residuals */
    double          attention_dropout LK_ZERO;
    double          rope_theta LK_ZERO; /* 0 means 10000 */
    lk_rope_scaling rope_scaling LK_ZERO;
    double  rope_factor LK_ZERO, rope_low LK_ZERO, rope_high LK_ZERO; /* factor, low_freq_factor, high_freq_factor */
    int64_t rope_context LK_ZERO;                                     /* original_max_position_embeddings */
    int64_t bos LK_ZERO, eos LK_ZERO, pad LK_ZERO;                    /* token ids; below 0: none */
    int64_t recompute LK_ZERO;   /* number of blocks, from the first, that backward recomputes; below 0: all */
    int32_t more_eos[8] LK_ZERO; /* further tokens that end a text, for models that have several */
    int     more_eos_count LK_ZERO;
    /* llama: number of experts, of which each token uses some (lk_moe); 0: one feed-forward network for all tokens */
    int experts LK_ZERO;
    int experts_per_token LK_ZERO; /* 0 means 2 */
    /* The weights of a token's experts are their probabilities among all experts, without dividing these by their
     * sum. */
    bool   plain_router LK_ZERO;
    double router_loss LK_ZERO; /* factor of the auxiliary loss that balances the experts; 0: no such loss */
    bool   qk_norm LK_ZERO;     /* llama: RMS norm of each head's queries and keys, as in Qwen3 */
    int    reserved[7] LK_ZERO;
} lk_transformer_config;
#define LK_TRANSFORMER_CONFIG_INIT {.size = sizeof(lk_transformer_config), .bos = -1, .eos = -1, .pad = -1}

/* "gpt2", "gpt2-medium", "gpt2-large", "llama-15m", "llama-110m", "llama-3.2-1b"; false if no preset has that name. */
LK_API bool               lk_transformer_preset(const char *name, lk_transformer_config *config);
LK_API const char *const *lk_transformer_presets(void); /* NULL at the end */
/* False: the config is invalid (heads do not divide the width, …), and `why` receives the reason. */
LK_API bool    lk_transformer_check(const lk_transformer_config *config, char *why, size_t bytes);
LK_API int64_t lk_transformer_parameters(const lk_transformer_config *config);
/* The number of operations in forward and backward per token: 6 · parameters + 12 · layers · width · length. Parameters
 * that are only looked up, such as position embeddings, do not count; parameters that an encoder uses once per sequence
 * count once per sequence, not for each token. */
LK_API double lk_transformer_flops(const lk_transformer_config *config, int64_t length);

typedef struct lk_transformer_options {
    int       reserved LK_ZERO;
    lk_tensor positions LK_ZERO;           /* i32 (N, T); missing: 0, 1, … */
    lk_tensor first LK_ZERO, last LK_ZERO; /* i32 (N, T), as lk_attention's: documents of a packed sequence */
    lk_tensor lengths LK_ZERO;             /* i32 (N): number of tokens of each sequence; the rest are padding */
    /* For generation with gpt and llama, only in evaluation: keys and values are kept in buffers with this many rows
     * per sample. The keys and values of each token are written to the row given in `rows`, i32 (N, T), or not at all
     * if that is negative (lk_cache_write). `positions`, `rows` and `last` are required; `first` and `last` give the
     * rows to which each token attends, and `window` does not apply. 0: no buffers. */
    int64_t   cache LK_ZERO;
    lk_tensor rows LK_ZERO;
} lk_transformer_options;

typedef struct lk_transformer_result {
    lk_tensor hidden; /* (N, T, width): the last hidden states, after the final norm */
    /* gpt, llama: (vocabulary, width), the weight of the head. Logits (N, T, vocabulary) are lk_f_linear(hidden, head,
     * none), and the loss is lk_linear_cross_entropy(hidden, head, labels). */
    lk_tensor head;
    lk_tensor logits; /* encoder: (N, classes) */
} lk_transformer_result;

/* Records a model over i32 tokens (N, T). Its layers are blocks: "transformer.h.0", "model.layers.0",
 * "bert.encoder.layer.0", …. */
LK_API lk_transformer_result lk_transformer_at(lk_site site, lk_tensor tokens, const lk_transformer_config *config,
                                               lk_transformer_options options);
#define lk_transformer(tokens, config, ...) \
    lk_transformer_at(LK_HERE, tokens, config, LK_OPTIONS(lk_transformer_options, ##__VA_ARGS__))

LK_END_DECLS
#endif
