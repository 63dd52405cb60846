/* progress.h - tells a person how training goes: one line that moves on a terminal and never is wider, plain lines elsewhere. */
#ifndef PROGRESS_H
#define PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct progress {
    FILE       *out;
    const char *what; /* "train", "get cifar10" */
    const char *unit; /* "images", "MiB" */
    bool        terminal, colour;
    bool        bytes; /* steps are bytes, shown as MiB */
    int64_t     total; /* steps; 0: unknown */
    int64_t     every; /* steps between plain lines */
    int64_t     next;  /* bytes: when the next plain line is due */
    bool        ended; /* the plain line of the last step was written */
    double      shown; /* when, by the monotonic clock, in seconds */
    bool        drawn; /* a line stands that must be cleared before anything else is written */
    bool        begun; /* a step was reported. Rates count from there, so that the first, slow one does not: */
    int64_t     first_step;
    double      first_done, first_time;
    char        note[64]; /* shown at the end of the line, where there is room */
} progress;

/* `every`: plain lines when out is no terminal, each so many steps and after the last. NO_COLOR in the environment is heeded. */
void progress_start(progress *p, FILE *out, const char *what, const char *unit, int64_t total, int64_t every);
/* After `step` steps. loss NaN leaves it out. done counts units (images, MiB) from wherever you like. Cheap: draws ten times a
 * second at most. */
void progress_step(progress *p, int64_t step, double loss, double done);
/* For lk_data_get: user is a progress that is zero but for `what`, or started already. Ends with progress_end where it has `out`. */
int  progress_bytes(void *user, int64_t done, int64_t total);
void progress_say(progress *p, const char *format, ...) __attribute__((format(printf, 2, 3))); /* a line that stays */
void progress_end(progress *p); /* clears the moving line; what was said stays */

#endif
