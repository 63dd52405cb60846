/* bench_generate.h - `lockstep bench generate`. */
#ifndef BENCH_GENERATE_H
#define BENCH_GENERATE_H

#include "options.h"

/* Rows of the option table of bench that only this benchmark has. */
#define GENERATE_OPTIONS                                                                                        \
    HEADING("generate"), INTEGER("tokens", "N", "64", 2, 1e6, "generate: new tokens for each prompt"),           \
        INTEGER("prompt-tokens", "N", "32", 1, 1e6, "generate: tokens in a prompt")

int bench_generate(const options *given); /* the exit status */

#endif
