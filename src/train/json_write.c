/* json_write.c - the JSON writer of checkpoints. */
#include "train/json_write.h"

#include "base/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void lk__json_put_bytes(lk__json_writer *t, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++, t->used++)
        if (t->used < t->size) t->out[t->used] = bytes[i];
}

void lk__json_put(lk__json_writer *t, const char *format, ...)
{
    char    part[128];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(part, sizeof part, format, arguments);
    va_end(arguments);
    if (n > 0) lk__json_put_bytes(t, part, (size_t)n < sizeof part ? (size_t)n : sizeof part - 1);
}

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

bool lk__json_reads_back(const char *read, const char *string)
{
    while (*string) {
        size_t      length = lk__json_character(string), count = length ? length : 3;
        const char *wanted = length ? string : replacement;
        if (strncmp(read, wanted, count) != 0) return false;
        read += count;
        string += length ? length : 1;
    }
    return !*read;
}

void lk__json_put_string(lk__json_writer *t, const char *string)
{
    lk__json_put_bytes(t, "\"", 1);
    while (*string) {
        char   escaped[6];
        size_t length = lk__json_character(string);
        if (length == 0)
            lk__json_put_bytes(t, replacement, 3);
        else if (length == 1)
            lk__json_put_bytes(t, escaped, lk__json_escape((unsigned char)*string, escaped));
        else
            lk__json_put_bytes(t, string, length);
        string += length ? length : 1;
    }
    lk__json_put_bytes(t, "\"", 1);
}

void lk__json_format_number(double value, char text[LK__JSON_NUMBER_BYTES])
{
    for (int digits = 15; digits <= 17; digits++) { /* 17 always suffice */
        snprintf(text, LK__JSON_NUMBER_BYTES, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    char *comma = strchr(text, ','); /* the decimal point of some locales */
    if (comma) *comma = '.';
}

void lk__json_put_number(lk__json_writer *t, double value)
{
    char text[LK__JSON_NUMBER_BYTES];
    lk__json_format_number(value, text);
    lk__json_put_bytes(t, text, strlen(text));
}
