/* run_log.h - the log of a run, a line of JSON for each event. Where it can no longer be written the run goes on without it. */
#ifndef RUN_LOG_H
#define RUN_LOG_H

#include <stdbool.h>
#include <stdio.h>

typedef struct run_log {
    FILE *file;  /* NULL: there is none, or none any more */
    int   error; /* errno of the write that failed; 0: none has */
    char  path[4096];
} run_log;

/* Opens the file for appending. 0, or errno: also if the disk is full, which would show only with the first line. */
int run_log_open(run_log *log, const char *path);
/* After a line was written to log->file; errno was 0 before. False: it could not be written, and the file is closed. */
bool run_log_check(run_log *log);
bool run_log_close(run_log *log); /* false: the last lines could not be written; fine if it is not open */

#endif
