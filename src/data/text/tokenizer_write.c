/* tokenizer_write.c - writes the files of a tokenizer of bytes or characters, with which `tokenizers` gives the same
 * ids. */
#include "base/json.h"
#include "data/text/tokenizer.h"

#include <stdio.h>
#include <string.h>

/* Text that grows. The first failure is kept, and later calls do nothing. */
typedef struct growing {
    lk_context *context;
    char       *text;
    size_t      used, room;
    lk_status   status;
} growing;

static void put_bytes(growing *g, const char *bytes, size_t count)
{
    if (g->status >= 0) g->status = lk__grow(g->context, (void **)&g->text, &g->room, g->used + count, 1);
    if (g->status < 0) return;
    memcpy(g->text + g->used, bytes, count);
    g->used += count;
}

static void put(growing *g, const char *text) { put_bytes(g, text, strlen(text)); }

/* With quotes and escapes; the bytes are UTF-8. */
static void put_string(growing *g, const char *bytes, size_t count)
{
    put(g, "\"");
    for (size_t i = 0; i < count; i++) {
        char escaped[6];
        put_bytes(g, escaped, lk__json_escape((unsigned char)bytes[i], escaped));
    }
    put(g, "\"");
}

static void put_vocabulary(growing *g, const lk__vocabulary *v)
{
    bool first = true;
    put(g, "{");
    for (size_t i = 0; i < v->count; i++) {
        char number[24];
        if (!v->tokens[i].exists) continue;
        put(g, first ? "\n      " : ",\n      ");
        first = false;
        put_string(g, v->pool + v->tokens[i].name, v->tokens[i].name_length);
        snprintf(number, sizeof number, ": %zu", i);
        put(g, number);
    }
    put(g, "\n    }");
}

static const char byte_level[] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": false, "
                                 "\"use_regex\": false}";

static void put_tokenizer(growing *g, const lk_tokenizer *t)
{
    bool bytes = t->kind == LK__TEXT_BYTES;
    put(g, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [],\n"
           "  \"normalizer\": null,\n  \"pre_tokenizer\": ");
    if (bytes) {
        put(g, byte_level);
    } else {
        put(g, "{\"type\": \"Split\", \"pattern\": {\"Regex\": ");
        put_string(g, LK__TOKENIZER_ANY_CHARACTER, strlen(LK__TOKENIZER_ANY_CHARACTER));
        put(g, "}, \"behavior\": \"Isolated\", \"invert\": false}");
    }
    put(g, ",\n  \"post_processor\": null,\n  \"decoder\": ");
    put(g, bytes ? byte_level : "{\"type\": \"Fuse\"}");
    put(g, ",\n  \"model\": {\n    \"type\": ");
    if (bytes)
        put(g, "\"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n    \"continuing_subword_prefix\": null,\n"
               "    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n    \"byte_fallback\": false,\n"
               "    \"ignore_merges\": false,\n    \"vocab\": ");
    else
        put(g, "\"WordLevel\",\n    \"vocab\": ");
    put_vocabulary(g, &t->vocabulary);
    put(g, bytes ? ",\n    \"merges\": []\n  }\n}\n" : ",\n    \"unk_token\": \"<unk>\"\n  }\n}\n");
}

static void put_config(growing *g, const lk_tokenizer *t)
{
    const lk__text_token *end = lk__vocabulary_token(&t->vocabulary, t->end);
    put(g, "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n");
    if (end) {
        put(g, "  \"eos_token\": ");
        put_string(g, t->vocabulary.pool + end->name, end->name_length);
        put(g, ",\n");
    }
    put(g, "  \"clean_up_tokenization_spaces\": false\n}\n");
}

static bool has_file(const lk_tokenizer *t, const char *name)
{
    for (int i = 0; i < t->files_count; i++)
        if (strcmp(t->files[i].name, name) == 0) return true;
    return false;
}

static lk_status write_file(lk_tokenizer *t, const char *name, void (*put_file)(growing *, const lk_tokenizer *))
{
    if (has_file(t, name)) return LK_OK;
    growing g = {.context = t->context};
    put_file(&g, t);
    if (g.status >= 0) g.status = lk__tokenizer_keep_file(t, name, g.text, g.used);
    lk__free(t->context, LK_MEMORY_OTHER, g.text, g.room);
    return g.status;
}

lk_status lk__tokenizer_write_files(lk_tokenizer *t)
{
    lk_status status = write_file(t, "tokenizer.json", put_tokenizer);
    return status < 0 ? status : write_file(t, "tokenizer_config.json", put_config);
}
