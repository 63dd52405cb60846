/* data.h - the verbs of `lockstep data`. */
#ifndef DATA_H
#define DATA_H

#include "command.h"

int data_tokenize(const options *given); /* `data tokenize`; operands from the second on are texts */

/* A context that logs as `data` does. 0, or the exit status after the error was printed. */
int data_context(lk_context **context);

#endif
