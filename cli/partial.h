/* partial.h - prints what --init-partial loaded. */
#ifndef PARTIAL_H
#define PARTIAL_H

#include "json.h"

#include <lockstep/checkpoint.h>

void partial_print(const char *command_name, const char *file, const lk_load_report *report); /* on standard error */
void partial_json(json *j, const lk_load_report *report); /* "init_partial": lists of names by result */

#endif
