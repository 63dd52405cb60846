/* environment.h - environment variables of the command. */
#ifndef ENVIRONMENT_H
#define ENVIRONMENT_H

#include <lockstep/environment.h>
#include <stdio.h>

/* 0, or the exit status after a variable with an invalid number was reported. */
int environment_check(const char *command_name);
/* This process's rank, from the launcher's variables; -1: no launcher, or a single rank. */
int environment_rank(void);

/* For `lockstep help environment` and the man page. */
void        environment_print_help(FILE *out, int width);
const char *environment_heading(lk_environment_group group);
void environment_describe(const lk_environment_variable *variable, char *out, size_t size); /* type and meaning */

#endif
