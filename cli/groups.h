/* groups.h - the options --freeze and --group: settings for parameters that are selected by name patterns. */
#ifndef GROUPS_H
#define GROUPS_H

#include "setup.h"

/* Sets the groups of s->config.optimizer: patterns of --freeze first, then those of --group; the first that matches a
 * parameter applies. Memory belongs to s. 0, or the exit status after the error was printed. */
int groups_make(setup *s, const char *command_name, const options *given);

#endif
