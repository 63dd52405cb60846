/* characters.c - two tokenizers: one with a token for each distinct character of a text, and one with a token for each
 * byte. */
#include "data/text/byte_level.h"
#include "data/text/tokenizer.h"
#include "data/text/utf8.h"

#include <string.h>

static void add_valid(lk__text_characters *characters, const unsigned char *at, const unsigned char *end)
{
    while (at < end) {
        int      length;
        uint32_t code = lk__utf8_decode(at, &length);
        characters->seen[code / 8] |= (unsigned char)(1u << code % 8);
        at += length;
    }
}

void lk__characters_add(lk__text_characters *characters, const char *text, size_t bytes)
{
    const unsigned char *at = (const unsigned char *)text, *end = at + bytes;
    while (at < end) {
        size_t valid = lk__utf8_valid((const char *)at, (size_t)(end - at));
        add_valid(characters, at, at + valid);
        at += valid;
        if (at == end) break;
        add_valid(characters, (const unsigned char *)"\xef\xbf\xbd", (const unsigned char *)"\xef\xbf\xbd" + 3);
        at += lk__utf8_skip_invalid((const char *)at, (size_t)(end - at));
    }
}

static lk_status add_characters(lk_tokenizer *tokenizer, const lk__text_characters *characters)
{
    int64_t id = 0;
    for (uint32_t code = 0; code < 0x110000; code++) {
        char utf8[4];
        if (code % 8 == 0 && characters->seen[code / 8] == 0) {
            code += 7;
            continue;
        }
        if (!(characters->seen[code / 8] >> code % 8 & 1)) continue;
        lk_status status =
            lk__vocabulary_add(&tokenizer->vocabulary, id,
                               &(lk__vocabulary_entry){utf8, lk__utf8_encode(code, utf8), NULL, 0}, (size_t)id + 1);
        if (status < 0) return status;
        if (code < 128) tokenizer->single[code] = (int32_t)id;
        id++;
    }
    if (id == 0) return lk__fail(tokenizer->context, LK_EINVAL, "cannot make a tokenizer from an empty text");
    return LK_OK;
}

lk_status lk__characters_tokenizer(lk_context *context, const lk__text_characters *characters, lk_tokenizer **tokenizer)
{
    lk_tokenizer *new;
    *tokenizer = NULL;
    lk_status status = lk__tokenizer_create(context, LK__TEXT_CHARACTERS, &new);
    if (status >= 0) status = add_characters(new, characters);
    if (status >= 0) status = lk__tokenizer_write_files(new);
    if (status < 0)
        lk_tokenizer_free(new);
    else
        *tokenizer = new;
    return status;
}

lk_status lk_tokenizer_from_text(lk_context *context, const char *text, size_t bytes, lk_tokenizer **tokenizer)
{
    *tokenizer = NULL;
    lk__text_characters *characters = lk__alloc(context, LK_MEMORY_OTHER, sizeof *characters);
    if (!characters) return LK_ENOMEM;
    lk__characters_add(characters, text, bytes);
    lk_status status = lk__characters_tokenizer(context, characters, tokenizer);
    lk__free(context, LK_MEMORY_OTHER, characters, sizeof *characters);
    return status;
}

lk_status lk__byte_tokenizer(lk_context *context, lk_tokenizer **tokenizer)
{
    lk_tokenizer *new;
    *tokenizer = NULL;
    lk_status status = lk__tokenizer_create(context, LK__TEXT_BYTES, &new);
    for (int i = 0; i < 256 && status >= 0; i++) {
        char name[2], byte = (char)i;
        new->single[i] = i;
        status = lk__vocabulary_add(
            &new->vocabulary, i, &(lk__vocabulary_entry){name, lk__byte_level_spell((unsigned char)i, name), &byte, 1},
            256);
    }
    if (status >= 0) status = lk__tokenizer_write_files(new);
    if (status < 0)
        lk_tokenizer_free(new);
    else
        *tokenizer = new;
    return status;
}
