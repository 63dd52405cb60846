/* test_huggingface.c - config.json of transformers, versions 4 and 5, both ways: files as transformers writes them,
 * defaults, everything that is refused, and what was written is read back as it was. */
#include "check.h"
#include "train/huggingface.h"

#include <lockstep.h>
#include <unistd.h>

static lk_context *context;

static lk_status parse(const char *text, lk_transformer_config *config)
{
    return lk__hf_config_parse(context, "config.json", text, strlen(text), config);
}

static lk_transformer_config parsed(const char *text)
{
    lk_transformer_config config = LK_TRANSFORMER_CONFIG_INIT;
    CHECK(parse(text, &config) == LK_OK, "%s", lk_context_error(context));
    return config;
}

static void check_refused(const char *text, const char *message)
{
    lk_transformer_config config = {.size = 7};
    lk_status             status = parse(text, &config);
    const char           *error = lk_context_error(context);
    CHECK(status == LK_EFORMAT && strncmp(error, "config.json", 11) == 0 && strstr(error, message) &&
              !strchr(error, '\n'),
          "%s: %s: %s", text, lk_status_name(status), error);
    CHECK(config.size == 7, "%s: the configuration was changed", text);
}

/* ---- as transformers writes them ---- */

/* config.json of openai-community/gpt2 on the hub, in part. */
static const char gpt2_hub[] =
    "{\n  \"activation_function\": \"gelu_new\",\n  \"architectures\": [\n    \"GPT2LMHeadModel\"\n  ],\n"
    "  \"attn_pdrop\": 0.1,\n  \"bos_token_id\": 50256,\n  \"embd_pdrop\": 0.1,\n  \"eos_token_id\": 50256,\n"
    "  \"initializer_range\": 0.02,\n  \"layer_norm_epsilon\": 1e-05,\n  \"model_type\": \"gpt2\",\n  \"n_ctx\": "
    "1024,\n"
    "  \"n_embd\": 768,\n  \"n_head\": 12,\n  \"n_layer\": 12,\n  \"n_positions\": 1024,\n  \"resid_pdrop\": 0.1,\n"
    "  \"summary_activation\": null,\n  \"summary_first_dropout\": 0.1,\n  \"summary_proj_to_labels\": true,\n"
    "  \"summary_type\": \"cls_index\",\n  \"summary_use_proj\": true,\n"
    "  \"task_specific_params\": {\"text-generation\": {\"do_sample\": true, \"max_length\": 50}},\n"
    "  \"vocab_size\": 50257\n}\n";

/* Llama 3.2 1B as version 4 writes it, with a list of end tokens; and a small one as version 5 does. */
static const char llama_v4[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"attention_bias\": false, \"attention_dropout\": 0.0, "
    "\"bos_token_id\": "
    "128000, \"eos_token_id\": [128001, 128008, 128009], \"head_dim\": 64, \"hidden_act\": \"silu\", \"hidden_size\": "
    "2048, "
    "\"initializer_range\": 0.02, \"intermediate_size\": 8192, \"max_position_embeddings\": 131072, \"mlp_bias\": "
    "false, "
    "\"model_type\": \"llama\", \"num_attention_heads\": 32, \"num_hidden_layers\": 16, \"num_key_value_heads\": 8, "
    "\"pretraining_tp\": 1, \"rms_norm_eps\": 1e-05, \"rope_scaling\": {\"factor\": 32.0, \"high_freq_factor\": 4.0, "
    "\"low_freq_factor\": 1.0, \"original_max_position_embeddings\": 8192, \"rope_type\": \"llama3\"}, \"rope_theta\": "
    "500000.0, \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\", \"transformers_version\": "
    "\"4.45.0.dev0\", "
    "\"use_cache\": true, \"vocab_size\": 128256}";
static const char llama_v5[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"attention_bias\": true, \"attention_dropout\": 0.25, "
    "\"bos_token_id\": "
    "null, \"dtype\": \"float32\", \"eos_token_id\": 60, \"head_dim\": 10, \"hidden_act\": \"silu\", \"hidden_size\": "
    "32, "
    "\"initializer_range\": 0.03, \"intermediate_size\": 88, \"max_position_embeddings\": 64, \"mlp_bias\": true, "
    "\"model_type\": \"llama\", \"num_attention_heads\": 4, \"num_hidden_layers\": 3, \"num_key_value_heads\": 2, "
    "\"pad_token_id\": 61, \"rms_norm_eps\": 1e-06, \"rope_parameters\": {\"factor\": 4.0, \"rope_theta\": 500.0, "
    "\"rope_type\": \"linear\"}, \"tie_word_embeddings\": false, \"transformers_version\": \"5.0.0\", \"vocab_size\": "
    "61}";

static void files_of_transformers_are_read(void)
{
    lk_transformer_config c = parsed(gpt2_hub), gpt2;
    REQUIRE(lk_transformer_preset("gpt2", &gpt2));
    CHECK(c.kind == LK_TRANSFORMER_GPT && c.vocabulary == 50257 && c.context == 1024 && c.width == 768 &&
          c.layers == 12 && c.heads == 12 && c.hidden == 3072 && c.activation == LK_GELU_TANH && c.dropout == 0.1 &&
          c.attention_dropout == 0.1 && c.norm_epsilon == 1e-5 && c.bos == 50256 && c.eos == 50256 && c.pad == -1);
    CHECK(lk_transformer_parameters(&c) == lk_transformer_parameters(&gpt2) &&
          lk_transformer_parameters(&c) == 124439808);

    c = parsed(llama_v4);
    CHECK(c.kind == LK_TRANSFORMER_LLAMA && c.kv_heads == 8 && c.head_width == 64 && !c.untied && c.eos == 128001 &&
          c.rope_theta == 500000 && c.rope_scaling == LK_ROPE_LLAMA3 && c.rope_factor == 32 && c.rope_low == 1 &&
          c.rope_high == 4 && c.rope_context == 8192 && c.window == 0);
    CHECK(lk_transformer_parameters(&c) == 1235814400, "%lld", (long long)lk_transformer_parameters(&c));

    c = parsed(llama_v5);
    CHECK(c.untied && c.attention_bias && c.mlp_bias && c.head_width == 10 && c.hidden == 88 && c.init_std == 0.03 &&
          c.rope_theta == 500 && c.rope_scaling == LK_ROPE_LINEAR && c.rope_factor == 4 &&
          c.attention_dropout == 0.25 && c.dropout == 0 && c.bos == -1 && c.eos == 60);
    CHECK(c.pad == -1, "61 is beyond the vocabulary");
}

/* Qwen3-30B-A3B and Qwen3-0.6B, with the numbers of parameters that they are published with. */
static void published_models_of_qwen_are_read(void)
{
    lk_transformer_config c = parsed(
        "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"attention_bias\": false, \"attention_dropout\": 0.0, "
        "\"bos_token_id\": 151643, \"decoder_sparse_step\": 1, \"eos_token_id\": 151645, \"head_dim\": 128, "
        "\"hidden_act\": \"silu\", \"hidden_size\": 2048, \"initializer_range\": 0.02, \"intermediate_size\": 6144, "
        "\"max_position_embeddings\": 40960, \"max_window_layers\": 48, \"mlp_only_layers\": [], \"model_type\": "
        "\"qwen3_moe\", \"moe_intermediate_size\": 768, \"norm_topk_prob\": true, \"num_attention_heads\": 32, "
        "\"num_experts\": 128, \"num_experts_per_tok\": 8, \"num_hidden_layers\": 48, \"num_key_value_heads\": 4, "
        "\"output_router_logits\": false, \"rms_norm_eps\": 1e-06, \"rope_scaling\": null, \"rope_theta\": 1000000.0, "
        "\"router_aux_loss_coef\": 0.001, \"sliding_window\": null, \"tie_word_embeddings\": false, "
        "\"use_sliding_window\": false, \"vocab_size\": 151936}");
    CHECK(c.qk_norm && c.hidden == 768 && c.rope_theta == 1e6 && c.window == 0 && !c.plain_router);
    CHECK(lk_transformer_parameters(&c) == 30532122624, "%lld", (long long)lk_transformer_parameters(&c));
    c = parsed("{\"architectures\": [\"Qwen3ForCausalLM\"], \"head_dim\": 128, \"hidden_size\": 1024, "
               "\"intermediate_size\": 3072, \"max_position_embeddings\": 40960, \"max_window_layers\": 28, "
               "\"model_type\": \"qwen3\", \"num_attention_heads\": 16, \"num_hidden_layers\": 28, "
               "\"num_key_value_heads\": 8, \"rope_theta\": 1000000, \"sliding_window\": null, "
               "\"tie_word_embeddings\": true, \"use_sliding_window\": false, \"vocab_size\": 151936}");
    CHECK(lk_transformer_parameters(&c) == 596049920, "%lld", (long long)lk_transformer_parameters(&c));
}

static void missing_keys_have_the_defaults_of_transformers(void)
{
    lk_transformer_config c = parsed("{\"model_type\": \"gpt2\"}");
    CHECK(c.vocabulary == 50257 && c.dropout == 0.1 && c.eos == 50256 && c.hidden == 3072);
    c = parsed("{\"model_type\": \"llama\", \"vocab_size\": 100}");
    CHECK(c.width == 4096 && c.hidden == 11008 && c.layers == 32 && c.kv_heads == 32 && c.context == 2048 && c.untied &&
          c.norm_epsilon == 1e-6 && c.rope_theta == 10000 && c.bos == 1 && c.eos == 2);
    c = parsed("{\"model_type\": \"mistral\"}");
    CHECK(c.kind == LK_TRANSFORMER_LLAMA && c.window == 4096 && c.kv_heads == 8 && c.hidden == 14336);
    c = parsed("{\"model_type\": \"mistral\", \"sliding_window\": null}");
    CHECK(c.window == 0);
    c = parsed("{\"model_type\": \"qwen3\"}");
    CHECK(c.kind == LK_TRANSFORMER_LLAMA && c.qk_norm && c.vocabulary == 151936 && c.head_width == 128 &&
          c.hidden == 22016 && c.kv_heads == 32 && c.rope_theta == 10000 && c.window == 0 && c.bos == -1);
    c = parsed("{\"model_type\": \"qwen3_moe\"}");
    CHECK(c.qk_norm && c.experts == 128 && c.experts_per_token == 8 && c.hidden == 768 && c.plain_router &&
          c.kv_heads == 4 && c.width == 2048 && c.untied && c.router_loss == 0 && c.rope_theta == 10000);
    c = parsed("{\"model_type\": \"bert\"}");
    CHECK(c.kind == LK_TRANSFORMER_ENCODER && c.vocabulary == 30522 && c.context == 512 && c.classes == 2 &&
          c.pad == 0 && c.norm_epsilon == 1e-12 && c.activation == LK_GELU && c.bos == -1);
    c = parsed("{\"model_type\": \"gpt2\", \"hidden_size\": 24, \"num_hidden_layers\": 3, \"num_attention_heads\": 2, "
               "\"max_position_embeddings\": 9, \"n_inner\": null}");
    CHECK(c.width == 24 && c.layers == 3 && c.heads == 2 && c.context == 9 && c.hidden == 96,
          "other names for the same keys");
    c = parsed("{\"model_type\": \"bert\", \"num_labels\": 5, \"architectures\": [\"BertForMaskedLM\"]}");
    CHECK(c.classes == 5);
}

/* ---- what is refused ---- */

#define GPT "{\"model_type\": \"gpt2\", "
#define LLAMA "{\"model_type\": \"llama\", "
#define QWEN "{\"model_type\": \"qwen3_moe\", "
#define BERT "{\"model_type\": \"bert\", "

static void other_models_are_refused_by_key_and_value(void)
{
    static const char *const cases[][2] = {
        {"{\"architectures\": [\"MambaForCausalLM\"], \"model_type\": \"mamba\"}",
         "\"architectures\" is [\"MambaForCausalLM\"]"},
        {"{\"architectures\": []}", "\"architectures\" is []"},
        {"{\"architectures\": \"GPT2LMHeadModel\"}", "\"architectures\" is \"GPT2LMHeadModel\""},
        {"{\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": \"llama\"}", "\"model_type\" is \"llama\""},
        {"{\"model_type\": \"t5\"}", "\"model_type\" is \"t5\""},
        {"{}", "has neither \"architectures\" nor \"model_type\""},
        {"[1]", "is not an object"},
        {"{\"model_type\": ", "byte 15: "},
        {"", "byte 0: "},
        {GPT "\"activation_function\": \"mish\"}",
         "\"activation_function\" is \"mish\": supported activations are gelu_new"},
        {BERT "\"hidden_act\": 3}", "\"hidden_act\" is 3: "},
        {LLAMA "\"hidden_act\": \"gelu\"}", "\"hidden_act\" is \"gelu\": only silu"},
        {GPT "\"scale_attn_weights\": false}", "\"scale_attn_weights\" is false: only true"},
        {GPT "\"scale_attn_by_inverse_layer_idx\": true}", "\"scale_attn_by_inverse_layer_idx\" is true: only false"},
        {GPT "\"add_cross_attention\": true}", "\"add_cross_attention\" is true: only false"},
        {GPT "\"tie_word_embeddings\": false}", "\"tie_word_embeddings\" is false: only true"},
        {GPT "\"embd_pdrop\": 0.2}", "\"embd_pdrop\" is 0.2: it must equal \"resid_pdrop\", which is 0.1"},
        {GPT "\"resid_pdrop\": 1.0, \"embd_pdrop\": 1.0}", "\"resid_pdrop\" is 1.0: expected a probability"},
        {GPT "\"quantization_config\": {\"bits\": 4}}", "\"quantization_config\" is {\"bits\": 4}: quantised"},
        {GPT "\"pruned_heads\": {\"1\": [2]}}", "\"pruned_heads\" is {\"1\": [2]}"},
        {LLAMA "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0}}",
         "\"rope_type\" is \"yarn\": the supported kinds"},
        {LLAMA "\"rope_scaling\": {\"type\": \"dynamic\"}}", "\"type\" is \"dynamic\": the supported kinds"},
        {LLAMA "\"rope_parameters\": {\"rope_type\": \"longrope\"}}", "\"rope_type\" is \"longrope\""},
        {LLAMA "\"rope_parameters\": {\"partial_rotary_factor\": 0.5}}", "\"partial_rotary_factor\" is 0.5"},
        {LLAMA "\"rope_parameters\": 3}", "\"rope_parameters\" is 3: expected an object"},
        {LLAMA "\"rope_theta\": 0}", "\"rope_theta\" is 0: expected a number above 0"},
        {LLAMA "\"rope_theta\": \"big\"}", "\"rope_theta\" is \"big\": expected a finite number"},
        {LLAMA "\"rope_theta\": 1e999}", "\"rope_theta\" is 1e999: expected a finite number"},
        {LLAMA "\"rope_scaling\": {\"rope_type\": \"llama3\", \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0}}",
         "rotary positions of the kind llama3 need \"factor\""},
        {LLAMA "\"rope_scaling\": {\"type\": \"linear\"}}", "of the kind linear need \"factor\""},
        {LLAMA "\"rope_scaling\": {\"type\": \"linear\", \"factor\": null}}", "\"factor\" is null: expected a value"},
        {LLAMA "\"rope_scaling\": {\"rope_type\": \"yarn\"}, \"rope_parameters\": {\"rope_type\": \"default\"}}",
         "\"rope_type\" is \"yarn\""},
        {LLAMA "\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\"}}}",
         "\"full_attention\" is {\"rope_type\": \"default\"}: rotary positions that differ between layers"},
        {LLAMA "\"rope_theta\": 70.0, \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 50}}",
         "\"rope_theta\" is 70.0: it is 50 in \"rope_parameters\"; different versions of transformers read such a file "
         "differently"},
        {GPT "\"scale_attn_weights\": null}", "\"scale_attn_weights\" is null: expected a value"},
        {GPT "\"tie_word_embeddings\": null}", "\"tie_word_embeddings\" is null: expected a value"},
        {BERT "\"position_embedding_type\": null}", "\"position_embedding_type\" is null: only \"absolute\""},
        {LLAMA "\"partial_rotary_factor\": 0.5}", "\"partial_rotary_factor\" is 0.5: only 1"},
        {LLAMA "\"original_max_position_embeddings\": 8, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, "
               "\"low_freq_factor\": 1, \"high_freq_factor\": 4, \"original_max_position_embeddings\": 16}}",
         "\"original_max_position_embeddings\" is 8: the value next to the rope type is 16"},
        {QWEN "\"mlp_only_layers\": [1]}", "\"mlp_only_layers\" is [1]: layers without experts"},
        {QWEN "\"decoder_sparse_step\": 2}", "\"decoder_sparse_step\" is 2: layers without experts"},
        {QWEN "\"num_experts_per_tok\": 129}", "qwen3_moe: 129 experts per token, but the model has only 128"},
        {QWEN "\"hidden_act\": \"gelu\"}", "\"hidden_act\" is \"gelu\": only silu is supported in qwen3_moe"},
        {"{\"model_type\": \"qwen3\", \"use_sliding_window\": true}",
         "\"use_sliding_window\" is true: a window in only some"},
        {LLAMA "\"sliding_window\": 7}", "\"sliding_window\" is 7: only mistral models"},
        {GPT "\"sliding_window\": 7}", "\"sliding_window\" is 7: only mistral models"},
        {LLAMA "\"num_hidden_layers\": 2, \"layer_types\": [\"full_attention\", \"sliding_attention\"]}",
         "only layers of one kind are supported"},
        {LLAMA "\"num_hidden_layers\": 1, \"layer_types\": [\"sliding_attention\"]}",
         "sliding_attention needs a \"sliding_window\""},
        {LLAMA "\"num_hidden_layers\": 1, \"layer_types\": [\"mamba\"]}", "only full_attention and sliding_attention"},
        {LLAMA "\"layer_types\": [\"full_attention\"]}", "it lists 1 layers, but the model has 32"},
        {LLAMA "\"layer_types\": \"full_attention\"}", "a list with one string per layer"},
        {GPT "\"is_causal\": false}", "\"is_causal\" is false: only true"},
        {GPT "\"is_encoder_decoder\": true}", "\"is_encoder_decoder\" is true: only false"},
        {LLAMA "\"attention_chunk_size\": 8}", "\"attention_chunk_size\" is 8: chunked attention"},
        {LLAMA "\"num_kv_shared_layers\": 1}", "\"num_kv_shared_layers\" is 1: layers that share"},
        {LLAMA "\"per_layer_config\": {\"0\": {\"intermediate_size\": 8}}}", "\"per_layer_config\" is {"},
        {LLAMA "\"transformers_weights\": \"other.safetensors\"}", "\"transformers_weights\" is \"other.safetensors\""},
        {LLAMA "\"hidden_size\": null}", "\"hidden_size\" is null: expected a value"},
        {LLAMA "\"hidden_act\": null}", "\"hidden_act\" is null: supported activations"},
        {GPT "\"resid_pdrop\": 0.2}", "\"resid_pdrop\" is 0.2: it must equal \"embd_pdrop\", which is 0.1"},
        {GPT "\"eos_token_id\": [1, \"2\"]}", "\"eos_token_id\" is [1, \"2\"]: expected a list of token ids"},
        {GPT "\"eos_token_id\": [0,1,2,3,4,5,6,7,8,9]}", "at most 9 end-of-text tokens are supported"},
        {LLAMA "\"num_key_value_heads\": 5}", "llama: 5 key/value heads do not divide 32"},
        {LLAMA "\"rms_norm_eps\": -1e-6}", "\"rms_norm_eps\" is -1e-6: expected a number above 0"},
        {GPT "\"n_head\": 7}", "7 heads do not divide the width 768"},
        {GPT "\"n_layer\": 0}", "\"n_layer\" is 0: expected an integer from 1"},
        {GPT "\"n_layer\": 2.5}", "\"n_layer\" is 2.5: expected an integer from 1"},
        {GPT "\"n_layer\": \"12\"}", "\"n_layer\" is \"12\": expected an integer from 1"},
        {GPT "\"n_layer\": 99999999999999999999}", "\"n_layer\" is 99999999999999999999: expected an integer"},
        {GPT "\"n_layer\": 2, \"n_layer\": 3}", "\"n_layer\" appears twice"},
        {GPT "\"eos_token_id\": \"end\"}", "\"eos_token_id\" is \"end\": expected a token id"},
        {BERT "\"position_embedding_type\": \"relative_key\"}",
         "\"position_embedding_type\" is \"relative_key\": only"},
        {BERT "\"problem_type\": \"regression\"}", "\"problem_type\" is \"regression\": only"},
        {BERT "\"is_decoder\": true}", "\"is_decoder\" is true"},
        {BERT "\"is_decoder\": \"no\"}", "\"is_decoder\" is \"no\": expected true or false"},
        {BERT "\"type_vocab_size\": 3}", "\"type_vocab_size\" is 3: only 2"},
        {BERT "\"classifier_dropout\": 0.5}", "\"classifier_dropout\" is 0.5: it must equal"},
        {BERT "\"num_labels\": 65537}", "\"num_labels\" is 65537: at most 65536"},
        {BERT "\"id2label\": {}}", "\"id2label\" is {}: expected an object"},
        {BERT "\"id2label\": [\"a\", \"b\"]}", "\"id2label\" is [\"a\", \"b\"]"},
        {GPT "\"activation_function\": \"a\\u001b[31m name that is long enough not to be shown as a whole, and more\"}",
         "…: supported activations"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_refused(cases[i][0], cases[i][1]);
}

static void keys_that_do_not_matter_are_ignored(void)
{
    parsed(GPT "\"reorder_and_upcast_attn\": true, \"use_cache\": false, \"torch_dtype\": \"float16\", \"mine\": [{}], "
               "\"quantization_config\": null, \"pruned_heads\": {}, \"summary_type\": 7, \"eos_token_id\": null}");
    parsed(LLAMA
           "\"pretraining_tp\": 4, \"sliding_window\": null, \"rope_scaling\": null, \"n_layer\": \"of another\"}");
    parsed(
        BERT
        "\"tie_word_embeddings\": false, \"chunk_size_feed_forward\": 9, \"position_embedding_type\": \"absolute\"}");
}

static void rope_scaling_has_precedence(void)
{
    lk_transformer_config c =
        parsed(LLAMA "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 500.0}, "
                     "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 4.0}, \"rope_theta\": 70.0}");
    CHECK(c.rope_scaling == LK_ROPE_LINEAR && c.rope_factor == 4 && c.rope_theta == 70, "%g", c.rope_theta);
    c = parsed(
        LLAMA
        "\"rope_parameters\": {\"type\": \"linear\", \"factor\": 2, \"rope_theta\": 500.0}, \"rope_scaling\": {}, "
        "\"rope_theta\": 500}");
    CHECK(c.rope_scaling == LK_ROPE_LINEAR && c.rope_factor == 2 && c.rope_theta == 500, "an empty one counts as none");
}

/* AutoModel of transformers 5 reads a mistral with layer_types as a ministral. */
static void windows_follow_the_types_of_layers(void)
{
    lk_transformer_config c = parsed("{\"model_type\": \"mistral\", \"num_hidden_layers\": 2, \"sliding_window\": 8, "
                                     "\"layer_types\": [\"sliding_attention\", \"sliding_attention\"]}");
    CHECK(c.window == 8);
    c = parsed("{\"model_type\": \"mistral\", \"num_hidden_layers\": 2, \"sliding_window\": 8, "
               "\"layer_types\": [\"full_attention\", \"full_attention\"]}");
    CHECK(c.window == 0);
    check_refused("{\"model_type\": \"mistral\", \"num_hidden_layers\": 2, \"sliding_window\": 8, "
                  "\"layer_types\": [\"sliding_attention\", \"full_attention\"]}",
                  "\"layer_types\" is [\"sliding_attention\", \"full_attention\"]: only layers of one kind");
    c = parsed("{\"model_type\": \"mistral\", \"num_key_value_heads\": null}");
    CHECK(c.kv_heads == 32, "null: as many as heads");
    c = parsed(GPT "\"n_embd\": 24, \"hidden_size\": 36}");
    CHECK(c.width == 36, "the key that transformers maps is set last");
}

static char warnings[2048];
static int  warning_count;
static void take_warning(void *user, lk_log_level level, const char *text)
{
    (void)user;
    if (level < LK_LOG_WARNING) return;
    warning_count++;
    snprintf(warnings, sizeof warnings, "%s", text);
}

/* The warnings for a config.json in a file. */
static void read_with_warnings(const char *text)
{
    lk_context_config     config = LK_CONTEXT_CONFIG_INIT;
    lk_context           *own;
    lk_transformer_config c;
    char                  path[] = "/tmp/lockstep-config-XXXXXX";
    int                   fd = mkstemp(path);
    REQUIRE(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    config.threads = 1, config.log = take_warning;
    REQUIRE(lk_context_create(&config, &own) == LK_OK);
    warning_count = 0, warnings[0] = 0;
    CHECK(lk_hf_config_read(own, path, &c) == LK_OK, "%s", lk_context_error(own));
    lk_context_free(own);
    unlink(path);
}

static void unknown_keys_are_named_in_one_warning(void)
{
    read_with_warnings(LLAMA "\"mine\": [{}], \"qk_layernorm\": true, \"use_cache\": true, \"rope_parameters\": "
                             "{\"rope_type\": \"default\", \"own\": 3}}");
    CHECK(warning_count == 1 && strstr(warnings, "\"mine\", \"qk_layernorm\", \"rope_parameters.own\"") &&
              !strstr(warnings, "use_cache"),
          "%d: %s", warning_count, warnings);
    read_with_warnings(gpt2_hub);
    CHECK(warning_count == 0, "%s", warnings);
    read_with_warnings(llama_v4);
    CHECK(warning_count == 0, "%s", warnings);
    read_with_warnings(llama_v5);
    CHECK(warning_count == 0, "%s", warnings);
    read_with_warnings(GPT "\"rope_parameters\": {\"mine\": 3}}");
    CHECK(warning_count == 1 && strstr(warnings, ": \"rope_parameters\"") && !strstr(warnings, "mine"), "%s", warnings);
}

/* ---- tokens ---- */

static void every_end_token_is_kept(void)
{
    lk_transformer_config c = parsed(llama_v4);
    char                  text[4096];
    CHECK(c.eos == 128001 && c.more_eos_count == 2 && c.more_eos[0] == 128008 && c.more_eos[1] == 128009);
    lk_hf_config_write(&c, text, sizeof text);
    CHECK(strstr(text, "\"eos_token_id\": [128001, 128008, 128009]"), "%s", text);
    static const char generation[] =
        "{\"eos_token_id\": [128009, 7, 999999], \"bos_token_id\": 5, \"pad_token_id\": 9, "
        "\"temperature\": 0.6}";
    REQUIRE(lk__hf_generation_parse(context, "generation_config.json", generation, strlen(generation), &c) == LK_OK);
    CHECK(c.more_eos_count == 3 && c.more_eos[2] == 7 && c.bos == 128000 && c.pad == 9, "what config.json has stays");
    c = parsed(LLAMA "\"eos_token_id\": null}");
    CHECK(c.eos == -1 && c.more_eos_count == 0);
    static const char one[] = "{\"eos_token_id\": 3}";
    REQUIRE(lk__hf_generation_parse(context, "generation_config.json", one, strlen(one), &c) == LK_OK);
    CHECK(c.eos == 3 && c.more_eos_count == 0);
    static const char wrong[] = "{\"eos_token_id\": \"end\"}";
    CHECK(lk__hf_generation_parse(context, "generation_config.json", wrong, strlen(wrong), &c) == LK_EFORMAT &&
              strstr(lk_context_error(context),
                     "generation_config.json: \"eos_token_id\" is \"end\": expected a token id"),
          "%s", lk_context_error(context));
}

/* ---- writing ---- */

static void check_same(const lk_transformer_config *a, const lk_transformer_config *b, const char *text)
{
#define SAME(field) \
    CHECK(a->field == b->field, #field " differs: %g and %g in %s", (double)a->field, (double)b->field, text)
    SAME(kind);
    SAME(vocabulary);
    SAME(context);
    SAME(layers);
    SAME(heads);
    SAME(width);
    SAME(hidden);
    SAME(untied);
    SAME(qk_norm);
    SAME(experts);
    SAME(experts_per_token);
    SAME(plain_router);
    SAME(router_loss);
    SAME(attention_bias);
    SAME(mlp_bias);
    SAME(window);
    SAME(activation);
    SAME(norm_epsilon);
    SAME(init_std);
    SAME(attention_dropout);
    SAME(rope_scaling);
    SAME(rope_factor);
    SAME(rope_low);
    SAME(rope_high);
    SAME(rope_context);
    SAME(bos);
    SAME(eos);
    SAME(more_eos_count);
    SAME(pad);
    if (a->kind == LK_TRANSFORMER_ENCODER) SAME(classes);
    if (a->kind == LK_TRANSFORMER_LLAMA) {
        SAME(kv_heads);
        SAME(head_width);
        SAME(rope_theta);
    } else {
        SAME(dropout);
    }
}

static void check_round_trip(const lk_transformer_config *config)
{
    char   text[4096], shorter[100];
    size_t bytes = lk_hf_config_write(config, text, sizeof text);
    CHECK(bytes > 0 && bytes == strlen(text) && lk_hf_config_write(config, NULL, 0) == bytes);
    CHECK(lk_hf_config_write(config, shorter, sizeof shorter) == bytes && strlen(shorter) == 99 &&
          strncmp(shorter, text, 99) == 0);
    lk_transformer_config back = parsed(text);
    check_same(config, &back, text);
}

static void what_is_written_is_read_back(void)
{
    lk_transformer_config gpt = parsed(gpt2_hub), v4 = parsed(llama_v4), v5 = parsed(llama_v5),
                          mistral = parsed("{\"model_type\": \"mistral\", \"sliding_window\": 9, \"head_dim\": 128}"),
                          bert = parsed(BERT "\"num_labels\": 7, \"hidden_act\": \"relu\", \"eos_token_id\": 3}");
    gpt.dropout = 0;
    gpt.bos = gpt.eos = -1;
    check_round_trip(&gpt);
    check_round_trip(&v4);
    check_round_trip(&v5);
    check_round_trip(&mistral);
    lk_transformer_config qwen = parsed("{\"model_type\": \"qwen3\", \"head_dim\": 64, \"attention_bias\": true}"),
                          moe = parsed(QWEN "\"num_experts\": 12, \"num_experts_per_tok\": 3, \"head_dim\": 64, "
                                            "\"moe_intermediate_size\": 96, \"norm_topk_prob\": true}");
    CHECK(moe.experts == 12 && moe.hidden == 96 && !moe.plain_router);
    check_round_trip(&qwen);
    check_round_trip(&moe);
    moe.plain_router = true, moe.window = 8, moe.router_loss = 0.25, moe.attention_bias = true;
    check_round_trip(&moe);
    check_round_trip(&bert);
    for (int i = 0; i < 3; i++) {
        gpt.activation = (lk_activation)i;
        gpt.norm_epsilon = 1.0 / 3;
        check_round_trip(&gpt);
    }
}

static void both_versions_find_their_keys(void)
{
    char                  text[4096];
    lk_transformer_config c = parsed(llama_v4);
    lk_hf_config_write(&c, text, sizeof text);
    static const char *const members[] = {
        "\"architectures\": [\"LlamaForCausalLM\"]",
        "\"rope_theta\": 500000.0",
        "\"rope_parameters\": {\n    \"rope_type\": \"llama3\",\n    \"rope_theta\": 500000.0",
        "\"rope_scaling\": {\n    \"rope_type\": \"llama3\",\n    \"factor\": 32.0",
        "\"torch_dtype\": \"float32\"",
        "\"dtype\": \"float32\"",
        "\"attention_dropout\": 0.0",
        "\"rms_norm_eps\": 1e-05",
        "\"tie_word_embeddings\": true",
        "\"pad_token_id\": null"};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        CHECK(strstr(text, members[i]), "%s in %s", members[i], text);
    lk_hf_config_write(&c, text, sizeof text, .dtype = LK_F64);
    CHECK(strstr(text, "\"dtype\": \"float64\"") && strstr(text, "\"torch_dtype\": \"float64\""));
    c.eos = c.vocabulary, c.more_eos_count = 0;
    lk_hf_config_write(&c, text, sizeof text);
    CHECK(strstr(text, "\"eos_token_id\": null"), "an id beyond the vocabulary: %s", text);
    c.rope_scaling = LK_ROPE_DEFAULT;
    lk_hf_config_write(&c, text, sizeof text);
    CHECK(strstr(text, "\"rope_scaling\": null") && strstr(text, "\"rope_type\": \"default\""));
    c.window = 7;
    lk_hf_config_write(&c, text, sizeof text);
    CHECK(strstr(text, "\"MistralForCausalLM\"") && strstr(text, "\"model_type\": \"mistral\"") &&
          strstr(text, "\"sliding_window\": 7") && !strstr(text, "mlp_bias"));
    c.mlp_bias = true;
    CHECK(lk_hf_config_write(&c, text, sizeof text) == 0 && !text[0], "transformers has no such model");
}

static void generation_configs_name_the_tokens(void)
{
    char                  text[512];
    lk_transformer_config c = parsed(llama_v4);
    size_t                bytes = lk_hf_generation_config_write(&c, text, sizeof text);
    CHECK(bytes == strlen(text) && strstr(text, "\"bos_token_id\": 128000") &&
              strstr(text, "\"eos_token_id\": [128001, 128008, 128009]") && strstr(text, "\"pad_token_id\": null"),
          "%s", text);
    c = parsed(BERT "\"num_labels\": 7}");
    CHECK(lk_hf_generation_config_write(&c, text, sizeof text) == 0 && !text[0]);
}

/* ---- classes ---- */

static void classes_keep_their_names(void)
{
    static const char *const names[] = {"positive", "a \"quoted\" one\n", "猫"};
    char                     text[4096];
    lk_hf_labels            *labels;
    lk_transformer_config    c = parsed(BERT "\"num_labels\": 3}");
    size_t                   bytes = lk_hf_config_write(&c, text, sizeof text, .class_names = names);
    REQUIRE(bytes < sizeof text);
    CHECK(strstr(text, "\"label2id\": {\n    \"positive\": 0,"), "%s", text);
    REQUIRE(lk__hf_labels_parse(context, "config.json", text, bytes, &labels) == LK_OK, "%s",
            lk_context_error(context));
    CHECK(lk_hf_labels_count(labels) == 3 && !lk_hf_labels_at(labels, 3) && !lk_hf_labels_at(labels, -1));
    for (int i = 0; i < 3; i++)
        CHECK(strcmp(lk_hf_labels_at(labels, i), names[i]) == 0, "%s", lk_hf_labels_at(labels, i));
    lk_hf_labels_free(labels);
    static const char swapped[] = BERT "\"id2label\": {\"1\": \"b\", \"0\": \"a\"}}";
    REQUIRE(lk__hf_labels_parse(context, "config.json", swapped, strlen(swapped), &labels) == LK_OK);
    CHECK(strcmp(lk_hf_labels_at(labels, 0), "a") == 0 && strcmp(lk_hf_labels_at(labels, 1), "b") == 0);
    lk_hf_labels_free(labels);
    static const char none[] = BERT "\"num_labels\": 12}";
    REQUIRE(lk__hf_labels_parse(context, "config.json", none, strlen(none), &labels) == LK_OK);
    CHECK(strcmp(lk_hf_labels_at(labels, 11), "LABEL_11") == 0);
    lk_hf_labels_free(labels);
    static const char *const wrong[] = {
        BERT "\"id2label\": {\"0\": \"a\", \"2\": \"b\"}}", BERT "\"id2label\": {\"00\": \"a\"}}",
        BERT "\"id2label\": {\"0\": \"a\", \"0\": \"b\"}}", BERT "\"id2label\": {\"0\": 1}}",
        BERT "\"id2label\": {\"0\": \"a\\u0000b\"}}",       GPT "\"n_layer\": 1}"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK(lk__hf_labels_parse(context, "config.json", wrong[i], strlen(wrong[i]), &labels) == LK_EFORMAT && !labels,
              "%s", wrong[i]);
}

static void a_directory_stands_for_its_config_json(void)
{
    char                  folder[] = "/tmp/lockstep-hf-XXXXXX", path[64];
    lk_transformer_config c = LK_TRANSFORMER_CONFIG_INIT;
    lk_hf_labels         *labels;
    REQUIRE(mkdtemp(folder));
    CHECK(lk_hf_config_read(context, folder, &c) == LK_ENOENT && strstr(lk_context_error(context), "/config.json"),
          "%s", lk_context_error(context));
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *file = fopen(path, "w");
    REQUIRE(file && fputs(BERT "\"id2label\": {\"0\": \"only\"}}", file) >= 0 && fclose(file) == 0);
    CHECK(lk_hf_config_read(context, folder, &c) == LK_OK && c.classes == 1, "%s", lk_context_error(context));
    CHECK(lk_hf_config_read(context, path, &c) == LK_OK);
    REQUIRE(lk_hf_labels_read(context, folder, &labels) == LK_OK);
    CHECK(strcmp(lk_hf_labels_at(labels, 0), "only") == 0);
    lk_hf_labels_free(labels);
    unlink(path);
    rmdir(folder);
}

int main(void)
{
    REQUIRE(lk_context_create(NULL, &context) == LK_OK);
    size_t held = lk_context_memory(context, LK_MEMORY_OTHER);
    RUN(files_of_transformers_are_read);
    RUN(published_models_of_qwen_are_read);
    RUN(missing_keys_have_the_defaults_of_transformers);
    RUN(other_models_are_refused_by_key_and_value);
    RUN(keys_that_do_not_matter_are_ignored);
    RUN(rope_scaling_has_precedence);
    RUN(windows_follow_the_types_of_layers);
    RUN(unknown_keys_are_named_in_one_warning);
    RUN(every_end_token_is_kept);
    RUN(what_is_written_is_read_back);
    RUN(both_versions_find_their_keys);
    RUN(generation_configs_name_the_tokens);
    RUN(classes_keep_their_names);
    RUN(a_directory_stands_for_its_config_json);
    CHECK(lk_context_memory(context, LK_MEMORY_OTHER) == held);
    lk_context_free(context);
    return check_result();
}
