/* bench_comm.h - `lockstep bench comm`, and its rows in the table of `lockstep bench`. */
#ifndef CLI_BENCH_COMM_H
#define CLI_BENCH_COMM_H

#include "command.h"

/* clang-format off */
#define COMM_OPTIONS \
    HEADING("`bench comm`"), \
    CHOICE_LISTED("op", "NAME", "all_reduce", bench_comm_op, \
           "The collective to measure, in f32; "      \
           "reductions compute sums"),                \
    CHOICE("memory", "KIND", "both", "symmetric|ordinary|both", "Which buffers to " \
                                                                "measure"),         \
    TEXT("sizes", "LIST", "8,4K,64K,1M,4M,25M,100M", "Buffer sizes in bytes, comma-separated")
/* clang-format on */

const char *bench_comm_op(int index); /* the values of --op; NULL past the last */
int         bench_comm(const options *given);

#endif
