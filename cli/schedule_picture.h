/* schedule_picture.h - `lockstep plan --schedule-picture`: draws the estimated timeline of a step in stages as SVG. */
#ifndef LK_CLI_SCHEDULE_PICTURE_H
#define LK_CLI_SCHEDULE_PICTURE_H

#include "setup.h"

/* A row for each stage, with its ranks: runs of forward, backward and gradients of weights, what it sends, and how long
 * it waits. 0, or the exit status after the error was printed. */
int schedule_picture_write(const setup *s, const lk_plan *plan, const lk_rates *rates, const char *path);

#endif
