/* terminal.c - escapes control characters for terminals. */
#define _GNU_SOURCE
#include "terminal.h"

#include <lockstep/context.h>
#include <string.h>
#include <unistd.h>

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

void terminal_write(FILE *out, const char *text, size_t bytes)
{
    if (!isatty(fileno(out))) {
        fwrite(text, 1, bytes, out);
        return;
    }
    char part[1024];
    for (size_t at = 0; at < bytes;) {
        size_t n = 0;
        while (at + n < bytes && n < sizeof part - 1 && text[at + n] && text[at + n] != '\n' && text[at + n] != '\t')
            n++;
        bool full = n == sizeof part - 1 && at + n < bytes;
        while (full && n > 1 && ((unsigned char)text[at + n] & 0xC0) == 0x80) n--; /* whole characters */
        if (n == 0) {
            if (text[at])
                fputc(text[at], out);
            else
                fputs("\\x00", out);
            at++;
            continue;
        }
        memcpy(part, text + at, n);
        part[n] = 0;
        print_line(out, part);
        at += n;
    }
}

void terminal_print(FILE *out, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    terminal_print_list(out, format, arguments);
    va_end(arguments);
}
