/* command.h - the commands of `lockstep`. To add one: a file cli/NAME.c that defines `const command command_NAME`, and
 * one line in the list below. */
#ifndef COMMAND_H
#define COMMAND_H

#include "options.h"

#include <lockstep/context.h>
#include <signal.h>

typedef struct command {
    const char *name;
    const char *summary;     /* one line, for the list of commands */
    const char *description; /* for --help and the man page; an empty line separates paragraphs */
    const char *operands;    /* "get NAME", for the synopsis; NULL: none */
    int least, most;       /* number of operands; most PROGRAM_FOLLOWS: options end at the first, see options.program */
    const option *options; /* terminated by OPTIONS_END; NULL: none */
    int (*run)(const options *given); /* returns the process's exit status */
} command;

/* In the order of `lockstep help`. */
#define COMMAND_LIST(X) \
    X(train)            \
    X(run)              \
    X(eval)             \
    X(predict)          \
    X(generate)         \
    X(plan)             \
    X(data)             \
    X(bench)            \
    X(info)             \
    X(completion)       \
    X(help)

#define COMMAND_DECLARE(name) extern const command command_##name;
COMMAND_LIST(COMMAND_DECLARE)
#undef COMMAND_DECLARE

extern const command *const commands[];                     /* terminated by NULL */
const command              *command_find(const char *name); /* NULL if there is none */

enum { EXIT_FAILED = 1, EXIT_USER_ERROR = 2, PROGRAM_FOLLOWS = -1 };

/* Prints "lockstep NAME: …" on standard error: the user error for which the command ends. If several ranks run the same
 * command, all find the same error: rank 0 prints it at once, another one only if no launcher stops it within two
 * seconds. */
void print_error(const char *command_name, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* prints at once on any rank */
void print_note(const char *command_name, const char *format, ...) __attribute__((format(printf, 2, 3)));
extern volatile sig_atomic_t stop_signal;  /* the signal that stops this command, if it handles signals; 0: none */
/* Waits up to two seconds for a launcher's stop signal after another rank failed; true: it arrived. */
bool        wait_for_stop(void);
int         command_exit_code(lk_status status); /* EXIT_USER_ERROR or EXIT_FAILED */
const char *command_remedy(lk_status status);    /* the option that helps, as the end of a message; "": none */
/* Prints the context's latest error; returns 2 for user errors (a value, a name, a file of the wrong format), 1 for
 * failures. An error that another rank prints is printed here only if no launcher stops this rank. context may be
 * NULL. */
int report(const char *command_name, lk_context *context, lk_status status);
int report_as(const char *command_name, const char *lead, lk_context *context,
              lk_status status); /* lead: prefix of the error */
/* As report, of an error that this rank alone has found, and which is printed at once: a sample that cannot be read. */
int report_of_rank(const char *command_name, lk_context *context, lk_status status);

void command_show_help(const command *command); /* through a pager on a terminal; NULL: the list of commands */
void command_print_man(const command *command, FILE *out); /* troff; NULL: the page of lockstep itself */
void commands_print_help(FILE *out);

#endif
