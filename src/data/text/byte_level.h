/* data/text/byte_level.h - GPT-2's alphabet, in which byte-level BPE spells its tokens: a visible character for each
 * byte. Bytes that are visible in Latin-1 stand for themselves, the other 68 are represented by the characters from
 * U+0100 on. */
#ifndef LK__BYTE_LEVEL_H
#define LK__BYTE_LEVEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

size_t lk__byte_level_spell(unsigned char byte, char out[2]); /* UTF-8; returns its bytes */
/* Decodes a name into at most `length` bytes; false: it has a character that stands for no byte. */
bool lk__byte_level_decode(const char *name, size_t length, char *out, size_t *bytes);

#endif
