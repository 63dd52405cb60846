/* paths.h - where a run writes: directories are made, and whether they can be written is known before the first step. */
#ifndef PATHS_H
#define PATHS_H

#include "options.h"

/* --save, --trace, --log, --log-dir and --tensorboard of rank 0; of any other rank --log-dir alone. Makes the directories that
 * are missing; changes and leaves no file. 0, or the exit status after the mistake was reported. */
int paths_check(const char *command_name, const options *given, int rank);

#endif
