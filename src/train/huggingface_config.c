/* huggingface_config.c - config.json → lk_transformer_config. Defaults are taken from transformers' configuration
 * classes; a setting that would change the model's results, but has no field in lk_transformer_config, is refused. */
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
    [LK__HF_MIXTRAL] = {"MixtralForCausalLM", "mixtral", LK_TRANSFORMER_LLAMA},
    [LK__HF_QWEN3] = {"Qwen3ForCausalLM", "qwen3", LK_TRANSFORMER_LLAMA},
    [LK__HF_QWEN3_MOE] = {"Qwen3MoeForCausalLM", "qwen3_moe", LK_TRANSFORMER_LLAMA},
    [LK__HF_BERT] = {"BertForSequenceClassification", "bert", LK_TRANSFORMER_ENCODER},
};

/* The same body under another head, or without one: its weights can be loaded in part. */
static const struct {
    const char *name;
    int         same;
} bodies[] = {{"GPT2Model", LK__HF_GPT},        {"LlamaModel", LK__HF_LLAMA},     {"MistralModel", LK__HF_MISTRAL},
              {"MixtralModel", LK__HF_MIXTRAL}, {"Qwen3Model", LK__HF_QWEN3},     {"Qwen3MoeModel", LK__HF_QWEN3_MOE},
              {"BertModel", LK__HF_BERT},       {"BertForMaskedLM", LK__HF_BERT}, {"BertForPreTraining", LK__HF_BERT}};

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
        "GPT2LMHeadModel, LlamaForCausalLM, MistralForCausalLM, MixtralForCausalLM, Qwen3ForCausalLM, "
        "Qwen3MoeForCausalLM and BertForSequenceClassification are supported";
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
        lk__hf_refuse(r, "model_type", &type, "the architecture requires \"%s\"",
                      lk__hf_architectures[kind].model_type);
    if (kind < 0 && r->status >= 0)
        r->status = lk__fail(r->context, LK_EFORMAT, "%s has neither \"architectures\" nor \"model_type\"", r->label);
    return kind;
}

static int64_t read_size(reader *r, const char *key, int64_t missing)
{
    return lk__hf_integer(r, &r->root, key, missing);
}

/* A size that may be null. */
static int64_t read_optional(reader *r, const char *key, int64_t missing)
{
    lk__json value;
    return lk__hf_get(r, &r->root, key, &value) ? read_size(r, key, missing) : missing;
}

/* A size under either of two keys. Where a file has both, the second counts: transformers maps it to the first, which
 * it has read by then. */
static int64_t read_mapped(reader *r, const char *key, const char *other, int64_t missing)
{
    return read_size(r, other, read_size(r, key, missing));
}

static double read_probability(reader *r, const char *key, double missing)
{
    lk__json value;
    double   p = lk__hf_number(r, &r->root, key, missing);
    if (!(p >= 0 && p < 1) && lk__hf_get(r, &r->root, key, &value))
        lk__hf_refuse(r, key, &value, "expected a probability of at least 0 and below 1");
    return p;
}

static lk_activation read_activation(reader *r, const char *key, lk_activation missing)
{
    lk__json value;
    if (!lk__hf_get(r, &r->root, key, &value) && !lk__json_get(&r->root, key, &value)) return missing;
    for (size_t i = 0; i < COUNT(activations); i++)
        if (lk__json_equals(&value, activations[i].name)) return activations[i].activation;
    lk__hf_refuse(r, key, &value, "supported activations are gelu_new, gelu, relu and silu");
    return missing;
}

/* ---- the architectures ---- */

/* The cache of transformers has a window where a config.json has one, whatever the model. */
static void refuse_window(reader *r) { lk__hf_require_null(r, "sliding_window", "only mistral models have a window"); }

static void read_gpt(reader *r, lk_transformer_config *c)
{
    lk__json value;
    c->vocabulary = read_size(r, "vocab_size", 50257);
    c->context = read_mapped(r, "n_positions", "max_position_embeddings", 1024);
    c->width = read_mapped(r, "n_embd", "hidden_size", 768);
    c->layers = read_mapped(r, "n_layer", "num_hidden_layers", 12);
    c->heads = read_mapped(r, "n_head", "num_attention_heads", 12);
    c->hidden = read_optional(r, "n_inner", 4 * c->width);
    c->activation = read_activation(r, "activation_function", LK_GELU_TANH);
    c->dropout = read_probability(r, "resid_pdrop", 0.1);
    c->attention_dropout = read_probability(r, "attn_pdrop", 0.1);
    double embedding_dropout = read_probability(r, "embd_pdrop", 0.1);
    if (embedding_dropout != c->dropout && lk__hf_get(r, &r->root, "embd_pdrop", &value))
        lk__hf_refuse(r, "embd_pdrop", &value, "it must equal \"resid_pdrop\", which is %g", c->dropout);
    else if (embedding_dropout != c->dropout && lk__hf_get(r, &r->root, "resid_pdrop", &value))
        lk__hf_refuse(r, "resid_pdrop", &value, "it must equal \"embd_pdrop\", which is %g", embedding_dropout);
    c->norm_epsilon = lk__hf_positive(r, &r->root, "layer_norm_epsilon", 1e-5);
    lk__hf_require_flag(r, "scale_attn_weights", true);
    lk__hf_require_flag(r, "scale_attn_by_inverse_layer_idx", false);
    lk__hf_require_flag(r, "add_cross_attention", false);
    lk__hf_require_flag(r, "tie_word_embeddings", true);
    refuse_window(r);
    /* reorder_and_upcast_attn changes the order of scaling alone: attention is computed in f32 in any case */
    lk__hf_read_tokens(r, c, 50256, 50256, -1);
}

/* As in Mistral: of so many layers, the number that have no window; a list of another length, or of other kinds, is
 * refused. */
static int64_t count_full_layers(reader *r, const lk__json *types, int64_t layers)
{
    lk__json      type;
    lk__json_walk walk = lk__json_begin(types);
    int64_t       count = 0, full = 0;
    if (types->kind != LK__JSON_ARRAY)
        lk__hf_refuse(r, "layer_types", types, "expected a list with one string per layer");
    for (; r->status >= 0 && lk__json_next(&walk, NULL, &type); count++) {
        bool whole = lk__json_equals(&type, "full_attention") || lk__json_equals(&type, "attention");
        if (!whole && !lk__json_equals(&type, "sliding_attention"))
            lk__hf_refuse(r, "layer_types", types, "only full_attention and sliding_attention are supported");
        full += whole;
    }
    if (count != layers)
        lk__hf_refuse(r, "layer_types", types, "it lists %lld layers, but the model has %lld", (long long)count,
                      (long long)layers);
    return full;
}

static void read_layer_types(reader *r, lk_transformer_config *c)
{
    lk__json types;
    if (!lk__hf_get(r, &r->root, "layer_types", &types)) return;
    int64_t full = count_full_layers(r, &types, c->layers);
    if (full == c->layers)
        c->window = 0; /* AutoModel of transformers takes such a mistral for a ministral */
    else if (full > 0)
        lk__hf_refuse(r, "layer_types", &types, "only layers of one kind are supported");
    else if (c->window == 0)
        lk__hf_refuse(r, "layer_types", &types, "sliding_attention needs a \"sliding_window\", which only mistral has");
}

/* null: as many as heads. */
static int64_t read_kv_heads(reader *r, int64_t heads, int64_t missing)
{
    lk__json value;
    bool     null = lk__json_get(&r->root, "num_key_value_heads", &value) && value.kind == LK__JSON_NULL;
    return read_optional(r, "num_key_value_heads", null ? heads : missing);
}

/* Missing: Mistral has 4096, Mixtral none; null: none. */
static int64_t read_window(reader *r, int64_t missing)
{
    lk__json value;
    bool     null = lk__json_get(&r->root, "sliding_window", &value) && value.kind == LK__JSON_NULL;
    return read_optional(r, "sliding_window", null ? 0 : missing);
}

static void read_router_loss(reader *r, lk_transformer_config *c)
{
    double factor = lk__hf_number(r, &r->root, "router_aux_loss_coef", 0.001);
    if (lk__hf_flag(r, &r->root, "output_router_logits", false))
        c->router_loss = factor; /* as transformers: else none */
}

static void read_experts(reader *r, lk_transformer_config *c)
{
    lk__json value;
    c->experts = (int)read_size(r, "num_local_experts", 8);
    c->experts_per_token = (int)read_size(r, "num_experts_per_tok", 2);
    if (lk__hf_number(r, &r->root, "router_jitter_noise", 0) != 0 &&
        lk__hf_get(r, &r->root, "router_jitter_noise", &value))
        lk__hf_refuse(r, "router_jitter_noise", &value, "router noise is not supported");
    read_router_loss(r, c);
}

static void require_silu(reader *r, lk_transformer_config *c, int architecture)
{
    lk__json value;
    if (read_activation(r, "hidden_act", LK_SILU) != LK_SILU && lk__hf_get(r, &r->root, "hidden_act", &value))
        lk__hf_refuse(r, "hidden_act", &value, "only silu is supported in %s",
                      lk__hf_architectures[architecture].model_type);
    c->activation = LK_SILU;
}

/* Mistral and Mixtral differ in their window, and have no biases; Mixtral has experts. */
static void read_llama(reader *r, lk_transformer_config *c, int architecture)
{
    bool mixtral = architecture == LK__HF_MIXTRAL, mistral = architecture == LK__HF_MISTRAL || mixtral;
    c->vocabulary = read_size(r, "vocab_size", 32000);
    c->context = read_size(r, "max_position_embeddings", mistral ? 131072 : 2048);
    c->width = read_size(r, "hidden_size", 4096);
    c->layers = read_size(r, "num_hidden_layers", 32);
    c->heads = read_size(r, "num_attention_heads", 32);
    c->kv_heads = read_kv_heads(r, c->heads, mistral ? 8 : c->heads);
    c->head_width = read_optional(r, "head_dim", 0);
    c->hidden = read_size(r, "intermediate_size", mistral ? 14336 : 11008);
    require_silu(r, c, architecture);
    c->norm_epsilon = lk__hf_positive(r, &r->root, "rms_norm_eps", mixtral ? 1e-5 : 1e-6);
    c->attention_dropout = read_probability(r, "attention_dropout", 0);
    c->untied = !lk__hf_flag(r, &r->root, "tie_word_embeddings", false);
    if (mistral) {
        c->window = read_window(r, mixtral ? 0 : 4096);
        if (mixtral) read_experts(r, c);
    } else {
        c->attention_bias = lk__hf_flag(r, &r->root, "attention_bias", false);
        c->mlp_bias = lk__hf_flag(r, &r->root, "mlp_bias", false);
        refuse_window(r);
    }
    lk__hf_read_rope(r, c);
    lk__hf_read_tokens(r, c, 1, 2, -1);
}

/* Qwen3-MoE's are those of every layer. Version 5 writes "num_local_experts", version 4 reads "num_experts". */
static void read_qwen_experts(reader *r, lk_transformer_config *c)
{
    lk__json value;
    c->experts = (int)read_mapped(r, "num_local_experts", "num_experts", 128);
    c->experts_per_token = (int)read_size(r, "num_experts_per_tok", 8);
    c->hidden = read_size(r, "moe_intermediate_size", 768);
    c->plain_router = !lk__hf_flag(r, &r->root, "norm_topk_prob", false);
    lk__hf_require_nothing(r, "mlp_only_layers", "layers without experts are not supported");
    if (read_size(r, "decoder_sparse_step", 1) != 1 && lk__hf_get(r, &r->root, "decoder_sparse_step", &value))
        lk__hf_refuse(r, "decoder_sparse_step", &value, "layers without experts are not supported");
    read_router_loss(r, c);
}

/* Only with use_sliding_window, and then in all layers of Qwen3-MoE. */
static void read_qwen_window(reader *r, lk_transformer_config *c, bool experts)
{
    lk__json value;
    int64_t  window = read_window(r, 4096);
    (void)lk__hf_get(r, &r->root, "max_window_layers", &value); /* Qwen3-MoE does not read it */
    if (!lk__hf_flag(r, &r->root, "use_sliding_window", false)) return;
    if (!experts && lk__hf_get(r, &r->root, "use_sliding_window", &value))
        lk__hf_refuse(r, "use_sliding_window", &value, "a window in only some layers is not supported");
    c->window = window;
}

/* Qwen3 is Llama with norms of queries and keys. */
static void read_qwen(reader *r, lk_transformer_config *c, int architecture)
{
    bool experts = architecture == LK__HF_QWEN3_MOE;
    c->qk_norm = true;
    c->vocabulary = read_size(r, "vocab_size", 151936);
    c->context = read_size(r, "max_position_embeddings", 32768);
    c->width = read_size(r, "hidden_size", experts ? 2048 : 4096);
    c->layers = read_size(r, "num_hidden_layers", experts ? 24 : 32);
    c->heads = read_size(r, "num_attention_heads", 32);
    c->kv_heads = read_kv_heads(r, c->heads, experts ? 4 : 32);
    c->head_width = read_optional(r, "head_dim", experts ? 0 : 128);
    c->hidden = read_size(r, "intermediate_size", 22016); /* of Qwen3-MoE: of layers without experts */
    require_silu(r, c, architecture);
    c->norm_epsilon = lk__hf_positive(r, &r->root, "rms_norm_eps", 1e-6);
    c->attention_dropout = read_probability(r, "attention_dropout", 0);
    c->attention_bias = lk__hf_flag(r, &r->root, "attention_bias", false);
    c->untied = !lk__hf_flag(r, &r->root, "tie_word_embeddings", false);
    read_qwen_window(r, c, experts);
    if (experts) read_qwen_experts(r, c);
    lk__hf_read_rope(r, c);
    lk__hf_read_tokens(r, c, -1, -1, -1);
}

/* A name for each class, or their number. */
static int64_t count_labels(reader *r)
{
    lk__json value;
    if (lk__hf_get(r, &r->root, "id2label", &value)) {
        int64_t names = value.kind == LK__JSON_OBJECT ? (int64_t)lk__json_count(&value) : 0;
        if (names == 0) lk__hf_refuse(r, "id2label", &value, "expected an object with a name for each class");
        if (read_size(r, "num_labels", names) != names && lk__hf_get(r, &r->root, "num_labels", &value))
            lk__hf_refuse(
                r, "num_labels", &value,
                "\"id2label\" has %lld names; different versions of transformers read such a file differently",
                (long long)names);
        return names;
    }
    int64_t count = read_size(r, "num_labels", 2);
    if (count > MOST_LABELS && lk__hf_get(r, &r->root, "num_labels", &value))
        lk__hf_refuse(r, "num_labels", &value, "at most %d classes are supported", MOST_LABELS);
    return count;
}

static void read_bert(reader *r, lk_transformer_config *c)
{
    lk__json value;
    c->vocabulary = read_size(r, "vocab_size", 30522);
    c->context = read_size(r, "max_position_embeddings", 512);
    c->width = read_size(r, "hidden_size", 768);
    c->layers = read_size(r, "num_hidden_layers", 12);
    c->heads = read_size(r, "num_attention_heads", 12);
    c->hidden = read_size(r, "intermediate_size", 3072);
    c->classes = count_labels(r);
    c->activation = read_activation(r, "hidden_act", LK_GELU);
    c->dropout = read_probability(r, "hidden_dropout_prob", 0.1);
    c->attention_dropout = read_probability(r, "attention_probs_dropout_prob", 0.1);
    if (lk__hf_get(r, &r->root, "classifier_dropout", &value) &&
        read_probability(r, "classifier_dropout", 0) != c->dropout)
        lk__hf_refuse(r, "classifier_dropout", &value, "it must equal \"hidden_dropout_prob\", which is %g",
                      c->dropout);
    c->norm_epsilon = lk__hf_positive(r, &r->root, "layer_norm_eps", 1e-12);
    if (lk__hf_integer(r, &r->root, "type_vocab_size", 2) != 2 && lk__hf_get(r, &r->root, "type_vocab_size", &value))
        lk__hf_refuse(r, "type_vocab_size", &value, "only 2 is supported");
    lk__hf_require_text(r, "position_embedding_type", "absolute", false);
    lk__hf_require_text(r, "problem_type", "single_label_classification", true);
    lk__hf_require_flag(r, "is_decoder", false);
    lk__hf_require_flag(r, "add_cross_attention", false);
    lk__hf_read_tokens(r, c, -1, -1, 0);
}

static lk_status read_config(reader *r, lk_transformer_config *config)
{
    char                  why[300];
    lk_transformer_config c = LK_TRANSFORMER_CONFIG_INIT;
    int                   architecture = read_architecture(r);
    if (r->status < 0) return r->status;
    c.kind = lk__hf_architectures[architecture].kind;
    if (c.kind == LK_TRANSFORMER_GPT)
        read_gpt(r, &c);
    else if (architecture == LK__HF_QWEN3 || architecture == LK__HF_QWEN3_MOE)
        read_qwen(r, &c, architecture);
    else if (c.kind == LK_TRANSFORMER_LLAMA)
        read_llama(r, &c, architecture);
    else
        read_bert(r, &c);
    c.init_std = lk__hf_positive(r, &r->root, "initializer_range", 0.02);
    if (c.kind != LK_TRANSFORMER_ENCODER) read_layer_types(r, &c);
    lk__hf_check_shared_keys(r, &c);
    if (r->status >= 0 && !lk_transformer_check(&c, why, sizeof why))
        r->status = lk__fail(r->context, LK_EFORMAT, "%s: %s", r->label, why);
    if (r->status >= 0) *config = c;
    return r->status;
}

lk_status lk__hf_config_parse(lk_context *context, const char *label, const char *text, size_t length,
                              lk_transformer_config *config)
{
    reader r;
    if (lk__hf_open(&r, context, label, text, length) < 0) return r.status;
    return read_config(&r, config);
}

/* ---- files ---- */

typedef lk_status (*parse_function)(lk_context *context, const char *label, const char *text, size_t length, void *out);

static lk_status parse_file(lk_context *context, const char *path, void *out, parse_function parse)
{
    char     *text;
    size_t    length;
    lk_status status = lk__read_text(context, path, CONFIG_LIMIT, &text, &length);
    if (status < 0) return status;
    status = parse(context, path, text, length, out);
    lk__text_free(context, text, length);
    return status;
}

/* A config.json, or that of a directory. */
static lk_status find_file(lk_context *context, const char *path, char file[PATH_MAX])
{
    struct stat info;
    bool        directory = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    int         n = snprintf(file, PATH_MAX, "%s%s", path, directory ? "/config.json" : "");
    return n >= 0 && n < PATH_MAX ? LK_OK : lk__fail(context, LK_EINVAL, "the path %.200s… is too long", path);
}

/* The generation_config.json beside a config.json; false: there is none. */
static bool find_generation(const char *file, char path[PATH_MAX])
{
    static const char name[] = "config.json";
    const char       *slash = strrchr(file, '/'), *base = slash ? slash + 1 : file;
    struct stat       info;
    if (strcmp(base, name) != 0) return false;
    int n = snprintf(path, PATH_MAX, "%.*sgeneration_%s", (int)(base - file), file, name);
    return n >= 0 && n < PATH_MAX && stat(path, &info) == 0;
}

static lk_status parse_config(lk_context *context, const char *label, const char *text, size_t length, void *config)
{
    reader r;
    char   unknown[LK__HF_UNKNOWN];
    if (lk__hf_open(&r, context, label, text, length) < 0 || read_config(&r, config) < 0) return r.status;
    lk__hf_list_unknown(&r, unknown);
    if (unknown[0]) lk__log(context, LK_LOG_WARNING, "%s: ignoring unknown keys: %s", label, unknown);
    return LK_OK;
}

static lk_status parse_generation(lk_context *context, const char *label, const char *text, size_t length, void *config)
{
    return lk__hf_generation_parse(context, label, text, length, config);
}

static lk_status parse_labels(lk_context *context, const char *label, const char *text, size_t length, void *labels)
{
    return lk__hf_labels_parse(context, label, text, length, labels);
}

lk_status lk_hf_config_read(lk_context *context, const char *path, lk_transformer_config *config)
{
    char                  file[PATH_MAX], generation[PATH_MAX];
    lk_transformer_config c;
    lk_status             status = find_file(context, path, file);
    if (status >= 0) status = parse_file(context, file, &c, parse_config);
    if (status >= 0 && c.kind != LK_TRANSFORMER_ENCODER && find_generation(file, generation))
        status = parse_file(context, generation, &c, parse_generation);
    if (status >= 0) *config = c;
    return status;
}

lk_status lk_hf_labels_read(lk_context *context, const char *path, lk_hf_labels **labels)
{
    char file[PATH_MAX];
    *labels = NULL;
    lk_status status = find_file(context, path, file);
    return status < 0 ? status : parse_file(context, file, labels, parse_labels);
}
