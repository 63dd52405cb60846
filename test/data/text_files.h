/* text_files.h - for tests of texts: opening them, listing their tokens, and a tokenizer.json of bytes and an end
 * token. */
#ifndef TEXT_FILES_H
#define TEXT_FILES_H

#include "test_data.h"

static lk_context *context;

/* A path that stays valid, unlike scratch()'s. */
__attribute__((noinline, unused)) static const char *place(const char *name)
{
    static char paths[64][512];
    static int  count;
    const char *path = scratch(name);
    for (int i = 0; i < count; i++)
        if (strcmp(paths[i], path) == 0) return paths[i];
    CHECK(count < 64);
    return strcpy(paths[count++], path);
}

static inline lk_open_options options_of(const char *tokenizer, int64_t length)
{
    lk_open_options o = LK_OPEN_OPTIONS_INIT;
    o.tokenizer = tokenizer;
    o.context = length;
    return o;
}

static inline lk_status open_as(const char *kind, const char *path, lk_split split, const lk_open_options *o,
                                lk_dataset **d)
{
    char name[600];
    snprintf(name, sizeof name, "%s:%s", kind, path);
    return lk_dataset_open(context, name, split, o, d);
}

/* The inputs of all samples one after the other, without what windows at every offset repeat: all tokens but the last,
 * then padding. */
static inline void list_tokens(const lk_dataset *d, bool every_offset, int32_t *out)
{
    int32_t *fields[4];
    int64_t  length = lk_dataset_field(d, 0)->dims[0], last = lk_dataset_count(d) - 1;
    for (int i = 0; i < 4; i++) fields[i] = malloc((size_t)length * sizeof **fields);
    for (int64_t i = 0; i <= last; i++) {
        CHECK_OK(context, lk_dataset_get(d, i, (void *const *)fields));
        for (int64_t j = 0; j < (every_offset && i < last ? 1 : length); j++) *out++ = fields[0][j];
    }
    for (int i = 0; i < 4; i++) free(fields[i]);
}

/* ---- the tokenizer: byte b is token b, <|endoftext|> is 256 ---- */

enum { TEXT_END = 256 };

/* GPT-2's alphabet (bytes_to_unicode): printable bytes stand for themselves, the others for U+0100 and on. */
static inline int byte_letter(int byte)
{
    int others = 0;
    if ((byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174) return byte;
    for (int b = 0; b < byte; b++) others += !((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174);
    return 256 + others;
}

static inline void write_template_tokenizer(const char *path, const char *post_processor)
{
    FILE *f = fopen(path, "w");
    fprintf(
        f,
        "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[{\"id\":256,\"content\":"
        "\"<|endoftext|>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
        "\"special\":true}],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
        "\"trim_offsets\":true,\"use_regex\":true},\"post_processor\":%s,\"decoder\":{\"type\":\"ByteLevel\","
        "\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},\"model\":{\"type\":\"BPE\","
        "\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
        "\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,\"vocab\":{",
        post_processor);
    for (int b = 0; b < 256; b++) fprintf(f, "\"\\u%04x\":%d,", byte_letter(b), b);
    fprintf(f, "\"<|endoftext|>\":256},\"merges\":[]}}");
    fclose(f);
}

static inline void write_byte_tokenizer(const char *path) { write_template_tokenizer(path, "null"); }

#endif
