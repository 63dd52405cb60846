/* memory_advice.h - suggests changes that would make a run fit into the memory of the GPU or of the host. */
#ifndef LK_CLI_MEMORY_ADVICE_H
#define LK_CLI_MEMORY_ADVICE_H

#include "setup.h"

/* After a run failed with that status: where that is for its memory, plans it again with --recompute, with more
 * micro-batches and with fewer ranks, and prints which of these fit into what is free. */
void memory_advise(setup *s, const char *command_name, lk_status status);

#endif
