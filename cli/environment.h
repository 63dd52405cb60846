/* environment.h - what the command takes from the environment. */
#ifndef ENVIRONMENT_H
#define ENVIRONMENT_H

/* 0, or the exit status after a variable that holds no number where one belongs was reported. */
int environment_check(const char *command_name);

#endif
