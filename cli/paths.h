/* paths.h - creates the output directories of a run, and checks before the first step that they are writable. */
#ifndef PATHS_H
#define PATHS_H

#include "options.h"

/* --save, --trace, --log, --log-dir and --tensorboard of rank 0; of any other rank --log-dir alone. Creates missing
 * directories; changes and leaves no file. 0, or the exit status after the error was printed. */
int paths_check(const char *command_name, const options *given, int rank);

#endif
