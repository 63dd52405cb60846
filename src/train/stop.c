/* stop.c - the text of a continuation as its tokens arrive: which bytes are complete, and whether a stop string has
 * appeared. Bytes that may become part of a stop string, or are the beginning of a character, are held back. */
#define _GNU_SOURCE
#include "train/generation.h"

#include <string.h>

size_t lk__pending_room(const lk__generation_stops *stops, const lk_tokenizer *tokenizer)
{
    size_t longest = 0, token = 0, bytes = 0;
    for (int i = 0; i < stops->count; i++)
        if (strlen(stops->text[i]) > longest) longest = strlen(stops->text[i]);
    for (int64_t id = 0; id < lk_tokenizer_vocabulary(tokenizer); id++)
        if (lk_tokenizer_token(tokenizer, (int32_t)id, &bytes) && bytes > token) token = bytes;
    return 3 * (longest + token + 4);
}

void lk__pending_begin(lk__generation_pending *p, char *memory, size_t room)
{
    *p = (lk__generation_pending){.text = memory, .hidden = memory + room / 3, .out = memory + 2 * (room / 3)};
}

/* Where the first stop string begins that appears earliest; `bytes`: none. */
static size_t find_stop(const lk__generation_stops *stops, const char *text, size_t bytes)
{
    size_t first = bytes;
    for (int i = 0; i < stops->count; i++) {
        size_t      length = strlen(stops->text[i]);
        const char *at = length ? memmem(text, bytes, stops->text[i], length) : NULL;
        if (at && (size_t)(at - text) < first) first = (size_t)(at - text);
    }
    return first;
}

/* Bytes at the end that may be the beginning of a stop string. */
static size_t stop_prefix(const lk__generation_stops *stops, const char *text, size_t bytes)
{
    size_t held = 0;
    for (int i = 0; i < stops->count; i++) {
        size_t length = strlen(stops->text[i]), most = length && bytes >= length ? length - 1 : bytes;
        for (size_t n = length ? most : 0; n > held; n--)
            if (memcmp(text + bytes - n, stops->text[i], n) == 0) {
                held = n;
                break;
            }
    }
    return held;
}

/* Bytes at the end that are the beginning of a character of UTF-8; 0 as well where they can be none. */
static size_t partial_character(const char *text, size_t bytes)
{
    for (size_t n = 1; n <= 3 && n <= bytes; n++) {
        unsigned char c = (unsigned char)text[bytes - n];
        if ((c & 0xC0) == 0x80) continue;
        size_t whole = c >= 0xC2 && c <= 0xDF ? 2 : (c & 0xF0) == 0xE0 ? 3 : c >= 0xF0 && c <= 0xF4 ? 4 : 1;
        return n < whole ? n : 0;
    }
    return 0;
}

static void drop_given(lk__generation_pending *p)
{
    p->bytes -= p->given;
    memmove(p->text, p->text + p->given, p->bytes);
    memmove(p->hidden, p->hidden + p->given, p->bytes);
    p->given = 0;
}

bool lk__pending_add(lk__generation_pending *p, const lk__generation_stops *stops, lk__generation_text token, bool last)
{
    drop_given(p);
    if (token.text) {
        memcpy(p->text + p->bytes, token.text, token.bytes);
        memset(p->hidden + p->bytes, token.hidden, token.bytes);
        p->bytes += token.bytes;
    }
    p->given = find_stop(stops, p->text, p->bytes);
    bool stopped = p->given < p->bytes;
    if (!stopped && !last) {
        size_t held = stop_prefix(stops, p->text, p->bytes), partial = partial_character(p->text, p->bytes);
        p->given = p->bytes - (held > partial ? held : partial);
    }
    p->out_bytes = 0;
    for (size_t i = 0; i < p->given; i++)
        if (!p->hidden[i]) p->out[p->out_bytes++] = p->text[i];
    return stopped;
}
