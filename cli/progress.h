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
    double      next;  /* when the next plain line is due, as `shown` */
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

/* If out is not a terminal: plain lines, for the first step, then every 1 to 10 seconds, and for the last. NO_COLOR in
 * the environment disables colours. */
void progress_start(progress *p, FILE *out, const char *what, const char *unit, int64_t total);
/* After `step` steps. A loss of NaN is not shown. done counts units (images, MiB) from any start. Draws at most ten
 * times per second. */
void progress_step(progress *p, int64_t step, double loss, double done);
/* For lk_data_get: user is a progress that is zero except `what`, or already started. Call progress_end if `out` is
 * set. */
int progress_bytes(void *user, int64_t done, int64_t total);
/* lk_context_config.progress: user is a progress that is zero. */
void progress_work(void *user, const char *what, int64_t done, int64_t total);
void progress_print(progress *p, const char *format, ...) __attribute__((format(printf, 2, 3))); /* a permanent line */
/* The same, broken at spaces to the terminal's width, or to 80 columns; further lines are indented. */
void progress_print_wrapped(progress *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
void progress_end(progress *p); /* clears the progress line; printed lines stay */

#endif
