/* fuzz_record.c - any JSON value is either refused as the record of a run, without a leak, or gives options and fields
 * that can all be read and are within the limits of a data set. */
#include "train/record.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_field(const lk_field *field, size_t longest)
{
    if (!field->name || field->rank < 0 || field->rank > LK_MAX_RANK || lk_field_elements(field) < 1) abort();
    if (field->class_names && field->classes < 1) abort();
    for (int i = 0; field->class_names && i < field->classes; i++)
        if (strlen(field->class_names[i]) > longest) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static lk_context *context;
    lk_context_config  config = LK_CONTEXT_CONFIG_INIT;
    lk__json           root;
    lk__record         record;
    config.threads = 1;
    if (!context && lk_context_create(&config, &context) < 0) abort();
    if (!lk__json_parse((const char *)data, size, &root, NULL)) return 0;
    size_t    held = lk_context_memory(context, LK_MEMORY_OTHER);
    lk_status status = lk__record_read(context, "input", &root, &record);
    if (status < 0 && (status != LK_EFORMAT || strncmp(lk_context_error(context), "input: ", 7) != 0)) abort();
    for (size_t i = 0; status >= 0 && i < record.options_count; i++)
        if (strlen(record.options[i].name) + strlen(record.options[i].value) > size) abort();
    for (int i = 0; status >= 0 && i < record.fields_count; i++) check_field(&record.fields[i], size);
    for (int i = 0; status >= 0 && i < record.transform.channels; i++)
        if (!isfinite(record.transform.mean[i]) || !(record.transform.std[i] > 0)) abort();
    lk__record_free(&record);
    if (lk_context_memory(context, LK_MEMORY_OTHER) != held) abort();
    return 0;
}
