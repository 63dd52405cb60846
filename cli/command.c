/* command.c - the list of commands, and their error messages. */
#define _GNU_SOURCE
#include "command.h"

#include "environment.h"
#include "terminal.h"

#include <stdarg.h>
#include <string.h>
#include <time.h>

const command *const commands[] = {
#define COMMAND_ENTRY(name) &command_##name,
    COMMAND_LIST(COMMAND_ENTRY)
#undef COMMAND_ENTRY
        NULL,
};

const command *command_find(const char *name)
{
    for (int i = 0; commands[i]; i++)
        if (strcmp(commands[i]->name, name) == 0) return commands[i];
    return NULL;
}

enum { STOP_WAIT_MS = 2000 };

volatile sig_atomic_t stop_signal;

bool wait_for_stop(void)
{
    for (int i = 0; i < STOP_WAIT_MS / 50 && !stop_signal; i++) nanosleep(&(struct timespec){0, 50000000}, NULL);
    return stop_signal != 0;
}

static void print_message(const char *command_name, int rank, const char *format, va_list arguments)
{
    fflush(stdout); /* earlier output must appear before */
    fprintf(stderr, "lockstep%s%s: ", command_name ? " " : "", command_name ? command_name : "");
    if (rank > 0) fprintf(stderr, "rank %d: ", rank);
    terminal_print_list(stderr, format, arguments);
    fprintf(stderr, "\n");
}

void print_error(const char *command_name, const char *format, ...)
{
    va_list arguments;
    int     rank = environment_rank();
    if (rank > 0 && wait_for_stop()) return;
    va_start(arguments, format);
    print_message(command_name, rank, format, arguments);
    va_end(arguments);
}

void print_note(const char *command_name, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_message(command_name, 0, format, arguments);
    va_end(arguments);
}

int command_exit_code(lk_status status)
{
    switch (status) {
    case LK_EINVAL:
    case LK_EFORMAT:
    case LK_ENOENT:
    case LK_EMISMATCH:
    case LK_ETOOLARGE:
    case LK_EUNSUPPORTED: return EXIT_USER_ERROR;
    default: return EXIT_FAILED;
    }
}

const char *command_remedy(lk_status status) { return status == LK_ETOOLARGE ? "; --overcommit starts it anyway" : ""; }

/* All ranks have the table of a failure; the first in it that is not missing prints it, the others only the line above
 * it. The length of what this rank prints. */
static int printed_length(const char *text, int rank)
{
    const char *table = strstr(text, "\n  rank "), *line = table;
    int         first = -1;
    for (; line && first < 0; line = strstr(line + 1, "\n  rank ")) {
        size_t length = strcspn(line + 1, "\n");
        if (!memmem(line, length + 1, "<- missing", 10)) sscanf(line, " rank %d", &first);
    }
    return (int)(rank < 0 || first < 0 || first == rank ? strlen(text) : (size_t)(table - text));
}

int report(const char *command_name, lk_context *context, lk_status status)
{
    return report_as(command_name, "", context, status);
}

/* alone: no other rank prints this error. */
static int print_report(const char *command_name, const char *lead, lk_context *context, lk_status status, bool alone)
{
    const char *text = lk_context_error(context);
    int         code = command_exit_code(status), rank = environment_rank();
    int         failed = lk_context_error_rank(context);
    bool        other = rank >= 0 && failed >= 0 && failed != rank; /* which prints it itself */
    if (!text[0]) text = lk_status_text(status);
    if ((other || (rank > 0 && code == EXIT_USER_ERROR && !alone)) && wait_for_stop()) return code;
    char by[32] = "";
    if (rank > 0 && !other) snprintf(by, sizeof by, "rank %d: ", rank);
    print_note(command_name, "%s%s%.*s%s", by, lead, printed_length(text, rank), text, command_remedy(status));
    return code;
}

int report_as(const char *command_name, const char *lead, lk_context *context, lk_status status)
{
    return print_report(command_name, lead, context, status, false);
}

int report_of_rank(const char *command_name, lk_context *context, lk_status status)
{
    return print_report(command_name, "", context, status, true);
}
