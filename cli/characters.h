/* characters.h - UTF-8 text in whole characters. */
#ifndef CHARACTERS_H
#define CHARACTERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Whether a text begins with a character of UTF-8; *length: its bytes, or those of the longest beginning of one, at
 * least 1. */
bool characters_begin(const char *text, size_t bytes, size_t *length);

/* A text that arrives in parts, which may end within a character. Zero it at first. */
typedef struct character_stream {
    char   held[4]; /* the beginning of a character */
    size_t count;
} character_stream;

/* Writes the characters that are complete, as terminal_write does; bytes that are not UTF-8 become U+FFFD. */
void characters_write(character_stream *stream, FILE *out, const char *text, size_t bytes);
void characters_end(character_stream *stream, FILE *out); /* the text ends: a beginning that is held becomes U+FFFD */

#endif
