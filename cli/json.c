/* json.c - the JSON writer of the command. */
#include "json.h"

#include "characters.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void put_character(json *j, unsigned char c)
{
    if (c == '"' || c == '\\')
        fprintf(j->out, "\\%c", c);
    else if (c == '\n')
        fputs("\\n", j->out);
    else if (c == '\t')
        fputs("\\t", j->out);
    else if (c < 0x20)
        fprintf(j->out, "\\u%04x", c);
    else
        fputc(c, j->out);
}

/* Bytes that are not UTF-8, such as those of a file's name, become U+FFFD. */
static void put_bytes(json *j, const char *text, size_t bytes)
{
    const char *at = text, *end = at + bytes;
    fputc('"', j->out);
    while (at < end) {
        size_t length;
        bool   valid = characters_begin(at, (size_t)(end - at), &length);
        if (!valid) fputs("\xEF\xBF\xBD", j->out);
        for (size_t i = 0; valid && i < length; i++) put_character(j, (unsigned char)at[i]);
        at += length;
    }
    fputc('"', j->out);
}

static void put_string(json *j, const char *text) { put_bytes(j, text, strlen(text)); }

static void begin_value(json *j, const char *key)
{
    if (j->comma) fputs(", ", j->out);
    if (key) {
        put_string(j, key);
        fputs(": ", j->out);
    }
    j->comma = true;
}

void json_open(json *j, const char *key, char bracket)
{
    begin_value(j, key);
    fputc(bracket, j->out);
    j->comma = false;
}

void json_close(json *j, char bracket)
{
    fputc(bracket, j->out);
    j->comma = true;
}

void json_text(json *j, const char *key, const char *value)
{
    begin_value(j, key);
    if (value)
        put_string(j, value);
    else
        fputs("null", j->out);
}

void json_bytes(json *j, const char *key, const char *text, size_t bytes)
{
    begin_value(j, key);
    put_bytes(j, text, bytes);
}

void json_bool(json *j, const char *key, bool value)
{
    begin_value(j, key);
    fputs(value ? "true" : "false", j->out);
}

void json_integer(json *j, const char *key, int64_t value)
{
    begin_value(j, key);
    fprintf(j->out, "%" PRId64, value);
}

void json_number(json *j, const char *key, double value)
{
    begin_value(j, key);
    char text[40] = "null";
    for (int digits = 6; isfinite(value) && digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    fputs(text, j->out);
}

void json_line(json *j)
{
    fputc('\n', j->out);
    fflush(j->out);
    j->comma = false;
}
