/* huggingface_config.c - config.json → lk_transformer_config. Defaults are those of transformers' configuration classes; whatever would
 * change what the model computes, and is not in lk_transformer_config, is refused. */
#include "train/huggingface.h"

#include "train/file.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { CONFIG_LIMIT = 64 << 20 /* bytes */, MOST_LABELS = 1 << 16 };

typedef lk__huggingface_reader reader;

const lk__huggingface_architecture lk__hf_architectures[LK__HF_ARCHITECTURES] = {
    [LK__HF_GPT] = {"GPT2LMHeadModel", "gpt2", LK_TRANSFORMER_GPT},
    [LK__HF_LLAMA] = {"LlamaForCausalLM", "llama", LK_TRANSFORMER_LLAMA},
    [LK__HF_MISTRAL] = {"MistralForCausalLM", "mistral", LK_TRANSFORMER_LLAMA},
    [LK__HF_BERT] = {"BertForSequenceClassification", "bert", LK_TRANSFORMER_ENCODER},
};

/* The same body under another head, or without one: its weights can be loaded in part. */
static const struct {
    const char *name;
    int         same;
} bodies[] = {{"GPT2Model", LK__HF_GPT},  {"LlamaModel", LK__HF_LLAMA},     {"MistralModel", LK__HF_MISTRAL},
              {"BertModel", LK__HF_BERT}, {"BertForMaskedLM", LK__HF_BERT}, {"BertForPreTraining", LK__HF_BERT}};

static const struct {
    const char   *name;
    lk_activation activation;
} activations[] = {{"gelu_new", LK_GELU_TANH},  {"gelu_pytorch_tanh", LK_GELU_TANH},
                   {"gelu_fast", LK_GELU_TANH}, {"gelu", LK_GELU},
                   {"gelu_python", LK_GELU},    {"relu", LK_RELU},
                   {"silu", LK_SILU},           {"swish", LK_SILU}};

#define COUNT(table) (sizeof(table) / sizeof *(table))

/* ---- what all architectures have ---- */

/* Which of lk__hf_architectures it is; -1: unknown. */
static int find_architecture(const lk__json *value)
{
    for (int i = 0; i < LK__HF_ARCHITECTURES; i++)
        if (lk__json_equals(value, lk__hf_architectures[i].name)) return i;
    for (size_t i = 0; i < COUNT(bodies); i++)
        if (lk__json_equals(value, bodies[i].name)) return bodies[i].same;
    return -1;
}

static int find_model_type(const lk__json *value)
{
    for (int i = 0; i < LK__HF_ARCHITECTURES; i++)
        if (lk__json_equals(value, lk__hf_architectures[i].model_type)) return i;
    return -1;
}

static int read_architecture(reader *r)
{
    static const char known[] =
        "GPT2LMHeadModel, LlamaForCausalLM, MistralForCausalLM and BertForSequenceClassification are known";
    lk__json value, first, type;
    int      kind = -1;
    bool     typed = lk__hf_get(r, &r->root, "model_type", &type);
    if (lk__hf_get(r, &r->root, "architectures", &value)) {
        lk__json_walk walk = lk__json_begin(&value);
        bool          named = value.kind == LK__JSON_ARRAY && lk__json_next(&walk, NULL, &first);
        if (named) kind = find_architecture(&first);
        if (kind < 0) lk__hf_refuse(r, "architectures", &value, "%s", known);
    } else if (typed) {
        kind = find_model_type(&type);
        if (kind < 0) lk__hf_refuse(r, "model_type", &type, "%s", known);
    }
    if (kind >= 0 && typed && !lk__json_equals(&type, lk__hf_architectures[kind].model_type))
        lk__hf_refuse(r, "model_type", &type, "the architecture is one of \"%s\"",
                      lk__hf_architectures[kind].model_type);
    if (kind < 0 && r->status >= 0)
        r->status = lk__fail(r->context, LK_EFORMAT, "%s: has neither \"architectures\" nor \"model_type\"", r->label);
    return kind;
}

/* A size that may be written under either key: transformers maps the second to the first. */
static int64_t read_size(reader *r, const char *key, const char *other, int64_t missing)
{
    lk__json value;
    return lk__hf_integer(r, &r->root, !lk__hf_get(r, &r->root, key, &value) && other ? other : key, missing);
}

static double read_probability(reader *r, const char *key, double missing)
{
    lk__json value;
    double   p = lk__hf_number(r, &r->root, key, missing);
    if (!(p >= 0 && p < 1) && lk__hf_get(r, &r->root, key, &value))
        lk__hf_refuse(r, key, &value, "a probability of at least 0 and below 1 is needed");
    return p;
}

static double read_positive(reader *r, const lk__json *object, const char *key, double missing)
{
    lk__json value;
    double   number = lk__hf_number(r, object, key, missing);
    if (!(number > 0) && lk__hf_get(r, object, key, &value))
        lk__hf_refuse(r, key, &value, "a number above 0 is needed");
    return number;
}

static lk_activation read_activation(reader *r, const char *key, lk_activation missing)
{
    lk__json value;
    if (!lk__hf_get(r, &r->root, key, &value)) return missing;
    for (size_t i = 0; i < COUNT(activations); i++)
        if (lk__json_equals(&value, activations[i].name)) return activations[i].activation;
    lk__hf_refuse(r, key, &value, "the activations are gelu_new, gelu, relu and silu");
    return missing;
}

/* Refuses a flag that has another value than the one that is supported. */
static void require_flag(reader *r, const char *key, bool supported, bool missing)
{
    lk__json value;
    if (lk__hf_flag(r, &r->root, key, missing) != supported && lk__hf_get(r, &r->root, key, &value))
        lk__hf_refuse(r, key, &value, "only %s is supported", supported ? "true" : "false");
}

static void require_text(reader *r, const char *key, const char *supported)
{
    lk__json value;
    if (lk__hf_get(r, &r->root, key, &value) && !lk__json_equals(&value, supported))
        lk__hf_refuse(r, key, &value, "only \"%s\" is supported", supported);
}

/* An object that must have no members, such as pruned_heads. */
static void require_nothing(reader *r, const char *key, const char *reason)
{
    lk__json value;
    if (lk__hf_get(r, &r->root, key, &value) && (value.kind != LK__JSON_OBJECT || lk__json_count(&value) > 0))
        lk__hf_refuse(r, key, &value, "%s", reason);
}

/* A token id, or the first of a list; -1: none, or beyond the vocabulary. */
static int64_t read_token(reader *r, const char *key, int64_t vocabulary, int64_t missing)
{
    lk__json value, first;
    int64_t  id = missing;
    bool     written = lk__hf_get(r, &r->root, key, &value);
    if (r->status >= 0 && !written && lk__json_get(&r->root, key, &value)) return -1; /* null */
    if (written) {
        lk__json_walk walk = lk__json_begin(&value);
        if (value.kind == LK__JSON_ARRAY && lk__json_next(&walk, NULL, &first)) value = first;
        if (!lk__json_integer(&value, &id)) lk__hf_refuse(r, key, &value, "a token id is needed");
    }
    return id >= 0 && id < vocabulary ? id : -1;
}

static void read_tokens(reader *r, lk_transformer_config *c, int64_t bos, int64_t eos, int64_t pad)
{
    c->bos = read_token(r, "bos_token_id", c->vocabulary, bos);
    c->eos = read_token(r, "eos_token_id", c->vocabulary, eos);
    c->pad = read_token(r, "pad_token_id", c->vocabulary, pad);
}

/* ---- the architectures ---- */

static void read_gpt(reader *r, lk_transformer_config *c)
{
    lk__json value;
    c->vocabulary = read_size(r, "vocab_size", NULL, 50257);
    c->context = read_size(r, "n_positions", "max_position_embeddings", 1024);
    c->width = read_size(r, "n_embd", "hidden_size", 768);
    c->layers = read_size(r, "n_layer", "num_hidden_layers", 12);
    c->heads = read_size(r, "n_head", "num_attention_heads", 12);
    c->hidden = read_size(r, "n_inner", NULL, 4 * c->width);
    c->activation = read_activation(r, "activation_function", LK_GELU_TANH);
    c->dropout = read_probability(r, "resid_pdrop", 0.1);
    c->attention_dropout = read_probability(r, "attn_pdrop", 0.1);
    if (read_probability(r, "embd_pdrop", 0.1) != c->dropout && lk__hf_get(r, &r->root, "embd_pdrop", &value))
        lk__hf_refuse(r, "embd_pdrop", &value, "it must equal \"resid_pdrop\", which is %g", c->dropout);
    c->norm_epsilon = read_positive(r, &r->root, "layer_norm_epsilon", 1e-5);
    require_flag(r, "scale_attn_weights", true, true);
    require_flag(r, "scale_attn_by_inverse_layer_idx", false, false);
    require_flag(r, "add_cross_attention", false, false);
    require_flag(r, "tie_word_embeddings", true, true);
    require_nothing(r, "pruned_heads", "heads cannot be removed");
    /* reorder_and_upcast_attn changes the order of scaling alone: attention is computed in f32 in any case */
    read_tokens(r, c, 50256, 50256, -1);
}

/* Version 5 has "rope_parameters" with everything; version 4 "rope_theta", and "rope_scaling" where positions are scaled. */
static void read_rope(reader *r, lk_transformer_config *c)
{
    const char *key = "rope_parameters";
    lk__json    rope = {0}, value;
    if (!lk__hf_get(r, &r->root, key, &rope) && !lk__hf_get(r, &r->root, key = "rope_scaling", &rope)) {
        c->rope_theta = read_positive(r, &r->root, "rope_theta", 10000);
        return;
    }
    if (rope.kind != LK__JSON_OBJECT) {
        lk__hf_refuse(r, key, &rope, "an object is needed");
        return;
    }
    c->rope_theta = read_positive(r, &rope, "rope_theta", read_positive(r, &r->root, "rope_theta", 10000));
    if (lk__hf_get(r, &rope, "partial_rotary_factor", &value) && lk__hf_number(r, &rope, "partial_rotary_factor", 1) != 1)
        lk__hf_refuse(r, "partial_rotary_factor", &value, "only 1 is supported");
    const char *type = lk__hf_get(r, &rope, "rope_type", &value) ? "rope_type" : "type";
    if (!lk__hf_get(r, &rope, type, &value) || lk__json_equals(&value, "default")) return;
    c->rope_scaling = lk__json_equals(&value, "llama3") ? LK_ROPE_LLAMA3 : LK_ROPE_LINEAR;
    if (c->rope_scaling == LK_ROPE_LINEAR && !lk__json_equals(&value, "linear"))
        lk__hf_refuse(r, type, &value, "the kinds of rotary positions are default, linear and llama3");
    c->rope_factor = read_positive(r, &rope, "factor", 1);
    if (c->rope_scaling != LK_ROPE_LLAMA3) return;
    c->rope_low = read_positive(r, &rope, "low_freq_factor", 1);
    c->rope_high = read_positive(r, &rope, "high_freq_factor", 4);
    c->rope_context = lk__hf_integer(r, &rope, "original_max_position_embeddings", c->context);
}

/* Mistral differs in its window, and has no biases. */
static void read_llama(reader *r, lk_transformer_config *c, bool mistral)
{
    lk__json value;
    c->vocabulary = read_size(r, "vocab_size", NULL, 32000);
    c->context = read_size(r, "max_position_embeddings", NULL, mistral ? 131072 : 2048);
    c->width = read_size(r, "hidden_size", NULL, 4096);
    c->layers = read_size(r, "num_hidden_layers", NULL, 32);
    c->heads = read_size(r, "num_attention_heads", NULL, 32);
    c->kv_heads = read_size(r, "num_key_value_heads", NULL, mistral ? 8 : c->heads);
    c->head_width = lk__hf_integer(r, &r->root, "head_dim", 0);
    c->hidden = read_size(r, "intermediate_size", NULL, mistral ? 14336 : 11008);
    if (lk__hf_get(r, &r->root, "hidden_act", &value) && read_activation(r, "hidden_act", LK_SILU) != LK_SILU)
        lk__hf_refuse(r, "hidden_act", &value, "only silu is supported in %s", mistral ? "mistral" : "llama");
    c->activation = LK_SILU;
    c->norm_epsilon = read_positive(r, &r->root, "rms_norm_eps", 1e-6);
    c->attention_dropout = read_probability(r, "attention_dropout", 0);
    c->untied = !lk__hf_flag(r, &r->root, "tie_word_embeddings", false);
    if (mistral) {
        c->window = lk__hf_get(r, &r->root, "sliding_window", &value) ? lk__hf_integer(r, &r->root, "sliding_window", 0)
                    : lk__json_get(&r->root, "sliding_window", &value) ? 0 /* null */
                                                                       : 4096;
    } else {
        c->attention_bias = lk__hf_flag(r, &r->root, "attention_bias", false);
        c->mlp_bias = lk__hf_flag(r, &r->root, "mlp_bias", false);
    }
    read_rope(r, c);
    read_tokens(r, c, 1, 2, -1);
}

/* A name for each class, or their number. */
static int64_t count_labels(reader *r)
{
    lk__json value;
    if (lk__hf_get(r, &r->root, "id2label", &value)) {
        if (value.kind == LK__JSON_OBJECT && lk__json_count(&value) > 0) return (int64_t)lk__json_count(&value);
        lk__hf_refuse(r, "id2label", &value, "an object with a name for each class is needed");
    }
    int64_t count = lk__hf_integer(r, &r->root, "num_labels", 2);
    if (count > MOST_LABELS && lk__hf_get(r, &r->root, "num_labels", &value))
        lk__hf_refuse(r, "num_labels", &value, "at most %d classes are supported", MOST_LABELS);
    return count;
}

static void read_bert(reader *r, lk_transformer_config *c)
{
    lk__json value;
    c->vocabulary = read_size(r, "vocab_size", NULL, 30522);
    c->context = read_size(r, "max_position_embeddings", NULL, 512);
    c->width = read_size(r, "hidden_size", NULL, 768);
    c->layers = read_size(r, "num_hidden_layers", NULL, 12);
    c->heads = read_size(r, "num_attention_heads", NULL, 12);
    c->hidden = read_size(r, "intermediate_size", NULL, 3072);
    c->classes = count_labels(r);
    c->activation = read_activation(r, "hidden_act", LK_GELU);
    c->dropout = read_probability(r, "hidden_dropout_prob", 0.1);
    c->attention_dropout = read_probability(r, "attention_probs_dropout_prob", 0.1);
    if (lk__hf_get(r, &r->root, "classifier_dropout", &value) &&
        read_probability(r, "classifier_dropout", 0) != c->dropout)
        lk__hf_refuse(r, "classifier_dropout", &value, "it must equal \"hidden_dropout_prob\", which is %g", c->dropout);
    c->norm_epsilon = read_positive(r, &r->root, "layer_norm_eps", 1e-12);
    if (lk__hf_integer(r, &r->root, "type_vocab_size", 2) != 2 && lk__hf_get(r, &r->root, "type_vocab_size", &value))
        lk__hf_refuse(r, "type_vocab_size", &value, "only 2 is supported");
    require_text(r, "position_embedding_type", "absolute");
    require_text(r, "problem_type", "single_label_classification");
    require_flag(r, "is_decoder", false, false);
    require_flag(r, "add_cross_attention", false, false);
    require_nothing(r, "pruned_heads", "heads cannot be removed");
    read_tokens(r, c, -1, -1, 0);
}

lk_status lk__hf_config_parse(lk_context *context, const char *label, const char *text, size_t length,
                              lk_transformer_config *config)
{
    reader                r;
    char                  why[300];
    lk_transformer_config c = LK_TRANSFORMER_CONFIG_INIT;
    if (lk__hf_open(&r, context, label, text, length) < 0) return r.status;
    int architecture = read_architecture(&r);
    if (r.status < 0) return r.status;
    c.kind = lk__hf_architectures[architecture].kind;
    if (c.kind == LK_TRANSFORMER_GPT)
        read_gpt(&r, &c);
    else if (c.kind == LK_TRANSFORMER_LLAMA)
        read_llama(&r, &c, architecture == LK__HF_MISTRAL);
    else
        read_bert(&r, &c);
    c.init_std = read_positive(&r, &r.root, "initializer_range", 0.02);
    require_nothing(&r, "quantization_config", "quantised weights cannot be loaded");
    if (r.status >= 0 && !lk_transformer_check(&c, why, sizeof why))
        r.status = lk__fail(context, LK_EFORMAT, "%s: %s", label, why);
    if (r.status >= 0) *config = c;
    return r.status;
}

/* ---- files ---- */

/* Calls parse with the text of a config.json, or that of a directory. */
static lk_status parse_file(lk_context *context, const char *path, void *out,
                            lk_status (*parse)(lk_context *context, const char *label, const char *text, size_t length,
                                               void *out))
{
    char        file[PATH_MAX], *text;
    size_t      length;
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        int n = snprintf(file, sizeof file, "%s/config.json", path);
        if (n < 0 || n >= (int)sizeof file) return lk__fail(context, LK_EINVAL, "the path %.200s… is too long", path);
        path = file;
    }
    lk_status status = lk__read_text(context, path, CONFIG_LIMIT, &text, &length);
    if (status < 0) return status;
    status = parse(context, path, text, length, out);
    lk__text_free(context, text, length);
    return status;
}

static lk_status parse_config(lk_context *context, const char *label, const char *text, size_t length, void *config)
{
    return lk__hf_config_parse(context, label, text, length, config);
}

static lk_status parse_labels(lk_context *context, const char *label, const char *text, size_t length, void *labels)
{
    return lk__hf_labels_parse(context, label, text, length, labels);
}

lk_status lk_hf_config_read(lk_context *context, const char *path, lk_transformer_config *config)
{
    return parse_file(context, path, config, parse_config);
}

lk_status lk_hf_labels_read(lk_context *context, const char *path, lk_hf_labels **labels)
{
    *labels = NULL;
    return parse_file(context, path, labels, parse_labels);
}
