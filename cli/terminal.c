/* terminal.c - escapes control characters for terminals, and breaks lines to their width. */
#define _GNU_SOURCE
#include "terminal.h"

#include <lockstep/context.h>
#include <lockstep/environment.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
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

int terminal_columns(FILE *out)
{
    enum { PREFIX = 12, LEAST = 8 };
    struct winsize size;
    if (ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col > LEAST ? size.ws_col : LEAST;
    const char *shown = lk_environment_get(NULL, "LOCKSTEP_TERMINAL");
    int         width = shown && atoi(shown) > 0 ? atoi(shown) - PREFIX : 80;
    return width > LEAST ? width : LEAST;
}

/* Columns of UTF-8 text: its characters, each taken for one column wide. */
static int columns_of(const char *text, int bytes)
{
    int columns = 0;
    for (int i = 0; i < bytes; i++) columns += ((unsigned char)text[i] & 0xC0) != 0x80;
    return columns;
}

typedef struct layout {
    int used;        /* columns of the first line that are in use */
    int first, hang; /* where the first line begins, and where others do */
    int width;
} layout;

static void wrap_words(FILE *out, const char *text, layout l)
{
    int  at = l.used, start = l.first;
    bool begun = false; /* a word is in this line */
    while (*text) {
        int bytes = (int)strcspn(text, " "), columns = columns_of(text, bytes);
        if (begun && at + 1 + columns > l.width) {
            fprintf(out, "\n");
            at = 0, start = l.hang, begun = false;
        }
        if (begun || at > start)
            at += fprintf(out, " ");
        else
            at += fprintf(out, "%*s", start - at, "");
        fprintf(out, "%.*s", bytes, text);
        begun = true;
        at += columns;
        text += bytes;
        while (*text == ' ') text++;
    }
    fprintf(out, "\n");
}

void terminal_wrap(FILE *out, const char *text, int used, int column, int width)
{
    wrap_words(out, text, (layout){used, column, column, width});
}

void terminal_wrap_lines(FILE *out, const char *text, int width)
{
    while (*text) {
        int  bytes = (int)strcspn(text, "\n"), indent = (int)strspn(text, " ");
        char line[LONGEST];
        /* as it is: a table has spaces between its columns */
        if (columns_of(text, bytes) <= width || bytes >= LONGEST) {
            fprintf(out, "%.*s\n", bytes, text);
        } else {
            memcpy(line, text, (size_t)bytes);
            line[bytes] = 0;
            wrap_words(out, line + indent, (layout){0, indent, indent + 2, width});
        }
        text += bytes + (text[bytes] == '\n');
    }
}
