/* run/digest.h - digests of the values that a program computes, for comparisons of layouts. */
#ifndef LK__RUN_DIGEST_H
#define LK__RUN_DIGEST_H

#include "run/program.h"

/* Opens the file that LOCKSTEP_DIGESTS names, with ".RANK" appended; nothing where it is not set. Of a device that
 * computes in the host's memory. */
lk_status lk__digests_open(lk_program *program);
void      lk__digests_close(lk_program *program);
/* Writes a line for each input of a kernel before it runs, or for each output after it. */
void lk__digests_write(const lk_program *program, const lk__run_list *list, const lk__run_instruction *instruction,
                       bool outputs);

#endif
