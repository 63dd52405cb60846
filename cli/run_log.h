/* run_log.h - writes the events of a run: the lines of --log and --log-dir, and TensorBoard's file. */
#ifndef RUN_LOG_H
#define RUN_LOG_H

#include "command.h"
#include "progress.h"

#include <lockstep/tensorboard.h>
#include <lockstep/trainer.h>

typedef struct run_log {
    lk_context *context;
    const char *command;
    progress   *bar;  /* shows a moving line; NULL: nothing does */
    FILE       *file; /* NULL: there is none, or none any more */
    char        path[4096];
    int         error; /* errno of the write to it that failed; 0: none has */

    lk_tensorboard *board;             /* NULL: there is none */
    char            board_error[1024]; /* its first failure; "": none */
} run_log;

/* Opens what the options name for this rank. 0, or the exit status after the error was printed: also where a disk is
 * full. */
int run_log_open(run_log *log, const char *command_name, const options *given, lk_context *context, int rank);
/* A file that can no longer be written, on a full disk for example, ends with a warning; the run goes on. */
void run_log_event(run_log *log, const lk_event *event);
bool run_log_close(run_log *log); /* false: something is incomplete, which was printed. Fine if nothing is open */

#endif
