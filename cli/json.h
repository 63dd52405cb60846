/* json.h - writes JSON, with commas, quotes and escapes. */
#ifndef CLI_JSON_H
#define CLI_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct json {
    FILE *out;
    bool  comma; /* the next value needs a comma before it */
} json;

static inline json json_to(FILE *out) { return (json){out, false}; }

/* key is NULL in an array and for the outermost value. */
void json_open(json *j, const char *key, char bracket);      /* '{' or '[' */
void json_close(json *j, char bracket);                      /* '}' or ']' */
void json_text(json *j, const char *key, const char *value); /* NULL is null */
void json_bytes(json *j, const char *key, const char *text,
                size_t bytes); /* what is not UTF-8 becomes U+FFFD, as Python decodes it */
void json_bool(json *j, const char *key, bool value);
void json_integer(json *j, const char *key, int64_t value);
void json_number(json *j, const char *key,
                 double value); /* the shortest digits that parse to the same value; null if not finite */
void json_line(json *j);        /* ends the line and flushes, so that a record is written completely or not at all */

#endif
