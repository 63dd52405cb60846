/* fuzz_npy.c - the header of .npy files: any input is refused with a message, or its shape and type account for all of
 * its bytes. */
#include "data/array/array.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static lk_context *context;
    lk_context_config  config = LK_CONTEXT_CONFIG_INIT;
    lk__array          a = {.file = "input", .name = "x", .alone = true};
    size_t             begin = 0;
    config.threads = 1;
    if (!context && lk_context_create(&config, &context) != LK_OK) abort();
    lk_status status = lk__npy_parse(context, &(lk__array_npy){data, size, size}, &a, &begin);
    if (status < 0) {
        if (status != LK_EFORMAT || !*lk_context_error(context)) abort();
        return 0;
    }
    uint64_t bytes = lk__array_type_size(a.type);
    for (int i = 0; i < a.rank; i++) bytes *= (uint64_t)a.dims[i];
    if (a.rank < 1 || a.rank > LK_MAX_RANK || begin > size || bytes != size - begin || bytes != a.size) abort();
    return 0;
}
