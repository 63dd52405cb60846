/* model_default.h - the default of --model: the model in the directory from which the weights are loaded. */
#ifndef MODEL_DEFAULT_H
#define MODEL_DEFAULT_H

#include "options.h"

/* Sets --model to the config.json in the directory of --init, --init-partial or --load, unless it is set already or
 * there is none. After the options of a checkpoint's record were read, which have precedence. 0, or the exit status
 * after the error was printed: there is no such file or directory, which would be read later by a model that nobody
 * asked for. */
int model_default(const char *command_name, options *given);

#endif
