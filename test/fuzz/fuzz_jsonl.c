/* fuzz_jsonl.c - JSONL files and texts: any input is refused with a message that names the file and line, or its
 * documents are UTF-8; the pieces of a text are the text. The first byte selects how the input is read. */
#include "data/text/corpus_encode.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const lk_tokenizer *open_bytes(lk_context *context)
{
    static lk_tokenizer *tokenizer;
    if (!tokenizer && lk_tokenizer_open(context, "byte", &tokenizer) != LK_OK) abort();
    return tokenizer;
}

/* The ids of bytes: those of a text one after the other. */
typedef struct reading {
    const uint8_t *text; /* NULL: JSONL */
    size_t         size, used;
} reading;

static lk_status compare_ids(void *user, const lk__text_piece *piece, const int32_t *ids, size_t count)
{
    reading *r = user;
    if (count != piece->bytes) abort();
    for (size_t i = 0; i < count; i++)
        if (ids[i] != (unsigned char)piece->text[i] || (r->text && ids[i] != r->text[r->used + i])) abort();
    r->used += count;
    if (r->text && (r->used > r->size || piece->line != 0)) abort();
    if (!r->text && (!lk__json_check_utf8(piece->text, piece->bytes) || piece->line < 1)) abort();
    return LK_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static lk_context *context;
    lk_context_config  config = LK_CONTEXT_CONFIG_INIT;
    lk__text_totals    totals;
    config.threads = 1;
    if (!context && lk_context_create(&config, &context) != LK_OK) abort();
    if (size < 2) return 0;
    const lk_tokenizer *tokenizer = open_bytes(context);
    size_t              held = lk_context_memory(context, LK_MEMORY_OTHER);
    bool                gzip = size > 2 && data[1] == 0x1f && data[2] == 0x8b;
    lk__text_file       file = {.path = "input", .bytes = data + 1, .size = size - 1, .jsonl = data[0] & 1};
    lk__text_corpus     corpus = {.context = context, .files = &file, .count = 1, .piece = data[0] >> 2};
    reading             r = {.text = file.jsonl || gzip ? NULL : data + 1, .size = size - 1};
    if (gzip && !file.jsonl) return 0;
    if (data[0] & 2) corpus.label_field = "label";
    lk_status status = lk__text_encode(&corpus, &(lk__text_encoding){tokenizer, false, -1, compare_ids, &r}, &totals);
    if (status < 0 && (status != LK_EFORMAT || !strstr(lk_context_error(context), "input"))) abort();
    if (status == LK_OK && r.text && r.used != size - 1) abort();
    if (lk_context_memory(context, LK_MEMORY_OTHER) != held || lk_context_memory(context, LK_MEMORY_DATA) != 0) abort();
    return 0;
}
