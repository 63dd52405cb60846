/* terminal.h - prints all text that is meant for people. */
#ifndef TERMINAL_H
#define TERMINAL_H

#include <stdarg.h>
#include <stdio.h>

/* As fprintf, for text that may contain names from files, paths or messages of other ranks: control characters are escaped, except
 * newlines, which are the command's own (names in the library's messages have none, see lk_printable). */
void terminal_print(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Text that is the command's result, such as a model's: as it is, or on a terminal with control characters escaped except newlines and
 * tabs. */
void terminal_write(FILE *out, const char *text, size_t bytes);
void terminal_print_list(FILE *out, const char *format, va_list arguments) __attribute__((format(printf, 2, 0)));

#endif
