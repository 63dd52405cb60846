/* characters.c - finds and writes the characters of UTF-8 text. */
#include "characters.h"

#include "terminal.h"

#include <string.h>

bool characters_begin(const char *text, size_t bytes, size_t *length)
{
    const unsigned char *at = (const unsigned char *)text;
    unsigned char        c = at[0];
    unsigned char low = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80, high = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
    size_t        whole = c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
    for (*length = 1; *length < whole; ++*length, low = 0x80, high = 0xBF)
        if (*length >= bytes || at[*length] < low || at[*length] > high) return false;
    return whole > 0;
}

/* Whether all of these bytes, which are no character, are the beginning of one. */
static bool is_beginning(const char *text, size_t bytes, size_t length)
{
    unsigned char c = (unsigned char)text[0];
    return length == bytes && c >= 0xC2 && c <= 0xF4;
}

/* Returns the bytes that were written; the rest is the beginning of a character. */
static size_t write_whole(FILE *out, const char *text, size_t bytes, bool last)
{
    size_t begun = 0, at = 0, length;
    while (at < bytes) {
        if (characters_begin(text + at, bytes - at, &length)) {
            at += length;
            continue;
        }
        if (at > begun) terminal_write(out, text + begun, at - begun);
        if (!last && is_beginning(text + at, bytes - at, length)) return at;
        fputs("\xEF\xBF\xBD", out);
        begun = at += length;
    }
    if (at > begun) terminal_write(out, text + begun, at - begun);
    return bytes;
}

void characters_write(character_stream *s, FILE *out, const char *text, size_t bytes)
{
    /* the character that is held ends, or turns out not to be one, within four bytes */
    while (s->count > 0 && bytes > 0) {
        s->held[s->count++] = *text++;
        bytes--;
        size_t done = write_whole(out, s->held, s->count, s->count == sizeof s->held);
        memmove(s->held, s->held + done, s->count - done);
        s->count -= done;
    }
    if (bytes == 0) return;
    size_t done = write_whole(out, text, bytes, false);
    s->count = bytes - done;
    memcpy(s->held, text + done, s->count);
}

void characters_end(character_stream *s, FILE *out)
{
    (void)write_whole(out, s->held, s->count, true);
    s->count = 0;
}
