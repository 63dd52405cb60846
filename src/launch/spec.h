/* launch/spec.h - the job specification, which the launcher of several hosts sends to each remote launcher's standard
 * input: strings `name=value`, each terminated by NUL, an empty one last. It contains the token, which is never put on
 * a command line. */
#ifndef LK__SPEC_H
#define LK__SPEC_H

#include "launch/launch.h"

/* less than a pipe's capacity, so that sending never blocks */
enum { LK__SPEC_BYTES = 60000, LK__SPEC_ARGUMENTS = 2048 };

typedef struct lk__launch_spec {
    char             text[LK__SPEC_BYTES];
    size_t           length;
    bool             full;
    const char      *program[LK__SPEC_ARGUMENTS]; /* after parsing: pointers into text */
    const char      *directory, *token, *job, *program_path;
    int              argument_count, world, first_rank, colour, no_pin, generation, max_restarts, virtual_local_rank;
    lk_launch_config config;
} lk__launch_spec;

void lk__spec_add(lk__launch_spec *spec, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Parses text, sets the environment variables in it, and checks that it is complete. */
lk_status lk__spec_parse(lk_context *context, lk__launch_spec *spec);

#endif
