/* environment.h - environment variables of the command. */
#ifndef ENVIRONMENT_H
#define ENVIRONMENT_H

/* 0, or the exit status after a variable with an invalid number was reported. */
int environment_check(const char *command_name);
/* This process's rank, from the launcher's variables; -1: no launcher, or a single rank. */
int environment_rank(void);

#endif
