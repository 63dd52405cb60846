/* data/format.h - the registry of data formats. To add one: a file that defines `const lk__data_format
 * lk__data_format_NAME`, and one line in the list below. The command's help, its checks of options and its
 * completion read the descriptor. */
#ifndef LK__DATA_FORMAT_H
#define LK__DATA_FORMAT_H

#include "data/dataset.h"

#include <lockstep/data_format.h>

/* In the order of help and messages. */
#define LK__DATA_FORMATS(X) \
    X(cifar10)              \
    X(fashion_mnist)        \
    X(mnist)                \
    X(synthetic)            \
    X(synthetic_tokens)     \
    X(folder)               \
    X(npy)                  \
    X(npz)                  \
    X(safetensors)          \
    X(csv)                  \
    X(idx)                  \
    X(text)                 \
    X(jsonl)                \
    X(tokens)

typedef struct lk__data_format {
    lk_data_format about;
    /* LK_END: there is no test set. */
    lk_status (*open)(lk_context *context, const lk__data_request *request, lk_dataset **dataset);
} lk__data_format;

#define LK__DATA_FORMAT_DECLARE(name) extern const lk__data_format lk__data_format_##name;
LK__DATA_FORMATS(LK__DATA_FORMAT_DECLARE)
#undef LK__DATA_FORMAT_DECLARE

#endif
