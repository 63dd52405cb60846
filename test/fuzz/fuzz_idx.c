/* fuzz_idx.c - the IDX parser, plain and gzip: any input is refused with a message or gives a readable data set. An
 * input is two bytes (the length of the label file), the label file, the image file. */
#include "data/dataset.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static lk_context *context;
    lk_context_config  config = LK_CONTEXT_CONFIG_INIT;
    lk__data_stream    images = {.fd = -1}, labels = {.fd = -1};
    lk_dataset        *dataset = NULL;
    config.threads = 1;
    if (!context && lk_context_create(&config, &context) != LK_OK) abort();
    if (size < 2) return 0;
    size_t first = (size_t)data[0] << 8 | data[1];
    if (first > size - 2) first = size - 2;
    lk_status status = lk__stream_memory(context, "labels", data + 2, first, &labels);
    if (status == LK_OK) status = lk__stream_memory(context, "images", data + 2 + first, size - 2 - first, &images);
    if (status == LK_OK)
        status = lk__idx_dataset(context, &(lk__data_idx_config){.name = "fuzz"}, &images, &labels, &dataset);
    images.context = labels.context = context;
    lk__stream_close(&images);
    lk__stream_close(&labels);
    if ((status == LK_OK) != (dataset != NULL)) abort();
    if (status < 0 && (status == LK_EINVAL || !*lk_context_error(context))) abort();
    if (dataset) {
        size_t   bytes = (size_t)lk_field_elements(lk_dataset_field(dataset, 0));
        uint8_t *sample = malloc(bytes);
        unsigned sum = 0;
        for (int64_t i = 0; i < lk_dataset_count(dataset); i += 1 + lk_dataset_count(dataset) / 64) {
            int32_t label = -1;
            if (lk_dataset_get(dataset, i, (void *[]){sample, &label}) != LK_OK || label < 0 ||
                label >= lk_dataset_find(dataset, "label")->classes)
                abort();
            for (size_t k = 0; k < bytes; k++) sum += sample[k];
        }
        volatile unsigned sink = sum;
        (void)sink;
        free(sample);
    }
    lk_dataset_free(dataset);
    if (lk_context_memory(context, LK_MEMORY_DATA) != 0) abort(); /* no leak, also on errors */
    return 0;
}
