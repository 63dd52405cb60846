/* command.c - the list of commands, and how one says that something is wrong. */
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

enum { OTHERS_MS = 2000 };

volatile sig_atomic_t stop_signal;

bool stopped_meanwhile(void)
{
    for (int i = 0; i < OTHERS_MS / 50 && !stop_signal; i++) nanosleep(&(struct timespec){0, 50000000}, NULL);
    return stop_signal != 0;
}

static void say(const char *command_name, int rank, const char *format, va_list arguments)
{
    fflush(stdout); /* what was said before stands before */
    fprintf(stderr, "lockstep%s%s: ", command_name ? " " : "", command_name ? command_name : "");
    if (rank > 0) fprintf(stderr, "rank %d: ", rank);
    terminal_print_list(stderr, format, arguments);
    fprintf(stderr, "\n");
}

void complain(const char *command_name, const char *format, ...)
{
    va_list arguments;
    int     rank = environment_rank();
    if (rank > 0 && stopped_meanwhile()) return;
    va_start(arguments, format);
    say(command_name, rank, format, arguments);
    va_end(arguments);
}

void note(const char *command_name, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(command_name, 0, format, arguments);
    va_end(arguments);
}

static int exit_code(lk_status status)
{
    switch (status) {
    case LK_EINVAL:
    case LK_EFORMAT:
    case LK_ENOENT:
    case LK_EMISMATCH:
    case LK_EUNSUPPORTED: return EXIT_MISTAKE;
    default: return EXIT_FAILED;
    }
}

/* What another rank failed with, and says itself: "rank 0: the disk is full", or the group that it called off. */
static bool is_of_another(const char *text, int rank)
{
    int by, world, length = 0;
    if (rank < 0 || sscanf(text, "rank %d%n", &by, &length) != 1 || by == rank) return false;
    text += length;
    length = 0;
    (void)sscanf(text, " of %d called the group off:%n", &world, &length);
    return text[0] == ':' || length > 0;
}

int report(const char *command_name, lk_context *context, lk_status status)
{
    return report_as(command_name, "", context, status);
}

int report_as(const char *command_name, const char *lead, lk_context *context, lk_status status)
{
    const char *text = context ? lk_context_error(context) : "";
    int         code = exit_code(status), rank = environment_rank();
    bool        other = is_of_another(text, rank);
    if (!text[0]) text = lk_status_text(status);
    if ((other || (rank > 0 && code == EXIT_MISTAKE)) && stopped_meanwhile()) return code;
    char by[32] = "";
    if (rank > 0 && !other) snprintf(by, sizeof by, "rank %d: ", rank);
    note(command_name, "%s%s%s", by, lead, text);
    return code;
}
