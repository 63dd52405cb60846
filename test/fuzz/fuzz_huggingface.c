/* fuzz_huggingface.c - any text is either refused as a config.json, with one sentence and without a leak, or is a model
 * that is possible here, and is the same model after it was written and read again. */
#include "train/huggingface.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_message(lk_context *context, lk_status status)
{
    const char *error = lk_context_error(context);
    if (status != LK_EFORMAT || strncmp(error, "input", 5) != 0 || strchr(error, '\n')) abort();
}

static void check_written(lk_context *context, const lk_transformer_config *config)
{
    char                  text[8192], second[8192];
    lk_transformer_config again;
    if (config->classes > 16) return; /* names of many classes need more than `text` */
    size_t bytes = lk_hf_config_write(config, NULL, 0);
    if (bytes == 0) abort(); /* a window comes from a mistral, which has no biases */
    if (bytes >= sizeof text || lk_hf_config_write(config, text, sizeof text) != bytes || strlen(text) != bytes)
        abort();
    if (lk__hf_config_parse(context, "written", text, bytes, &again) < 0) abort();
    if (lk_hf_config_write(&again, second, sizeof second) != bytes || strcmp(text, second) != 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static lk_context    *context;
    lk_context_config     settings = LK_CONTEXT_CONFIG_INIT;
    lk_transformer_config config;
    lk_hf_labels         *labels;
    char                  why[300];
    settings.threads = 1;
    if (!context && lk_context_create(&settings, &context) < 0) abort();
    size_t    held = lk_context_memory(context, LK_MEMORY_OTHER);
    lk_status status = lk__hf_config_parse(context, "input", (const char *)data, size, &config);
    if (status < 0) {
        check_message(context, status);
    } else {
        if (!lk_transformer_check(&config, why, sizeof why) || lk_transformer_parameters(&config) < 1) abort();
        check_written(context, &config);
    }
    status = lk__hf_labels_parse(context, "input", (const char *)data, size, &labels);
    if (status < 0) {
        check_message(context, status);
    } else {
        if (lk_hf_labels_count(labels) != config.classes) abort();
        for (int64_t i = 0; i < config.classes; i++)
            if (strlen(lk_hf_labels_at(labels, i)) > size + 32) abort();
        lk_hf_labels_free(labels);
    }
    if (lk_context_memory(context, LK_MEMORY_OTHER) != held) abort();
    return 0;
}
