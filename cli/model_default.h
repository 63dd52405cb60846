/* model_default.h - the model where --model is not given: that of the directory that the weights come from. */
#ifndef MODEL_DEFAULT_H
#define MODEL_DEFAULT_H

#include "options.h"

/* Sets --model to the config.json in the directory of --init, --init-partial or --load, unless it is set already or there is none. After
 * the options of a checkpoint's record were read, which have precedence. */
void model_default(options *given);

#endif
