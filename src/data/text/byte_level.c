/* byte_level.c - GPT-2's alphabet of bytes (its bytes_to_unicode). */
#include "data/text/byte_level.h"

#include "data/text/utf8.h"

/* The bytes 0 … 32, 127 … 160 and 173 are not visible. */
enum { FIRST = 0x100, DELETE = 127, SECOND = FIRST + 33, SOFT_HYPHEN = 173, LAST = SECOND + 34 };

static uint32_t code_of(unsigned char byte)
{
    if (byte <= ' ') return FIRST + byte;
    if (byte >= DELETE && byte <= 160) return (uint32_t)SECOND + byte - DELETE;
    return byte == SOFT_HYPHEN ? LAST : byte;
}

static int byte_of(uint32_t code)
{
    if (code >= FIRST && code < SECOND) return (int)code - FIRST;
    if (code >= SECOND && code < LAST) return (int)code - SECOND + DELETE;
    if (code == LAST) return SOFT_HYPHEN;
    return code < FIRST && code_of((unsigned char)code) == code ? (int)code : -1;
}

size_t lk__byte_level_spell(unsigned char byte, char out[2])
{
    char   utf8[4];
    size_t length = lk__utf8_encode(code_of(byte), utf8);
    out[0] = utf8[0];
    if (length > 1) out[1] = utf8[1];
    return length;
}

bool lk__byte_level_decode(const char *name, size_t length, char *out, size_t *bytes)
{
    const unsigned char *at = (const unsigned char *)name, *end = at + length;
    size_t               n = 0;
    while (at < end) {
        int step, byte = byte_of(lk__utf8_decode(at, &step));
        if (byte < 0) return false;
        out[n++] = (char)byte;
        at += step;
    }
    *bytes = n;
    return true;
}
