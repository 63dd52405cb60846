/* fuzz_tokenizer.c - tokenizer.json: any input is refused with a message that begins with its name, or gives a
 * tokenizer. That one encodes the input itself, whole and in pieces to the same ids, and decodes them. */
#include "data/text/encoder.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_ids(const lk_tokenizer *t, const int32_t *ids, size_t count)
{
    size_t total = 0, bytes;
    for (size_t i = 0; i < count; i++) {
        if (!lk_tokenizer_token(t, ids[i], &bytes)) abort();
        if (!lk_tokenizer_is_special(t, ids[i])) total += bytes;
    }
    char *text = malloc(total + 1);
    if (lk_tokenizer_decode(t, ids, count, text, total) != total) abort();
    free(text);
}

/* The text in two pieces. */
static void check_cut(const lk_tokenizer *t, const char *text, size_t size, const int32_t *ids, size_t count)
{
    lk__text_encoder *encoder;
    size_t            cut = lk__text_encoder_cut(t, text, size);
    lk__text_encoded  first, second;
    if (cut > size || lk__text_encoder_create(t, size, &encoder) < 0) abort();
    if (cut > 0) {
        lk__text_span begin = {text, cut, false}, rest = {text + cut, size - cut, true};
        if (lk__text_encoder_encode(encoder, begin, &first) < 0 || first.count > count) abort();
        if (first.count && memcmp(first.ids, ids, first.count * sizeof *ids) != 0) abort();
        if (lk__text_encoder_encode(encoder, rest, &second) < 0 || first.count + second.count != count) abort();
        if (second.count && memcmp(second.ids, ids + first.count, second.count * sizeof *ids) != 0) abort();
    }
    lk__text_encoder_free(encoder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static lk_context *context;
    lk_context_config  config = LK_CONTEXT_CONFIG_INIT;
    lk_tokenizer      *t;
    const char        *text = (const char *)data;
    config.threads = 1;
    if (!context && lk_context_create(&config, &context) != LK_OK) abort();
    size_t    held = lk_context_memory(context, LK_MEMORY_OTHER), count, invalid;
    lk_status status = lk_tokenizer_from_json(context, "input", text, size, &t);
    if ((status == LK_OK) != (t != NULL)) abort();
    if (!t && (status != LK_EFORMAT || strncmp(lk_context_error(context), "input: ", 7) != 0)) abort();
    if (t) {
        size_t   room = 4 * size + 4;
        int32_t *ids = malloc(room * sizeof *ids);
        status = lk_tokenizer_encode(t, text, size, ids, room, &count, &invalid);
        if (status < 0 && status != LK_EINVAL) abort();
        if (status == LK_OK && count <= room) {
            check_ids(t, ids, count);
            check_cut(t, text, size, ids, count);
        }
        free(ids);
        lk_tokenizer_free(t);
    }
    if (lk_context_memory(context, LK_MEMORY_OTHER) != held) abort();
    return 0;
}
