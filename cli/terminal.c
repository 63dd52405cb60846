/* terminal.c - escapes control characters for terminals. */
#include "terminal.h"

#include <lockstep/context.h>
#include <string.h>

enum { LONGEST = 8192 }; /* bytes of one text; the library's messages are shorter */

static void print_line(FILE *out, const char *line)
{
    char shown[4 * LONGEST + 1]; /* an escape such as "\x1b" has four characters */
    lk_printable(line, shown, sizeof shown);
    fputs(shown, out);
}

void terminal_print_list(FILE *out, const char *format, va_list arguments)
{
    char text[LONGEST], *line = text;
    vsnprintf(text, sizeof text, format, arguments);
    for (char *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        print_line(out, line);
        fputc('\n', out);
    }
    print_line(out, line);
}

void terminal_print(FILE *out, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    terminal_print_list(out, format, arguments);
    va_end(arguments);
}
