/* model.h - opens models by name, and from a user's shared object. */
#ifndef MODEL_H
#define MODEL_H

#include <lockstep.h>

/* The model of that name or file. NULL: the error was printed. *library is to be closed after the last use of the
 * model; NULL where it is built in. */
lk_model_function model_load(const char *command_name, const char *model, void **library);
void              model_unload(void *library); /* NULL is fine */

#endif
