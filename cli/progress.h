/* progress.h - shows progress: one line that is updated on a terminal and fits its width, otherwise plain lines. */
#ifndef PROGRESS_H
#define PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { PROGRESS_NOTE = 512 };

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
    double      shown; /* time of the last update, monotonic clock, in seconds */
    bool        drawn; /* a line is shown that must be cleared before other output */
    bool        begun; /* a step was reported. Rates count from the first step, to exclude its startup cost: */
    int64_t     first_step;
    double      first_done, first_time;
    char note[PROGRESS_NOTE]; /* further parts with two spaces between them: at the end of the line, as many as fit */
    /* Writes the note, only when a line is drawn or printed; NULL: nobody does. */
    void (*describe)(void *user, char *note, size_t size);
    void *user;
} progress;

/* `every`: steps between plain lines if out is not a terminal. NO_COLOR in the environment disables colours. */
void progress_start(progress *p, FILE *out, const char *what, const char *unit, int64_t total, int64_t every);
/* After `step` steps. A loss of NaN is not shown. done counts units (images, MiB) from any start. Draws at most ten times per
 * second. */
void progress_step(progress *p, int64_t step, double loss, double done);
/* For lk_data_get: user is a progress that is zero except `what`, or already started. Call progress_end if `out` is set. */
int  progress_bytes(void *user, int64_t done, int64_t total);
void progress_print(progress *p, const char *format, ...) __attribute__((format(printf, 2, 3))); /* a permanent line */
void progress_end(progress *p); /* clears the progress line; printed lines stay */

#endif
