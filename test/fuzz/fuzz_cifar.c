/* fuzz_cifar.c - the check of CIFAR-10's records: it accepts exactly complete records with labels 0 to 9. */
#include "data/dataset.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static lk_context *context;
    lk_context_config  config = LK_CONTEXT_CONFIG_INIT;
    int64_t            count = -1;
    config.threads = 1;
    if (!context && lk_context_create(&config, &context) != LK_OK) abort();
    lk_status status = lk__cifar_check(context, "fuzz", data, size, &count);
    bool      valid = size > 0 && size % 3073 == 0;
    for (size_t at = 0; valid && at < size; at += 3073) valid = data[at] < 10;
    if (valid != (status == LK_OK) || count != (valid ? (int64_t)(size / 3073) : 0)) abort();
    if (!valid && (status != LK_EFORMAT || !*lk_context_error(context))) abort();
    return 0;
}
