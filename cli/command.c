/* command.c - the list of commands, and how one says that something is wrong. */
#include "command.h"

#include "terminal.h"

#include <stdarg.h>
#include <string.h>

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

void complain(const char *command_name, const char *format, ...)
{
    va_list arguments;
    fflush(stdout); /* what was said before stands before */
    fprintf(stderr, "lockstep%s%s: ", command_name ? " " : "", command_name ? command_name : "");
    va_start(arguments, format);
    terminal_print_list(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\n");
}

int report(const char *command_name, lk_context *context, lk_status status)
{
    return report_as(command_name, "", context, status);
}

int report_as(const char *command_name, const char *lead, lk_context *context, lk_status status)
{
    const char *text = context ? lk_context_error(context) : "";
    complain(command_name, "%s%s", lead, text[0] ? text : lk_status_text(status));
    switch (status) {
    case LK_EINVAL:
    case LK_EFORMAT:
    case LK_ENOENT:
    case LK_EMISMATCH:
    case LK_EUNSUPPORTED: return EXIT_MISTAKE;
    default: return EXIT_FAILED;
    }
}
