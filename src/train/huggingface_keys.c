/* huggingface_keys.c - keys of a config.json that are read by code of transformers outside the model: those whose
 * values would change the model's results, and those that have no effect here. A key in neither list is unknown. */
#include "train/huggingface.h"

#include <stdio.h>
#include <string.h>

/* Versions 4 and 5. */
static const char *const without_effect[] = {
    /* about the file, its tokenizer and its library */
    "transformers_version", "_name_or_path", "name_or_path", "_commit_hash", "model_name", "auto_map",
    "tokenizer_class", "prefix", "finetuning_task", "task_specific_params", "label2id", "id2label", "num_labels",
    "_num_labels", "problem_type", "processor_class",
    /* how transformers computes: types, kernels, memory, what it returns */
    "dtype", "torch_dtype", "use_bfloat16", "torchscript", "tf_legacy_loss", "use_cache", "gradient_checkpointing",
    "chunk_size_feed_forward", "output_hidden_states", "output_attentions", "output_scores", "return_dict",
    "return_dict_in_generate", "attn_implementation", "_attn_implementation", "_attn_implementation_internal",
    "_attn_implementation_autoset", "experts_implementation", "_experts_implementation", "distributed_config",
    "pretraining_tp", "reorder_and_upcast_attn", "tie_last_hidden_states",
    /* of models with an encoder and a decoder */
    "tie_encoder_decoder", "cross_attention_hidden_size", "decoder_start_token_id", "sep_token_id", "is_decoder",
    /* of other heads; of BERT's pooler, in files of its authors; n_ctx, which nothing reads */
    "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout",
    "summary_last_dropout", "classifier_dropout", "directionality", "pooler_fc_size", "pooler_num_attention_heads",
    "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type", "n_ctx", "tie_word_embeddings",
    /* of generation, where `lockstep generate` has options */
    "max_length", "min_length", "max_new_tokens", "do_sample", "early_stopping", "num_beams", "num_beam_groups",
    "diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty",
    "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences",
    "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty",
    "suppress_tokens", "begin_suppress_tokens", NULL};

/* In the object with the kind of rotary positions: those that are read, and those of other kinds. */
static const char *const of_rope[] = {"rope_type",
                                      "type",
                                      "rope_theta",
                                      "factor",
                                      "low_freq_factor",
                                      "high_freq_factor",
                                      "original_max_position_embeddings",
                                      "partial_rotary_factor",
                                      "attention_factor",
                                      "beta_fast",
                                      "beta_slow",
                                      "short_factor",
                                      "long_factor",
                                      "mscale",
                                      "mscale_all_dim",
                                      "truncate",
                                      "mrope_section",
                                      NULL};

void lk__hf_check_shared_keys(lk__huggingface_reader *r, const lk_transformer_config *config)
{
    lk__json value;
    bool     decoder = config->kind != LK_TRANSFORMER_ENCODER;
    lk__hf_require_nothing(r, "quantization_config", "quantised weights cannot be loaded");
    lk__hf_require_nothing(r, "compression_config", "compressed weights cannot be loaded");
    lk__hf_require_nothing(r, "pruned_heads", "pruned heads are not supported");
    lk__hf_require_nothing(r, "per_layer_config", "layers that differ from each other are not supported");
    lk__hf_require_nothing(r, "transformers_weights", "weights are read from model.safetensors or its index");
    lk__hf_require_flag(r, "is_encoder_decoder", false);
    if (!decoder) return;
    if (!lk__hf_flag(r, &r->root, "is_causal", true) && lk__hf_get(r, &r->root, "is_causal", &value))
        lk__hf_refuse(r, "is_causal", &value, "only true is supported");
    lk__hf_require_null(r, "attention_chunk_size", "chunked attention is not supported");
    lk__hf_require_nothing(r, "num_kv_shared_layers", "layers that share keys and values are not supported");
}

static bool is_in(const lk__json *key, const char *const *list, int count)
{
    for (int i = 0; i < count && list[i]; i++)
        if (lk__json_equals(key, list[i])) return true;
    return false;
}

typedef struct listing {
    char  *out;
    size_t used;
} listing;

static void list_key(listing *l, const char *prefix, const lk__json *key)
{
    char name[80], shown[LK__SHOWN];
    lk__json_string(key, name, sizeof name);
    if (l->used < LK__HF_UNKNOWN)
        l->used += (size_t)snprintf(l->out + l->used, LK__HF_UNKNOWN - l->used, "%s\"%s%s\"", l->used ? ", " : "",
                                    prefix, lk__shown(name, shown));
}

static void list_members(listing *l, const lk__json *object, const char *prefix, const char *const *known, int count)
{
    lk__json      key, value;
    lk__json_walk walk = lk__json_begin(object);
    while (lk__json_next(&walk, &key, &value))
        if (!is_in(&key, known, count) && (prefix[0] || !is_in(&key, without_effect, INT32_MAX)))
            list_key(l, prefix, &key);
}

static bool was_asked(const lk__huggingface_reader *r, const char *key)
{
    for (int i = 0; i < r->asked_count; i++)
        if (strcmp(r->asked[i], key) == 0) return true;
    return false;
}

void lk__hf_list_unknown(const lk__huggingface_reader *r, char out[LK__HF_UNKNOWN])
{
    listing  l = {.out = out};
    lk__json rope;
    out[0] = 0;
    list_members(&l, &r->root, "", r->asked, r->asked_count);
    for (int i = 0; i < 2; i++) {
        const char *key = i ? "rope_parameters" : "rope_scaling";
        if (lk__json_get(&r->root, key, &rope) && was_asked(r, key))
            list_members(&l, &rope, i ? "rope_parameters." : "rope_scaling.", of_rope, INT32_MAX);
    }
}
