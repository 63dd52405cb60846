/* info_checkpoint.h - the part of `lockstep info` that describes a checkpoint. */
#ifndef INFO_CHECKPOINT_H
#define INFO_CHECKPOINT_H

#include "command.h"

/* Prints what the newest checkpoint of a directory is; returns the exit status. */
int info_checkpoint(const char *directory, bool as_json);

#endif
