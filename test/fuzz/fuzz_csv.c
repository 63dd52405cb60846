/* fuzz_csv.c - CSV files: any input is refused with a message that names the file, or gives a data set of finite
 * features. The first byte selects options. */
#include "data/csv/csv.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static lk_context *context;
    lk_context_config  config = LK_CONTEXT_CONFIG_INIT;
    config.threads = 1;
    if (!context && lk_context_create(&config, &context) != LK_OK) abort();
    if (size < 2) return 0;
    size_t          held = lk_context_memory(context, LK_MEMORY_OTHER);
    lk__csv_source  source = {.label = "input", .bytes = data + 1, .size = size - 1};
    lk_open_options options = LK_OPEN_OPTIONS_INIT;
    lk_dataset     *d = NULL;
    options.header = data[0] % 3 - 1;
    options.regression = data[0] & 4;
    if (data[0] & 8) options.label = "1";
    options.classification = data[0] & 128;
    if (data[0] & 16) { /* as a table that a model was trained on */
        static const char *const columns[] = {"a", "b"}, *const classes[] = {"cat", "dog", "1"}, *const label[] = {"y"};
        static const lk_field trained[] = {
            {.name = "features", .dtype = LK_F32, .rank = 1, .dims = {2}, .column_names = columns},
            {.name = "label", .dtype = LK_I32, .classes = 3, .class_names = classes, .column_names = label}};
        options.expected = trained;
        options.expected_count = 2;
        options.label_optional = data[0] & 32;
        options.skip_unknown = data[0] & 64;
    }
    lk__data_request request = {.split = LK_SPLIT_TRAIN, .options = &options};
    lk_status        status = lk__csv_dataset(context, &source, &request, &d);
    if ((status == LK_OK) != (d != NULL)) abort();
    bool known = status == LK_EFORMAT || status == LK_EINVAL || status == LK_EMISMATCH;
    if (status < 0 && (!known || !strstr(lk_context_error(context), "input"))) abort();
    if (d) {
        size_t columns = (size_t)lk_dataset_field(d, 0)->dims[0];
        float *row = malloc(columns * sizeof *row), second;
        for (int64_t i = 0; i < lk_dataset_count(d); i++) {
            if (lk_dataset_get(d, i, (void *[]){row, &second}) != LK_OK) abort();
            for (size_t k = 0; k < columns; k++)
                if (row[k] - row[k] != 0) abort();
        }
        free(row);
    }
    lk_dataset_free(d);
    if (lk_context_memory(context, LK_MEMORY_DATA) != 0 || lk_context_memory(context, LK_MEMORY_OTHER) != held) abort();
    return 0;
}
