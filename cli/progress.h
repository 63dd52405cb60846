/* progress.h - tells a person how training goes: one line that moves on a terminal, plain lines elsewhere. */
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
    int64_t     total;          /* steps; 0: unknown */
    int64_t     every;          /* steps between plain lines */
    double      started, shown; /* seconds of the monotonic clock */
    int64_t     first;          /* step from which this run counts, when it was resumed */
    bool        drawn;          /* a line stands that must be cleared before anything else is written */
} progress;

/* `every`: plain lines when out is no terminal, each so many steps and after the last. NO_COLOR in the environment is heeded. */
void progress_start(progress *p, FILE *out, const char *what, const char *unit, int64_t first, int64_t total,
                    int64_t every);
/* After `step` steps. loss NaN leaves it out. done counts units (images, MiB) since progress_start. Cheap: draws ten times a
 * second at most. */
void progress_step(progress *p, int64_t step, double loss, double done);
void progress_say(progress *p, const char *format, ...) __attribute__((format(printf, 2, 3))); /* a line that stays */
void progress_end(progress *p); /* clears the moving line; what was said stays */

#endif
