/* straggler.h - the rank that the others wait for and, in a mesh with a pipeline axis, its stage. */
#ifndef LK_CLI_STRAGGLER_H
#define LK_CLI_STRAGGLER_H

#include "setup.h"

typedef struct straggler {
    int    rank;          /* -1: none */
    double late, seconds; /* in a step, later than the fastest rank; of a step */
} straggler;

bool straggler_matters(const straggler *who); /* the others wait for more than a tenth of a step */
/* "rank 2", "stage 1 (rank 2)" */
void straggler_name(const setup *s, const straggler *who, char *text, size_t size);
/* At the end of a run in stages: which was the slowest, and what one block less would gain. */
void straggler_note(const setup *s, const char *command_name, const straggler *who);

#endif
