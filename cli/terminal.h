/* terminal.h - the one way by which text for people leaves the command. */
#ifndef TERMINAL_H
#define TERMINAL_H

#include <stdarg.h>
#include <stdio.h>

/* As fprintf, for what may hold names from files, paths or words of other ranks: control characters are escaped, except the
 * newlines, which are the command's own (names in the library's messages have none, see lk_printable). */
void terminal_print(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
void terminal_print_list(FILE *out, const char *format, va_list arguments) __attribute__((format(printf, 2, 0)));

#endif
