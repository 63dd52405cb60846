/* huggingface_write.c - lk_transformer_config → config.json and generation_config.json. Both what version 4 of
 * transformers reads and what version 5 does are written; numbers of a configuration class that are floats always look
 * like one. */
#include "train/huggingface.h"

#include "base/dtype.h"
#include "nn/transformer.h"
#include "train/json_write.h"

#include <stdio.h>
#include <string.h>

typedef struct writer {
    lk__json_writer json;
    int             members;
    const char     *indent;
} writer;

static void put_key(writer *w, const char *key)
{
    lk__json_put(&w->json, "%s\n%s\"%s\": ", w->members++ ? "," : "", w->indent, key);
}

static void put_integer(writer *w, const char *key, int64_t value)
{
    put_key(w, key);
    lk__json_put(&w->json, "%lld", (long long)value);
}

static void put_flag(writer *w, const char *key, bool value)
{
    put_key(w, key);
    lk__json_put(&w->json, value ? "true" : "false");
}

static void put_text(writer *w, const char *key, const char *value)
{
    put_key(w, key);
    lk__json_put_string(&w->json, value);
}

static void put_null(writer *w, const char *key)
{
    put_key(w, key);
    lk__json_put(&w->json, "null");
}

static void put_float(writer *w, const char *key, double value)
{
    char text[LK__JSON_NUMBER_BYTES];
    lk__json_format_number(value, text);
    put_key(w, key);
    lk__json_put(&w->json, "%s%s", text, strpbrk(text, ".e") ? "" : ".0");
}

/* null where there is none, since the configuration classes have ids of their own as defaults. */
static void put_token(writer *w, const char *key, int64_t id, int64_t vocabulary)
{
    if (id >= 0 && id < vocabulary)
        put_integer(w, key, id);
    else
        put_null(w, key);
}

/* A list where there are several. */
static void put_ends(writer *w, const lk_transformer_config *c)
{
    int64_t ends[1 + sizeof c->more_eos / sizeof *c->more_eos];
    int     count = 0;
    if (c->eos >= 0 && c->eos < c->vocabulary) ends[count++] = c->eos;
    for (int i = 0; i < c->more_eos_count; i++)
        if (c->more_eos[i] >= 0 && c->more_eos[i] < c->vocabulary) ends[count++] = c->more_eos[i];
    if (count < 2) {
        put_token(w, "eos_token_id", count ? ends[0] : -1, c->vocabulary);
        return;
    }
    put_key(w, "eos_token_id");
    for (int i = 0; i < count; i++) lk__json_put(&w->json, "%s%lld", i ? ", " : "[", (long long)ends[i]);
    lk__json_put(&w->json, "]");
}

static void put_tokens(writer *w, const lk_transformer_config *c)
{
    put_token(w, "bos_token_id", c->bos, c->vocabulary);
    put_ends(w, c);
    put_token(w, "pad_token_id", c->pad, c->vocabulary);
}

static const char *activation_name(lk_activation activation)
{
    static const char *const names[] = {
        [LK_GELU_TANH] = "gelu_new", [LK_GELU] = "gelu", [LK_RELU] = "relu", [LK_SILU] = "silu"};
    return names[activation];
}

/* ---- the architectures ---- */

static void put_gpt(writer *w, const lk_transformer_config *c)
{
    put_integer(w, "n_positions", c->context);
    put_integer(w, "n_embd", c->width);
    put_integer(w, "n_layer", c->layers);
    put_integer(w, "n_head", c->heads);
    put_integer(w, "n_inner", c->hidden);
    put_text(w, "activation_function", activation_name(c->activation));
    put_float(w, "resid_pdrop", c->dropout);
    put_float(w, "embd_pdrop", c->dropout);
    put_float(w, "attn_pdrop", c->attention_dropout);
    put_float(w, "layer_norm_epsilon", c->norm_epsilon);
    put_flag(w, "scale_attn_weights", true);
    put_flag(w, "scale_attn_by_inverse_layer_idx", false);
    put_flag(w, "reorder_and_upcast_attn", false);
    put_flag(w, "tie_word_embeddings", true);
}

/* The members of "rope_parameters", and of version 4's "rope_scaling", which has no base. */
static void put_rope(writer *w, const lk_transformer_config *c, const char *key, bool base)
{
    static const char *const names[] = {
        [LK_ROPE_DEFAULT] = "default", [LK_ROPE_LINEAR] = "linear", [LK_ROPE_LLAMA3] = "llama3"};
    put_key(w, key);
    lk__json_put(&w->json, "{");
    writer inner = {w->json, 0, "    "};
    put_text(&inner, "rope_type", names[c->rope_scaling]);
    if (base) put_float(&inner, "rope_theta", c->rope_theta);
    if (c->rope_scaling != LK_ROPE_DEFAULT) put_float(&inner, "factor", c->rope_factor);
    if (c->rope_scaling == LK_ROPE_LLAMA3) {
        put_float(&inner, "low_freq_factor", c->rope_low);
        put_float(&inner, "high_freq_factor", c->rope_high);
        put_integer(&inner, "original_max_position_embeddings", c->rope_context);
    }
    w->json = inner.json;
    lk__json_put(&w->json, "\n  }");
}

static void put_window(writer *w, const lk_transformer_config *c)
{
    if (c->window > 0)
        put_integer(w, "sliding_window", c->window);
    else
        put_null(w, "sliding_window");
}

static void put_experts(writer *w, const lk_transformer_config *c)
{
    put_integer(w, "num_local_experts", c->experts);
    put_integer(w, "num_experts_per_tok", c->experts_per_token);
    put_float(w, "router_aux_loss_coef", c->router_loss > 0 ? c->router_loss : 0.001);
    put_flag(w, "output_router_logits", c->router_loss > 0);
}

/* Of Mixtral, which has no biases. */
static void put_mixtral(writer *w, const lk_transformer_config *c)
{
    put_experts(w, c);
    put_float(w, "router_jitter_noise", 0);
    put_window(w, c);
}

static void put_qwen(writer *w, const lk_transformer_config *c)
{
    put_flag(w, "attention_bias", c->attention_bias);
    put_flag(w, "use_sliding_window", c->window > 0);
    put_window(w, c);
    if (c->experts == 0) return;
    put_experts(w, c);
    put_integer(w, "num_experts", c->experts); /* version 4 */
    put_integer(w, "moe_intermediate_size", c->hidden);
    put_flag(w, "norm_topk_prob", !c->plain_router);
    put_integer(w, "decoder_sparse_step", 1);
    put_key(w, "mlp_only_layers");
    lk__json_put(&w->json, "[]");
}

static void put_llama(writer *w, const lk_transformer_config *c)
{
    put_integer(w, "max_position_embeddings", c->context);
    put_integer(w, "hidden_size", c->width);
    put_integer(w, "num_hidden_layers", c->layers);
    put_integer(w, "num_attention_heads", c->heads);
    put_integer(w, "num_key_value_heads", c->kv_heads);
    put_integer(w, "head_dim", c->head_width);
    put_integer(w, "intermediate_size", c->hidden);
    put_text(w, "hidden_act", "silu");
    put_float(w, "rms_norm_eps", c->norm_epsilon);
    put_float(w, "attention_dropout", c->attention_dropout);
    put_flag(w, "tie_word_embeddings", !c->untied);
    if (c->qk_norm) {
        put_qwen(w, c);
    } else if (c->experts > 0) {
        put_mixtral(w, c);
    } else if (c->window > 0) {
        put_integer(w, "sliding_window", c->window);
    } else {
        put_flag(w, "attention_bias", c->attention_bias);
        put_flag(w, "mlp_bias", c->mlp_bias);
    }
    put_rope(w, c, "rope_parameters", true);
    put_float(w, "rope_theta", c->rope_theta);
    if (c->rope_scaling == LK_ROPE_DEFAULT)
        put_null(w, "rope_scaling");
    else
        put_rope(w, c, "rope_scaling", false);
}

static void put_label(writer *w, const char *const *names, int64_t i)
{
    char name[32];
    snprintf(name, sizeof name, "LABEL_%lld", (long long)i);
    lk__json_put_string(&w->json, names && names[i] ? names[i] : name);
}

static void put_labels(writer *w, int64_t classes, const char *const *names)
{
    put_key(w, "id2label");
    for (int64_t i = 0; i < classes; i++) {
        lk__json_put(&w->json, "%s\n    \"%lld\": ", i ? "," : "{", (long long)i);
        put_label(w, names, i);
    }
    lk__json_put(&w->json, "\n  }");
    put_key(w, "label2id");
    for (int64_t i = 0; i < classes; i++) {
        lk__json_put(&w->json, "%s\n    ", i ? "," : "{");
        put_label(w, names, i);
        lk__json_put(&w->json, ": %lld", (long long)i);
    }
    lk__json_put(&w->json, "\n  }");
}

static void put_bert(writer *w, const lk_transformer_config *c, const char *const *names)
{
    put_integer(w, "max_position_embeddings", c->context);
    put_integer(w, "hidden_size", c->width);
    put_integer(w, "num_hidden_layers", c->layers);
    put_integer(w, "num_attention_heads", c->heads);
    put_integer(w, "intermediate_size", c->hidden);
    put_integer(w, "type_vocab_size", LK__TOKEN_TYPES);
    put_text(w, "hidden_act", activation_name(c->activation));
    put_float(w, "hidden_dropout_prob", c->dropout);
    put_float(w, "attention_probs_dropout_prob", c->attention_dropout);
    put_null(w, "classifier_dropout");
    put_float(w, "layer_norm_eps", c->norm_epsilon);
    put_text(w, "position_embedding_type", "absolute");
    put_text(w, "problem_type", "single_label_classification");
    put_labels(w, c->classes, names);
}

/* ---- files ---- */

static writer begin_file(char *out, size_t size)
{
    writer w = {.json = {out, size ? size - 1 : 0, 0}, .indent = "  "};
    lk__json_put(&w.json, "{");
    return w;
}

static size_t end_file(writer *w, char *out, size_t size)
{
    lk__json_put(&w->json, "\n}\n");
    if (size) out[w->json.used < size ? w->json.used : size - 1] = 0;
    return w->json.used;
}

static int find_architecture(const lk_transformer_config *c)
{
    if (c->kind == LK_TRANSFORMER_LLAMA && c->qk_norm && c->mlp_bias) return -1;
    if (c->kind == LK_TRANSFORMER_LLAMA && c->qk_norm && c->experts > 0) return LK__HF_QWEN3_MOE;
    if (c->kind == LK_TRANSFORMER_LLAMA && c->qk_norm) return c->window > 0 ? -1 : LK__HF_QWEN3;
    if (c->kind == LK_TRANSFORMER_LLAMA && c->experts > 0) return c->plain_router ? -1 : LK__HF_MIXTRAL;
    if (c->kind == LK_TRANSFORMER_LLAMA && c->window > 0) return LK__HF_MISTRAL;
    for (int i = 0; i < LK__HF_ARCHITECTURES; i++)
        if (lk__hf_architectures[i].kind == c->kind) return i;
    return -1;
}

size_t lk_hf_config_write_at(const lk_transformer_config *config, char *out, size_t size, lk_hf_options options)
{
    lk_transformer_config c = lk__nn_resolve(config);
    int                   architecture = find_architecture(&c);
    const char           *type = lk__dtype_of(options.dtype)->text;
    if (size) out[0] = 0;
    bool unbiased = architecture == LK__HF_MISTRAL || architecture == LK__HF_MIXTRAL;
    if (architecture < 0 || (unbiased && (c.attention_bias || c.mlp_bias))) return 0;
    writer w = begin_file(out, size);
    put_key(&w, "architectures");
    lk__json_put(&w.json, "[\"%s\"]", lk__hf_architectures[architecture].name);
    put_text(&w, "model_type", lk__hf_architectures[architecture].model_type);
    put_integer(&w, "vocab_size", c.vocabulary);
    if (c.kind == LK_TRANSFORMER_GPT)
        put_gpt(&w, &c);
    else if (c.kind == LK_TRANSFORMER_LLAMA)
        put_llama(&w, &c);
    else
        put_bert(&w, &c, options.class_names);
    put_float(&w, "initializer_range", c.init_std);
    put_flag(&w, "use_cache", true);
    put_tokens(&w, &c);
    put_text(&w, "dtype", type);
    put_text(&w, "torch_dtype", type);
    return end_file(&w, out, size);
}

size_t lk_hf_generation_config_write(const lk_transformer_config *config, char *out, size_t size)
{
    lk_transformer_config c = lk__nn_resolve(config);
    if (size) out[0] = 0;
    if (c.kind == LK_TRANSFORMER_ENCODER) return 0;
    writer w = begin_file(out, size);
    put_flag(&w, "_from_model_config", true);
    put_tokens(&w, &c);
    return end_file(&w, out, size);
}
