/* utf8.c - validates UTF-8, and replaces invalid bytes. */
#include "data/text/utf8.h"

#include <stdbool.h>
#include <string.h>

size_t lk__utf8_encode(uint32_t code, char out[4])
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    size_t length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = length - 1; i > 0; i--, code >>= 6) out[i] = (char)(0x80 | (code & 0x3f));
    out[0] = (char)((length == 2 ? 0xc0 : length == 3 ? 0xe0 : 0xf0) | code);
    return length;
}

/* The bytes of the sequence at `at` if it is valid (Unicode 15, table 3-7); otherwise those of its maximal subpart, at
 * least 1. */
static size_t read_sequence(const unsigned char *at, const unsigned char *end, bool *valid)
{
    unsigned char lead = at[0];
    *valid = lead < 0x80;
    if (lead < 0xc2 || lead > 0xf4) return 1;
    unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    size_t        length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4, n = 1;
    for (; n < length && at + n < end && at[n] >= low && at[n] <= high; n++) low = 0x80, high = 0xbf;
    *valid = n == length;
    return n;
}

size_t lk__utf8_valid(const char *text, size_t bytes)
{
    const unsigned char *begin = (const unsigned char *)text, *at = begin, *end = begin + bytes;
    bool                 valid;
    while (at < end) {
        uint64_t eight;
        while (end - at >= 8 && (memcpy(&eight, at, 8), !(eight & 0x8080808080808080u))) at += 8;
        if (at == end) break;
        size_t n = read_sequence(at, end, &valid);
        if (!valid) break;
        at += n;
    }
    return (size_t)(at - begin);
}

size_t lk__utf8_skip_invalid(const char *text, size_t bytes)
{
    bool valid;
    return read_sequence((const unsigned char *)text, (const unsigned char *)text + bytes, &valid);
}

size_t lk__utf8_replace(const char *text, size_t bytes, char *out, size_t *invalid)
{
    const char *end = text + bytes;
    size_t      used = 0;
    *invalid = 0;
    while (text < end) {
        size_t good = lk__utf8_valid(text, (size_t)(end - text));
        if (out) memcpy(out + used, text, good);
        used += good, text += good;
        if (text == end) break;
        text += lk__utf8_skip_invalid(text, (size_t)(end - text));
        if (out) memcpy(out + used, "\xef\xbf\xbd", 3);
        used += 3;
        ++*invalid;
    }
    return used;
}
