/* fuzz_tokens.c - token files: any input is refused with a message that names the file, or every sample of it has ids
 * of the vocabulary, or names the token that has none. The first byte selects how the file is read. */
#include "data/text/text.h"
#include "data/text/token_file.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LONGEST = 16 };

static void check_sample(const lk_dataset *d, int64_t index, int64_t length, int64_t vocabulary)
{
    int32_t   fields[4][LONGEST];
    lk_status status = lk_dataset_get(d, index, (void *[]){fields[0], fields[1], fields[2], fields[3]});
    if (status < 0) {
        if (status != LK_EFORMAT || !strstr(lk_context_error(d->context), "input: token ")) abort();
        return;
    }
    for (int64_t i = 0; i < length; i++) {
        int64_t token = fields[0][i], label = fields[1][i];
        if (token < 0 || (vocabulary && token >= vocabulary)) abort();
        if (label != -100 && (label < 0 || (vocabulary && label >= vocabulary))) abort();
        if (lk_dataset_fields(d) == 2) continue;
        if (fields[3][i] < 0 || fields[3][i] > i || fields[2][i] != i - fields[3][i]) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static lk_context *context;
    lk_context_config  config = LK_CONTEXT_CONFIG_INIT;
    config.threads = 1;
    if (!context && lk_context_create(&config, &context) != LK_OK) abort();
    if (size < 1) return 0;
    size_t           held = lk_context_memory(context, LK_MEMORY_OTHER);
    lk_open_options  options = LK_OPEN_OPTIONS_INIT;
    lk__text_request request = {
        .context = context, .kind = "tokens", .options = &options, .length = 1 + data[0] % LONGEST};
    lk__text_source     source = {.context = context, .path = "input"};
    lk__text_token_file file;
    lk_dataset         *d = NULL;
    options.holdout = data[0] & 16 ? 0.25 : 0;
    request.split = data[0] & 32 ? LK_SPLIT_TEST : LK_SPLIT_TRAIN;
    lk_status status = lk__text_token_file_read(context, &(lk__text_token_bytes){"input", data + 1, size - 1},
                                                data[0] & 64 ? 4 : 2, &file);
    if (status == LK_OK) {
        if (file.ids.count < 0 || (size_t)file.ids.count > size) abort();
        source.ids = file.ids;
        source.end = file.end;
        source.packed = file.end >= 0 && data[0] & 128;
        source.info.vocabulary = file.vocabulary;
        status = lk__text_windows(&request, &source, &d);
    }
    if (status < 0 && (status != LK_EFORMAT || !strstr(lk_context_error(context), "input"))) abort();
    for (int64_t i = 0; d && i < lk_dataset_count(d) && i < 4096; i++)
        check_sample(d, i, request.length, file.vocabulary);
    lk_dataset_free(d);
    if (lk_context_memory(context, LK_MEMORY_OTHER) != held) abort();
    return 0;
}
