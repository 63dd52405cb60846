/* fuzz_safetensors.c - any input is either refused with a message and without a leak, or is a file whose tensors can
 * all be found and read, and cover its data exactly. */
#include "base/base.h"
#include "data/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static lk_context *context;
    lk_context_config  config = LK_CONTEXT_CONFIG_INIT;
    config.threads = 1;
    if (!context && lk_context_create(&config, &context) < 0) abort();
    size_t           held = lk_context_memory(context, LK_MEMORY_OTHER);
    lk__safetensors *file;
    lk_status        status = lk__safetensors_open_memory(context, "input", data, size, &file);
    if (status < 0) {
        if (status != LK_EFORMAT || file || strncmp(lk_context_error(context), "input", 5) != 0) abort();
        if (lk_context_memory(context, LK_MEMORY_OTHER) != held) abort();
        return 0;
    }
    uint64_t total = 0;
    for (size_t i = 0; i < lk__safetensors_count(file); i++) {
        const lk__safetensors_tensor *t = lk__safetensors_at(file, i);
        uint64_t                      elements = 1;
        for (int axis = 0; axis < t->rank; axis++) elements *= (uint64_t)t->dims[axis];
        if (elements * lk_dtype_size(t->dtype) != t->bytes) abort();
        if (lk__safetensors_find(file, t->name) != t) abort();
        if (t->bytes > size || t->offset > size - t->bytes) abort();
        void *copy = malloc((size_t)t->bytes + 1);
        if (!copy || lk__safetensors_read(file, t, 0, copy, (size_t)t->bytes) < 0) abort();
        if (memcmp(copy, data + t->offset, (size_t)t->bytes) != 0) abort();
        free(copy);
        total += t->bytes;
    }
    uint64_t header;
    memcpy(&header, data, 8);
    if (8 + header + total != size) abort();
    lk__safetensors_close(file);
    if (lk_context_memory(context, LK_MEMORY_OTHER) != held) abort();
    return 0;
}
