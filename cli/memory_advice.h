/* memory_advice.h - what would make a run fit into a device's memory. */
#ifndef LK_CLI_MEMORY_ADVICE_H
#define LK_CLI_MEMORY_ADVICE_H

#include "setup.h"

/* After lk_trainer_create returned LK_ENOMEM: plans the run again with --recompute and with more micro-batches, and prints which of
 * these fit into what is free. Nothing where the device is the CPU, whose memory others share. */
void memory_advise(setup *s, const char *command_name);

#endif
