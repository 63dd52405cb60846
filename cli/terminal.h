/* terminal.h - prints all text that is meant for human readers. */
#ifndef TERMINAL_H
#define TERMINAL_H

#include <stdarg.h>
#include <stdio.h>

/* As fprintf, for text that may contain names from files, paths or messages of other ranks: control characters are
 * escaped, except newlines, which are the command's own (names in the library's messages have none, see
 * lk_printable). */
void terminal_print(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Text that is the command's result, such as a model's: as it is, or on a terminal with control characters escaped
 * except newlines and tabs. */
void terminal_write(FILE *out, const char *text, size_t bytes);
void terminal_print_list(FILE *out, const char *format, va_list arguments) __attribute__((format(printf, 2, 0)));

/* Columns of the terminal that shows `out`, also behind a launcher, which relays our lines with a prefix; 80 where
 * there is none. At least 8. */
int terminal_columns(FILE *out);
/* Prints a paragraph in lines of at most `width` columns, broken at spaces, that begin at `column`; `used` columns of
 * the first line are in use. A word that is wider than a line stays whole. */
void terminal_wrap(FILE *out, const char *text, int used, int column, int width);
/* The same for each line of a text: the spaces that it begins with stay, and what does not fit is indented by two
 * more. */
void terminal_wrap_lines(FILE *out, const char *text, int width);

#endif
