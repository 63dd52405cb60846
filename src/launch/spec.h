/* launch/spec.h - what the launcher of several hosts tells each far end over its standard input: strings `name=value`, each ended
 * by a NUL, an empty one last. The token travels here, never on a command line. */
#ifndef LK__SPEC_H
#define LK__SPEC_H

#include "launch/launch.h"

enum { LK__SPEC_BYTES = 60000, LK__SPEC_WORDS = 2048 }; /* less than a pipe holds, so that telling never blocks */

typedef struct lk__launch_spec {
    char             text[LK__SPEC_BYTES];
    size_t           length;
    bool             full;
    const char      *program[LK__SPEC_WORDS]; /* after reading: pointers into text */
    const char      *directory, *token, *job;
    int              words, world, first_rank, colour, no_pin, generation, max_restarts, virtual_local_rank;
    lk_launch_config config;
} lk__launch_spec;

void lk__spec_add(lk__launch_spec *spec, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Takes text apart, sets the environment that it names, and checks that all is there. */
lk_status lk__spec_parse(lk_context *context, lk__launch_spec *spec);

#endif
