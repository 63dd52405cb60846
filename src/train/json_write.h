/* train/json_write.h - writes JSON text into memory of a known size, or only counts its bytes. */
#ifndef LK__JSON_WRITE_H
#define LK__JSON_WRITE_H

#include <stdbool.h>
#include <stddef.h>

/* `used` counts what was written, also past `size`, where nothing is stored: with size 0 it measures. No NUL is
 * added. */
typedef struct lk__json_writer {
    char  *out;
    size_t size, used;
} lk__json_writer;

/* at most 127 bytes */
void lk__json_put(lk__json_writer *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void lk__json_put_bytes(lk__json_writer *text, const char *bytes, size_t count);
/* With quotes and escapes. A byte that is not part of valid UTF-8 becomes U+FFFD. */
void lk__json_put_string(lk__json_writer *text, const char *string);
/* Whether `read` is what a reader gets after lk__json_put_string(string). */
bool lk__json_reads_back(const char *read, const char *string);
/* The shortest text, in any locale, that reads back as the same number. */
enum { LK__JSON_NUMBER_BYTES = 40 };
void lk__json_format_number(double value, char text[LK__JSON_NUMBER_BYTES]);
void lk__json_put_number(lk__json_writer *text, double value);

#endif
