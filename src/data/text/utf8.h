/* data/text/utf8.h - the characters of UTF-8 text. */
#ifndef LK__UTF8_H
#define LK__UTF8_H

#include <stddef.h>
#include <stdint.h>

/* The character at `at` of valid text, and its number of bytes. */
static inline uint32_t lk__utf8_decode(const unsigned char *at, int *length)
{
    if (at[0] < 0x80) {
        *length = 1;
        return at[0];
    }
    if (at[0] < 0xe0) {
        *length = 2;
        return (uint32_t)(at[0] & 0x1f) << 6 | (at[1] & 0x3f);
    }
    if (at[0] < 0xf0) {
        *length = 3;
        return (uint32_t)(at[0] & 0x0f) << 12 | (uint32_t)(at[1] & 0x3f) << 6 | (at[2] & 0x3f);
    }
    *length = 4;
    return (uint32_t)(at[0] & 0x07) << 18 | (uint32_t)(at[1] & 0x3f) << 12 | (uint32_t)(at[2] & 0x3f) << 6 |
           (at[3] & 0x3f);
}

size_t lk__utf8_encode(uint32_t code, char out[4]); /* returns its bytes */

/* The bytes of the longest prefix that is valid UTF-8. */
size_t lk__utf8_valid(const char *text, size_t bytes);
/* The bytes of the maximal subpart of an invalid sequence (Unicode 15, section 3.9) that text begins with: one U+FFFD
 * replaces them. */
size_t lk__utf8_skip_invalid(const char *text, size_t bytes);
/* Copies text with each of these replaced by U+FFFD, as Python's errors="replace" does; *invalid counts them. Returns
 * the bytes of the copy; out NULL only measures it. */
size_t lk__utf8_replace(const char *text, size_t bytes, char *out, size_t *invalid);

#endif
