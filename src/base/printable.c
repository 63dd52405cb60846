/* printable.c - text for a terminal: text from files or other hosts must not move the cursor or change colours. */
#include "base/base.h"

#include <stdio.h>
#include <string.h>

/* Bytes of the well-formed UTF-8 sequence at text (RFC 3629), 0 when there is none; *code: the character. */
static size_t utf8_length(const unsigned char *text, uint32_t *code)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t                length = text[0] < 0x80             ? 1
                                   : (text[0] & 0xe0) == 0xc0 ? 2
                                   : (text[0] & 0xf0) == 0xe0 ? 3
                                   : (text[0] & 0xf8) == 0xf0 ? 4
                                                              : 0;
    if (length < 2) {
        *code = text[0];
        return length;
    }
    *code = text[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) return 0; /* also at the terminating NUL */
        *code = *code << 6 | (text[i] & 0x3f);
    }
    return *code < least[length] || *code > 0x10ffff || (*code >= 0xd800 && *code < 0xe000) ? 0 : length;
}

static bool is_control(uint32_t code) { return code < 0x20 || (code >= 0x7f && code < 0xa0); }

/* "\\n", or each byte as "\\x1b". */
static void escape(const unsigned char *text, size_t length, char out[24])
{
    const char *name = *text == '\n' ? "\\n" : *text == '\r' ? "\\r" : *text == '\t' ? "\\t" : NULL;
    if (name)
        snprintf(out, 24, "%s", name);
    else
        for (size_t i = 0; i < length; i++) snprintf(out + 4 * i, 24 - 4 * i, "\\x%02x", text[i]);
}

size_t lk_printable(const char *text, char *out, size_t size)
{
    size_t used = 0, shown = 0;
    bool   full = false;
    while (*text) {
        uint32_t code;
        size_t   length = utf8_length((const unsigned char *)text, &code);
        char     piece[24] = "";
        bool     plain = length && !is_control(code);
        if (!length) length = 1;
        if (!plain) escape((const unsigned char *)text, length, piece);
        size_t bytes = plain ? length : strlen(piece);
        full = full || shown + bytes >= size; /* whole characters only */
        if (!full) memcpy(out + shown, plain ? text : piece, bytes);
        if (!full) shown += bytes;
        used += bytes;
        text += length;
    }
    if (size) out[shown] = 0;
    return used;
}

const char *lk__shown(const char *name, char out[LK__SHOWN])
{
    static const char more[] = "…";
    if (lk_printable(name, out, LK__SHOWN - sizeof more) >= LK__SHOWN - sizeof more)
        memcpy(out + strlen(out), more, sizeof more);
    return out;
}
