/* command.h - what a command of `lockstep` is. To add one: a file cli/NAME.c that defines `const command command_NAME`, and one
 * line in the list below. */
#ifndef COMMAND_H
#define COMMAND_H

#include "options.h"

#include <lockstep/context.h>
#include <signal.h>

typedef struct command {
    const char *name;
    const char *summary;     /* a few words, for the list of commands */
    const char *description; /* for --help and the man page; paragraphs are parted by an empty line */
    const char *operands;    /* "get NAME", as the synopsis shows them; NULL: takes none */
    int least, most;       /* how many operands; most PROGRAM_FOLLOWS: options end at the first, see options.program */
    const option *options; /* ends with an empty one; NULL: none */
    int (*run)(const options *given); /* returns the process's exit status */
} command;

/* In the order of `lockstep help`. */
#define COMMAND_LIST(X) \
    X(train)            \
    X(run)              \
    X(eval)             \
    X(predict)          \
    X(plan)             \
    X(data)             \
    X(bench)            \
    X(info)             \
    X(help)

#define COMMAND_DECLARE(name) extern const command command_##name;
COMMAND_LIST(COMMAND_DECLARE)
#undef COMMAND_DECLARE

extern const command *const commands[];                     /* all of the list, NULL at the end */
const command              *command_find(const char *name); /* NULL when there is none */

enum { EXIT_FAILED = 1, EXIT_MISTAKE = 2, PROGRAM_FOLLOWS = -1 };

/* "lockstep NAME: …" on standard error: the mistake for which the command ends. Where several ranks run the same command, all
 * find the same mistake: rank 0 says it at once, and another only if it is not stopped for it meanwhile, as launchers do. */
void complain(const char *command_name, const char *format, ...) __attribute__((format(printf, 2, 3)));
void note(const char *command_name, const char *format, ...)
    __attribute__((format(printf, 2, 3))); /* the same, at once */
extern volatile sig_atomic_t stop_signal; /* that asked this command to stop, where it handles signals; 0: none */
/* Waits for two seconds, in which whoever started the ranks stops this one if another has failed; true: it was. */
bool stopped_meanwhile(void);
/* Says what the context's latest failure said; returns 2 for what the user can mend (a value, a name, a file of another kind),
 * 1 for what failed. What another rank says itself is said here only if nobody stops this one. context may be NULL. */
int report(const char *command_name, lk_context *context, lk_status status);
int report_as(const char *command_name, const char *lead, lk_context *context,
              lk_status status); /* lead: in front of it */

void command_print_help(const command *command, FILE *out);
void command_print_man(const command *command, FILE *out); /* troff; NULL: the page of lockstep itself */
void commands_print_help(FILE *out);

#endif
