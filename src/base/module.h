/* base/module.h - finds the modules that are loaded at run time (MPI, CUDA). */
#ifndef LK__MODULE_H
#define LK__MODULE_H

#include <stdbool.h>
#include <stddef.h>

/* The path of the module `file`: only in LOCKSTEP_MODULES where that is set; otherwise in the directory of the library
 * or command, its lockstep subdirectory, or relative to bin. false: it is not there; path is the first of these places,
 * for a message. */
bool lk__module_find(const char *file, char *path, size_t bytes);

#endif
