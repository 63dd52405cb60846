/* fuzz_npz.c - .npz files: the zip directory, the members and the headers in them. Any input is refused with a message,
 * or gives a data set whose samples can be read. */
#include "data/array/array.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_samples(const lk_dataset *d)
{
    void    *fields[LK_MAX_FIELDS] = {0};
    unsigned sum = 0;
    for (int i = 0; i < lk_dataset_fields(d); i++) fields[i] = malloc(lk_field_bytes(lk_dataset_field(d, i)));
    for (int64_t row = 0; row < lk_dataset_count(d); row += 1 + lk_dataset_count(d) / 16) {
        if (lk_dataset_get(d, row, fields) != LK_OK) abort();
        for (int i = 0; i < lk_dataset_fields(d); i++) sum += *(unsigned char *)fields[i];
    }
    volatile unsigned sink = sum;
    (void)sink;
    for (int i = 0; i < lk_dataset_fields(d); i++) free(fields[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static lk_context *context;
    lk_context_config  config = LK_CONTEXT_CONFIG_INIT;
    config.threads = 1;
    if (!context && lk_context_create(&config, &context) != LK_OK) abort();
    size_t held = lk_context_memory(context, LK_MEMORY_OTHER);
    for (int probe = 0; probe < 2; probe++) {
        lk_open_options  options = LK_OPEN_OPTIONS_INIT;
        lk__data_request request = {.rest = "input", .split = LK_SPLIT_TRAIN, .options = &options, .probe = probe};
        lk_dataset      *d = NULL;
        lk_status        status = lk__npz_dataset(context, &request, (lk__map){data, size, false}, &d);
        if ((status == LK_OK) != (d != NULL)) abort();
        if (status != LK_OK && (!*lk_context_error(context) || (status != LK_EFORMAT && status != LK_EINVAL))) abort();
        if (d && !probe) read_samples(d);
        lk_dataset_free(d);
    }
    if (lk_context_memory(context, LK_MEMORY_DATA) != 0 || lk_context_memory(context, LK_MEMORY_OTHER) != held) abort();
    return 0;
}
